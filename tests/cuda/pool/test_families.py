"""Launches of MaxPool on a GPU: structs by hand, limits of index widths, grids, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from gpuconv import ArgumentError
from gpuconv.cuda import planning
from gpuconv.cuda.build import params
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.launch import Launch, Plan
from gpuconv.cuda.pool import families as pool_families
from gpuconv.rules import geometry as geometries
from gpuconv.rules import gradients
from tests.harness.plans import HOPPER, Ints, contiguous, fields, wide

HUGE = 2**62
BORDER = params.INDEX_LIMIT


def _plan(
    x_shape: Ints,
    *,
    dtype: str = "float32",
    x_strides: Ints | None = None,
    y_strides: Ints | None = None,
    indices: bool | Ints = False,
    **attributes: Any,
) -> Plan:
    """Plan the general kernel for contiguous arrays, except for the given strides."""
    geometry = geometries.max_pool(x_shape, **attributes)
    dense = contiguous(geometry.y_shape)
    places = (dense if indices else None) if isinstance(indices, bool) else indices
    with offers.picking(lambda candidates: candidates[0]):
        return pool_families.for_pool(
            geometry, dtype, x_strides or contiguous(x_shape), y_strides or dense, places, HOPPER
        )


def _launch(x_shape: Ints, **keywords: Any) -> Launch:
    (launch,) = _plan(x_shape, **keywords).launches
    return launch


# ---------------------------------------------------------------- structs


def test_the_struct_of_a_small_problem() -> None:
    # Rows of x: 5 elements, taps 2 apart from 1 before the input; columns: 7 elements, windows 3 apart. One slice.
    attributes: dict[str, Any] = {"kernel_shape": [2, 3], "strides": [1, 3], "dilations": [2, 1], "pads": [1, 0, 0, 2]}
    launch = _launch((2, 3, 5, 7), indices=True, **attributes)  # y: (2, 3, 4, 3)
    assert fields(launch) == {
        "x": 0, "y": 0, "indices": 0, "plane": 35, "outputs": 72, "x_extent": [1, 5, 7], "stride": [0, 1, 3],
        "pad": [0, 1, 0], "reach": [1, 3, 3], "x_batch": 105, "x_channel": 35, "x_stride": [0, 7, 1], "y_batch": 36,
        "y_channel": 12, "y_stride": [0, 3, 1], "indices_batch": 36, "indices_channel": 12,
        "indices_stride": [0, 3, 1], "place_stride": [0, 7, 1], "x_step": [0, 14, 1], "place_step": [0, 14, 1],
        "dilation": [1, 2, 1], "y_extent": [1, 4, 3], "channels": 3, "channels_last": 0,
    }  # fmt: skip
    assert launch.pointers == (("x", 0), ("y", 8), ("indices", 16))
    assert (launch.grid, launch.shared_bytes, launch.variant.threads) == ((1, 1, 1), 0, 256)


def test_values_alone_have_no_address_of_indices() -> None:
    launch = _launch((2, 3, 5, 7), kernel_shape=[2, 2])
    assert launch.pointers == (("x", 0), ("y", 8))
    assert launch.variant.arguments == ("float", "int", "3", "false")
    assert fields(launch)["indices_stride"] == [0, 0, 0]


def test_structs_of_both_widths_hold_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    more: dict[str, Any] = {"kernel_shape": [3, 2], "pads": [1, 1, 1, 1], "indices": True}
    narrow = _launch((2, 3, 8, 9), **more)
    monkeypatch.setattr(params, "INDEX_LIMIT", 1)
    launch = _launch((2, 3, 8, 9), **more)
    assert (wide(narrow), wide(launch)) == (False, True)
    found = fields(launch)  # there are four axes, one more in front
    assert {name: n[1:] if isinstance(n, list) else n for name, n in found.items()} == fields(narrow)


def test_views_keep_their_strides_negative_ones_too() -> None:
    strides: dict[str, Any] = {"x_strides": (-40, 0, -2), "y_strides": (1, 2, -6), "indices": (7, 100, -300)}
    struct = fields(_launch((2, 3, 6), **strides, kernel_shape=[2], dilations=[3]))
    assert (struct["x_batch"], struct["x_channel"]) == (-40, 0)
    assert (struct["x_stride"], struct["x_step"]) == ([0, 0, -2], [0, 0, -6])
    assert (struct["y_batch"], struct["y_channel"], struct["y_stride"]) == (1, 2, [0, 0, -6])
    assert (struct["indices_batch"], struct["indices_channel"], struct["indices_stride"]) == (7, 100, [0, 0, -300])


def test_strides_that_are_never_stepped_along_may_be_anything() -> None:
    far = 2**61
    launch = _launch((1, 1, 1), x_strides=(far, -far, far), y_strides=(-far, far, far), kernel_shape=[1])
    struct = fields(launch)
    assert not wide(launch)
    for array in "xy":
        assert [struct[f"{array}_{axis}"] for axis in ("batch", "channel", "stride")] == [0, 0, [0] * 3]


@pytest.mark.parametrize(("order", "strides"), [(0, [20, 5, 1]), (1, [1, 3, 12])])
def test_the_numbers_of_the_elements_follow_storage_order(order: int, strides: list[int]) -> None:
    launch = _launch((2, 2, 3, 4, 5), kernel_shape=[2, 2, 2], dilations=[1, 2, 3], storage_order=order, indices=True)
    struct = fields(launch)
    assert struct["place_stride"] == strides
    assert struct["place_step"] == [strides[0], 2 * strides[1], 3 * strides[2]]
    assert struct["plane"] == 60


# ---------------------------------------------------------------- what can have no effect


def _axis(n: int, **attributes: Any) -> tuple[int, int, int, int]:
    """Stride, pad, reach and dilation of an axis of n elements."""
    struct = fields(_launch((1, 1, n), **attributes))
    return struct["stride"][-1], struct["pad"][-1], struct["reach"][-1], struct["dilation"][-1]


def test_the_stride_of_a_single_window_is_dropped() -> None:
    assert _axis(8, kernel_shape=[3], strides=[HUGE]) == (0, 0, 3, 1)


def test_the_dilation_of_a_single_tap_is_dropped() -> None:
    assert _axis(8, kernel_shape=[1], dilations=[HUGE], strides=[2]) == (2, 0, 1, 1)


def test_taps_that_no_window_has_inside_the_input_are_cut_off() -> None:
    # Window q has taps at q - 6, q - 3, q and q + 3 of three elements, with q up to 4: the inner two remain.
    assert _axis(3, kernel_shape=[4], dilations=[3], pads=[6, 5]) == (1, 3, 4, 3)
    # With q up to 2, only the third remains.
    assert _axis(3, kernel_shape=[4], dilations=[3], pads=[6, 3]) == (1, 0, 1, 1)
    # At -4, -1, 2 and 5 of four elements: only one tap remains, and the window begins at it.
    assert _axis(4, kernel_shape=[4], dilations=[3], pads=[4, 2]) == (0, -2, 1, 1)
    assert _axis(8, kernel_shape=[2], dilations=[HUGE], pads=[HUGE, 0]) == (1, 0, 1, 1)


@pytest.mark.parametrize("attributes", [{"kernel_shape": [2], "dilations": [4], "pads": [1, 1]}, {}])
def test_windows_without_any_element_reach_nothing(attributes: dict[str, Any]) -> None:
    n, keywords = (3, attributes) if attributes else (0, {"kernel_shape": [2], "pads": [1, 1]})
    assert _axis(n, **keywords) == (0, 0, 0, 1)


def test_a_step_past_the_whole_axis_is_no_longer_than_the_axis() -> None:
    attributes: dict[str, Any] = {"kernel_shape": [2], "strides": [HUGE], "dilations": [HUGE], "pads": [HUGE, HUGE]}
    struct = fields(_launch((1, 1, 8), x_strides=(1, 1, -2), indices=True, **attributes))
    assert (struct["stride"], struct["pad"]) == ([0, 0, 0, HUGE], [0, 0, 0, HUGE])
    assert (struct["reach"], struct["dilation"]) == ([1, 1, 1, HUGE + 1], [1, 1, 1, HUGE])
    assert (struct["x_step"], struct["place_step"]) == ([0, 0, 0, -16], [0, 0, 0, 8])


# ---------------------------------------------------------------- index widths

FOUR, THIRD, LAST = (4, 1, 1), BORDER // 3, (BORDER - 1) // 4
POINT: dict[str, Any] = {"kernel_shape": [1]}
FLAT = POINT | {"x_strides": (0, 0, 0), "y_strides": (0, 0, 0)}
SPARSE: dict[str, Any] = {"kernel_shape": [1, 1], "strides": [2**14, 2**14], "x_strides": (0,) * 4}
FAR: dict[str, Any] = {"kernel_shape": [2], "strides": [2**29], "x_strides": (0, 0, 0), "indices": True}
PADDED = {pad: {"kernel_shape": [pad + 1], "pads": [pad, pad], "strides": [pad // 2]} for pad in (2**30, 2**31)}


@pytest.mark.parametrize(
    ("x", "more", "narrow"),
    [
        # the span of an array: three strides at most
        *((FOUR, POINT | {"x_strides": (sign * THIRD, 0, 0)}, True) for sign in (1, -1)),
        *((FOUR, POINT | {"x_strides": (sign * (THIRD + 1), 0, 0)}, False) for sign in (1, -1)),
        *(
            (FOUR, POINT | {array: (sign * THIRD, 1, 1)}, True)
            for sign in (1, -1)
            for array in ("y_strides", "indices")
        ),
        *(
            (FOUR, POINT | {array: (2 * sign * THIRD, 1, 1)}, False)
            for sign in (1, -1)
            for array in ("y_strides", "indices")
        ),
        # the spans of all axes add up, whatever their signs
        ((2, 2, 1), POINT | {"x_strides": (THIRD, -THIRD, 0)}, True),
        ((2, 2, 2), POINT | {"x_strides": (THIRD, -THIRD, THIRD + 9)}, False),
        # offsets count elements, not bytes
        ((32, 64, 512, 512), {"dtype": "float64", "kernel_shape": [4, 4], "indices": True}, True),
        ((128, 64, 512, 512), {"dtype": "int8", "kernel_shape": [4, 4]}, False),
        # the number of outputs
        ((BORDER - 1, 1, 1), FLAT, True),
        ((BORDER, 1, 1), FLAT, False),
        # the elements of a plane, where Indices number them, but not the number of planes
        ((2**8, 2**8, 2**15, 2**15), SPARSE | {"indices": True}, True),
        ((1, 1, 2**16, 2**15), SPARSE | {"indices": True}, False),
        ((1, 1, 2**20, 2**20), SPARSE, True),
        # the taps past a window: a step is as long as the dilation, and three of them follow the last element
        ((1, 1, LAST), FAR | {"dilations": [LAST - 1]}, True),
        ((1, 1, LAST + 2), FAR | {"dilations": [LAST + 1]}, False),
        # how far a single window reaches
        ((1, 1, 2**30 + 1), {"x_strides": (0, 0, 0), "kernel_shape": [2], "dilations": [2**30]}, True),
        ((1, 1, 2**31 + 1), {"x_strides": (0, 0, 0), "kernel_shape": [2], "dilations": [2**31]}, False),
        # coordinates in the padding
        ((1, 1, 8), PADDED[2**30], True),
        ((1, 1, 8), PADDED[2**31], False),
    ],
)
def test_the_largest_number_decides_the_width_of_the_indices(x: Ints, more: dict[str, Any], narrow: bool) -> None:
    assert wide(_launch(x, **more)) is not narrow


def test_structs_with_64_bit_indices_hold_large_numbers() -> None:
    assert fields(_launch((1, 1, 2**20, 2**20), **SPARSE, indices=True))["plane"] == 2**40
    launch = _launch((1, 1, 2**34), x_strides=(0, 0, 0), kernel_shape=[2], strides=[2**31], dilations=[2**33])
    assert wide(launch)
    assert fields(launch)["dilation"] == [1, 1, 1, 2**33]


def test_what_64_bits_cannot_count_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"max_pool: coordinates up to 9223372036854775808 do not fit"):
        _plan((1, 1, 8), kernel_shape=[1], strides=[HUGE], pads=[HUGE, HUGE])


# ---------------------------------------------------------------- launches


@pytest.mark.parametrize(
    ("batch", "channels", "grid"),
    [
        (1, 1, (1, 1, 1)),
        (16, 16, (1, 1, 1)),
        (257, 1, (2, 1, 1)),
        (2**20, 2**19 - 1, (2**31 - 2**12, 1, 1)),
        (2**20, 2**19, (2**31 - 1, 2, 1)),
        (2**21, 2**20, (2**31 - 1, 5, 1)),
    ],
)
def test_the_grid_covers_the_outputs_along_x_then_y(batch: int, channels: int, grid: Ints) -> None:
    launch = _launch((batch, channels, 1), kernel_shape=[1])
    assert launch.grid == grid
    assert grid[0] * grid[1] * 256 >= batch * channels > (grid[0] * grid[1] - grid[0]) * 256


@pytest.mark.parametrize("x_shape", [(0, 3, 4), (2, 0, 4), (1, 2, 0), (1, 1, 1)])
def test_no_outputs_no_launch(x_shape: Ints) -> None:
    plan = _plan(x_shape, kernel_shape=[1 if x_shape != (1, 1, 1) else 2], indices=True)
    assert (plan.launches, plan.bytes_of("workspace")) == ((), 0)
    assert plan.reasons == ("the result has no elements: nothing is launched",)


def test_an_empty_input_with_outputs_is_launched() -> None:
    struct = fields(_launch((2, 2, 0), kernel_shape=[2], pads=[1, 1]))
    assert (struct["outputs"], struct["x_extent"], struct["reach"]) == (4, [1, 1, 0], [1, 1, 0])


def test_the_reason_names_the_kernel_and_why() -> None:
    plan = _plan((2, 3, 100), kernel_shape=[2], dtype="bfloat16", indices=True)
    assert "max_pool_bfloat16_3d_indices: predicted" in plan.reasons[0]
    assert plan.reasons[2] == (
        "max_pool_bfloat16_3d_indices: one output a thread, 594 outputs in 3 blocks of 256 threads; "
        "32-bit indices, the largest number being 599"
    )
    far = _plan((2, 1, 100), x_strides=(2**31, 1, 1), kernel_shape=[2]).reasons[1]
    assert far.startswith("max_pool_float32_4d_wide: ")
    assert far.endswith("64-bit indices, the largest number being 2147483747")


@pytest.mark.parametrize(
    ("rank", "far", "kernel"),
    [
        *((rank, False, "3d") for rank in (1, 2, 3)),
        (4, False, "4d"),
        *((rank, True, "4d_wide") for rank in (1, 2, 3, 4)),
        (5, False, "5d"),
        (5, True, "5d_wide"),
    ],
)
def test_problems_of_few_axes_get_the_kernel_of_three_or_of_four(rank: int, far: bool, kernel: str) -> None:
    shape: Ints = (2, 1, *[4] * rank)
    _, *steps = contiguous(shape)
    launch = _launch(shape, x_strides=(2**40 if far else 4**rank, *steps), kernel_shape=[2] * rank)
    assert launch.variant.name == f"max_pool_float32_{kernel}"
    struct = fields(launch)
    missing = int(kernel[0]) - rank
    assert struct["x_extent"] == [1] * missing + [4] * rank
    assert struct["y_extent"] == [1] * missing + [3] * rank
    assert struct["x_stride"] == [0] * missing + steps[1:]
    assert struct["reach"] == [1] * missing + [2] * rank


def test_any_number_of_axes_is_planned() -> None:
    launch = _launch((1, 1, *(2,) * 20), kernel_shape=[2] * 20)
    assert launch.variant.parameter == "MaxPoolParams<int, 20>"
    assert fields(launch)["reach"] == [2] * 20


# ---------------------------------------------------------------- the same bits for every batch


def _average_plan(kernel: str, images: int, invariant: bool, dtype: str = "float32") -> Plan:
    attributes: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    x_shape = (images, 5, 30, 31)
    forward = geometries.average_pool(x_shape, **attributes)
    if kernel == "average_pool":
        strides = {"x": contiguous(x_shape), "y": contiguous(forward.y_shape)}
        return planning.plan(kernel, forward, dtype, strides, HOPPER, "ieee", invariant=invariant)
    if kernel == "average_pool_grad":
        backward: Any = gradients.average_pool_grad(forward.y_shape, x_shape=x_shape, **attributes)
        strides = {"dy": contiguous(forward.y_shape), "y": contiguous(x_shape)}
    else:
        backward = gradients.max_pool_grad(forward.y_shape, forward.y_shape, x_shape=x_shape, **attributes)
        strides = {name: contiguous(forward.y_shape) for name in ("dy", "indices")} | {"y": contiguous(x_shape)}
    return planning.plan(kernel, backward, dtype, strides, HOPPER, "ieee", invariant=invariant)


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("average_pool", "float32"),
        ("average_pool", "complex64"),
        ("average_pool_grad", "float32"),
        ("average_pool_grad", "complex64"),
        ("max_pool_grad", "float32"),
    ],
)
def test_with_invariant_only_the_kernel_that_sums_in_row_major_order_is_asked(kernel: str, dtype: str) -> None:
    def sources(invariant: bool) -> set[str]:
        plans = [_average_plan(kernel, images, invariant, dtype) for images in (1, 64, 4096)]
        return {launch.variant.source for plan in plans for launch in plan.launches}

    general_only = {"pool/general.cu" if kernel == "average_pool" else "pool/grad/general.cu"}
    assert sources(invariant=True) == general_only
    if dtype == "float32":  # for complex numbers, the general kernel is the fastest for some windows
        assert sources(invariant=False) != general_only, "another kernel is faster, and sums in another order"
