"""MaxPool over channels that lie one after another, with large windows: down the columns, then along the rows.

The kernel is in ``kernels_cu/max_pool_patches.cu``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from gpuconv import _dtypes
from gpuconv._geometry import Ints
from gpuconv.cuda import pool_channels, pool_general, structs
from gpuconv.cuda.choice import Candidate
from gpuconv.cuda.launching import MOST_BLOCKS
from gpuconv.cuda.plan import Limits, Plan
from gpuconv.cuda.pool_layout import Runs, instructions, runs_of, taken
from gpuconv.cuda.pool_problem import Problem, one_launch, seconds, three_axes, used_strides
from gpuconv.cuda.variant import Variant

NAME = "patches"
_THREADS = 128
_RUN = structs.constant("kRun", "max_pool_patches.cu")
# Of shared memory a block: of the largest six are in flight on a multiprocessor.
_BYTES = tuple(36 * 1024 >> halved for halved in range(4))
_PLACE = 8  # bytes of a pair's place in shared memory, for each of its elements half of them
# Instructions, with Indices or without: for each of what _work returns; counted.
_INSTRUCTIONS = {False: (0, 61, 0, 0, 5, 38, 0.6, 0), True: (420, 0, 578, 32, 0, 0, 0, 4)}


@dataclass(frozen=True, slots=True)
class _Tile:
    """What a block makes, and what it keeps in shared memory."""

    vectors: int
    rows: int
    columns: int
    grid: Ints  # tiles: of images, depths, bands, columns and channels
    x_rows: int
    x_columns: int
    slices: int
    line: int  # pixels of x, and of the padding
    down: Runs
    along: Runs
    lines_at: int
    places_at: int
    bytes: int


def candidates(problem: Problem, limits: Limits) -> Iterator[Candidate]:
    """Yield the kernel, if it accepts the problem."""
    tile = _accepted(problem, limits)
    if isinstance(tile, str):
        return
    indices = problem.indices_strides is not None
    kernel = variant(problem.dtype, indices)
    time = seconds(problem, _instructions(problem, tile, limits), limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, tile, kernel))


def refusal(problem: Problem, limits: Limits) -> str | None:
    """Return why a problem is not accepted."""
    tile = _accepted(problem, limits)
    return tile if isinstance(tile, str) else None


def _accepted(problem: Problem, limits: Limits) -> _Tile | str:
    why = pool_channels.pixels_refusal(problem, dilated=True)
    if why is not None:
        return why
    if pool_general.needs_wide(problem):
        return "64-bit indices"
    tile = _tile(problem, limits)
    if tile.bytes > limits.shared_bytes_per_block:
        return "shared memory does not hold the pixels of a window"
    return "64-bit indices" if prod(tile.grid) > MOST_BLOCKS else tile


# ---------------------------------------------------------------- kernels


def variant(dtype: str, indices: bool) -> Variant:
    """Return the kernel for a dtype, with indices or without."""
    return Variant(
        name=f"max_pool_{dtype}_3d_patches" + "_indices" * indices,
        source="max_pool_patches.cu",
        function="max_pool_patches",
        arguments=(_dtypes.entry(dtype).cuda, str(indices).lower()),
        parameter="PatchPoolParams",
        threads=_THREADS,
        blocks_per_sm=4 if _dtypes.entry(dtype).itemsize == (8 if indices else 1) else 5,
    )


def variants() -> list[Variant]:
    """Return every kernel that a plan can name."""
    return [variant(*row) for row in product(_dtypes.MAX_POOL_DTYPES, (False, True))]


# ---------------------------------------------------------------- tiles


def _dilations(problem: Problem) -> Ints:
    return (*[1] * (3 - len(problem.axes)), *(axis.dilation for axis in problem.axes))


def _tile(problem: Problem, limits: Limits) -> _Tile:
    """Return the quickest tile, of the best ones of several sizes."""
    return min((_tile_of(problem, size) for size in _BYTES), key=lambda tile: _instructions(problem, tile, limits))


def _tile_of(problem: Problem, size: int) -> _Tile:
    """Return the best tile of so many bytes of shared memory, or the least one."""
    _, (_, height, width), *_ = three_axes(problem)
    least = 32 // (pool_channels.vector(problem) * _dtypes.entry(problem.dtype).itemsize)  # a sector
    found = [
        _laid_out(problem, vectors, rows, columns)
        for vectors in (max(2 * least, 1), max(least, 1))
        for rows, columns in product(_parts(height), _parts(width))
    ]
    fitting = [tile for tile in found if tile.bytes <= size] or [_laid_out(problem, max(least, 1), 1, min(width, _RUN))]
    return min(fitting, key=lambda tile: tile.x_rows * tile.line / (tile.rows * tile.columns) - tile.vectors / 1e3)


def _parts(outputs: int) -> list[int]:
    """Return how many of an axis's outputs a tile may have: all, or whole runs."""
    runs = [count * _RUN for count in (8, 4, 3, 2, 1) if count * _RUN < outputs]
    return [outputs, *runs] if outputs <= 16 * _RUN else runs


