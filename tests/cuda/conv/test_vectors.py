"""When planners consider contiguous elements whole vectors: only axes of several elements count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpuconv.cuda.conv.direct import channels as channels_plan
from gpuconv.cuda.conv.gemm import fragments, matrix, stem_tile
from gpuconv.cuda.conv.gemm import grouped as grouped_plan
from gpuconv.cuda.conv.gemm.fragments import arithmetic
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan.limits import representative
from tests.harness.offered import why_not
from tests.harness.plans import problem

Ints = tuple[int, ...]
Whole = Callable[[Problem], bool]


def grouped(one: Problem) -> bool:
    return next(iter(grouped_plan.works(one, arithmetic(one)))).chunks


def made(dtype: str = "float16", layout: str = "NHWC", w: Ints = (32, 16, 3, 3, 3), **more: Any) -> Problem:
    """Return a Conv with three spatial axes, x (2, 16 or 32, 5, 6, 8), y of three, four and six elements along each."""
    group = more.get("group", 1)
    return problem("conv", (2, w[1] * group, 5, 6, 8), w, dtype, layout=layout, **more)


TF32: dict[str, Any] = {"dtype": "float32", "precision": "tf32"}
DEPTHWISE: dict[str, Any] = {"w": (32, 1, 3, 3, 3), "group": 32}
# A problem, its array, the elements of a chunk, and the function that checks for whole chunks.
CASES: dict[str, tuple[Problem, str, int, Whole]] = {
    "mma, 16 bytes": (made(), "x", 8, fragments.has_chunks),
    "mma, 8 bytes": (made(), "x", 4, lambda one: fragments.has_chunks(one, 8)),
    "mma, tf32": (made(**TF32), "x", 4, fragments.has_chunks),
    "matrix": (made(w=(32, 16, 1, 1, 1)), "x", 8, lambda one: matrix.of_channels(one) is not None),
    "grouped": (made(w=(32, 16, 3, 3, 3), group=2), "x", 8, grouped),
    "channels, x": (made("float32", **DEPTHWISE), "x", 4, channels_plan.in_vectors),
    "channels, y": (made("float32", **DEPTHWISE), "y", 4, channels_plan.in_vectors),
    "channels, float16": (made("float16", **DEPTHWISE), "y", 4, channels_plan.in_vectors),
    "stem, channels of y": (made("float16"), "y", 8, stem_tile.channels_are_vectors),
    "stem, tf32": (made(**TF32), "y", 4, stem_tile.channels_are_vectors),
}


@pytest.mark.parametrize("name", CASES)
def test_every_axis_moves_by_whole_vectors_of_channels(name: str) -> None:
    one, array, chunk, whole = CASES[name]
    field = f"{array}_strides"
    strides = getattr(one, field)
    assert whole(one)
    for axis in (0, 2, 3, 4):
        moved = {more: replace(one, **{field: shifted(strides, axis, more)}) for more in (chunk, chunk // 2, 1)}
        assert {more: whole(there) for more, there in moved.items()} == {chunk: True, chunk // 2: False, 1: False}, axis
    apart = replace(one, **{field: shifted(strides, 1, 1)})  # channels that are not adjacent
    if whole is channels_plan.in_vectors:
        assert why_not(channels_plan, apart, representative("sm_90a").limits) is not None
    else:
        assert not whole(apart)


def shifted(strides: Ints, axis: int, more: int) -> Ints:
    return tuple(stride + more * (at == axis) for at, stride in enumerate(strides))


@pytest.mark.parametrize("name", ["mma, 16 bytes", "matrix", "channels, x"])
def test_axes_of_one_element_may_have_any_stride(name: str) -> None:
    one, _, _, whole = CASES[name]
    flat = replace(one, x_shape=(*one.x_shape[:2], 1, *one.x_shape[3:]), x_strides=shifted(one.x_strides, 2, 1))
    assert whole(flat)


@pytest.mark.parametrize(
    ("channels", "dtype", "size", "whole"),
    [
        (16, "float16", 16, True),
        (8, "float16", 16, True),
        (12, "float16", 16, False),
        (12, "float16", 8, True),
        (10, "float16", 8, False),
        (4, "float32", 16, True),
        (6, "float32", 16, False),
    ],
)
def test_channels_are_whole_chunks(channels: int, dtype: str, size: int, whole: bool) -> None:
    precision = "ieee" if dtype == "float16" else "tf32"
    one = problem("conv", (1, channels, 5, 6), (32, channels, 3, 3), dtype, precision=precision, layout="NHWC")
    assert fragments.has_chunks(one) is (whole and (size == 16))
    assert fragments.has_chunks(one, size) is whole


@pytest.mark.parametrize(
    ("dtype", "y_strides", "whole"),
    [
        ("float16", (6144, 192, 64, 16, 1), True),
        ("float16", (6144, 192, 64, 24, 1), True),
        ("float16", (6144, 192, 64, 20, 1), False),
        ("float32", (6144, 192, 64, 20, 1), True),
        ("float16", (6144, 192, 60, 16, 1), False),
        ("float16", (6144, 196, 64, 16, 1), False),
        ("float16", (6148, 192, 64, 16, 1), False),
        ("float16", (6144, 192, 64, 16, 2), False),
    ],
)
def test_rows_of_y_consist_of_whole_vectors(dtype: str, y_strides: Ints, whole: bool) -> None:
    problem = replace(made(dtype), y_shape=(2, 32, 3, 4, 8), y_strides=y_strides)
    assert stem_tile.pixels_are_vectors(problem) is whole
    narrower = replace(problem, y_shape=(2, 32, 3, 4, 7))  # with rows of the same stride
    assert not stem_tile.pixels_are_vectors(narrower)


@pytest.mark.parametrize(
    ("x", "x_strides", "dtype", "size"),
    [
        ((2, 8, 12, 12), (1152, 144, 12, 1), "float16", 16),
        ((2, 8, 6, 6), (288, 36, 6, 1), "float16", 8),
        ((2, 8, 3, 6), (144, 18, 6, 1), "float16", 4),
        ((2, 8, 3, 3), (72, 9, 3, 1), "float16", None),  # units of less than 4 bytes
        ((2, 8, 3, 3), (72, 9, 3, 1), "float32", 4),
        ((2, 8, 12, 12), (1154, 144, 12, 1), "float16", 4),
        ((1, 8, 12, 12), (1154, 144, 12, 1), "float16", 16),  # with a single image, its stride does not matter
        ((2, 8, 12, 12), (1184, 148, 12, 1), "float16", 8),
    ],
)
def test_pixels_behind_each_other_are_copied_in_the_largest_pieces(
    x: Ints, x_strides: Ints, dtype: str, size: int | None
) -> None:
    precision = "ieee" if dtype == "float16" else "tf32"
    one = problem("conv", x, (32, 8, 1, 1), dtype, precision=precision, x_strides=x_strides)
    found = matrix.of_pixels(one)
    assert (found and matrix._at_once(found)) == size
