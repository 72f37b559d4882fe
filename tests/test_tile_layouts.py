"""Tiles as they lie in shared memory, by hand: pitches that lead to other banks, and what a block has of each axis."""

from __future__ import annotations

from dataclasses import replace

from gpuconv.cuda import bands_work, channels_tile, direct_tile, direct_work, multiples, pool_layout
from gpuconv.cuda.bands_tile import Tile as BandTile
from gpuconv.cuda.bands_work import Axis
from gpuconv.cuda.pool_layout import Fetched, Lines, Results, Runs
from gpuconv.cuda.pool_problem import Rows


def test_numbers_are_rounded_up_to_banks() -> None:
    assert [multiples.whole(number, 4) for number in (0, 1, 4, 5)] == [0, 4, 4, 8]
    assert multiples.congruent(22, 1, 5, 32) == 37
    assert multiples.congruent(37, 1, 5, 32) == 37
    assert multiples.congruent(592, 3, 15, 32) == 613
    assert multiples.congruent(10, 4, 3, 8) == 10  # no multiple of four is odd


WORK = direct_work.Work(
    dtype="float32", images=2, groups=5, channels=7, filters=3,
    x_extent=(9, 40, 50), y_extent=(3, 31, 23), taps=(3, 2, 5), strides=(3, 1, 2), dilations=(2, 4, 3), pads=(1, 2, 3),
)  # fmt: skip


def form(kernel: int, stride: int) -> direct_work.Form:
    """The form of one filter for a plane of so many taps, and so far apart."""
    kinds = [one for one in direct_work.FORMS if one.filters == 1 and not one.line]
    return next(one for one in kinds if (one.kernel, one.stride) == (kernel, stride))


def test_a_direct_tile_of_any_taps() -> None:
    """In words: rows are 5 modulo 32 long, three depths 15, and three channels 30, as many threads go on there."""
    tile = direct_tile.Tile(WORK, form(0, 0), threads=(2, 3, 5), groups=2, filter_tiles=2, step=3)
    assert tile.extent == (8, 16, 21)
    assert tile.pitches == (11, 37, 613, 4906)
    assert tile.weights == 2 * 3 * 4906 + 16 * 9 * 4
    assert tile.shared_bytes == 4 * (tile.weights + 2 * 2 * 148)
    names = ("phase_pitch", "row_pitch", "depth_pitch", "channel_pitch", "weights")
    assert [tile.fields()[name] for name in names] == [11, 37, 613, 4906, tile.weights]
    double = replace(tile, work=replace(WORK, dtype="float64"), threads=(2, 3, 5))
    # Two words in a vector: two rows, so that (6 - 1) * 1 + 4 + 1 rows are met, and 16 banks.
    assert double.extent == (8, 10, 21)
    assert double.pitches == (11, 37, 373, 2986)
    assert double.shared_bytes == 8 * (2 * 3 * 2986 + 16 * 9 * 2 + 2 * 2 * 110)


def test_a_direct_tile_of_three_by_three_taps() -> None:
    work = replace(WORK, channels=1, taps=(1, 3, 3), strides=(1, 2, 2), dilations=(1, 1, 1), pads=(0, 1, 1))
    tile = direct_tile.Tile(work, form(3, 2), threads=(1, 3, 6), groups=2, filter_tiles=1, step=1)
    assert (tile.lead, tile.each) == (3, (1, 7, 4))
    assert tile.extent == (1, 43, 56)
    assert tile.pitches == (48, 100, 4328, 4328)  # even columns begin in bank 0, odd ones in bank 16
    assert (tile.row_taps, tile.filter_weights, tile.filter_pitch) == (4, 12, 12)
    assert tile.blocks == 3 * 2 * 1 * 3 * 3 * 2
    rows = direct_tile.Tile(
        replace(work, taps=(1, 3, 5), strides=(1, 1, 1), pads=(0, 1, 6)), form(0, 1), (1, 2, 3), 2, 1, 1
    )
    assert (rows.lead, rows.row_taps, rows.extent) == (2, 8, (1, 16, 20))
    assert rows.filter_weights == 3 * 8
    assert rows.filter_pitch == 4 * 7


