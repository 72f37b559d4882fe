"""The PTX of the tests' own kernels, in the folder `kernels` or in a text, compiled once for all tests of a process."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from emulated_cuda import nvrtc

KERNELS = Path(__file__).parent / "kernels"


@lru_cache(maxsize=64)
def compile_ptx(
    name: str, architecture: str = "sm_90a", defines: tuple[str, ...] = (), source: str | None = None
) -> str:
    """Return the PTX of `name`.cu in the folder `kernels`, or of a source text under that name."""
    text = source if source is not None else (KERNELS / f"{name}.cu").read_text(encoding="utf-8")
    return nvrtc.compile_ptx(text, architecture, name=name, defines=defines, folders=(KERNELS,))
