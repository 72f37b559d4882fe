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
from tests.onnx.models import floats, model, value
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
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], spatial=0)
    (y,) = backend.run_node(node, [x, scale, bias, mean, var], opset_version=8)
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
    node = helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2, epsilon=0.0)
    grouped = x.reshape(2, 2, 18)
    expected = (grouped - grouped.mean(-1, keepdims=True)) / grouped.std(-1, keepdims=True)
    np.testing.assert_allclose(backend.run_node(node, [x, scale, bias])[0].reshape(2, 2, 18), expected, rtol=1e-9)
    node.attribute.append(helper.make_attribute("stash_type", TensorProto.DOUBLE))
    single = [array.astype(np.float32) for array in (x, scale, bias)]
    (y,) = backend.run_node(node, single)
    grouped = single[0].astype(np.float64).reshape(2, 2, 18)
    expected = (grouped - grouped.mean(-1, keepdims=True)) / grouped.std(-1, keepdims=True)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y.reshape(2, 2, 18), expected, rtol=3e-7)


def test_groups_that_do_not_fit_are_refused() -> None:
    node = helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=4)
    with pytest.raises(gpuconv.ArgumentError, match="num_groups is 4, which does not divide the 6 channels of X"):
        backend.run_node(node, [floats(1, 6, 2), floats(6), floats(6)])
    node.attribute[0].i = 2
    with pytest.raises(
        gpuconv.ArgumentError, match=r"scale and bias must have the shape \(6,\), not \(2,\) and \(6,\)"
    ):
        backend.run_node(node, [floats(1, 6, 2), floats(2), floats(6)])


SPECIAL = np.float32([-np.inf, -100, -3, -0.5, -0.0, 0.0, 0.5, 3, 100, np.inf, np.nan])


@pytest.mark.parametrize(
    ("op_type", "opset", "attributes"),
    [("Celu", 12, {}), ("Celu", 12, {"alpha": 0.4}), ("Selu", 6, {}), ("Selu", 22, {"alpha": 2.0, "gamma": 0.5})],
)  # fmt: skip
def test_activations_are_onnx_runtime_s(op_type: str, opset: int, attributes: dict[str, float]) -> None:
    for x in (5 * floats(3, 40), SPECIAL):
        agrees_with_onnx_runtime(op_type, opset, [x], **attributes)


@pytest.mark.parametrize("alpha", [1.0, 0.75, -2.0])
def test_activations_by_definition(alpha: float) -> None:
    """In float64; where the definitions give no number, their limits count."""
    x = 5 * floats(3, 40).astype(np.float64)
    sigmoid = 1 / (1 + np.exp(-alpha * x))
    (y,) = backend.run_node(helper.make_node("Swish", ["x"], ["y"], alpha=alpha), [x])
    np.testing.assert_allclose(y, x * sigmoid, rtol=1e-12)
    (y,) = backend.run_node(helper.make_node("Celu", ["x"], ["y"], alpha=alpha), [x])
    np.testing.assert_allclose(y, np.maximum(0, x) + np.minimum(0, alpha * np.expm1(x / alpha)), rtol=1e-12)
    (y,) = backend.run_node(helper.make_node("Mish", ["x"], ["y"]), [x])
    np.testing.assert_allclose(y, x * np.tanh(np.log1p(np.exp(x))), rtol=1e-12)
    (y,) = backend.run_node(helper.make_node("Mish", ["x"], ["y"]), [np.float32([-200, 0, 200])])
    assert y.tolist() == [0, 0, 200]


@pytest.mark.parametrize("opset", [7, 13, 22])
@pytest.mark.parametrize("size", [1, 3, 5, 11, 13, 15])
def test_lrn_is_across_channels(opset: int, size: int) -> None:
    x = 3 * floats(2, 6, 3, 4)
    agrees_with_onnx_runtime("LRN", opset, [x], size=size, alpha=0.3, beta=0.6, bias=1.5)
    agrees_with_onnx_runtime("LRN", opset, [x], size=size)


