"""Operators other than convolutions where opsets or implementations differ, by ONNX Runtime or the definition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import gpuconv
from gpuconv.onnx import backend, operators
from gpuconv.onnx.operators import products
from tests.harness.device_arrays import device_arrays
from tests.onnx.models import floats, model, run, value
from tests.onnx.networks import both, onnxruntime_run


def agrees_with_onnx_runtime(op_type: str, opset: int, inputs: list[Any], **attributes: Any) -> None:
    names = [f"x{n}" for n in range(len(inputs))]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    infos = [value(name, array.dtype, array.shape) for name, array in zip(names, inputs, strict=True)]
    proto = model([node], infos, [value("y", shape=inputs[0].shape)], opset)
    (got,) = backend.run_model(proto, inputs)
    (expected,) = onnxruntime_run(proto, dict(zip(names, inputs, strict=True)))
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)  # powers and roots with errors of a few ulps


@pytest.mark.parametrize("opset", [7, 8, 9, 13, 14, 15, 22])
@pytest.mark.parametrize("attributes", [{}, {"epsilon": 0.01}, {"momentum": 0.5}])
def test_batch_normalization_is_by_the_given_statistics(opset: int, attributes: dict[str, float]) -> None:
    parameters = [np.abs(floats(3, seed=seed)) + 0.1 for seed in range(1, 5)]
    agrees_with_onnx_runtime("BatchNormalization", opset, [floats(2, 3, 4, 5), *parameters], **attributes)


def test_batch_normalization_with_a_parameter_per_element() -> None:
    x, (scale, bias, mean) = floats(2, 3, 4), (floats(3, 4, seed=seed) for seed in range(1, 4))
    var = np.abs(floats(3, 4, seed=4)) + 0.1
    y = run("BatchNormalization", [x, scale, bias, mean, var], 8, spatial=0)
    np.testing.assert_allclose(y, scale * (x - mean) / np.sqrt(var + 1e-5) + bias, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_groups_are_normalized(groups: int) -> None:
    """Before opset 21, scales are per group instead of per channel; onnx's checker refuses that form as deprecated."""
    for shape in ((2, 6, 4, 5), (1, 6, 3), (3, 6)):
        scale, bias = (floats(6, seed=seed) for seed in (1, 2))
        agrees_with_onnx_runtime("GroupNormalization", 21, [floats(*shape), scale, bias], num_groups=groups)
        found = operators.find(helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=groups), 18)
        assert found is not None
        operator, form = found
        grouped = floats(*shape).reshape(shape[0], groups, -1)
        y = operator.function(form, floats(*shape), scale[:groups], bias[:groups]).reshape(grouped.shape)
        mean, var = grouped.mean(-1, keepdims=True), grouped.var(-1, keepdims=True)
        expected = (grouped - mean) / np.sqrt(var + 1e-5) * scale[:groups, None] + bias[:groups, None]
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_groups_are_normalized_in_the_wider_type() -> None:
    x, scale, bias = 1e4 + floats(2, 4, 9).astype(np.float64), np.ones(4), np.zeros(4)
    single = [array.astype(np.float32) for array in (x, scale, bias)]
    for inputs, stash, rtol in (([x, scale, bias], {}, 1e-9), (single, {"stash_type": TensorProto.DOUBLE}, 3e-7)):
        y = run("GroupNormalization", inputs, num_groups=2, epsilon=0.0, **stash)
        assert y.dtype == inputs[0].dtype
        grouped = inputs[0].astype(np.float64).reshape(2, 2, 18)
        expected = (grouped - grouped.mean(-1, keepdims=True)) / grouped.std(-1, keepdims=True)
        np.testing.assert_allclose(y.reshape(2, 2, 18), expected, rtol=rtol)


def test_groups_that_do_not_fit_are_refused() -> None:
    shapes = r"scale and bias must have the shape \(6,\), not \(2,\) and \(6,\)"
    for groups, scales, message in (
        (4, 6, "num_groups is 4, which does not divide the 6 channels of X"),
        (2, 2, shapes),
    ):
        with pytest.raises(gpuconv.ArgumentError, match=message):
            run("GroupNormalization", [floats(1, 6, 2), floats(scales), floats(6)], num_groups=groups)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 11, 12, 13, 14, 15])
