"""Nodes that are kept from onnx's shape inference, since it crashes, or never ends, on inputs of some types and shapes.

Such nodes may be valid, and whether their inputs are of those types and shapes is known only when a model runs. So
they are hidden: while inference runs they have a name that is no operator's. It then knows nothing of their outputs,
and all else it infers as before.

- LabelEncoder, TreeEnsemble, EyeLike, RegexFullMatch and others read the type of an input that may have none.
- GatherND indexes shapes by the last extent of its indices, which a window or padding may have made negative.
- Gather adds the ranks of its inputs, which a chain of them doubles at every node.
- Expand, in opsets 8 to 12, writes out as many extents as the length of its input ``shape`` says.
- Einsum does not end where its equation has dots that are no ellipsis.
- Reshape to a shape with both 0 and -1 divides by an extent of -1. Of such shapes inference sees the length only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, numpy_helper

from gpuconv.onnx import nodes
from gpuconv.onnx.checks.constants import WITH_GRAPHS

_OTHER_DOMAINS = {schema.domain for schema in onnx.defs.get_all_schemas()} - {""}
_BEFORE_1_23 = tuple(map(int, onnx.__version__.split(".")[:2])) < (1, 23)
_ALWAYS = frozenset(("EyeLike", "GatherND", "RegexFullMatch"))
_OLD = frozenset(("Col2Im", "ConvTranspose", "Einsum", "MaxUnpool", "OneHot")) if _BEFORE_1_23 else frozenset()
_WITH_KERNEL = frozenset(("Conv", "ConvInteger", "DeformConv", "QLinearConv")) if _BEFORE_1_23 else frozenset()
_WRITTEN_OUT = {"ConstantOfShape": 0, "Expand": 1, "AffineGrid": 1, "Reshape": 1, "Resize": 3}  # inputs that are shapes
_EQUATION = re.compile(rb"{0}(,{0})*(->{0})?".replace(b"{0}", rb"[A-Za-z]*(\.\.\.[A-Za-z]*)?"))
_SPLIT, _RECURRENT = "SplitToSequence", frozenset(("GRU", "LSTM", "RNN"))
_CANDIDATES = _ALWAYS | _OLD | _WITH_KERNEL | _RECURRENT | {_SPLIT, "Constant", "Einsum", "Expand", "Gather"}
_CANDIDATES |= frozenset(_WRITTEN_OUT) if _BEFORE_1_23 else frozenset()
_LONGEST_SHAPE = 8  # extents of a shape that is computed: no more than values have axes, so that ranks do not grow
_LARGEST_RANK = 1_000
_MOST_GATHERS = 8  # whose indices are no constants; fewer cannot make a rank large
_NO_LONGER = frozenset(  # operators whose outputs have no extent larger than all of their inputs'
    (
        *("Abs", "Add", "Cast", "Ceil", "Div", "Equal", "Floor", "Gather", "Identity", "Less", "Max", "Min", "Mod"),
        *("Mul", "Neg", "Slice", "Squeeze", "Sub", "Unsqueeze", "Where"),
    )
)


@dataclass(frozen=True)
class Body:
    """The nodes of a model's graph or of a function, with those of graphs inside, in which names are looked up.

    Attributes
    ----------
    nodes : sequence of NodeProto
        Each before those of the graphs inside of it; they may be changed while they are hidden.
    opset : int
        Of the default domain.
    inputs : collection of ValueInfoProto, optional
        Those of the model's graph; None for a function, whose inputs may be anything.
    constants : dict of str to array
        Initializers of the model's graph.
    """

    nodes: Sequence[NodeProto]
    opset: int
    inputs: Collection[ValueInfoProto] | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def makers(self) -> dict[str, NodeProto]:
        """The node that makes each value."""
        return {name: node for node in self.nodes for name in node.output}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Extents of constants and inputs; unknown ones count as 1, since inference writes nothing out for them."""
        declared = {
            value.name: tuple(max(1, dim.dim_value) for dim in value.type.tensor_type.shape.dim)
            for value in self.inputs or ()
        }
        return declared | {name: array.shape for name, array in self.constants.items()}


