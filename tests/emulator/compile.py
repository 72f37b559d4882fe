"""Choose the architecture that tests compile each kernel for, and compile test kernels that include gpuconv's headers.

Each kernel is usually compiled for one architecture, chosen by a hash of its name: so a run compiles every kernel once,
and all architectures occur.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from pathlib import Path

from gpuconv.cuda.build import kernel_files, nvrtc
from gpuconv.cuda.build.variant import Variant

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
READ = "sm_90a"  # for kernels whose machine code tests read, or whose instructions they count
KERNELS = Path(__file__).parent / "kernels"
# Names of kernels that are always compiled for READ: those whose machine code tests read, and slow-to-compile ones
# whose instructions they count. The other kernels get one of their architectures by `turn`.
# tests/kernels/test_specimens.py covers the instruction that differs on older architectures.
_IS_READ = re.compile(
    r"conv_(transpose_(interleaved_)?)?[a-z]+\d+_3d_\d+x\d+x\d+(_uniform)?"
    r"|conv_float\d+_3d_(mma|tf32|3xtf32)_.+|conv_bfloat16_3d_mma_128x128x64_vector"
    r"|conv_transpose_float(16|64)_3d_mma_.+"
    r"|conv_(bands|few|grouped|matrix|pointwise|stem|tap_rows)_.+|conv_transpose_(depth_to_space|depthwise|matrix|phase_rows)_.+"
    r"|(depthwise|grouped)_[a-z]+\d+_3d_.+"
    r"|conv_weight_grad_[a-z]+\d+_3d_(64x64|few\d|rows_\d+x\d+)|conv_weight_grad_float\d+_3d_(mma|ffma|tf32|3xtf32)_.+"
    r"|max_pool_[a-z]+\d+_3d_(vectors_3x2|channels|tiles|patches)(_indices)?"
    r"|(max|average)_pool_grad_[a-z]+\d+_3d_(scatter|walks_.+)"
    r"|(channels_last|pack_rows)_.+"
)


def own(variant: Variant) -> list[str]:
    """Return the architectures of ARCHITECTURES that a kernel can be compiled for."""
    return [architecture for architecture in ARCHITECTURES if variant.compiles_for(architecture)]


def is_read(variant: Variant) -> bool:
    """Return whether a kernel must be compiled for READ, because tests read its machine code or count instructions."""
    return variant.compiles_for(READ) and _IS_READ.fullmatch(variant.name) is not None


def turn(variant: Variant) -> str:
    """Return the architecture that tests compile a kernel for: READ if they need it, else one by a hash of its name."""
    if is_read(variant):
        return READ
    mine = own(variant)
    return mine[zlib.crc32(variant.name.encode()) % len(mine)]


@lru_cache(maxsize=64)
def compile_ptx(
    name: str, architecture: str = "sm_90a", defines: tuple[str, ...] = (), source: str | None = None
) -> str:
    """Return the PTX of a test kernel that may include gpuconv's headers.

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
    options = (
        "--std=c++17",
        "--generate-line-info",
        f"-I{KERNELS}",
        f"-I{kernel_files.folder()}",
        *(f"-D{define}" for define in defines),
    )
    text = source if source is not None else (KERNELS / f"{name}.cu").read_text(encoding="utf-8")
    virtual = architecture.replace("sm_", "compute_")
    return nvrtc.build(name, text, virtual, options)[0].decode()
