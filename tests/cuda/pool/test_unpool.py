"""Launches of MaxUnpool and of the check of Indices: kernels by number of axes, and structs by hand."""

from __future__ import annotations

from typing import Any

import pytest

from gpuconv.cuda.call.prepared import contiguous_strides
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import representative
from gpuconv.cuda.pool import unpool as unpool_plan
from gpuconv.rules import geometry as geometries
from gpuconv.rules.operators import OPERATORS
from tests.cuda.pool.problems import lying
from tests.harness.plans import fields

Ints = tuple[int, ...]
LIMITS = representative("sm_90a").limits


def planned(x: Ints, dtype: str = "float32", far: int = 1, last: bool = False, **attributes: Any) -> Plan:
    geometry = OPERATORS["max_unpool"].geometry(x, x, kernel_shape=[2] * (len(x) - 2), **attributes)
    of_x, of_y = (lying(shape, last) for shape in (x, geometry.y_shape))
    return unpool_plan.for_max_unpool(geometry, dtype, (far * of_x[0], *of_x[1:]), of_x, of_y)


@pytest.mark.parametrize(
    ("axes", "far", "name"),
    [
        *((1, 1, "3d"), (2, 1, "3d"), (3, 1, "3d"), (4, 1, "4d"), (5, 1, "5d")),
        *((1, 2**40, "4d_wide"), (4, 2**40, "4d_wide"), (5, 2**40, "5d_wide")),
    ],
)
@pytest.mark.parametrize(("dtype", "bits"), [("uint8", 8), ("bfloat16", 16), ("float32", 32), ("float64", 64)])
def test_kernels_have_three_or_four_axes_or_as_many_as_are_needed(
    axes: int, far: int, name: str, dtype: str, bits: int
) -> None:
    plan = planned((2, 3, *(3,) * axes), dtype, far, strides=[2] * axes)
    clear, claim, unpool = plan.launches
    assert clear.variant.name == "clear_1d"
    assert claim.variant.name == f"max_unpool_claim_{name}"
    assert plan.kernel == unpool.variant.name == f"max_unpool_{bits}bit_{name}"
    assert unpool.variant.arguments[2] == claim.variant.arguments[1] == name[0]


