"""First check of a model: nesting depth, number of nodes, recursion, and that all names are valid text.

After this check, later code may recurse over subgraphs and treat every name as str.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from google.protobuf.message import Message
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from gpuconv._errors import ArgumentError
from gpuconv.onnx.messages import quoted

DEEPEST = 32  # deepest nesting of subgraphs and function calls
MOST_NODES = 1_000_000  # number of nodes with all function calls inlined
MOST_FUNCTIONS = 2_000  # onnx's evaluator passes each function a list of all earlier ones, which is quadratic


def check(model: ModelProto, name: str) -> None:
    """Refuse models that are too deep or too large, have recursive functions, or names that are not UTF-8.

    Raises
    ------
    ArgumentError
        The message begins with ``name``, for example "the model".
    """
    if len(model.functions) > MOST_FUNCTIONS:
        raise ArgumentError(f"{name} has {len(model.functions)} functions, but may have {MOST_FUNCTIONS} at most")
    _check_names(_names_of_model(model), name)
    for function in model.functions:
        _check_names(_names_of_function(function), name)
    _Measure(model.functions, name).check(model.graph.node)


def check_node(node: NodeProto, name: str) -> None:
    """Apply the same checks to a single node without a model."""
    _Measure((), name).check([node])


def tensors(root: Message) -> Iterator[TensorProto]:
    """Yield every tensor anywhere inside a protobuf message, through any field."""
    stack: list[Any] = [root]
    while stack:
        message = stack.pop()
        if isinstance(message, TensorProto):
            yield message
            continue
        for entry, value in message.ListFields():
            if entry.message_type is not None and entry.message_type.full_name in _HOLDERS:
                stack.extend([value] if isinstance(value, Message) else value)


def graphs(attribute: AttributeProto) -> Iterable[GraphProto]:
    """Return the graphs inside an attribute, regardless of its declared type."""
    return [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs


def _holders() -> frozenset[str]:
    """Return the full names of protobuf message types that can contain tensors, directly or indirectly."""
    known = ModelProto.DESCRIPTOR.file.message_types_by_name.values()
    holders, before = {TensorProto.DESCRIPTOR.full_name}, 0
    while len(holders) > before:
        before = len(holders)
        holders |= {
            kind.full_name
            for kind in known
            if any(entry.message_type is not None and entry.message_type.full_name in holders for entry in kind.fields)
        }
    return frozenset(holders)


_HOLDERS = _holders()


def _check_names(names: Iterable[Any], name: str) -> None:
    """Refuse names that are not UTF-8, which protobuf returns as bytes or refuses to return."""
    try:
        wrong = [text for text in names if type(text) is not str]
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{name} is not valid: a name in it is not UTF-8 text ({error.reason})") from None
    if wrong:
        raise ArgumentError(f"{name} is not valid: the name {quoted(wrong[0])} in it is not UTF-8 text")


def _names_of_model(model: ModelProto) -> Iterator[Any]:
    yield from (entry.domain for entry in model.opset_import)
    yield from _names_of_graph(model.graph)


def _names_of_function(function: FunctionProto) -> Iterator[Any]:
    yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
    yield from (attribute.name for attribute in function.attribute_proto)
    yield from (entry.domain for entry in function.opset_import)


def _names_of_graph(graph: GraphProto) -> Iterator[Any]:
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)


def _names_of_node(node: NodeProto) -> list[Any]:
    names = [node.op_type, node.name, node.domain, *node.input, *node.output]
    for attribute in node.attribute:
        names += attribute.name, attribute.ref_attr_name
    return names


def _key(domain: str, name: str) -> tuple[str, str]:
    """Return the key under which a function and its calls match; "ai.onnx" and "" are the same domain."""
    return "" if domain == "ai.onnx" else domain, name


@dataclass(frozen=True, slots=True)
class _Size:
    """Size of a graph or function with all calls inlined: number of nodes, and nesting depth."""

    nodes: int
    depth: int


@dataclass
class _Measure:
    """Counts the nodes of a model as if every function call were inlined, and checks the nesting depth."""

    functions: Iterable[FunctionProto]
    name: str
    _sizes: dict[tuple[str, str], _Size] = field(default_factory=dict)
    # stack of functions being measured, to detect recursion
    _called: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._bodies: dict[tuple[str, str], list[NodeProto]] = {}
        for function in self.functions:  # several functions may share a name and differ in their overload
            self._bodies.setdefault(_key(function.domain, function.name), []).extend(function.node)

    def check(self, nodes: Collection[NodeProto]) -> None:
        """Refuse excessive depth or size of these nodes, and of all functions, called or not."""
        count = max(self._of_nodes(nodes).nodes, *(self._of_function(key).nodes for key in self._bodies), 0)
        if count > MOST_NODES:
            raise ArgumentError(
                f"{self.name} has {count} nodes with functions written out where they are called, but may have "
                f"{MOST_NODES} at most"
            )

    def _of_nodes(self, nodes: Collection[NodeProto]) -> _Size:
        """Return the size of a list of nodes, subgraphs and called functions included."""
        count, deepest, stack = 0, 0, [(nodes, 0)]
        while stack:
            inside, depth = stack.pop()
            self._check_depth(depth)
            _check_names(chain.from_iterable(map(_names_of_node, inside)), self.name)
            for node in inside:
                count += 1
                for attribute in node.attribute:
                    for graph in graphs(attribute):
                        _check_names(_names_of_graph(graph), self.name)
                        stack.append((graph.node, depth + 1))
                if self._bodies and _key(node.domain, node.op_type) in self._bodies:
                    called = self._of_function(_key(node.domain, node.op_type))
                    count, deepest = count + called.nodes, max(deepest, depth + 1 + called.depth)
            deepest = max(deepest, depth)
        self._check_depth(deepest)
        return _Size(count, deepest)

    def _of_function(self, key: tuple[str, str]) -> _Size:
        """Return the size of a function, cached; a recursive call is an ArgumentError."""
        if key in self._called:
            calls = " -> ".join(quoted(name) for _, name in [*self._called[self._called.index(key) :], key][:4])
            raise ArgumentError(f"{self.name} is not valid: a function of it calls itself ({calls})")
        if key not in self._sizes:
            self._check_depth(len(self._called) + 1)
            self._called.append(key)
            self._sizes[key] = self._of_nodes(self._bodies[key])
            self._called.pop()
        return self._sizes[key]

    def _check_depth(self, depth: int) -> None:
        if depth > DEEPEST:
            raise ArgumentError(
                f"{self.name} has subgraphs or function calls nested more than {DEEPEST} deep, which is the limit"
            )
