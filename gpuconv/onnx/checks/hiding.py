"""Protection of onnx's shape inference from nodes on which it crashes or does not terminate.

Such nodes may be valid, and the problematic types and shapes are known only when the model runs. So these nodes are
hidden: during inference they carry an operator name that does not exist. Inference then knows nothing of their outputs,
but infers everything else. The hidden nodes:

- LabelEncoder, TreeEnsemble, EyeLike, RegexFullMatch and others: inference reads an input's type that may be missing.
- GatherND: it indexes shapes by the last extent of the indices, which windows or padding may have made negative.
- Gather: the output's rank is the sum of the inputs' ranks, which a chain of Gathers doubles at every node.
- Expand, in opsets 8 to 12: it allocates as many extents as the input ``shape`` has elements.
- Einsum: it does not terminate if the equation has dots that are not an ellipsis.
- Reshape to a shape with both 0 and -1: it divides by an extent of -1. Inference sees only the length of such shapes.
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
# position of the input that is a shape
_WRITTEN_OUT = {"ConstantOfShape": 0, "Expand": 1, "AffineGrid": 1, "Reshape": 1, "Resize": 3}
_EQUATION = re.compile(rb"{0}(,{0})*(->{0})?".replace(b"{0}", rb"[A-Za-z]*(\.\.\.[A-Za-z]*)?"))
_SPLIT, _RECURRENT = "SplitToSequence", frozenset(("GRU", "LSTM", "RNN"))
_CANDIDATES = _ALWAYS | _OLD | _WITH_KERNEL | _RECURRENT | {_SPLIT, "Constant", "Einsum", "Expand", "Gather"}
_CANDIDATES |= frozenset(_WRITTEN_OUT) if _BEFORE_1_23 else frozenset()
_LONGEST_SHAPE = 8  # most elements of a computed shape; matches the usual number of axes, so that ranks do not grow
_LARGEST_RANK = 1_000
_MOST_GATHERS = 8  # most Gathers with non-constant indices; fewer cannot produce a large rank
_NO_LONGER = frozenset(  # operators none of whose output extents exceeds all extents of the inputs
    (
        *("Abs", "Add", "Cast", "Ceil", "Div", "Equal", "Floor", "Gather", "Identity", "Less", "Max", "Min", "Mod"),
        *("Mul", "Neg", "Slice", "Squeeze", "Sub", "Unsqueeze", "Where"),
    )
)


@dataclass(frozen=True)
class Body:
    """All nodes of a model's graph or of a function, subgraphs included, with what is known of their inputs.

    Attributes
    ----------
    nodes : sequence of NodeProto
        Every node precedes those of its subgraphs. They are modified while they are hidden.
    opset : int
        Version of the default domain.
    inputs : collection of ValueInfoProto, optional
        Inputs of the model's graph; None for a function, whose inputs are unknown.
    constants : dict of str to array
        Initializers of the model's graph.
    """

    nodes: Sequence[NodeProto]
    opset: int
    inputs: Collection[ValueInfoProto] | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def makers(self) -> dict[str, NodeProto]:
        """The node that computes each value, by the value's name."""
        return {name: node for node in self.nodes for name in node.output}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of constants and inputs by name; unknown extents count as 1: inference allocates nothing for them."""
        declared = {
            value.name: tuple(max(1, dim.dim_value) for dim in value.type.tensor_type.shape.dim)
            for value in self.inputs or ()
        }
        return declared | {name: array.shape for name, array in self.constants.items()}


@contextmanager
def hidden(bodies: Iterable[Body]) -> Iterator[None]:
    """Context manager that hides the nodes which shape inference must not see, and restores them at the end."""
    changed: list[tuple[NodeProto, NodeProto]] = []
    try:
        for body in bodies:
            for node in _unsafe(body):
                changed.append((node, NodeProto.FromString(node.SerializeToString())))
                _hide(node)
        yield
    finally:
        # in reverse: a node that was hidden twice gets its original name back last
        for node, original in reversed(changed):
            node.CopyFrom(original)


def clear_negative_extents(value: ValueInfoProto) -> None:
    """Replace negative extents that an input declares by unknown ones."""
    for dim in value.type.tensor_type.shape.dim:
        if dim.dim_value < 0:
            dim.ClearField("dim_value")


def _hide(node: NodeProto) -> None:
    """Give a node an operator name that does not exist; a Constant becomes an operator of the same output type and
    shape.
    """
    if node.op_type != "Constant":
        node.op_type = f"hidden {node.op_type}"
        return
    length = len(_integers(node) or ())
    del node.attribute[:]
    node.op_type = "RandomUniform"  # its output has the same type and shape, but inference sees no data
    node.attribute.add(name="dtype", type=onnx.AttributeProto.INT, i=TensorProto.INT64)
    node.attribute.add(name="shape", type=onnx.AttributeProto.INTS, ints=[length])


def _unsafe(body: Body) -> list[NodeProto]:
    """Return the nodes of a body that shape inference must not see."""
    unsafe, gathers = [], []
    for node in body.nodes:
        if node.domain:
            if node.domain in _OTHER_DOMAINS:
                unsafe.append(node)
        elif node.op_type in _CANDIDATES:
            if node.op_type == "Gather":
                gathers.append(node)
            elif _is_unsafe(node, body):
                unsafe.append(node)
        elif node.op_type in WITH_GRAPHS and _shapes_inside(node):
            unsafe += [inner for inner in body.nodes if inner.op_type == "Reshape" and not inner.domain]
    return unsafe + _gathers_of_large_rank(body, gathers)


def _is_unsafe(node: NodeProto, body: Body) -> bool:
    """Return whether shape inference may crash on a node, or not terminate; Gather is checked separately."""
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
    """Return the integers of a Constant that can serve as a shape, or None."""
    for attribute in node.attribute:
        if attribute.name == "value_ints":
            return list(attribute.ints)
        if attribute.name == "value" and attribute.t.data_type == TensorProto.INT64:
            return _shape_of(attribute.t)
    return None


def _shape_of(tensor: TensorProto) -> Any:
    """Return the elements of a 1-D integer tensor with 2 to _LARGEST_RANK elements; None for all others."""
    if len(tensor.dims) != 1 or not 2 <= tensor.dims[0] <= _LARGEST_RANK:
        return None
    return numpy_helper.to_array(tensor).tolist()


def _shapes_inside(node: NodeProto) -> bool:
    """Return whether a subgraph of the node has an initializer that is a shape with both 0 and -1."""
    tensors = [tensor for graph in nodes.subgraphs(node) for tensor in graph.initializer]
    shapes = [_shape_of(tensor) for tensor in tensors if tensor.data_type == TensorProto.INT64]
    return any(shape is not None and 0 in shape and -1 in shape for shape in shapes)


# ---------------------------------------------------------------- how long a shape may be


def _largest_extent(name: str, body: Body) -> float:
    """Return an upper bound of all extents of a value, or infinity if none is known.

    The value's producers are visited depth first, with an explicit stack instead of recursion.
    """
    known: dict[str, float] = {"": 0}
    entered, stack = set[str](), [name]
    while stack:
        current = stack[-1]
        if current in known:
            stack.pop()
            continue
        bound, sources = _bound_or_sources(current, body)
        missing = [source for source in sources if source not in known]
        if missing and current not in entered:
            entered.add(current)
            stack += missing
            continue
        stack.pop()
        bounds = [known.get(source, math.inf) for source in sources]  # a source still missing here is part of a cycle
        joined = sources and body.makers[current].op_type == "Concat"
        known[current] = sum(bounds) if joined else max([bound, *bounds])
    return known[name]


def _bound_or_sources(name: str, body: Body) -> tuple[float, Sequence[str]]:
    """Return a bound of the extents of a value, and the values whose extents bound it too."""
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
    """Return the largest extent of a Constant's value."""
    attribute = node.attribute[0] if node.attribute else onnx.AttributeProto()
    extents: list[int] = [*attribute.t.dims, len(attribute.ints), len(attribute.floats), len(attribute.strings)]
    return max(extents)


