"""Residuals and activations: into the convolution, or the factors and shifts, before them; the others into one node."""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from gpuconv.onnx import operators
from gpuconv.onnx.rewriting import Graph, Rewriting, copied, is_convolution
from gpuconv.onnx.steps import DOMAIN

_SUMS = ("Add", "Sum")
_ACTIVATIONS = ("Clip", "LeakyRelu", "Relu")
_CURVES = frozenset(
    (
        *("Abs", "Ceil", "Celu", "Clip", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu"),
        *("Log", "Mish", "Neg", "Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus", "Sqrt", "Swish", "Tanh"),
        *("Add", "Div", "Max", "Min", "Mul", "Pow", "Sub"),  # with numbers, and with curves of the same value
    )
)
_WITH_NUMBERS = 7  # opset from which on these broadcast by shape


class Finishing(Rewriting):
    """Makes sums with another value, then Relu, LeakyRelu and Clip, part of a node before them."""

    def run(self) -> Graph:
        """Return the graph with residuals and activations in convolutions."""
        for node in self.graph.nodes:
            self.keep(self._with_residual(node) or self._with_activation(node) or node)
        return self.result()

    def _with_residual(self, node: NodeProto) -> NodeProto | None:
        if node.domain != "" or node.op_type not in _SUMS or len(node.input) != 2 or self.graph.opset < 7:
            return None
        for name, other in (tuple(node.input), tuple(node.input)[::-1]):
            source = self.only_source(name)
            if source is not None and is_convolution(source) and source.domain == "" and other not in self.constants:
                made = _fused(source, node.output[0])
                made.input.extend([""] * (3 - len(made.input)))
                made.input.append(other)
                del self.made[name]
                return made
        return None

    def _with_activation(self, node: NodeProto) -> NodeProto | None:
        attributes = self._activation(node)
        source = self.only_source(node.input[0]) if attributes is not None else None
        if attributes is None or source is None or any(a.name == "activation" for a in source.attribute):
            return None
        if not (is_convolution(source) or source.domain == DOMAIN):
            return None
        made = _fused(source, node.output[0])
        made.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        del self.made[node.input[0]]
        return made

    def _activation(self, node: NodeProto) -> dict[str, Any] | None:
        """Return an activation as attributes of a node, or None where a node is none."""
        found = operators.find(node, self.graph.opset) if node.op_type in _ACTIVATIONS else None
        if found is None or any(a.ref_attr_name for a in node.attribute):
            return None
        if node.op_type == "Relu":
            return {"activation": "relu"}
        if node.op_type == "LeakyRelu":
            return _numbers("leaky_relu", alpha=found[1].get("alpha"))
        return self._clip(node, found[1]) if node.op_type == "Clip" else None

    def _clip(self, node: NodeProto, form: operators.Form) -> dict[str, Any] | None:
        bounds = {name: form.get(old) for name, old in (("low", "min"), ("high", "max"))}
        if form.opset >= 11:
            names = dict(zip(("low", "high"), (*node.input, "", "")[1:3], strict=True))
            if any(name and np.size(self.constants.get(name, ())) != 1 for name in names.values()):
                return None
            bounds = {key: self.constants[name].reshape(()) if name else None for key, name in names.items()}
        return _numbers("clip", **bounds)


class Chaining(Rewriting):
    """Makes one node of those that compute element by element from one value, as x * Sigmoid(x), and from numbers."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._chains: dict[str, tuple[str, list[NodeProto]]] = {}  # by result: the value that all begin with, the nodes

    def run(self) -> Graph:
        """Return the graph with a node for every chain of two or more."""
        for node in self.graph.nodes:
            source, chain = self._chain(node) if self.graph.opset >= _WITH_NUMBERS else ("", [])
            if source:
                self._chains[node.output[0]] = source, chain
            self.keep(self._joined(source, chain) if len(chain) > 1 else node)
        return self.result()

    def _chain(self, node: NodeProto) -> tuple[str, list[NodeProto]]:
        """Return what a node computes element by element from one value alone, together with nodes before it."""
        if node.domain != "" or node.op_type not in _CURVES or operators.find(node, self.graph.opset) is None:
            return "", []
        if any(a.ref_attr_name for a in node.attribute) or len(node.output) != 1:
            return "", []
        values = [name for name in dict.fromkeys(node.input) if name and name not in self.constants]
        starts = [self._chains[name] if self._goes_on(name) else (name, []) for name in values]
        sources = {source for source, _ in starts}
        if len(sources) != 1 or (node.op_type == "Pow" and node.input[0] not in values):  # whose type is its result's
            return "", []
        (source,) = sources
        fact = self.graph.facts.get(source)
        numbers = [self.constants[name] for name in node.input if name in self.constants]
        if fact is None or fact.rank is None or any(n.size != 1 or n.ndim > fact.rank for n in numbers):
            return "", []
        return source, [*(before for _, chain in starts for before in chain), node]

    def _goes_on(self, name: str) -> bool:
        return name in self._chains and self.only_source(name) is not None

    def _joined(self, source: str, chain: list[NodeProto]) -> NodeProto:
        for node in chain[:-1]:
            self.made.pop(node.output[0], None)  # gone already where it was part of a shorter chain
        numbers = [name for node in chain for name in node.input if name in self.constants]
        inputs, parts = [source, *dict.fromkeys(numbers)], [node.SerializeToString() for node in chain]
        last = chain[-1]
        return helper.make_node("Chain", inputs, last.output, name=last.name, domain=DOMAIN, nodes=parts)


def _numbers(activation: str, **arguments: Any) -> dict[str, Any] | None:
    """Return an activation with those of its arguments that are given, or None where one is NaN."""
    given = {name: float(number) for name, number in arguments.items() if number is not None}
    return None if any(map(isnan, given.values())) else {"activation": activation, **given}


def _fused(node: NodeProto, output: str) -> NodeProto:
    made = copied(node, [output])
    if made.domain == "":
        made.domain, made.op_type = DOMAIN, f"Fused{made.op_type}"
    return made
