"""Operators other than convolutions: differences of earlier opsets, element types, and what no operator may do."""

from __future__ import annotations

import math
import re
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

import gpuconv
from gpuconv.onnx import backend, operators
from tests.onnx.models import BY_EVALUATOR, NEWEST, floats, model, run, value
from tests.onnx.networks import onnxruntime_run
from tests.oracle.every_row import every_row


def test_broadcasting_by_axis_before_opset_7() -> None:
    x, z = floats(2, 3, 4, 5), floats(3, 4, seed=1)
    for op_type, expected in (("Add", x + z[..., None]), ("Sub", x - z[..., None]), ("Mul", x * z[..., None])):
        np.testing.assert_array_equal(run(op_type, [x, z], 6, broadcast=1, axis=1), expected)
    np.testing.assert_array_equal(run("Div", [x, floats(5)], 1, broadcast=1), x / floats(5))
    np.testing.assert_array_equal(run("Add", [x, x], 6), x + x)
    with pytest.raises(gpuconv.GpuconvError, match=r"^Add node"):
        run("Add", [x, z], 7)


def test_attributes_that_became_inputs() -> None:
    x = floats(2, 3, 4)
    ends = np.array([2, 9])
    sliced = x[1:2, -2:9]
    np.testing.assert_array_equal(run("Slice", [x], 1, starts=[1, -2], ends=[2, 9]), sliced)
    np.testing.assert_array_equal(run("Slice", [x, np.array([1, -2]), ends], 10), sliced)
    np.testing.assert_array_equal(run("Slice", [x], 9, starts=[0], ends=[-1], axes=[2]), x[:, :, :-1])
    np.testing.assert_array_equal(run("Reshape", [x], 1, shape=[0, -1]), x.reshape(2, 12))
    np.testing.assert_array_equal(run("Squeeze", [x[:, None]], 13), x)
    padded = np.pad(x, ((0, 0), (1, 0), (0, 2)), constant_values=0.5)
    np.testing.assert_array_equal(run("Pad", [x], 1, paddings=[0, 1, 0, 0, 0, 2], value=0.5), padded)
    pads = np.array([0, 1, 0, 0, 0, 2])
    np.testing.assert_array_equal(run("Pad", [x, pads, np.float32(0.5)], 11), padded)
    sizes = np.array([1, 3])
    by_attribute: dict[str, Any] = {"split": [1, 3]}
    for opset, inputs, attributes in (
        (1, [x, sizes], {}),
        (2, [x], by_attribute),
        (12, [x], by_attribute),
        (13, [x, sizes], {}),
    ):
        first, second = run("Split", inputs, opset, 2, axis=2, **attributes)
        np.testing.assert_array_equal(first, x[:, :, :1])
        np.testing.assert_array_equal(second, x[:, :, 1:])


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
@pytest.mark.parametrize("added", [1, 5, 4093])
def test_pad_repeats_elements_further_out_than_there_are(mode: str, added: int) -> None:
    x = np.random.default_rng(added).integers(-9, 10, (2, 3, 4)).astype(np.float32)
    y = run("Pad", [x, np.array([0, 1, 0, 1, 0, added])], 19, mode=mode)
    np.testing.assert_array_equal(y, np.pad(x, ((0, 1), (1, 0), (0, added)), mode=mode))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("op_type", "opsets", "name", "given", "expected"),
    [
        ("Reshape", (4, 5), "shape", [4, 6], lambda x: x.reshape(4, 6)),
        ("Unsqueeze", (12, 13), "axes", [1, -1], lambda x: x[:, None, ..., None]),
        ("Squeeze", (12, 13), "axes", [1], lambda x: x[:, 0]),
        ("Split", (12, 13), "split", [2], lambda x: x),
        ("Pad", (10, 11), "pads", [0, 1, 0, 0, 0, 2, 1, 0], lambda x: np.pad(x, ((0, 0), (1, 2), (0, 1), (0, 0)))),
        ("ReduceSum", (12, 13), "axes", [2], lambda x: x.sum(axis=2, keepdims=True)),
        ("ReduceMean", (17, 18), "axes", [3], lambda x: x.mean(axis=3, keepdims=True)),
        ("ReduceMax", (17, 18), "axes", [3], lambda x: x.max(axis=3, keepdims=True)),
    ],
)
def test_the_last_opset_with_an_attribute_and_the_first_with_an_input(
    op_type: str, opsets: tuple[int, int], name: str, given: list[int], expected: Any
) -> None:
    x = floats(2, 1, 3, 4)
    last, first = opsets
    np.testing.assert_array_equal(run(op_type, [x], last, **{name: given}), expected(x))
    np.testing.assert_array_equal(run(op_type, [x, np.array(given)], first), expected(x))


