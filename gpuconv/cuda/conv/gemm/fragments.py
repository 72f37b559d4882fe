"""Tensor-core arithmetic and packed weights: which mma instruction computes which dtype, and fragment-order packing.

Weights are packed so that each lane of a warp loads its mma operand as 16 contiguous bytes. The packing kernel is
``kernels_cu/conv/gemm/pack_fragments.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import RANK, Launch, Limits, model, numbers

FRAGMENT_BYTES = 16 * 32  # one fragment: 16 output channels × 32 bytes of K
_TAPS = 64  # taps per block of conv/gemm/pack_fragments.cu


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How tensor cores multiply one dtype at one precision."""

    label: str  # part of kernel names
    cuda: str  # C++ class in ``conv/gemm/fragments.cuh``
    lanes: int  # index of its tensor-core rate in the device's limits
    instruction: str  # the mma.sync instruction, for names of orders
    products: int = 1  # tensor-core products per product of the problem
    parts: int = 1  # fragments per fragment of weights: 2 if split into high and low parts


ARITHMETICS = {  # (dtype, precision) → arithmetic
    ("float16", "ieee"): Arithmetic("mma", "HalfProducts", 0, "m16n8k16 of float16"),
    ("bfloat16", "ieee"): Arithmetic("mma", "Bfloat16Products", 0, "m16n8k16 of bfloat16"),
    ("float32", "tf32"): Arithmetic("tf32", "Tf32Products", 1, "m16n8k8 of TF32"),
    ("float32", "3xtf32"): Arithmetic("3xtf32", "Tf32x3Products", 1, "three m16n8k8 of TF32", products=3, parts=2),
    ("float64", "ieee"): Arithmetic("mma", "DoubleProducts", 2, "mma of float64"),
}


def arithmetic(problem: Problem) -> Arithmetic:
    """Return how tensor cores multiply a problem's elements."""
    return ARITHMETICS[problem.dtype, problem.precision]


@dataclass(frozen=True, slots=True)
class WarpTile(gemm_base.BlockTile):
    """A tile divided among warps: the outputs of one block and of one warp."""

    warp_m: int
    warp_n: int
    blocks_per_sm: int  # occupancy allowed by the kernel's registers

    @property
    def threads(self) -> int:
        """Threads per block."""
        return (self.block_m // self.warp_m) * (self.block_n // self.warp_n) * 32

    def residence(self, shared_bytes: int, limits: Limits) -> model.Residence:
        """Return the occupancy, limited by registers and by ``shared_bytes`` of shared memory per block."""
        return model.Residence(self.threads // 32, min(self.blocks_per_sm, limits.blocks_of(shared_bytes)))

    def wavefronts(self, parts: int) -> float:
        """Return the shared-memory wavefronts (128 bytes each) per mma, for weights in ``parts`` parts.

        Counts the stores of slices into shared memory, and the loads of fragments from it.
        """
        m, n = self.warp_m / 16, self.warp_n / 8
        loaded = (4 * parts * m + 2 * n) / (m * n)
        m, n = self.block_m / 16, self.block_n / 8
        return loaded + (4 * parts * m + 2 * n) / (m * n)


# ---------------------------------------------------------------- requirements of tensor cores


def refusal(problem: Problem) -> str | None:
    """Return why no tensor-core kernel accepts the problem; None if some may."""
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
    """Return whether every pixel of x consists of whole chunks of ``size`` bytes of contiguous, aligned channels."""
    chunk = size // problem.itemsize
    batch, channel, *spatial = problem.x_strides
    steps = [batch, *(s for s, n in zip(spatial, problem.x_shape[2:], strict=True) if n > 1)]
    return channel == 1 and problem.channels % chunk == 0 and all(step % chunk == 0 for step in steps)


def order(arithmetic: Arithmetic, channels: int, unit: int, how: str = "") -> str:
    """Return the name of the order of summation: over taps, channels rounded up to a multiple of ``unit``."""
    return f"{arithmetic.instruction} over taps, {numbers.whole(channels, unit)} channels{how}"


# ---------------------------------------------------------------- packing


def packing(
    problem: Problem,
    weights: gemm_base.PackedWeights,
    columns: int,
    depths: int,
    outer_taps: int,
    tickets: int = 0,
    rows_per_filter: gemm_base.RowsPerFilter | None = None,
) -> Launch:
    """Return the launch that packs weights as fragments, slice by slice of K, and zeroes ``tickets`` split-K counters.

    ``columns`` counts fragments along M over all filters, ``depths`` those along K per slice. ``outer_taps`` is the
    number of taps that are padded to whole slices each, or 1 if K is padded as a whole. With ``rows_per_filter``,
    columns and taps are those of the GEMM's rows.
    """
    chosen = packing_variant(problem.dtype, problem.precision)
    rows, parts = weights.all_rows * depths // outer_taps, -(-outer_taps // _TAPS)
    blocks = problem.group * columns * rows * parts
    taps = problem.taps if rows_per_filter is None else rows_per_filter.gemm.taps
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
        "of_filter": gemm_base.of_filter(problem.taps, rows_per_filter),
        "outer_taps": outer_taps,
    }
    return gemm_base.packing_launch(problem.operator, chosen, blocks, fields, tickets)


_KERNEL = Kernel("conv/gemm/pack_fragments.cu", "pack_fragments", f"PackFragmentsParams<{RANK}>")


def packing_variant(dtype: str, precision: str) -> Variant:
    """Return the kernel variant that packs weights as fragments."""
    arithmetic = ARITHMETICS[dtype, precision]
    return _KERNEL.over(dtype, RANK, arithmetic.label, types=(arithmetic.cuda,))