def test_lrn_is_across_channels(size: int) -> None:
    """Even sizes reach one channel further up than down."""
    x = 3 * floats(1, 6, 3, 4)
    y = run("LRN", [x], size=size, alpha=0.3, beta=0.6, bias=1.5)
    for c in range(6):
        near = [i for i in range(6) if -math.floor((size - 1) / 2) <= i - c <= math.ceil((size - 1) / 2)]
        total = (x[:, near].astype(np.float64) ** 2).sum(axis=1)
        np.testing.assert_allclose(y[:, c], x[:, c] / (1.5 + 0.3 / size * total) ** 0.6, rtol=1e-5)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [7, 11, 12, 13, 22])
def test_softmax_spans_all_later_axes_before_opset_13(op_type: str, opset: int) -> None:
    x = floats(2, 3, 4, 5)
    agrees_with_onnx_runtime(op_type, opset, [x])
    for axis in range(4):
        agrees_with_onnx_runtime(op_type, opset, [x], axis=axis)
    if opset >= 11:
        agrees_with_onnx_runtime(op_type, opset, [x], axis=-2)


@pytest.mark.parametrize(("op_type", "alone"), [("Softmax", 1), ("LogSoftmax", 0), ("Hardmax", 1)])
def test_softmax_along_no_axis_is_of_single_elements_before_opset_13(op_type: str, alone: int) -> None:
    """The axis may be one past the last, as Flatten's: each element is a row of its own."""
    for opset in (1, 11, 12):
        assert run(op_type, [floats(2, 3)], opset, axis=2).tolist() == [[alone] * 3] * 2
    for opset in (13, 22):
        with pytest.raises(gpuconv.ArgumentError, match="axis 2 is out of range for an array of 2 axes"):
            run(op_type, [floats(2, 3)], opset, axis=2)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_of_nothing_is_nothing(op_type: str) -> None:
    assert run(op_type, [floats(2, 0, 3)], 11).shape == (2, 0, 3)


def test_average_pool_s_errors_name_the_node() -> None:
    node = helper.make_node("AveragePool", ["x"], ["y"], name="mean", kernel_shape=[9])
    with pytest.raises(
        gpuconv.ArgumentError, match=r"^AveragePool node 'mean': the output would have the negative size"
    ):
        backend.run_node(node, [floats(1, 1, 4)])


def test_products_of_nothing() -> None:
    """As on a device, whose kernels are not called."""
    for rows, inner, columns in ((0, 2, 3), (4, 0, 3), (4, 2, 0)):
        a, b = np.ones((rows, inner), np.float32), np.ones((inner, columns), np.float32)
        assert products._of_rows(a, b).tolist() == (a @ b).tolist()
        bias = np.arange(columns, dtype=np.float32)
        assert products._of_rows(a, b, bias).tolist() == (a @ b + bias).tolist()
        stacks = np.stack([a, a]), np.stack([b, b])
        y = products._of_stacks(*stacks)
        assert (y.dtype, y.shape) == (np.float32, (2, rows, columns))
        assert not y.any()
    assert products._of_stacks(np.ones((0, 4, 2)), np.ones((0, 2, 3))).shape == (0, 4, 3)


@pytest.mark.parametrize(
    ("dtype", "least", "greatest"),
    [("float32", -math.inf, math.inf), ("int8", -128, 127), ("uint8", 0, 255), ("bool", False, True)],
)
def test_the_extremes_of_nothing_are_the_ends_of_the_type(dtype: str, least: Any, greatest: Any) -> None:
    x, axes = np.zeros((2, 0, 3), dtype), np.array([1])
    for op_type, expected in (("ReduceMax", least), ("ReduceMin", greatest)):
        y = run(op_type, [x, axes], 20, keepdims=0)
        assert (y.dtype, y.tolist()) == (np.dtype(dtype), [[expected] * 3] * 2)


def test_reductions_over_no_axes_are_over_all_or_none() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for op_type, expected in (("ReduceMax", 23), ("ReduceMin", 0), ("ReduceSum", 276), ("ReduceMean", 11.5)):
        assert run(op_type, [x], 18, noop_with_empty_axes=0).tolist() == [[[expected]]]
        np.testing.assert_array_equal(run(op_type, [x], 18, noop_with_empty_axes=1), x)
        y = run(op_type, [x, np.array([0, -1])], 18, keepdims=0)
        sums = {"ReduceMax": x.max, "ReduceMin": x.min, "ReduceSum": x.sum, "ReduceMean": x.mean}
        np.testing.assert_array_equal(y, sums[op_type](axis=(0, 2)))


