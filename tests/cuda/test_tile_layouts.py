"""Tiles as they lie in shared memory, by hand: pitches that lead to other banks, and what a block has of each axis."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpuconv.cuda.conv.direct import bands
from gpuconv.cuda.conv.direct import channels as channels_plan
from gpuconv.cuda.conv.direct import rows as rows_plan
from gpuconv.cuda.conv.direct.bands_tile import BandAxis, BandForm, BandTile, BandView
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import interleaved, matrix, mma_tile, pointwise
from gpuconv.cuda.conv.gemm.grouped_tile import GroupedTile, GroupedWork
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import numbers
from gpuconv.cuda.pool import runs, tiles
from gpuconv.cuda.pool.problem import PoolAxis, PoolView
from gpuconv.cuda.pool.runs import WindowRuns
from gpuconv.cuda.pool.tiles import Fetched, Lines, Results
from gpuconv.cuda.weight_grad import tiles as weight_grad_tiles
from gpuconv.cuda.weight_grad.problem import pixels_of_part
from tests.harness.plans import conv_of, problem
from tests.harness.pool_views import changed


def test_numbers_are_rounded_up_to_banks() -> None:
    assert [numbers.whole(number, 4) for number in (0, 1, 4, 5)] == [0, 4, 4, 8]
    assert numbers.congruent(22, 1, 5, 32) == 37
    assert numbers.congruent(37, 1, 5, 32) == 37
    assert numbers.congruent(592, 3, 15, 32) == 613
    assert numbers.congruent(10, 4, 3, 8) == 10  # no multiple of four is odd


WORK = conv_of(
    "float32", batch=2, group=5, channels=7, filters=3,
    x_extent=(9, 40, 50), y_extent=(3, 31, 23), taps=(3, 2, 5), column_strides=(3, 1, 2),
    dilations=(2, 4, 3), pads=(1, 2, 3),
)  # fmt: skip


def form(kernel: int, stride: int) -> rows_plan.RowForm:
    """The form of one filter for a plane of so many taps, and so far apart."""
    kinds = [one for one in rows_plan.FORMS if one.filters == 1 and not one.line]
    return next(one for one in kinds if (one.kernel, one.stride) == (kernel, stride))


def test_a_direct_tile_of_any_taps() -> None:
    """In words: rows are 5 modulo 32 long, three depths 15, and three channels 30, as many threads go on there."""
    tile = rows_plan.RowTile(WORK, form(0, 0), threads=(2, 3, 5), groups=2, filter_tiles=2, step=3)
    assert tile.extent == (8, 16, 21)
    assert tile.pitches == (11, 37, 613, 4906)
    assert tile.fields()["weights"] == 2 * 3 * 4906 + 16 * 9 * 4
    assert tile.shared_bytes == 4 * (tile.fields()["weights"] + 2 * 2 * 148)
    names = ("phase_pitch", "row_pitch", "depth_pitch", "channel_pitch", "weights")
    assert [tile.fields()[name] for name in names] == [11, 37, 613, 4906, tile.fields()["weights"]]
    # Powers of two of threads that copy 21 columns by one, two and four, and 16 rows.
    assert (tile.fields()["lanes"], tile.fields()["row_lanes"]) == ([5, 4, 3], 4)
    assert replace(tile, threads=(2, 3, 8)).fields()["lanes"] == [5, 4, 3]  # 27, 14 and 7
    assert replace(tile, threads=(2, 3, 12)).fields()["lanes"] == [6, 5, 4]  # 35, 18 and 9
    assert replace(tile, threads=(1, 1, 128)).fields()["lanes"] == [7, 7, 7]  # of 128
    double = replace(tile, view=replace(WORK, dtype="float64"), threads=(2, 3, 5))
    # Two words in a vector: two rows, so that (6 - 1) * 1 + 4 + 1 rows are met, and 16 banks.
    assert double.extent == (8, 10, 21)
    assert double.pitches == (11, 37, 373, 2986)
    assert double.shared_bytes == 8 * (2 * 3 * 2986 + 16 * 9 * 2 + 2 * 2 * 110)


def test_a_direct_tile_of_three_by_three_taps() -> None:
    work = replace(WORK, channels=1, taps=(1, 3, 3), column_strides=(1, 2, 2), dilations=(1, 1, 1), pads=(0, 1, 1))
    tile = rows_plan.RowTile(work, form(3, 2), threads=(1, 3, 6), groups=2, filter_tiles=1, step=1)
    assert (tile.lead, tile.per_thread) == (3, (1, 7, 4))
    assert tile.extent == (1, 43, 56)
    assert tile.pitches == (48, 100, 4328, 4328)  # even columns begin in bank 0, odd ones in bank 16
    assert (tile.row_taps, tile.fields()["filter_weights"], tile.fields()["filter_pitch"]) == (4, 12, 12)
    assert tile.blocks == 3 * 2 * 1 * 3 * 3 * 2
    rows = rows_plan.RowTile(
        replace(work, taps=(1, 3, 5), column_strides=(1, 1, 1), pads=(0, 1, 6)), form(0, 1), (1, 2, 3), 2, 1, 1
    )
    assert (rows.lead, rows.row_taps, rows.extent) == (2, 8, (1, 16, 20))
    assert rows.fields()["filter_weights"] == 3 * 8
    assert rows.fields()["filter_pitch"] == 4 * 7


BAND = BandTile(
    BandView(
        dtype="float32", copies=2, channels=20, filters=3, depths=5, planes=1,
        height=BandAxis(phases=2, taps=3, kernel=6, positions=31, start=-1, origin=-2),
        width=BandAxis(phases=3, taps=5, kernel=13, positions=44, start=-3, origin=-4),
        line=False, vectors=4, lines=4,
    ),
    BandForm(3, 3, 3, 4, 112, 0.9),
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
    last = replace(BAND, view=replace(BAND.view, vectors=-4))
    assert last.channel_pitch == 4 * 77
    assert replace(last, jobs=4).channel_pitch == 4 * 77
    assert replace(BAND, jobs=4).channel_pitch == 4 * 77  # a warp has one channel
    assert replace(BAND, threads=(3, 8)).row_pitch == 40  # whole rows of banks: nothing to turn
    single = replace(BAND.view.width, phases=1)
    assert replace(BAND, view=replace(BAND.view, width=single)).plane == 4 * 48  # 45, and on to bank 0


def test_a_line_is_folded_into_rows() -> None:
    flat = BandAxis(phases=1, taps=1, kernel=1, positions=1, start=0, origin=0)
    line = replace(BAND, view=replace(BAND.view, height=flat, width=replace(BAND.view.width, positions=444), line=True))
    assert (line.fold, line.blocks_by_axis) == (20, (3, 1))  # 23 rows of 20


def test_a_tile_of_channels() -> None:
    work = conv_of(
        "float32", batch=2, group=33, channels=1, filters=2,
        x_extent=(9, 140, 150), y_extent=(3, 31, 23), taps=(2, 5, 3), column_strides=(3, 4, 6), dilations=(1, 6, 4),
        pads=(1, 2, 3),
    )  # fmt: skip
    tile = channels_plan.ChannelTile(work, (2, 4, 4), True, vectors=7, rows=2, columns=3, walk=2)
    rows = channels_plan._OUTPUTS // 4
    assert tile.per_thread == (rows, 4)
    assert (tile.apart, tile.advance) == ((3, 2), 2)  # rows 12 apart share every second tap, columns every third
    assert tile.tiles == (-(-31 // (3 * rows)) * 3, 6)
    assert tile.filters == 66
    assert tile.blocks_by_axis == (3, 2, -(-tile.tiles[0] // 4))
    assert tile.blocks == 3 * 2 * tile.blocks_by_axis[2] * 3 * 2
    assert (tile.pitch, tile.step, tile.parts) == (32, 5, 1)
    assert tile.shared_bytes == 4 * 32 * 5 * 3
    large = replace(tile, view=replace(work, taps=(2, 65, 70)))
    assert large.step == channels_plan._WEIGHT_BYTES // (4 * 32 * 70)
    assert large.parts == -(-65 // large.step)
    assert large.shared_bytes == 4 * 32 * large.step * 70
    assert replace(tile, form=(0, 1, 4)).apart == (3, 1)


# Windows of three taps along each axis, with their gaps of 5, 7 and 9 elements.
ROWS = PoolView(
    image=PoolAxis(2, 2, stride=1, pad=0, reach=1, dilation=1, x=12000, y=3520),
    channel=PoolAxis(5, 5, stride=1, pad=0, reach=1, dilation=1, x=2400, y=352),
    depth=PoolAxis(3, 4, stride=1, pad=3, reach=5, dilation=2, x=800, y=88),
    height=PoolAxis(19, 8, stride=2, pad=1, reach=7, dilation=3, x=40, y=11),
    width=PoolAxis(37, 11, stride=3, pad=2, reach=9, dilation=4, x=1, y=1),
)


def test_what_a_tile_of_a_pool_fetches() -> None:
    """In shared memory, rows and slices lie as far off whole vectors as they do in x."""
    found = tiles._fetched(ROWS, 1, 4, 5, 8, by_vectors=True)
    assert found == Fetched(13, 21, 2, False, False, 32, 424)  # 28 and on to 40 modulo 8; 423, and on to 2 * 800
    assert tiles._fetched(ROWS, 2, 4, 5, 8, by_vectors=True) == Fetched(19, 37, 2, True, False, 37, 1416)
    whole = changed(ROWS, x_extent=(3, 19, 40))
    assert tiles._fetched(whole, 1, 4, 5, 8, by_vectors=True) == Fetched(13, 32, 2, False, True, 40, 528)
    assert tiles._fetched(whole, 1, 4, 5, 8, by_vectors=False) == Fetched(13, 21, 2, False, False, 32, 424)
    # All columns, of rows that are neighbours in x: 13 rows of 40.
    assert tiles._fetched(whole, 1, 4, 11, 8, by_vectors=True) == Fetched(13, 40, 2, True, True, 40, 528)
    assert tiles._fetched(ROWS, 1, 4, 11, 8, by_vectors=True).merged is False


def test_the_lines_that_a_tile_of_a_pool_keeps() -> None:
    along = WindowRuns(2, 0, 10)
    assert tiles._lines(ROWS, along, False, 8, 2) == Lines(36, 12, 74, 42)  # 10 modulo the banks' 64 and 32
    assert tiles._lines(ROWS, along, True, 8, 2) == Lines(36, 16, 74, 74)  # 43 of whole vectors, wherever they begin
    assert tiles._lines(ROWS, along, False, 16, 1) == Lines(36, 12, 138, 42)  # 10 modulo 128 banks' elements
    assert tiles._lines(ROWS, along, False, 2, 8) == Lines(36, 12, 42, 42)
    near = changed(ROWS, stride=(1, 2, 1))
    assert tiles._lines(near, along, True, 8, 2) == Lines(18, 32, 32, 42)
    assert tiles._lines(near, along, False, 8, 2) == Lines(18, 18, 74, 42)


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
    assert results(ROWS, 1, 5) == Results(False, 19, 5)  # 12, and on to 11 modulo 8
    assert results(ROWS, 2, 11).merged is False  # planes of several slices
    flat = changed(ROWS, y_extent=(1, 8, 11), y_strides=(440, 88, 999, 11))
    assert results(flat, 2, 11) == Results(True, 11, 11)
    assert results(changed(flat, y_strides=(440, 89, 999, 11)), 2, 11).merged is False
    assert results(changed(flat, y_strides=(441, 88, 999, 11)), 2, 11).merged is False
    assert results(changed(flat, y_strides=(441, 88, 999, 11), images=(1,)), 2, 11).merged is True
    assert results(changed(flat, y_strides=(440, 88, 999, 12)), 2, 11).merged is False
    assert results(changed(flat, y_strides=(440, 88, 999, 12)), 1, 11).merged is False


# ---------------------------------------------------------------- bands and their problems


def lifted(operator: str, x: tuple[int, ...], w: tuple[int, ...], **more: Any) -> Problem:
    return problem(operator, x, w, "float32", **more).lifted


def test_bands_of_a_problem_by_hand() -> None:
    one = lifted("conv", (2, 6, 5, 31, 44), (6, 3, 2, 4, 7), group=2, pads=[1, 2, 3, 0, 1, 2])
    found = bands._view(one)
    assert (found.copies, found.channels, found.filters, found.depths, found.planes) == (4, 3, 3, 5, 2)
    assert found.height == BandAxis(phases=1, taps=4, kernel=4, positions=31, start=-2, origin=0)
    assert found.vectors == 4
    # From 3 before x, which is one after a vector's beginning.
    assert found.width == BandAxis(phases=1, taps=7, kernel=7, positions=43 + 1, start=-4, origin=-1)
    assert found.line is False


def test_bands_of_a_transposed_problem_by_hand() -> None:
    one = lifted("conv_transpose", (2, 6, 5, 7, 16), (6, 2, 3, 5, 4), strides=[2, 3, 4], pads=[0, 4, 6, 1, 2, 1])
    found = bands._view(one)  # y (2, 2, 10, 17, 57)
    assert one.y_shape == (2, 2, 10, 17, 57)
    assert (found.copies, found.planes, found.depths) == (2, 2, 10)
    # Of five taps a phase meets two at most. Output -1 would be the first of a position that begins whole strides.
    assert found.height == BandAxis(phases=3, taps=2, kernel=5, positions=6, start=0, origin=-1)
    assert found.width == BandAxis(phases=4, taps=1, kernel=4, positions=15 + 1, start=0, origin=-2 - 4)


def test_an_axis_alone_is_a_line() -> None:
    strided = lifted("conv_transpose", (2, 6, 21), (6, 2, 5), strides=[3])
    assert bands._view(strided).line is True
    assert bands._view(lifted("conv", (2, 6, 21), (2, 6, 5))).line is True
    assert bands._view(lifted("conv", (2, 6, 1, 21), (2, 6, 1, 5))).line is True
    assert bands._view(lifted("conv", (2, 6, 2, 21), (2, 6, 1, 5))).line is False
    assert bands._view(lifted("conv", (2, 6, 2, 21), (2, 6, 2, 5))).line is False
    assert bands._view(lifted("conv", (2, 6, 1, 21), (2, 6, 2, 5), pads=[1, 0, 0, 0])).line is False
    assert bands._view(lifted("conv_transpose", (2, 6, 1, 21), (6, 2, 1, 5), strides=[2, 3])).line is True


@pytest.mark.parametrize(
    ("x", "x_strides", "dtype", "vectors"),
    [
        ((2, 8, 3, 5, 12), (1440, 180, 60, 12, 1), "float32", 4),
        ((2, 8, 3, 5, 12), (1440, 180, 60, 12, 1), "float16", 4),  # of sums
        ((2, 8, 3, 5, 12), (1440, 180, 60, 12, 1), "float64", 2),
        ((2, 8, 3, 5, 14), (1680, 210, 70, 14, 1), "float32", 1),
        ((2, 8, 3, 5, 12), (1442, 180, 60, 12, 1), "float32", 1),
        ((1, 8, 3, 5, 12), (1442, 180, 60, 12, 1), "float32", 4),
        ((2, 8, 3, 5, 12), (1440, 182, 60, 12, 1), "float32", 1),
        ((2, 8, 3, 5, 12), (1440, 180, 62, 12, 1), "float32", 1),
        ((2, 8, 3, 5, 12), (1440, 180, 60, 14, 1), "float32", 1),
        ((2, 8, 3, 5, 12), (1440, 1, 480, 96, 8), "float32", -4),
        ((2, 8, 3, 5, 12), (1440, 1, 480, 96, 8), "float16", -8),
        ((2, 8, 3, 1, 12), (288, 1, 96, 96, 8), "float32", -4),
        ((2, 8, 3, 5, 1), (120, 1, 40, 8, 8), "float32", 1),  # a column is a row of one
        ((2, 6, 3, 5, 12), (1080, 1, 360, 72, 6), "float32", 1),
        ((2, 8, 3, 5, 12), (1440, 1, 480, 96, 9), "float32", -1),
        ((2, 8, 3, 5, 12), (1440, 1, 480, 98, 8), "float32", -1),
        ((2, 8, 3, 5, 12), (1440, 1, 482, 96, 8), "float32", -1),
        ((2, 8, 3, 5, 12), (1442, 1, 480, 96, 8), "float32", -1),
        ((2, 8, 3, 5, 12), (2880, 2, 960, 192, 16), "float32", 1),  # channels are no neighbours
    ],
)
def test_what_bands_copy_at_once(x: tuple[int, ...], x_strides: tuple[int, ...], dtype: str, vectors: int) -> None:
    one = problem("conv", x, (1, x[1], 1, 1, 1), dtype, x_strides=x_strides)
    assert bands._vectors(one) == vectors


# ---------------------------------------------------------------- tiles of several groups


def grouped(tile: tuple[int, int, int], **more: Any) -> GroupedTile:
    """A tile of y (3, 160, 4, 10, 9), each image of which begins eleven rows of x after the one before."""
    of_problem = {
        "columns": (4, 10, 9), "column_strides": (2, 3, 1), "batch": 3, "phases": (2, 1, 3), "group": 6, "itemsize": 2,
        "y_strides": (360 * 32, 1, 90 * 32, 9 * 32, 32), "y_shape": (3, 32, 4, 10, 9), "strides": (),
    }  # fmt: skip
    of_problem |= {name: value for name, value in more.items() if name in of_problem}
    work = {
        "reaches": (2, 4, 6), "image_inputs": 11, "m_tiles": 2, "filters": 16, "weight_bytes": 4096, "pitch": 48,
    }  # fmt: skip
    work |= {name: value for name, value in more.items() if name in work}
    of: Any = SimpleNamespace(**of_problem)
    form, arithmetic = more.get("form", SimpleNamespace(warp_n=64, warps=8)), SimpleNamespace()
    seen = GroupedWork(of, arithmetic, form, together=2)
    vars(seen).update(work)  # what it would work out
    return GroupedTile(seen, tile, 5)


def test_a_tile_of_groups() -> None:
    tile = grouped((7, 3, 4))
    assert tile.box == (6 * 2 + 2 * 3 + 2 + 1, 2 * 3 + 4 + 1, 3 + 6 + 1)  # into a third image, three rows apart
    assert grouped((8, 3, 4)).box[0] == 7 * 2 + 3 + 3  # two whole images
    assert grouped((2, 3, 4)).box[0] == 2 + 3  # half an image
    assert grouped((3, 3, 4)).box[0] == 2 * 2 + 3 + 3
    assert grouped((7, 3, 4), image_inputs=8).box[0] == 6 * 2 + 3
    assert grouped((7, 3, 4), image_inputs=5).box[0] == 6 * 2 + 3
    assert tile.counts == (2, 4, 3)
    assert tile.blocks == 2 * 6 * 3 * 5
    assert tile.pitches == (130, 12, 1)  # three times 12 is 4 modulo 8, twice 130 as much as 9 * 12
    assert grouped((7, 3, 5)).pitches == (10 * 15 + 11, 15, 1)
    assert tile.shared_bytes == 4096 + 21 * 130 * 48
    assert grouped((7, 3, 4), pitch=1).shared_bytes == 4096 + 8 * 16 * 40 * 4
    wide = {"pitch": 1, "form": SimpleNamespace(warp_n=128, warps=8)}
    assert grouped((7, 3, 4), **wide).shared_bytes == 4096 + 8 * 16 * 136 * 2
    assert grouped((7, 3, 4), **wide, itemsize=4).shared_bytes == 4096 + 8 * 128 * (16 * 4 + 16)


@pytest.mark.parametrize(
    ("more", "way"),
    [
        ({}, "chunks"),
        ({"filters": 24}, "single"),
        ({"y_strides": (360 * 32, 1, 90 * 32, 9 * 32, 33)}, "single"),
        ({"y_strides": (360 * 32 + 4, 1, 90 * 32, 9 * 32, 32)}, "single"),
        ({"y_strides": (360 * 32, 2, 90 * 32, 9 * 32, 32)}, "single"),
        ({"y_strides": (12800, 400, 100, 10, 1), "columns": (4, 10, 8)}, "pairs"),
        ({"y_strides": (12800, 400, 100, 10, 1)}, "single"),  # nine columns
        ({"y_strides": (12800, 400, 100, 11, 1), "columns": (4, 10, 8)}, "single"),
        ({"y_strides": (12800, 401, 100, 10, 1), "columns": (4, 10, 8)}, "single"),
        ({"y_strides": (12801, 400, 100, 10, 1), "columns": (4, 10, 8)}, "single"),
        ({"y_strides": (12800, 400, 100, 10, 2), "columns": (4, 10, 8)}, "single"),
        ({"y_strides": (12800, 400, 100, 10, 1), "columns": (4, 10, 8), "strides": (1, 1, 2)}, "single"),
        ({"y_strides": (12800, 400, 100, 10, 1), "columns": (4, 10, 8), "strides": (1, 1, 1)}, "pairs"),
    ],
)
def test_how_a_warp_of_groups_writes(more: dict[str, Any], way: str) -> None:
    assert grouped((7, 3, 4), **more).outputs == way


def test_tiles_on_tensor_cores_are_whole_fragments_of_whole_warps() -> None:
    tiles: list[Any] = [tile for group in mma_tile.TILES.values() for tile in group]
    tiles += [tile for ways in matrix.TILES.values() for group in ways.values() for tile in group]
    tiles += [tile for group in weight_grad_tiles.TILES.values() for tile in group]
    assert len(tiles) > 30
    for tile in tiles:
        assert (tile.block_m % tile.warp_m, tile.block_n % tile.warp_n) == (0, 0), tile
        assert (tile.warp_m % 16, tile.warp_n % 8) == (0, 0), tile
        assert tile.warp_m * tile.warp_n // 32 <= 128, tile  # sums of a thread, of its 255 registers
        pipelined: Any = getattr(tile, "forms", (tile,))
        assert min(one.stages for one in pipelined) >= 2, tile  # one is fetched while another one is multiplied


def test_tiles_of_ffma_are_whole_threads_of_whole_warps() -> None:
    found = [tile for group in gemm_base.TILES.values() for tile in group]
    found += [tile for ways in pointwise.TILES.values() for group in ways.values() for tile in group]
    found += [tile for group in interleaved._TILES.values() for tile in group]
    assert len(found) > 15
    for tile in found:
        assert (tile.block_m % tile.thread_m, tile.block_n % tile.thread_n) == (0, 0), tile
        assert (tile.threads % 32, tile.block_k % 8) == (0, 0), tile
        assert tile.thread_m * tile.thread_n <= 64, tile  # sums of a thread, of its 255 registers


def test_slices_have_one_tap_each_where_they_divide_the_channels() -> None:
    taken = [channels for channels in range(50) if gemm_base.MIDDLE.form_of(channels)]
    assert taken == [16, 32, 48]  # of no channels there is no slice
    assert not replace(gemm_base.MIDDLE, uniform=False).form_of(16)


# ---------------------------------------------------------------- gradients with respect to weights


def weights_of(**more: Any) -> Any:
    """One tap: x (2, 24, 5, 6, 8) and dy (2, 16, 5, 6, 8) in two groups, of which pixels follow each other."""
    found: dict[str, Any] = {
        "x_shape": (2, 24, 5, 6, 8), "y_shape": (2, 16, 5, 6, 8), "w_shape": (16, 12, 1, 1, 1),
        "kernel_shape": (1, 1, 1), "pads_begin": (0, 0, 0), "strides": (1, 1, 1), "group": 2,
    }  # fmt: skip
    arrays: dict[str, Any] = {"x_strides": (5760, 240, 48, 8, 1), "dy_strides": (3840, 240, 48, 8, 1)}
    found |= {name: value for name, value in more.items() if name in found}
    arrays |= {name: value for name, value in more.items() if name in arrays}
    dtype = more.get("dtype", "float16")
    arrays |= {"dtype": dtype, "itemsize": 4 if dtype == "float32" else 2, "filters": 8}
    return SimpleNamespace(geometry=SimpleNamespace(**found), **arrays)


@pytest.mark.parametrize(
    ("more", "x_in_rows", "dy_in_rows"),
    [
        ({}, True, True),
        ({"kernel_shape": (1, 2, 1)}, False, True),
        ({"kernel_shape": (2, 1, 1)}, False, True),
        ({"pads_begin": (0, 0, 1)}, False, True),
        ({"strides": (1, 2, 1)}, False, True),
        ({"x_shape": (2, 24, 5, 6, 9)}, False, True),
        ({"x_strides": (5760, 240, 48, 9, 1)}, False, True),
        ({"x_strides": (5760, 240, 48, 16, 2)}, False, True),
        ({"x_strides": (9999, 999, 48, 8, 1)}, True, True),
        ({"dy_strides": (3840, 240, 49, 8, 1)}, True, False),
        ({"dy_strides": (3840, 1, 768, 128, 16)}, True, False),
        ({"x_shape": (2, 24, 1, 1, 8), "y_shape": (2, 16, 1, 1, 8), "strides": (3, 2, 1)}, True, True),
        ({"x_shape": (2, 24, 1, 1, 1), "y_shape": (2, 16, 1, 1, 1), "x_strides": (24, 1, 7, 7, 7)}, True, True),
    ],
)
def test_which_pixels_follow_each_other(more: dict[str, Any], x_in_rows: bool, dy_in_rows: bool) -> None:
    one = weights_of(**more)
    assert (weight_grad_tiles.x_in_rows(one), weight_grad_tiles.dy_in_rows(one)) == (x_in_rows, dy_in_rows)


LAST: dict[str, Any] = {"w_shape": (16, 8, 1, 1, 1), "x_shape": (2, 16, 5, 6, 8), "x_strides": (3840, 1, 768, 128, 16)}
LAST["dy_strides"] = LAST["x_strides"]


@pytest.mark.parametrize(
    ("more", "dy", "both"),
    [
        ({}, True, True),
        ({"w_shape": (16, 4, 1, 1, 1)}, True, False),
        ({"w_shape": (16, 4, 1, 1, 1), "dtype": "float32"}, True, True),
        ({"x_strides": (3840, 2, 768, 128, 16)}, True, False),
        ({"x_strides": (3844, 1, 768, 128, 16)}, True, False),
        ({"x_strides": (3840, 1, 768, 128, 20)}, True, False),
        ({"x_strides": (3844, 1, 768, 128, 16), "x_shape": (1, 16, 5, 6, 8)}, True, True),
        ({"dy_strides": (3840, 1, 772, 128, 16)}, False, False),
        ({"dy_strides": (3840, 1, 772, 128, 16), "dtype": "float32"}, True, True),
    ],
)
def test_which_pixels_consist_of_chunks(more: dict[str, Any], dy: bool, both: bool) -> None:
    one = weights_of(**{**LAST, **more})
    in_chunks = weight_grad_tiles.dy_in_chunks(one), weight_grad_tiles.x_in_chunks(one)
    assert (in_chunks[0], all(in_chunks)) == (dy, both)


def test_columns_are_filled_up_to_whole_units() -> None:
    one = weights_of(w_shape=(16, 10, 2, 3, 5))
    for tile in weight_grad_tiles.TILES["HalfProducts"]:
        of_tap = 16 if tile.gather == "channels" else 12
        assert weight_grad_tiles.of_tap(one, tile) == of_tap  # 8 channels are copied at once, or units of 4 are filled
        assert weight_grad_tiles.columns(one, tile) == 30 * of_tap
        assert weight_grad_tiles.grid(one, tile) == (1, -(-30 * of_tap // tile.block_n))
    assert [pixels_of_part(7 * 32 + 1, 32, parts) for parts in (1, 2, 3, 8)] == [8 * 32, 4 * 32, 3 * 32, 32]
