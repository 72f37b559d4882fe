"""Tiles of pools in shared memory, by hand: rows of x, lines of maxima, results, patches of pixels."""

from __future__ import annotations

from dataclasses import replace

from gpuconv.cuda.pool import patches, runs, tiles
from gpuconv.cuda.pool import problem as pool_problem
from gpuconv.cuda.pool.problem import PoolAxis, PoolView
from gpuconv.cuda.pool.runs import WindowRuns
from gpuconv.cuda.pool.tiles import Fetched, Lines, Results
from tests.cuda.pool.problems import made
from tests.harness import banks
from tests.harness.pool_views import changed

# Windows of three taps along each axis, with their gaps of 5, 7 and 9 elements.
ROWS = PoolView(
    image=PoolAxis(2, 2, stride=1, pad=0, reach=1, dilation=1, x=12000, y=3520),
    channel=PoolAxis(5, 5, stride=1, pad=0, reach=1, dilation=1, x=2400, y=352),
    depth=PoolAxis(3, 4, stride=1, pad=3, reach=5, dilation=2, x=800, y=88),
    height=PoolAxis(19, 8, stride=2, pad=1, reach=7, dilation=3, x=40, y=11),
    width=PoolAxis(37, 11, stride=3, pad=2, reach=9, dilation=4, x=1, y=1),
)


def test_what_a_tile_of_a_pool_fetches() -> None:
    """Rows and slices have the same offset from vector boundaries in shared memory as in x, for vector copies.

    Windows along the height have stride 2 and span 7, along the width 3 and 9; two slices of the depth are read.
    """
    rows, columns = 3 * 2 + 7, 4 * 3 + 9  # of 4 x 5 windows
    pitch = banks.next_in_bank(columns + 7, 40, 8)  # a run touches up to seven more elements, at any alignment
    slice_pitch = banks.next_in_bank(rows * pitch + 7, 2 * 800, 8)
    found = tiles._fetched(ROWS, 1, 4, 5, 8, by_vectors=True)
    assert found == Fetched(rows, columns, 2, False, False, pitch, slice_pitch)
    both = banks.next_in_bank(2 * 19 * 37 + 7, 2 * 800, 8)  # two whole planes
    assert tiles._fetched(ROWS, 2, 4, 5, 8, by_vectors=True) == Fetched(19, 37, 2, True, False, 37, both)
    whole = changed(ROWS, x_extent=(3, 19, 40))  # rows of whole vectors: so are those of the tile, 32 for 21
    of_vectors = banks.next_in_bank(32 + 7, 40, 8)
    expected = Fetched(rows, 32, 2, False, True, of_vectors, banks.next_in_bank(rows * of_vectors + 7, 1600, 8))
    assert tiles._fetched(whole, 1, 4, 5, 8, by_vectors=True) == expected
    assert tiles._fetched(whole, 1, 4, 5, 8, by_vectors=False) == found
    # All columns, of rows that are adjacent in x: 13 rows of 40.
    expected = Fetched(rows, 40, 2, True, True, 40, banks.next_in_bank(rows * 40 + 7, 1600, 8))
    assert tiles._fetched(whole, 1, 4, 11, 8, by_vectors=True) == expected
    assert tiles._fetched(ROWS, 1, 4, 11, 8, by_vectors=True).merged is False


