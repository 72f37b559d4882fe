"""Attention and embeddings of ONNX Runtime's domain com.microsoft, compared with ONNX Runtime and their definition."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import gpuconv
from gpuconv.onnx import backend
from tests.onnx import contributed
from tests.onnx.contributed import (
    LEVEL,
    UNTYPED,
    by_onnxruntime,
    on_host_and_device,
    one_node,
    own_operators,
    saved,
)
from tests.onnx.models import floats, model, parse_nodes, value

pytestmark = [pytest.mark.slow, UNTYPED]
B, S, N, D = 2, 3, 2, 4
H = N * D


agrees = partial(contributed.agrees, tolerance=1e-5)


def masks(keys: int) -> list[Any]:
    """Return a mask of every shape. Each leaves every query a key: a sum of only -10000 would lose digits."""
    rows = np.random.default_rng(1).integers(0, 2, (B, S, keys))
    rows[..., 0] = 1
    ends = np.int32([keys, 2])
    return [None, ends, np.concatenate([ends, np.int32([1, 0])]), rows[:, 0].astype(np.int32), rows.astype(np.int32)]


@pytest.mark.parametrize("attributes", [{}, {"unidirectional": 1}, {"scale": 0.75, "mask_filter_value": -100.0}])
def test_attention(attributes: dict[str, Any]) -> None:
    x, weights, bias = floats(B, S, 5), floats(5, 3 * H, seed=1), floats(3 * H, seed=2)
    past = floats(2, B, N, 2, D, seed=3)
    for mask in masks(S):
        agrees("Attention", [x, weights, bias, mask], 2, num_heads=N, **attributes)
        agrees("Attention", [x, weights, bias, mask, None, floats(1, N, S, S, seed=4)], num_heads=N, **attributes)
    for mask in masks(2 + S):
        agrees("Attention", [x, weights, bias, mask, past], 2, num_heads=N, **attributes)
    sizes = [H, H, 3 * N]
    agrees("Attention", [x, weights[:, : sum(sizes)], bias[: sum(sizes)]], num_heads=N, qkv_hidden_sizes=sizes)


def test_attention_by_its_definition() -> None:
    """Computed head by head in float64."""
    x, weights, bias = floats(B, S, 5), floats(5, 3 * H, seed=1), floats(3 * H, seed=2)
    proto, feeds = one_node("Attention", [x, weights, bias], num_heads=N, unidirectional=1)
    (y,) = on_host_and_device(proto, feeds)
    qkv = x.astype(np.float64) @ weights + bias
    for image in range(B):
        for head in range(N):
            q, k, v = (qkv[image, :, part * H + head * D : part * H + (head + 1) * D] for part in range(3))
            for query in range(S):
                powers = np.exp(k[: query + 1] @ q[query] / 2)
                expected = powers @ v[: query + 1] / powers.sum()
                np.testing.assert_allclose(y[image, query, head * D : (head + 1) * D], expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_attention_of_integers(dtype: Any) -> None:
    rng, ends = np.random.default_rng(0), np.iinfo(dtype)
    x = rng.integers(0, 256, (B, S, 5)).astype(np.uint8)
    weights = rng.integers(ends.min, ends.max, (5, 3 * H), endpoint=True).astype(dtype)
    bias, scales = floats(3 * H, seed=2), (np.float32(0.02), np.float32(0.01))
    for mask in masks(S)[:4]:
        inputs = [x, weights, bias, *scales, mask, np.uint8(120), dtype(3)]
        agrees("QAttention", inputs, num_heads=N)
        agrees("QAttention", inputs, num_heads=N, unidirectional=1)


@pytest.mark.parametrize("attributes", [{}, {"scale": 0.75, "mask_filter_value": -100.0}])
def test_multi_head_attention(attributes: dict[str, Any]) -> None:
    query, key, value, bias = floats(B, S, H), floats(B, 4, H, seed=1), floats(B, 4, H, seed=2), floats(3 * H, seed=3)
    for mask in [None, *masks(4)[3:]]:
        agrees("MultiHeadAttention", [query, key, value, bias, mask], num_heads=N, **attributes)
    agrees("MultiHeadAttention", [query, key, value, None, None, floats(B, 1, S, 4, seed=4)], num_heads=N, **attributes)
    past = floats(B, N, 2, D, seed=5), floats(B, N, 2, D, seed=6)
    inputs = [query, key[:, :S], value[:, :S], bias, None, None, *past]
    agrees("MultiHeadAttention", inputs, 3, num_heads=N, **attributes)
    agrees("MultiHeadAttention", inputs, 3, num_heads=N, unidirectional=1, **attributes)


def test_keys_and_values_may_be_packed_or_in_heads() -> None:
    """ONNX Runtime has the packed forms only on a GPU."""
    query, key, value = floats(B, S, H), floats(B, S, H, seed=1), floats(B, S, H, seed=2)
    (expected,) = agrees("MultiHeadAttention", [query, key, value], num_heads=N)
    heads = [x.reshape(B, S, N, D) for x in (query, key, value)]
    in_heads = [x.transpose(0, 2, 1, 3) for x in heads[1:]]
    np.testing.assert_array_equal(agrees("MultiHeadAttention", [query, *in_heads], num_heads=N)[0], expected)
    for inputs in ([np.stack(heads, axis=3)], [query, np.stack(heads[1:], axis=3)]):
        proto, feeds = one_node("MultiHeadAttention", inputs, free=range(len(inputs)), num_heads=N)
        np.testing.assert_allclose(on_host_and_device(proto, feeds)[0], expected, rtol=1e-6)


def test_embeddings() -> None:
    rng = np.random.default_rng(0)
    words, segments, mask = (rng.integers(0, most, (B, S)).astype(np.int32) for most in (9, 2, 2))
    tables = [floats(9, H), floats(S + 2, H, seed=1), floats(2, H, seed=2)]
    gamma, beta = floats(H, seed=3), floats(H, seed=4)
    for places in (None, np.int32([[2, 0, 4]]), rng.integers(0, 5, (B, S)).astype(np.int32)):
        for of_mask in (None, mask):
            inputs = [words, segments, *tables, gamma, beta, of_mask, places]
            agrees("EmbedLayerNormalization", inputs, 3, epsilon=0.1)
            agrees("EmbedLayerNormalization", [words, None, *tables[:2], None, gamma, beta, of_mask, places], 2)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "message"),
    [
        ("Attention", [floats(B, S, 5), floats(5, 3 * H)], {}, "attribute num_heads is required"),
        ("Attention", [floats(B, S, 5), floats(5, 3 * H)], {"num_heads": 3}, "24 columns .* are not 3 heads"),
        (
            "Attention",
            [floats(B, S, 5), floats(5, 24), None, np.zeros((B, 7), np.int32)],
            {"num_heads": 2},
            r"\(2, 7\)",
        ),
        ("Attention", [floats(B, S, 5), floats(5, 24)], {"num_heads": 2, "do_rotary": 1}, "do_rotary is not computed"),
        ("MultiHeadAttention", [floats(B, S, H)], {"num_heads": 2}, r"without keys must be \(B, S, N, 3, D\)"),
        ("MultiHeadAttention", [floats(B, S, H)] * 2, {"num_heads": 2}, r"without values must be \(B, L, N, 2, D\)"),
        ("MultiHeadAttention", [*[floats(B, S, H)] * 3, floats(7)], {"num_heads": 2}, r"the shape \(24,\), not \(7,\)"),
    ],
)
def test_faults_name_the_node(op_type: str, inputs: list[Any], attributes: dict[str, Any], message: str) -> None:
    proto, feeds = one_node(op_type, inputs, **attributes)
    with pytest.raises(gpuconv.ArgumentError, match=f"^{op_type} node 'one': .*{message}"):
        backend.prepare(proto).run(feeds)


def bert() -> ModelProto:
    """A layer as PyTorch's exporter writes it, with its mask, in which ONNX Runtime finds Attention."""
    weights = {"shape": np.int64([0, 0, N, D]), "flat": np.int64([0, 0, H])}
    text = """m1 = Unsqueeze <axes = [1]> (mask)  m2 = Unsqueeze <axes = [2]> (m1)  m3 = Cast <to = 1> (m2)
              m4 = Sub (one, m3)  hidden = Mul (m4, large)  h = LayerNormalization <axis = -1> (x, gamma, beta)"""
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        weights |= {f"w{name}": floats(H, H, seed=ord(name)), f"b{name}": floats(H, seed=ord(name) + 1)}
        text += f"""  {name}1 = MatMul (h, w{name})  {name}2 = Add ({name}1, b{name})
                      {name}3 = Reshape ({name}2, shape)  {name}4 = Transpose <perm = {order}> ({name}3)"""
    text += """  s1 = MatMul (q4, k4)  s2 = Div (s1, root)  s3 = Add (s2, hidden)  s4 = Softmax <axis = 3> (s3)
                 o1 = MatMul (s4, v4)  o2 = Transpose <perm = [0, 2, 1, 3]> (o1)  o3 = Reshape (o2, flat)
                 o4 = MatMul (o3, wo)  o5 = Add (o4, bo)  o6 = Add (o5, h)
                 y = LayerNormalization <axis = -1> (o6, gamma, beta)"""
    weights |= {"one": np.float32(1), "large": np.float32(-10000), "root": np.float32(2)}
    weights |= {"gamma": floats(H, seed=7), "beta": floats(H, seed=8), "wo": floats(H, H, seed=9)}
    weights |= {"bo": floats(H, seed=10)}
    nodes = parse_nodes(text)
    for number, one in enumerate(nodes):
        one.name = f"node {number}"
    inputs, outputs = [value("x", shape=(B, S, H)), value("mask", np.int64, (B, S))], [value("y", shape=(B, S, H))]
    return model(nodes, inputs, outputs, 12, weights)


def test_a_layer_in_which_onnx_runtime_finds_attention() -> None:
    feeds = {"x": floats(B, S, H), "mask": np.int64([[1, 1, 0], [1, 1, 1]])}
    proto = saved(bert(), LEVEL.ORT_ENABLE_EXTENDED)
    assert own_operators(proto) == {"Attention", "SkipLayerNormalization"}
    (expected,) = by_onnxruntime(bert(), feeds)
    for made in (bert(), proto):
        rep = backend.prepare(made)
        np.testing.assert_allclose(rep.run(feeds)[0], expected, rtol=0, atol=1e-5)
        assert not rep.report().left