@contextmanager
def hidden(bodies: Iterable[Body]) -> Iterator[None]:
    """Hide what inference must not see, for as long as the context lasts."""
    changed: list[tuple[NodeProto, NodeProto]] = []
    try:
        for body in bodies:
            for node in _unsafe(body):
                changed.append((node, NodeProto.FromString(node.SerializeToString())))
                _hide(node)
        yield
    finally:
        for node, original in reversed(changed):  # one that is hidden twice had its own name at first
            node.CopyFrom(original)


def clear_negative_extents(value: ValueInfoProto) -> None:
    """Make unknown what an input declares as a negative extent."""
    for dim in value.type.tensor_type.shape.dim:
        if dim.dim_value < 0:
            dim.ClearField("dim_value")


def _hide(node: NodeProto) -> None:
    if node.op_type != "Constant":
        node.op_type = f"hidden {node.op_type}"
        return
    length = len(_integers(node) or ())
    del node.attribute[:]
    node.op_type = "RandomUniform"  # which says the same of its output's type and shape, but has no data
    node.attribute.add(name="dtype", type=onnx.AttributeProto.INT, i=TensorProto.INT64)
    node.attribute.add(name="shape", type=onnx.AttributeProto.INTS, ints=[length])


def _unsafe(body: Body) -> list[NodeProto]:
    """Return the nodes to hide."""
    found, gathers = [], []
    for node in body.nodes:
        if node.domain:
            if node.domain in _OTHER_DOMAINS:
                found.append(node)
        elif node.op_type in _CANDIDATES:
            if node.op_type == "Gather":
                gathers.append(node)
            elif _is_unsafe(node, body):
                found.append(node)
        elif node.op_type in WITH_GRAPHS and _shapes_inside(node):
            found += [inner for inner in body.nodes if inner.op_type == "Reshape" and not inner.domain]
    return found + _gathers_of_large_rank(body, gathers)


def _is_unsafe(node: NodeProto, body: Body) -> bool:
    kind = node.op_type
    if kind == "Constant":
        integers = _integers(node)
        return integers is not None and 0 in integers and -1 in integers
    if kind in _ALWAYS or kind in _OLD:
        return True
    if kind == "Einsum":
        equations = [attribute.s for attribute in node.attribute if attribute.name == "equation"]
        return not all(_EQUATION.fullmatch(equation.replace(b" ", b"")) for equation in equations)
    if kind in _WITH_KERNEL:
        return not any(attribute.name == "kernel_shape" for attribute in node.attribute)
    if kind == _SPLIT:
        return len(node.input) > 1
    if kind in _RECURRENT:
        return body.opset < 7
    at = _WRITTEN_OUT[kind]
    if at >= len(node.input) or (not _BEFORE_1_23 and body.opset >= 13):
        return False
    return _largest_extent(node.input[at], body) > _LONGEST_SHAPE


def _integers(node: NodeProto) -> Any:
    """Return the integers of a Constant that may be a shape, or None."""
    for attribute in node.attribute:
        if attribute.name == "value_ints":
            return list(attribute.ints)
        if attribute.name == "value" and attribute.t.data_type == TensorProto.INT64:
            return _shape_of(attribute.t)
    return None


def _shape_of(tensor: TensorProto) -> Any:
    """Return the integers of a tensor of one axis, or None where it has too many for a shape."""
    if len(tensor.dims) != 1 or not 2 <= tensor.dims[0] <= _LARGEST_RANK:
        return None
    return numpy_helper.to_array(tensor).tolist()


def _shapes_inside(node: NodeProto) -> bool:
    """Tell whether graphs inside of a node have initializers that are shapes with both 0 and -1."""
    tensors = [tensor for graph in nodes.subgraphs(node) for tensor in graph.initializer]
    shapes = [_shape_of(tensor) for tensor in tensors if tensor.data_type == TensorProto.INT64]
    return any(shape is not None and 0 in shape and -1 in shape for shape in shapes)


