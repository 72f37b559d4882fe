"""MaxPool with windows of up to three elements in height and width, by way of shared memory.

The kernel is in ``kernels_cu/max_pool_bands.cu``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from gpuconv import _dtypes
from gpuconv.cuda import pool_general
from gpuconv.cuda.choice import Candidate
from gpuconv.cuda.launching import MOST_BLOCKS
from gpuconv.cuda.plan import Limits, Plan
from gpuconv.cuda.pool_problem import (
    Problem,
    Rows,
    one_launch,
    rows_of,
    seconds,
    whole_vectors,
)
from gpuconv.cuda.variant import Variant

NAME = "bands"
_THREADS, _WARP = 256, 32
_MOST = 3  # kMost in max_pool_bands.cu
_TILE_BYTES = 16 * 1024  # of x in shared memory; five blocks of it are in flight on a multiprocessor
_LEAST_TILE_BYTES = 2 * 1024
_MOST_WALK = 8
_BLOCKS_PER_SM = 5  # 48 registers a thread
_BLOCKS_WANTED = 4  # of each multiprocessor; for fewer of them, smaller ones
# Instructions, with Indices or without: of an output, and of each row of x that it adds; counted, in machine code.
_INSTRUCTIONS = {False: (60, 75), True: (80, 110)}
_ALONG = 0.3  # share of an output's, where windows are no more than a row and threads go along it


@dataclass(frozen=True, slots=True)
class _Tile:
    """What a block makes: planes, rows and columns of y, from so many rows and columns of x in each slice."""

    planes: int
    rows: int
    columns: int
    x_rows: int
    x_columns: int
    merged: bool

    def shared(self, vector: int) -> tuple[int, int]:
        """Return the elements from one slice to the next and from one row to the next."""
        if self.merged:
            return whole_vectors(self.planes * self.x_rows * self.x_columns, vector), self.x_columns
        row = whole_vectors(self.x_columns, vector)
        return self.x_rows * row, row


def candidates(problem: Problem, limits: Limits) -> Iterator[Candidate]:
    """Yield the kernel, if it accepts the problem."""
    rows = _accepted(problem, limits)
    if isinstance(rows, str):
        return
    indices = problem.indices_strides is not None
    kernel = variant(problem.dtype, indices)
    each: float
    each, row = _INSTRUCTIONS[indices]
    if rows.kernel[0] * rows.kernel[1] == 1:
        each *= _ALONG
    count = prod(problem.geometry.y_shape) * (each + row * rows.kernel[0] * min(rows.kernel[1], rows.stride[1]))
    time = seconds(problem, count, limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, rows, kernel, limits))


def refusal(problem: Problem, limits: Limits) -> str | None:
    """Return why a problem is not accepted."""
    rows = _accepted(problem, limits)
    return rows if isinstance(rows, str) else None


def _accepted(problem: Problem, limits: Limits) -> Rows | str:
    rows = rows_of(problem)
    if isinstance(rows, str):
        return rows
    if max(rows.kernel[1:]) > _MOST:
        return f"windows of {rows.kernel[1]} x {rows.kernel[2]}"
    if pool_general.needs_wide(problem):
        return "64-bit indices"
    tile = _tile(rows, problem.dtype, limits)
    if _shared_bytes(rows, tile, problem.dtype) > limits.shared_bytes_per_block:
        return "shared memory does not hold the rows of a window"
    if prod(_grid(rows, tile)) > MOST_BLOCKS:
        return "64-bit indices"
    return rows


# ---------------------------------------------------------------- kernels


def variant(dtype: str, indices: bool) -> Variant:
    """Return the kernel for a dtype, with indices or without."""
    return Variant(
        name=f"max_pool_{dtype}_3d_bands" + "_indices" * indices,
        source="max_pool_bands.cu",
        function="max_pool_bands",
        arguments=(_dtypes.entry(dtype).cuda, str(indices).lower()),
        parameter="BandPoolParams",
        threads=_THREADS,
        blocks_per_sm=_BLOCKS_PER_SM,
    )


def variants() -> list[Variant]:
    """Return every kernel that a plan can name."""
    return [variant(*row) for row in product(_dtypes.MAX_POOL_DTYPES, (False, True))]


# ---------------------------------------------------------------- tiles


def _tile(rows: Rows, dtype: str, limits: Limits) -> _Tile:
    """Return the largest tile that leaves every multiprocessor some, down to a least size."""
    size = _TILE_BYTES
    while True:
        tile = _tile_of(rows, size // _dtypes.entry(dtype).itemsize // rows.kernel[0])
        size //= 2
        if size < _LEAST_TILE_BYTES or prod(_grid(rows, tile)) >= _BLOCKS_WANTED * limits.multiprocessors:
            return tile


def _tile_of(rows: Rows, elements: int) -> _Tile:
    """Return the largest tile whose slices have so many elements, or the least one."""
    (_, height, width), (_, out_rows, out_columns) = rows.x_extent, rows.y_extent
    (_, high, wide), (_, down, across) = rows.kernel, rows.stride
    if rows.planes_are_neighbours and height * width <= elements:
        return _Tile(min(rows.planes, elements // (height * width)), out_rows, out_columns, height, width, True)
    columns = out_columns
    if min(high, height) * width > elements:
        columns = (elements // min(high, height) - wide) // across + 1
        columns = min(max(columns // _WARP, 1) * _WARP, out_columns)
    x_columns = min((columns - 1) * across + wide, width)
    most = min(max((elements // x_columns - high) // down + 1, 1), out_rows)
    bands = -(-out_rows // most)
    tile_rows = -(-out_rows // bands)
    merged = columns == out_columns and rows.rows_are_neighbours
    x_rows = min((tile_rows - 1) * down + high, height)
    return _Tile(1, tile_rows, columns, x_rows, width if merged else x_columns, merged)


def _grid(rows: Rows, tile: _Tile) -> tuple[int, int, int, int]:
    """Return the numbers of tiles: of planes, depths, bands and columns."""
    _, out_rows, out_columns = rows.y_extent
    return -(-rows.planes // tile.planes), rows.y_extent[0], -(-out_rows // tile.rows), -(-out_columns // tile.columns)


def _walk(tile: _Tile) -> int:
    """Return how many outputs below one another a thread makes: as many as leave every thread some."""
    walk = min(tile.rows, _MOST_WALK)
    while walk > 1 and tile.planes * -(-tile.rows // walk) * tile.columns < _THREADS:
        walk = -(-walk // 2)
    return walk


def _shared_bytes(rows: Rows, tile: _Tile, dtype: str) -> int:
    size = _dtypes.entry(dtype).itemsize
    return tile.shared(16 // size)[0] * min(rows.kernel[0], rows.x_extent[0]) * size


# ---------------------------------------------------------------- launches


def _plan(problem: Problem, rows: Rows, kernel: Variant, limits: Limits) -> Plan:
    tile = _tile(rows, problem.dtype, limits)
    _, depths, bands, column_tiles = grid = _grid(rows, tile)
    slice_pitch, row_pitch = tile.shared(16 // _dtypes.entry(problem.dtype).itemsize)
    walk = _walk(tile)
    counts = (rows.channels, depths, bands, column_tiles, tile.columns, -(-tile.rows // walk))
    names = ("channels", "depths", "bands", "column_tiles", "tile_columns", "groups")
    fields = rows.fields() | {
        "plane": prod(problem.geometry.x_shape[2:]),
        "tile_planes": tile.planes,
        "tile_rows": tile.rows,
        "walk": walk,
        "merged": tile.merged,
        "slice_pitch": slice_pitch,
        "row_pitch": row_pitch,
        "phase_step": 0 if tile.merged else rows.x_strides[3],
        **dict(zip(names, counts, strict=True)),
    }
    blocks, shared = prod(grid), _shared_bytes(rows, tile, problem.dtype)
    reason = (
        f"{tile.planes} x {tile.rows} x {tile.columns} outputs a block of {_THREADS} threads, "
        f"{walk} below one another a thread; rows of x in shared memory, {blocks} blocks"
    )
    return one_launch(problem, kernel, blocks, shared, fields, reason)
