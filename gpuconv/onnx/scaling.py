"""Folding of BatchNormalization and per-channel arithmetic into the weights of the preceding convolution.

``(conv(x, w) + b) * factor + shift`` equals ``conv(x, w * factor) + (b * factor + shift)``, with one factor and shift
per filter. Without a convolution in front, consecutive factors and shifts are merged into one Affine node. Applied by
:mod:`~gpuconv.onnx.folding` to float32 and float64 constants only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, helper

from gpuconv.onnx import operators
from gpuconv.onnx.rewriting import Graph, Rewriting, copied, is_convolution
from gpuconv.onnx.steps import DOMAIN

# types of constants that are folded; scaling 16-bit weights would lose too much precision
_EXACT_ENOUGH = ("float32", "float64")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")


class Scaling(Rewriting):
    """Folds BatchNormalization, and Add, Sub, Mul or Div with a per-channel constant, into the node before it."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._names = graph.names()
        self._added_constants: set[str] = set()  # names of constants that this pass has added

    def run(self) -> Graph:
        """Return the graph with factors and shifts folded into weights and biases."""
        with np.errstate(all="ignore"):
            for node in self.graph.nodes:
                self.emit(self._with_factor(node) or node)
        return self.result()

    def _with_factor(self, node: NodeProto) -> NodeProto | None:
        """Return the node that replaces this one, with its factor and shift folded into its producer if possible, or
        None.
        """
        affine = self._affine(node)
        if affine is None:
            return None
        name, factor, shift = affine
        source = self.sole_producer(name)
        if source is not None and (is_convolution(source) or source.domain == DOMAIN):
            folded = self._folded_into(source, node, factor, shift)
            if folded is not None:
                self._remove_folded(source, folded)
                return folded
        if node.op_type == "BatchNormalization" or (node.op_type == "Mul" and np.size(factor) > 1):
            return self._affine_node(name, node, factor, shift)
        return None

    def _folded_into(self, source: NodeProto, node: NodeProto, factor: Any, shift: Any) -> NodeProto | None:
        """Return the producer with factor and shift folded in: a scaled convolution or a merged Affine; None if
        impossible.
        """
        if source.domain != DOMAIN:
            return self._scaled_convolution(source, factor, shift, node.output[0])
        before, added = (self.constants[at].astype(np.float64) for at in source.input[1:])
        if _product(before, factor, self.constants[source.input[1]].dtype) is None:
            return None
        return self._affine_node(source.input[0], node, before * factor, added * factor + shift)

    def _remove_folded(self, source: NodeProto, heir: NodeProto) -> None:
        """Remove a node that was folded into its successor, and the constants that only it used."""
        del self.emitted[source.output[0]]
        for name in self._added_constants.intersection(source.input).difference(heir.input):
            del self.constants[name]

    def _affine(self, node: NodeProto) -> tuple[str, Any, Any] | None:
        """Return (input, factor, shift) with float64 arrays if a node computes ``input * factor + shift``; else
        None.
        """
        if node.domain != "" or self.graph.opset < 7 or any(a.ref_attr_name for a in node.attribute):
            return None
        if node.op_type == "BatchNormalization":
            return self._normalization(node)
        if node.op_type not in _ARITHMETIC:
            return None
        return self._arithmetic(node, *node.input)

    def _normalization(self, node: NodeProto) -> tuple[str, Any, Any] | None:
        """Return BatchNormalization as (input, factor, shift); None if its parameters are not suitable constants."""
        operator_form = operators.find(node, self.graph.opset)
        parameters = [self.constants[name] for name in node.input[1:] if name in self.constants]
        if operator_form is None or len(parameters) < 4 or not all(map(_is_exact_enough, parameters)):
            return None
        if not self.graph.budget.spend(parameters[0].size, parameters[0].size):
            return None
        if any(p.ndim != 1 or p.shape != parameters[0].shape for p in parameters):
            return None
        scale, bias, mean, var = (p.astype(np.float64) for p in parameters)
        factor = scale / np.sqrt(var + operator_form[1].get("epsilon"))
        return node.input[0], factor, bias - mean * factor

    def _arithmetic(self, node: NodeProto, a: str, b: str) -> tuple[str, Any, Any] | None:
        """Return Add, Sub, Mul or Div with one constant operand as (input, factor, shift); None if it does not
        qualify.
        """
        first, second = self.constants.get(a), self.constants.get(b)
        if (first is None) == (second is None):
            return None
        name, constant = (b, first) if second is None else (a, second)
        fact = self.graph.facts.get(name)
        number = None
        if constant is not None and fact is not None and self.graph.budget.spend(constant.size, constant.size):
            number = _per_channel(constant, fact.rank)
        if number is None or (node.op_type == "Div" and second is None):
            return None
        if node.op_type in ("Mul", "Div"):
            return name, number if node.op_type == "Mul" else 1 / number, np.zeros(number.shape)
        ones = np.ones(number.shape)
        if node.op_type == "Add":
            return name, ones, number
        return (name, -ones, number) if second is None else (name, ones, -number)

    def _scaled_convolution(self, source: NodeProto, factor: Any, shift: Any, output: str) -> NodeProto | None:
        """Return the convolution with factor and shift folded into its constants; None if that is not possible."""
        w, b = (self.constants.get(name) for name in (*source.input, "")[1:3])
        if w is None or not _is_exact_enough(w) or (b is None and len(source.input) > 2 and source.input[2]):
            return None
        if not self.graph.budget.spend(w.size, w.size):
            return None
        filters = _filters(w, next((a.i for a in source.attribute if a.name == "group"), 1), source.op_type)
        if filters is None:
            return None
        count = filters.shape[0] * filters.shape[2]
        if np.size(factor) not in (1, count) or (b is not None and b.shape != (count,)):
            return None
        weights = _scaled(filters, _repeated(factor, count).reshape(filters.shape[0], 1, -1, 1))
        moved = shift if b is None else b.astype(np.float64) * factor + shift
        bias = _repeated(moved, count).astype(w.dtype)
        if weights is None or not np.isfinite(bias).all():
            return None
        node, name = copied(source, [output]), source.input[1]
        if weights is not filters:
            name = self._constant(f"{output}/weights", weights.reshape(w.shape))
        node.input[:] = [source.input[0], name, self._constant(f"{output}/bias", bias)]
        return node

    def _affine_node(self, name: str, node: NodeProto, factor: Any, shift: Any) -> NodeProto | None:
        """Return an Affine node with these constants in the type of its input; None if that is unknown or a value
        overflows.
        """
        output, fact = node.output[0], self.graph.facts.get(name)
        if fact is None or fact.dtype not in _EXACT_ENOUGH:  # the constants may have another type than x
            return None
        numbers = [n.astype(fact.dtype) for n in np.broadcast_arrays(factor, shift)]
        if not all(np.isfinite(number).all() for number in numbers):
            return None
        names = [self._constant(f"{output}/{kind}", n) for kind, n in zip(("factor", "shift"), numbers, strict=True)]
        return helper.make_node("Affine", [name, *names], [output], name=node.name, domain=DOMAIN)

    def _constant(self, name: str, number: Any) -> str:
        """Add a constant; return its name, which is ``name`` with apostrophes appended until it is unique."""
        while name in self._names:
            name += "'"
        self._names.add(name)
        self._added_constants.add(name)
        self.constants[name] = number
        return name


