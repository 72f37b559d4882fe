"""MaxPool with windows of any size, stride and dilation over rows of neighbours: down the columns, then along the rows.

The kernel is in ``kernels_cu/pool/tiles.cu``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

import numpy as np

from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.plan.launching import MOST_BLOCKS
from gpuconv.cuda.plan.offers import Candidate, Offer, Refusal
from gpuconv.cuda.pool import general
from gpuconv.cuda.pool.layout import Tile, instructions, laid_out, neighbours, run_length, taken
from gpuconv.cuda.pool.problem import Problem, Rows, one_launch, rows_of, seconds, whole_vectors
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

NAME = "tiles"
_THREADS, _WARP = 128, 32
# Of shared memory a block: of the largest five are in flight on a multiprocessor.
_BYTES = tuple(44 * 1024 >> halved for halved in range(3))
_LEAST_COLUMNS = 128  # of a tile, but for narrower rows
_OF_SHARED = 5  # instructions in the time of an access to shared memory, with conflicts where lines end; counted
# Instructions, with Indices or without, by elements or vectors: for each of what _work returns; counted.
_INSTRUCTIONS: dict[tuple[bool, bool], tuple[float, ...]] = {
    (False, False): (335, 6, 95, 6.5, 2, 0, 82, 0),
    (False, True): (400, 14, 73, 6, 3.2, 2.7, 70, 3.4),
    (True, False): (280, 21, 3, 0, 16, 13.6, 236, 8.5),
}


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel, or why it does not take the problem."""
    found = _accepted(problem, limits)
    if isinstance(found, str):
        yield Refusal(found)
        return
    rows, tile = found
    kernel = variant(problem.dtype, problem.indices_strides is not None)
    time = seconds(problem, _instructions(rows, problem, tile, limits), limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, rows, tile, kernel))


def _accepted(problem: Problem, limits: Limits) -> tuple[Rows, Tile] | str:
    rows = rows_of(problem, dilated=True)
    if isinstance(rows, str):
        return rows
    rows = rows.folded()
    if general.needs_wide(problem):
        return "64-bit indices"
    tile = _tile(rows, problem, limits)
    if tile.bytes > limits.shared_bytes_per_block:
        return "shared memory does not hold the rows of a window"
    if prod(tile.grid) > MOST_BLOCKS:
        return "64-bit indices"
    return rows, tile


# ---------------------------------------------------------------- kernels


_KERNEL = Kernel("pool/tiles.cu", "max_pool_tiles", "TilePoolParams", _THREADS, name="max_pool")


def variant(dtype: str, indices: bool) -> Variant:
    """Return the kernel for a dtype, with indices or without."""
    blocks = 5 if indices or dtypes.entry(dtype).itemsize > 2 else 4
    element, form = dtypes.entry(dtype).cuda, "indices" * indices
    return _KERNEL.over(dtype, 3, NAME, form, types=(element,), sizes=(indices,), blocks_per_sm=blocks)


def variants() -> list[Variant]:
    """Return every kernel that a plan can name."""
    return [variant(*row) for row in product(dtypes.MAX_POOL_DTYPES, (False, True))]


# ---------------------------------------------------------------- tiles


def _tile(rows: Rows, problem: Problem, limits: Limits) -> Tile:
    """Return the tile whose kernel executes least, of those of several sizes and widths."""
    found = [tile for size in _BYTES for tile in _tiles_of(rows, problem, size)]
    fitting = [tile for tile in found if tile.bytes <= _BYTES[0]] or [min(found, key=lambda tile: tile.bytes)]
    return min(fitting, key=lambda tile: _instructions(rows, problem, tile, limits))


