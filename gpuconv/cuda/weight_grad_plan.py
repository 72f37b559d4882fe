"""Plans of the gradient of weights: sums over parts of the pixels (``weight_grad.cuh``), then over the parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from math import prod

import numpy as np

from gpuconv import _dtypes
from gpuconv._geometry import ConvGeometry, Ints
from gpuconv.cuda import choice, launching, model, multiples, params, sums_plan
from gpuconv.cuda.choice import Candidate
from gpuconv.cuda.plan import Limits, Plan, Variant

OPERATOR = "weight_grad"
_THREADS = 128
_AHEAD = (3, 4)  # axes of kernels that are built ahead: with 32-bit indices, and with 64-bit ones
_MOST_BYTES = 64 * 2**20  # of the sums of all parts, where there is more than one


@dataclass(frozen=True, slots=True)
class Tile:
    """What a block makes of a group, and the instructions that each of its products takes, counted in SASS."""

    name: str
    filters: int
    columns: int
    slice: int
    instructions: float
    blocks_per_sm: int
    wide: bool


_LARGE = Tile("64x64", 64, 64, 32, 1.9, 3, wide=True)
_TILES = (_LARGE, Tile("few4", 4, 12, 128, 6.2, 3, wide=False), Tile("few1", 1, 12, 128, 18.8, 4, wide=False))


@dataclass(frozen=True, slots=True)
class Problem:
    """One gradient, for arrays of these strides in elements.

    Of a complex one the geometry has one more axis, that of the parts, through whose 4 taps the products of parts go;
    ``dtype`` and the strides of x and dy are those of parts, ``result`` and ``w_strides`` those of the numbers.
    """

    geometry: ConvGeometry
    dtype: str
    x_strides: Ints
    dy_strides: Ints
    w_strides: Ints
    result: str

    @property
    def filters(self) -> int:
        """Of one group."""
        return self.geometry.w_shape[0] // self.geometry.group

    @property
    def columns(self) -> int:
        """Channels of one group times taps."""
        return prod(self.geometry.w_shape[1:])

    @property
    def pixels(self) -> int:
        """Outputs of one channel, of all images."""
        return self.geometry.y_shape[0] * prod(self.geometry.y_shape[2:])

    @property
    def bytes(self) -> int:
        """Of all arrays, each once."""
        g = self.geometry
        return _dtypes.entry(self.dtype).itemsize * (prod(g.x_shape) + prod(g.y_shape) + prod(g.w_shape))

    def wide(self) -> bool:
        """Tell whether offsets and coordinates need 64-bit indices."""
        g = self.geometry
        axes = list(zip(g.y_shape[2:], g.strides, g.pads_begin, g.kernel_shape, g.dilations, strict=True))
        last = [max(0, q - 1) * s for q, s, _, _, _ in axes]
        reach = [max(at, pad) + (k - 1) * d for at, (_, _, pad, k, d) in zip(last, axes, strict=True)]
        extents = (*g.x_shape[:2], *(max(at + 1, n) for at, n in zip(reach, g.x_shape[2:], strict=True)))
        magnitudes = [params.span(extents, self.x_strides), params.span(g.y_shape, self.dy_strides), *reach]
        return params.needs_wide(OPERATOR, [*magnitudes, *g.strides, *g.dilations, self.pixels, prod(g.w_shape)])


def for_weight_grad(
    geometry: ConvGeometry,
    dtype: str,
    x_strides: Ints,
    dy_strides: Ints,
    w_strides: Ints,
    limits: Limits,
    result: str | None = None,
) -> Plan:
    """Plan the gradient of Conv's weights for arrays with these strides in elements; ``result`` is a complex dtype.

    Raises
    ------
    ArgumentError
        The problem needs more than 64-bit indices or more blocks than a grid has.
    """
    if 0 in geometry.w_shape:
        return Plan.of_nothing(OPERATOR)
    problem = Problem(geometry, dtype, x_strides, dy_strides, w_strides, result or dtype)
    return choice.choose(problem, candidates(problem, limits), limits)


def candidates(problem: Problem, limits: Limits) -> Iterator[Candidate]:
    """Yield a candidate for every tile."""
    wide = problem.wide()
    for tile in _TILES:
        if tile.wide or not (wide or len(problem.geometry.kernel_shape) > _AHEAD[0]):
            parts = _parts(problem, tile, limits)
            name = variant(problem.dtype, wide, _axes(problem, wide), tile).name
            seconds = _seconds(problem, tile, parts, limits)
            yield Candidate(name, seconds, partial(_plan, problem, tile, parts, wide))


def _tiles(problem: Problem, tile: Tile) -> tuple[int, int]:
    return -(-problem.filters // tile.filters), -(-problem.columns // tile.columns)


def _parts(problem: Problem, tile: Tile, limits: Limits) -> int:
    """Return into how many parts the pixels are dealt, so that there are blocks for all multiprocessors."""
    blocks = prod(_tiles(problem, tile)) * problem.geometry.group
    wanted = -(-2 * tile.blocks_per_sm * limits.multiprocessors // blocks)
    room = _MOST_BYTES // sums_plan.workspace_bytes(1, prod(problem.geometry.w_shape), problem.dtype)
    slices = -(-problem.pixels // tile.slice)
    parts = max(1, min(wanted, room, slices))
    return -(-slices // -(-slices // parts)) if slices else 1


def _each(problem: Problem, tile: Tile, parts: int) -> int:
    """Pixels of a part, in whole slices."""
    slices = -(-problem.pixels // tile.slice)
    return -(-slices // parts) * tile.slice


def _seconds(problem: Problem, tile: Tile, parts: int, limits: Limits) -> float:
    blocks = prod(_tiles(problem, tile)) * problem.geometry.group * parts
    products = tile.filters * tile.columns * _each(problem, tile, parts)
    rounds = multiples.whole(blocks, limits.multiprocessors)
    accumulator = _dtypes.entry(problem.dtype).accumulator
    busy = max(
        model.instructions(rounds * products * tile.instructions, limits),
        model.arithmetic(blocks, products, accumulator, 1.0, limits),
    )
    left = 2 * sums_plan.workspace_bytes(parts, prod(problem.geometry.w_shape), problem.dtype)
    return model.overlapped(busy, model.memory(problem.bytes + left, limits)) + model.LAUNCH


def _axes(problem: Problem, wide: bool) -> int:
    rank = len(problem.geometry.kernel_shape)
    return max(rank, _AHEAD[wide or rank > _AHEAD[0]])


def _plan(problem: Problem, tile: Tile, parts: int, wide: bool) -> Plan:
    g, rank = problem.geometry, _axes(problem, wide)
    tiles = _tiles(problem, tile)
    blocks = prod(tiles) * g.group * parts
    chosen = variant(problem.dtype, wide, rank, tile)
    fields = {
        "filters": problem.filters,
        "channels": g.w_shape[1],
        "columns": problem.columns,
        "pixels": problem.pixels,
        "each": _each(problem, tile, parts),
        "all": prod(g.w_shape),
        "x_batch": problem.x_strides[0],
        "x_channel": problem.x_strides[1],
        "dy_batch": problem.dy_strides[0],
        "dy_channel": problem.dy_strides[1],
        "groups": params.division(g.group, False),
        "m_tiles": params.division(tiles[0], False),
        "n_tiles": params.division(tiles[1], False),
        **_axis_fields(problem, rank, wide),
    }
    pointers = params.pointers(chosen.layout, {"x": "x", "dy": "dy", "sums": "workspace"})
    launch = launching.of_blocks(OPERATOR, chosen, blocks, fields, pointers)
    reason = f"{problem.pixels} pixels in {parts} parts of {fields['each']}"
    products = 1 if problem.result == problem.dtype else g.w_shape[-1]
    shape = g.w_shape if products == 1 else g.w_shape[:-1]
    return sums_plan.plan(OPERATOR, launch, parts, shape, problem.w_strides, problem.result, reason, products)


def _axis_fields(problem: Problem, rank: int, wide: bool) -> dict[str, object]:
    """Return what there is one of for each axis; those added outside have one element."""
    g = problem.geometry
    ones, zeros = [1] * (rank - len(g.kernel_shape)), [0] * (rank - len(g.kernel_shape))
    return {
        "x_extent": [*ones, *g.x_shape[2:]],
        "x_stride": [*zeros, *problem.x_strides[2:]],
        "dy_stride": [*zeros, *problem.dy_strides[2:]],
        "stride": [*ones, *(1 if q == 1 else s for q, s in zip(g.y_shape[2:], g.strides, strict=True))],
        "pad": [*zeros, *g.pads_begin],
        "dilation": [*ones, *(1 if k == 1 else d for k, d in zip(g.kernel_shape, g.dilations, strict=True))],
        "extent": params.divisions([*ones, *g.y_shape[2:]], wide),
        "count": params.divisions([*ones, *g.kernel_shape], wide),
    }


# ---------------------------------------------------------------- variants


@cache
def _layout(wide: bool, rank: int) -> np.dtype[np.void]:
    """Return the layout of ``WeightGradParams<Index, NDIM>``."""
    index, axes, divider = params.index(wide), (rank,), params.divider(wide)
    return params.layout(
        [
            *((name, params.POINTER) for name in ("x", "dy", "sums")),
            *((name, index) for name in ("filters", "channels", "columns", "pixels", "each", "all")),
            ("x_batch", index),
            ("x_channel", index),
            ("x_extent", index, axes),
            ("x_stride", index, axes),
            ("dy_batch", index),
            ("dy_channel", index),
            ("dy_stride", index, axes),
            *((name, index, axes) for name in ("stride", "pad", "dilation")),
            ("extent", divider, axes),
            ("count", divider, axes),
            *((name, params.divider(False)) for name in ("groups", "m_tiles", "n_tiles")),
        ]
    )


def variant(dtype: str, wide: bool, rank: int, tile: Tile) -> Variant:
    """Return the kernel that makes tiles of the parts' sums."""
    entry, index = _dtypes.entry(dtype), params.index_name(wide)
    few = tile is not _LARGE
    sums = _dtypes.sums(dtype).cuda
    return Variant(
        name=f"conv_weight_grad_{dtype}_{rank}d_{tile.name}{'_wide' if wide else ''}",
        source=f"conv_weight_grad{'_few' if few else ''}.cu",
        function=f"conv_weight_grad{'_few' if few else ''}",
        arguments=(entry.cuda, sums, index, str(rank), *([str(tile.filters)] if few else [])),
        parameter=f"WeightGradParams<{index}, {rank}>",
        layout=_layout(wide, rank),
        threads=_THREADS,
        blocks_per_sm=tile.blocks_per_sm - wide - (dtype == "float64"),  # which take more registers
    )


def variants() -> Iterator[Variant]:
    """Yield the variants that are built ahead; those for more axes are compiled when first needed."""
    for dtype in _dtypes.CONV_DTYPES:
        for tile in _TILES:
            yield variant(dtype, False, _AHEAD[0], tile)
        for wide in (False, True):
            yield variant(dtype, wide, _AHEAD[1], _LARGE)
