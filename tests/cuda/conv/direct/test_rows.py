"""Direct convolution by rows: accepted problems, forms, coverage of the outputs, and layout in shared memory."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest

from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.direct import base as direct_base
from gpuconv.cuda.conv.direct import rows as rows_plan
from gpuconv.cuda.conv.direct.rows import RowForm, RowTile
from gpuconv.cuda.plan import model
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import representative
from gpuconv.rules import dtypes
from tests.harness import banks, direct_forms
from tests.harness.direct_forms import FORMS
from tests.harness.offered import candidates
from tests.harness.plans import conv_of, problem

HOPPER = representative("sm_90a").limits
Ints = tuple[int, ...]


def made(operator: str, x: Ints, w: Ints, x_strides: Ints | None = None, **attributes: Any) -> correlation.Problem:
    return problem(operator, x, w, "float32", x_strides=x_strides, **attributes)


def planned(*arguments: Any, **keywords: Any) -> dict[str, Plan]:
    """Return the plans of all candidates of this family, by name."""
    problem = made(*arguments, **keywords)
    return {one.name.split("d_")[-1]: one.make() for one in candidates(rows_plan, problem, HOPPER)}


def fields(plan: Plan) -> Any:
    (launch,) = plan.launches
    return np.frombuffer(launch.parameters, launch.variant.layout)[0]


@pytest.mark.parametrize(
    ("w", "attributes", "forms"),
    [
        ((6, 1, 3, 3), {"group": 6}, {"3x3s1", "rows", "taps"}),
        ((12, 1, 3, 3), {"group": 6, "strides": [2, 2]}, {"3x3s2", "taps"}),
        ((6, 1, 3, 3), {"group": 6, "strides": [1, 2]}, {"taps"}),
        ((6, 1, 3, 3), {"group": 6, "dilations": [2, 1]}, {"3x3s1", "rows", "taps"}),
        ((6, 1, 5, 5), {"group": 6, "dilations": [3, 4]}, {"5x5s1", "rows", "taps"}),
        ((6, 1, 3, 3), {"group": 6, "strides": [2, 2], "dilations": [4, 2]}, {"3x3s1", "rows", "taps"}),
        ((6, 1, 3, 3), {"group": 6, "strides": [2, 2], "dilations": [4, 3]}, {"taps"}),  # it is not undilated either
        ((6, 1, 1, 9), {"group": 6, "strides": [2, 1]}, {"rows", "taps"}),  # with one tap, any stride is supported
        ((6, 1, 3, 3), {"group": 6, "dilations": [1, 200], "pads": [0, 200, 0, 200]}, {"taps"}),  # more than threads
        ((24, 1, 3, 3), {"group": 6, "dilations": [2, 2]}, {"3x3s1", "taps"}),
        ((6, 1, 7, 7), {"group": 6}, {"7x7s1", "rows", "taps"}),
        ((6, 1, 1, 9), {"group": 6}, {"rows", "taps"}),
        ((24, 1, 3, 3), {"group": 6}, {"3x3s1", "taps"}),  # four filters each, as many as a thread computes
        ((6, 3, 3, 3), {"group": 2}, {"3x3s1", "taps"}),
        ((6, 3, 5, 5), {"group": 2}, {"taps"}),
    ],
)
def test_forms_follow_taps_strides_and_dilations(w: Ints, attributes: dict[str, Any], forms: set[str]) -> None:
    assert set(planned("conv", (2, 6, 20, 30), w, **attributes)) == forms


@pytest.mark.parametrize("shape", [(2, 6, 30), (2, 6, 1, 30), (2, 6, 1, 1, 30)])
def test_a_single_axis_is_a_line_whatever_the_rank(shape: Ints) -> None:
    found = planned("conv", shape, (6, *[1] * (len(shape) - 2), 5), group=6)
    assert set(found) == {"line", "taps"}
    assert list(fields(found["line"])["y_extent"]) == [1, 1, 26]


def test_a_depth_is_taken_by_every_form() -> None:
    assert "5x5s1" in planned("conv", (1, 2, 9, 20, 30), (2, 1, 3, 5, 5), group=2, strides=[2, 1, 1])


def test_depthwise_layers_are_one_launch_without_a_workspace() -> None:
    plan = conv_families.plan(made("conv", (64, 144, 56, 56), (144, 1, 3, 3), group=144, pads=[1, 1, 1, 1]), HOPPER)
    (launch,) = plan.launches
    assert launch.variant.name == "depthwise_float32_3d_3x3s1"
    assert (plan.bytes_of("workspace"), plan.bytes_of("packed")) == (0, 0)
    assert list(fields(plan)["outputs"]) == [1, 56, 56]  # whole planes: no input is read twice
    assert [role for role, _ in launch.pointers] == ["x", "w", "y"]


def test_the_taps_of_conv_transpose_are_turned_round() -> None:
    # y[q] = sum over t of x[q + 1 - t] w[t]: as Conv, tap 2 - t at q - 1 + t, and so a pad of 2 - 1.
    struct = fields(planned("conv_transpose", (2, 6, 9, 8), (6, 1, 3, 3), group=6, pads=[1, 0, 1, 1])["taps"])
    assert struct["w_first"] == 2 * 3 + 2
    assert list(struct["w_stride"]) == [0, -3, -1]
    assert list(struct["start"]) == [0, -1, -2]
    assert (struct["w_group"], struct["w_filter"], struct["w_channel"]) == (9, 9, 9)


@pytest.mark.parametrize(
    ("w", "pads", "form", "lead"),
    [
        ((6, 1, 3, 3), [1, 1, 1, 1], "3x3s1", 3),  # a reach of 1 to either side: the vector before begins 3 before that
        ((6, 1, 5, 5), [1, 3, 1, 3], "5x5s1", 2),
        ((6, 1, 7, 7), [0, 2, 0, 2], "7x7s1", 1),
        ((6, 1, 2, 9), [1, 2, 1, 2], "rows", 2),  # for any kernel, padding is rounded up to whole vectors
        ((6, 1, 2, 9), [1, 0, 1, 0], "rows", 0),
        ((6, 1, 2, 9), [1, 5, 1, 5], "rows", 3),
        ((6, 1, 2, 9), [1, 5, 1, 5], "taps", 0),
    ],
)
def test_rows_begin_so_many_columns_before_the_padding(w: Ints, pads: list[int], form: str, lead: int) -> None:
    struct = fields(planned("conv", (2, 6, 20, 32), w, group=6, pads=pads)[form])
    assert struct["lead"] == lead
    assert list(struct["start"]) == [0, -pads[0], -pads[1] - lead]


@pytest.mark.parametrize(
    ("x", "strides", "pad", "width"),
    [
        ((2, 4, 8, 16), None, 1, 4),  # with SAME padding inputs and windows are aligned
        ((2, 4, 8, 16), None, 0, 1),
        ((2, 4, 8, 14), None, 1, 2),
        ((2, 4, 8, 15), None, 1, 1),
        ((2, 4, 8, 16), (1024, 128, 18, 1), 1, 2),
        ((2, 4, 8, 16), (1025, 128, 16, 1), 1, 1),
        ((1, 4, 8, 16), (1025, 128, 16, 1), 1, 4),  # with a single image, its stride does not matter
    ],
)
def test_rows_are_copied_in_the_widest_vectors_that_stay_whole(
    x: Ints, strides: Ints | None, pad: int, width: int
) -> None:
    found = planned("conv", x, (4, 1, 3, 3), strides, group=4, pads=[1, pad, 1, pad])
    assert fields(found["3x3s1"])["x_width"] == width


# ---------------------------------------------------------------- tiles


@cache
def some_tiles() -> list[RowTile]:
    random, found = Random(0), []
    for form, dtype, _ in product(FORMS, dtypes.CONV_DTYPES, range(5)):
        some = direct_forms.some(form, random)
        assert some.w_shape is not None
        of = problem("conv", some.x_shape, some.w_shape, dtype, **some.attributes)
        tile = rows_plan.best(direct_base.view_of(of), form, HOPPER)
        assert tile is not None
        found.append(tile)
    return found


def test_blocks_cover_all_outputs_and_hold_no_more_threads_than_there_are() -> None:
    for tile in some_tiles():
        view, (depths, rows, columns), (_, phases, across) = tile.view, tile.view.columns, tile.phases
        blocks = [tile.blocks_by_axis[0], tile.blocks_by_axis[1] / min(phases, rows), tile.blocks_by_axis[2]]
        extents = (depths, -(-rows // phases), columns)
        for extent, number, count, each in zip(extents, blocks, tile.threads, tile.per_thread, strict=True):
            assert (number - 1) * count * each < extent <= number * count * each
        assert tile.threads[2] % across == 0
        assert prod(tile.threads) * tile.groups * tile.filter_tiles <= direct_base.THREADS
        assert tile.step == view.channels or tile.groups == 1
        assert tile.shared_bytes <= HOPPER.shared_bytes_per_block


@pytest.mark.parametrize("form", [form for form in FORMS if form.stride], ids=direct_forms.title)
def test_threads_side_by_side_read_from_other_banks(form: RowForm) -> None:
    """Eight adjacent threads read 16 bytes each, all 128 bytes of the banks, wherever a row or channel ends.

    Exceptions are numbers of phases that are neither odd nor a power of two, and rows of odd length.
    """
    mine = [tile for tile in some_tiles() if tile.form == form and tile.filter_tiles == 1 and tile.threads[0] == 1]
    for tile in (tile for tile in mine if tile.groups == 1 or tile.step == 1):
        d, h, w = tile.threads
        phase, row, depth, channel = (pitch // tile.view.vector for pitch in tile.pitches)
        apart, phases = tile.per_thread[1] * form.stride * row, tile.phases[2]
        at = [
            g * tile.step * channel
            + i * tile.view.column_strides[0] * depth
            + j * apart
            + k // phases
            + k % phases * phase
            for g, i, j, k in product(range(tile.groups), range(d), range(h), range(w))
        ]
        least = 8 if phases % 2 or (phases <= 8 and 8 % phases == 0 and w % 8 == 0) else 4
        for first in range(0, len(at) - 7, 8):
            assert len({number % 8 for number in at[first : first + 8]}) >= least, tile


@pytest.mark.parametrize(
    ("operator", "x", "w", "attributes", "form", "most"),
    [
        ("conv", (64, 288, 41, 41), (288, 1, 7, 7), {"dilations": [4, 4], "pads": [12] * 4}, "7x7s1", 2.9),
        ("conv", (2, 219, 307, 307), (219, 1, 7, 7), {"dilations": [4, 4], "pads": [12] * 4}, "7x7s1", 1.6),
        ("conv", (4, 16, 105, 140), (32, 1, 7, 7), {"dilations": [2, 2], "pads": [6] * 4}, "7x7s1", 1.9),
        ("conv", (8, 256, 64, 64), (256, 1, 7, 7), {"dilations": [3, 3], "pads": [9] * 4}, "7x7s1", 2.2),
        (
            *("conv", (16, 426, 106, 213), (426, 1, 7, 7)),
            *({"strides": [2, 2], "dilations": [4, 4], "pads": [12] * 4}, "7x7s1", 1.2),
        ),
        ("conv", (2, 32, 425, 425), (32, 1, 3, 3), {"dilations": [2, 2], "pads": [2] * 4}, "3x3s1", 1.2),
        ("conv", (4, 512, 3000), (512, 1, 3), {"dilations": [128], "pads": [128, 128]}, "line", 1.2),
        ("conv_transpose", (64, 208, 94, 94), (208, 1, 7, 7), {"dilations": [2, 2], "pads": [6] * 4}, "7x7s1", 1.6),
        ("conv_transpose", (1, 400, 142, 71), (400, 1, 3, 3), {"dilations": [4, 4], "pads": [4] * 4}, "3x3s1", 1.2),
    ],
)
def test_dilated_layers_take_little_more_than_their_memory(
    operator: str, x: Ints, w: Ints, attributes: dict[str, Any], form: str, most: float
) -> None:
    problem = made(operator, x, w, group=x[1], **attributes)
    assert conv_families.plan(problem, HOPPER).launches[-1].variant.name == f"depthwise_float32_3d_{form}"
    seconds = {one.name: one.seconds for one in candidates(rows_plan, problem, HOPPER)}
    floor = model.memory(problem.bytes, HOPPER)
    assert seconds[f"depthwise_float32_3d_{form}"] <= most * floor
    assert seconds[f"depthwise_float32_3d_{form}"] < 0.8 * seconds["depthwise_float32_3d_taps"]


def test_a_block_has_the_rows_of_one_phase_and_the_columns_of_all() -> None:
    attributes = {"strides": [3, 1], "dilations": [6, 4], "pads": [5, 9, 6, 7]}
    plan = planned("conv", (2, 6, 100, 150), (6, 1, 5, 5), group=6, **attributes)["5x5s1"]
    struct = fields(plan)
    assert [struct[f"{name}_phases"]["divisor"] for name in ("row", "column")] == [2, 4]
    assert [struct["spread_row"], struct["spread_column"]] == [2, 4]
    assert list(struct["start"]) == [0, -5, -9 - 4 * struct["lead"]]
    assert list(struct["dilation"]) == [1, 6, 4]
    assert struct["y_step"] == 2 * 150
    assert struct["x_width"] == struct["y_width"] == 1
    assert struct["blocks"]["divisor"][1] % 2 == 0
    assert struct["tiles"]["divisor"][2] % 4 == 0
    assert ", in rows 2 apart, of 1 filters" in plan.reasons[0]


def test_rows_of_phases_are_left_out_where_they_need_64_bit_indices() -> None:
    found = {}
    for apart in (2**20, 2**28):  # taps one by one do not fit either way
        attributes = {"dilations": [apart, 1], "pads": [apart, 0, apart, 0]}
        found[apart] = set(planned("conv", (1, 2, 5, 2), (2, 1, 3, 1), group=2, **attributes))
    assert found == {2**20: {"rows"}, 2**28: set()}


# ---------------------------------------------------------------- tiles by hand

# No two extents, strides, dilations or pads are equal; three channels of a group at a time.
WORK = conv_of(
    "float32", batch=2, group=5, channels=7, filters=3,
    x_extent=(9, 40, 50), y_extent=(3, 31, 23), taps=(3, 2, 5), column_strides=(3, 1, 2),
    dilations=(2, 4, 3), pads=(1, 2, 3),
)  # fmt: skip


def form(kernel: int, stride: int) -> RowForm:
    """Return the form with one filter for this kernel size and stride; 0 means any."""
    return next(one for one in FORMS if (one.filters, one.line, one.kernel, one.stride) == (1, False, kernel, stride))


def test_a_tile_of_any_taps_by_hand() -> None:
    tile = RowTile(WORK, form(0, 0), threads=(2, 3, 5), groups=2, filter_tiles=2, step=3)
    found = tile.fields()
    # A thread makes four rows of a column: 2 x 12 x 5 outputs of a block.
    assert found["outputs"] == [2, 12, 5]
    assert (found["spread_row"], found["spread_column"]) == (3, 0)
    assert tile.blocks_by_axis == (2, 3, 5)
    assert (found["filter_blocks"], found["group_blocks"], tile.blocks) == (2, 3, 2 * 3 * 5 * 2 * 3 * 2)
    assert (
        found["extent"] == tile.extent == ((2 - 1) * 3 + 2 * 2 + 1, (12 - 1) * 1 + 1 * 4 + 1, (5 - 1) * 2 + 4 * 3 + 1)
    )
    staged, _ = tile.work_of_block(tile.groups, tile.filter_tiles, tile.step)
    assert staged == 2 * 3 * 8 * 16 * 21 * 3  # three times as many for seven channels
    assert found["row_lanes"] == 4  # log2 of its rows
    assert (found["lead"], found["row_taps"], tile.row_taps) == (0, 5, 8)  # filled up to whole vectors
    assert (found["step"], found["groups_here"], found["filter_bits"]) == (3, 2, 1)
    assert found["filter_weights"] == 3 * 3 * 2 * 8
    assert found["filter_pitch"] == 4 * 37  # 36 vectors, and one more: an odd number
    assert found["weights"] == 2 * 3 * tile.pitches[3] + 128 // 8 * 9 * 4  # where warps transpose their results
    assert tile.shared_bytes == 4 * (found["weights"] + 2 * 2 * 4 * 37)
    names = ("phase_pitch", "row_pitch", "depth_pitch", "channel_pitch")
    assert tuple(found[name] for name in names) == tile.pitches
    flat = replace(tile, view=replace(WORK, columns=(3, 3, 23)))  # fewer rows than a thread computes
    assert flat.fields()["outputs"] == [2, 3, 20]
    assert (flat.fields()["spread_row"], flat.fields()["spread_column"]) == (0, 5)


@pytest.mark.parametrize("columns", [5, 8, 12, 128])
def test_lanes_along_a_row_are_the_power_of_two_that_its_vectors_need(columns: int) -> None:
    tile = RowTile(WORK, form(0, 0), threads=(1, 1, columns), groups=2, filter_tiles=2, step=3)
    row = (columns - 1) * 2 + 4 * 3 + 1
    needed = [-(-row // vector) for vector in (1, 2, 4)]
    lanes = [next(bits for bits in range(8) if 2**bits >= count or bits == 7) for count in needed]  # of 128 threads
    assert tile.fields()["lanes"] == lanes


@pytest.mark.parametrize(("dtype", "extent"), [("float32", (8, 16, 21)), ("float64", (8, 10, 21))])
def test_threads_of_any_taps_read_from_other_banks(dtype: str, extent: Ints) -> None:
    """Neighbours along columns, rows, depths and groups, of which no pitch is a row of banks longer than it needs.

    A thread makes as many rows as 16 bytes have words: four of float32, two of float64.
    """
    tile = RowTile(replace(WORK, dtype=dtype), form(0, 0), threads=(2, 3, 5), groups=2, filter_tiles=2, step=3)
    assert tile.extent == extent
    phase, row, depth, channel = tile.pitches
    word = np.dtype(dtype).itemsize
    at = [
        g * 3 * channel + d * 3 * depth + h * row + w for g, d, h, w in product(range(2), range(2), range(3), range(5))
    ]
    assert banks.steps((word * number for number in at), word) == 1
    assert phase == -(-extent[2] // 2)  # even columns, then odd ones: adjacent threads are two columns apart
    for pitch, least in ((row, 2 * phase), (depth, extent[1] * row), (channel, extent[0] * depth)):
        assert 0 <= pitch - least < 128 // word


def test_a_tile_of_three_by_three_taps_by_hand() -> None:
    """24 columns of every second input, from 3 before them on, meet 52: 28 even and 28 odd ones, in whole vectors."""
    work = replace(WORK, channels=1, taps=(1, 3, 3), column_strides=(1, 2, 2), dilations=(1, 1, 1), pads=(0, 1, 1))
    tile = RowTile(work, form(3, 2), threads=(1, 3, 6), groups=2, filter_tiles=1, step=1)
    assert (tile.lead, tile.per_thread) == (3, (1, 7, 4))
    assert tile.extent == (1, (3 * 7 - 1) * 2 + 3, 2 * 28)
    assert (tile.row_taps, tile.fields()["filter_weights"], tile.fields()["filter_pitch"]) == (4, 3 * 4, 12)
    assert tile.blocks == 3 * 2 * 1 * 3 * 3 * 2
    phase, row, depth, channel = tile.pitches
    assert banks.steps((4 * (column // 2 + column % 2 * phase) for column in range(56)), 4) == 1  # the copy's order
    threads = [g * channel + h * 7 * 2 * row + 4 * w for g, h, w in product(range(2), range(3), range(6))]
    assert banks.steps((4 * number for number in threads), 16) == 1
    assert 0 <= phase - 28 < 32
    for pitch, least in ((row, 2 * phase), (depth, 43 * row), (channel, depth)):
        assert 0 <= pitch - least < 32
    wide = replace(work, taps=(1, 3, 5), column_strides=(1, 1, 1), pads=(0, 1, 6))
    rows = RowTile(wide, form(0, 1), threads=(1, 2, 3), groups=2, filter_tiles=1, step=1)
    # Six columns of padding, and two more before the first vector of taps; two rows of taps beyond 2 * 7 rows.
    assert (rows.lead, rows.row_taps, rows.extent) == (2, 8, (1, 2 * 7 + 2, 3 * 4 + 8))
    assert rows.fields()["filter_weights"] == 3 * 8
    assert rows.fields()["filter_pitch"] == 4 * 7  # six vectors, and one more