def _tiles_of(rows: Rows, problem: Problem, size: int) -> Iterator[Tile]:
    """Yield tiles of so many bytes of shared memory, if they can be that small: of whole planes, or parts of one."""
    _, height, width = rows.y_extent
    plane = laid_out(rows, problem, 1, height, width)
    if plane.bytes <= size:
        most = min(rows.planes, size // plane.bytes) if neighbours(rows, problem) else 1
        yield plane if most == 1 else laid_out(rows, problem, most, height, width)
        return
    columns = width
    yield from _bands(rows, problem, columns, size)
    while columns > 2 * _LEAST_COLUMNS:
        columns = -(-columns // (2 * _WARP)) * _WARP  # half of them
        yield from _bands(rows, problem, columns, size)


def _bands(rows: Rows, problem: Problem, columns: int, size: int) -> Iterator[Tile]:
    """Yield tiles of so many columns and of as many rows as there is room for, or one: even parts, and whole runs."""
    height = rows.y_extent[1]
    one, two = (laid_out(rows, problem, 1, count, columns) for count in (1, 2))
    most = min(max((size - one.bytes) // max(two.bytes - one.bytes, 1) + 1, 1), height)
    run = run_length(problem) * max(one.down.step, 1)
    even = -(-height // -(-height // most))
    counts = {even, -(-even // run) * run, most // run * run}
    yield from (laid_out(rows, problem, 1, count, columns) for count in counts if 0 < count <= most)


def _work(problem: Problem, rows: Rows, tile: Tile) -> Ints:
    """Return what a block does: threads, vectors of x; runs down, loads, comparisons, stores; runs along, loads."""
    size, run = dtypes.entry(problem.dtype).itemsize, run_length(problem)
    wide = 16 // size if tile.x.vectors else 1
    words = wide if size >= 4 else -(-wide // 2)  # that are compared
    slices, lines = tile.x.slices, tile.planes * tile.rows
    down = tile.planes * tile.down.count * -(-tile.lines.columns // wide)
    along = lines * tile.along.count
    down_loads, down_merges = taken(rows.taps[1], tile.down, run)
    along_loads, _ = taken(rows.taps[2], tile.along, run)
    return (
        _THREADS,
        -(-tile.fetched * size // 16),
        down,
        down * slices * down_loads,
        down * slices * down_merges * words,
        down * run * wide,
        along,
        along * along_loads,
    )


def _instructions(rows: Rows, problem: Problem, tile: Tile, limits: Limits) -> float:
    """Return how many instructions all threads execute, or could while they wait for shared memory."""
    work, vectors = _work(problem, rows, tile), tile.x.vectors
    _, _, _, down_loads, _, down_stores, along, along_loads = work
    words = down_loads * (4 if vectors else 1) + down_stores + along_loads + along * run_length(problem)
    count = float(np.dot(work, _INSTRUCTIONS[problem.indices_strides is not None, vectors]))
    return instructions(problem, max(count, _OF_SHARED * words), prod(tile.grid), limits)


# ---------------------------------------------------------------- launches


def _plan(problem: Problem, rows: Rows, tile: Tile, kernel: Variant) -> Plan:
    vector = 16 // dtypes.entry(problem.dtype).itemsize
    counts = dict(zip(("depths", "bands", "column_tiles"), tile.grid[1:], strict=True)) | {
        "channels": rows.channels,
        "tile_columns": tile.columns,
        "outputs": tile.rows * tile.columns,
        "depth_dilation": rows.dilation[0],
        "column_stride": rows.stride[2],
        "line": tile.lines.columns,
        "line_vectors": whole_vectors(tile.lines.columns, vector) // vector,
        "down": tile.down.count,
        "along": tile.along.count,
    }
    fields = (
        rows.fields()
        | tile.fields()
        | {
            "plane": prod(rows.x_extent),
            "kernel": list(rows.taps),
            "dilation": list(rows.dilation),
            "steps": [max(runs.step, 1) for runs in (tile.down, tile.along)],
            **counts,
        }
    )
    blocks = prod(tile.grid)
    reason = (
        f"{tile.planes} x {tile.rows} x {tile.columns} outputs a block of {_THREADS} threads, "
        f"{run_length(problem)} windows of a line a thread; {tile.bytes} bytes of shared memory, {blocks} blocks"
    )
    return one_launch(problem, kernel, blocks, tile.bytes, fields, reason)
