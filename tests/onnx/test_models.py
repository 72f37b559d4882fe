"""Nine networks that others made, beside ONNX Runtime: the whole, and each of our nodes."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, numpy_helper

from gpuconv.onnx import backend
from tests.onnx.networks import (
    DATA,
    onnxruntime_outputs,
    onnxruntime_run,
    our_nodes,
    set_outputs,
    with_random_weights,
)
from tests.oracle import oracle

pytestmark = pytest.mark.slow

FLOAT = onnx.TensorProto.FLOAT
UNIT = 2.0**-24


def _weights(model: ModelProto) -> dict[str, Any]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def _free_inputs(model: ModelProto) -> list[str]:
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in weights]


NETWORKS = {
    "bvlc_alexnet": {"Conv": 5, "MaxPool": 3},
    "densenet121": {"Conv": 121, "MaxPool": 1},
    "inception_v1": {"Conv": 57, "MaxPool": 13},
    "inception_v2": {"Conv": 69, "MaxPool": 5},
    "resnet50": {"Conv": 53, "MaxPool": 1},
    "shufflenet": {"Conv": 49, "MaxPool": 1},
    "squeezenet": {"Conv": 26, "MaxPool": 3},
    "vgg19": {"Conv": 16, "MaxPool": 5},
    "zfnet512": {"Conv": 5, "MaxPool": 3},
}


def test_these_are_all_networks() -> None:
    assert {path.stem for path in DATA.glob("light/*.onnx")} == {f"light_{name}" for name in NETWORKS}


# Those with the most weights, up to 144 million in vgg19, are thorough.
LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough) if name in LARGE else name for name in NETWORKS]
)
def test_network_beside_onnx_runtime(name: str) -> None:
    model = with_random_weights(DATA / "light" / f"light_{name}.onnx", seed=0)
    ours = our_nodes(model)
    assert Counter(node.op_type for node in ours) == NETWORKS[name]
    (image,) = _free_inputs(model)
    x = np.random.default_rng(1).standard_normal((1, 3, 224, 224), np.float32)
    last = model.graph.output[0].name
    before = _before_softmax(model)
    needed = dict.fromkeys([last, before, *(n for node in ours for n in (node.input[0], node.output[0]) if n != image)])
    set_outputs(model, [onnx.ValueInfoProto(name=name) for name in needed])
    values = dict(zip(needed, onnxruntime_run(model, {image: x}), strict=True)) | _weights(model) | {image: x}
    _check_whole(model, x, {name: values[name] for name in (last, before)}, ours, values)
    for node in ours:
        _check_node(node, values, model.opset_import[0].version)


def _before_softmax(model: ModelProto) -> str:
    """Return the name of the final Softmax's input, as Softmax hides most errors, or of the output if there is none."""
    final = model.graph.node[-1]
    return final.input[0] if final.op_type == "Softmax" else final.output[0]


def _check_whole(
    model: ModelProto, x: Any, expected: dict[str, Any], ours: list[NodeProto], values: dict[str, Any]
) -> None:
    """Compare the outputs of the whole network for x.

    Rounding errors have both signs, so each layer of K terms adds about sqrt(K) u of its output, in either
    implementation, and the weights neither amplify nor dampen it.
    """
    limit = sum(2 * UNIT * math.sqrt(_terms(node, values)) for node in ours if node.op_type != "MaxPool")
    set_outputs(model, [onnx.helper.make_tensor_value_info(n, FLOAT, wanted.shape) for n, wanted in expected.items()])
    outputs = backend.prepare(model).run([x])
    for name, wanted in expected.items():
        assert np.isfinite(wanted).all()
        assert wanted.std() > 1e-2 * np.abs(wanted).max(), f"{name} says little: its values are all alike"
        error = np.abs(outputs[name] - wanted).max() / np.abs(wanted).max()
        assert error <= limit, f"{name}: off by {error:.3g} of the largest value, where {limit:.3g} may be"


def _check_node(node: NodeProto, values: dict[str, Any], opset: int) -> None:
    """Compare one node on exactly the inputs that ONNX Runtime had.

    Each of the two may differ by (K + 1) u S from the exact sums. As rounding errors have both signs, real errors are
    far below that: on average over the outputs they stay below sqrt(K + 1) u S.
    """
    inputs = [values[name] for name in node.input]
    (got,) = backend.run_node(node, inputs, opset_version=opset)
    expected = values[node.output[0]]
    if node.op_type == "MaxPool":
        oracle.assert_same(got, expected, bits=False)
        return
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    magnitude = onnxruntime_outputs(node, [np.abs(value) for value in inputs], opset)[0].astype(np.float64)
    terms = _terms(node, values)
    error = np.abs(got.astype(np.float64) - expected)
    where = f"{node.op_type} with output {node.output[0]!r}"
    assert (error <= 2 * (terms + 1) * UNIT * magnitude).all(), where
    typical = np.sqrt(np.mean((error / np.maximum(magnitude, np.finfo(np.float32).tiny)) ** 2))
    assert typical <= 2 * math.sqrt(terms + 1) * UNIT, f"{where}: typical error {typical:.3g} of the sum of magnitudes"


def _terms(node: NodeProto, values: dict[str, Any]) -> int:
    """Return the number of products of one output of Conv, plus its bias."""
    return int(np.prod(values[node.input[1]].shape[1:])) + 1
