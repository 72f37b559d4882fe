"""Residuals and activations: into the convolution, or the factors and shifts, before them."""

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


def _numbers(activation: str, **arguments: Any) -> dict[str, Any] | None:
    """Return an activation with those of its arguments that are given, or None where one is NaN."""
    given = {name: float(number) for name, number in arguments.items() if number is not None}
    return None if any(map(isnan, given.values())) else {"activation": activation, **given}


def _fused(node: NodeProto, output: str) -> NodeProto:
    made = copied(node, [output])
    if made.domain == "":
        made.domain, made.op_type = DOMAIN, f"Fused{made.op_type}"
    return made
