"""Pooling with windows of any size, stride and dilation over rows of neighbours: down the columns, then along the rows.

The kernel is in ``kernels_cu/pool/tiles.cu``. In shared memory are rows of x, what was
taken down its columns, and results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.plan import MOST_BLOCKS, Candidate, Limits, Offer, Plan, Refusal, model, numbers
from gpuconv.cuda.pool import general
from gpuconv.cuda.pool.problem import PoolProblem, PoolView, blocks_of, one_launch, rows_of
from gpuconv.cuda.pool.runs import WindowRuns, longest, of_short, runs_of, taken
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

NAME = "tiles"
_THREADS, _WARP = 128, 32
_BANKS = 128  # bytes of all banks of shared memory
_RUNS = {1: 4, 2: 6, 4: 5, 8: 5}  # kRun in pool/tiles.cu by bytes of an element; 5 with Indices
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
_DIVISION = 25  # instructions of an average's count and division; estimated


# ---------------------------------------------------------------- what it sees


def _accepted(problem: PoolProblem, limits: Limits) -> tuple[PoolView, PoolTile] | str:
    rows = rows_of(problem, dilated=True)
    if isinstance(rows, str):
        return rows
    rows = rows.folded()
    if general.needs_wide(problem):
        return "64-bit indices"
    tile = _best(rows, problem, limits)
    if tile.bytes > limits.shared_bytes_per_block:
        return "shared memory does not hold the rows of a window"
    if prod(tile.grid) > MOST_BLOCKS:
        return "64-bit indices"
    return rows, tile


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True, slots=True)
class Fetched:
    """The rows of x of a tile: ``merged`` ones, of all its planes, are one run of each slice."""

    rows: int
    columns: int
    slices: int
    merged: bool
    vectors: bool  # rows are made of whole ones, and begin with them if x does
    row_pitch: int
    slice_pitch: int


@dataclass(frozen=True, slots=True)
class Lines:
    """The maxima down columns of x and of the padding, ``part`` of which windows begin with."""

    columns: int
    part: int
    pitch: int
    place_pitch: int


@dataclass(frozen=True, slots=True)
class Results:
    """The outputs of a tile: ``merged`` ones are one run of y and of the Indices."""

    merged: bool
    pitch: int
    place_pitch: int


@dataclass(frozen=True, slots=True)
class PoolTile:
    """What a block makes, and where what it keeps is in shared memory: numbers of elements, ``..._at`` of bytes."""

    planes: int
    rows: int
    columns: int
    grid: Ints  # tiles: of planes, depths, rows and columns
    x: Fetched
    down: WindowRuns
    along: WindowRuns
    lines: Lines
    results: Results
    lines_at: int
    places_at: int
    result_places_at: int
    bytes: int

    @property
    def fetched(self) -> int:
        """Elements of x."""
        return self.x.slices * self.planes * self.x.rows * self.x.columns


def _best(rows: PoolView, problem: PoolProblem, limits: Limits) -> PoolTile:
    """Return the tile whose kernel is the quickest, of those of several sizes and widths."""
    tiles = [tile for size in _BYTES for tile in _tiles_of(rows, problem, size)]
    fitting = [tile for tile in tiles if tile.bytes <= _BYTES[0]] or [min(tiles, key=lambda tile: tile.bytes)]
    return min(fitting, key=lambda tile: _seconds(rows, problem, tile, limits))


def _tiles_of(rows: PoolView, problem: PoolProblem, size: int) -> Iterator[PoolTile]:
    """Yield tiles of so many bytes of shared memory, if they can be that small: of whole planes, or parts of one."""
    height, width = rows.height.windows, rows.width.windows
    plane = laid_out(rows, problem, 1, height, width)
    if plane.bytes <= size:
        most = (
            min(rows.planes, size // plane.bytes)
            if all(rows.contiguous(array, rows.planes) for array in problem.arrays)
            else 1
        )
        yield plane if most == 1 else laid_out(rows, problem, most, height, width)
        return
    columns = width
    yield from _row_tiles(rows, problem, columns, size)
    while columns > 2 * _LEAST_COLUMNS:
        columns = -(-columns // (2 * _WARP)) * _WARP  # half of them
        yield from _row_tiles(rows, problem, columns, size)


def _row_tiles(rows: PoolView, problem: PoolProblem, columns: int, size: int) -> Iterator[PoolTile]:
    """Yield tiles of so many columns and of as many rows as there is room for, or one: even parts, and whole runs."""
    height = rows.height.windows
    single, double = (laid_out(rows, problem, 1, count, columns) for count in (1, 2))
    most = min(max((size - single.bytes) // max(double.bytes - single.bytes, 1) + 1, 1), height)
    run = run_length(problem) * max(single.down.step, 1)
    even = -(-height // -(-height // most))
    counts = {even, -(-even // run) * run, most // run * run}
    yield from (laid_out(rows, problem, 1, count, columns) for count in counts if 0 < count <= most)


# ---------------------------------------------------------------- shared memory


def run_length(problem: PoolProblem) -> int:
    """Return how many windows a thread takes at once."""
    return 5 if problem.named or problem.averages else _RUNS[problem.itemsize]


def laid_out(rows: PoolView, problem: PoolProblem, planes: int, tile_rows: int, columns: int) -> PoolTile:
    """Return a tile of so many planes, rows and columns of outputs."""
    size, indices = problem.itemsize, problem.named
    of_line = line_bytes(problem)
    vector, run = 16 // size, run_length(problem)
    down, along = (
        runs_of(count, axis.taps, axis.stride, axis.dilation, run)
        for axis, count in ((rows.height, tile_rows), (rows.width, columns))
    )
    x = _fetched(rows, planes, tile_rows, columns, vector, by_vectors=not indices)
    lines = _lines(rows, along, x.vectors, vector, of_line)
    results = _results(rows, problem, planes, columns, vector)
    count = planes * tile_rows
    x_elements, result_elements = x.slices * x.slice_pitch, count * results.pitch
    lines_at = whole_vectors(max(x_elements, result_elements), vector) * size
    places_at = lines_at + numbers.whole(count * lines.pitch * of_line, 16)
    result_places_at = places_at + indices * numbers.whole(count * lines.place_pitch * 4, 16)
    end = result_places_at + indices * numbers.whole(count * results.place_pitch * 4, 16)
    depth, height, width = (axis.windows for axis in rows.axes)
    grid = (-(-rows.planes // planes), depth, -(-height // tile_rows), -(-width // columns))
    places = (lines_at, places_at, result_places_at, end)
    return PoolTile(planes, tile_rows, columns, grid, x, down, along, lines, results, *places)


def _fetched(rows: PoolView, planes: int, tile_rows: int, columns: int, vector: int, *, by_vectors: bool) -> Fetched:
    depth, height, width = rows.axes
    x_rows, x_columns = (
        min((count - 1) * axis.stride + axis.reach, axis.extent)
        for axis, count in ((height, tile_rows), (width, columns))
    )
    merged = planes > 1 or (columns == width.windows and rows.contiguous("x", 1))
    vectors = by_vectors and not any(number % vector for number in (width.extent, *rows.strides("x")[:-1]))
    if planes > 1:
        x_rows = height.extent
    if merged:
        x_columns = width.extent
    elif vectors:
        x_columns = min(whole_vectors(x_columns, vector), width.extent)
    row_pitch = x_columns if merged else _alike(x_columns, height.x, vector)
    slice_pitch = _alike(planes * x_rows * row_pitch, depth.dilation * depth.x, vector)
    slices = min(depth.taps, -(-depth.extent // depth.dilation))
    return Fetched(x_rows, x_columns, slices, merged, vectors, row_pitch, slice_pitch)


def line_bytes(problem: PoolProblem) -> int:
    """Return the bytes of an element of a line: sums have the accumulator's."""
    return dtypes.sums(problem.dtype).itemsize if problem.averages else problem.itemsize