BAND = BandTile(
    bands_work.Work(
        dtype="float32", copies=2, channels=20, filters=3, depths=5, planes=1,
        height=Axis(phases=2, taps=3, kernel=6, positions=31, start=-1, origin=-2),
        width=Axis(phases=3, taps=5, kernel=13, positions=44, start=-3, origin=-4),
        line=False, vectors=4, lines=4,
    ),
    bands_work.Form(3, 3, 3, 4, 112, 0.9),
    threads=(3, 5),
    jobs=2,
    parts=2,
    step=16,
)  # fmt: skip


def test_a_tile_of_bands() -> None:
    """Nine rows of twenty columns, of two of the six jobs: three filters in six phases, three a job."""
    assert (BAND.positions, BAND.fold, BAND.blocks_by_axis) == ((9, 20), 0, (4, 3))
    assert (BAND.all_jobs, BAND.job_blocks, BAND.blocks) == (6, 3, 4 * 3 * 5 * 3 * 2)
    assert BAND.extent == (11, 28)  # two parts of a row's five taps, each of two vectors
    assert BAND.row_pitch == 28  # seven vectors: three rows are 21, which is 5 modulo 8
    assert BAND.channel_pitch == 4 * 78  # 77 and one more is 6 modulo 8, as 30 threads are
    assert (BAND.row_weights, BAND.channel_weights) == (2 * 12, 2 * 3 * 24)
    assert BAND.plane == 4 * 50  # 45 vectors, and on to the second bank, as there are three phases for eight
    last = replace(BAND, work=replace(BAND.work, vectors=-4))
    assert last.channel_pitch == 4 * 77
    assert replace(last, jobs=4).channel_pitch == 4 * 77
    assert replace(BAND, jobs=4).channel_pitch == 4 * 77  # a warp has one channel
    assert replace(BAND, threads=(3, 8)).row_pitch == 40  # whole rows of banks: nothing to turn
    single = replace(BAND.work.width, phases=1)
    assert replace(BAND, work=replace(BAND.work, width=single)).plane == 4 * 48  # 45, and on to bank 0


def test_a_line_is_folded_into_rows() -> None:
    flat = Axis(phases=1, taps=1, kernel=1, positions=1, start=0, origin=0)
    line = replace(BAND, work=replace(BAND.work, height=flat, width=replace(BAND.work.width, positions=444), line=True))
    assert (line.fold, line.blocks_by_axis) == (20, (3, 1))  # 23 rows of 20