def test_scales_and_bounds_at_the_last_opset_with_attributes_and_the_first_with_inputs() -> None:
    x = floats(1, 1, 2, 2)
    doubled = x.repeat(2, axis=2)
    np.testing.assert_array_equal(run("Upsample", [x], 8, scales=[1.0, 1.0, 2.0, 1.0]), doubled)
    np.testing.assert_array_equal(run("Upsample", [x, np.float32([1, 1, 2, 1])], 9), doubled)
    np.testing.assert_array_equal(run("Clip", [x], 10, min=-0.25, max=0.25), np.clip(x, -0.25, 0.25))
    np.testing.assert_array_equal(run("Clip", [x, np.float32(-0.25), np.float32(0.25)], 11), np.clip(x, -0.25, 0.25))
    for opset, dtype in ((9, np.float32), (10, np.bool_)):
        assert run("Dropout", [x], opset, 2)[1].dtype == dtype


def test_slopes_of_prelu_are_of_channels_before_opset_7() -> None:
    x, slope = floats(2, 3, 4, 5), floats(3, seed=1)
    expected = np.where(x < 0, x * slope[:, None, None], x)
    np.testing.assert_array_equal(run("PRelu", [x, slope], 6), expected)
    np.testing.assert_array_equal(run("PRelu", [x, slope[:, None, None]], 7), expected)
    np.testing.assert_array_equal(run("PRelu", [x, slope[:1]], 6), np.where(x < 0, x * slope[0], x))


def test_clip_and_dropout_and_cast_of_the_first_opsets() -> None:
    x = 3 * floats(2, 3, 4)
    np.testing.assert_array_equal(run("Clip", [x], 1, max=1.0), np.minimum(x, 1))
    np.testing.assert_array_equal(run("Clip", [x, None, np.float32(1)], 11), np.minimum(x, 1))
    for opset, dtype in ((7, np.float32), (10, np.bool_), (12, np.bool_)):
        y, mask = run("Dropout", [x], opset, 2)
        np.testing.assert_array_equal(y, x)
        assert mask.dtype == dtype
        assert mask.all()
    np.testing.assert_array_equal(run("Cast", [x], 1, to="FLOAT16"), x.astype(np.float16))
    np.testing.assert_array_equal(run("Cast", [x], 6, to=onnx.TensorProto.INT32), x.astype(np.int32))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample_and_the_first_resize(mode: str) -> None:
    x, scales = floats(1, 2, 3, 4), np.array([1, 1, 2, 1.5], np.float32)
    upsampled = run("Upsample", [x], 7, mode=mode, scales=scales.tolist())
    assert upsampled.shape == (1, 2, 6, 6)
    names = ["x", "s"]
    infos = [value("x", shape=x.shape), value("s", shape=(4,))]
    node = helper.make_node("Resize", names, ["y"], mode=mode)
    proto = model([node], infos, [value("y", shape=4)], 10)
    (expected,) = onnxruntime_run(proto, {"x": x, "s": scales})
    for result in (upsampled, run("Upsample", [x, scales], 9, mode=mode), backend.run_model(proto, [x, scales])[0]):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


