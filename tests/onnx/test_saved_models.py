"""Models written by ONNX Runtime: saved at a level of its optimizations, and quantized."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

import gpuconv
from gpuconv.onnx import backend
from tests.emulator import emulated_cuda
from tests.harness.device_arrays import device_arrays
from tests.onnx.contributed import LEVEL, UNTYPED, by_onnxruntime, own_operators, saved
from tests.onnx.models import floats

quantization = pytest.importorskip("onnxruntime.quantization")
pytestmark = [pytest.mark.slow, UNTYPED]
node = helper.make_node


def network(
    nodes: list[Any], inputs: dict[str, tuple[Any, ...]], outputs: list[str], weights: Any, opset: int
) -> ModelProto:
    declared = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, *shape) in inputs.items()]
    results = [helper.make_tensor_value_info(name, 1, None) for name in outputs]
    fixed = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "network", declared, results, fixed)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def weights_of(**shapes: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {name: (rng.standard_normal(shape) * 0.4).astype(np.float32) for name, shape in shapes.items()}


def images(opset: int) -> ModelProto:
    """Return a classifier with all operators that static quantization supports, except Where."""
    weights = weights_of(w1=(8, 3, 3, 3), b1=(8,), w2=(8, 1, 3, 3), w3=(8, 8, 1, 1), w4=(12, 16, 3, 3), b4=(12,))
    weights |= weights_of(w5=(10, 12), b5=(10,), w6=(10, 7), w7=(7,)) | {"low": np.float32(0), "high": np.float32(6)}
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4),
        node("Relu", ["c1"], ["r1"]),
        node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p1", "w2"], ["c2"], group=8, pads=[1] * 4),
        node("LeakyRelu", ["c2"], ["l2"], alpha=0.1),
        node("Conv", ["l2", "w3"], ["c3"]),
        node("Add", ["c3", "p1"], ["a1"]),
        node("Sigmoid", ["a1"], ["s1"]),
        node("Mul", ["s1", "a1"], ["m1"]),
        node("AveragePool", ["m1"], ["v1"], kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
        node("Concat", ["v1", "m1"], ["k1"], axis=1),
        node("Conv", ["k1", "w4", "b4"], ["c4"], strides=[2, 2], auto_pad="SAME_UPPER"),
        node("Clip", ["c4", "low", "high"], ["y1"]),
        node("GlobalAveragePool", ["y1"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w5", "b5"], ["y2"], transB=1),
        node("Softmax", ["y2"], ["y3"], axis=1),
        node("MatMul", ["y2", "w6"], ["t"]),
        node("Add", ["t", "w7"], ["y4"]),
    ]
    for number, one in enumerate(nodes):
        one.name = f"node {number}"
    return network(nodes, {"x": (1, "N", 3, 12, 12)}, ["y1", "y2", "y3", "y4"], weights, opset)


def tokens(opset: int = 13) -> ModelProto:
    """Return a model of what ONNX Runtime fuses besides convolutions.

    These are SiLU, Gelu, normalized sums, transposed products, and Gemm with Relu.
    """
    weights = weights_of(w=(8, 8), scale=(8,), bias=(8,), v=(6, 5), u=(5,))
    weights |= {"two": np.float32(2), "epsilon": np.float32(1e-5), "half": np.float32(0.5), "one": np.float32(1)}
    weights |= {"root": np.float32(2**0.5), "eighth": np.float32(0.125), "shape": np.int64([-1, 6])}
    nodes = [
        node("MatMul", ["x", "w"], ["q"]),
        node("Transpose", ["x"], ["xt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "xt"], ["scores"]),
        node("Mul", ["scores", "eighth"], ["scaled"]),
        node("Softmax", ["scaled"], ["shares"], axis=-1),
        node("MatMul", ["shares", "x"], ["mixed"]),
        node("Add", ["mixed", "x"], ["sum"]),
        node("ReduceMean", ["sum"], ["mean"], axes=[-1]),
        node("Sub", ["sum", "mean"], ["d"]),
        node("Pow", ["d", "two"], ["d2"]),
        node("ReduceMean", ["d2"], ["var"], axes=[-1]),
        node("Add", ["var", "epsilon"], ["var1"]),
        node("Sqrt", ["var1"], ["dev"]),
        node("Div", ["d", "dev"], ["n"]),
        node("Mul", ["n", "scale"], ["n1"]),
        node("Add", ["n1", "bias"], ["n2"]),
        node("Div", ["n2", "root"], ["e0"]),
        node("Erf", ["e0"], ["e1"]),
        node("Add", ["e1", "one"], ["e2"]),
        node("Mul", ["n2", "e2"], ["e3"]),
        node("Mul", ["e3", "half"], ["y1"]),
        node("Sigmoid", ["n2"], ["s"]),
        node("Mul", ["n2", "s"], ["y2"]),
        node("Transpose", ["n2"], ["nt"], perm=[0, 2, 1]),
        node("Reshape", ["nt", "shape"], ["rows"]),
        node("Gemm", ["rows", "v", "u"], ["gemm"]),
        node("Relu", ["gemm"], ["y3"]),
    ]
    return network(nodes, {"x": (1, 2, 6, 8)}, ["y1", "y2", "y3"], weights, opset)


def fused(opset: int = 13) -> ModelProto:
    """Return convolutions with every activation that ONNX Runtime fuses."""
    weights = weights_of(w=(4, 4, 3, 3), b=(4,)) | {"low": np.float32(-0.5), "high": np.float32(0.5)}
    activations = [
        ("Relu", [], {}),
        ("LeakyRelu", [], {"alpha": 0.2}),
        ("Clip", ["low", "high"], {}),
        ("Tanh", [], {}),
        ("Sigmoid", [], {}),
        ("HardSigmoid", [], {"alpha": 0.25}),
    ]
    nodes, value = [], "x"
    for number, (op_type, inputs, attributes) in enumerate(activations):
        nodes.append(node("Conv", [value, "w", "b"], [f"c{number}"], pads=[1] * 4))
        nodes.append(node(op_type, [f"c{number}", *inputs], [f"y{number}"], **attributes))
        value = f"y{number}"
    return network(nodes, {"x": (1, 2, 4, 7, 7)}, [value], weights, opset)


NETWORKS = {
    "fused": (fused, (2, 4, 7, 7), {"FusedConv"}),
    "images": (images, (2, 3, 12, 12), {"FusedConv", "QuickGelu"}),
    "tokens": (tokens, (2, 6, 8), {"FusedGemm", "FusedMatMul", "Gelu", "QuickGelu", "SkipLayerNormalization"}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_level_but_the_one_of_one_cpu_is_loaded(name: str) -> None:
    build, shape, fused_operators = NETWORKS[name]
    feeds = {"x": floats(*shape)}
    original = build(13)
    expected = by_onnxruntime(original, feeds)
    for level in (LEVEL.ORT_ENABLE_BASIC, LEVEL.ORT_ENABLE_EXTENDED):
        proto = saved(original, level)
        assert own_operators(proto) >= (fused_operators if level == LEVEL.ORT_ENABLE_EXTENDED else set())
        for fold in (True, False):
            rep = backend.prepare(proto, fold=fold)
            assert not rep.report().left
            for got, wanted in zip(rep.run(feeds), expected, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-6 * float(np.abs(wanted).max()))


def test_what_is_saved_for_one_cpu_is_refused() -> None:
    proto = saved(images(13), LEVEL.ORT_ENABLE_ALL)
    if not any(one.domain == "com.microsoft.nchwc" for one in proto.graph.node):
        pytest.skip("ONNX Runtime has no vectors of this CPU")
    message = r"^(Conv|Reorder)\w* node .*for the vectors of one CPU.*'com.microsoft.nchwc'; save.*ORT_ENABLE_EXTENDED"
    with pytest.raises(gpuconv.ArgumentError, match=message):
        backend.prepare(proto)


def test_unknown_operators_are_refused_with_the_cure() -> None:
    one = node("RotaryEmbedding", ["x"], ["y"], name="turn", domain="com.microsoft")
    proto = network([one], {"x": (1, 2)}, ["y"], {}, 13)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    message = "^RotaryEmbedding node 'turn': .* is ONNX Runtime's own.*save the model at .*ORT_ENABLE_BASIC.*QDQ"
    with pytest.raises(gpuconv.ArgumentError, match=message):
        backend.prepare(proto)


# ---------------------------------------------------------------- quantized models


class Calibration(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Returns three images."""

    def __init__(self) -> None:
        self._feeds: Iterator[Any] = iter([{"x": floats(2, 3, 12, 12, seed=seed)} for seed in range(3)])

    def get_next(self) -> Any:
        return next(self._feeds, None)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Suppress the quantizer's warning, by the root logger, that the model was not preprocessed."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def quantized(
    folder: Path, layout: str, activations: str, weights: str, per_channel: bool, opset: int = 13
) -> ModelProto:
    before, after = folder / "before.onnx", folder / "after.onnx"
    onnx.save(images(opset), before)
    quantization.quantize_static(
        before,
        after,
        Calibration(),
        quant_format=quantization.QuantFormat[layout],
        activation_type=quantization.QuantType[activations],
        weight_type=quantization.QuantType[weights],
        per_channel=per_channel,
    )
    return onnx.load(after)