@pytest.mark.parametrize("size", [2, 3, 4, 12, 14])
def test_lrn_by_definition(size: int) -> None:
    """Even sizes, which ONNX Runtime refuses, cover one channel more above than below."""
    x = 3 * floats(1, 6, 3, 4)
    node = helper.make_node("LRN", ["x"], ["y"], size=size, alpha=0.3, beta=0.6, bias=1.5)
    (y,) = backend.run_node(node, [x])
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
    """The axis may be one past the last, as for Flatten: each element is a separate row."""
    node = helper.make_node(op_type, ["x"], ["y"], axis=2)
    for opset in (1, 11, 12):
        (y,) = backend.run_node(node, [floats(2, 3)], opset_version=opset)
        assert y.tolist() == [[alone] * 3] * 2
    for opset in (13, 22):
        with pytest.raises(gpuconv.ArgumentError, match="axis 2 is out of range for an array of 2 axes"):
            backend.run_node(node, [floats(2, 3)], opset_version=opset)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_of_nothing_is_nothing(op_type: str) -> None:
    (y,) = backend.run_node(helper.make_node(op_type, ["x"], ["y"]), [floats(2, 0, 3)], opset_version=11)
    assert y.shape == (2, 0, 3)


AVERAGES: list[tuple[int, tuple[int, ...], dict[str, Any]]] = [
    (1, (7,), {"kernel_shape": [3]}),
    (7, (7,), {"kernel_shape": [3], "pads": [2, 1], "strides": [2]}),
    (7, (5, 6), {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1], "strides": [2, 1]}),
    (7, (5, 6), {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1], "count_include_pad": 1}),
    (7, (5, 6), {"kernel_shape": [2, 3], "auto_pad": "SAME_UPPER", "strides": [1, 2]}),
    (7, (5, 6), {"kernel_shape": [2, 4], "auto_pad": "SAME_LOWER", "count_include_pad": 1}),
    (10, (5, 6), {"kernel_shape": [2, 2], "strides": [2, 3], "ceil_mode": 1}),
    (11, (5, 6), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "pads": [1, 1, 1, 1]}),
    (19, (9, 8), {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 2, 0, 1], "count_include_pad": 1}),
    (22, (4, 5, 6), {"kernel_shape": [2, 3, 2], "pads": [1, 0, 1, 0, 2, 1], "strides": [1, 2, 3]}),
]


@pytest.mark.parametrize(("opset", "spatial", "attributes"), AVERAGES)
def test_average_pool(opset: int, spatial: tuple[int, ...], attributes: dict[str, Any]) -> None:
    """Compared with the mean of every window, from MaxPool's windows over an array that marks the elements inside."""
    x = floats(2, 3, *spatial)
    (y,) = backend.run_node(helper.make_node("AveragePool", ["x"], ["y"], **attributes), [x], opset_version=opset)
    np.testing.assert_allclose(y, _averages(x, **attributes), rtol=1e-5, atol=1e-6)


def _averages(x: Any, count_include_pad: int = 0, **attributes: Any) -> Any:
    """Sum by one-hot MaxPools: x is in window q if MaxPool of its indicator is 1 at q."""
    spatial, windows = x.shape[2:], {"ceil_mode": 0, **attributes}
    indicators = np.eye(int(np.prod(spatial)), dtype=np.float32).reshape(1, -1, *spatial)
    inside = gpuconv.max_pool(indicators, **windows)[0]
    inside = np.where(inside > 0, inside, 0).astype(np.float64)
    total = np.tensordot(x.reshape(*x.shape[:2], -1).astype(np.float64), inside, 1)
    if not count_include_pad:
        return total / inside.sum(axis=0)
    return total / np.prod(attributes["kernel_shape"])  # in these cases every window is within the padded input


def test_average_pool_of_float16_adds_in_float32() -> None:
    x = np.array([[[2048] + [1] * 63]], np.float16)
    (y,) = backend.run_node(helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[64]), [x])
    assert y.dtype == np.float16
    assert y[0, 0, 0] == np.float16((2048 + 63) / 64)


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
        node = helper.make_node(op_type, ["x", "axes"], ["y"], keepdims=0)
        (y,) = backend.run_node(node, [x, axes], opset_version=20)
        assert (y.dtype, y.tolist()) == (np.dtype(dtype), [[expected] * 3] * 2)


