"""Depthwise ConvTranspose with strides as a direct sum: when, how, and right in every layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.direct import transpose
from gpuconv.cuda.plan.limits import representative
from tests.harness.emulated import preferred
from tests.harness.plans import fields, plan, problem

HOPPER = representative("sm_90a").limits


def made(x: Any, w: Any, layout: str = "NCHW", **attributes: Any) -> correlation.Problem:
    return problem("conv_transpose", x, w, "float32", layout=layout, **attributes)


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
