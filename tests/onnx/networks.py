"""The networks of the onnx package with random weights, and their results in ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from benchmarks.networks import DATA, with_random_weights
from gpuconv.onnx import backend
from tests.onnx.models import node_of

__all__ = [
    "DATA", "attributes", "both", "onnxruntime_outputs", "onnxruntime_run", "our_nodes",
    "set_outputs", "with_random_weights",
]  # fmt: skip

OPERATORS = ("Conv", "ConvTranspose", "MaxPool")


def our_nodes(model: ModelProto) -> list[NodeProto]:
    """List the nodes that gpuconv computes."""
    return [node for node in model.graph.node if node.op_type in OPERATORS]


def attributes(node: NodeProto) -> dict[str, Any]:
    """Return a node's attributes as a dict."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def set_outputs(model: ModelProto, outputs: Iterable[ValueInfoProto]) -> None:
    """Make these values the model's outputs, in place, since its weights may be large."""
    del model.graph.output[:]
    model.graph.output.extend(outputs)


def onnxruntime_run(model: ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Run a model in ONNX Runtime on the CPU, without fusing nodes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    results: list[Any] = session.run(None, dict(feeds))
    return results


def onnxruntime_outputs(node: NodeProto, inputs: Sequence[Any], opset: int) -> list[Any]:
    """Compute one node in ONNX Runtime; the inputs are those whose names are not ""."""
    names = list(filter(None, node.input))
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph([node], "node", infos, [onnx.ValueInfoProto(name=name) for name in node.output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnxruntime_run(model, dict(zip(names, inputs, strict=True)))


def both(op_type: str, opset: int, inputs: Sequence[Any], outputs: int = 1, **attributes: Any) -> tuple[Any, Any]:
    """Compute one node here and in ONNX Runtime, whose results must have the same types and shapes; None is absent."""
    node, given = node_of(op_type, inputs, outputs, **attributes)
    pair = backend.run_node(node, given, opset_version=opset), onnxruntime_outputs(node, given, opset)
    for got, expected in zip(*pair, strict=True):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    return pair


FOLDER = Path(__file__).parent / "exported"


NAMES = sorted(path.stem for path in FOLDER.glob("*.onnx"))


UNIT = 2.0**-24


def load(name: str) -> tuple[ModelProto, Any]:
    """Return a network with seeded weights, and an image."""
    model = with_random_weights(FOLDER / f"{name}.onnx", seed=3)
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    return model, np.random.default_rng(4).standard_normal(shape, np.float32)


def limit(model: ModelProto) -> float:
    """Return the largest error of an output, relative to the largest value.

    Rounding errors have both signs: a sum of K terms adds about sqrt(K) u of its output, any other operator at most a
    few u; folding rounds each weight once more, which counts as two such sums.
    """
    sizes = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    total = 0.0
    for node in model.graph.node:
        dims = sizes.get(node.input[1], ()) if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul") else ()
        terms = math.prod(dims[1:]) if len(dims) > 2 else max(dims, default=1)
        total += 2 * UNIT * math.sqrt(terms)
    return total
