"""Quantities that planners derive from a correlation problem, by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from gpuconv.cuda.call.prepared import contiguous_strides
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.problem import Problem
from gpuconv.rules import geometry as geometries


def made(
    operator: str, x: Any, w: Any, dtype: str = "float32", x_strides: Any = None, y_strides: Any = None, **more: Any
) -> Problem:
    geometry = getattr(geometries, operator)(x, w, None, **more)
    strides = x_strides or contiguous_strides(x), contiguous_strides(w), None
    return correlation.of(geometry, dtype, *strides, y_strides or contiguous_strides(geometry.y_shape))


CONV = ("conv", (2, 4, 9, 8), (6, 2, 3, 3))
STRIDED = {"group": 2, "strides": [2, 2], "pads": [1, 1, 1, 1]}  # y is (2, 6, 5, 4)


def test_the_work_of_a_conv() -> None:
    one = made(*CONV, **STRIDED)
    assert (one.rank, one.rows, one.most_taps, one.most_rows) == (2, 18, (3, 3), 18)
    assert one.pixels == 2 * 5 * 4
    assert one.tiles(2, 32) == (2, 2)
    assert one.tiles(3, 40) == (1, 1)
    assert (one.group, one.filters, one.rows, one.pixels) == (2, 3, 18, 40)
    assert one.bytes == one.bytes_by_phase == 4 * (2 * 4 * 9 * 8 + 6 * 2 * 9 + 2 * 6 * 5 * 4)
    assert made(*CONV, "float16", **STRIDED).bytes == one.bytes / 2


def test_the_work_of_a_conv_transpose_by_phases() -> None:
    one = made("conv_transpose", (1, 2, 5, 4), (2, 3, 4, 4), strides=[2, 2])  # y is (1, 3, 12, 10)
    assert (one.most_taps, one.most_rows, one.pixels) == ((2, 2), 8, 6 * 5)
    assert (one.group, one.filters, one.rows, one.pixels) == (1, 3, 2 * 16, 30)
    assert one.bytes == 4 * (40 + 96 + 360)
    assert one.bytes_by_phase == one.bytes + 4 * 360  # both phases of a row touch all its sectors
    wide = made("conv_transpose", (1, 2, 5, 4), (2, 3, 4, 4), "float64", strides=[2, 7])  # y is (1, 3, 12, 25)
    assert wide.bytes_by_phase == wide.bytes + 3 * 8 * 900  # a sector has four elements, of seven phases
    last = made("conv_transpose", (1, 2, 5, 4), (2, 16, 4, 4), y_strides=(1920, 1, 160, 16), strides=[2, 2])
    assert last.bytes_by_phase == last.bytes  # adjacent elements of a row are in separate sectors
    dilated = made("conv_transpose", (1, 1, 9), (1, 1, 5), strides=[6], dilations=[4])
    assert dilated.most_taps == (2,)  # every third of five


def test_pixels_that_a_single_tap_meets() -> None:
    one = made("conv", (2, 4, 9, 8), (6, 4, 1, 1), strides=[2, 3])  # y is (2, 6, 5, 3)
    read = one.without_unread_pixels
    assert (read.x_shape, read.x_strides) == ((2, 4, 5, 3), (288, 72, 16, 3))
    assert (read.columns, read.column_strides, read.y_shape) == ((5, 3), (1, 1), one.y_shape)
    padded = made("conv", (2, 4, 8, 8), (6, 4, 1, 2), strides=[2, 3], pads=[0, 0, 1, 0])  # one more row, below x
    assert padded.without_unread_pixels == padded
    assert made("conv", (2, 4, 9, 8), (6, 4, 1, 1), pads=[0, 1, 0, 0]).without_unread_pixels.x_shape == (2, 4, 9, 8)
    phases = made("conv_transpose", (2, 4, 9, 8), (4, 6, 1, 1), strides=[2, 3])
    assert phases.without_unread_pixels == phases


def test_taps_backwards_are_those_of_the_weights_turned_around() -> None:
    found = {"count": (3, 4), "row": (40, 10), "first_row": 0, "limit": (5, 6)}
    turned = gemm_base.backwards(found)
    assert turned["limit"] == (5, 6)
    for i, j in product(range(3), range(4)):
        row = turned["first_row"] + i * turned["row"][0] + j * turned["row"][1]
        assert row == (2 - i) * 40 + (3 - j) * 10


def test_axes_in_another_order_take_all_their_numbers_with_them() -> None:
    one = made("conv_transpose", (2, 4, 9, 8), (4, 6, 3, 5), strides=[2, 3], dilations=[1, 2], pads=[1, 0, 0, 2])
    height, width = one.axes
    assert one.with_axes((height, width)) == one
    turned = made("conv_transpose", (2, 4, 8, 9), (4, 6, 5, 3), strides=[3, 2], dilations=[2, 1], pads=[0, 1, 2, 0])
    steps = {name: getattr(one, name) for name in ("x_strides", "y_strides", "w_strides")}
    across = {name: (*numbers[:-2], numbers[-1], numbers[-2]) for name, numbers in steps.items()}
    assert one.with_axes((width, height)) == replace(turned, **across)


@pytest.mark.parametrize(
    ("dtype", "x_strides", "more", "lines"),
    [
        ("float32", None, STRIDED, 2),  # 32 columns 8 bytes apart
        ("float64", None, STRIDED, 4),
        ("float16", None, STRIDED, 1),
        ("float16", None, {**STRIDED, "strides": [2, 5]}, 3),  # 320 bytes
        ("float32", (288, 1, 32, 4), STRIDED, 8),  # channels last
        ("float32", (4608, 1, 512, 64), STRIDED, 32),
        ("float32", (288, 72, 8, -1), STRIDED, 2),
        ("float32", (288, 72, 8, 0), STRIDED, 1),  # all at one address
        ("float32", (4608, 1, 512, 64), {**STRIDED, "strides": [2, 8]}, 1),  # one column
    ],
)
def test_the_lines_that_neighbouring_columns_meet(dtype: str, x_strides: Any, more: Any, lines: int) -> None:
    assert made(*CONV, dtype, x_strides, **more).lines == lines


@pytest.mark.parametrize(
    ("shape", "strides", "step"),
    [
        ((6, 8), (8, 1), 1),
        ((6, 8), (16, 2), 2),
        ((6, 1, 8), (8, 99, 1), 1),
        ((6, 8, 1), (24, 3, 99), 3),
        ((6, 8), (9, 1), None),
        ((6, 8), (-8, -1), -1),
        ((6, 8), (-8, 1), None),
        ((1, 1), (7, 9), 1),  # a single pixel has no neighbours
        ((), (), 1),
    ],
)
def test_axes_are_one_where_each_lies_behind_the_next(shape: Any, strides: Any, step: int | None) -> None:
    assert correlation.merged_stride(shape, strides) == step


FLAT = made("conv", (2, 6, 5, 7, 9), (8, 3, 1, 1, 1), group=2)


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