def _lines(rows: PoolView, along: WindowRuns, vectors: bool, vector: int, size: int) -> Lines:
    width = rows.width
    columns = (along.outputs - 1) * width.stride + (width.taps - 1) * width.dilation + 1
    part = -(-(whole_vectors(columns, vector) if vectors else columns) // width.stride)
    pitch, place_pitch = (_pitch(part * width.stride, along.outputs, bytes_) for bytes_ in (size, 4))
    if vectors and width.stride == 1:  # they are written as such
        pitch = part
    return Lines(columns, part, pitch, place_pitch)


def _results(rows: PoolView, problem: PoolProblem, planes: int, columns: int, vector: int) -> Results:
    merged = columns == rows.width.windows and all(rows.contiguous(array, planes) for array in problem.arrays[1:])
    return Results(merged, columns if merged else _alike(columns, rows.height.y, vector), columns)


def whole_vectors(run: int, vector: int) -> int:
    """Elements of the vectors that a run touches at most, wherever it begins."""
    return -(-(run + vector - 1) // vector) * vector


def _pitch(least: int, outputs: int, size: int) -> int:
    """Return a pitch so that the next line's runs begin in the bank after this line's last run."""
    return least + (outputs - least) % (_BANKS // size)


def _alike(run: int, stride: int, vector: int) -> int:
    """Return a pitch with room for a run and the rest of its last vector, as far from whole vectors as a stride is."""
    least = run + vector - 1
    return least + (stride - least) % vector


# ---------------------------------------------------------------- cost


def _work(problem: PoolProblem, rows: PoolView, tile: PoolTile) -> Ints:
    """Return what a block does: threads, vectors of x; runs down, loads, comparisons, stores; runs along, loads."""
    size, run = problem.itemsize, run_length(problem)
    wide = 16 // size if tile.x.vectors else 1
    words = wide if size >= 4 or problem.averages else -(-wide // 2)  # that are compared or added
    slices, lines = tile.x.slices, tile.planes * tile.rows
    down = tile.planes * tile.down.count * -(-tile.lines.columns // wide)
    along = lines * tile.along.count
    down_loads, down_merges = taken(rows.height.taps, tile.down, run)
    along_loads, _ = taken(rows.width.taps, tile.along, run)
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


def _instructions(rows: PoolView, problem: PoolProblem, tile: PoolTile) -> float:
    """Return how many instructions a block executes, or could while it waits for shared memory."""
    work, vectors = _work(problem, rows, tile), tile.x.vectors
    _, _, _, down_loads, _, down_stores, along, along_loads = work
    outputs = along * run_length(problem) if problem.averages else 0
    words = down_loads * (4 if vectors else 1) + down_stores + along_loads + along * run_length(problem)
    count = float(np.dot(work, _INSTRUCTIONS[problem.named, vectors])) + outputs * _DIVISION
    return max(count, _OF_SHARED * words) * of_short(problem)


def _seconds(rows: PoolView, problem: PoolProblem, tile: PoolTile, limits: Limits) -> float:
    kernel, blocks = _variant_of(problem), prod(tile.grid)
    instructions = blocks * _instructions(rows, problem, tile)
    work = _work(problem, rows, tile)
    threads, x, down, *_, along, _ = work
    items = (threads, x, *[down] * 4, *[along] * 2)
    most = longest(work, items, _INSTRUCTIONS[problem.named, tile.x.vectors], _THREADS) * of_short(problem)
    planned = blocks_of(kernel, blocks * _THREADS, instructions, 1, limits, tile.bytes, most)
    return model.streaming(planned, problem.bytes, limits)


# ---------------------------------------------------------------- offers


def offers(problem: PoolProblem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel, or why it does not take the problem."""
    accepted = _accepted(problem, limits)
    if isinstance(accepted, str):
        yield Refusal(accepted)
        return
    rows, tile = accepted
    kernel, time = _variant_of(problem), _seconds(rows, problem, tile, limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, rows, tile, kernel))


# ---------------------------------------------------------------- launch


def _plan(problem: PoolProblem, rows: PoolView, tile: PoolTile, kernel: Variant) -> Plan:
    vector = 16 // problem.itemsize
    _, depths, row_tiles, column_tiles = tile.grid
    fields = rows.fields(kernel) | {
        "tile_planes": tile.planes,
        "tile_rows": tile.rows,
        "x_rows": tile.x.rows,
        **params.members(tile.x, "vectors", "merged", "slice_pitch", "row_pitch"),
        "results_merged": tile.results.merged,
        **params.members(tile.lines, "pitch", "place_pitch", "part"),
        "result_pitch": tile.results.pitch,
        "result_place_pitch": tile.results.place_pitch,
        "step": [tile.down.step, tile.along.step],
        "steps": [max(runs.step, 1) for runs in (tile.down, tile.along)],
        **params.members(tile, "lines_at", "places_at", "result_places_at"),
        "depths": depths,
        "row_tiles": row_tiles,
        "column_tiles": column_tiles,
        "tile_columns": tile.columns,
        "outputs": tile.rows * tile.columns,
        "depth_dilation": rows.depth.dilation,
        "column_stride": rows.width.stride,
        "line": tile.lines.columns,
        "line_vectors": whole_vectors(tile.lines.columns, vector) // vector,
        "down": tile.down.count,
        "along": tile.along.count,
    }
    if problem.averages:
        fields |= {"lines": tile.rows}
    blocks = prod(tile.grid)
    reason = (
        f"{tile.planes} x {tile.rows} x {tile.columns} outputs a block of {_THREADS} threads, "
        f"{run_length(problem)} windows of a line a thread; {tile.bytes} bytes of shared memory, {blocks} blocks"
    )
    return one_launch(problem, kernel, blocks, tile.bytes, fields, reason)


_KERNEL = Kernel("pool/tiles.cu", "max_pool_tiles", "TilePoolParams", _THREADS, name="max_pool")
_AVERAGE = replace(_KERNEL, function="average_pool_tiles", parameter="AverageTilePoolParams", name="average_pool")


def variant(dtype: str, indices: bool) -> Variant:
    """Return the kernel for a dtype, with indices or without."""
    blocks = 5 if indices or dtypes.entry(dtype).itemsize > 2 else 4
    element, form = dtypes.entry(dtype).cuda, "indices" * indices
    return _KERNEL.over(dtype, 3, NAME, form, types=(element,), sizes=(indices,), blocks_per_sm=blocks)


def average_variant(dtype: str) -> Variant:
    """Return the kernel of averages for a dtype."""
    blocks = 3 if dtypes.entry(dtype).itemsize == 2 else 4  # 168 registers a thread, or 128
    return _AVERAGE.over(dtype, 3, NAME, types=types(dtype), blocks_per_sm=blocks)


def _variant_of(problem: PoolProblem) -> Variant:
    return average_variant(problem.dtype) if problem.averages else variant(problem.dtype, problem.named)


def variants() -> list[Variant]:
    maxima = [variant(*row) for row in product(dtypes.MAX_POOL_DTYPES, (False, True))]
    return maxima + [average_variant(dtype) for dtype in dtypes.CONV_DTYPES]