def test_the_structs_of_a_small_problem() -> None:
    plan = planned((2, 3, 4, 5), strides=[2, 3])  # y: (2, 3, 8, 14)
    clear, claim, unpool = plan.launches
    places = 2 * 3 * 8 * 14
    assert plan.bytes_of("workspace") == 4 * places
    assert fields(clear) == {"words": 0, "count": places}
    expected = {
        "x": 0, "indices": 0, "y": 0, "claims": 0, "numbered": places, "plane_step": 0,
        "elements": 2 * 3 * 4 * 5, "places": places, "x_batch": 60, "x_channel": 20, "x_stride": [0, 5, 1],
        "indices_batch": 60, "indices_channel": 20, "indices_stride": [0, 5, 1],
        "y_batch": 336, "y_channel": 112, "y_stride": [0, 14, 1], "channels": 3,
        "x_extent": [1, 4, 5], "y_extent": [1, 8, 14], "numbered_extent": [1, 8, 14], "channels_last": 0,
    }  # fmt: skip
    assert fields(claim) == fields(unpool) == expected
    assert (claim.grid[0], unpool.grid[0]) == (1, -(-places // unpool.variant.threads))
    assert planned((2, 3, 4, 5), strides=[2, 3], far=2**40).bytes_of("workspace") == 8 * places


@pytest.mark.parametrize(
    ("x", "last", "expected"), [((2, 3, 4, 5), True, 1), ((2, 3, 4, 5), False, 0), ((2, 1, 4, 5), True, 0)]
)
def test_channels_that_lie_closest_together_are_last(x: Ints, last: bool, expected: int) -> None:
    assert fields(planned(x, last=last).launches[-1])["channels_last"] == expected


@pytest.mark.parametrize(
    ("y", "strides", "expected"),
    [
        ((2, 2, 4, 5), (40, 1, 10, 2), 1),
        ((1, 3, 1, 5), (15, 1, 99, 3), 1),
        ((2, 3, 4, 5), (60, 5, 15, 1), 0),  # closer than rows, not than columns
        ((2, 3, 4, 1), (12, 1, 3, 0), 1),  # with a single column, its stride does not matter
        ((2, 3, 4, 5), (60, -1, -15, 3), 1),
        ((3, 2, 4, 5), (1, 3, 30, 6), 1),  # images may be even closer
        ((3, 1, 4, 5), (1, 0, 15, 3), 0),
    ],
)
def test_channels_are_closest_where_no_spatial_axis_lies_as_close(y: Ints, strides: Ints, expected: int) -> None:
    geometry = OPERATORS["max_unpool"].geometry(y, y, kernel_shape=[1, 1])
    of_x = contiguous_strides(y)
    launch = unpool_plan.for_max_unpool(geometry, "float32", of_x, of_x, strides).launches[-1]
    assert fields(launch)["channels_last"] == expected


def test_without_elements_places_are_cleared_and_without_places_nothing_is_done() -> None:
    assert [launch.variant.name for launch in planned((2, 0, 4)).launches] == []
    assert planned((0, 3, 4)).launches == ()


def test_indices_within_planes_number_those_of_the_result() -> None:
    claim = planned((2, 3, 4, 5), strides=[2, 3], indices_in="plane", output_shape=(7, 16)).launches[1]
    found = fields(claim)
    assert (found["numbered"], found["plane_step"]) == (7 * 16, 7 * 16)
    assert found["numbered_extent"] == found["y_extent"] == [1, 7, 16]


def checked(apart: Ints, x: Ints = (2, 3, 9, 11), **attributes: Any) -> Plan:
    """Return the plan of the check of Indices for 2 x 3 windows, with these strides if not contiguous."""
    window = {"kernel_shape": [2, 3], "strides": [2, 1], "dilations": [3, 1], "pads": [1, 0, 0, 2], **attributes}
    windows = geometries.max_pool(x, **window).index_windows
    return unpool_plan.for_check(windows, apart or contiguous_strides(windows.shape), LIMITS)


def test_the_struct_of_a_check() -> None:
    clear, check = checked(()).launches
    assert fields(clear)["count"] == 2  # words of the only result
    assert (check.variant.name, check.grid) == ("check_indices_3d", (2, 1, 1))
    assert fields(check) == {
        "indices": 0, "found": 0, "plane": 99, "plane_step": 99, "elements": 2 * 3 * 4 * 11,
        "indices_batch": 132, "indices_channel": 44, "indices_stride": [0, 11, 1],
        "stride": [0, 2, 1], "pad": [0, 1, 0], "reach": [1, 4, 3], "channels": 3, "windows": [1, 4, 11],
        "extent": [1, 9, 11], "dilation": [1, 3, 1], "column_major": 0,
    }  # fmt: skip


def test_the_struct_of_a_check_within_planes_by_columns() -> None:
    found = fields(checked((7, 1, 500, 14), indices_in="plane", storage_order=1).launches[1])
    assert (found["plane"], found["plane_step"], found["column_major"]) == (99, 0, 1)
    assert [found[name] for name in ("indices_batch", "indices_channel", "indices_stride")] == [7, 1, [0, 500, 14]]


def test_attributes_without_effect_ask_for_no_wider_numbers() -> None:
    """The stride of a single window, a dilation past the input, and taps past it."""
    huge = {"kernel_shape": [1, 2**40], "strides": [2**40, 2**41], "dilations": [2**50, 1], "pads": [0, 0, 0, 2**40]}
    (_, check) = checked((), (2, 3, 1, 11), **huge).launches
    assert check.variant.name == "check_indices_3d"
    found = fields(check)
    assert [found[name] for name in ("stride", "reach", "dilation")] == [[0, 0, 0], [1, 1, 11], [1, 1, 1]]


@pytest.mark.parametrize(
    ("strides", "axes", "name"),
    [((), 1, "3d"), ((), 4, "4d"), ((), 5, "5d"), ((2**40, 3, 1), 1, "4d_wide"), ((2**40, *(1,) * 6), 5, "5d_wide")],
)
def test_the_check_has_three_or_four_axes_or_as_many_as_are_needed(strides: Ints, axes: int, name: str) -> None:
    window = {"kernel_shape": [1] * axes, "strides": [1] * axes, "dilations": [1] * axes, "pads": [0] * 2 * axes}
    assert checked(strides, (2, 3, *(3,) * axes), **window).launches[1].variant.name == f"check_indices_{name}"


def test_the_check_has_no_more_blocks_than_a_device_runs_at_once() -> None:
    one = {"kernel_shape": [1], "strides": [1], "dilations": [1], "pads": [0, 0]}
    (_, check) = checked((), (1, 1, 2**28), **one).launches
    assert check.grid == (check.variant.blocks_per_sm * LIMITS.multiprocessors, 1, 1)
    assert check.variant.name == "check_indices_3d"
    last = 2**31 - 2**16 - 256 * check.grid[0]  # the offset of a thread after the last element
    for extent, name in ((last - 1, "3d"), (last, "4d_wide")):
        assert checked((), (1, 1, extent), **one).launches[1].variant.name == f"check_indices_{name}"
    (clear,) = checked((), (0, 4, 2), **one).launches
    assert fields(clear)["count"] == 2  # words of the only result
    assert clear.variant.name == "clear_1d"
