"""Small rules of the planners by hand, on problems no two of whose extents, strides, pads or dilations are equal."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpuconv.cuda import complex as complex_plan
from gpuconv.cuda.conv.direct import few
from gpuconv.cuda.conv.direct.rows import FORMS, RowTile
from gpuconv.cuda.conv.gemm import filter_rows, mma, runs, stem, stem_tile
from gpuconv.cuda.conv.gemm.mma_tile import MmaForm
from gpuconv.cuda.conv.gemm.runs import Runs as Pieces
from gpuconv.cuda.conv.gemm.stem_tile import StemBox
from gpuconv.cuda.conv.wgmma import sources
from gpuconv.cuda.passes import channels_last as channels_last_pass
from gpuconv.cuda.passes.channels_last import Planes
from gpuconv.cuda.plan import limits
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.pool import patches
from gpuconv.cuda.pool import problem as pool_problem
from gpuconv.cuda.pool.runs import WindowRuns
from gpuconv.rules import geometry as geometries
from tests.cuda.pool.problems import made
from tests.harness.plans import conv_of, fields, problem

Ints = tuple[int, ...]


def kept(plan: Plan, role: str) -> int:
    """The bytes of what a plan keeps in this role."""
    (found,) = [space.bytes for space in plan.spaces if space.role == role]
    return found


def test_what_a_multiprocessor_multiplies_per_clock_is_a_power_of_two() -> None:
    """By the programming guide's table of throughput, and the datasheets' of tensor cores."""
    lanes = {"80": (64, 32), "86": (128, 2), "87": (128, 2), "89": (128, 2), "90": (128, 64), "100": (128, 64)}
    for architecture, expected in (lanes | {"120": (128, 2)}).items():
        device = limits.representative(architecture)
        assert (device.lanes, device.double_lanes) == expected
        assert [count & count - 1 for count in device.tensor_lanes] == [0, 0, 0]
        half, single, double = device.tensor_lanes
        assert half == 2 * single > double


# ---------------------------------------------------------------- bands of a stem

# K: three channels of 2 x 3 x 4 taps; y (2, 8, 7, 3, 2).
STEM = problem(
    "conv", (2, 6, 5, 7, 9), (8, 3, 2, 3, 4), "float32",
    group=2, strides=[1, 2, 3], dilations=[2, 1, 3], pads=[1, 0, 2, 3, 1, 4],
)  # fmt: skip
SHORT: dict[str, Any] = {"strides": [2, 1, 1], "dilations": [1, 2, 1], "pads": [0, 1, 3, 1, 0, 2]}
TURNED: dict[str, Any] = {**SHORT, "strides": [1, 3, 2]}


def test_a_band_s_box_by_hand() -> None:
    """4 x 8 x 8 outputs, in 6 x 17 x 31 inputs: of rows at any address, of columns and of channels side by side."""
    assert stem_tile._box(STEM, (2, 3, 3)) == StemBox(
        bits=(2, 3, 3), tiles=(2, 1, 1), band=(6, 17, 31), runs=0, lead=0, chunks=8, rows=6 * 17 * 3,
        pitch=(32 * 17 * 6, 32 * 17, 32), shift=0, copies=1, copy_bytes=4 * 3 * 32 * 17 * 6,
    )  # fmt: skip
    last = problem("conv", (2, 4, 5, 7, 16), (8, 4, 2, 3, 3), layout="NHWC", **SHORT)  # y (2, 8, 3, 4, 19)
    assert stem_tile._box(last, (2, 3, 3)) == StemBox(  # four channels of a column; three taps, filled up to two pairs
        bits=(2, 3, 3), tiles=(1, 1, 3), band=(8, 12, 11), runs=2, lead=4, chunks=6, rows=8 * 12,
        pitch=(16 * 12 * 8, 16 * 12, 16), shift=0, copies=2, copy_bytes=2 * 4 * 16 * 12 * 8,
    )  # fmt: skip
    columns = problem("conv", (2, 3, 5, 7, 24), (8, 3, 2, 3, 3), **TURNED)  # y (2, 8, 5, 2, 14)
    assert stem_tile._box(columns, (1, 4, 3)) == StemBox(
        bits=(1, 4, 3), tiles=(3, 1, 2), band=(3, 50, 18), runs=1, lead=5, chunks=3, rows=3 * 50 * 3,
        pitch=(24 * 50 * 3, 24 * 50, 24), shift=1, copies=1, copy_bytes=2 * 3 * 24 * 50 * 3,
    )  # fmt: skip
    wide = replace(columns, dtype="float32", pads=(0, 1, 2))
    assert stem_tile._box(wide, (1, 4, 3)).lead == 2  # of vectors of four
    assert stem_tile._box(wide, (1, 4, 3)).band == (3, 50, 17)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ((1, 1, 9), {(0, 0, 8)}),
        ((1, 2, 9), {(0, 8 - bits, bits) for bits in range(3, 9)}),
        ((2, 1, 9), {(8 - bits, 0, bits) for bits in range(3, 9)}),
        ((2, 2, 9), {(8 - rows - bits, rows, bits) for bits in range(3, 9) for rows in range(9 - bits)}),
    ],
)
def test_boxes_go_along_axes_of_several_outputs(columns: Ints, expected: set[Ints]) -> None:
    found = [box.bits for box in stem_tile.boxes(replace(STEM, columns=columns))]
    assert set(found) == expected
    assert len(found) == len(expected)


def test_the_struct_of_a_band() -> None:
    (kernel,) = stem_tile.kernels(STEM)
    assert kernel.chunk == 1  # taps of a row are no neighbours
    found = stem._plan(STEM, kernel, stem_tile._box(STEM, (2, 3, 3)), 3)
    struct = fields(found.launches[-1])
    common, taps = struct.pop("common"), struct.pop("taps")
    assert found.launches[-1].grid == (2 * 4, 1, 1)  # groups, and two boxes of either image
    assert kept(found, "packed") == 2 * 72 * 4 * 4  # groups, rows of K, filters
    names = ("channels", "filters", "x_batch", "x_channel", "x_extent", "x_stride", "y_batch", "y_channel", "y_stride")
    assert [common[name] for name in names] == [
        1, 4, 1890, 945, [3, 5, 7, 9], [315, 63, 9, 1], 336, 42, [0, 6, 2, 1],
    ]  # fmt: skip
    assert [common[name] for name in ("stride", "extent", "m_tiles", "n_tiles", "all_rows")] == [
        [1, 1, 2, 3], [1, 7, 3, 2], 1, 4, 72,
    ]  # fmt: skip
    assert [taps[name] for name in ("start", "advance", "row", "count", "rows")] == [
        [0, -1, 0, -2], [1, 2, 1, 3], [24, 12, 4, 1], [3, 2, 3, 4], 72,
    ]  # fmt: skip
    assert struct == {
        "tiles": [2, 1, 1],
        "row_bits": 3,
        "column_bits": 3,
        "runs": 0,
        "lead": 0,
        "chunks": 8,
        "band_rows": 17,
        "band_depths": 6,
        "band_columns": 31,
        "units": 8 * 306,
        "pitch": [3264, 544, 32],
        "shift": 0,
        "copies": 1,
        "copy_bytes": 39168,
        "band_bytes": 39168,
        "steps_of_row": 4,
        "steps": 72,
        "step_bytes": 12,  # three elements
        "channel_vectors": 0,
        "pixel_vectors": 0,
        "passes": 3,
    }


def test_channels_are_an_axis_whose_taps_they_all_are() -> None:
    w_strides, x_strides = (2880, 720, 240, 80, 20, 4), (9450, 1575, 315, 45, 5)
    seen = stem._with_channels_as_axis(replace(STEM, w_strides=w_strides, x_strides=x_strides))
    assert seen == replace(
        STEM,
        channels=1,
        taps=(3, 2, 3, 4),
        x_shape=(2, 2, 3, 5, 7, 9),
        y_shape=(2, 8, 1, 7, 3, 2),
        x_strides=(9450, 4725, 1575, 315, 45, 5),
        y_strides=(336, 42, 0, 6, 2, 1),
        w_strides=(2880, 720, 0, 240, 80, 20, 4),
        columns=(1, 7, 3, 2),
        column_strides=(1, 1, 2, 3),
        dilations=(1, 2, 1, 3),
        pads=(0, 1, 0, 2),
    )


# ---------------------------------------------------------------- other views of a problem


def test_a_transposed_conv_of_its_stride_is_a_product_of_pixels() -> None:
    one = problem("conv_transpose", (2, 6, 5, 7, 9), (6, 4, 2, 3, 4), "float32", group=2, strides=[2, 3, 4])
    assert filter_rows.rows_of(one) == replace(
        one,
        filters=4 * 24,
        taps=(1, 1, 1),
        w_strides=(288, 1, 96, 1, 1, 1),  # a group has three channels of 96 filters and taps
        columns=(5, 7, 9),
        pads=(0, 0, 0),
        phases=(),
        strides=(2, 3, 4),
    )


FLAT = problem("conv", (2, 6, 5, 7, 9), (8, 3, 1, 1, 1), group=2)


def test_pixels_behind_each_other_are_one_axis() -> None:
    pixels = 5 * 7 * 9
    seen = {
        "taps": (1,), "x_shape": (2, 6, pixels), "y_shape": (2, 8, pixels), "columns": (pixels,),
        "column_strides": (1,), "dilations": (1,), "pads": (0,),
    }  # fmt: skip
    apart = replace(
        FLAT, x_strides=(9450, 1, 378, 54, 6), y_strides=(2520, 1, 504, 72, 8), w_strides=(12, 3, 1, 7, 7, 7)
    )
    for one, x_step, y_step, w in ((FLAT, 1, 1, (12, 3, 1)), (apart, 6, 8, (12, 3, 1))):
        steps = {"x_strides": (*one.x_strides[:2], x_step), "y_strides": (*one.y_strides[:2], y_step)}
        assert one.flat == replace(one, **seen, **steps, w_strides=(*w, 0))


@pytest.mark.parametrize(
    "more",
    [
        {"taps": (1, 1, 2)},
        {"taps": (2, 1, 1)},
        {"pads": (0, 1, 0)},
        {"columns": (5, 7, 8)},
        {"columns": (4, 7, 9)},
        {"column_strides": (1, 1, 2)},
        {"column_strides": (2, 1, 1)},
        {"x_strides": (1890, 315, 63, 10, 1)},
        {"x_strides": (1890, 315, 64, 9, 1)},
        {"y_strides": (2520, 315, 63, 10, 1)},
        {"y_strides": (2520, 315, 64, 9, 1)},
    ],
)
def test_other_pixels_are_several(more: dict[str, Any]) -> None:
    assert replace(FLAT, **more).flat is None


@pytest.mark.parametrize(
    ("group", "channels", "more", "fetched"),
    [
        (1, 72, {}, True),
        (1, 8, {}, True),
        (1, 4, {}, False),  # pixels are 8 bytes apart
        (1, 12, {}, False),
        (2, 64, {}, True),
        (2, 72, {}, False),  # the second slice would have the other group's
        (1, 72, {"x_strides": (72 * 315, 2, 72 * 63, 72 * 9, 72)}, False),
        (1, 72, {"x_strides": (72 * 315 + 4, 1, 72 * 63, 72 * 9, 72)}, False),
        (1, 72, {"x_strides": (72 * 315, 1, 72 * 63, 72 * 9 + 4, 72)}, False),
        (1, 72, {"x_strides": (72 * 315, 1, 72 * 63, 72 * 9, 64)}, False),  # they overlap
    ],
)
def test_when_channels_are_fetched_as_they_lie(group: int, channels: int, more: dict[str, Any], fetched: bool) -> None:
    shapes = (2, channels * group, 5, 7, 9), (32 * group, channels, 1, 1, 1)
    one = replace(problem("conv", *shapes, layout="NHWC", group=group), **more)
    assert sources._channels_last(one) is fetched


@pytest.mark.parametrize(
    ("width", "end", "accepted"),
    [
        (10, 0, True),  # two elements that no column needs, and that are no whole piece
        (8, 0, True),
        (8, 4, True),
        (10, 3, False),  # the third column needs both
        (11, 5, False),
    ],
)
def test_runs_end_with_the_last_whole_piece(width: int, end: int, accepted: bool) -> None:
    columns = (width + end - 4) // 4 + 1
    one = problem("conv", (3, 1, 5, width), (7, 1, 2, 4), strides=[3, 4], pads=[1, 0, 0, end])
    rows = (5 + 1 - 2) // 3 + 1
    found = runs.along_w(one, 4)
    if not accepted:
        assert found is None
        return
    gathered = replace(
        one,
        channels=4,
        taps=(2, 1),
        x_shape=(3, 4, 5, width // 4),
        x_strides=(5 * width, 1, width, 4),
        column_strides=(3, 1),
    )
    assert found == Pieces(gathered, one)
    assert one.columns == (rows, columns)


def test_why_a_kernel_on_tensor_cores_reads_as_it_does() -> None:
    one = problem("conv", (3, 5, 5, 6, 12), (7, 5, 2, 3, 4))
    seen, pieces = Pieces(one, one), Pieces(replace(one, channels=4, taps=(5, 3, 2)), one)
    assert mma._reason(seen, MmaForm("rowwise", 32, 4, 1.0)) == (
        "taps found row by row: 5 channels per group, slices of 32"
    )
    assert mma._reason(seen, MmaForm("chunks", 64, 3, 1.0)) == (
        "a tap for every 16 bytes of K: 5 channels per group, slices of 64"
    )
    assert mma._reason(pieces, MmaForm("halves", 64, 3, 1.0)) == (
        "a tap for every 8 bytes of K: runs of 8 elements of x for the taps along W, slices of 64"
    )
    assert mma._reason(seen, MmaForm("scalar", 32, 4, 1.0)) == (
        "one tap per slice of K: 5 channels of a group, filled up to 32, of which 16 are multiplied; "
        "one element of x a copy"
    )
    assert mma._reason(Pieces(replace(one, channels=50), one), MmaForm("vector", 64, 3, 1.0)).endswith(
        "50 channels of a group, filled up to 64; 16 bytes of x a copy"
    )


# ---------------------------------------------------------------- copies with channels last


def planes(images: int, pixels: Ints, x: Ints, x_pixels: Ints, y: Ints) -> Planes:
    return Planes(images, 2, 3, 8, pixels, x, x_pixels, y)


def test_images_whose_pixels_follow_each_other_are_one() -> None:
    follow = planes(4, (5, 7), (35, 420, 140), (7, 1), (35 * 16, 9, 8, 16))
    assert channels_last_pass._together(follow) == replace(
        follow, images=1, pixels=(140,), x=(0, 420, 140), x_pixels=(1,)
    )
    elsewhere = replace(follow, y=(36 * 16, 9, 8, 16))  # their copies do not
    assert channels_last_pass._together(elsewhere) == replace(elsewhere, pixels=(35,), x_pixels=(1,))
    apart = replace(follow, x=(36, 420, 140))
    assert channels_last_pass._together(apart) == replace(apart, pixels=(35,), x_pixels=(1,))
    rows = replace(follow, x_pixels=(8, 1))
    assert channels_last_pass._together(rows) == rows
    single = replace(follow, images=1, groups=1, channels=1)
    assert channels_last_pass._together(single) == replace(single, pixels=(35,), x=(0, 0, 0), x_pixels=(1,))


# ---------------------------------------------------------------- tiles


def test_a_block_of_few_filters_has_the_weights_of_its_channels_within_24_kib() -> None:
    one = problem("conv", (1, 400, 9, 11), (2, 400, 3, 3), "float32")
    assert few._channels_at_once(one, 4) == 24 * 1024 // (9 * 4 * 4)  # 170.7
    assert few._channels_at_once(replace(one, channels=170), 4) == 170
    assert few._channels_at_once(replace(one, channels=99), 4) == 99


WORK = conv_of(
    "float32", batch=2, group=5, channels=7, filters=3,
    x_extent=(9, 40, 50), y_extent=(3, 31, 23), taps=(3, 2, 5), column_strides=(3, 1, 2),
    dilations=(2, 4, 3), pads=(1, 2, 3),
)  # fmt: skip


def test_a_direct_tile_by_hand() -> None:
    any_taps = next(form for form in FORMS if form.stride == 0 and form.filters == 1)
    tile = RowTile(WORK, any_taps, threads=(2, 3, 5), groups=2, filter_tiles=2, step=3)
    found = tile.fields()
    # A thread makes four rows of a column: 2 x 12 x 5 outputs of a block.
    assert found["outputs"] == [2, 12, 5]
    assert (found["spread_row"], found["spread_column"]) == (3, 0)
    assert tile.blocks_by_axis == (2, 3, 5)
    assert (found["filter_blocks"], found["group_blocks"], tile.blocks) == (2, 3, 2 * 3 * 5 * 2 * 3 * 2)
    # (2 - 1) * 3 + 2 * 2 + 1, (12 - 1) * 1 + 1 * 4 + 1 and (5 - 1) * 2 + 4 * 3 + 1 inputs.
    assert found["extent"] == tile.extent == (8, 16, 21)
    staged, _ = tile.work_of_block(tile.groups, tile.filter_tiles, tile.step)
    assert staged == 2 * 3 * 8 * 16 * 21 * 3  # and three times as many for seven channels
    assert found["lanes"] == [5, 4, 3]  # powers of two of threads for 21, 11 and 6 vectors
    assert found["row_lanes"] == 4
    assert (found["lead"], found["row_taps"], tile.row_taps) == (0, 5, 8)  # filled up to whole vectors
    assert (found["step"], found["groups_here"], found["filter_bits"]) == (3, 2, 1)
    assert found["filter_weights"] == 3 * 3 * 2 * 8
    assert found["filter_pitch"] == 4 * 37  # 36 vectors, and one more
    flat = replace(tile, view=replace(WORK, columns=(3, 3, 23)))  # fewer rows than a thread would make
    assert flat.fields()["outputs"] == [2, 3, 20]
    assert (flat.fields()["spread_row"], flat.fields()["spread_column"]) == (0, 5)


def laid_out(problem: pool_problem.PoolProblem, vectors: int, rows: int, columns: int) -> patches.PatchTile:
    pixels = pool_problem.view_of(problem)
    lines = (patches._line(axis, outputs) for axis, outputs in ((pixels.height, rows), (pixels.width, columns)))
    return patches._laid_out(patches._Kept.of(problem, pixels), vectors, *lines)


def test_a_patch_of_a_pool_by_hand() -> None:
    one = made((1, 8, 5, 9, 11), last=True, kernel_shape=[3, 3, 2], strides=[1, 2, 3], dilations=[3, 2, 1],
               pads=[3, 0, 0, 3, 0, 0])  # fmt: skip
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
        lines_at=2 * 7 * 11 * 16,
        places_at=2 * 7 * 11 * 16 + 2 * 14 * 16,
        bytes=2 * 7 * 11 * 16 + 2 * 14 * 16,
    )
    named = replace(one, indices_strides=one.y_strides)  # pairs of channels, and a place of eight bytes for both
    assert laid_out(named, 1, 2, 4).bytes == 2 * 7 * 11 * 8 + 2 * 14 * 8 + 2 * 14 * 8


# ---------------------------------------------------------------- refusals and launches


def test_what_is_added_to_complex_results_takes_one_launch_more() -> None:
    geometry = geometries.conv(
        (2, 6, 9, 8), (8, 3, 2, 5), None, group=2, strides=[2, 1], dilations=[1, 2], pads=[1, 2, 0, 1]
    )
    strides = {"x": (432, 72, 8, 1), "w": (30, 10, 5, 1), "y": (160, 20, 5, 1)}
    hopper = limits.representative("sm_90a").limits

    def planned(**more: Ints) -> Plan:
        return complex_plan.plan("conv", geometry, "complex64", {**strides, **more}, hopper, "ieee")

    alone, added = planned(), [planned(b=(1,)), planned(residual=strides["y"]), planned(b=(1,), residual=strides["y"])]
    assert [len(one.launches) - len(alone.launches) for one in added] == [1, 1, 1]
    assert {role for launch in alone.launches for role, _ in launch.pointers} >= {"w", "expanded", "x", "y"}
    assert kept(alone, "expanded") == 8 * 3 * 2 * 5 * 3 * 4  # three real taps for each weight
    for one, roles in zip(added, ({"y", "b"}, {"y", "residual"}, {"y", "b", "residual"}), strict=True):
        assert {role for role, _ in one.launches[-1].pointers} == roles
    lifted = complex_plan._lifted(geometry, kernel=3, stride=1, pad=1)
    assert (lifted.x_shape, lifted.y_shape, lifted.w_shape) == ((2, 6, 9, 8, 2), (2, 8, 5, 3, 2), (8, 3, 2, 5, 3))
    assert (lifted.kernel_shape, lifted.strides, lifted.dilations) == ((2, 5, 3), (2, 1, 1), (1, 2, 1))
    assert (lifted.pads_begin, lifted.pads_end) == ((1, 2, 1), (0, 1, 1))


# ---------------------------------------------------------------- what explain leaves out


@pytest.mark.parametrize(
    ("filters", "found"),
    [(1, [1]), (64, [1]), (65, [2, 1]), (192, [3, 2, 1]), (321, [6, 3, 2, 1]), (448, [7, 4, 2, 1])],
)
def test_blocks_of_a_stem_make_all_filters_or_half_of_them_and_so_on(filters: int, found: list[int]) -> None:
    one, tile = problem("conv", (1, 3, 9, 9), (filters, 3, 3, 3)), SimpleNamespace(block_m=64)
    assert list(stem_tile.passes(one, tile)) == found  # type: ignore[arg-type]
    assert [stem_tile.parts(one, tile, count) for count in found] == [  # type: ignore[arg-type]
        -(-filters // (64 * count)) for count in found
    ]
