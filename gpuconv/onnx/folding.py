"""Graph optimisation before the first run: constant folding and operator fusion.

Constant nodes are computed once. Per-channel factors, residual sums and activations are fused into the preceding
convolution. The passes see no devices, and no arrays except constants. Fused nodes are in the private domain "gpuconv":

- ``FusedConv`` and ``FusedConvTranspose`` have a residual as fourth input, and attributes of an activation;
- ``Affine`` computes ``x * factor + shift`` with one constant of each per channel, and an optional activation;
- ``LayerNormalization`` is ONNX's operator, available at every opset;
- ``Chain`` holds element-wise nodes in an attribute; they depend on its first input and on scalar constants only.

:class:`~gpuconv.onnx.rewriting.Budget` bounds constant folding; nodes beyond it stay in the graph and run every time.

A value that is fused away must have no other use and must not be an output of the graph. Effect on results:

- Fusing an activation or a residual into a float32 or float64 convolution changes no bit, and neither does a chain.
- In 16-bit types, a fused activation omits one intermediate rounding.
- Folding BatchNormalization rounds each weight once more, by up to half an ulp.
- LayerNormalization multiplies by a reciprocal, where the nodes that it replaces divide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import NodeProto, numpy_helper

from gpuconv.onnx import operators, steps
from gpuconv.onnx.finishing import ElementwiseFusion, EpilogueFusion, LayerNormalizationFusion
from gpuconv.onnx.rewriting import Graph
from gpuconv.onnx.scaling import Scaling

# elements; larger 8-bit filters stay integers, at a quarter of the memory, and are dequantized at every run
_LARGE = 2**18
_ALLOWANCE = 8  # elements that may be computed per element of the model's own constants: converted, transposed, scaled


def fold(graph: Graph) -> Graph:
    """Return an equivalent graph with fewer nodes, without the constants that are no longer used."""
    graph = _without_constant_nodes(graph)
    graph = Scaling(graph).run()
    graph = EpilogueFusion(graph).run()
    graph = LayerNormalizationFusion(graph).run()
    graph = ElementwiseFusion(graph).run()
    used = {*graph.use_counts, *graph.outputs}
    return replace(graph, constants={name: value for name, value in graph.constants.items() if name in used})


def _without_constant_nodes(graph: Graph) -> Graph:
    """Compute the nodes of :data:`gpuconv.onnx.operators.TABLE` whose inputs are all constant; none of them is
    random.
    """
    constants, remaining = dict(graph.constants), []
    not_folded = _quantized_filters(graph) if graph.keep_quantized else set()
    own_constants = (value for name, value in constants.items() if name not in graph.outer_constants)
    graph.budget.left += _ALLOWANCE * sum(map(_elements, own_constants))
    for node in graph.nodes:
        outputs = None if node.output[0] in not_folded else _constant_outputs(node, graph, constants)
        if outputs is None:
            remaining.append(node)
            continue
        if not node.input:  # a Constant node, whose tensor is part of the model
            graph.budget.left += _ALLOWANCE * sum(map(_elements, outputs))
        constants.update((name, value) for name, value in zip(node.output, outputs, strict=False) if name)
    return replace(graph, nodes=remaining, constants=constants)


def _quantized_filters(graph: Graph) -> set[str]:
    """Return the outputs of DequantizeLinear nodes that should not be folded: large 8-bit filters of a single Conv.

    A filter is applied at many positions, so dequantizing it at every run costs little compared with the convolution.
    """
    large = {name for name, value in graph.constants.items() if _elements(value) > _LARGE and value.dtype.itemsize == 1}
    if not large:  # true for most models
        return large
    filters = {node.input[1] for node in graph.nodes if node.op_type == "Conv" and node.domain == ""}
    single_use = {name for name in filters if graph.use_counts[name] == 1 and name not in graph.outputs}
    return {
        node.output[0]
        for node in graph.nodes
        if node.op_type == "DequantizeLinear" and operators.has(node) and node.input[0] in large
    } & single_use


def _constant_outputs(node: NodeProto, graph: Graph, constants: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return a node's outputs if it can be computed now, within the budget; None otherwise."""
    if not operators.has(node):
        return None
    if node.op_type == "Constant" and not node.input and (array := _tensor(node)) is not None:
        return (array,)
    facts = graph.facts
    constant_inputs = {name: constants[name] if name else None for name in node.input if not name or name in constants}
    if node.op_type == "CastLike" and node.input[1] in facts:  # only the type of its second input matters
        constant_inputs.setdefault(node.input[1], np.empty(0, facts[node.input[1]].dtype))
    if len(constant_inputs) < len(set(node.input)):
        return None
    step = steps.find(node, graph.opset)
    inputs = tuple(constant_inputs[name] for name in node.input)
    if not isinstance(step, steps.TableStep) or step.linked or not step.accepts(inputs, {}):
        return None
    try:
        if not graph.budget.spend(step.cost(inputs), max(map(_elements, inputs), default=0)):
            return None
        with np.errstate(all="ignore"):
            outputs = step.compute(inputs, {})
        # sequences cannot be stored as constants
        return outputs if all(hasattr(value, "dtype") for value in outputs) else None
    except Exception:  # the same error is raised when the node runs, lack of memory included
        return None


def _tensor(node: NodeProto) -> Any:
    """Return the tensor of a Constant node as an array; None for other kinds, and for tensors that cannot be
    converted.
    """
    if len(node.attribute) != 1 or node.attribute[0].name != "value" or node.attribute[0].ref_attr_name:
        return None
    try:
        return numpy_helper.to_array(node.attribute[0].t)
    except Exception:  # the node's step raises it again
        return None


def _elements(value: Any) -> int:
    return int(getattr(value, "size", 0))
