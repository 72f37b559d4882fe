"""Products on tensor cores: the ways to multiply, and weights packed as the fragments that are multiplied.

The kernel that packs is in ``kernels_cu/conv/gemm/pack_fragments.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import RANK, Launch, Limits, model, numbers

FRAGMENT_BYTES = 16 * 32  # 16 output channels by 32 bytes of K
_TAPS = 64  # of a block of conv/gemm/pack_fragments.cu


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """One way to multiply."""

    label: str  # in names of kernels
    cuda: str  # the class in ``conv/gemm/fragments.cuh``
    lanes: int  # which of the device's rates is its own
    instruction: str  # of mma.sync
    products: int = 1  # multiplications on tensor cores for one of the problem's
    parts: int = 1  # fragments that make up one of weights


ARITHMETICS = {  # by dtype and precision
    ("float16", "ieee"): Arithmetic("mma", "HalfProducts", 0, "m16n8k16 of float16"),
    ("bfloat16", "ieee"): Arithmetic("mma", "Bfloat16Products", 0, "m16n8k16 of bfloat16"),
    ("float32", "tf32"): Arithmetic("tf32", "Tf32Products", 1, "m16n8k8 of TF32"),
    ("float32", "3xtf32"): Arithmetic("3xtf32", "Tf32x3Products", 1, "three m16n8k8 of TF32", products=3, parts=2),
    ("float64", "ieee"): Arithmetic("mma", "DoubleProducts", 2, "mma of float64"),
}


def arithmetic(problem: Problem) -> Arithmetic:
    """Return how a problem's elements are multiplied."""
    return ARITHMETICS[problem.dtype, problem.precision]


@dataclass(frozen=True, slots=True)
class WarpTile(gemm_base.BlockTile):
    """The outputs of a block and of a warp."""

    warp_m: int
    warp_n: int
    blocks_per_sm: int  # that the kernel's registers leave room for

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.block_m // self.warp_m) * (self.block_n // self.warp_n) * 32

    def residence(self, shared_bytes: int, limits: Limits) -> model.Residence:
        """Return how many blocks of so much shared memory a multiprocessor has room for."""
        return model.Residence(self.threads // 32, min(self.blocks_per_sm, limits.blocks_of(shared_bytes)))

    def wavefronts(self, parts: int) -> float:
        """128 bytes of shared memory that are filled and loaded for each product of fragments, weights in parts."""
        m, n = self.warp_m / 16, self.warp_n / 8
        loaded = (4 * parts * m + 2 * n) / (m * n)
        m, n = self.block_m / 16, self.block_n / 8
        return loaded + (4 * parts * m + 2 * n) / (m * n)


# ---------------------------------------------------------------- what tensor cores take


def refusal(problem: Problem) -> str | None:
    """Return why no kernel of tensor cores takes a problem, or None."""
    if (problem.dtype, problem.precision) not in ARITHMETICS:
        return f"{problem.dtype} products are those of IEEE arithmetic unless precision is lower"
    if problem.rank > RANK:
        return f"{problem.rank} spatial axes are more than {RANK}"
    if problem.rows == 0:
        return "there is nothing to multiply"
    if problem.far():
        return "offsets or coordinates need 64-bit indices"
    return None


def has_chunks(problem: Problem, size: int = 16) -> bool:
    """Tell whether every pixel of x consists of whole chunks, of so many bytes of contiguous channels."""
    chunk = size // problem.itemsize
    batch, channel, *spatial = problem.x_strides
    steps = [batch, *(s for s, n in zip(spatial, problem.x_shape[2:], strict=True) if n > 1)]
    return channel == 1 and problem.channels % chunk == 0 and all(step % chunk == 0 for step in steps)


def order(arithmetic: Arithmetic, channels: int, unit: int, how: str = "") -> str:
    """Return how the products of an output are added where each tap's channels are filled up to whole units."""
    return f"{arithmetic.instruction} over taps, {numbers.whole(channels, unit)} channels{how}"


# ---------------------------------------------------------------- packing


def packing(
    problem: Problem,
    weights: gemm_base.PackedWeights,
    columns: int,
    depths: int,
    outer_taps: int,
    tickets: int = 0,
    several: gemm_base.Several | None = None,
) -> Launch:
    """Return the launch that packs weights, in slices of K, as fragments, and sets so many tickets to zero.

    ``columns`` and ``depths`` count fragments along M of all filters and along K of a slice, ``outer_taps`` those taps
    that are filled up to whole slices each: 1 where K is, as a whole. Where filters have ``several`` rows these are
    columns and taps of those.
    """
    chosen = packing_variant(problem.dtype, problem.precision)
    rows, parts = weights.all_rows * depths // outer_taps, -(-outer_taps // _TAPS)
    blocks = problem.group * columns * rows * parts
    taps = problem.taps if several is None else several.gemm.taps
    fields = {
        "filters": problem.filters,
        "channels": problem.channels,
        "taps": prod(taps),
        **problem.w_steps,
        "w_stride": problem.w_strides[3:],
        "tap_parts": parts,
        "rows": rows,
        "columns": columns,
        "depths": depths,
        "by_channel": weights.channels,
        "extent": taps,
        "of_filter": gemm_base.of_filter(problem.taps, several),
        "outer_taps": outer_taps,
    }
    return gemm_base.packing_launch(problem.operator, chosen, blocks, fields, tickets)


_KERNEL = Kernel("conv/gemm/pack_fragments.cu", "pack_fragments", f"PackFragmentsParams<{RANK}>")


def packing_variant(dtype: str, precision: str) -> Variant:
    """Return the kernel that packs weights as fragments."""
    arithmetic = ARITHMETICS[dtype, precision]
    return _KERNEL.over(dtype, RANK, arithmetic.label, types=(arithmetic.cuda,))