# ---------------------------------------------------------------- how long a shape may be


def _largest_extent(name: str, body: Body) -> float:
    """Return an upper bound of the extents of a value, infinity where there is none."""
    known: dict[str, float] = {"": 0}
    entered, left = set[str](), [name]
    while left:
        current = left[-1]
        if current in known:
            left.pop()
            continue
        bound, sources = _bound_or_sources(current, body)
        missing = [source for source in sources if source not in known]
        if missing and current not in entered:
            entered.add(current)
            left += missing
            continue
        left.pop()
        found = [known.get(source, math.inf) for source in sources]  # one that is missing still is part of a cycle
        joined = sources and body.makers[current].op_type == "Concat"
        known[current] = sum(found) if joined else max([bound, *found])
    return known[name]


def _bound_or_sources(name: str, body: Body) -> tuple[float, Sequence[str]]:
    """Return the largest extent of a value, or the values whose extents bound it."""
    if name in body.shapes:
        return max(body.shapes[name], default=0), ()
    node = body.makers.get(name)
    if node is None or node.domain:
        return math.inf, ()
    if node.op_type == "Shape":
        return _LONGEST_SHAPE, ()
    if node.op_type == "Constant":
        return _extent_of_constant(node), ()
    if node.op_type == "ConstantOfShape" and node.input:
        return _written_out(node.input[0], body)
    if node.op_type == "Concat" or node.op_type in _NO_LONGER:
        return 0, node.input
    return (0 if node.op_type == "Size" else math.inf), ()


def _extent_of_constant(node: NodeProto) -> int:
    attribute = node.attribute[0] if node.attribute else onnx.AttributeProto()
    extents: list[int] = [*attribute.t.dims, len(attribute.ints), len(attribute.floats), len(attribute.strings)]
    return max(extents)


def _written_out(shape: str, body: Body) -> tuple[float, Sequence[str]]:
    """Bound the extents of a ConstantOfShape by the numbers of its shape."""
    if shape in body.constants:
        return body.constants[shape].max(initial=0), ()
    node = body.makers.get(shape)
    if node is not None and node.op_type == "Shape" and not node.domain and node.input:
        return 0, node.input[:1]
    numbers = _numbers(node) if node is not None and node.op_type == "Constant" else None
    return (math.inf if numbers is None else max(numbers, default=0)), ()


def _numbers(node: NodeProto) -> Any:
    """Return all integers of a Constant of INT64, or None."""
    for attribute in node.attribute:
        if attribute.name == "value_ints":
            return attribute.ints
        if attribute.name == "value" and attribute.t.data_type == TensorProto.INT64:
            return numpy_helper.to_array(attribute.t).reshape(-1).tolist()
    return None


# ---------------------------------------------------------------- how many axes a value may have


def _gathers_of_large_rank(body: Body, gathers: Sequence[NodeProto]) -> list[NodeProto]:
    """Return nodes of Gather whose outputs may have very many axes."""
    moving = [node for node in gathers if not _is_constant(node.input[1] if len(node.input) > 1 else "", body)]
    if body.inputs is None:
        return moving  # what calls of the function make of ranks is not known
    if len(moving) <= _MOST_GATHERS:
        return []
    ranks: dict[str, float] = {name: len(shape) for name, shape in body.shapes.items()}
    found = []
    for node in body.nodes:
        of_inputs = [ranks.get(name, 0) for name in node.input]
        rank = sum(of_inputs) if node.op_type == "Gather" else max(of_inputs, default=0) + _axes_added(node)
        if node.op_type == "Gather" and rank > _LARGEST_RANK:
            found.append(node)
        ranks.update(dict.fromkeys(node.output, rank))
    return found


def _is_constant(name: str, body: Body) -> bool:
    return name in body.constants or (name in body.makers and body.makers[name].op_type == "Constant")


def _axes_added(node: NodeProto) -> float:
    """Return an upper bound of the axes that a node adds to those of its inputs."""
    if node.domain or (node.attribute and nodes.subgraphs(node)):
        return math.inf
    return _LONGEST_SHAPE