def _is_exact_enough(constant: Any) -> bool:
    return constant.dtype.name in _EXACT_ENOUGH


def _repeated(numbers: Any, count: int) -> Any:
    """Return an array of ``count`` numbers: the given ones, or a single number repeated."""
    return np.full(count, numbers) if numbers.size == 1 else numbers


def _scaled(filters: Any, factors: Any) -> Any:
    """Return weights times factors, rounded once; the weights themselves if all factors are 1; None as in
    `_product`.
    """
    if (factors == 1).all():  # only a shift is folded
        return filters if np.isfinite(filters).all() else None
    return _product(filters.astype(np.float64), factors, filters.dtype)


def _product(numbers: Any, factors: Any, dtype: Any) -> Any:
    """Return the products of float64 numbers and factors in ``dtype``; None if folding would change results visibly.

    That is the case if a product overflows (infinity times an input of 0 would be NaN), or becomes subnormal or 0: the
    lost digits would matter after multiplication with a large input.
    """
    products = (numbers * factors).astype(dtype)
    tiny, sizes = np.finfo(dtype).tiny, np.abs(products)
    if sizes.size and tiny <= sizes.min() and sizes.max() < np.inf:  # the common case
        return products
    lost = (sizes < tiny) & (np.abs(numbers) >= tiny) & (factors != 0)
    return None if lost.any() or not np.isfinite(products).all() else products


def _per_channel(constant: Any, rank: int | None) -> Any:
    """Return a constant that broadcasts per channel, or is a scalar, as a 1-D float64 array; None for any other
    shape.
    """
    if not _is_exact_enough(constant) or rank is None or constant.ndim > rank:
        return None
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if constant.size != 1 and (rank < 2 or shape[1] != constant.size):
        return None
    return constant.reshape(-1).astype(np.float64)


def _filters(w: Any, group: int, op_type: str) -> Any:
    """Return weights as a view of shape (groups, input channels or 1, filters per group, rest); None if invalid.

    ConvTranspose stores input channels before filters, hence its second axis; for Conv that axis is 1.
    """
    if w.ndim < 3 or not w.size or group < 1 or w.shape[0] % group:  # the node reports the error when it runs
        return None
    channels = w.shape[0] // group
    first, filters = (channels, w.shape[1]) if op_type == "ConvTranspose" else (1, channels)
    return w.reshape(group, first, filters, -1)