def test_reductions_over_no_axes_are_over_all_or_none() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for op_type, expected in (("ReduceMax", 23), ("ReduceMin", 0), ("ReduceSum", 276), ("ReduceMean", 11.5)):
        plain, kept = (helper.make_node(op_type, ["x"], ["y"], noop_with_empty_axes=noop) for noop in (0, 1))
        assert backend.run_node(plain, [x], opset_version=18)[0].tolist() == [[[expected]]]
        np.testing.assert_array_equal(backend.run_node(kept, [x], opset_version=18)[0], x)
        several = helper.make_node(op_type, ["x", "axes"], ["y"], keepdims=0)
        (y,) = backend.run_node(several, [x, np.array([0, -1])], opset_version=18)
        sums = {"ReduceMax": x.max, "ReduceMin": x.min, "ReduceSum": x.sum, "ReduceMean": x.mean}
        np.testing.assert_array_equal(y, sums[op_type](axis=(0, 2)))


def test_a_crop_that_is_resized_to_one_element_is_read_in_its_middle() -> None:
    node = helper.make_node(
        "Resize", ["x", "roi", "", "sizes"], ["y"], coordinate_transformation_mode="tf_crop_and_resize", mode="linear"
    )
    x, roi = np.float32([10, 20, 30]).reshape(1, 1, 3), np.float32([0, 0, 0.5, 1, 1, 1])
    (y,) = backend.run_node(node, [x, roi, np.int64([1, 1, 1])])
    assert y.tolist() == [[[25.0]]]  # 0.75 between 10 and 30


@pytest.mark.parametrize("block", [1, 2, 3])
def test_blocks_of_space_become_channels_that_lie_apart(block: int) -> None:
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=block)
    x = floats(2, 3, 2 * block, block)
    (y,) = backend.run_node(node, [x])
    assert y.shape == (2, 3 * block**2, 2, 1)
    for i in range(block):
        for j in range(block):
            part = y[:, 3 * (i * block + j) : 3 * (i * block + j + 1)]
            assert np.array_equal(part, x[:, :, i::block, j::block])


def test_split_has_its_sizes_as_an_attribute_until_opset_12() -> None:
    node = helper.make_node("Split", ["x"], ["a", "b"], split=[1, 3], axis=0)
    proto = model([node], [value("x", np.float32, (4,))], [value("a", shape=(1,)), value("b", shape=(3,))], 12)
    a, b = backend.run_model(proto, [np.float32([1, 2, 3, 4])])
    assert (a.tolist(), b.tolist()) == ([1], [2, 3, 4])


@pytest.mark.parametrize("alpha", [1.0, 2.0, -0.5, 0.0])
@pytest.mark.parametrize("beta", [1.0, 2.0, 0.0])
def test_a_gemm_is_scaled_as_asked(alpha: float, beta: float) -> None:
    node = helper.make_node("Gemm", ["a", "b", "c"], ["y"], alpha=alpha, beta=beta)
    (y,) = backend.run_node(node, [np.float32([[1, 2]]), np.float32([[3], [5]]), np.float32([[7]])])
    assert y.tolist() == [[alpha * 13 + beta * 7]]
    alone = helper.make_node("Gemm", ["a", "b"], ["y"], alpha=alpha, beta=beta)
    (y,) = backend.run_node(alone, [np.float32([[1, 2]]), np.float32([[3], [5]])])
    assert y.tolist() == [[alpha * 13]]


