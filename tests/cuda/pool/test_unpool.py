"""What MaxUnpool and the check of Indices launch: kernels for the number of axes, and structs by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuconv.cuda.call.prepared import contiguous_strides
from gpuconv.cuda.plan.launch import Launch, Plan
from gpuconv.cuda.plan.limits import representative
from gpuconv.cuda.pool import unpool as unpool_plan
from gpuconv.rules.operators import OPERATORS

Ints = tuple[int, ...]
LIMITS = representative("sm_90a").limits


def planned(x: Ints, dtype: str = "float32", far: int = 1, last: bool = False, **attributes: Any) -> Plan:
    geometry = OPERATORS["max_unpool"].geometry(x, x, kernel_shape=[2] * (len(x) - 2), **attributes)
    of_x, of_y = (lying(shape, last) for shape in (x, geometry.y_shape))
    return unpool_plan.for_max_unpool(geometry, dtype, (far * of_x[0], *of_x[1:]), of_x, of_y)


def lying(shape: Ints, last: bool) -> Ints:
    if not last:
        return contiguous_strides(shape)
    batch, *spatial, channel = contiguous_strides((shape[0], *shape[2:], shape[1]))
    return batch, channel, *spatial


def fields(launch: Launch) -> dict[str, Any]:
    """A launch's struct, dividers as their divisors."""
    (struct,) = np.frombuffer(launch.parameters, launch.variant.layout)
    found = {name: struct[name] for name in launch.variant.layout.names or ()}
    return {name: (one["divisor"] if one.dtype.names else one).tolist() for name, one in found.items()}


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
    assert (
        fields(claim)
        == fields(unpool)
        == {
            "x": 0,
            "indices": 0,
            "y": 0,
            "claims": 0,
            "numbered": places,
            "elements": 2 * 3 * 4 * 5,
            "places": places,
            "x_batch": 60,
            "x_channel": 20,
            "x_stride": [0, 5, 1],
            "indices_batch": 60,
            "indices_channel": 20,
            "indices_stride": [0, 5, 1],
            "y_batch": 336,
            "y_channel": 112,
            "y_stride": [0, 14, 1],
            "channels": 3,
            "x_extent": [1, 4, 5],
            "y_extent": [1, 8, 14],
            "numbered_extent": [1, 8, 14],
            "channels_last": 0,
        }
    )
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
        ((2, 3, 4, 1), (12, 1, 3, 0), 1),  # of a single column no stride counts
        ((2, 3, 4, 5), (60, -1, -15, 3), 1),
        ((3, 2, 4, 5), (1, 3, 30, 6), 1),  # images may lie closer still
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


@pytest.mark.parametrize(
    ("shape", "strides", "name", "extent", "stride"),
    [
        ((3, 4), (4, 1), "check_indices_1d", [12], [1]),  # one run
        ((3, 4), (8, 2), "check_indices_1d", [12], [2]),
        ((3, 4), (5, 1), "check_indices_6d", [1, 1, 1, 1, 3, 4], [0, 0, 0, 0, 5, 1]),
        ((2, 3, 2, 3, 2, 3, 2), (999, 301, 150, 49, 24, 7, 3), "check_indices_7d", None, None),
        ((1,), (1,), "check_indices_1d", [1], None),
    ],
)
def test_the_check_of_indices(shape: Ints, strides: Ints, name: str, extent: Any, stride: Any) -> None:
    clear, check = unpool_plan.for_check(9, shape, strides, LIMITS).launches
    assert fields(clear)["count"] == 2
    assert check.variant.name == name
    found = fields(check)
    assert (found["elements"], found["limit"]) == (int(np.prod(shape)), 9)
    assert extent is None or found["extent"] == extent
    assert stride is None or found["stride"] == stride
    assert check.grid == (-(-int(np.prod(shape)) // 256), 1, 1)


def test_the_check_has_no_more_blocks_than_a_device_runs_at_once() -> None:
    (_, check) = unpool_plan.for_check(9, (2**28,), (1,), LIMITS).launches
    assert check.grid == (check.variant.blocks_per_sm * LIMITS.multiprocessors, 1, 1)
    (clear,) = unpool_plan.for_check(9, (0, 4), (4, 1), LIMITS).launches
    assert fields(clear)["count"] == 2  # words of the only result
    assert clear.variant.name == "clear_1d"
