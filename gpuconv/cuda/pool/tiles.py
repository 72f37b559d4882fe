"""MaxPool and AveragePool with contiguous rows and windows of any size, stride and dilation (``pool/tiles.cu``).

Separable within a block: rows of x are staged in shared memory, pooled down the columns, then along the rows; results
are written as vectors. A thread pools a run of windows at once, sharing their common taps (van Herk). Chosen where W is
contiguous (NCHW) and the vectors kernel has no specialised window.
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
_BANKS = 128  # bytes that all shared-memory banks serve per cycle
_RUNS = {1: 4, 2: 6, 4: 5, 8: 5}  # bytes per element → kRun in pool/tiles.cu; 5 with Indices
# Shared memory per block to try; with the largest, five blocks fit an SM.
_BYTES = tuple(44 * 1024 >> halved for halved in range(3))
_LEAST_COLUMNS = 128  # least columns per tile, except for narrower rows
_OF_SHARED = 5  # instructions in the time of one shared-memory access, with conflicts at line ends (counted)
# (Indices, vectorised) → instructions per unit of each entry that _work returns (counted).
_INSTRUCTIONS: dict[tuple[bool, bool], tuple[float, ...]] = {
    (False, False): (335, 6, 95, 6.5, 2, 0, 82, 0),
    (False, True): (400, 14, 73, 6, 3.2, 2.7, 70, 3.4),
    (True, False): (280, 21, 3, 0, 16, 13.6, 236, 8.5),
}
_DIVISION = 25  # instructions to count and divide an average (estimated)


# ---------------------------------------------------------------- accepted problems


def _accepted(problem: PoolProblem, limits: Limits) -> tuple[PoolView, PoolTile] | str:
    """Return the view of the problem that the kernel takes, or why it does not accept the problem."""
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
    """The rows of x that a tile stages; ``merged`` rows, over all its planes, are one contiguous run per slice."""

    rows: int
    columns: int
    slices: int
    merged: bool
    vectors: bool  # rows consist of whole aligned vectors, given an aligned x
    row_pitch: int
    slice_pitch: int


@dataclass(frozen=True, slots=True)
class Lines:
    """The maxima down the columns, including padding; windows start in the first ``part`` elements of a line."""

    columns: int
    part: int
    pitch: int
    place_pitch: int


@dataclass(frozen=True, slots=True)
class Results:
    """A tile's outputs in shared memory; ``merged`` ones are one contiguous run of y and of Indices."""

    merged: bool
    pitch: int
    place_pitch: int


@dataclass(frozen=True, slots=True)
class PoolTile:
    """A tile: the outputs of a block, and its layout in shared memory, in elements; ``…_at`` are byte offsets."""

    planes: int
    rows: int
    columns: int
    grid: Ints  # number of tiles along planes, depths, rows, columns
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
        """Elements of x that a block stages."""
        return self.x.slices * self.planes * self.x.rows * self.x.columns


def _best(rows: PoolView, problem: PoolProblem, limits: Limits) -> PoolTile:
    """Return the fastest tile over several sizes of shared memory and several widths."""
    tiles = [tile for size in _BYTES for tile in _tiles_of(rows, problem, size)]
    fitting = [tile for tile in tiles if tile.bytes <= _BYTES[0]] or [min(tiles, key=lambda tile: tile.bytes)]
    return min(fitting, key=lambda tile: _seconds(rows, problem, tile, limits))