def _written_out(shape: str, body: Body) -> tuple[float, Sequence[str]]:
    """Return a bound of the extents of a ConstantOfShape: the elements of its input, or the value whose shape it
    takes.
    """
    if shape in body.constants:
        return body.constants[shape].max(initial=0), ()
    node = body.makers.get(shape)
    if node is not None and node.op_type == "Shape" and not node.domain and node.input:
        return 0, node.input[:1]
    numbers = _numbers(node) if node is not None and node.op_type == "Constant" else None
    return (math.inf if numbers is None else max(numbers, default=0)), ()


def _numbers(node: NodeProto) -> Any:
    """Return all integers of an INT64 Constant, or None."""
    for attribute in node.attribute:
        if attribute.name == "value_ints":
            return attribute.ints
        if attribute.name == "value" and attribute.t.data_type == TensorProto.INT64:
            return numpy_helper.to_array(attribute.t).reshape(-1).tolist()
    return None


# ---------------------------------------------------------------- how many axes a value may have


def _gathers_of_large_rank(body: Body, gathers: Sequence[NodeProto]) -> list[NodeProto]:
    """Return the Gather nodes whose outputs may have more than _LARGEST_RANK axes."""
    with_variable_indices = [
        node for node in gathers if not _is_constant(node.input[1] if len(node.input) > 1 else "", body)
    ]
    if body.inputs is None:
        return with_variable_indices  # the ranks of a function's inputs are unknown
    if len(with_variable_indices) <= _MOST_GATHERS:
        return []
    ranks: dict[str, float] = {name: len(shape) for name, shape in body.shapes.items()}
    large = []
    for node in body.nodes:
        of_inputs = [ranks.get(name, 0) for name in node.input]
        rank = sum(of_inputs) if node.op_type == "Gather" else max(of_inputs, default=0) + _axes_added(node)
        if node.op_type == "Gather" and rank > _LARGEST_RANK:
            large.append(node)
        ranks.update(dict.fromkeys(node.output, rank))
    return large


def _is_constant(name: str, body: Body) -> bool:
    return name in body.constants or (name in body.makers and body.makers[name].op_type == "Constant")


def _axes_added(node: NodeProto) -> float:
    """Return an upper bound of how many axes a node's outputs have beyond those of its inputs."""
    if node.domain or (node.attribute and nodes.subgraphs(node)):
        return math.inf
    return _LONGEST_SHAPE