FORMS = [("QUInt8", "QInt8", False), ("QInt8", "QInt8", True), ("QUInt8", "QUInt8", False), ("QUInt8", "QInt8", True)]
WRITTEN = {"QGemm", "QLinearAdd", "QLinearAveragePool", "QLinearConcat", "QLinearGlobalAveragePool", "QLinearLeakyRelu"}
WRITTEN |= {"QLinearMul", "QLinearSigmoid", "QLinearSoftmax"}


def assert_as_in_onnxruntime(proto: ModelProto, feeds: dict[str, Any], close: float) -> None:
    expected = by_onnxruntime(proto, feeds)
    got = backend.prepare(proto).run(feeds)
    with device_arrays():
        there = backend.prepare(proto, "CUDA").run(feeds)
    for here, moved, wanted in zip(got, there, expected, strict=True):
        np.testing.assert_allclose(here, wanted, rtol=0, atol=close * float(np.abs(wanted).max()))
        np.testing.assert_allclose(moved, here, rtol=0, atol=close * float(np.abs(wanted).max()))


@pytest.mark.parametrize(("activations", "weights", "per_channel"), FORMS)
def test_static_quantization_in_qoperator_format(
    tmp_path: Path, activations: str, weights: str, per_channel: bool
) -> None:
    """Every node is within a step of ONNX Runtime's, most are equal; so are almost all outputs."""
    proto = quantized(tmp_path, "QOperator", activations, weights, per_channel)
    assert own_operators(proto) == WRITTEN
    feeds = {"x": floats(2, 3, 12, 12, seed=9)}
    assert_as_in_onnxruntime(proto, feeds, close=2 / 255)