RESIZES: list[tuple[int, dict[str, Any], list[float], list[int]]] = [
    (11, {"mode": "nearest", "coordinate_transformation_mode": "tf_half_pixel_for_nn"}, [1, 1, 1.7, 0.6], []),
    (11, {"mode": "linear"}, [1, 1, 1.7, 2.5], []),
    (13, {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, [], [1, 2, 9, 3]),
    (13, {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}, [], [1, 2, 1, 8]),
    (13, {"mode": "nearest", "nearest_mode": "ceil", "coordinate_transformation_mode": "asymmetric"}, [], [1, 2, 7, 3]),
    (18, {"mode": "nearest", "nearest_mode": "round_prefer_ceil", "axes": [3, 2]}, [], [3, 11]),
    (18, {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}, [1, 1, 0.7, 2.3], []),
    (18, {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}, [1, 1, 1.4, 1.1], []),  # 5 * 1.4, 7 * 1.1
]


@pytest.mark.parametrize(("opset", "attributes", "scales", "sizes"), RESIZES)
def test_resize(opset: int, attributes: dict[str, Any], scales: list[float], sizes: list[int]) -> None:
    x = floats(1, 2, 5, 7)
    names, infos, feeds = ["x", "", ""], [value("x", shape=x.shape)], {"x": x}
    if opset < 13:
        names[1], feeds["roi"] = "roi", np.empty(0, np.float32)
        infos.append(value("roi", shape=(0,)))
    if sizes:
        names.append("sizes")
        feeds["sizes"] = np.array(sizes)
        infos.append(value("sizes", np.int64, (len(sizes),)))
    else:
        names[2], feeds["scales"] = "scales", np.array(scales, np.float32)
        infos.append(value("scales", shape=(len(scales),)))
    proto = model([helper.make_node("Resize", names, ["y"], **attributes)], infos, [value("y", shape=4)], opset)
    (expected,) = onnxruntime_run(proto, feeds)
    (got,) = backend.prepare(proto).run(feeds)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


# --- element types and forbidden effects ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op_type", ["Sigmoid", "Softmax", "GlobalAveragePool", "HardSwish", "Tanh", "Gelu"])
def test_16_bit_types_are_computed_in_float32_and_rounded_once(op_type: str, dtype: Any) -> None:
    x = floats(2, 3, 40, 9).astype(dtype)
    got = run(op_type, [x], 22)
    expected = run(op_type, [x.astype(np.float32)], 22)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, expected.astype(dtype))


@pytest.mark.parametrize("op_type", ["Gemm", "MatMul"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_products_of_16_bit_types_are_summed_in_float32(op_type: str, dtype: Any) -> None:
    a, b = np.ones((1, 4000), dtype), np.ones((4000, 1), dtype)
    assert run(op_type, [a, b], 22)[0, 0] == dtype(4000)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 3, 4, 5), (1, 0, 4, 5), (0, 3, 4, 5)])
def test_every_row_of_an_image_is_multiplied_by_the_same_matrix(shape: tuple[int, ...]) -> None:
    """Sums of integers are exact in any order; the result of one image is that of the image in a batch."""
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-9, 10, of).astype(np.float32) for of in (shape, (5, 6)))
    for given in (a, a[..., ::-1], np.asfortranarray(a)):
        y = run("MatMul", [given, b], 22)
        assert y.shape == (*shape[:-1], 6)
        np.testing.assert_array_equal(y, np.einsum("...k,kn->...n", given, b))


def test_inputs_are_never_written() -> None:
    nodes: list[tuple[str, dict[str, Any]]] = [
        ("AveragePool", {"kernel_shape": [1, 1]}),
        ("Clip", {}),
        ("Dropout", {}),
        ("LRN", {"size": 1}),
        ("Sum", {}),
        ("LeakyRelu", {"alpha": -1.0}),
    ]
    for op_type, attributes in nodes:
        x = floats(1, 2, 3, 4)
        x.flags.writeable = False
        np.testing.assert_array_equal(run(op_type, [x], 13, **attributes).shape, x.shape)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("Clip", [], {}),
        ("Sum", [], {}),
        ("Max", [], {}),
        ("Resize", [None, np.ones(3, np.float32)], {"mode": "nearest"}),
        ("Resize", [None, np.ones(3, np.float32)], {"mode": "linear"}),
    ],
)
def test_what_changes_nothing_leaves_memory_of_its_own(
    op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    x = floats(1, 2, 3)
    y = run(op_type, [x, *inputs], 13, **attributes)
    np.testing.assert_array_equal(y, x)
    assert not np.shares_memory(x, y)


def test_integers_are_divided_towards_zero() -> None:
    a, b = np.array([7, -7, 7, -7, 6, -6], np.int8), np.array([2, 2, -2, -2, 3, 3], np.int8)
    np.testing.assert_array_equal(run("Div", [a, b], 14), [3, -3, -3, 3, 2, -2])


def test_integers_have_negative_powers() -> None:
    """Rounded towards zero, as in ONNX Runtime."""
    a, b = np.array([2, 1, -1, -1, -3, -3, 7], np.int32), np.array([-1, -5, -1, -2, -2, 3, 0], np.int64)
    got = run("Pow", [a, b], 13)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, [0, 1, -1, 1, 0, -27, 1])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("exponent", [np.float32(3), np.float64([3]), np.int64([[3]])])
