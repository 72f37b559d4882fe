"""ConvTranspose whose kernel is its stride, without dilation: one GEMM whose rows are output channels and taps.

In 32-bit indices and three spatial axes, of which those outside may be of one element. An axis of x with a single
element has blocks of any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import ffma
from gpuconv.cuda.conv.gemm.base import PackedWeights
from gpuconv.cuda.conv.gemm.ffma import Tile
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import launching, model
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.plan.offers import Candidate, Offer, Refusal

_HALF = (Tile(64, 64, 16, 8, 4, 4, 0.72), Tile(16, 128, 16, 4, 4, 4, 0.51))
_TILES = {
    "float16": _HALF,
    "bfloat16": _HALF,
    "float32": (Tile(64, 64, 16, 8, 4, 4, 0.77), Tile(16, 128, 16, 4, 4, 4, 0.62)),
    "float64": (Tile(64, 64, 16, 8, 4, 2, 0.68), Tile(16, 128, 16, 4, 4, 3, 0.58)),
}
NAME = "conv_transpose_depth_to_space"
ROW_BYTES = 32  # of OutputRow
_MOST_TAPS = 32  # along W, that lanes share the columns of a chunk out to


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for every tile that the device has room for."""
    why = unfit(problem)
    if why is not None:
        yield Refusal(why, plain=not problem.phases)
        return
    rows = rows_of(correlation.in_three_axes(problem))
    tiles = [tile for tile in _TILES[problem.dtype] if _shared_bytes(problem, tile) <= limits.shared_bytes_per_block]
    if not tiles:
        yield Refusal(f"{limits.shared_bytes_per_block} bytes of shared memory have no room for a tile")
    for tile in tiles:
        seconds = _seconds(problem, rows, tile, limits)
        yield Candidate(variant(problem.dtype, tile).name, seconds, partial(_plan, problem, rows, tile))


def unfit(problem: Problem) -> str | None:
    """Return why a problem is not one GEMM whose outputs lie apart; None where it is."""
    if not problem.phases:
        return "Conv has windows that overlap, or one tap"
    if problem.rank > 3:
        return f"{problem.rank} spatial axes; it has three"
    axes = list(zip(problem.x_shape[2:], problem.taps, problem.strides, problem.dilations, strict=True))
    if any(d != 1 or (n != 1 and k != s) for n, k, s, d in axes):
        numbers = f"{problem.taps} taps, strides {problem.strides}, dilations {problem.dilations}"
        return f"{numbers}: the outputs of neighbours overlap or lie apart"
    ends = [n * k - pad for (n, k, *_), pad in zip(axes, problem.pads, strict=True)]
    if any(size > end for size, end in zip(problem.y_shape[2:], ends, strict=True)):
        return "y has outputs that no tap reaches"
    if problem.taps[-1] > _MOST_TAPS:
        return f"{problem.taps[-1]} taps along W; it takes up to {_MOST_TAPS}"
    if _unit(problem) is None:
        return "the taps of a channel do not lie behind each other in w"
    if problem.wide() or _reach(problem) >= params.INDEX_LIMIT:
        return "it needs 64-bit indices"
    return None


def _unit(problem: Problem) -> int | None:
    """Return the stride of w from one row to the next, rows being channels and taps; None where there is not one."""
    sizes = (problem.filters, *problem.taps)
    steps = [(size, stride) for size, stride in zip(sizes, (problem.w_strides[1], *problem.w_strides[3:]), strict=True)]
    steps = [(size, stride) for size, stride in steps if size > 1] or [(1, 1)]
    unit = steps[-1][1]
    expected = unit
    for size, stride in reversed(steps):
        if stride != expected:
            return None
        expected *= size
    return unit


def _reach(problem: Problem) -> int:
    """Return the largest offset, or number of packed weights, also of outputs that the padding cuts off."""
    extents = [n * k for n, k in zip(problem.x_shape[2:], problem.taps, strict=True)]
    sizes = (*problem.y_shape[:2], *extents)
    rows = problem.filters * prod(problem.taps) + ffma.pitch(problem)
    offset = sum(size * abs(stride) for size, stride in zip(sizes, problem.y_strides, strict=True))
    return max(offset, problem.group * problem.channels * rows, problem.batch * prod(problem.x_shape[2:]))


