"""1 × 1 Conv, and ConvTranspose whose kernel equals its stride, as a plain GEMM with FFMA on CUDA cores.

The IEEE-precision counterpart of the plain tensor-core GEMM. Conv (``conv/gemm/pointwise.cu``) takes float32 without
stride or padding. Spatial axes contiguous in x and y are merged, and w is read in place, so one launch suffices.
ConvTranspose (``conv/gemm/depth_to_space.cu``) takes every dtype and packs weights unless they already have the right
order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod

from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import filter_rows
from gpuconv.cuda.conv.gemm.base import GemmTile, PackedWeights
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import Candidate, Limits, Offer, Plan, Refusal, model, numbers

NAME = "plain GEMM by FFMA"


# ---------------------------------------------------------------- accepted problems


def _gemm(problem: Problem) -> Problem | Refusal:
    """Return the GEMM as a problem with one tap, or the reason why the problem is none."""
    if problem.phases:
        why = filter_rows.unfit(problem)
        return filter_rows.rows_of(problem.lifted) if why is None else Refusal(why)
    if problem.flat is None:
        why = "pixels are not contiguous in x and y, or there are strides or padding"
        return Refusal(why, plain=prod(problem.taps) != 1)
    if problem.dtype != "float32" or problem.rows == 0:
        return Refusal(f"{problem.rows} rows of {problem.dtype}; it takes one or more of float32", plain=True)
    return Refusal("it needs 64-bit indices") if problem.wide() else problem.flat


def _packs(gemm: Problem) -> bool:
    """Return whether the weights must be packed; Conv reads w in place."""
    return gemm.operator != "conv" and (gemm.accumulator != gemm.dtype or gemm.w_strides[1:3] != (1, gemm.filters))


# ---------------------------------------------------------------- tiles


_HALF = (GemmTile(64, 64, 16, 8, 4, 4, 0.75), GemmTile(16, 128, 16, 4, 4, 4, 0.51))
TILES = {
    "conv": {"float32": (GemmTile(128, 128, 16, 8, 8, 2, 0.84), GemmTile(64, 64, 16, 8, 4, 4, 0.75))},
    "conv_transpose": {
        "float16": _HALF,
        "bfloat16": _HALF,
        "float32": (GemmTile(64, 64, 16, 8, 4, 4, 0.77), GemmTile(16, 128, 16, 4, 4, 4, 0.62)),
        "float64": (GemmTile(64, 64, 16, 8, 4, 2, 0.68), GemmTile(16, 128, 16, 4, 4, 3, 0.58)),
    },
}


# ---------------------------------------------------------------- shared memory


_PADDING = 4  # elements of padding per row of weights in shared memory, against bank conflicts


def _shared_bytes(gemm: Problem, tile: GemmTile) -> int:
    """Return the bytes of shared memory: pipeline stages, and for scattered outputs the table of rows."""
    if gemm.operator == "conv":
        return replace(tile, block_m=tile.block_m + _PADDING).shared_bytes(gemm.word)
    return tile.shared_bytes(gemm.word) + tile.block_m * filter_rows.ROW_BYTES


# ---------------------------------------------------------------- cost


def _seconds(problem: Problem, gemm: Problem, tile: GemmTile, limits: Limits) -> float:
    """Model the seconds of all launches of this candidate."""
    blocks = gemm.blocks(tile.block_m, tile.block_n)
    rows = numbers.whole(gemm.rows, tile.block_k) if gemm.operator == "conv" else gemm.rows
    multiplications = tile.block_m * tile.block_n * rows
    busy = model.arithmetic(blocks, multiplications, gemm.accumulator, tile.efficiency, limits)
    packing = limits.rates.launch if _packs(gemm) and gemm.rows else 0.0
    return model.overlapped(busy, model.memory(problem.bytes, limits)) + packing


# ---------------------------------------------------------------- offers


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for each tile that fits the device's shared memory."""
    gemm = _gemm(problem)
    if isinstance(gemm, Refusal):
        yield gemm
        return
    tiles = TILES[problem.operator][problem.dtype]
    fitting = [tile for tile in tiles if _shared_bytes(gemm, tile) <= limits.shared_bytes_per_block]
    if not fitting:
        yield Refusal(f"{limits.shared_bytes_per_block} bytes of shared memory have no room for a tile")
    for tile in fitting:
        seconds = _seconds(problem, gemm, tile, limits)
        name = variant(problem.operator, problem.dtype, tile).name
        order = gemm_base.order(gemm, tile.block_k)
        yield Candidate(name, seconds, partial(_plan, problem, gemm, tile), order)


# ---------------------------------------------------------------- launch


def _plan(problem: Problem, gemm: Problem, tile: GemmTile) -> Plan:
    """Return the plan of this candidate."""
    packs, conv = _packs(gemm), gemm.operator == "conv"
    weights = gemm_base.packed_weights(gemm)
    if not packs:
        weights = PackedWeights(0 if conv else gemm.filters, gemm.rows, gemm.channels)
    extra_fields = problem.w_steps if conv else filter_rows.fields(problem)
    chosen, shared = variant(problem.operator, problem.dtype, tile), _shared_bytes(gemm, tile)
    launch = gemm_base.launch(gemm, chosen, tile, weights, shared, extra_fields, "packed" if packs else "w")
    if conv:
        return Plan(problem.operator, (launch,), ("one plain GEMM: one tap, weights as they are",))
    reason = f"one GEMM of {gemm.filters} rows, channels and taps, whose outputs do not overlap"
    if packs:
        return gemm_base.with_packing(gemm, False, launch, (reason,))
    return Plan(problem.operator, (launch,), (reason, "the weights are read as they lie in memory"))


_KERNELS = {
    "conv": Kernel("conv/gemm/pointwise.cu", "conv_pointwise", "ConvPointwiseParams"),
    "conv_transpose": Kernel(
        "conv/gemm/depth_to_space.cu", "conv_transpose_depth_to_space", "DepthToSpaceParams<{index}, {rank}>"
    ),
}


def variant(operator: str, dtype: str, tile: GemmTile) -> Variant:
    """Return the kernel variant with these template arguments."""
    return gemm_base.tile_variant(_KERNELS[operator], dtype, 1 if operator == "conv" else 3, tile)


def forms() -> Iterator[tuple[str, str, GemmTile]]:
    """Yield (operator, dtype, tile) of every kernel variant."""
    for operator, by_dtype in TILES.items():
        for dtype, tiles in by_dtype.items():
            for tile in tiles:
                yield operator, dtype, tile


def variants() -> Iterator[Variant]:
    """Yield every kernel variant of this family."""
    for form in forms():
        yield variant(*form)
