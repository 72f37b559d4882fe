"""Compile the test kernels of the folder ``kernels``, or of a source text, to PTX, once per process."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from emulated_cuda import nvrtc

KERNELS = Path(__file__).parent / "kernels"


@lru_cache(maxsize=64)
def compile_ptx(
    name: str, architecture: str = "sm_90a", defines: tuple[str, ...] = (), source: str | None = None
) -> str:
    """Return the PTX of a test kernel.

    Parameters
    ----------
    name : str
        Name of the file, without ``.cu``, in the folder ``kernels``.
    architecture : str
        Compute capability, such as ``sm_90a``.
    defines : tuple of str
        Macro definitions, such as ``COUNT=3``.
    source : str, optional
        CUDA C++ to compile instead of the file; `name` is then its name in messages.
    """
    text = source if source is not None else (KERNELS / f"{name}.cu").read_text(encoding="utf-8")
    return nvrtc.compile_ptx(text, architecture, name=name, defines=defines, folders=(KERNELS,))
