"""Which architectures kernels are compiled for, the PTX of the tests' own kernels, and what the emulator needs."""

from __future__ import annotations

import zlib
from functools import lru_cache
from pathlib import Path

from emulator import build
from gpuconv import CompileError
from gpuconv.cuda import nvrtc
from gpuconv.cuda.plan import Variant

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
KERNELS = Path(__file__).parent / "kernels"


def own(variant: Variant) -> list[str]:
    """Return the architectures that a kernel compiles for."""
    return [architecture for architecture in ARCHITECTURES if variant.compiles_for(architecture)]


def turn(variant: Variant) -> str:
    """Return one of these, always the same: so a run compiles every kernel once and meets all architectures."""
    mine = own(variant)
    return mine[zlib.crc32(variant.name.encode()) % len(mine)]


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
