"""The networks of the onnx package with random weights, and what ONNX Runtime makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import onnxruntime
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

DATA = Path(onnx.backend.test.__file__).parent / "data"
OPERATORS = ("Conv", "ConvTranspose", "MaxPool")
_BLOCK = 1_000_003  # a prime, so that no two rows of a large matrix are alike


def with_random_weights(path: Path, seed: int) -> ModelProto:
    """Put seeded random values in the place of every ConstantOfShape.

    Matrices and filters are normal with variance 2 / fan-in, which keeps the size of activations through layers of
    Relu; vectors (biases, scales, means, variances) are uniform in [0.5, 1.5). Large weights repeat a block.
    """
    model = onnx.load(path)
    generator = np.random.default_rng(seed)
    shapes = {tensor.name: tensor for tensor in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:  # a network may have its own
            kept.append(node)
            continue
        shape = numpy_helper.to_array(shapes[node.input[0]]).tolist()
        model.graph.initializer.append(numpy_helper.from_array(_random(shape, generator), node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    model.ir_version = 4  # the first one whose initializers need not be inputs
    return model


def _random(shape: Sequence[int], generator: np.random.Generator) -> Any:
    if len(shape) < 2:
        return generator.uniform(0.5, 1.5, shape).astype(np.float32)
    block = generator.standard_normal(min(int(np.prod(shape)), _BLOCK), np.float32)
    return np.resize(block * np.float32(np.sqrt(2 / np.prod(shape[1:]))), shape)


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