@pytest.mark.parametrize(("activations", "weights", "per_channel"), [FORMS[0], FORMS[1], ("QInt16", "QInt8", True)])
def test_optimized_models_of_static_quantization(
    tmp_path: Path, activations: str, weights: str, per_channel: bool
) -> None:
    """ONNX Runtime merges DequantizeLinear, an operator and QuantizeLinear into a node; at level ALL, channels come
    last.

    16-bit activations leave MatMulNBits, whose left factor ONNX Runtime rounds to 8 bits at accuracy_level 4.
    """
    proto = quantized(tmp_path, "QDQ", activations, weights, per_channel)
    feeds = {"x": floats(2, 3, 12, 12, seed=9)}
    found = set()
    for level in (LEVEL.ORT_ENABLE_EXTENDED, LEVEL.ORT_ENABLE_ALL):
        made = saved(proto, level)
        found |= own_operators(made)
        if not any(one.domain == "com.microsoft.nchwc" for one in made.graph.node):
            assert_as_in_onnxruntime(made, feeds, close=2 / 255)
    expected = {"QUInt8": WRITTEN | {"NhwcMaxPool", "QLinearConv"}, "QInt8": {"QLinearConv", "QLinearLeakyRelu"}}
    assert found >= expected.get(activations, {"MatMulNBits"})


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("weights", ["QInt8", "QUInt8"])
def test_dynamic_quantization(tmp_path: Path, weights: str, per_channel: bool) -> None:
    """Convolutions, matrices and an LSTM."""
    values = weights_of(c=(6, 6, 3), w=(1, 32, 6), r=(1, 32, 8), b=(1, 64), m=(8, 5), n=(5, 4), a=(5,))
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 2, 0]),
        node("Conv", ["t", "c"], ["k"], pads=[1, 1]),
        node("Transpose", ["k"], ["u"], perm=[2, 0, 1]),
        node("LSTM", ["u", "w", "r", "b"], ["", "h"], hidden_size=8),
        node("MatMul", ["h", "m"], ["p"]),
        node("Add", ["p", "a"], ["q"]),
        node("Relu", ["q"], ["s"]),
        node("MatMul", ["s", "n"], ["y"]),
    ]
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    onnx.save(network(nodes, {"x": (1, 5, 1, 6)}, ["y"], values, 13), before)
    kind = quantization.QuantType[weights]
    quantization.quantize_dynamic(before, after, weight_type=kind, per_channel=per_channel)
    proto = onnx.load(after)
    assert own_operators(proto) == {"DynamicQuantizeLSTM"}
    feeds = {"x": floats(5, 1, 6)}
    assert_as_in_onnxruntime(proto, feeds, close=1e-2)
    optimized = saved(proto, LEVEL.ORT_ENABLE_EXTENDED)
    assert own_operators(optimized) == {"DynamicQuantizeLSTM", "DynamicQuantizeMatMul"}
    assert_as_in_onnxruntime(optimized, feeds, close=1e-2)


