"""TopK, NonMaxSuppression and RoiAlign, compared with ONNX Runtime, or with the definition where it has none."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuconv
from gpuconv.onnx import backend
from tests.harness.device_arrays import device_arrays
from tests.onnx.models import floats, run
from tests.onnx.networks import both

pytestmark = pytest.mark.slow


def top(x: Any, k: int, opset: int = 11, device: str = "CPU", **attributes: Any) -> tuple[Any, Any]:
    if opset < 10:
        values, indices = run("TopK", [x], opset, 2, device, k=k, **attributes)
    else:
        values, indices = run("TopK", [x, np.array([k])], opset, 2, device, **attributes)
    return values, indices


def by_definition(row: list[float], k: int, largest: bool) -> list[int]:
    """Return the indices sorted by value and then by index; NaN is the largest value."""

    def key(at: int) -> tuple[bool, float, int]:
        missing = row[at] != row[at]
        value = 0 if missing else row[at]
        return (not missing, -value, at) if largest else (missing, value, at)

    return sorted(range(len(row)), key=key)[:k]


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("kind", ["ties", "nan", "unsigned", "extremes", "zeros", "half"])
def test_the_first_of_equal_elements_comes_first(kind: str, largest: int) -> None:
    """In short rows, and in long ones of which few elements are sorted."""
    rng = np.random.default_rng(0)
    for extent, k in ((9, 4), (9, 9), (9, 0), (700, 30), (700, 175), (700, 1), (700, 176)):
        x = rng.integers(0, 7, (3, extent)).astype(np.float32)
        if kind == "nan":
            x[rng.random(x.shape) < 0.1] = np.nan
        elif kind == "zeros":
            x = np.where(x < 4, -0.0, 0.0).astype(np.float32)
        elif kind != "ties":
            x = x.astype({"unsigned": np.uint8, "extremes": np.int64, "half": np.float16}[kind])
        if kind == "extremes":
            x = np.where(x < 2, np.iinfo(np.int64).min, np.where(x < 4, np.iinfo(np.int64).max, x))
        values, indices = top(x, k, largest=largest)
        assert (values.dtype, indices.dtype) == (x.dtype, np.int64)
        assert indices.tolist() == [by_definition(row, k, bool(largest)) for row in x.tolist()]
        np.testing.assert_array_equal(values, np.take_along_axis(x, indices, 1))
        with device_arrays():
            np.testing.assert_array_equal(top(x, k, largest=largest, device="CUDA")[1], indices)


@pytest.mark.parametrize("axis", [-3, -2, -1, 0, 1, 2])
def test_top_k_along_any_axis(axis: int) -> None:
    x = np.round(3 * floats(4, 5, 6))
    long = np.round(9 * floats(*(600 if at == axis % 3 else 2 for at in range(3))))
    for array, largest in product((x, long), (0, 1)):
        got, expected = both("TopK", 11, [array, np.array([3])], 2, axis=axis, largest=largest)
        for actual, wanted in zip(got, expected, strict=True):
            np.testing.assert_array_equal(actual, wanted)
    for opset in (1, 9, 10):
        np.testing.assert_array_equal(top(x, 3, opset, axis=axis)[1], top(x, 3, axis=axis)[1])


def test_there_are_no_more_than_all() -> None:
    with pytest.raises(gpuconv.ArgumentError, match=r"^TopK node.*k is 5, but axis 1 of x\.shape=\(3, 4\) has 4"):
        top(floats(3, 4), 5)
    assert top(floats(0, 700), 3)[0].shape == (0, 3)


def boxes_of(rng: Any, batches: int, count: int, center: bool) -> Any:
    """Draw boxes on a grid, so that many overlap by the same share; some have no area, some have swapped ends."""
    low, size = rng.integers(0, 12, (batches, count, 2)), rng.integers(0, 6, (batches, count, 2))
    boxes = np.concatenate([low, size if center else low + size], axis=2)
    swapped = rng.random(count) < 0.3
    if not center:
        boxes[:, swapped] = boxes[:, swapped][..., [2, 1, 0, 3]]
    return (boxes / 8).astype(np.float32)


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize(("count", "limit"), [(1, 3), (60, 1), (60, 1000), (400, 30), (400, 1000), (5, 0), (0, 3)])
def test_boxes_that_overlap_better_ones_are_left_out(count: int, limit: int, center: int) -> None:
    rng = np.random.default_rng(count)
    boxes = boxes_of(rng, 2, count, bool(center))
    scores = np.round(rng.random((2, 3, count)), 1).astype(np.float32)
    for overlap, least in ((0.5, 0.3), (0.25, None), (0.0, 0.7), (1.0, 0.0)):
        inputs = [
            boxes,
            scores,
            np.array([limit]),
            np.float32([overlap]),
            None if least is None else np.float32([least]),
        ]
        ((got,), (expected,)) = both("NonMaxSuppression", 11, inputs, center_point_box=center)
        np.testing.assert_array_equal(got, expected)


def test_without_a_limit_there_are_no_boxes() -> None:
    node = helper.make_node("NonMaxSuppression", ["b", "s"], ["y"])
    (y,) = backend.run_node(node, [floats(1, 4, 4), floats(1, 2, 4)])
    assert (y.dtype, y.shape) == (np.int64, (0, 3))
    with pytest.raises(gpuconv.ArgumentError, match=r"^NonMaxSuppression node.*not \(1, 4, 4\) and \(1, 2, 5\)"):
        backend.run_node(node, [floats(1, 4, 4), floats(1, 2, 5)])


def regions(seed: int, count: int) -> Any:
    """Draw regions that extend over the edges; some end before they start."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform(-4, 30, (count, 4)).astype(np.float32)
    corners[1:, 2:] = corners[1:, :2] + rng.uniform(0, 20, (count, 2))[1:]
    return corners


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("opset", [10, 16])
@pytest.mark.parametrize("ratio", [0, 1, 3])
def test_regions_are_sampled(opset: int, ratio: int, mode: str) -> None:
    for seed, (height, width) in enumerate(((7, 9), (1, 1), (20, 3))):
        inputs = [floats(2, 3, height, width), regions(seed, 6), np.array([0, 1, 1, 0, 0, 1])]
        attributes = {
            "output_height": 3,
            "output_width": 2,
            "sampling_ratio": ratio,
            "spatial_scale": 0.7,
            "mode": mode,
        }
        if ratio == 0:  # ONNX Runtime cannot count the samples of a region that ends before it starts
            inputs[1][0] = inputs[1][1]
        ((got,), (expected,)) = both("RoiAlign", opset, inputs, **attributes)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
        with device_arrays():
            node = helper.make_node("RoiAlign", ["x", "r", "b"], ["y"], **attributes)
            (y,) = backend.run_node(node, inputs, "CUDA", opset_version=opset)
        np.testing.assert_array_equal(y, got)


