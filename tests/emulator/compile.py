"""The PTX of the tests' own kernels, and what the emulator needs."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from emulator import build
from gpuconv import CompileError
from gpuconv.cuda import nvrtc

KERNELS = Path(__file__).parent / "kernels"


@lru_cache(maxsize=64)
def compile_ptx(
    name: str, architecture: str = "sm_90a", defines: tuple[str, ...] = (), source: str | None = None
) -> str:
    """Return the PTX of `name`.cu in the folder `kernels`, or of a source text under that name."""
    options = ("--std=c++17", "--generate-line-info", f"-I{KERNELS}", *(f"-D{define}" for define in defines))
    text = source if source is not None else (KERNELS / f"{name}.cu").read_text(encoding="utf-8")
    virtual = architecture.replace("sm_", "compute_")
    return nvrtc.build(name, text, virtual, options)[0].decode()


@lru_cache(maxsize=1)
def unavailable_reason() -> str | None:
    """Return why kernels cannot be emulated here, or None where they can."""
    if build.compiler() is None:
        return "the emulator needs a C++ compiler, and there is no g++"
    try:
        nvrtc.identity()
    except CompileError as error:
        return str(error)
    return None