def test_cubes(dtype: str, exponent: Any) -> None:
    """Cubes are products, each of them rounded, as x * x * x is in ONNX Runtime."""
    special = [0.0, -0.0, 1.0, -2.0, 1e-15, math.inf, -math.inf, math.nan]
    x = np.array([*special, *floats(40).ravel().tolist()]).astype(dtype).reshape(6, 8)
    got = run("Pow", [x, np.asarray(exponent)], 15)
    assert got.dtype == x.dtype
    exact = x.astype(np.float64) ** 3
    info = ml_dtypes.finfo(x.dtype)  # type: ignore[no-untyped-call]
    unit, least = float(info.eps), float(info.smallest_subnormal)
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=2 * unit, atol=least)
    np.testing.assert_array_equal(np.signbit(got.astype(np.float64)), np.signbit(exact))


def test_cubes_of_integers_and_of_more_axes() -> None:
    """An exponent of more axes broadcasts, and integers that float32 has not are cubed before they are rounded."""
    assert run("Pow", [floats(2, 3), np.full((1, 1, 1), 3, np.float32)], 15).shape == (1, 2, 3)
    assert run("Pow", [np.array([1291], np.int64), np.float64(3)], 15) == 1291**3


def test_means_of_integers_are_rounded_towards_zero() -> None:
    x = np.array([[-7, 0], [7, 0], [-6, 0]], np.int32)
    np.testing.assert_array_equal(run("ReduceMean", [x, np.array([1])], 18, keepdims=0), [-3, 3, -3])


def test_gemm_of_float16_is_rounded_once() -> None:
    a, b, c = np.full((1, 70), 1000, np.float16), np.ones((70, 1), np.float16), np.float16([-60000])
    assert run("Gemm", [a, b], 13, alpha=0.5)[0, 0] == np.float16(35000)
    assert run("Gemm", [a, b, c], 13)[0, 0] == np.float16(10000)


@pytest.mark.parametrize("op_type", ["BatchNormalization", "Dropout"])
@BY_EVALUATOR
def test_training_of_the_first_opsets_is_not_taken_for_inference(op_type: str) -> None:
    x = floats(2, 3, 4)
    parameters = [np.full(3, number, np.float32) for number in (1, 0, 0, 1)]
    inputs = [x, *parameters] if op_type == "BatchNormalization" else [x]
    np.testing.assert_allclose(run(op_type, inputs, 6, is_test=1), x, rtol=1e-5)  # but for epsilon
    with pytest.raises(gpuconv.GpuconvError, match=f"^{op_type} node"):  # the evaluator has neither of them
        run(op_type, inputs, 6)


def test_an_output_that_is_left_out_has_its_part() -> None:
    node = helper.make_node("Split", ["x"], ["y", ""])
    np.testing.assert_array_equal(backend.run_node(node, [np.arange(6.0)], opset_version=13)[0], [0, 1, 2])


def test_steps_back_from_before_the_first_element() -> None:
    """Starts are clamped to the range first, unlike those of Python's slices."""
    x = floats(5)
    for start, end, step, expected in (
        (-100, -200, -1, x[:1]),
        (-6, -7, -2, x[:1]),
        (2**63 - 1, -(2**63), -2, x[::-2]),
        (-100, 2**63 - 1, 2, x[::2]),
        (5, -1, -1, x[:0]),
    ):
        got = run("Slice", [x, *(np.array([number]) for number in (start, end, 0, step))], 13)
        np.testing.assert_array_equal(got, expected)


