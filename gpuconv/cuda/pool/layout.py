"""How the tiles of ``pool_tiles`` lie in shared memory: rows of x, the maxima down its columns, results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuconv.cuda.plan import numbers
from gpuconv.cuda.plan.launch import Limits
from gpuconv.cuda.pool.problem import Problem, Rows, whole_vectors
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

_BANKS = 128  # bytes of all banks of shared memory
# What short elements take beside others, with Indices or without, by their bytes: instructions that unpack; counted.
_SHORT = {(False, 1): 1.35, (True, 2): 1.2}
_RUNS = {1: 4, 2: 6, 4: 5, 8: 5}  # kRun in pool/tiles.cu by bytes of an element; 5 with Indices


@dataclass(frozen=True, slots=True)
class Runs:
    """Windows of a line of outputs, so many of them for a thread at once.

    ``step`` is from one window of a run to the next where they share all taps but one; 0 where they do not, and windows
    of a run are neighbours.
    """

    count: int
    step: int
    outputs: int  # that all runs cover


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
class Tile:
    """What a block makes, and where what it keeps is in shared memory: numbers of elements, ``..._at`` of bytes."""

    planes: int
    rows: int
    columns: int
    grid: Ints  # tiles: of planes, depths, bands and columns
    x: Fetched
    down: Runs
    along: Runs
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

    def fields(self) -> dict[str, Any]:
        """Return what the kernel's struct has of these."""
        return {
            "tile_planes": self.planes,
            "tile_rows": self.rows,
            "x_rows": self.x.rows,
            "vectors": self.x.vectors,
            "merged": self.x.merged,
            "results_merged": self.results.merged,
            "slice_pitch": self.x.slice_pitch,
            "row_pitch": self.x.row_pitch,
            "pitch": self.lines.pitch,
            "place_pitch": self.lines.place_pitch,
            "part": self.lines.part,
            "result_pitch": self.results.pitch,
            "result_place_pitch": self.results.place_pitch,
            "step": [self.down.step, self.along.step],
            "lines_at": self.lines_at,
            "places_at": self.places_at,
            "result_places_at": self.result_places_at,
        }


def run_length(problem: Problem) -> int:
    """Return how many windows a thread takes at once."""
    return _RUNS[dtypes.entry(problem.dtype).itemsize] if problem.indices_strides is None else 5