@pytest.mark.parametrize("block", [1, 2, 3])
def test_blocks_of_space_become_channels_that_lie_apart(block: int) -> None:
    x = floats(2, 3, 2 * block, block)
    y = run("SpaceToDepth", [x], blocksize=block)
    assert y.shape == (2, 3 * block**2, 2, 1)
    for i in range(block):
        for j in range(block):
            part = y[:, 3 * (i * block + j) : 3 * (i * block + j + 1)]
            assert np.array_equal(part, x[:, :, i::block, j::block])


@pytest.mark.parametrize("alpha", [1.0, 2.0, -0.5, 0.0])
@pytest.mark.parametrize("beta", [1.0, 2.0, 0.0])
def test_a_gemm_is_scaled_as_asked(alpha: float, beta: float) -> None:
    y = run("Gemm", [np.float32([[1, 2]]), np.float32([[3], [5]]), np.float32([[7]])], alpha=alpha, beta=beta)
    assert y.tolist() == [[alpha * 13 + beta * 7]]
    y = run("Gemm", [np.float32([[1, 2]]), np.float32([[3], [5]])], alpha=alpha, beta=beta)
    assert y.tolist() == [[alpha * 13]]


@pytest.mark.parametrize(
    ("region", "size", "found"),
    [
        ((0, 1), 3, [10, 20, 30]),
        ((0.5, 1), 3, [20, 25, 30]),  # as many elements as before, from half of them
        ((0, 0.5), 3, [10, 15, 20]),
        ((1, 0), 3, [30, 20, 10]),
        ((0.5, 1), 2, [20, 30]),
        ((0.5, 1), 1, [25]),  # the middle
        ((0.5, 1.5), 3, [20, 30, 7]),  # beyond the last element
        ((-0.5, 0.5), 3, [7, 10, 20]),
    ],
)
def test_a_crop_is_resized_from_its_first_element_to_its_last(
    region: tuple[float, float], size: int, found: list[float]
) -> None:
    x, roi = np.float32([10, 20, 30]).reshape(1, 1, 3), np.float32([0, 0, region[0], 1, 1, region[1]])
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    y = run("Resize", [x, roi, None, np.int64([1, 1, size])], mode="linear", **attributes)
    assert y.tolist() == [[found]]


NORMS: list[tuple[int, tuple[int, ...], dict[str, Any]]] = [
    (11, (7,), {"kernel_shape": [3], "pads": [2, 1], "strides": [2]}),
    (11, (5, 6), {"kernel_shape": [2, 3], "auto_pad": "SAME_UPPER", "strides": [1, 2]}),
    (18, (5, 6), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "pads": [1, 1, 1, 1]}),
    (18, (9, 8), {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 1, 0, 1]}),
    (22, (4, 5, 6), {"kernel_shape": [2, 3, 2], "pads": [1, 0, 1, 0, 2, 1], "strides": [1, 2, 3]}),
]


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(("opset", "spatial", "attributes"), NORMS)
def test_norms_of_windows(opset: int, spatial: tuple[int, ...], attributes: dict[str, Any], p: int) -> None:
    x = floats(2, 3, *spatial)
    ((got,), (expected,)) = both("LpPool", opset, [x], p=p, **attributes)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    with device_arrays():
        there = run("LpPool", [x], opset, device="CUDA", p=p, **attributes)
    np.testing.assert_allclose(there, got, rtol=1e-5, atol=1e-6)
    ((got,), (expected,)) = both("GlobalLpPool", 2, [x], p=p)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_norms_of_opset_1_have_powers_that_are_no_integers() -> None:
    x = floats(1, 2, 6)
    y = run("LpPool", [x], 1, p=2.5, kernel_shape=[6])
    np.testing.assert_allclose(y[..., 0], (np.abs(x) ** 2.5).sum(axis=2) ** 0.4, rtol=1e-5)


def test_norms_of_float16_are_summed_in_float32() -> None:
    x = np.full((1, 1, 64), 200, np.float16)
    for y in (run("LpPool", [x], kernel_shape=[64]), run("GlobalLpPool", [x])):
        assert (y.dtype, y.tolist()) == (np.float16, [[[1600]]])
