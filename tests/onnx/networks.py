"""The networks of the onnx package with random weights, and what ONNX Runtime makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
import onnxruntime
from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from benchmarks.networks import DATA, with_random_weights

__all__ = [
    "DATA",
    "attributes",
    "onnxruntime_node",
    "onnxruntime_run",
    "our_nodes",
    "set_outputs",
    "with_random_weights",
]

OPERATORS = ("Conv", "ConvTranspose", "MaxPool")


def our_nodes(model: ModelProto) -> list[NodeProto]:
    """List the nodes that gpuconv computes."""
    return [node for node in model.graph.node if node.op_type in OPERATORS]


def attributes(node: NodeProto) -> dict[str, Any]:
    """Return a node's attributes as they stand."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def set_outputs(model: ModelProto, outputs: Iterable[ValueInfoProto]) -> None:
    """Make these values the model's outputs, in place: its weights may be large."""
    del model.graph.output[:]
    model.graph.output.extend(outputs)


def onnxruntime_run(model: ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Run a model in ONNX Runtime on the CPU, every node for itself: nothing is fused."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    results: list[Any] = session.run(None, dict(feeds))
    return results


def onnxruntime_node(node: NodeProto, inputs: Sequence[Any], opset: int) -> Any:
    """Compute one node in ONNX Runtime."""
    infos = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, value.shape)
        for name, value in zip(node.input, inputs, strict=True)
    ]
    graph = helper.make_graph([node], "node", infos, [onnx.ValueInfoProto(name=name) for name in node.output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)
    return onnxruntime_run(model, dict(zip(node.input, inputs, strict=True)))[0]
