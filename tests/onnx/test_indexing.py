"""Operators that read and write by indices: ONNX Runtime's or the definition's results, and equal bits on a device."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpuconv
from tests.harness.device_arrays import device_arrays
from tests.onnx.models import floats, run
from tests.onnx.networks import both

pytestmark = pytest.mark.slow

REDUCTIONS = ["none", "add", "mul", "max", "min"]


def agrees(op_type: str, opset: int, inputs: list[Any], **attributes: Any) -> None:
    """Compare with ONNX Runtime, and a device's results with the host's."""
    ((got,), (expected,)) = both(op_type, opset, inputs, **attributes)
    np.testing.assert_array_equal(got, expected)
    with device_arrays():
        np.testing.assert_array_equal(run(op_type, inputs, opset, device="CUDA", **attributes), got)


def shape_of(rng: Any) -> tuple[tuple[int, ...], int]:
    """Draw the shape of x, and an axis counted from either end."""
    ndim = int(rng.integers(1, 5))
    return tuple(map(int, rng.integers(1, 6, ndim))), int(rng.integers(-ndim, ndim))


@pytest.mark.parametrize("seed", range(10))
def test_elements_along_an_axis(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape, axis = shape_of(rng)
    x, extent = floats(*shape), shape[axis]
    counts = [int(rng.integers(seed > 0, n + 1)) for n in shape]
    counts[axis] = int(rng.integers(0, 9))
    indices = rng.integers(-extent, extent, counts)
    for dtype in (np.int32, np.int64):
        agrees("GatherElements", 13, [x, indices.astype(dtype)], axis=axis)
    for reduction in REDUCTIONS:
        distinct = np.argsort(rng.random(shape), axis=axis) - extent * (seed % 2)
        where = distinct if reduction == "none" else indices
        updates = floats(*where.shape, seed=1)
        agrees("ScatterElements", 18, [x, where, updates], axis=axis, reduction=reduction)


@pytest.mark.parametrize("seed", range(10))
def test_slices_by_tuples_of_indices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape, _ = shape_of(rng)
    x, depth = floats(*shape), int(rng.integers(1, len(shape) + 1))
    batch, count = len(shape) - depth, tuple(map(int, rng.integers(seed > 0, 4, rng.integers(0, 3))))
    indices = np.stack([rng.integers(-n, n, count) for n in shape[:depth]], -1)
    agrees("GatherND", 13, [x, indices])
    of_batches = np.stack([rng.integers(-n, n, (*shape[:batch], *count)) for n in shape[batch:]], -1)
    agrees("GatherND", 13, [x, of_batches], batch_dims=batch)
    for reduction in REDUCTIONS[1:]:
        agrees("ScatterND", 18, [x, indices, floats(*count, *shape[depth:], seed=1)], reduction=reduction)
    distinct = np.stack(np.unravel_index(rng.permutation(int(np.prod(shape[:depth])))[:3], shape[:depth]), -1)
    agrees("ScatterND", 11, [x, distinct, floats(len(distinct), *shape[depth:], seed=1)])


def test_an_axis_may_have_any_number_of_elements() -> None:
    x, indices = floats(3, 1000), np.random.default_rng(0).integers(-1000, 1000, (3, 70))
    np.testing.assert_array_equal(run("GatherElements", [x, indices], 18, axis=1), np.take_along_axis(x, indices, 1))


@pytest.mark.parametrize("dtype", [np.complex64, np.int8, np.bool_, object, ml_dtypes.float8_e5m2, ml_dtypes.int4])
def test_elements_of_any_type_are_gathered(dtype: Any) -> None:
    words, indices = np.array(["a", "b", "c"], object), np.array([2, -3, 2])
    x = words if dtype is object else np.array([1, 0, -2]).astype(dtype)
    for device in ("CPU", "CUDA"):
        with device_arrays():
            y = run("GatherElements", [x, indices], 18, device=device)
        assert (y.dtype, y.tolist()) == (x.dtype, [x[2], x[0], x[2]])


def test_of_updates_of_one_place_the_last_one_stays_or_all_count_in_their_order() -> None:
    x, indices, updates = np.float32([1, 7]), np.array([[0], [-2], [0]]), np.float32([1e8, 1, -1e8])
    for device in ("CPU", "CUDA"):
        with device_arrays():
            assert run("ScatterND", [x, indices, updates], 18, device=device).tolist() == [-1e8, 7]
            y = run("ScatterND", [x, indices, updates], 18, device=device, reduction="add")
            assert y.tolist() == [0, 7]  # ((1 + 1e8) + 1) - 1e8, where 1e8 swallows either 1
            along = run("ScatterElements", [x, indices[:, 0], updates], 18, device=device, reduction="max")
            assert along.tolist() == [1e8, 7]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_updates_of_16_bit_types_are_added_in_float32(dtype: Any) -> None:
    x, indices, updates = np.zeros(1, dtype), np.zeros(4000, np.int64), np.ones(4000, dtype)
    y = run("ScatterElements", [x, indices, updates], 18, reduction="add")
    assert (y.dtype, y.tolist()) == (dtype, [np.float32(dtype(4000))])


def test_truth_values_are_scattered_by_or_and_and() -> None:
    x, indices = np.array([True, False, False]), np.array([0, 1, 1])
    updates = np.array([False, True, False])
    assert run("ScatterElements", [x, indices, updates], 18, reduction="add").tolist() == [True, True, False]
    assert run("ScatterElements", [x, indices, updates], 18, reduction="mul").tolist() == [False, False, False]


def test_slices_of_nothing() -> None:
    x, indices = floats(3, 0), np.array([[1], [0]])
    assert run("GatherND", [x, indices], 18).shape == (2, 0)
    for reduction in REDUCTIONS:
        assert run("ScatterND", [x, indices, floats(2, 0)], 18, reduction=reduction).shape == (3, 0)


def test_inputs_are_not_written() -> None:
    x, indices = floats(3, 4), np.array([[1], [0]])
    x.flags.writeable = False
    for reduction in REDUCTIONS:
        assert run("ScatterND", [x, indices, floats(2, 4)], 18, reduction=reduction).flags.writeable


X = floats(3, 4)
WRONG: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("GatherElements", [X, np.array([[4]])], {"axis": 1}, "index 4 is out of range for the 4 elements of axis 1"),
    ("GatherElements", [X, np.array([[-4]])], {}, "index -4 is out of range for the 3 elements of axis 0"),
    (
        "GatherElements",
        [X, np.zeros((1, 5), np.int64)],
        {},
        r"\(1, 5\) must have no axis longer than x, of shape \(3, 4\)",
    ),
    ("GatherElements", [X, np.zeros(1, np.int64)], {}, r"indices of shape \(1,\) must have no axis longer"),
    ("GatherElements", [X, np.zeros((1, 1), np.int64)], {"axis": 2}, "axis 2 is out of range"),
    ("GatherND", [X, np.array([[0, 4]])], {}, "index 4 is out of range for the 4 elements of axis 1"),
    ("GatherND", [X, np.array([[0, 0, 0]])], {}, r"indices of shape \(1, 3\) do not fit x\.shape=\(3, 4\)"),
    ("GatherND", [X, np.array([[4], [0], [0]])], {"batch_dims": 1}, "index 4 is out of range .* axis 1"),
    ("GatherND", [X, np.array([[0], [0]])], {"batch_dims": 1}, "the first 1 axes must be alike"),
    ("ScatterElements", [X, np.array([[3]]), floats(1, 1)], {}, "index 3 is out of range for the 3 elements of axis 0"),
    ("ScatterElements", [X, np.array([[0]]), floats(1, 2)], {}, r"updates of shape \(1, 2\) must have the shape of"),
    ("ScatterND", [X, np.array([[-4]]), floats(1, 4)], {}, "index -4 is out of range for the 3 elements of axis 0"),
    ("ScatterND", [X, np.array([[0]]), floats(1, 3)], {}, r"updates of shape \(1, 3\) must have the shape \(1, 4\)"),
    ("ScatterND", [X, np.array([[0, 0, 0]]), floats(1)], {}, "must have the shape"),
]


@pytest.mark.parametrize(("op_type", "inputs", "attributes", "message"), WRONG)
def test_errors(op_type: str, inputs: list[Any], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(gpuconv.ArgumentError, match=f"^{op_type} node.*{message}"):
        run(op_type, inputs, 18, **attributes)


@pytest.mark.parametrize("depth", [np.array(3), np.array([3]), np.float32([3.9])])
def test_one_hot_classes(depth: Any) -> None:
    """Since opset 11, classes count from either end; values outside of the range are off everywhere."""
    indices, values = np.array([0, 2, 3, -1, -3, -4]), np.int32([7, 9])
    rows = {0: [9, 7, 7], 1: [7, 9, 7], 2: [7, 7, 9]}
    off = [7, 7, 7]
    expected = [rows[0], rows[2], off, rows[2], rows[0], off]
    assert run("OneHot", [indices, depth, values], 11).tolist() == expected
    assert run("OneHot", [indices, depth, values], 9).tolist() == [*expected[:3], off, off, off]
    assert run("OneHot", [np.float32([1.9, -1.9]), depth, values], 11).tolist() == [rows[1], rows[2]]


@pytest.mark.parametrize("axis", [-3, -2, -1, 0, 1, 2])
def test_one_hot_has_its_classes_along_any_axis(axis: int) -> None:
    agrees("OneHot", 11, [np.random.default_rng(0).integers(-6, 6, (2, 3)), np.array(4), floats(2)], axis=axis)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [-2, 0, 2])
def test_running_sums(axis: int, exclusive: int, reverse: int) -> None:
    for x in (np.round(9 * floats(5, 1, 4)), np.arange(40, dtype=np.int32).reshape(2, 4, 5), floats(3, 0, 2)):
        agrees("CumSum", 14, [x, np.array(axis)], exclusive=exclusive, reverse=reverse)


def test_running_sums_of_integers_wrap_and_those_of_float16_are_rounded_once() -> None:
    x = np.full(3, 2**31 - 1, np.int32)
    assert run("CumSum", [x, np.array(0)], 18).tolist() == [2**31 - 1, -2, 2**31 - 3]
    y = run("CumSum", [np.ones(4000, np.float16), np.array([0])], 18)
    assert (y.dtype, y[-1]) == (np.float16, 4000)