def test_chains_go_on_behind_nodes_of_onnx_runtime() -> None:
    """These nodes' results have the type and shape of their first input, which onnx's inference does not know."""
    nodes = [
        node("Gelu", ["x"], ["g"], domain="com.microsoft"),
        node("HardSigmoid", ["g"], ["h"]),
        node("Mul", ["g", "h"], ["y"]),
    ]
    proto = network(nodes, {"x": (1, 2, 3)}, ["y"], {}, 13)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    seen: list[str] = []
    x = floats(2, 3)
    (y,) = backend.prepare(proto).run([x], observer=lambda one, *_: seen.append(one.op_type))
    assert seen == ["Gelu", "Chain"]
    np.testing.assert_allclose(y, by_onnxruntime(proto, {"x": x})[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*NETWORKS, "quantized"])
def test_an_image_does_not_depend_on_its_batch(name: str, tmp_path: Path) -> None:
    """No warning says that it might."""
    if name == "quantized":
        proto, shape = quantized(tmp_path, "QOperator", "QUInt8", "QInt8", True), (3, 12, 12)
    else:
        build, (_, *shape), _ = NETWORKS[name]
        proto = saved(_for_any_batch(build(13)), LEVEL.ORT_ENABLE_EXTENDED)
    x = floats(3, *shape)
    rep = backend.prepare(proto, invariant="batch")
    together = rep.run([x])
    for at in range(3):
        alone = rep.run([x[at : at + 1]])
        for whole, one in zip(together, alone, strict=True):
            rows = whole.shape[0] // 3
            np.testing.assert_array_equal(whole[at * rows : (at + 1) * rows], one)
    assert not rep.report().meets


def _for_any_batch(proto: ModelProto) -> ModelProto:
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    return proto


@pytest.mark.emulator
def test_on_an_emulated_device_every_fused_convolution_is_one_launch() -> None:
    proto, x = saved(fused(), LEVEL.ORT_ENABLE_EXTENDED), floats(2, 4, 7, 7)
    (expected,) = backend.prepare(proto).run([x])
    with emulated_cuda("sm_90a") as emulated:
        rep = backend.prepare(proto, "CUDA")
        before = len(emulated.launches)
        (y,) = rep.run([x])
        assert len(emulated.launches) - before == sum(node.op_type == "FusedConv" for node in proto.graph.node)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6)


@pytest.mark.emulator
def test_on_an_emulated_device_quantized_models_give_the_same_numbers(tmp_path: Path) -> None:
    proto, x = quantized(tmp_path, "QOperator", "QUInt8", "QInt8", True), floats(1, 3, 12, 12)
    expected = backend.prepare(proto).run([x])
    with emulated_cuda("sm_90a"):
        for y, wanted in zip(backend.prepare(proto, "CUDA").run([x]), expected, strict=True):
            np.testing.assert_array_equal(y, wanted)
