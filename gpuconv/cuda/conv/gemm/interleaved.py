"""ConvTranspose with a stride along W: blocks that make all phases along W of their pixels, and write whole rows.

In 32-bit indices and three spatial axes, of which those outside may be of one element.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod

from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import ffma
from gpuconv.cuda.conv.gemm.ffma import Tile
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import launching, model
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.plan.limits import RESERVED_BYTES
from gpuconv.cuda.plan.offers import Candidate, Offer, Refusal
from gpuconv.rules import dtypes

# 128 channels in one block are too many sums to lay into shared memory; few channels in a group make slices of 8.
_SHALLOW = Tile(16, 128, 8, 4, 4, 4, 0.51, rowwise=False)
_FLAT_HALF = Tile(16, 128, 8, 4, 4, 4, 0.26, uniform=False)  # what it gathers waits in registers: half as much of it
_SHALLOW_HALF = replace(_SHALLOW, efficiency=0.41)
_SHALLOW_DOUBLE = replace(_SHALLOW, blocks_per_sm=3, efficiency=0.48)
_TILES = {
    "float16": (*ffma.tiles("float16"), _FLAT_HALF, _SHALLOW_HALF),
    "bfloat16": (*ffma.tiles("bfloat16"), _FLAT_HALF, _SHALLOW_HALF),
    "float32": (*ffma.tiles("float32")[1:], _SHALLOW),
    "float64": (*ffma.tiles("float64"), _SHALLOW_DOUBLE),
}
NAME = "conv_transpose_interleaved"
_LEAST_BLOCKS = 2  # of a multiprocessor, so that one multiplies while another one writes


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for every tile that the device has room for."""
    refusal = _refusal(problem)
    if refusal is not None:
        yield refusal
        return
    problem = correlation.in_three_axes(problem)
    tiles = [tile for tile in _TILES[problem.dtype] if _has_room(problem, tile, limits)]
    if not tiles:
        phases = problem.phases[-1]
        yield Refusal(f"the sums of {phases} phases along W leave no room for a second block in shared memory")
    for tile in tiles:
        uniform = tile.uniform and problem.channels > 0 and problem.channels % tile.block_k == 0
        if uniform or tile.rowwise:
            name = variant(problem.dtype, tile, uniform).name
            yield Candidate(name, _seconds(problem, tile, uniform, limits), partial(_plan, problem, tile, uniform))


def _reason(problem: Problem) -> str:
    return f"all {problem.phases[-1]} phases along W in one block, which writes neighbours of a row"


def _has_room(problem: Problem, tile: Tile, limits: Limits) -> bool:
    return _fits(shared_bytes(problem, tile), limits)


def _fits(shared: int, limits: Limits) -> bool:
    several = _LEAST_BLOCKS * (shared + RESERVED_BYTES)
    return shared <= limits.shared_bytes_per_block and several <= limits.shared_bytes_per_multiprocessor


def _refusal(problem: Problem) -> Refusal | None:
    if not problem.phases:
        return Refusal("Conv has no phases", plain=True)
    if problem.rank > 3:
        return Refusal(f"{problem.rank} spatial axes; it has three")
    if problem.phases[-1] == 1:
        return Refusal("outputs of one phase are neighbours along W already")
    if problem.y_strides[-1] != 1:
        return Refusal("neighbours along W do not lie next to each other in y")
    if problem.wide(problem.group * problem.rows * ffma.pitch(problem)):
        return Refusal("it needs 64-bit indices")
    return None


def shared_bytes(problem: Problem, tile: Tile) -> int:
    """Return the bytes of the multiplier's buffers, of the planes of sums, and of the taps of all phases along W."""
    phases = problem.phases[-1]
    accumulator = problem.accumulator
    size = dtypes.entry(accumulator).itemsize
    apart = spread(phases, size)
    planes = ((phases - 1) * tile.block_m * tile.block_n + phases * apart) * size
    return tile.shared_bytes(accumulator) + planes + phases * gemm_base.taps_bytes(3)


def spread(parts: int, size: int) -> int:
    """Return how many elements of a size things of several parts lie apart, as ``spread`` of ``conv/epilogue.cuh``."""
    vector, banks = 16 // size, 128 // size
    return (banks - 1) // (parts * vector) * vector + vector


def _blocks(problem: Problem, tile: Tile) -> int:
    return prod(problem.tiles(tile.block_m, tile.block_n)) * prod(problem.phases[:-1]) * problem.group


def _seconds(problem: Problem, tile: Tile, uniform: bool, limits: Limits) -> float:
    multiplications = tile.block_m * tile.block_n * problem.rows / prod(problem.phases[:-1])
    efficiency = ffma.efficiency(tile, uniform)
    accumulator = problem.accumulator
    busy = max(
        model.arithmetic(blocks, part * multiplications, accumulator, efficiency, limits)
        for blocks, part in ((_blocks(problem, tile), 1.0), (1, _fullest(problem)))
    )
    return model.overlapped(busy, model.memory(problem.bytes, limits)) + (limits.rates.launch if problem.rows else 0.0)


def _fullest(problem: Problem) -> float:
    """Return how many times the mean the fullest phase of the axes but W meets taps."""
    shares = zip(problem.most_taps[:-1], problem.taps[:-1], problem.phases[:-1], strict=True)
    return prod(most * phases / taps for most, taps, phases in shares)


def _plan(problem: Problem, tile: Tile, uniform: bool) -> Plan:
    blocks = _blocks(problem, tile)
    chosen = variant(problem.dtype, tile, uniform)
    tiles = problem.tiles(tile.block_m, tile.block_n)
    fields = {
        **gemm_base.operands(problem, tiles, ffma.packed_weights(problem)),
        "phases": prod(problem.phases[:-1]),
    }
    roles = gemm_base.roles(problem)
    launch = launching.of_blocks(problem.operator, chosen, blocks, fields, roles, shared_bytes(problem, tile))
    reasons = (_reason(problem), ffma.tap_reason(problem, tile, uniform))
    return ffma.with_packing(problem, False, launch, reasons)


_KERNEL = Kernel("conv/gemm/interleaved.cu", NAME, "ConvTransposeParams<{index}, {rank}>")


def variant(dtype: str, tile: Tile, uniform: bool) -> Variant:
    """Return the kernel of one tile."""
    return _KERNEL.over(
        *(dtype, 3, str(tile), "uniform" * uniform),
        types=types(dtype),
        sizes=(tile.block_m, tile.block_n, tile.block_k, tile.thread_m, tile.thread_n, uniform),
        threads=tile.threads,
        blocks_per_sm=tile.blocks_per_sm,
    )


def forms() -> Iterator[tuple[str, Tile, bool]]:
    """Yield the dtype, the tile and whether each slice of K has one tap, of every kernel on the cores' multipliers."""
    for dtype, tiles in _TILES.items():
        for tile in tiles:
            for uniform in (False, True):
                if tile.uniform if uniform else tile.rowwise:
                    yield dtype, tile, uniform


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan can name."""
    for dtype, tile, uniform in forms():
        yield variant(dtype, tile, uniform)