def runs_of(count: int, taps: int, stride: int, dilation: int, run: int) -> Runs:
    """Return the runs of so many windows of a line."""
    step = dilation // stride if dilation % stride == 0 and taps >= run - 1 else 0
    apart = max(step, 1)
    runs = -(-count // (run * apart)) * apart
    return Runs(runs, step, runs * run)


def taken(taps: int, runs: Runs, run: int) -> tuple[int, int]:
    """Return the elements that a run of windows loads, and how many comparisons it makes."""
    return (taps + run - 1, taps + 3 * run) if runs.step else (taps * run, taps * run)


def instructions(problem: Problem, each: float, blocks: int, limits: Limits) -> float:
    """Return what all blocks execute, of so many instructions each; few blocks take as long as two a multiprocessor."""
    kind = problem.indices_strides is not None, dtypes.entry(problem.dtype).itemsize
    return each * max(blocks, 2 * limits.multiprocessors) * _SHORT.get(kind, 1)


def laid_out(rows: Rows, problem: Problem, planes: int, tile_rows: int, columns: int) -> Tile:
    """Return a tile of so many planes, rows and columns of outputs."""
    size, indices = dtypes.entry(problem.dtype).itemsize, problem.indices_strides is not None
    vector, run = 16 // size, run_length(problem)
    down, along = (
        runs_of(count, rows.taps[axis], rows.stride[axis], rows.dilation[axis], run)
        for axis, count in ((1, tile_rows), (2, columns))
    )
    x = _fetched(rows, planes, tile_rows, columns, vector, by_vectors=not indices)
    lines = _lines(rows, along, x.vectors, size)
    results = _results(rows, problem, planes, columns, vector)
    count = planes * tile_rows
    x_elements, result_elements = x.slices * x.slice_pitch, count * results.pitch
    lines_at = whole_vectors(max(x_elements, result_elements), vector) * size
    places_at = lines_at + numbers.whole(count * lines.pitch * size, 16)
    result_places_at = places_at + indices * numbers.whole(count * lines.place_pitch * 4, 16)
    end = result_places_at + indices * numbers.whole(count * results.place_pitch * 4, 16)
    depth, height, width = rows.y_extent
    grid = (-(-rows.planes // planes), depth, -(-height // tile_rows), -(-width // columns))
    places = (lines_at, places_at, result_places_at, end)
    return Tile(planes, tile_rows, columns, grid, x, down, along, lines, results, *places)


def neighbours(rows: Rows, problem: Problem) -> bool:
    """Whether planes, of one slice each, lie one after another in all arrays."""
    return rows.planes_are_neighbours and _results_merged(rows, problem, rows.planes)


def _fetched(rows: Rows, planes: int, tile_rows: int, columns: int, vector: int, *, by_vectors: bool) -> Fetched:
    _, height, width = rows.x_extent
    x_rows, x_columns = (
        min((count - 1) * rows.stride[axis] + rows.kernel[axis], rows.x_extent[axis])
        for axis, count in ((1, tile_rows), (2, columns))
    )
    merged = planes > 1 or (columns == rows.y_extent[2] and rows.rows_are_neighbours)
    vectors = by_vectors and not any(one % vector for one in (width, *rows.x_strides))
    if planes > 1:
        x_rows = height
    if merged:
        x_columns = width
    elif vectors:
        x_columns = min(whole_vectors(x_columns, vector), width)
    row_pitch = x_columns if merged else _alike(x_columns, rows.x_strides[3], vector)
    slice_pitch = _alike(planes * x_rows * row_pitch, rows.dilation[0] * rows.x_strides[2], vector)
    slices = min(rows.taps[0], -(-rows.x_extent[0] // rows.dilation[0]))
    return Fetched(x_rows, x_columns, slices, merged, vectors, row_pitch, slice_pitch)


def _lines(rows: Rows, along: Runs, vectors: bool, size: int) -> Lines:
    stride, vector = rows.stride[2], 16 // size
    columns = (along.outputs - 1) * stride + (rows.taps[2] - 1) * rows.dilation[2] + 1
    part = -(-(whole_vectors(columns, vector) if vectors else columns) // stride)
    pitch, place_pitch = (_pitch(part * stride, along.outputs, one) for one in (size, 4))
    if vectors and stride == 1:  # they are written as such
        pitch = part
    return Lines(columns, part, pitch, place_pitch)


def _results(rows: Rows, problem: Problem, planes: int, columns: int, vector: int) -> Results:
    merged = columns == rows.y_extent[2] and _results_merged(rows, problem, planes)
    return Results(merged, columns if merged else _alike(columns, rows.y_strides[3], vector), columns)


def _pitch(least: int, outputs: int, size: int) -> int:
    """Return a pitch so that the next line's runs begin in the bank after this line's last run."""
    return least + (outputs - least) % (_BANKS // size)


def _alike(run: int, stride: int, vector: int) -> int:
    """Return a pitch with room for a run and the rest of its last vector, as far from whole vectors as a stride is."""
    least = run + vector - 1
    return least + (stride - least) % vector


def _results_merged(rows: Rows, problem: Problem, planes: int) -> bool:
    """Whether the rows of a slice, and so many planes, lie one after another in y and the Indices."""
    depth, height, width = rows.y_extent
    size = height * width
    return all(
        (height == 1 or row == width)
        and (planes == 1 or (depth == 1 and (rows.channels == 1 or channel == size)))
        and (planes == 1 or rows.images == 1 or batch == size * rows.channels)
        for batch, channel, _, row in [rows.y_strides, rows.indices_strides][
            : 1 + (problem.indices_strides is not None)
        ]
    )
