"""Depthwise ConvTranspose with strides as a direct sum: when, how, and right in every layout."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.call.prepared import contiguous_strides
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.direct import transpose
from gpuconv.cuda.plan.limits import representative
from gpuconv.rules import geometry as geometries
from tests.emulator import emulated_cuda
from tests.harness.emulated import architecture, preferred
from tests.harness.plans import fields, plan, strides
from tests.oracle import oracle
from tests.oracle.operands import CONV_DTYPES, CONV_KINDS, LAYOUTS, values, with_channels_last
from tests.oracle.oracle import assert_close
from tests.oracle.strategies import Problem

HOPPER = representative("sm_90a").limits


def made(x: Any, w: Any, layout: str = "NCHW", **attributes: Any) -> correlation.Problem:
    geometry = geometries.conv_transpose(x, w, None, **attributes)
    arrays = strides(x, layout), contiguous_strides(w), None, strides(geometry.y_shape, layout)
    return correlation.of(geometry, "float32", *arrays)


def test_neighbours_are_channels_where_those_lie_next_to_each_other() -> None:
    problem = made((2, 4, 5, 6), (4, 1, 2, 2), group=4, strides=[2, 2])
    for y_strides in ((99, 1, 12, 4), (1, 1, 12, 4), (99, 1, 12, 0)):
        assert transpose._channels_first(replace(problem, y_strides=y_strides))
    for y_strides in ((99, 9, 3, 1), (99, 1, 3, 1), (99, 2, 3, 4), (1, 9, 3, 2), (99, 0, 3, 2)):
        assert not transpose._channels_first(replace(problem, y_strides=y_strides))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_upsampling_is_one_launch_without_a_workspace(layout: str) -> None:
    problem = made((4, 21, 64, 64), (21, 1, 16, 16), layout, group=21, strides=[8, 8], pads=[4, 4, 4, 4])
    made_plan = conv_families.plan(problem, HOPPER)
    (launch,) = made_plan.launches
    assert launch.variant.name == "conv_transpose_depthwise_float32_2d"
    assert (made_plan.bytes_of("workspace"), made_plan.bytes_of("packed")) == (0, 0)
    struct = fields(launch)
    assert struct["channels_first"] == (layout == "NHWC")
    assert struct["items"] * struct["walk"] == 4 * 21 * 512 * 512
    assert launch.grid[0] * 256 >= struct["items"]


def test_conv_and_its_transpose_of_stride_1_stay_what_they_are() -> None:
    with preferred("conv_transpose_depthwise"):
        assert plan("conv", (1, 4, 9, 9), (4, 1, 3, 3), group=4).launches[-1].variant.source == "conv/direct/rows.cu"
    assert conv_families.plan(made((8, 64, 56, 56), (64, 1, 3, 3), group=64), HOPPER).kernel.startswith("depthwise")


def some(random: Random) -> Problem:
    """A random problem of which an output meets at most two taps along each axis."""
    rank, group, filters = random.choice((1, 2, 2)), random.choice((1, 2, 5, 8)), random.choice((1, 1, 2, 3))
    steps = [random.choice((1, 2, 3, 4, 8)) for _ in range(rank)]
    taps = [random.randint(1, 2 * step) for step in steps]
    extents = [random.randint(2, {1: 40, 2: 8}[rank]) for _ in range(rank)]
    more = [random.randrange(step) for step in steps]
    rooms = [s * (n - 1) + k + o - 1 for s, n, k, o in zip(steps, extents, taps, more, strict=True)]
    begin = [random.randint(0, min(room, k)) for room, k in zip(rooms, taps, strict=True)]
    end = [random.randint(0, min(room - a, k)) for room, a, k in zip(rooms, begin, taps, strict=True)]
    attributes = {"group": group, "strides": steps, "pads": [*begin, *end], "output_padding": more}
    x_shape, w_shape = (random.choice((1, 2)), group, *extents), (group, filters, *taps)
    return Problem("conv_transpose", x_shape, w_shape, random.choice((None, (group * filters,))), attributes)


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", CONV_DTYPES, ids=str)
def test_random_problems(dtype: Any) -> None:
    random, name = Random(str(dtype)), transpose.variant(str(dtype)).name
    for number in range(len(CONV_KINDS)):
        problem, kinds = some(random), CONV_KINDS[number]
        shapes = enumerate(zip(problem.shapes, kinds, strict=True))
        arrays = [None if s is None else values(kind, number + i, s, dtype) for i, (s, kind) in shapes]
        expected = oracle.conv_transpose(*arrays, **problem.attributes)
        layout, result = (random.choice(("contiguous", "channels last", "reversed", "strided")) for _ in range(2))
        out = LAYOUTS[result](np.zeros(expected.value.shape, dtype))
        with preferred(name), emulated_cuda(limits_of=architecture(dtype, 2), seed=number) as emulated:
            y = gpuconv.conv_transpose(LAYOUTS[layout](arrays[0]), *arrays[1:], **problem.attributes, out=out)
        assert [launch.variant.name for launch in emulated.launches] == [name]
        assert_close(y, expected, dtype)


@pytest.mark.emulator
def test_padding_takes_no_part() -> None:
    """An infinite weight on what is no input adds nothing; on an input it gives what IEEE arithmetic gives."""
    x, w = np.ones((1, 3, 5, 7), np.float32), np.ones((3, 1, 4, 4), np.float32)
    w[::2, 0, 3, 3] = np.inf
    w[1, 0, 0, 0] = np.nan
    attributes = {"group": 3, "strides": [2, 2]}
    expected = oracle.conv_transpose(x, w, **attributes)
    with preferred("conv_transpose_depthwise"), emulated_cuda():
        y = gpuconv.conv_transpose(with_channels_last(x), w, **attributes)
    assert_close(y, expected, "float32")
    assert np.isfinite(y).any()
    assert not np.isfinite(y).all()