def test_the_lines_that_a_tile_of_a_pool_keeps() -> None:
    """Ten windows with stride 3, of three taps with dilation 4; a line starts in the bank after ten runs."""
    columns, along = 9 * 3 + 2 * 4 + 1, WindowRuns(2, 0, 10)
    pitch_of = {size: banks.next_in_bank(columns, 10, 128 // size) for size in (1, 2, 4, 8)}  # elements of the banks
    for vector, size in ((8, 2), (16, 1), (2, 8)):
        assert tiles._lines(ROWS, along, False, vector, size) == Lines(
            columns, columns // 3, pitch_of[size], pitch_of[4]
        )
    touched = 48  # elements of six whole vectors of eight, for any start of 36
    further = [banks.next_in_bank(touched, 10, 128 // size) for size in (2, 4)]
    assert tiles._lines(ROWS, along, True, 8, 2) == Lines(columns, touched // 3, *further)
    near = changed(ROWS, stride=(1, 2, 1))  # 18 columns, in at most four vectors of eight
    assert tiles._lines(near, along, True, 8, 2) == Lines(18, 32, 32, banks.next_in_bank(32, 10, 32))
    pitches = [banks.next_in_bank(18, 10, 128 // size) for size in (2, 4)]
    assert tiles._lines(near, along, False, 8, 2) == Lines(18, 18, *pitches)


def test_runs_step_where_dilation_is_whole_strides() -> None:
    assert runs.runs_of(20, 4, 2, 6, 5) == WindowRuns(6, 3, 30)
    assert runs.runs_of(20, 3, 2, 6, 5) == WindowRuns(4, 0, 20)  # too few taps are shared
    assert runs.runs_of(20, 4, 2, 5, 5) == WindowRuns(4, 0, 20)
    assert runs.runs_of(21, 4, 2, 2, 5) == WindowRuns(5, 1, 25)
    assert runs.taken(7, WindowRuns(5, 1, 25), 5) == (11, 22)
    assert runs.taken(7, WindowRuns(5, 0, 25), 5) == (35, 35)


def test_results_are_written_as_they_lie() -> None:
    class Named:
        arrays = ("x", "y")

    def results(rows: PoolView, planes: int, columns: int) -> Results:
        return tiles._results(rows, Named(), planes, columns, 8)  # type: ignore[arg-type]

    assert results(ROWS, 1, 11) == Results(True, 11, 11)
    assert results(ROWS, 1, 5) == Results(False, banks.next_in_bank(5 + 7, 11, 8), 5)  # rows of y are 11 apart
    assert results(ROWS, 2, 11).merged is False  # planes of several slices
    flat = changed(ROWS, y_extent=(1, 8, 11), y_strides=(440, 88, 999, 11))
    assert results(flat, 2, 11) == Results(True, 11, 11)
    assert results(changed(flat, y_strides=(440, 89, 999, 11)), 2, 11).merged is False
    assert results(changed(flat, y_strides=(441, 88, 999, 11)), 2, 11).merged is False
    assert results(changed(flat, y_strides=(441, 88, 999, 11), images=(1,)), 2, 11).merged is True
    assert results(changed(flat, y_strides=(440, 88, 999, 12)), 2, 11).merged is False
    assert results(changed(flat, y_strides=(440, 88, 999, 12)), 1, 11).merged is False


def laid_out(problem: pool_problem.PoolProblem, vectors: int, rows: int, columns: int) -> patches.PatchTile:
    pixels = pool_problem.view_of(problem)
    lines = (patches._line(axis, outputs) for axis, outputs in ((pixels.height, rows), (pixels.width, columns)))
    return patches._laid_out(patches._TileSizes.of(problem, pixels), vectors, *lines)


def test_a_patch_of_a_pool_by_hand() -> None:
    one = made((1, 8, 5, 9, 11), last=True, kernel_shape=[3, 3, 2], strides=[1, 2, 3], dilations=[3, 2, 1],
               pads=[3, 0, 0, 3, 0, 0])  # fmt: skip
    x_bytes, line_bytes = 2 * 7 * 11 * 16, 2 * 14 * 16  # slices, rows and columns of x; rows and columns of lines
    tile = laid_out(one, vectors=1, rows=2, columns=4)
    assert tile == patches.PatchTile(
        vectors=1,
        rows=2,
        columns=4,
        grid=(1, 5, 2, 1, 2),
        x_rows=2 + 5,
        x_columns=11,
        slices=2,  # of three taps, three slices apart, no window has more inside
        line=4 * 3 + 2,  # of five windows
        down=WindowRuns(1, 0, 5),
        along=WindowRuns(1, 0, 5),
        lines_at=x_bytes,
        places_at=x_bytes + line_bytes,
        bytes=x_bytes + line_bytes,
    )
    named = replace(one, indices_strides=one.y_strides)  # pairs of channels, with an index of eight bytes for both
    assert laid_out(named, 1, 2, 4).bytes == (x_bytes + line_bytes) // 2 + 2 * 14 * 8
