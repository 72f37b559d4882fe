"""Conv of one tap, stride 1 and no padding in float32, as a plain matrix product (``conv/gemm/pointwise.cu``).

One launch, which reads w as it is. Spatial axes that lie behind each other in x and in y become a single one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod

from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm.base import PackedWeights
from gpuconv.cuda.conv.gemm.ffma import Tile
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import launching, model
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.plan.offers import Candidate, Offer, Refusal
from gpuconv.rules.geometry import Ints

NAME = "conv_pointwise"
_TILES = (Tile(128, 128, 16, 8, 8, 2, 0.84), Tile(64, 64, 16, 8, 4, 4, 0.72))
_MORE = 4  # elements of shared memory that a row of weights has more than a tile


# ---------------------------------------------------------------- plans


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for each tile that the device has room for."""
    flat = with_one_axis(problem)
    if flat is None or problem.dtype != "float32" or problem.rows == 0 or problem.wide():
        yield _refusal(problem, flat)
        return
    for tile in _TILES:
        if _shared_bytes(tile) <= limits.shared_bytes_per_block:
            yield Candidate(variant(tile).name, _seconds(flat, tile, limits), partial(_plan, flat, tile))


def _refusal(problem: Problem, flat: Problem | None) -> Refusal:
    if flat is None:
        plain = problem.operator != "conv" or prod(problem.taps) != 1
        return Refusal("pixels do not lie behind each other in x and y, or there are strides or padding", plain)
    if problem.dtype != "float32" or problem.rows == 0:
        return Refusal(f"{problem.rows} rows of {problem.dtype}; it takes one or more of float32", plain=True)
    return Refusal("it needs 64-bit indices")


def with_one_axis(problem: Problem) -> Problem | None:
    """Return a problem of one tap and one spatial axis that is the same, or None."""
    x_step, y_step = (
        step(shape[2:], strides[2:])
        for shape, strides in ((problem.x_shape, problem.x_strides), (problem.y_shape, problem.y_strides))
    )
    plain = problem.operator == "conv" and prod(problem.taps) == 1 and not any(problem.pads)
    plain = plain and set(problem.column_strides) == {1}
    if not plain or problem.columns != problem.x_shape[2:] or x_step is None or y_step is None:
        return None
    pixels = (prod(problem.columns),)
    return replace(
        problem,
        taps=(1,),
        x_shape=(*problem.x_shape[:2], *pixels),
        y_shape=(*problem.y_shape[:2], *pixels),
        x_strides=(*problem.x_strides[:2], x_step),
        y_strides=(*problem.y_strides[:2], y_step),
        w_strides=(*problem.w_strides[:3], 0),
        columns=pixels,
        column_strides=(1,),
        dilations=(1,),
        pads=(0,),
    )


def step(shape: Ints, strides: Ints) -> int | None:
    """Return the stride of the one axis that these axes are together, or None where they are none."""
    axes = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    for (_, outer), (size, stride) in pairwise(axes):
        if outer != size * stride:
            return None
    return axes[-1][1] if axes else 1


def _shared_bytes(tile: Tile) -> int:
    return replace(tile, block_m=tile.block_m + _MORE).shared_bytes("float32")


def _seconds(problem: Problem, tile: Tile, limits: Limits) -> float:
    blocks = prod(problem.tiles(tile.block_m, tile.block_n)) * problem.group
    rows = -(-problem.rows // tile.block_k) * tile.block_k
    busy = model.arithmetic(blocks, tile.block_m * tile.block_n * rows, "float32", tile.efficiency, limits)
    return model.overlapped(busy, model.memory(problem.bytes, limits))


def _plan(problem: Problem, tile: Tile) -> Plan:
    blocks = prod(problem.tiles(tile.block_m, tile.block_n)) * problem.group
    chosen = variant(tile)
    weights = PackedWeights(0, problem.rows, problem.channels)
    fields = {
        **gemm_base.operands(problem, problem.tiles(tile.block_m, tile.block_n), weights),
        **problem.w_steps,
    }
    roles = gemm_base.roles(problem) | {"common.weights": "w"}
    launch = launching.of_blocks(problem.operator, chosen, blocks, fields, roles, _shared_bytes(tile))
    return Plan(problem.operator, (launch,), ("a plain matrix product: one tap, weights as they are",))


# ---------------------------------------------------------------- variants


_KERNEL = Kernel("conv/gemm/pointwise.cu", "conv_pointwise", "ConvPointwiseParams")


def variant(tile: Tile) -> Variant:
    """Return the kernel of one tile."""
    sizes = (tile.block_m, tile.block_n, tile.block_k, tile.thread_m, tile.thread_n)
    form, blocks = str(tile), tile.blocks_per_sm
    return _KERNEL.over("float32", 1, form, types=("float",), sizes=sizes, threads=tile.threads, blocks_per_sm=blocks)


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan can name."""
    yield from map(variant, _TILES)
