"""Operator fusion: residual sums, activations, LayerNormalization, and chains of element-wise operators.

:class:`EpilogueFusion` fuses a residual Add and an activation into the epilogue of the preceding convolution.
:class:`LayerNormalizationFusion` recognises a decomposed LayerNormalization. :class:`ElementwiseFusion` merges
consecutive element-wise operators. The folding pass runs them in this order after :mod:`gpuconv.onnx.scaling`.
"""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from gpuconv.onnx import operators
from gpuconv.onnx.rewriting import Graph, Rewriting, copied, is_convolution
from gpuconv.onnx.steps import DOMAIN

_SUMS = ("Add", "Sum")
_ACTIVATIONS = ("Clip", "LeakyRelu", "PRelu", "Relu")
_CURVES = frozenset(
    (
        *("Abs", "Ceil", "Celu", "Clip", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu"),
        *("Log", "Mish", "Neg", "Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus", "Sqrt", "Swish", "Tanh"),
        # with scalar constants, or with element-wise functions of the same value
        *("Add", "Div", "Max", "Min", "Mul", "Pow", "Sub"),
    )
)
_WITH_NUMBERS = 7  # opset since which these operators broadcast by shape alone


class EpilogueFusion(Rewriting):
    """Fuses a sum with another value, and Relu, LeakyRelu, PRelu or Clip, into the node that produces their input."""

    def run(self) -> Graph:
        """Return the graph with residuals and activations fused into convolutions, per-channel factors, and other fused
        nodes.
        """
        for node in self.graph.nodes:
            self.emit(self._with_residual(node) or self._with_activation(node) or node)
        return self.result()

    def _with_residual(self, node: NodeProto) -> NodeProto | None:
        """Return a fused convolution that adds the sum's other operand as residual; None if the node is no such sum."""
        if node.domain != "" or node.op_type not in _SUMS or len(node.input) != 2 or self.graph.opset < 7:
            return None
        for name, other in (tuple(node.input), tuple(node.input)[::-1]):
            source = self.sole_producer(name)
            if source is not None and is_convolution(source) and source.domain == "" and other not in self.constants:
                fused = _fused(source, node.output[0])
                fused.input.extend([""] * (3 - len(fused.input)))
                fused.input.append(other)
                del self.emitted[name]
                return fused
        return None

    def _with_activation(self, node: NodeProto) -> NodeProto | None:
        """Return the producing node with this activation as attributes; None if the node is no activation or cannot be
        fused.
        """
        attributes = self._activation(node)
        source = self.sole_producer(node.input[0]) if attributes is not None else None
        if attributes is None or source is None or any(a.name == "activation" for a in source.attribute):
            return None
        if not (is_convolution(source) or source.domain == DOMAIN):
            return None
        fused = _fused(source, node.output[0])
        fused.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        del self.emitted[node.input[0]]
        return fused

    def _activation(self, node: NodeProto) -> dict[str, Any] | None:
        """Return an activation as attributes of a fused node; None for any other node."""
        operator_form = operators.find(node, self.graph.opset) if node.op_type in _ACTIVATIONS else None
        if operator_form is None or any(a.ref_attr_name for a in node.attribute):
            return None
        if node.op_type == "Relu":
            return {"activation": "relu"}
        if node.op_type == "LeakyRelu":
            return _numbers("leaky_relu", alpha=operator_form[1].get("alpha"))
        return self._clip(node, operator_form[1]) if node.op_type == "Clip" else self._prelu(node)

    def _prelu(self, node: NodeProto) -> dict[str, Any] | None:
        """Return PRelu as LeakyRelu attributes if its slope is a single constant that float32 represents exactly."""
        slope, fact = self.constants.get(node.input[1]), self.graph.facts.get(node.input[0])
        # rank of the convolution's output: at least 2 if it is unknown
        least = 2 if fact is None or fact.rank is None else fact.rank
        if slope is None or slope.size != 1 or slope.ndim > least:
            return None
        number = float(slope.reshape(()))
        return _numbers("leaky_relu", alpha=number) if float(np.float32(number)) == number else None

    def _clip(self, node: NodeProto, form: operators.Form) -> dict[str, Any] | None:
        """Return Clip as attributes; None if a bound is not a constant number."""
        bounds = {name: form.get(old) for name, old in (("low", "min"), ("high", "max"))}
        if form.opset >= 11:
            names = dict(zip(("low", "high"), (*node.input, "", "")[1:3], strict=True))
            if any(name and np.size(self.constants.get(name, ())) != 1 for name in names.values()):
                return None
            bounds = {key: self.constants[name].reshape(()) if name else None for key, name in names.items()}
        return _numbers("clip", **bounds)


class LayerNormalizationFusion(Rewriting):
    """Replaces the sequence of operators that exporters wrote for LayerNormalization before opset 17 by a single
    node.
    """

    def run(self) -> Graph:
        """Return the graph with each matching sequence replaced."""
        for node in self.graph.nodes:
            self.emit(self._normalization(node) or node)
        return self.result()

    def _normalization(self, node: NodeProto) -> NodeProto | None:
        """Return the node that replaces a sequence ending in this Add; None if the pattern does not match.

        The pattern is ``(x - mean) / sqrt(mean((x - mean)**2) + epsilon) * scale + bias`` over the last axis.
        """
        scaled, bias = self._constant_operand(node, "Add")
        quotient, scale = self._constant_operand(scaled, "Mul")
        shifted = self.emitted.get(quotient.input[0]) if quotient is not None and quotient.op_type == "Div" else None
        if quotient is None or shifted is None or shifted.op_type != "Sub" or scaled is None:
            return None
        root = self._source(quotient.input[1], "Sqrt")
        added, epsilon = self._scalar_operand(self._source(root.input[0], "Add") if root is not None else None)
        squares = self._mean(added.input[0]) if added is not None else None
        power, two = self._scalar_operand(self._source(squares.input[0], "Pow") if squares is not None else None)
        mean = self._mean(shifted.input[1])
        if (
            None in (root, added, squares, power, mean)
            or two != 2
            or not self._are_matching_rows(scale, bias, shifted.input[0])
        ):
            return None
        x, d = shifted.input[0], shifted.output[0]
        if mean.input[0] != x or power.input[0] != d or self.graph.use_counts[d] != 2 or d in self.graph.outputs:  # type: ignore[union-attr]
            return None
        for part in (scaled, quotient, shifted, root, added, squares, power, mean):
            del self.emitted[part.output[0]]  # type: ignore[union-attr]
        inputs = [x, scale, bias]
        return helper.make_node(
            "LayerNormalization", inputs, node.output, name=node.name, domain=DOMAIN, axis=-1, epsilon=epsilon
        )

    def _source(self, name: str, op_type: str) -> NodeProto | None:
        source = self.sole_producer(name)
        return source if source is not None and source.domain == "" and source.op_type == op_type else None

    def _constant_operand(self, node: NodeProto | None, op_type: str) -> tuple[NodeProto | None, str]:
        """Return the producer of the variable operand and the name of the constant operand, in either order; else
        (None, "").
        """
        if node is None or node.domain != "" or node.op_type != op_type or self.graph.opset < _WITH_NUMBERS:
            return None, ""
        a, b = node.input if node.input[1] in self.constants else reversed(node.input)
        return (self.sole_producer(a), b) if b in self.constants else (None, "")

    def _scalar_operand(self, node: NodeProto | None) -> tuple[NodeProto | None, Any]:
        number = None if node is None else self.constants.get(node.input[1])
        return (node, float(number.reshape(()))) if number is not None and number.size == 1 else (None, None)

    def _mean(self, name: str) -> NodeProto | None:
        """Return the ReduceMean node that computes this value, if it reduces the last axis only and keeps it."""
        node = self._source(name, "ReduceMean")
        operator_form = None if node is None else operators.find(node, self.graph.opset)
        if node is None or operator_form is None or not operator_form[1].get("keepdims"):
            return None
        axes = self.constants.get(node.input[1]) if len(node.input) > 1 else operator_form[1].get("axes")
        fact = self.graph.facts.get(node.input[0])
        last = [-1] if fact is None or fact.rank is None else [-1, fact.rank - 1]
        return node if axes is not None and np.size(axes) == 1 and int(np.reshape(axes, ())) in last else None

    def _are_matching_rows(self, scale: str, bias: str, x: str) -> bool:
        """Return whether scale and bias are 1-D constants of the same dtype as x, whose dtype must be known."""
        fact, rows = self.graph.facts.get(x), (self.constants[scale], self.constants[bias])
        return fact is not None and all(row.ndim == 1 and row.dtype.name == fact.dtype for row in rows)


class ElementwiseFusion(Rewriting):
    """Merges element-wise operators that depend on one value and scalar constants, such as ``x * Sigmoid(x)``."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        # by result: (the value that the chain starts from, its nodes)
        self._chains: dict[str, tuple[str, list[NodeProto]]] = {}

    def run(self) -> Graph:
        """Return the graph with each sequence of two or more such operators merged into one Chain node."""
        for node in self.graph.nodes:
            source, chain = self._chain(node) if self.graph.opset >= _WITH_NUMBERS else ("", [])
            if source:
                self._chains[node.output[0]] = source, chain
            self.emit(self._merged(source, chain) if len(chain) > 1 else node)
        return self.result()

    def _chain(self, node: NodeProto) -> tuple[str, list[NodeProto]]:
        """Return the value that a node computes from element by element, and the nodes of that chain, this one last.

        Returns ("", []) if the node is not element-wise, or depends on two values that are not part of one chain.
        """
        if node.domain != "" or node.op_type not in _CURVES or operators.find(node, self.graph.opset) is None:
            return "", []
        if any(a.ref_attr_name for a in node.attribute) or len(node.output) != 1:
            return "", []
        values = [name for name in dict.fromkeys(node.input) if name and name not in self.constants]
        starts = [self._chains[name] if self._continues_chain(name) else (name, []) for name in values]
        sources = {source for source, _ in starts}
        if len(sources) != 1 or (node.op_type == "Pow" and node.input[0] not in values):  # Pow has the type of its base
            return "", []
        (source,) = sources
        fact = self.graph.facts.get(source)
        numbers = [self.constants[name] for name in node.input if name in self.constants]
        if fact is None or any(n.size != 1 or n.ndim > (fact.rank or 0) for n in numbers):
            return "", []
        return source, [*(before for _, chain in starts for before in chain), node]

    def _continues_chain(self, name: str) -> bool:
        return name in self._chains and self.sole_producer(name) is not None

    def _merged(self, source: str, chain: list[NodeProto]) -> NodeProto:
        for node in chain[:-1]:
            self.emitted.pop(node.output[0], None)  # already removed if it belonged to a shorter chain
        numbers = [name for node in chain for name in node.input if name in self.constants]
        inputs, parts = [source, *dict.fromkeys(numbers)], [node.SerializeToString() for node in chain]
        last = chain[-1]
        return helper.make_node("Chain", inputs, last.output, name=last.name, domain=DOMAIN, nodes=parts)


def _numbers(activation: str, **arguments: Any) -> dict[str, Any] | None:
    """Return an activation with the arguments that are not None; None if one of them is NaN."""
    given = {name: float(number) for name, number in arguments.items() if number is not None}
    return None if any(map(isnan, given.values())) else {"activation": activation, **given}


def _fused(node: NodeProto, output: str) -> NodeProto:
    """Return a copy of a node with another output, renamed to its fused form (FusedConv, FusedConvTranspose)."""
    fused = copied(node, [output])
    if fused.domain == "":
        fused.domain, fused.op_type = DOMAIN, f"Fused{fused.op_type}"
    return fused
