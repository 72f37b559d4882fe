"""Rewriting of a graph before it runs: what is constant is computed, and what follows a convolution becomes part of it.

Nothing here knows of devices or of arrays but constants. Nodes that ONNX has not are of the domain "gpuconv":

- ``FusedConv`` and ``FusedConvTranspose`` have a fourth input, a residual, and the attributes of an activation;
- ``Affine`` multiplies by one number per channel and adds another; it may have an activation, too.

A value that becomes part of a node must have no other use and be no output of the graph. An activation or a residual in
a float32 or float64 convolution changes no bit; in 16-bit types it leaves out the rounding in between. Factors of
BatchNormalization in weights do change results: each weight is rounded once more, by up to half an ulp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from gpuconv._errors import GpuconvError
from gpuconv.onnx import nodes, operators, steps
from gpuconv.onnx.model import Fact
from gpuconv.onnx.steps import DOMAIN

_EXACT_ENOUGH = ("float32", "float64")  # a 16-bit weight would lose too much
_SUMS = ("Add", "Sum")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")


@dataclass
class Graph:
    """Nodes in order, and what is known of values.

    Attributes
    ----------
    nodes : list of NodeProto
    constants : dict of str to array
    kept : frozenset of str
        Outputs of the graph.
    opset : int
        Of the default domain.
    facts : dict of str to Fact
        What is known of values that are computed.
    """

    nodes: list[NodeProto]
    constants: dict[str, Any]
    kept: frozenset[str]
    opset: int
    facts: Mapping[str, Fact] = field(default_factory=dict)

    def counts(self) -> Counter[str]:
        """Count the uses of every value, by graphs inside of nodes too."""
        return Counter(name for node in self.nodes for name in names_used(node))


def fold(graph: Graph) -> Graph:
    """Return a graph that computes the same by fewer nodes; constants that it does not need are left out."""
    graph = _without_constant_nodes(graph)
    graph = _Rewriting(graph).with_factors()
    graph = _Rewriting(graph).with_finishes()
    used = {*graph.counts(), *graph.kept}
    constants = {name: value for name, value in graph.constants.items() if name in used}
    return Graph(graph.nodes, constants, graph.kept, graph.opset, graph.facts)


def names_used(node: NodeProto) -> Iterator[str]:
    """Yield the inputs of a node, and whatever the nodes of the graphs inside may take from outside by name."""
    yield from node.input
    for graph in nodes.subgraphs(node):
        for inner in graph.node:
            yield from names_used(inner)


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
    given = {name: constants[name] if name else None for name in node.input if not name or name in constants}
    if node.op_type == "CastLike" and node.input[1] in facts:  # of its second input only the type counts
        given.setdefault(node.input[1], np.empty(0, facts[node.input[1]].dtype))
    if len(given) < len(set(node.input)) or operators.find(node, opset) is None:
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


class _Rewriting:
    """One pass over the nodes of a graph, which makes some of them part of an earlier one."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._constants = dict(graph.constants)
        self._counts = graph.counts()
        self._made: dict[str, NodeProto] = {}  # by the first output, in order

    def _result(self) -> Graph:
        graph = self._graph
        return Graph(list(self._made.values()), self._constants, graph.kept, graph.opset, graph.facts)

    def _only_source(self, name: str) -> NodeProto | None:
        """Return the node that makes a value which has one use, or None."""
        alone = self._counts[name] == 1 and name not in self._graph.kept
        return self._made.get(name) if alone else None

    def _keep(self, node: NodeProto) -> None:
        self._made[next(filter(None, node.output), f"#{len(self._made)}")] = node

    # ---------------------------------------------------------------- factors and shifts per channel

    def with_factors(self) -> Graph:
        """Put factors and shifts of channels into weights and biases, or several of them into one node."""
        for node in self._graph.nodes:
            self._keep(self._with_factor(node) or node)
        return self._result()

    def _with_factor(self, node: NodeProto) -> NodeProto | None:
        found = self._affine(node)
        if found is None:
            return None
        name, factor, shift = found
        source = self._only_source(name)
        if source is not None and (_is_convolution(source) or source.domain == DOMAIN):
            made = self._joined(source, node, factor, shift)
            if made is not None:
                del self._made[name]
                return made
        if node.op_type == "BatchNormalization" or (node.op_type == "Mul" and np.size(factor) > 1):
            return self._affine_node(name, node, factor, shift)
        return None

    def _joined(self, source: NodeProto, node: NodeProto, factor: Any, shift: Any) -> NodeProto | None:
        if source.domain != DOMAIN:
            return self._scaled_convolution(source, factor, shift, node.output[0])
        before, added = (self._constants[at].astype(np.float64) for at in source.input[1:])
        return self._affine_node(source.input[0], node, before * factor, added * factor + shift)

    def _affine(self, node: NodeProto) -> tuple[str, Any, Any] | None:
        """Return the value that a node multiplies and adds to, and its factor and shift in float64."""
        if node.domain != "" or self._graph.opset < 7 or any(a.ref_attr_name for a in node.attribute):
            return None
        if node.op_type == "BatchNormalization":
            return self._normalization(node)
        if node.op_type not in _ARITHMETIC:
            return None
        return self._arithmetic(node, *node.input)

    def _normalization(self, node: NodeProto) -> tuple[str, Any, Any] | None:
        found = operators.find(node, self._graph.opset)
        parameters = [self._constants[name] for name in node.input[1:] if name in self._constants]
        if found is None or len(parameters) < 4 or not all(_is_exact_enough(p) and p.ndim == 1 for p in parameters):
            return None
        scale, bias, mean, var = (p.astype(np.float64) for p in parameters)
        with np.errstate(all="ignore"):
            factor = scale / np.sqrt(var + found[1].get("epsilon"))
            return node.input[0], factor, bias - mean * factor

    def _arithmetic(self, node: NodeProto, a: str, b: str) -> tuple[str, Any, Any] | None:
        first, second = self._constants.get(a), self._constants.get(b)
        if (first is None) == (second is None):
            return None
        name, constant = (b, first) if second is None else (a, second)
        fact = self._graph.facts.get(name)
        number = _per_channel(constant, fact.rank) if constant is not None and fact is not None else None
        if number is None or (node.op_type == "Div" and second is None):
            return None
        with np.errstate(all="ignore"):
            factor = {"Mul": number, "Div": 1 / number}.get(node.op_type, np.ones_like(number))
        sign = -1.0 if node.op_type == "Sub" and second is None else 1.0
        shift = {"Add": number, "Sub": -sign * number}.get(node.op_type, np.zeros_like(number))
        return name, sign * factor, shift

    def _scaled_convolution(self, source: NodeProto, factor: Any, shift: Any, output: str) -> NodeProto | None:
        """Return a convolution with these in its weights and its bias, or None where they cannot be there."""
        w, b = (self._constants.get(name) for name in (*source.input, "")[1:3])
        if w is None or not _is_exact_enough(w) or (b is None and len(source.input) > 2 and source.input[2]):
            return None
        filters = _filters(w, next((a.i for a in source.attribute if a.name == "group"), 1), source.op_type)
        count = filters.shape[0] * filters.shape[2]
        if np.size(factor) not in (1, count):
            return None
        with np.errstate(all="ignore"):
            scaled = filters * np.broadcast_to(factor, count).reshape(filters.shape[0], 1, -1, 1)
            moved = (0.0 if b is None else b.astype(np.float64)) * factor + shift
            weights = scaled.astype(w.dtype).reshape(w.shape)
            bias = np.broadcast_to(moved, count).astype(w.dtype)
        if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
            return None  # infinity times zero would be another number
        node = _copy(source, [output])
        node.input[:] = [source.input[0], f"{output}/weights", f"{output}/bias"]
        self._constants |= {node.input[1]: weights, node.input[2]: bias}
        return node

    def _affine_node(self, name: str, node: NodeProto, factor: Any, shift: Any) -> NodeProto | None:
        output = node.output[0]
        dtype = next(self._constants[other].dtype for other in node.input if other in self._constants)
        with np.errstate(all="ignore"):
            numbers = [n.astype(dtype) for n in np.broadcast_arrays(factor, shift)]
        if not all(np.isfinite(number).all() for number in numbers):
            return None
        inputs = [name, f"{output}/factor", f"{output}/shift"]
        self._constants |= dict(zip(inputs[1:], numbers, strict=True))
        return helper.make_node("Affine", inputs, [output], name=node.name, domain=DOMAIN)

    # ---------------------------------------------------------------- residuals and activations

    def with_finishes(self) -> Graph:
        """Put residuals and activations into the convolutions before them."""
        for node in self._graph.nodes:
            self._keep(self._with_residual(node) or self._with_activation(node) or node)
        return self._result()

    def _with_residual(self, node: NodeProto) -> NodeProto | None:
        if node.domain != "" or node.op_type not in _SUMS or len(node.input) != 2 or self._graph.opset < 7:
            return None
        for name, other in (tuple(node.input), tuple(node.input)[::-1]):
            source = self._only_source(name)
            if source is not None and _is_convolution(source) and source.domain == "" and other not in self._constants:
                made = _fused(source, node.output[0])
                made.input.extend([""] * (3 - len(made.input)))
                made.input.append(other)
                del self._made[name]
                return made
        return None

    def _with_activation(self, node: NodeProto) -> NodeProto | None:
        attributes = self._activation(node)
        source = self._only_source(node.input[0]) if attributes is not None else None
        if attributes is None or source is None or any(a.name == "activation" for a in source.attribute):
            return None
        if not (_is_convolution(source) or source.domain == DOMAIN):
            return None
        made = _fused(source, node.output[0])
        made.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        del self._made[node.input[0]]
        return made

    def _activation(self, node: NodeProto) -> dict[str, Any] | None:
        """Return an activation as attributes of a node, or None where a node is none."""
        found = operators.find(node, self._graph.opset)
        if found is None or any(a.ref_attr_name for a in node.attribute):
            return None
        if node.op_type == "Relu":
            return {"activation": "relu"}
        if node.op_type == "LeakyRelu":
            return {"activation": "leaky_relu", "alpha": float(found[1].get("alpha"))}
        return self._clip(node, found[1]) if node.op_type == "Clip" else None

    def _clip(self, node: NodeProto, form: operators.Form) -> dict[str, Any] | None:
        bounds = {name: form.get(old) for name, old in (("low", "min"), ("high", "max"))}
        if form.opset >= 11:
            names = dict(zip(("low", "high"), (*node.input, "", "")[1:3], strict=True))
            if any(name and np.size(self._constants.get(name, ())) != 1 for name in names.values()):
                return None
            bounds = {key: float(self._constants[name]) if name else None for key, name in names.items()}
        given = {name: float(bound) for name, bound in bounds.items() if bound is not None}
        return None if any(map(isnan, given.values())) else {"activation": "clip", **given}


