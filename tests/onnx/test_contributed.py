"""Floating-point operators of ONNX Runtime's domain com.microsoft, and fused nodes that are converted to gpuconv's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpuconv
from gpuconv.onnx import backend, steps
from tests.onnx.contributed import UNTYPED, agrees, by_onnxruntime, on_host_and_device, one_node
from tests.onnx.models import floats, model, parsed, value

pytestmark = [pytest.mark.slow, UNTYPED]


# ---------------------------------------------------------------- FusedConv and FusedGemm

ACTIVATIONS: dict[str, tuple[list[float], Callable[[Any], Any]]] = {
    "": ([], lambda y: y),
    "Clip": ([-0.5, 0.75], lambda y: np.clip(y, -0.5, 0.75)),
    "HardSigmoid": ([0.25, 0.5], lambda y: np.clip(0.25 * y + 0.5, 0, 1)),
    "LeakyRelu": ([0.25], lambda y: np.where(y < 0, y / 4, y)),
    "Relu": ([], lambda y: np.maximum(y, 0)),
    "Sigmoid": ([], lambda y: 1 / (1 + np.exp(-y))),
    "Tanh": ([], np.tanh),
}


def fused_conv(activation: str, with_bias: bool, with_residual: bool, seed: int) -> tuple[list[Any], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    group, strides, pads = int(rng.choice([1, 2])), rng.integers(1, 3, 2).tolist(), rng.integers(0, 2, 4).tolist()
    x, w = floats(2, 4, 9, 8, seed=seed), floats(6, 4 // group, 3, 2, seed=seed + 1)
    attributes: dict[str, Any] = {"group": group, "strides": strides, "pads": pads, "kernel_shape": [3, 2]}
    if activation:
        attributes["activation"] = activation
        if ACTIVATIONS[activation][0]:
            attributes["activation_params"] = ACTIVATIONS[activation][0]
    plain = gpuconv.conv(x, w, group=group, strides=strides, pads=pads)
    z = floats(*plain.shape, seed=seed + 2)
    return [x, w, floats(6, seed=seed + 3) if with_bias else None, z if with_residual else None], attributes


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize(("with_bias", "with_residual"), [(False, False), (True, False), (True, True), (False, True)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_fused_convolutions(activation: str, with_bias: bool, with_residual: bool, opset: int) -> None:
    inputs, attributes = fused_conv(activation, with_bias, with_residual, seed=len(activation))
    inputs = inputs if inputs[3] is not None else inputs[:3] if inputs[2] is not None else inputs[:2]
    agrees("FusedConv", inputs, opset=opset, **attributes)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_fused_convolution_is_one_of_ours(activation: str) -> None:
    """Its residual and the activations that a kernel applies are not separate passes."""
    inputs, attributes = fused_conv(activation, True, True, seed=5)
    proto, feeds = one_node("FusedConv", inputs, free=(0, 3), **attributes)
    seen: list[str] = []
    rep = backend.prepare(proto)
    (y,) = rep.run(feeds, observer=lambda node, *_: seen.append(node.op_type))
    assert seen == ["FusedConv", *([activation] if activation in ("HardSigmoid", "Sigmoid", "Tanh") else [])]
    assert type(rep._evaluator.rt_nodes_[0]) is steps.FusedStep
    x, w, b, z = inputs
    wide = {name: attributes[name] for name in ("group", "strides", "pads")}
    expected = gpuconv.conv(*(a.astype(np.float64) for a in (x, w, b)), **wide)
    np.testing.assert_allclose(y, ACTIVATIONS[activation][1](expected + z), rtol=1e-5, atol=1e-5)
    (alone,) = backend.run_node(proto.graph.node[0], inputs, opset_version=13)
    np.testing.assert_allclose(alone, y, rtol=1e-6, atol=1e-6)


def test_wrong_numbers_of_inputs_are_refused() -> None:
    x, w = floats(1, 1, 3, 3), floats(1, 1, 1, 1)
    for inputs, message in (
        ([x, w, None, x, x], r"FusedConv node 'one': must have 2 to 4 inputs \(X, W, B, Z\), not 5"),
        ([x], r"Conv node 'one': must have 2 to 3 inputs \(X, W, B\), not 1"),
    ):
        proto, _ = one_node("FusedConv", inputs)
        with pytest.raises(gpuconv.ArgumentError, match=f"^{message}"):
            backend.prepare(proto)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"activation": "Gelu"}, "its activation 'Gelu' is none of Clip, HardSigmoid.*ORT_ENABLE_BASIC"),
        ({"activation": "Clip", "activation_params": [1.0]}, "activation_params must have 2 numbers for Clip, not 1"),
    ],
)
def test_unknown_activations_are_refused(attributes: dict[str, Any], message: str) -> None:
    proto, _ = one_node("FusedConv", [floats(1, 1, 3, 3), floats(1, 1, 1, 1)], **attributes)
    with pytest.raises(gpuconv.ArgumentError, match=f"^FusedConv node 'one': {message}"):
        backend.prepare(proto)


GEMM_ACTIVATIONS: dict[str, dict[str, float]] = {
    "Elu": {"alpha": 0.5}, "HardSigmoid": {"alpha": 0.3, "beta": 0.4}, "LeakyRelu": {"alpha": 0.2}, "Relu": {},
    "Sigmoid": {}, "Softplus": {}, "Softsign": {}, "Tanh": {}, "ThresholdedRelu": {"alpha": 0.7},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.* is left to onnx's reference evaluator:UserWarning")
@pytest.mark.parametrize("activation", GEMM_ACTIVATIONS)
def test_fused_gemm(activation: str) -> None:
    attributes: dict[str, Any] = {"alpha": 1.5, "beta": 0.5, "transA": 1, "transB": len(activation) % 2}
    numbers = {f"activation_{name}": number for name, number in GEMM_ACTIVATIONS[activation].items()}
    attributes |= {"activation": activation, **numbers}
    b = floats(*((5, 4) if attributes["transB"] else (4, 5)), seed=1)
    agrees("FusedGemm", [floats(4, 3), b, floats(5, seed=2)], **attributes)


def test_fused_nodes_in_graphs_inside_and_in_functions() -> None:
    """Names in between are new ones there, too."""
    nodes = 'y = com.microsoft.FusedConv <activation = "Tanh"> (x, w)  "y of Conv" = Identity (y)'
    text = f"""g (float[1, 1, 3] x, bool flag) => (float[A, B, C] out, float[A, B, C] called)
        <float[1, 1, 2] w = {{2, 1}}> {{
        out = If (flag) <then_branch = b () => (float[A, B, C] "y of Conv") {{ {nodes} }},
                         else_branch = e () => (float[A, B, C] z) {{ z = Identity (x) }}>
        called = own.conv (x, w) }}
        <domain: "own", opset_import: ["" : 16, "com.microsoft" : 1]> conv (x, w) => ("y of Conv") {{ {nodes} }}"""
    proto = parsed(text, 16, ["com.microsoft", "own"])
    x = np.float32([[[0.5, -0.25, 0.125]]])
    for y in backend.prepare(proto).run([x, np.asarray(True)]):
        np.testing.assert_allclose(y, np.tanh([[[0.75, -0.375]]]), rtol=1e-6)


@pytest.mark.parametrize("op_type", ["FusedConv", "Gelu"])
def test_a_model_s_own_functions_come_first(op_type: str) -> None:
    text = f"""g (float[3] x) => (float[3] y) {{ y = com.microsoft.{op_type} (x) }}
        <domain: "com.microsoft", opset_import: ["" : 16]> {op_type} (a) => (b) {{ b = Neg (a) }}"""
    proto = parsed(text, 16, ["com.microsoft"])
    assert backend.prepare(proto).run([np.float32([1, -2, 3])])["y"].tolist() == [-1, 2, -3]


# ---------------------------------------------------------------- products


@pytest.mark.parametrize("seed", range(16))
def test_fused_matmul(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype, ndim, batch_inside = (np.float32, np.float64)[seed % 2], int(rng.integers(2, 5)), int(rng.integers(0, 2))
    m, k, n = rng.integers(1, 7, 3).tolist()
    batch = rng.integers(1, 4, ndim - 2).tolist()
    attributes: dict[str, Any] = {"alpha": float(rng.uniform(0.1, 2)), "transA": seed % 3 % 2, "transB": seed % 4 % 2}
    if batch:
        attributes |= {"transBatchA": batch_inside, "transBatchB": batch_inside}

    def factor(rows: int, columns: int, transposed: int) -> Any:
        first, last = (columns, rows) if transposed else (rows, columns)
        shape = [first, *batch, last] if batch_inside else [*batch, first, last]
        return rng.standard_normal(shape).astype(dtype)

    a, b = factor(m, k, attributes["transA"]), factor(k, n, attributes["transB"])
    agrees("FusedMatMul", [a, b], **attributes)


def test_vectors_are_multiplied_as_they_are() -> None:
    agrees("FusedMatMul", [floats(3), floats(4, 3, seed=1)], transB=1)
    agrees("FusedMatMul", [floats(2, 4, 3), floats(3, seed=1)], transB=1)
    agrees("TransposeMatMul", [floats(3, 2), floats(4, 3, seed=1)], transA=1, transB=1, alpha=0.5)


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_products_of_integers_as_floats(dtype: Any, per_column: bool) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 256, (2, 3, 50)).astype(np.uint8), rng.integers(0, 256, (50, 6)).astype(dtype)
    scale = np.linspace(0.01, 0.02, 6, dtype=np.float32) if per_column else np.float32(0.01)
    zero, bias = (np.arange(6).astype(dtype) if per_column else dtype(3)), floats(6)
    for others in ([np.uint8(7), zero, bias], [None, zero], [np.uint8(7), None, bias], []):
        agrees("MatMulIntegerToFloat", [a, b, np.float32(0.1), scale, *others])
        agrees("DynamicQuantizeMatMul", [floats(2, 3, 50, seed=1), b, scale, *others[1:]])
    total = (a.astype(int) - 7) @ (b.astype(int) - zero.astype(int))
    proto, feeds = one_node("MatMulIntegerToFloat", [a, b, np.float32(0.5), np.float32(0.25), np.uint8(7), zero])
    np.testing.assert_array_equal(on_host_and_device(proto, feeds)[0], total / 8)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products_by_packed_integers(bits: int) -> None:
    """Weights are unpacked from the lowest bits first, in blocks of K."""
    rng, (k, n, block) = np.random.default_rng(bits), (40, 5, 16)
    blocks = -(-k // block)
    integers = rng.integers(0, 2**bits, (n, blocks * block))
    zeros = rng.integers(0, 2**bits, (n, blocks))
    scales = rng.uniform(0.01, 0.1, (n, blocks)).astype(np.float32)

    def packed(values: Any) -> Any:
        each = 8 // bits
        values = np.pad(values, ((0, 0), (0, -values.shape[1] % each))).reshape(n, -1, each)
        return (values << (bits * np.arange(each))).sum(axis=2).astype(np.uint8)

    b = packed(integers).reshape(n, blocks, -1)
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    a, bias = floats(3, k), floats(n, seed=1)
    for given, subtracted in ((packed(zeros), zeros), (zeros.astype(np.float32), zeros), (None, 2 ** (bits - 1))):
        parts = integers.reshape(n, blocks, block) - np.broadcast_to(subtracted, (n, blocks))[..., None]
        w = (parts * scales[..., None]).reshape(n, -1)[:, :k].T
        inputs = [a, b, scales, given, None, bias]
        proto, feeds = one_node("MatMulNBits", inputs, **attributes)
        np.testing.assert_allclose(on_host_and_device(proto, feeds)[0], a @ w + bias, rtol=0, atol=1e-5)
        if bits == 4 and (given is None or given.dtype == np.uint8):
            np.testing.assert_allclose(by_onnxruntime(proto, feeds)[0], a @ w + bias, rtol=0, atol=1e-4)
    order = rng.integers(0, blocks, k).astype(np.int32)
    w = (integers[:, :k] - np.take(zeros, order, axis=1)) * np.take(scales, order, axis=1)
    proto, feeds = one_node("MatMulNBits", [a, b, scales, packed(zeros), order], **attributes)
    np.testing.assert_allclose(on_host_and_device(proto, feeds)[0], a @ w.T, rtol=0, atol=1e-5)
    for wrong, message in (({"bits": 3}, "bits must be 2, 4 or 8, not 3"), ({"K": 100}, "need .* bytes and 35 scales")):
        proto, feeds = one_node("MatMulNBits", [a, b, scales], **{**attributes, **wrong})
        with pytest.raises(gpuconv.ArgumentError, match=f"^MatMulNBits node 'one': .*{message}"):
            backend.prepare(proto).run(feeds)


# ---------------------------------------------------------------- Gelu and normalizations


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gelu_and_its_relatives(dtype: Any) -> None:
    x, bias = (3 * floats(2, 3, 40)).astype(dtype), floats(40, seed=1).astype(dtype)
    agrees("Gelu", [x])
    if dtype == np.float32:
        agrees("BiasGelu", [x, bias])
        agrees("FastGelu", [x, bias])
        agrees("QuickGelu", [x])
        agrees("QuickGelu", [x], alpha=1.0)
        agrees("FastGelu", [x])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("axis", [-1, 1, -3])
def test_normalizations_of_the_default_domain_that_onnx_does_not_have(axis: int, dtype: Any) -> None:
    """ONNX Runtime writes LayerNormalization before opset 17, and SimplifiedLayerNormalization, without a domain."""
    x = floats(3, 4, 5, dtype=dtype)
    scale, bias = (floats(*x.shape[axis:], seed=seed, dtype=dtype) for seed in (1, 2))
    for epsilon in ({}, {"epsilon": 0.1}):
        options = {"domain": "", "axis": axis, **epsilon}
        agrees("LayerNormalization", [x, scale, bias], 3, **options)
        agrees("LayerNormalization", [x, scale], **options)
        agrees("SimplifiedLayerNormalization", [x, scale], 2, **options)


@pytest.mark.parametrize("skip", [(2, 3, 8), (1, 3, 8), (3, 8)])
def test_normalizations_of_sums(skip: tuple[int, ...]) -> None:
    x, added, gamma, beta, bias = floats(2, 3, 8), floats(*skip, seed=1), *(floats(8, seed=seed) for seed in (2, 3, 4))
    for others in ([beta, bias], [beta], [None, bias]):
        agrees("SkipLayerNormalization", [x, added, gamma, *others])
        agrees("SkipLayerNormalization", [x, added, gamma, *others], epsilon=0.1)
    agrees("SkipSimplifiedLayerNormalization", [x, added, gamma, bias])
    agrees("SkipSimplifiedLayerNormalization", [x, added, gamma], epsilon=0.1)
    total = (x + added + bias).astype(np.float64)
    mean = total.mean(axis=-1, keepdims=True)
    for op_type, others, centre in (
        ("SkipLayerNormalization", [beta, bias], mean),
        ("SkipSimplifiedLayerNormalization", [bias], 0),
    ):
        proto, feeds = one_node(op_type, [x, added, gamma, *others], 4, epsilon=0.5)
        y, got_mean, factor, got_total = backend.prepare(proto).run(feeds)
        expected = 1 / np.sqrt(((total - centre) ** 2).mean(axis=-1, keepdims=True) + 0.5)
        np.testing.assert_allclose(factor, expected, rtol=1e-6)
        np.testing.assert_allclose(got_total, total, rtol=1e-6)
        np.testing.assert_allclose(y, (total - centre) * expected * gamma + (beta if len(others) > 1 else 0), atol=1e-5)
        if op_type == "SkipLayerNormalization":
            np.testing.assert_allclose(got_mean, mean, rtol=1e-6, atol=1e-7)


# ---------------------------------------------------------------- QuantizeLinear and DequantizeLinear


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint16])
def test_quantization_of_onnx_runtime_s_own_domain(kind: Any) -> None:
    """It has 16-bit types before opset 21, and scales along an axis only if the node names one."""
    rng, ends = np.random.default_rng(0), np.iinfo(kind)
    x, integers = 50 * floats(4, 5, 6), rng.integers(ends.min, ends.max, (4, 5, 6), endpoint=True).astype(kind)
    for axis in (None, 0, 1, -1):
        shape, attributes = ((), {}) if axis is None else ((x.shape[axis],), {"axis": axis})
        scale = rng.uniform(0.01, 1, shape).astype(np.float32)
        zero = rng.integers(ends.min, ends.max, shape, endpoint=True).astype(kind)
        for dtype in (np.float32, np.float16):
            scales = scale.astype(dtype)
            agrees("QuantizeLinear", [x.astype(dtype), scales, zero], tolerance=0, **attributes)
            agrees("DequantizeLinear", [integers, scales, zero], tolerance=0, **attributes)
        agrees("DequantizeLinear", [integers, scale], tolerance=0, **attributes)


@pytest.mark.parametrize("kind", [ml_dtypes.int4, ml_dtypes.uint4])
def test_four_bits(kind: Any) -> None:
    """ONNX Runtime hands out no arrays of these, so that they go through both operators."""
    nodes = """q = com.microsoft.QuantizeLinear <axis = 0> (x, s, z)
               y = com.microsoft.DequantizeLinear <axis = 0> (q, s, z)"""
    x, scale, zero = 3 * floats(3, 8), np.float32([0.5, 0.25, 1]), np.array([1, 2, 3]).astype(kind)
    declared, weights = [value(name, shape=(3, 8)) for name in "xy"], {"s": scale, "z": zero}
    proto = model(nodes, declared[:1], declared[1:], 17, weights, domains=["com.microsoft"], ir_version=10)
    (y,) = on_host_and_device(proto, {"x": x})
    np.testing.assert_array_equal(y, by_onnxruntime(proto, {"x": x})[0])
    ends, offset = (-8, 7) if kind is ml_dtypes.int4 else (0, 15), zero.astype(int)[:, None]
    expected = (np.clip(np.rint(x / scale[:, None]) + offset, *ends) - offset) * scale[:, None]
    np.testing.assert_array_equal(y, expected)


def test_weights_are_dequantized_once() -> None:
    w = np.arange(-8, 8).reshape(4, 1, 4).astype(np.int16)
    weights = {"q": w, "s": np.float32(0.5)}
    nodes = "w = com.microsoft.DequantizeLinear (q, s)  y = Conv (x, w)"
    rep = backend.prepare(model(nodes, ["x"], ["y"], 13, weights, domains=["com.microsoft"]))
    x, seen = floats(1, 1, 6), []
    (y,) = rep.run([x], observer=lambda node, *_: seen.append(node.op_type))
    assert seen == ["Conv"]
    np.testing.assert_array_equal(y, gpuconv.conv(x, w.astype(np.float32) / 2))
