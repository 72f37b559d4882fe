"""Models written by ONNX Runtime: saved at a level of its optimizations, and quantized."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import gpuconv
from gpuconv.onnx import backend
from tests.emulator import emulated_cuda
from tests.harness.device_arrays import device_arrays
from tests.onnx.contributed import LEVEL, UNTYPED, by_onnxruntime, own_operators, saved
from tests.onnx.models import floats, model, parse_nodes, value

quantization = pytest.importorskip("onnxruntime.quantization")
pytestmark = [pytest.mark.slow, UNTYPED]


def network(nodes: Any, x: tuple[int | str, ...], outputs: str, weights: Any, opset: int = 13) -> ModelProto:
    """Return a model of x; its outputs, as "y z", may have any shape."""
    declared = [value(name, shape=None) for name in outputs.split()]
    domains = ["com.microsoft"] if "com.microsoft." in nodes else []
    return model(nodes, [value("x", shape=x)], declared, opset, weights, domains=domains)


def weights_of(**shapes: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {name: (rng.standard_normal(shape) * 0.4).astype(np.float32) for name, shape in shapes.items()}


def images(opset: int) -> ModelProto:
    """Return a classifier with all operators that static quantization supports, except Where."""
    weights = weights_of(w1=(8, 3, 3, 3), b1=(8,), w2=(8, 1, 3, 3), w3=(8, 8, 1, 1), w4=(12, 16, 3, 3), b4=(12,))
    weights |= weights_of(w5=(10, 12), b5=(10,), w6=(10, 7), w7=(7,)) | {"low": np.float32(0), "high": np.float32(6)}
    nodes = parse_nodes("""c1 = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)  r1 = Relu (c1)
                           p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
                           c2 = Conv <group = 8, pads = [1, 1, 1, 1]> (p1, w2)  l2 = LeakyRelu <alpha = 0.1> (c2)
                           c3 = Conv (l2, w3)  a1 = Add (c3, p1)  s1 = Sigmoid (a1)  m1 = Mul (s1, a1)
                           v1 = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (m1)
                           k1 = Concat <axis = 1> (v1, m1)
                           c4 = Conv <strides = [2, 2], auto_pad = "SAME_UPPER"> (k1, w4, b4)
                           y1 = Clip (c4, low, high)  g = GlobalAveragePool (y1)  f = Flatten (g)
                           y2 = Gemm <transB = 1> (f, w5, b5)  y3 = Softmax <axis = 1> (y2)  t = MatMul (y2, w6)
                           y4 = Add (t, w7)""")
    for number, one in enumerate(nodes):
        one.name = f"node {number}"
    return network(nodes, ("N", 3, 12, 12), "y1 y2 y3 y4", weights, opset)


def tokens(opset: int = 13) -> ModelProto:
    """Return a model of what ONNX Runtime fuses besides convolutions.

    These are SiLU, Gelu, normalized sums, transposed products, and Gemm with Relu.
    """
    weights = weights_of(w=(8, 8), scale=(8,), bias=(8,), v=(6, 5), u=(5,))
    weights |= {"two": np.float32(2), "epsilon": np.float32(1e-5), "half": np.float32(0.5), "one": np.float32(1)}
    weights |= {"root": np.float32(2**0.5), "eighth": np.float32(0.125), "shape": np.int64([-1, 6])}
    nodes = parse_nodes("""q = MatMul (x, w)  xt = Transpose <perm = [0, 2, 1]> (x)  scores = MatMul (q, xt)
                           scaled = Mul (scores, eighth)  shares = Softmax <axis = -1> (scaled)
                           mixed = MatMul (shares, x)  sum = Add (mixed, x)  mean = ReduceMean <axes = [-1]> (sum)
                           d = Sub (sum, mean)  d2 = Pow (d, two)  var = ReduceMean <axes = [-1]> (d2)
                           var1 = Add (var, epsilon)  dev = Sqrt (var1)  n = Div (d, dev)  n1 = Mul (n, scale)
                           n2 = Add (n1, bias)  e0 = Div (n2, root)  e1 = Erf (e0)  e2 = Add (e1, one)
                           e3 = Mul (n2, e2)  y1 = Mul (e3, half)  s = Sigmoid (n2)  y2 = Mul (n2, s)
                           nt = Transpose <perm = [0, 2, 1]> (n2)  rows = Reshape (nt, shape)
                           gemm = Gemm (rows, v, u)  y3 = Relu (gemm)""")
    return network(nodes, (2, 6, 8), "y1 y2 y3", weights, opset)


def fused(opset: int = 13) -> ModelProto:
    """Return convolutions with every activation that ONNX Runtime fuses."""
    weights = weights_of(w=(4, 4, 3, 3), b=(4,)) | {"low": np.float32(-0.5), "high": np.float32(0.5)}
    activations = "Relu ({})", "LeakyRelu <alpha = 0.2> ({})", "Clip ({}, low, high)", "Tanh ({})", "Sigmoid ({})"
    nodes, source = "", "x"
    for at, activation in enumerate((*activations, "HardSigmoid <alpha = 0.25> ({})")):
        nodes += f"c{at} = Conv <pads = [1, 1, 1, 1]> ({source}, w, b)  y{at} = {activation.format(f'c{at}')}  "
        source = f"y{at}"
    return network(nodes, (2, 4, 7, 7), source, weights, opset)


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
    proto = network("[turn] y = com.microsoft.RotaryEmbedding (x)", (2,), "y", {})
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
    nodes = parse_nodes("""t = Transpose <perm = [1, 2, 0]> (x)  k = Conv <pads = [1, 1]> (t, c)
                           u = Transpose <perm = [2, 0, 1]> (k)  "", h = LSTM <hidden_size = 8> (u, w, r, b)
                           p = MatMul (h, m)  q = Add (p, a)  s = Relu (q)  y = MatMul (s, n)""")
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    onnx.save(network(nodes, (5, 1, 6), "y", values), before)
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
    """Their results have the type and the shape of what they begin with, which inference of onnx does not know."""
    nodes = "g = com.microsoft.Gelu (x)  h = HardSigmoid (g)  y = Mul (g, h)"
    proto = network(nodes, (2, 3), "y", {})
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
