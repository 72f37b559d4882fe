"""Rewriting of a graph before it runs: what is constant is computed, and what follows a convolution becomes part of it.

Nothing here knows of devices or of arrays but constants. Nodes that ONNX has not are of the domain "gpuconv":

- ``FusedConv`` and ``FusedConvTranspose`` have a fourth input, a residual, and the attributes of an activation;
- ``Affine`` multiplies by one number per channel and adds another; it may have an activation, too;
- ``LayerNormalization`` is ONNX's, at any opset;
- ``Chain`` has nodes in an attribute, which compute element by element from its first input, and from single numbers.

What this computes is bounded by :class:`Budget`: nodes beyond that are left as they are, and compute it at every run.

A value that becomes part of a node must have no other use and be no output of the graph. An activation or a residual in
a float32 or float64 convolution changes no bit, nor does a chain; in 16-bit types an activation leaves out the rounding
in between. Factors of BatchNormalization in weights do change results: each weight is rounded once more, by up to half
an ulp. So does LayerNormalization in the place of the nodes that it was made of: it multiplies where they divide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import NodeProto, numpy_helper

from gpuconv.onnx import operators, steps
from gpuconv.onnx.finishing import Chaining, Finishing, Normalizing
from gpuconv.onnx.rewriting import Graph
from gpuconv.onnx.scaling import Scaling

_LARGE = 2**18  # elements of filters whose four times smaller integers are worth making floats of them at every run
_ALLOWANCE = 8  # times an element that the model brings may be computed anew: converted, transposed, scaled


def fold(graph: Graph) -> Graph:
    """Return a graph that computes the same by fewer nodes; constants that it does not need are left out."""
    graph = _without_constant_nodes(graph)
    graph = Scaling(graph).run()
    graph = Finishing(graph).run()
    graph = Normalizing(graph).run()
    graph = Chaining(graph).run()
    used = {*graph.counts, *graph.kept}
    return replace(graph, constants={name: value for name, value in graph.constants.items() if name in used})


def _without_constant_nodes(graph: Graph) -> Graph:
    """Compute the nodes of the table that have nothing but constants for inputs; they draw no random numbers."""
    constants, left = dict(graph.constants), []
    kept = _filters_of_integers(graph) if graph.keeps_narrow else set()
    brought = (value for name, value in constants.items() if name not in graph.around)
    graph.budget.left += _ALLOWANCE * sum(map(_elements, brought))
    for node in graph.nodes:
        outputs = None if node.output[0] in kept else _constant_outputs(node, graph, constants)
        if outputs is None:
            left.append(node)
            continue
        if not node.input:  # a Constant, which the model brings
            graph.budget.left += _ALLOWANCE * sum(map(_elements, outputs))
        constants.update((name, value) for name, value in zip(node.output, outputs, strict=False) if name)
    return replace(graph, nodes=left, constants=constants)


def _filters_of_integers(graph: Graph) -> set[str]:
    """Return what DequantizeLinear makes of large constants of 8 bits, where each is the filters of one convolution.

    Each of these is used at many positions: to make it anew costs little beside that.
    """
    large = {name for name, value in graph.constants.items() if _elements(value) > _LARGE and value.dtype.itemsize == 1}
    if not large:  # as in most models
        return large
    filters = {node.input[1] for node in graph.nodes if node.op_type == "Conv" and node.domain == ""}
    alone = {name for name in filters if graph.counts[name] == 1 and name not in graph.kept}
    return {
        node.output[0]
        for node in graph.nodes
        if node.op_type == "DequantizeLinear" and operators.has(node) and node.input[0] in large
    } & alone


def _constant_outputs(node: NodeProto, graph: Graph, constants: Mapping[str, Any]) -> tuple[Any, ...] | None:
    if not operators.has(node):
        return None
    if node.op_type == "Constant" and not node.input and (array := _tensor(node)) is not None:
        return (array,)
    facts = graph.facts
    given = {name: constants[name] if name else None for name in node.input if not name or name in constants}
    if node.op_type == "CastLike" and node.input[1] in facts:  # of its second input only the type counts
        given.setdefault(node.input[1], np.empty(0, facts[node.input[1]].dtype))
    if len(given) < len(set(node.input)):
        return None
    step = steps.find(node, graph.opset)
    inputs = tuple(given[name] for name in node.input)
    if not isinstance(step, steps.TableStep) or step.linked or not step.takes(inputs, {}):
        return None
    try:
        if not graph.budget.spend(step.cost(inputs), max(map(_elements, inputs), default=0)):
            return None
        with np.errstate(all="ignore"):
            outputs = step.compute(inputs, {})
        return outputs if all(hasattr(value, "dtype") for value in outputs) else None  # sequences are no constants
    except Exception:  # which comes again when the node runs, memory that is not there too
        return None


def _tensor(node: NodeProto) -> Any:
    """Return the array of a Constant that is a tensor; None for others, and for what the node's step refuses."""
    if len(node.attribute) != 1 or node.attribute[0].name != "value" or node.attribute[0].ref_attr_name:
        return None
    try:
        return numpy_helper.to_array(node.attribute[0].t)
    except Exception:  # which comes again there
        return None


def _elements(value: Any) -> int:
    return int(getattr(value, "size", 0))