def _laid_out(problem: Problem, vectors: int, rows: int, columns: int) -> _Tile:
    extents, (depth, height, width), kernel, stride, _ = three_axes(problem)
    dilation, size = _dilations(problem), _dtypes.entry(problem.dtype).itemsize
    pixel = vectors * pool_channels.vector(problem) * size
    taps = [(one - 1) // step + 1 for one, step in zip(kernel, dilation, strict=True)]
    down = runs_of(rows, taps[1], stride[1], dilation[1], _RUN)
    along = runs_of(columns, taps[2], stride[2], dilation[2], _RUN)
    x_rows = min((rows - 1) * stride[1] + kernel[1], extents[1])
    x_columns = min((columns - 1) * stride[2] + kernel[2], extents[2])
    slices = min(taps[0], -(-extents[0] // dilation[0]))
    line = (along.outputs - 1) * stride[2] + kernel[2]
    lines_at = -(-slices * x_rows * x_columns * pixel // 16) * 16
    places_at = lines_at + -(-rows * line * pixel // 16) * 16
    end = places_at + (0 if problem.indices_strides is None else rows * line * vectors * _PLACE)
    channel_tiles = -(-problem.geometry.x_shape[1] // (vectors * pool_channels.vector(problem)))
    grid = (problem.geometry.x_shape[0], depth, -(-height // rows), -(-width // columns), channel_tiles)
    return _Tile(
        vectors, rows, columns, grid, x_rows, x_columns, slices, line, down, along, lines_at, places_at, end
    )  # fmt: skip


def _work(problem: Problem, tile: _Tile) -> Ints:
    """Return what a block does: threads, vectors of x; runs down, loads, comparisons; the same along."""
    _, _, kernel, *_ = three_axes(problem)
    taps = [(one - 1) // step + 1 for one, step in zip(kernel, _dilations(problem), strict=True)]
    size = _dtypes.entry(problem.dtype).itemsize
    words = 2 if problem.indices_strides is not None else 8 if size == 1 else max(4, 8 // size) if size < 8 else 2
    down, along = tile.down.count * tile.line * tile.vectors, tile.rows * tile.along.count * tile.vectors
    down_loads, down_merges = taken(taps[1], tile.down, _RUN)
    along_loads, along_merges = taken(taps[2], tile.along, _RUN)
    return (
        _THREADS,
        tile.slices * tile.x_rows * tile.x_columns * tile.vectors,
        down,
        down * tile.slices * down_loads,
        down * tile.slices * down_merges * words,
        along,
        along * along_loads,
        along * along_merges * words,
    )


def _instructions(problem: Problem, tile: _Tile, limits: Limits) -> float:
    """Return how many instructions all threads execute."""
    each = float(np.dot(_work(problem, tile), _INSTRUCTIONS[problem.indices_strides is not None]))
    return instructions(problem, each, prod(tile.grid), limits)


# ---------------------------------------------------------------- launches


def _plan(problem: Problem, tile: _Tile, kernel: Variant) -> Plan:
    extents, windows, reach, stride, pad = map(list, three_axes(problem))
    dilation, channels = _dilations(problem), problem.geometry.x_shape[1]
    _, depths, bands, column_tiles, channel_tiles = tile.grid
    counts = {
        "channel_tiles": channel_tiles,
        "column_tiles": column_tiles,
        "bands": bands,
        "depths": depths,
        "depth_dilation": dilation[0],
        "vectors": tile.vectors,
        "x_columns": tile.x_columns,
        "line": tile.line,
        "down": tile.down.count,
        "along": tile.along.count,
    }
    fields: dict[str, Any] = {
        "plane": prod(extents),
        "x_extent": extents,
        "y_extent": windows,
        "kernel": [(one - 1) // step + 1 for one, step in zip(reach, dilation, strict=True)],
        "stride": stride,
        "dilation": list(dilation),
        "pad": pad,
        "channels": channels,
        "tile_rows": tile.rows,
        "tile_columns": tile.columns,
        "x_rows": tile.x_rows,
        "lines_at": tile.lines_at,
        "places_at": tile.places_at,
        "step": [tile.down.step, tile.along.step],
        "steps": [max(runs.step, 1) for runs in (tile.down, tile.along)],
        **counts,
    }
    for name, (batch, _, *spatial) in zip(("x", "y", "indices"), used_strides(problem), strict=True):
        fields |= {f"{name}_batch": batch, f"{name}_stride": [0] * (3 - len(spatial)) + spatial}
    blocks = prod(tile.grid)
    reason = (
        f"channels last: {tile.vectors * pool_channels.vector(problem)} channels of {tile.rows} x {tile.columns} "
        f"outputs a block of {_THREADS} threads, {_RUN} windows of a line a thread; "
        f"{tile.bytes} bytes of shared memory, {blocks} blocks"
    )
    return one_launch(problem, kernel, blocks, tile.bytes, fields, reason)
