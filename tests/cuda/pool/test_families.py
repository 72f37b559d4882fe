"""Launches of MaxPool on a GPU: structs by hand, limits of index widths, grids, refusals."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest

from gpuconv import ArgumentError
from gpuconv.cuda import planning
from gpuconv.cuda.build import params
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.launch import Launch, Plan
from gpuconv.cuda.plan.limits import Limits
from gpuconv.cuda.pool import families as pool_families
from gpuconv.cuda.pool import general, vectors
from gpuconv.rules import geometry as geometries
from gpuconv.rules import gradients
from tests.harness.plans import fields

HOPPER = Limits("sm_90a", 132, 227 * 1024, 228 * 1024)
HUGE = 2**62
BORDER = params.INDEX_LIMIT
Ints = tuple[int, ...]
_DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8")


def _contiguous(shape: Ints) -> Ints:
    return tuple(accumulate(shape[:0:-1], lambda a, b: a * b, initial=1))[::-1]


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
    dense = _contiguous(geometry.y_shape)
    places = (dense if indices else None) if isinstance(indices, bool) else indices
    with offers.picking(lambda candidates: candidates[0]):
        return pool_families.for_pool(
            geometry, dtype, x_strides or _contiguous(x_shape), y_strides or dense, places, HOPPER
        )


def _launch(x_shape: Ints, **keywords: Any) -> Launch:
    (launch,) = _plan(x_shape, **keywords).launches
    return launch


def _struct(launch: Launch) -> dict[str, Any]:
    """Return the parameters, with dividers replaced by their divisors."""
    return fields(launch)


def _wide(launch: Launch) -> bool:
    return launch.variant.arguments[1] == "long long"


# ---------------------------------------------------------------- structs


def test_the_struct_of_a_small_problem() -> None:
    # Rows of x: 5 elements, taps 2 apart from 1 before the input; columns: 7 elements, windows 3 apart. One slice.
    attributes: dict[str, Any] = {"kernel_shape": [2, 3], "strides": [1, 3], "dilations": [2, 1], "pads": [1, 0, 0, 2]}
    launch = _launch((2, 3, 5, 7), indices=True, **attributes)  # y: (2, 3, 4, 3)
    assert _struct(launch) == {
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
    assert _struct(launch)["indices_stride"] == [0, 0, 0]


@pytest.mark.parametrize("wide", [False, True])
def test_structs_of_both_widths_hold_the_same_numbers(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = _struct(_launch((2, 3, 8, 9), kernel_shape=[3, 2], pads=[1, 1, 1, 1], indices=True))
    monkeypatch.setattr(params, "INDEX_LIMIT", 1 if wide else BORDER)
    launch = _launch((2, 3, 8, 9), kernel_shape=[3, 2], pads=[1, 1, 1, 1], indices=True)
    assert _wide(launch) is wide
    missing = int(wide)  # with four axes, one more comes first
    of_own_axes = {
        name: value[missing:] if isinstance(value, list) else value for name, value in _struct(launch).items()
    }
    assert of_own_axes == narrow


def test_views_keep_their_strides_negative_ones_too() -> None:
    launch = _launch(
        (2, 3, 6),
        x_strides=(-40, 0, -2),
        y_strides=(1, 2, -6),
        indices=(7, 100, -300),
        kernel_shape=[2],
        dilations=[3],
    )
    struct = _struct(launch)
    assert (struct["x_batch"], struct["x_channel"], struct["x_stride"], struct["x_step"]) == (
        *(-40, 0),
        *([0, 0, -2], [0, 0, -6]),
    )
    assert (struct["y_batch"], struct["y_channel"], struct["y_stride"]) == (1, 2, [0, 0, -6])
    assert (struct["indices_batch"], struct["indices_channel"], struct["indices_stride"]) == (7, 100, [0, 0, -300])


def test_strides_that_are_never_stepped_along_may_be_anything() -> None:
    far = 2**61
    launch = _launch((1, 1, 1), x_strides=(far, -far, far), y_strides=(-far, far, far), kernel_shape=[1])
    struct = _struct(launch)
    assert not _wide(launch)
    assert [struct[f"{array}_{axis}"] for array in "xy" for axis in ("batch", "channel", "stride")] == [
        0,
        0,
        [0] * 3,
    ] * 2


@pytest.mark.parametrize(("order", "strides"), [(0, [20, 5, 1]), (1, [1, 3, 12])])
def test_the_numbers_of_the_elements_follow_storage_order(order: int, strides: list[int]) -> None:
    launch = _launch((2, 2, 3, 4, 5), kernel_shape=[2, 2, 2], dilations=[1, 2, 3], storage_order=order, indices=True)
    struct = _struct(launch)
    assert struct["place_stride"] == strides
    assert struct["place_step"] == [strides[0], 2 * strides[1], 3 * strides[2]]
    assert struct["plane"] == 60


# ---------------------------------------------------------------- what can have no effect


def _axis(n: int, **attributes: Any) -> tuple[int, int, int, int]:
    """Return stride, pad, reach and dilation of an axis of n elements."""
    struct = _struct(_launch((1, 1, n), **attributes))
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
    struct = _struct(_launch((1, 1, 8), x_strides=(1, 1, -2), indices=True, **attributes))
    assert (struct["stride"], struct["pad"]) == ([0, 0, 0, HUGE], [0, 0, 0, HUGE])
    assert (struct["reach"], struct["dilation"]) == ([1, 1, 1, HUGE + 1], [1, 1, 1, HUGE])
    assert (struct["x_step"], struct["place_step"]) == ([0, 0, 0, -16], [0, 0, 0, 8])


# ---------------------------------------------------------------- index widths


@pytest.mark.parametrize("stride", [BORDER // 3, -(BORDER // 3)])
def test_the_span_of_an_array_widens_the_indices(stride: int) -> None:
    four = (4, 1, 1)  # at most three strides apart
    assert not _wide(_launch(four, x_strides=(stride, 0, 0), kernel_shape=[1]))
    assert _wide(_launch(four, x_strides=(stride + (1 if stride > 0 else -1), 0, 0), kernel_shape=[1]))
    assert not _wide(_launch(four, y_strides=(stride, 1, 1), kernel_shape=[1]))
    assert _wide(_launch(four, y_strides=(2 * stride, 1, 1), kernel_shape=[1]))
    assert not _wide(_launch(four, indices=(stride, 1, 1), kernel_shape=[1]))
    assert _wide(_launch(four, indices=(2 * stride, 1, 1), kernel_shape=[1]))


def test_the_spans_of_all_axes_add_up_whatever_their_signs() -> None:
    third = BORDER // 3
    assert not _wide(_launch((2, 2, 1), x_strides=(third, -third, 0), kernel_shape=[1]))
    assert _wide(_launch((2, 2, 2), x_strides=(third, -third, third + 9), kernel_shape=[1]))


def test_a_tensor_of_2_gib_keeps_short_indices_since_offsets_count_elements() -> None:
    assert not _wide(_launch((32, 64, 512, 512), dtype="float64", kernel_shape=[4, 4], indices=True))
    assert _wide(_launch((128, 64, 512, 512), dtype="int8", kernel_shape=[4, 4]))


def test_the_number_of_outputs_widens_the_indices() -> None:
    flat: dict[str, Any] = {"x_strides": (0, 0, 0), "y_strides": (0, 0, 0), "kernel_shape": [1]}
    assert not _wide(_launch((BORDER - 1, 1, 1), **flat))
    assert _wide(_launch((BORDER, 1, 1), **flat))


def test_a_broadcast_plane_of_many_elements_widens_the_indices_but_many_planes_do_not() -> None:
    attributes: dict[str, Any] = {"kernel_shape": [1, 1], "strides": [2**14, 2**14], "indices": True}
    assert not _wide(_launch((2**8, 2**8, 2**15, 2**15), x_strides=(0, 0, 0, 0), **attributes))  # 2**46 elements
    assert _wide(_launch((1, 1, 2**16, 2**15), x_strides=(0, 0, 0, 0), **attributes))
    assert _struct(_launch((1, 1, 2**20, 2**20), x_strides=(0,) * 4, **attributes))["plane"] == 2**40
    assert not _wide(_launch((1, 1, 2**20, 2**20), x_strides=(0,) * 4, **attributes | {"indices": False}))


def test_numbers_of_elements_have_room_for_the_taps_past_a_window() -> None:
    """A step is as long as the dilation, and three steps go past the last element."""
    attributes: dict[str, Any] = {"kernel_shape": [2], "strides": [2**29], "x_strides": (0, 0, 0), "indices": True}
    fits = (BORDER - 1) // 4
    assert not _wide(_launch((1, 1, fits), dilations=[fits - 1], **attributes))
    assert _wide(_launch((1, 1, fits + 2), dilations=[fits + 1], **attributes))


def test_coordinates_in_the_padding_widen_the_indices() -> None:
    def begun(pad: int) -> Launch:
        return _launch((1, 1, 8), kernel_shape=[pad + 1], pads=[pad, pad], strides=[pad // 2])

    assert not _wide(begun(2**30))
    assert _wide(begun(2**31))


def test_a_long_dilation_widens_the_indices() -> None:
    x = {"x_strides": (0, 0, 0), "kernel_shape": [2], "strides": [2**31]}
    launch = _launch((1, 1, 2**34), dilations=[2**33], **x)
    assert _wide(launch)
    assert _struct(launch)["dilation"] == [1, 1, 1, 2**33]


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
    struct = _struct(_launch((2, 2, 0), kernel_shape=[2], pads=[1, 1]))
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
    _, *steps = _contiguous(shape)
    launch = _launch(shape, x_strides=(2**40 if far else 4**rank, *steps), kernel_shape=[2] * rank)
    assert launch.variant.name == f"max_pool_float32_{kernel}"
    struct = _struct(launch)
    missing = int(kernel[0]) - rank
    assert struct["x_extent"] == [1] * missing + [4] * rank
    assert struct["y_extent"] == [1] * missing + [3] * rank
    assert struct["x_stride"] == [0] * missing + steps[1:]
    assert struct["reach"] == [1] * missing + [2] * rank


def test_any_number_of_axes_is_planned() -> None:
    launch = _launch((1, 1, *(2,) * 20), kernel_shape=[2] * 20)
    assert launch.variant.parameter == "MaxPoolParams<int, 20>"
    assert _struct(launch)["reach"] == [2] * 20


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize(("size", "stride", "rows"), [(2, 2, 4), (3, 2, 4), (3, 1, 4)])
def test_a_variant_of_vectors_says_what_it_is(dtype: str, size: int, stride: int, rows: int) -> None:
    for indices in (False, True):
        variant = vectors.variant(dtype, indices, size, stride)
        assert variant.name == f"max_pool_{dtype}_3d_vectors_{size}x{stride}" + ("_indices" if indices else "")
        assert variant.function == ("max_pool_pairs" if indices else "max_pool_vectors")
        assert variant.arguments[1:] == (str(size), str(stride), str(rows))
        # Five blocks of 128 threads with 96 registers each; for bytes and without Indices, four with 128.
        assert (variant.threads, variant.blocks_per_sm) == (128, 5 if indices and "int" not in dtype else 4)


@pytest.mark.parametrize(
    ("row", "name", "arguments"),
    [
        (("float16", False, 3, False), "max_pool_float16_3d", ("__half", "int", "3", "false")),
        (("bfloat16", False, 5, True), "max_pool_bfloat16_5d_indices", ("__nv_bfloat16", "int", "5", "true")),
        (("uint8", True, 4, True), "max_pool_uint8_4d_indices_wide", ("unsigned char", "long long", "4", "true")),
        (("int8", True, 4, False), "max_pool_int8_4d_wide", ("signed char", "long long", "4", "false")),
    ],
)
def test_a_variant_says_what_it_is(row: tuple[str, bool, int, bool], name: str, arguments: Ints) -> None:
    variant = general.variant(*row)
    assert (variant.name, variant.arguments) == (name, arguments)
    assert variant.parameter == f"MaxPoolParams<{arguments[1]}, {arguments[2]}>"
    assert (variant.source, variant.function) == ("pool/general.cu", "max_pool")


# ---------------------------------------------------------------- the same bits for every batch


def _average_plan(kernel: str, images: int, invariant: bool, dtype: str = "float32") -> Plan:
    attributes: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    x_shape = (images, 5, 30, 31)
    forward = geometries.average_pool(x_shape, **attributes)
    if kernel == "average_pool":
        strides = {"x": _contiguous(x_shape), "y": _contiguous(forward.y_shape)}
        return planning.plan(kernel, forward, dtype, strides, HOPPER, "ieee", invariant=invariant)
    if kernel == "average_pool_grad":
        backward: Any = gradients.average_pool_grad(forward.y_shape, x_shape=x_shape, **attributes)
        strides = {"dy": _contiguous(forward.y_shape), "y": _contiguous(x_shape)}
    else:
        backward = gradients.max_pool_grad(forward.y_shape, forward.y_shape, x_shape=x_shape, **attributes)
        strides = {name: _contiguous(forward.y_shape) for name in ("dy", "indices")} | {"y": _contiguous(x_shape)}
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
