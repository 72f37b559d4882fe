"""GridSample, DeformConv and Resize with filters, compared with ONNX Runtime, gpuconv.conv or the definition."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import gpuconv
from tests.harness.device_arrays import device_arrays
from tests.onnx.models import floats, run
from tests.onnx.networks import both


def agrees(op_type: str, inputs: list[Any], opset: int, tolerance: float = 1e-5, **attributes: Any) -> None:
    ((got,), (expected,)) = both(op_type, opset, inputs, **attributes)
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def places(*shape: int, seed: int) -> Any:
    """Return coordinates, half of them outside."""
    return np.random.default_rng(seed).uniform(-2, 2, shape).astype(np.float32)


# ---------------------------------------------------------------- GridSample

PADDINGS = ["zeros", "border", "reflection"]


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("opset", "mode"), [(16, "bilinear"), (16, "bicubic"), (20, "linear"), (20, "cubic")])
def test_images_are_sampled_as_by_onnx_runtime(opset: int, mode: str, padding: str, corners: int) -> None:
    for seed, shape in enumerate([(2, 3, 5, 4), (1, 1, 1, 7), (1, 2, 1, 1), (1, 70, 40, 30)]):
        x, grid = floats(*shape, seed=seed), places(shape[0], 6, 5, 2, seed=seed)
        agrees("GridSample", [x, grid], opset, mode=mode, padding_mode=padding, align_corners=corners)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", PADDINGS)
def test_the_nearest_element_is_read_as_it_is(padding: str, corners: int) -> None:
    x, grid = floats(2, 3, 5, 4), places(2, 6, 5, 2, seed=1)
    agrees("GridSample", [x, grid], 20, 0, mode="nearest", padding_mode=padding, align_corners=corners)
    for dtype in (np.int8, np.uint64, np.float16, np.bool_):
        whole = (10 * x).astype(dtype)
        expected = run("GridSample", [whole.astype(np.float64), grid], 20, mode="nearest", padding_mode=padding)
        got = run("GridSample", [whole, grid], 20, mode="nearest", padding_mode=padding)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got.astype(np.float64), expected)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_volumes_are_sampled_as_by_onnx_runtime(mode: str, padding: str, corners: int) -> None:
    for seed, shape in enumerate([(2, 3, 4, 5, 3), (1, 1, 1, 2, 1)]):
        x, grid = floats(*shape, seed=seed), places(shape[0], 2, 3, 4, 3, seed=seed)
        agrees("GridSample", [x, grid], 20, mode=mode, padding_mode=padding, align_corners=corners)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_a_line_is_an_image_of_one_column(mode: str, padding: str) -> None:
    """Compared with the same points of an image; 1 is the middle of a single column where corners are aligned."""
    x, line = floats(2, 3, 9), places(2, 7, 1, seed=2)
    plane = np.stack([np.zeros_like(line), line], axis=-1).reshape(2, 7, 1, 2)
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": 1}
    got = run("GridSample", [x, line], 20, **attributes)
    expected = run("GridSample", [x[..., None], plane], 20, **attributes)
    np.testing.assert_allclose(got, expected[..., 0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_what_lies_outside_counts_for_nothing(mode: str) -> None:
    """Even where the nearest element inside, or the coordinate, is infinite."""
    x = np.full((1, 1, 3, 3), np.inf, np.float32)
    for far in (-9.0, 5.0, np.inf, -np.inf, 1e30):
        grid = np.float32([0, far]).reshape(1, 1, 1, 2)
        y = run("GridSample", [x, grid], 20, mode=mode)
        assert y.item() == 0
        y = run("GridSample", [np.float32(7) * np.ones_like(x), grid], 20, mode=mode, padding_mode="border")
        np.testing.assert_allclose(y.item(), 7, rtol=1e-6)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_beyond_the_border_is_the_border_itself(mode: str) -> None:
    x, far = floats(1, 3, 4, 5), np.float32([-1.9, -1.3, 1.3, 1.7, 9])
    grid = np.stack([far, np.full_like(far, 3)], axis=-1).reshape(1, 1, 5, 2)
    y = run("GridSample", [x, grid], 20, mode=mode, padding_mode="border")
    np.testing.assert_array_equal(y[0, :, 0], x[0, :, 3, [0, 0, 4, 4, 4]].T)


def test_a_place_that_is_no_number_has_no_value() -> None:
    grid = np.full((1, 1, 1, 2), np.nan, np.float32)
    for padding in PADDINGS:
        y = run("GridSample", [floats(1, 1, 3, 3), grid], 20, padding_mode=padding)
        assert np.isnan(y).all()


def test_halfway_is_rounded_to_the_even_element() -> None:
    x = np.arange(5, dtype=np.float32).reshape(1, 1, 1, 5)
    at = (np.float32([0.5, 1.5, 2.5, 3.5]) / 2 - 1).reshape(1, 1, 4, 1)  # corners are aligned: 2 is the middle
    grid = np.concatenate([at, np.zeros_like(at)], axis=-1)
    y = run("GridSample", [x, grid], 20, mode="nearest", align_corners=1)
    assert y.ravel().tolist() == [0, 2, 2, 4]


def test_integers_are_cut_off_and_stay_in_their_range() -> None:
    x = np.uint8([[0, 255, 255, 0, 10]]).reshape(1, 1, 1, 5)
    at = (np.float32([0.25, 1.5, 3.25, 3.5]) / 2 - 1).reshape(1, 1, 4, 1)
    grid = np.concatenate([at, np.zeros_like(at)], axis=-1)
    linear = run("GridSample", [x, grid], 20, align_corners=1)
    assert linear.ravel().tolist() == [63, 255, 2, 5]
    cubic = run("GridSample", [x, grid], 20, mode="cubic", align_corners=1)
    assert cubic.ravel().tolist()[1] == 255  # where the curve is above
    assert cubic.ravel().tolist()[2] == 0  # and below


def test_grids_that_do_not_fit_are_refused() -> None:
    for grid in (places(1, 2, 2, 3, seed=0), places(2, 2, 2, 2, seed=0), places(1, 2, 2, seed=0)):
        with pytest.raises(gpuconv.ArgumentError, match=r"^GridSample node .*: X must be \(N, C, D1, …, Dr\) and grid"):
            run("GridSample", [floats(1, 1, 3, 3), grid], 20)
    for attributes in ({"mode": "quintic"}, {"padding_mode": "wrap"}):
        with pytest.raises(gpuconv.ArgumentError, match="must be one of"):
            run("GridSample", [floats(1, 1, 3, 3), places(1, 2, 2, 2, seed=0)], 20, **attributes)


@pytest.mark.parametrize("shape", [(0, 2, 3, 3), (1, 0, 3, 3), (1, 2, 3, 3)])
def test_nothing_is_sampled(shape: tuple[int, ...]) -> None:
    y = run("GridSample", [np.zeros(shape, np.float32), np.zeros((shape[0], 0, 4, 2), np.float32)], 20)
    assert y.shape == (*shape[:2], 0, 4)


# ---------------------------------------------------------------- DeformConv


@pytest.mark.parametrize(("group", "offset_group"), list(product([1, 2, 4], repeat=2)))
def test_a_deformed_convolution_is_onnx_runtime_s(group: int, offset_group: int) -> None:
    kernel, strides, dilations, pads = [2, 3], [2, 1], [1, 2], [1, 0, 2, 1]
    out = [(7 + 3 - 2) // 2 + 1, 8 + 1 - 5 + 1]
    x, w = floats(2, 4, 7, 8), floats(8, 4 // group, *kernel, seed=1)
    offset, b = 2 * floats(2, offset_group * 12, *out, seed=2), floats(8, seed=3)
    mask = np.abs(floats(2, offset_group * 6, *out, seed=4))
    attributes = {"group": group, "offset_group": offset_group, "strides": strides, "dilations": dilations}
    for bias, share in product([None, b], [None, mask]):
        given = [x, w, offset, bias, share]
        inputs = given if share is not None else given[:4] if bias is not None else given[:3]
        agrees("DeformConv", inputs, 19, pads=pads, **attributes)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("spatial", [(9,), (6, 7), (4, 5, 6)])
def test_without_offsets_it_is_a_convolution(spatial: tuple[int, ...], dtype: Any) -> None:
    """With small integers, whose sums are exact; integer offsets move the taps to other elements."""
    rank, rng = len(spatial), np.random.default_rng(0)
    x = rng.integers(-4, 5, (2, 4, *spatial)).astype(dtype)
    w, b = rng.integers(-4, 5, (6, 2, *(3,) * rank)).astype(dtype), np.arange(6, dtype=dtype)
    keywords: dict[str, Any] = {"group": 2, "pads": [1] * (2 * rank), "strides": [2] + [1] * (rank - 1)}
    expected = gpuconv.conv(x, w, b, **keywords)
    offset = np.zeros((2, 3**rank * rank, *expected.shape[2:]), dtype)
    got = run("DeformConv", [x, w, offset, b], 22, **keywords)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, expected)
    offset.reshape(2, 3**rank, rank, *expected.shape[2:])[:, :, -1] = 1
    shifted = np.concatenate([x[..., 1:], np.zeros_like(x[..., :1])], axis=-1)
    got = run("DeformConv", [x, w, offset, b], 22, **keywords)
    later = (slice(None),) * (1 + rank) + (slice(1, None),)  # the first column's left taps now are inside
    np.testing.assert_array_equal(got[later], gpuconv.conv(shifted, w, b, **keywords)[later])


def test_shapes_of_a_deformed_convolution_must_fit() -> None:
    x, w, offset = floats(1, 4, 5, 5), floats(2, 4, 3, 3), floats(1, 18, 3, 3)
    wrong: list[tuple[list[Any], dict[str, Any], str]] = [
        ([x, w, floats(1, 18, 3, 4)], {}, r"offset must have the shape \(1, 18, 3, 3\), not \(1, 18, 3, 4\)"),
        ([x, w, offset, floats(3)], {}, r"B must have the shape \(2,\), not \(3,\)"),
        ([x, w, offset, None, floats(1, 8, 3, 3)], {}, r"mask must have the shape \(1, 9, 3, 3\)"),
        ([x, w, offset], {"group": 2}, "do not fit with group 2 and offset_group 1"),
        ([x, w, offset], {"offset_group": 3}, "do not fit with group 1 and offset_group 3"),
        ([x, w, offset], {"kernel_shape": [3, 2]}, r"kernel_shape is \(3, 2\), but W has the shape"),
        ([x, w, offset], {"strides": [1]}, "must have 1, 1 and 2 numbers for each of 2 axes"),
        ([x, w[0], offset], {}, "must have the same three or more axes"),
    ]
    for inputs, attributes, message in wrong:
        with pytest.raises(gpuconv.ArgumentError, match=f"^DeformConv node .*{message}"):
            run("DeformConv", inputs, 19, **attributes)


def test_deformed_groups_on_a_device() -> None:
    """Channels that share offsets are read together on a device, for any number of groups of filters."""
    x, w, offset = floats(1, 4, 5, 5), floats(4, 2, 3, 3, seed=1), floats(1, 36, 5, 5, seed=2)
    attributes = {"group": 2, "offset_group": 2, "pads": [1, 1, 1, 1]}
    expected = run("DeformConv", [x, w, offset], 19, **attributes)
    with device_arrays() as device:
        got = run("DeformConv", [x, w, offset], 19, device="CUDA", **attributes)
        assert device.computed == ["conv"]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- Resize

TRANSFORMS = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    ("mode", "antialias", "exclude"), [("cubic", 0, 0), ("cubic", 0, 1), ("linear", 1, 0), ("cubic", 1, 0)]
)
def test_filters_are_those_of_onnx_runtime(transform: str, mode: str, antialias: int, exclude: int) -> None:
    x = floats(2, 3, 9, 7)
    attributes: dict[str, Any] = {"mode": mode, "antialias": antialias, "coordinate_transformation_mode": transform}
    if mode == "cubic":
        attributes |= {"exclude_outside": exclude, "cubic_coeff_a": -0.5 if exclude else -0.75}
    for sizes in ([4, 13], [9, 3], [1, 20]):
        agrees("Resize", [x, None, None, np.int64([2, 3, *sizes])], 19, 2e-5, **attributes)
    if transform != "align_corners":  # where the last element is not that of the rounded size
        agrees("Resize", [x, None, np.float32([1, 1, 0.6, 1.7])], 19, 2e-5, **attributes)


def test_a_crop_is_resized_by_a_cubic() -> None:
    x, roi = floats(1, 1, 6, 8), np.float32([0, 0, 0.1, 0.2, 1, 1, 0.7, 1.3])
    attributes = {"mode": "cubic", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    agrees("Resize", [x, roi, None, np.int64([1, 1, 5, 9])], 19, 2e-5, **attributes)


def test_integers_between_others_are_rounded_and_stay_in_their_range() -> None:
    x = np.uint8([[0, 0, 255, 255, 0, 0]]).reshape(1, 1, 6)
    for attributes in ({"mode": "cubic"}, {"mode": "cubic", "antialias": 1}):
        exact = run("Resize", [x.astype(np.float64), None, None, np.int64([1, 1, 11])], 19, **attributes)
        y = run("Resize", [x, None, None, np.int64([1, 1, 11])], 19, **attributes)
        assert exact.min() < 0
        assert exact.max() > 255
        np.testing.assert_array_equal(y, np.clip(np.rint(exact), 0, 255))


@pytest.mark.parametrize("antialias", [0, 1])
def test_a_cubic_keeps_a_line(antialias: int) -> None:
    """Where all elements that it reads are inside: such weights have the moments 1 and 0."""
    x = np.arange(40, dtype=np.float64).reshape(1, 1, 40)
    y = run("Resize", [x, None, None, np.int64([1, 1, 20])], 19, mode="cubic", antialias=antialias)
    np.testing.assert_allclose(y[0, 0, 3:-3], np.arange(20)[3:-3] * 2 + 0.5, rtol=1e-12)