@pytest.mark.parametrize(
    ("shape", "found"),
    [([0, 0], [2, 3]), ([0, -1], [2, 3]), ([-1, 0], [2, 3]), ([3, 0, -1], "cannot"), ([0, 3, 1], [2, 3, 1]),
     ([0, 0, 0], "keeps axis 2, but x.shape=(2, 3) has none"), ([6, 1, 0], "keeps axis 2"), ([-1, -1], "cannot"),
     ([4, -1], "cannot"), ([5], "cannot"), ([6], [6])],
)  # fmt: skip
def test_a_reshape_keeps_the_axes_of_zeros(shape: list[int], found: Any) -> None:
    node, x = helper.make_node("Reshape", ["x", "shape"], ["y"]), floats(2, 3)
    if isinstance(found, str):
        with pytest.raises(gpuconv.ArgumentError) as caught:
            backend.run_node(node, [x, np.array(shape)])
        assert found in str(caught.value)
    else:
        (y,) = backend.run_node(node, [x, np.array(shape)])
        assert list(y.shape) == found
        assert y.ravel().tolist() == x.ravel().tolist()


@pytest.mark.parametrize(
    ("region", "size", "found"),
    [
        ((0, 1), 3, [10, 20, 30]),
        ((0.5, 1), 3, [20, 25, 30]),  # as many elements as before, from half of them
        ((0, 0.5), 3, [10, 15, 20]),
        ((1, 0), 3, [30, 20, 10]),
        ((0.5, 1), 2, [20, 30]),
        ((0.5, 1.5), 3, [20, 30, 7]),  # beyond the last element
        ((-0.5, 0.5), 3, [7, 10, 20]),
    ],
)
def test_a_crop_is_resized_from_its_first_element_to_its_last(
    region: tuple[float, float], size: int, found: list[float]
) -> None:
    node = helper.make_node(
        "Resize", ["x", "roi", "", "sizes"], ["y"], coordinate_transformation_mode="tf_crop_and_resize", mode="linear",
        extrapolation_value=7.0,
    )  # fmt: skip
    x, roi = np.float32([10, 20, 30]).reshape(1, 1, 3), np.float32([0, 0, region[0], 1, 1, region[1]])
    (y,) = backend.run_node(node, [x, roi, np.int64([1, 1, size])])
    assert y.tolist() == [[found]]


@pytest.mark.parametrize(("opset", "attributes"), [(1, {}), (1, {"axis": 1}), (4, {"axis": 1}), (13, {"axis": -1})])
def test_arrays_are_put_together_along_the_second_axis_at_first(opset: int, attributes: dict[str, int]) -> None:
    x = floats(2, 3)
    (y,) = backend.run_node(helper.make_node("Concat", ["x"], ["y"], **attributes), [x], opset_version=opset)
    np.testing.assert_array_equal(y, x)
    several = helper.make_node("Concat", ["a", "b", "c"], ["y"], **attributes)
    (y,) = backend.run_node(several, [x, x[:, :1], x[:, 1:]], opset_version=opset)
    np.testing.assert_array_equal(y, np.hstack([x, x]))


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
    node = helper.make_node("LpPool", ["x"], ["y"], p=p, **attributes)
    ((got,), (expected,)) = both("LpPool", opset, [x], p=p, **attributes)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    with device_arrays():
        (there,) = backend.run_node(node, [x], "CUDA", opset_version=opset)
    np.testing.assert_allclose(there, got, rtol=1e-5, atol=1e-6)
    ((got,), (expected,)) = both("GlobalLpPool", 2, [x], p=p)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_norms_of_opset_1_have_powers_that_are_no_integers() -> None:
    x = floats(1, 2, 6)
    node = helper.make_node("LpPool", ["x"], ["y"], p=2.5, kernel_shape=[6])
    (y,) = backend.run_node(node, [x], opset_version=1)
    np.testing.assert_allclose(y[..., 0], (np.abs(x) ** 2.5).sum(axis=2) ** 0.4, rtol=1e-5)


def test_norms_of_float16_are_summed_in_float32() -> None:
    x = np.full((1, 1, 64), 200, np.float16)
    for node in (
        helper.make_node("LpPool", ["x"], ["y"], kernel_shape=[64]),
        helper.make_node("GlobalLpPool", ["x"], ["y"]),
    ):
        (y,) = backend.run_node(node, [x])
        assert (y.dtype, y.tolist()) == (np.float16, [[[1600]]])