def test_regions_in_halves_and_corners() -> None:
    """A bin has the mean of its samples, each interpolated from four elements; elements outside count as zero."""
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)

    def value(*corners: float) -> float:
        y = run("RoiAlign", [x, np.float32([corners]), np.array([0])], 16, sampling_ratio=1)
        return float(y.reshape(()))

    assert value(1, 1, 2, 2) == 5  # its middle (1.5, 1.5) is that of element (1, 1)
    assert value(1, 1, 3, 3) == 7.5
    assert value(0, 0, 0, 0) == 0  # half an element outside, so it is moved to the edge
    assert value(-9, -9, -2, -2) == 0


def test_damaged_regions() -> None:
    node = helper.make_node("RoiAlign", ["x", "r", "b"], ["y"])
    x = floats(2, 3, 4, 5)
    for rois, batches, message in (
        (np.zeros((1, 5), np.float32), [0], r"rois of shape \(1, 5\) must have the shape \(1, 4\)"),
        (np.zeros((1, 4), np.float32), [2], r"batch_indices has 2 to 2, but x\.shape=\(2, 3, 4, 5\)"),
        (np.float32([[0, 0, 1e9, 1e9]]), [0], "a region has bins of .* samples or more, but 1048576 are the most"),
        (np.float32([[0, 0, np.inf, 1]]), [0], "set sampling_ratio, or check rois"),
    ):
        with pytest.raises(gpuconv.ArgumentError, match=f"^RoiAlign node.*{message}"):
            backend.run_node(node, [x, rois, np.array(batches)], opset_version=16)
    for nothing in ([np.nan] * 4, [3, 3, 1, 1]):
        (y,) = backend.run_node(node, [x, np.float32([nothing]), np.array([0])], opset_version=16)
        assert not y.any()
    (y,) = backend.run_node(node, [x, np.empty((0, 4), np.float32), np.empty(0, np.int64)], opset_version=16)
    assert y.shape == (0, 3, 1, 1)