def _is_convolution(node: NodeProto) -> bool:
    kind = node.op_type.removeprefix("Fused") if node.domain == DOMAIN else node.op_type
    return node.domain in ("", DOMAIN) and kind in ("Conv", "ConvTranspose") and _is_plain(node)


def _is_plain(node: NodeProto) -> bool:
    return not any(attribute.ref_attr_name for attribute in node.attribute)


def _is_exact_enough(constant: Any) -> bool:
    return constant.dtype.name in _EXACT_ENOUGH


def _per_channel(constant: Any, rank: int | None) -> Any:
    """Return a constant that broadcasts along channels, or everywhere, as float64 numbers; None for another one."""
    if not _is_exact_enough(constant) or rank is None or constant.ndim > rank:
        return None
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if constant.size != 1 and (rank < 2 or shape[1] != constant.size):
        return None
    return constant.reshape(-1).astype(np.float64)


def _filters(w: Any, group: int, op_type: str) -> Any:
    """Return weights as float64 numbers (group, channels that come first, filters, the rest)."""
    channels = w.shape[0] // group
    first, filters = (channels, w.shape[1]) if op_type == "ConvTranspose" else (1, channels)
    return w.astype(np.float64).reshape(group, first, filters, -1)


def _copy(node: NodeProto, outputs: Iterable[str]) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.output[:] = outputs
    return copy


def _fused(node: NodeProto, output: str) -> NodeProto:
    made = _copy(node, [output])
    if made.domain == "":
        made.domain, made.op_type = DOMAIN, f"Fused{made.op_type}"
    return made