def test_pads_that_take_away_too_much() -> None:
    x = floats(5)
    np.testing.assert_array_equal(run("Pad", [x, np.array([-2, -3])], 13), x[:0])
    np.testing.assert_array_equal(run("Pad", [x, np.array([-2, 1])], 13), [*x[2:], 0])
    for pads in ([0, -7], [-6, 0], [-3, -3], [-7, 3]):
        with pytest.raises(gpuconv.ArgumentError, match=f"^Pad node .* the pads {re.escape(str(pads))} take away more"):
            run("Pad", [x, np.array(pads)], 13)


def test_statistics_of_layer_normalization_have_a_type_of_their_own() -> None:
    x = floats(2, 8, dtype=np.float64)
    y, mean, factor = run("LayerNormalization", [x, np.ones(8)], 17, 3)
    assert (y.dtype, mean.dtype, factor.dtype) == (np.float64, np.float32, np.float32)
    np.testing.assert_allclose(mean, x.mean(axis=1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(factor, 1 / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5), rtol=1e-6)


def test_erf_beside_the_standard_library() -> None:
    x = np.concatenate([np.linspace(-7, 7, 1401), [np.inf, -np.inf, 1e-300, -0.0]])
    exact = np.array([math.erf(number) for number in x])
    np.testing.assert_allclose(run("Erf", [x], 13), exact, rtol=1e-15)
    np.testing.assert_allclose(run("Erf", [np.float32(x)], 13), exact, rtol=1e-6, atol=1e-12)
    assert np.isnan(run("Erf", [np.array([np.nan])], 13)[0])


# --- which forms are computed here, and where their inputs are --------------------------------------------------------


SERVED: list[tuple[bool, str, int, list[str], int, dict[str, Any]]] = [
    # Only inference; before opset 7, nodes train unless is_test is set.
    (False, "Dropout", 1, ["x"], 1, {}),
    (False, "Dropout", 6, ["x"], 1, {"is_test": 0}),
    (True, "Dropout", 6, ["x"], 1, {"is_test": 1}),
    (True, "Dropout", 7, ["x"], 1, {}),
    (True, "Dropout", 11, ["x"], 2, {"ratio": 0.9}),
    (True, "Dropout", 12, ["x"], 1, {}),
    (True, "Dropout", 12, ["x", "ratio"], 2, {}),
    (False, "Dropout", 12, ["x", "ratio", "train"], 1, {}),
    (False, "Dropout", 22, ["x", "", "train"], 1, {}),
    (False, "BatchNormalization", 6, ["x", "s", "b", "m", "v"], 1, {}),
    (True, "BatchNormalization", 6, ["x", "s", "b", "m", "v"], 1, {"is_test": 1}),
    (True, "BatchNormalization", 7, ["x", "s", "b", "m", "v"], 1, {}),
    (False, "BatchNormalization", 9, ["x", "s", "b", "m", "v"], 5, {}),
    (True, "BatchNormalization", 14, ["x", "s", "b", "m", "v"], 1, {"training_mode": 0}),
    (False, "BatchNormalization", 15, ["x", "s", "b", "m", "v"], 3, {"training_mode": 1}),
    (False, "BatchNormalization", 15, ["x", "s", "b", "m", "v"], 1, {"training_mode": 1}),
    # Constants of numbers.
    (True, "Constant", 13, [], 1, {"value_int": 3}),
    (True, "Constant", 13, [], 1, {"value_floats": [0.5]}),
    (True, "Constant", 13, [], 1, {"value": onnx.numpy_helper.from_array(np.zeros(2))}),
    (False, "Constant", 13, [], 1, {"value_string": "text"}),
    (False, "Constant", 13, [], 1, {"value_strings": ["text"]}),
    (False, "Constant", 13, [], 1, {"value_int": 3, "value_float": 3.0}),
    (False, "Constant", 13, [], 1, {}),
    # Types that NumPy computes.
    (True, "Cast", 1, ["x"], 1, {"to": "FLOAT16"}),
    (False, "Cast", 1, ["x"], 1, {"to": "STRING"}),
    (True, "Cast", 13, ["x"], 1, {"to": onnx.TensorProto.BFLOAT16}),
    (True, "Cast", 13, ["x"], 1, {}),
    (False, "Cast", 13, ["x"], 1, {"to": onnx.TensorProto.STRING}),
    (False, "Cast", 13, ["x"], 1, {"to": onnx.TensorProto.COMPLEX64}),
    # Neighbours: cubic reads four an axis, antialiasing many; other modes do not exist.
    (True, "Resize", 10, ["x", "s"], 1, {}),
    (True, "Resize", 18, ["x", "", "s"], 1, {"mode": "linear", "antialias": 0}),
    (True, "Resize", 18, ["x", "", "s"], 1, {"mode": "linear", "antialias": 1}),
    (True, "Resize", 18, ["x", "", "s"], 1, {"mode": "cubic"}),
    (False, "Resize", 18, ["x", "", "s"], 1, {"mode": "lanczos"}),
    (False, "Upsample", 1, ["x"], 1, {"width_scale": 2.0, "height_scale": 2.0}),
    (True, "Upsample", 7, ["x"], 1, {"scales": [1.0, 2.0]}),
    (True, "Upsample", 9, ["x", "s"], 1, {"mode": "linear"}),
    (False, "Tile", 1, ["x", "n", "axis"], 1, {}),
    (True, "Tile", 6, ["x", "n"], 1, {}),
]


@pytest.mark.parametrize(("expected", "op_type", "opset", "names", "outputs", "attributes"), SERVED)
def test_forms_that_are_computed_here(
    expected: bool, op_type: str, opset: int, names: list[str], outputs: int, attributes: dict[str, Any]
) -> None:
    node = helper.make_node(op_type, names, [f"y{at}" for at in range(outputs)], **attributes)
    assert (operators.find(node, opset) is not None) == expected


ON_HOST = {
    **{op_type: {"size"} for op_type in ("AffineGrid", "BlackmanWindow", "HammingWindow", "HannWindow")},
    **{op_type: {"sequence_lens"} for op_type in ("GRU", "LSTM", "RNN", "ReverseSequence")},
    **{op_type: {"indices"} for op_type in ("Scatter", "ScatterElements", "ScatterND")},
    **{op_type: {"shape"} for op_type in ("CenterCropPad", "Expand", "Reshape")},
    **{
        op_type: {"axes"}
        for op_type in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean")
    },
    **{
        op_type: {"axes"}
        for op_type in ("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Squeeze", "Unsqueeze")
    },
    "Attention": {"nonpad_kv_seqlen"},
    "Clip": {"min", "max"},
    "ConstantOfShape": {"input"},
    "ConvInteger": {"w_zero_point"},
    "CumSum": {"axis"},
    "Dropout": {"ratio", "training_mode"},
    "MatMulInteger": {"b_zero_point"},
    "MaxUnpool": {"output_shape"},
    "NonMaxSuppression": {"boxes", "scores", "max_output_boxes_per_class", "iou_threshold", "score_threshold"},
    "OneHot": {"depth", "values"},
    "Pad": {"pads", "constant_value", "axes"},
    "QLinearConv": {"x_zero_point", "w_zero_point", "y_zero_point"},
    "QLinearMatMul": {"a_zero_point", "b_zero_point", "y_zero_point"},
    "Range": {"start", "limit", "delta"},
    "Resize": {"roi", "scales", "sizes"},
    "RoiAlign": {"rois", "batch_indices"},
    "Slice": {"starts", "ends", "axes", "steps"},
    "Split": {"split"},
    "STFT": {"frame_step", "frame_length"},
    "Tile": {"repeats"},
    "TopK": {"K"},
    "Trilu": {"k"},
    "Upsample": {"scales"},
}

COMPUTED_ON_HOST = ("Det", "RegexFullMatch", "SequenceInsert", "SplitToSequence", "StringConcat", "StringNormalizer")
COMPUTED_ON_HOST += ("StringSplit", "TfIdfVectorizer", "Unique")


def test_inputs_that_say_what_to_compute_are_on_the_host() -> None:
    """By ONNX's names; on a device, the host could not read them without waiting."""
    with every_row() as row:
        for op_type, form in sorted(operators.TABLE.items()):
            with row(op_type):
                inputs = onnx.defs.get_schema(op_type, 9 if op_type == "Upsample" else NEWEST).inputs
                on_host = {entry.name for at, entry in enumerate(inputs) if at in form.on_host}
                if op_type in COMPUTED_ON_HOST:
                    assert on_host == {entry.name for entry in inputs}
                else:
                    assert on_host == ON_HOST.get(op_type, set())


# --- shapes -----------------------------------------------------------------------------------------------------------


def test_parts_without_sizes_are_equal_but_for_the_last() -> None:
    x = np.arange(14).reshape(2, 7)
    for parts, sizes in ((3, [3, 3, 1]), (7, [1] * 7), (2, [4, 3]), (1, [7])):
        got = run("Split", [x], 18, parts, axis=-1, num_outputs=parts)
        got = [got] if parts == 1 else got
        ends = np.cumsum(sizes)
        assert [part.tolist() for part in got] == [
            x[:, end - size : end].tolist() for size, end in zip(sizes, ends, strict=True)
        ]


def test_axes_count_from_either_end_and_no_further() -> None:
    x = floats(2, 1, 3)
    for axis in (-3, 0):
        np.testing.assert_array_equal(run("Concat", [x, x], 13, axis=axis), np.concatenate([x, x]))
    np.testing.assert_array_equal(run("Concat", [x], 13, axis=0), x)
    np.testing.assert_array_equal(run("Concat", [x, x], 1), np.concatenate([x, x], axis=1))
    for axis, shape in ((0, (1, 6)), (-1, (2, 3)), (3, (6, 1)), (-3, (1, 6)), (1, (2, 3))):
        assert run("Flatten", [x], 13, axis=axis).shape == shape
    with pytest.raises(gpuconv.ArgumentError, match="axis -4 is out of range for an array of 3 axes"):
        run("Concat", [x, x], 13, axis=-4)
    with pytest.raises(gpuconv.GpuconvError, match=r"^Flatten node"):
        run("Flatten", [x], 13, axis=-4)


def test_axes_of_one_element_come_and_go() -> None:
    x = floats(2, 1, 3, 1)
    for axes, shape in ((None, (2, 3)), ([1], (2, 3, 1)), ([-1], (2, 1, 3)), ([3, -3], (2, 3))):
        assert run("Squeeze", [x] if axes is None else [x, np.array(axes)], 13).shape == shape
    for axes, shape in (([0, -1], (1, 2, 1, 3, 1, 1)), ([5, 2], (2, 1, 1, 3, 1, 1)), ([-5], (1, 2, 1, 3, 1))):
        assert run("Unsqueeze", [x, np.array(axes)], 13).shape == shape


def test_a_shape_keeps_finds_and_must_fit() -> None:
    x = floats(2, 3, 4)
    for shape, expected in (
        ([0, 0, 4], (2, 3, 4)),
        ([0, -1], (2, 12)),
        ([-1, 0], (8, 3)),
        ([4, 0, 2], (4, 3, 2)),
        ([24], (24,)),
    ):
        np.testing.assert_array_equal(run("Reshape", [x, np.array(shape)], 14), x.reshape(expected), strict=True)
    assert run("Reshape", [floats(0, 3), np.array([3, 0])], 14, allowzero=1).shape == (3, 0)
    assert run("Reshape", [floats(0, 3), np.array([0, 3])], 14).shape == (0, 3)
    for shape, message in (
        ([2, 3, 4, 0], r"the shape \[2, 3, 4, 0\] keeps axis 3, but x\.shape=\(2, 3, 4\) has none"),
        ([5, 0, -1], r"cannot have the shape \[5, 3, -1\]"),
        ([5, -1], r"an array of shape \(2, 3, 4\) cannot have the shape \[5, -1\]"),
        ([-1, -1], r"cannot have the shape \[-1, -1\]"),
        ([23], r"cannot have the shape \[23\]"),
    ):
        with pytest.raises(gpuconv.ArgumentError, match=message):
            run("Reshape", [x, np.array(shape)], 14)