def _tiles_of(rows: PoolView, problem: PoolProblem, size: int) -> Iterator[PoolTile]:
    """Yield tiles of at most ``size`` bytes of shared memory, if possible: whole planes, or parts of one."""
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
        columns = -(-columns // (2 * _WARP)) * _WARP  # half as many
        yield from _row_tiles(rows, problem, columns, size)


def _row_tiles(rows: PoolView, problem: PoolProblem, columns: int, size: int) -> Iterator[PoolTile]:
    """Yield tiles of ``columns`` columns with as many rows as fit (at least 1): even divisions, and whole runs."""
    height = rows.height.windows
    single, double = (laid_out(rows, problem, 1, count, columns) for count in (1, 2))
    most = min(max((size - single.bytes) // max(double.bytes - single.bytes, 1) + 1, 1), height)
    run = run_length(problem) * max(single.down.step, 1)
    even = -(-height // -(-height // most))
    counts = {even, -(-even // run) * run, most // run * run}
    yield from (laid_out(rows, problem, 1, count, columns) for count in counts if 0 < count <= most)


# ---------------------------------------------------------------- shared memory


def run_length(problem: PoolProblem) -> int:
    """Return the windows per run: how many a thread pools at once."""
    return 5 if problem.named or problem.averages else _RUNS[problem.itemsize]


def laid_out(rows: PoolView, problem: PoolProblem, planes: int, tile_rows: int, columns: int) -> PoolTile:
    """Return the tile of ``planes`` × ``tile_rows`` × ``columns`` outputs with its shared-memory layout."""
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
    """Return the rows of x that a tile stages, with their pitches in shared memory."""
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
    """Return the bytes per element of a line; sums use the accumulator's type."""
    return dtypes.sums(problem.dtype).itemsize if problem.averages else problem.itemsize


def _lines(rows: PoolView, along: WindowRuns, vectors: bool, vector: int, size: int) -> Lines:
    """Return the layout of the intermediate lines in shared memory."""
    width = rows.width
    columns = (along.outputs - 1) * width.stride + (width.taps - 1) * width.dilation + 1
    part = -(-(whole_vectors(columns, vector) if vectors else columns) // width.stride)
    pitch, place_pitch = (_pitch(part * width.stride, along.outputs, bytes_) for bytes_ in (size, 4))
    if vectors and width.stride == 1:  # they are written as vectors
        pitch = part
    return Lines(columns, part, pitch, place_pitch)


def _results(rows: PoolView, problem: PoolProblem, planes: int, columns: int, vector: int) -> Results:
    """Return the layout of the outputs in shared memory."""
    merged = columns == rows.width.windows and all(rows.contiguous(array, planes) for array in problem.arrays[1:])
    return Results(merged, columns if merged else _alike(columns, rows.height.y, vector), columns)


def whole_vectors(run: int, vector: int) -> int:
    """Return the elements of all vectors that a run may touch, wherever it starts."""
    return -(-(run + vector - 1) // vector) * vector


def _pitch(least: int, outputs: int, size: int) -> int:
    """Return a pitch such that a line's first run starts in the bank after the previous line's last run."""
    return least + (outputs - least) % (_BANKS // size)


def _alike(run: int, stride: int, vector: int) -> int:
    """Return a pitch that fits a run with partial vectors at its ends, and has the same alignment as ``stride``."""
    least = run + vector - 1
    return least + (stride - least) % vector


# ---------------------------------------------------------------- cost


def _work(problem: PoolProblem, rows: PoolView, tile: PoolTile) -> Ints:
    """Return a block's work: threads; vectors of x; runs, loads, comparisons, stores down; runs, loads along rows."""
    size, run = problem.itemsize, run_length(problem)
    wide = 16 // size if tile.x.vectors else 1
    words = wide if size >= 4 or problem.averages else -(-wide // 2)  # words compared or added per vector
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
    """Return the instructions that a block executes, or the equivalent of its shared-memory time if that is longer."""
    work, vectors = _work(problem, rows, tile), tile.x.vectors
    _, _, _, down_loads, _, down_stores, along, along_loads = work
    outputs = along * run_length(problem) if problem.averages else 0
    words = down_loads * (4 if vectors else 1) + down_stores + along_loads + along * run_length(problem)
    count = float(np.dot(work, _INSTRUCTIONS[problem.named, vectors])) + outputs * _DIVISION
    return max(count, _OF_SHARED * words) * of_short(problem)


def _seconds(rows: PoolView, problem: PoolProblem, tile: PoolTile, limits: Limits) -> float:
    """Model the seconds of all launches of this candidate."""
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
    """Yield the kernel, or why it does not accept the problem."""
    accepted = _accepted(problem, limits)
    if isinstance(accepted, str):
        yield Refusal(accepted)
        return
    rows, tile = accepted
    kernel, time = _variant_of(problem), _seconds(rows, problem, tile, limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, rows, tile, kernel))


# ---------------------------------------------------------------- launch


def _plan(problem: PoolProblem, rows: PoolView, tile: PoolTile, kernel: Variant) -> Plan:
    """Return the plan of this candidate."""
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
    """Return the MaxPool variant for a dtype, with or without Indices."""
    blocks = 5 if indices or dtypes.entry(dtype).itemsize > 2 else 4
    element, form = dtypes.entry(dtype).cuda, "indices" * indices
    return _KERNEL.over(dtype, 3, NAME, form, types=(element,), sizes=(indices,), blocks_per_sm=blocks)


def average_variant(dtype: str) -> Variant:
    """Return the AveragePool variant for a dtype."""
    blocks = 3 if dtypes.entry(dtype).itemsize == 2 else 4  # 168 or 128 registers per thread
    return _AVERAGE.over(dtype, 3, NAME, types=types(dtype), blocks_per_sm=blocks)


def _variant_of(problem: PoolProblem) -> Variant:
    """Return the kernel variant for the problem."""
    return average_variant(problem.dtype) if problem.averages else variant(problem.dtype, problem.named)


def variants() -> list[Variant]:
    """Yield every kernel variant of this family."""
    maxima = [variant(*row) for row in product(dtypes.MAX_POOL_DTYPES, (False, True))]
    return maxima + [average_variant(dtype) for dtype in dtypes.CONV_DTYPES]
