"""Models whose runs are captured in CUDA graphs, and nodes that prevent it."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import numpy as np
import onnx
import pytest

import gpuconv
from gpuconv.onnx import backend
from tests.gpu.on_device import cupy
from tests.oracle.operands import values
from tests.oracle.oracle import assert_same

pytestmark = pytest.mark.gpu

X = (2, 3, 8, 8)
RESIDUAL = """
g (float[N, 3, 8, 8] x, float[3, 3, 3, 3] w, float[4, 3, 3, 3] v) => (float[N, 4, 4, 4] z, int64[4] shape) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    b = Relu (a)
    c = Conv <pads = [1, 1, 1, 1]> (b, w)
    d = Add (c, x)
    e = Relu (d)
    f = Conv <pads = [1, 1, 1, 1]> (e, v)
    z = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (f)
    shape = Shape (z)
}
"""
RELU_OR_NEG = """
y = If <
    then_branch = a () => (float[2, 3, 8, 8] t) { t = Relu (x) },
    else_branch = b () => (float[2, 3, 8, 8] e) { e = Neg (x) }
> (c)
"""


def made(shape: tuple[int, ...], seed: int = 0) -> Any:
    return values("integers", seed, shape, np.dtype(np.float32))


def moved(shape: tuple[int, ...], seed: int = 0) -> Any:
    return gpuconv.to_device(made(shape, seed))


def model(text: str, **weights: Any) -> onnx.ModelProto:
    parsed = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 22]> {text}')
    parsed.graph.initializer.extend(onnx.numpy_helper.from_array(w, name) for name, w in weights.items())
    return parsed


def node(inputs: str, outputs: str, text: str) -> backend.Rep:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return backend.prepare(model(f"g ({inputs}) => ({outputs}) {{ {text} }}"), "CUDA")


def residual() -> onnx.ModelProto:
    return model(RESIDUAL, w=made((3, 3, 3, 3), 1), v=made((4, 3, 3, 3), 2))


def by_hand(x: Any) -> Any:
    """Compute the model above, operator by operator."""
    same, w, v = {"pads": [1, 1, 1, 1]}, made((3, 3, 3, 3), 1), made((4, 3, 3, 3), 2)
    hidden = np.maximum(gpuconv.conv(np.maximum(gpuconv.conv(x, w, **same), 0), w, **same) + x, 0)
    return gpuconv.max_pool(gpuconv.conv(hidden, v, **same), [2, 2], strides=[2, 2])


@pytest.mark.parametrize("fold", [True, False])
def test_replays_of_a_model_leave_the_arrays_of_others_alone(fold: bool) -> None:
    rep = backend.prepare(residual(), "CUDA", fold=fold)
    graph = rep.capture([moved(X)])
    for seed in range(3):
        others = [cupy().full(shape, 7, np.float32) for shape in (X, X, (2, 4, 8, 8), (2, 4, 4, 4), (500,))]
        outputs = graph(moved(X, seed))
        assert_same(gpuconv.to_host(outputs["z"]), by_hand(made(X, seed)), bits=False)
        assert gpuconv.to_host(outputs.shape).tolist() == [2, 4, 4, 4]
        for array in others:
            assert_same(gpuconv.to_host(array), np.full(array.shape, 7, np.float32))
        del others
    assert_same(rep.run([made(X, 9)])[0], by_hand(made(X, 9)), bits=False)  # as before


def test_inputs_by_name_and_values_for_those_with_an_initializer() -> None:
    rep = backend.prepare(residual(), "CUDA")
    w = moved((3, 3, 3, 3), 1)
    graph = rep.capture({"w": w, "x": moved(X)})
    rep.run([made(X)])  # by another evaluator
    outputs = graph(moved(X, 4), w)
    assert_same(gpuconv.to_host(outputs["z"]), by_hand(made(X, 4)), bits=False)


def test_a_graph_lives_without_its_model() -> None:
    graph = backend.prepare(residual(), "CUDA").capture([moved(X)])
    others = [moved((n,)) for n in (81, 108, 500)]
    assert_same(gpuconv.to_host(graph(moved(X, 4))["z"]), by_hand(made(X, 4)), bits=False)
    del others


def test_a_graph_keeps_constants_of_a_model_that_goes_on_without_them() -> None:
    """A run with a value for an input with a default drops what was computed from the default."""
    text = "g (float[2, 3, 8, 8] x, float[1, 3, 8, 8] c) => (float[2, 3, 8, 8] y) { a = Mul (x, c) y = Add (a, x) }"
    rep = backend.prepare(model(text, c=made((1, 3, 8, 8), 1)), "CUDA")
    rep.run([made(X)])  # brings the constant to the device
    graph = rep.capture([moved(X)])
    rep.run({"x": made(X), "c": made((1, 3, 8, 8), 2)})
    gc.collect()
    others = [cupy().full((1, 3, 8, 8), 7, np.float32) for _ in range(4)]
    assert_same(gpuconv.to_host(graph(moved(X, 4))[0]), made(X, 4) * made((1, 3, 8, 8), 1) + made(X, 4), bits=False)
    del others


def test_what_the_host_reads_is_fixed() -> None:
    x = "float[2, 3, 8, 8] x"
    for text, given, expected in (
        ("y = Reshape (x, c)", np.array([6, -1]), made(X, 4).reshape(6, -1)),
        (RELU_OR_NEG, np.array(True), np.maximum(made(X, 4), 0)),
        (RELU_OR_NEG, np.array(False), -made(X, 4)),
        (
            "y = Loop <body = b (int64 i, bool k, float[2, 3, 8, 8] s) => (bool l, float[2, 3, 8, 8] t) "
            "{ l = Identity (k) t = Add (s, s) }> (c, , x)",
            np.array(3),
            8 * made(X, 4),
        ),
    ):
        rep = node(f"{x}, {'bool' if given.dtype == bool else 'int64'}[{','.join(map(str, given.shape))}] c", "y", text)
        graph = rep.capture([moved(X), given])
        assert_same(gpuconv.to_host(graph(moved(X, 4))[0]), expected, bits=False)


LEFT = {
    "Einsum": ("x", 'y = Einsum <equation = "abcd->dcba"> (x)', [], "copies values to the host"),
    "Det": ("x", "y = Det (x)", [], "copies values to the host"),
    "NonZero": ("x", "y = NonZero (x)", [], "copies values to the host"),
    "Resize": ("x, float[4] c", 'y = Resize <mode = "linear"> (x, , c)', [np.float32([1, 1, 2, 2])], "H2D transfers"),
    "If": ("x, bool[] c", RELU_OR_NEG, [np.array(True)], "copies values to the host"),
    "Loop": (
        "x, bool[] c",
        "y = Loop <body = b (int64 i, bool k, float[2, 3, 8, 8] s) => (bool l, float[2, 3, 8, 8] t) "
        "{ n = ReduceMax <keepdims = 0> (s) l = Less (n, n) t = Add (s, s) }> (, c, x)",
        [np.array(True)],
        "copies values to the host",
    ),
    "Gather": ("x, int64[2] c", "y = Gather (x, c)", [np.array([1, 0])], "copies values to the device"),
    "Reshape": ("x, int64[2] c", "y = Reshape (x, c)", [np.array([6, -1])], "copies values to the host"),
}


@pytest.mark.parametrize("op_type", LEFT)
def test_a_node_that_cannot_be_captured_is_named(op_type: str) -> None:
    inputs, text, others, cause = LEFT[op_type]
    rep = node(inputs.replace("x", "float[2, 3, 8, 8] x", 1), "y", text)
    if op_type in ("If", "Reshape"):
        others = [gpuconv.to_device(array) for array in others]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(gpuconv.DeviceError) as caught:
            rep.capture([moved(X), *others])
    start = f"capture: the model cannot be captured: {op_type} node with output 'y'"
    assert str(caught.value).startswith(start), caught.value
    assert cause in str(caught.value)
    assert caught.value.__cause__ is not None


def test_wrong_captures() -> None:
    with pytest.raises(
        gpuconv.ArgumentError, match=r"capture: the model was prepared for 'CPU'; CUDA graphs need prep"
    ):
        backend.prepare(residual()).capture([made(X)])
    rep = backend.prepare(residual(), "CUDA")
    with pytest.raises(gpuconv.ArgumentTypeError) as caught:
        rep.capture([made(X)])
    assert str(caught.value) == (
        "capture: CUDA graphs need CuPy arrays, but the input 'x' is numpy.ndarray; move it with gpuconv.to_device"
    )
    with pytest.raises(gpuconv.ArgumentError, match=r"capture: got 2 input\(s\), but the model takes 1"):
        rep.capture([moved(X), moved(X)])
    graph = rep.capture([moved(X)])
    with pytest.raises(
        gpuconv.ArgumentError, match=r"graph: the input 'x' has shape \(1, 3, 8, 8\), but the graph was"
    ):
        graph(moved((1, *X[1:])))