def rows_of(problem: Problem) -> Problem:
    """Return the GEMM as the problem of one tap: output channels and taps are its filters, input pixels its columns."""
    ones = (1,) * problem.rank
    return replace(
        problem,
        filters=problem.filters * prod(problem.taps),
        taps=ones,
        w_strides=(problem.w_strides[0], _unit(problem) or 0, problem.w_strides[2], *ones),
        columns=problem.x_shape[2:],
        pads=(0,) * problem.rank,
        phases=(),
        strides=problem.taps,
    )


def _natural(rows: Problem) -> bool:
    """Tell whether the weights in memory are packed as they are."""
    return rows.accumulator == rows.dtype and rows.w_strides[1:3] == (1, rows.filters)


def _shared_bytes(problem: Problem, tile: Tile) -> int:
    return tile.shared_bytes(problem.accumulator) + tile.block_m * ROW_BYTES


def _blocks(rows: Problem, tile: Tile) -> int:
    return prod(rows.tiles(tile.block_m, tile.block_n)) * rows.group


def _seconds(problem: Problem, rows: Problem, tile: Tile, limits: Limits) -> float:
    multiplications = tile.block_m * tile.block_n * rows.rows
    accumulator = rows.accumulator
    busy = model.arithmetic(_blocks(rows, tile), multiplications, accumulator, tile.efficiency, limits)
    packing = 0.0 if _natural(rows) or not rows.rows else limits.rates.launch
    return model.overlapped(busy, model.memory(problem.bytes, limits)) + packing


def _plan(problem: Problem, rows: Problem, tile: Tile) -> Plan:
    blocks = _blocks(rows, tile)
    chosen = variant(rows.dtype, tile)
    natural = _natural(rows)
    weights = ffma.packed_weights(rows)
    if natural:
        weights = replace(weights, pitch=rows.filters)
    found = fields(problem, rows, rows.tiles(tile.block_m, tile.block_n), weights)
    roles = gemm_base.roles(rows) | ({"common.weights": "w"} if natural else {})
    launch = launching.of_blocks(rows.operator, chosen, blocks, found, roles, _shared_bytes(rows, tile))
    reason = f"one GEMM of {rows.filters} rows, channels and taps, whose outputs do not overlap"
    if natural:
        return Plan(rows.operator, (launch,), (reason, "the weights are read as they lie in memory"))
    return ffma.with_packing(rows, False, launch, (reason,))


def fields(problem: Problem, rows: Problem, tiles: tuple[int, int], weights: PackedWeights) -> Mapping[str, Any]:
    """Return the fields of ``DepthToSpaceParams``: ``rows`` is the GEMM, ``tiles`` counts its tiles each way."""
    deep = correlation.in_three_axes(problem)
    numbers = zip(deep.pads, deep.y_shape[2:], deep.y_strides[2:], deep.taps, strict=True)
    return {
        "common": gemm_base.common(rows, tiles, weights),
        "taps": gemm_base.taps(rows, weights),
        "axes": [dict(zip(("pad", "extent", "y_stride", "taps"), axis, strict=True)) for axis in numbers],
        "out_channels": problem.filters,
    }


_KERNEL = Kernel("conv/gemm/depth_to_space.cu", NAME, "DepthToSpaceParams<{index}, {rank}>")


def variant(dtype: str, tile: Tile) -> Variant:
    """Return the kernel of one tile."""
    sizes = (tile.block_m, tile.block_n, tile.block_k, tile.thread_m, tile.thread_n)
    form, blocks = str(tile), tile.blocks_per_sm
    return _KERNEL.over(dtype, 3, form, types=types(dtype), sizes=sizes, threads=tile.threads, blocks_per_sm=blocks)


def forms() -> Iterator[tuple[str, Tile]]:
    """Yield the dtype and the tile of every kernel."""
    for dtype, tiles in _TILES.items():
        for tile in tiles:
            yield dtype, tile


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan can name."""
    for dtype, tile in forms():
        yield variant(dtype, tile)
