"""Rewriting of a graph before it runs: what is constant is computed, and what follows a convolution becomes part of it.

Nothing here knows of devices or of arrays but constants. Nodes that ONNX has not are of the domain "gpuconv":

- ``FusedConv`` and ``FusedConvTranspose`` have a fourth input, a residual, and the attributes of an activation;
- ``Affine`` multiplies by one number per channel and adds another; it may have an activation, too.

A value that becomes part of a node must have no other use and be no output of the graph. An activation or a residual in
a float32 or float64 convolution changes no bit; in 16-bit types it leaves out the rounding in between. Factors of
BatchNormalization in weights do change results: each weight is rounded once more, by up to half an ulp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import NodeProto

from gpuconv._errors import GpuconvError
from gpuconv.onnx import operators, steps
from gpuconv.onnx.finishing import Finishing
from gpuconv.onnx.model import Fact
from gpuconv.onnx.rewriting import Graph
from gpuconv.onnx.scaling import Scaling


def fold(graph: Graph) -> Graph:
    """Return a graph that computes the same by fewer nodes; constants that it does not need are left out."""
    graph = _without_constant_nodes(graph)
    graph = Scaling(graph).run()
    graph = Finishing(graph).run()
    used = {*graph.counts(), *graph.kept}
    constants = {name: value for name, value in graph.constants.items() if name in used}
    return Graph(graph.nodes, constants, graph.kept, graph.opset, graph.facts)


def _without_constant_nodes(graph: Graph) -> Graph:
    """Compute the nodes of the table that have nothing but constants for inputs; they draw no random numbers."""
    constants, left = dict(graph.constants), []
    for node in graph.nodes:
        outputs = _constant_outputs(node, graph.opset, constants, graph.facts)
        if outputs is None:
            left.append(node)
        else:
            constants.update((name, value) for name, value in zip(node.output, outputs, strict=False) if name)
    return Graph(left, constants, graph.kept, graph.opset, graph.facts)


def _constant_outputs(
    node: NodeProto, opset: int, constants: Mapping[str, Any], facts: Mapping[str, Fact]
) -> tuple[Any, ...] | None:
    if operators.find(node, opset) is None:
        return None
    given = {name: constants[name] if name else None for name in node.input if not name or name in constants}
    if node.op_type == "CastLike" and node.input[1] in facts:  # of its second input only the type counts
        given.setdefault(node.input[1], np.empty(0, facts[node.input[1]].dtype))
    if len(given) < len(set(node.input)):
        return None
    step = steps.find(node, opset)
    inputs = tuple(given[name] for name in node.input)
    if step is None or step.linked or not step.takes(inputs, {}):
        return None
    try:
        with np.errstate(all="ignore"):
            return step.compute(inputs, {})
    except GpuconvError:  # which comes again when the node runs
        return None