def test_a_tile_of_channels() -> None:
    work = direct_work.Work(
        dtype="float32", images=2, groups=33, channels=1, filters=2,
        x_extent=(9, 140, 150), y_extent=(3, 31, 23), taps=(2, 5, 3), strides=(3, 4, 6), dilations=(1, 6, 4),
        pads=(1, 2, 3),
    )  # fmt: skip
    tile = channels_tile.Tile(work, (2, 4, 4), True, vectors=7, rows=2, columns=3, walk=2)
    rows = channels_tile._OUTPUTS // 4
    assert tile.each == (rows, 4)
    assert (tile.apart, tile.advance) == ((3, 2), 2)  # rows 12 apart share every second tap, columns every third
    assert tile.tiles == (-(-31 // (3 * rows)) * 3, 6)
    assert tile.filters == 66
    assert tile.blocks_by_axis == (3, 2, -(-tile.tiles[0] // 4))
    assert tile.blocks == 3 * 2 * tile.blocks_by_axis[2] * 3 * 2
    assert (tile.pitch, tile.step, tile.parts) == (32, 5, 1)
    assert tile.shared_bytes == 4 * 32 * 5 * 3
    large = replace(tile, work=replace(work, taps=(2, 65, 70)))
    assert large.step == channels_tile._WEIGHT_BYTES // (4 * 32 * 70)
    assert large.parts == -(-65 // large.step)
    assert large.shared_bytes == 4 * 32 * large.step * 70
    assert replace(tile, form=(0, 1, 4)).apart == (3, 1)


# Windows of three taps along each axis, with their gaps of 5, 7 and 9 elements.
ROWS = Rows(
    x_extent=(3, 19, 37), y_extent=(4, 8, 11), kernel=(5, 7, 9), stride=(1, 2, 3), dilation=(2, 3, 4), pad=(3, 1, 2),
    x_strides=(12000, 2400, 800, 40), y_strides=(3520, 352, 88, 11), indices_strides=(0, 0, 0, 0), images=2, channels=5,
)  # fmt: skip


def test_what_a_tile_of_a_pool_fetches() -> None:
    """In shared memory, rows and slices lie as far off whole vectors as they do in x."""
    found = pool_layout._fetched(ROWS, 1, 4, 5, 8, by_vectors=True)
    assert found == Fetched(13, 21, 2, False, False, 32, 424)  # 28 and on to 40 modulo 8; 423, and on to 2 * 800
    assert pool_layout._fetched(ROWS, 2, 4, 5, 8, by_vectors=True) == Fetched(19, 37, 2, True, False, 37, 1416)
    whole = replace(ROWS, x_extent=(3, 19, 40))
    assert pool_layout._fetched(whole, 1, 4, 5, 8, by_vectors=True) == Fetched(13, 32, 2, False, True, 40, 528)
    assert pool_layout._fetched(whole, 1, 4, 5, 8, by_vectors=False) == Fetched(13, 21, 2, False, False, 32, 424)
    # All columns, of rows that are neighbours in x: 13 rows of 40.
    assert pool_layout._fetched(whole, 1, 4, 11, 8, by_vectors=True) == Fetched(13, 40, 2, True, True, 40, 528)
    assert pool_layout._fetched(ROWS, 1, 4, 11, 8, by_vectors=True).merged is False


def test_the_lines_that_a_tile_of_a_pool_keeps() -> None:
    along = Runs(2, 0, 10)
    assert pool_layout._lines(ROWS, along, False, 2) == Lines(36, 12, 74, 42)  # 10 modulo the banks' 64 and 32
    assert pool_layout._lines(ROWS, along, True, 2) == Lines(36, 16, 74, 74)  # 43 of whole vectors, wherever they begin
    near = replace(ROWS, stride=(1, 2, 1))
    assert pool_layout._lines(near, along, True, 2) == Lines(18, 32, 32, 42)
    assert pool_layout._lines(near, along, False, 2) == Lines(18, 18, 74, 42)


def test_runs_step_where_dilation_is_whole_strides() -> None:
    assert pool_layout.runs_of(20, 4, 2, 6, 5) == Runs(6, 3, 30)
    assert pool_layout.runs_of(20, 3, 2, 6, 5) == Runs(4, 0, 20)  # too few taps are shared
    assert pool_layout.runs_of(20, 4, 2, 5, 5) == Runs(4, 0, 20)
    assert pool_layout.runs_of(21, 4, 2, 2, 5) == Runs(5, 1, 25)
    assert pool_layout.taken(7, Runs(5, 1, 25), 5) == (11, 22)
    assert pool_layout.taken(7, Runs(5, 0, 25), 5) == (35, 35)


def test_results_are_written_as_they_lie() -> None:
    class Named:
        indices_strides = None

    def results(rows: Rows, planes: int, columns: int) -> Results:
        return pool_layout._results(rows, Named(), planes, columns, 8)  # type: ignore[arg-type]

    assert results(ROWS, 1, 11) == Results(True, 11, 11)
    assert results(ROWS, 1, 5) == Results(False, 19, 5)  # 12, and on to 11 modulo 8
    assert results(ROWS, 2, 11).merged is False  # planes of several slices
    flat = replace(ROWS, y_extent=(1, 8, 11), y_strides=(440, 88, 999, 11))
    assert results(flat, 2, 11) == Results(True, 11, 11)
    assert results(replace(flat, y_strides=(440, 89, 999, 11)), 2, 11).merged is False
    assert results(replace(flat, y_strides=(441, 88, 999, 11)), 2, 11).merged is False
    assert results(replace(flat, y_strides=(441, 88, 999, 11), images=1), 2, 11).merged is True
    assert results(replace(flat, y_strides=(440, 88, 999, 12)), 2, 11).merged is False
    assert results(replace(flat, y_strides=(440, 88, 999, 12)), 1, 11).merged is False
