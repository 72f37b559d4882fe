"""Loading and validation of ONNX models.

:func:`load` reads a model, repairs harmless defects, and refuses malformed or oversized models before anything runs.
Validation covers structure, opset features, attribute values, element types and operator names. onnx's own checker and
shape inference run last; both crash on some inputs, so our checks come first.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import onnx
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    ValueInfoProto,
)

from gpuconv._errors import ArgumentError, GpuconvError, listed
from gpuconv.onnx import files, nodes
from gpuconv.onnx.checks import checker, hiding, limits, native, structure, values
from gpuconv.onnx.checks import constants as initializers
from gpuconv.onnx.checks.isolated import Isolated
from gpuconv.onnx.checks.native import Local
from gpuconv.onnx.contrib import translating
from gpuconv.onnx.messages import quoted, reason
from gpuconv.onnx.steps import DOMAIN

_DEFAULT_DOMAINS = ("", "ai.onnx")
_NOTHING: Mapping[str, Any] = {}
_MOST_SEEN = 20_000_000  # values seen by all subgraphs together; beyond that, shape inference is skipped
_DOMAINS = {schema.domain for schema in onnx.defs.get_all_schemas()}  # domains for which onnx has operator schemas


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that has been read and checked.

    Attributes
    ----------
    proto : ModelProto
        The model without initializers and large constants; the default domain is written as "".
    constants : dict of str to array
        The initializers and large Constant tensors that were removed from ``proto``, by value name.
    facts : dict of str to Fact
        Element types and shapes of the values whose element type is known: of constants, inputs, and by shape
        inference.
    """

    proto: ModelProto
    constants: dict[str, Any]
    facts: dict[str, Fact]


def load(source: ModelProto | bytes | str | os.PathLike[str], untrusted: bool = False) -> Loaded:
    """Read a model with its external data and validate it.

    Defects that cannot change a result, such as nodes out of order, are repaired with a warning.

    Parameters
    ----------
    source : ModelProto, bytes or path
        For a path, external data may lie in the folder of that file and below, and nowhere else.
    untrusted : bool
        Run onnx's native parsers, checker and shape inference in a child process first, so that a crash cannot end this
        process.

    Raises
    ------
    ArgumentError
        The file cannot be read or is not an ONNX model; the model is invalid, too large or too deeply nested; or a
        Conv, ConvTranspose or pooling node uses a feature that its opset lacks.
    ArgumentTypeError
        The source is none of the types above.
    MemoryError
        The model needs more memory than is available.
    """
    with Isolated() if untrusted else nullcontext(Local()) as onnx_code:
        onnx_code.parse(source)
        model, name = files.read(source)
        return _load(model, name, source, onnx_code)


def _load(model: ModelProto, name: str, source: Any, onnx_code: Local) -> Loaded:
    """Validate a model; errors that no check foresees (protobuf's, onnx's) become an ArgumentError that names the
    model.
    """
    try:
        return _checked(model, name, source, onnx_code)
    except (GpuconvError, MemoryError, UserWarning):
        raise
    except Exception as error:  # errors of protobuf and onnx that none of our checks foresees
        raise ArgumentError(f"{name} cannot be used: {type(error).__name__}: {reason(error)}") from error


def _checked(model: ModelProto, name: str, source: Any, onnx_code: Local) -> Loaded:
    """Run all checks in order and return the model with its constants and facts.

    The order matters: each check relies on the ones before it, and onnx's native code sees the model only near the end.
    """
    if model.ir_version < 1 or not model.HasField("graph"):
        raise ArgumentError(f"{name} is not an ONNX model, or is truncated: it holds no graph or no IR version")
    structure.check(model, name)
    large = initializers.of_nodes(model.graph)
    proto = checker.mend(model, name, large)
    translating.translate(proto)
    scopes = _scopes(proto)
    _write_default_domains(proto, scopes)
    _check_domains(proto, scopes, name)
    opset = scopes[0].opsets[""]
    nodes.check_opset(opset)
    _check_keywords(scopes)
    _check_operators(scopes, {(function.domain, function.name) for function in proto.functions})
    if values.check(proto, name):
        scopes = _scopes(proto)
    given = limits.given(proto.functions, [scope.nodes for scope in scopes])
    for scope, outer in zip(scopes, given, strict=True):
        _refuse_attributes(scope.nodes, scope.opsets[""], scope.attributes, outer)
    constants = {**initializers.read(model.graph, name, onnx_code), **large}
    checker.check(proto, name, source, onnx_code)
    facts = _facts(proto, constants, scopes, onnx_code)
    _check_dtypes(scopes[0], facts)
    checker.declare(proto, model)
    if not proto.opset_import:  # IR versions 1 and 2 forbid opset imports, but the reference evaluator requires one
        proto.opset_import.add(domain="", version=opset)
    return Loaded(proto, constants, facts)


def check_node(node: NodeProto, opsets: dict[str, int]) -> None:
    """Validate one node outside of a model.

    Raises
    ------
    ArgumentError
        The node is malformed, uses a reserved domain or what its opset lacks; the message names the node.
    """
    structure.check_node(node, "the node")
    files.check_in_memory(node, "the node")
    _refuse_attributes(_all_nodes([node]), opsets[""])
    _refuse_domain(_all_nodes([node]))
    if nodes.supported(node):
        nodes.keywords(node, opsets[""])
    try:
        native.check_node(node, opsets)
    except Exception as error:
        raise ArgumentError(f"{nodes.describe(node)} is not valid: {reason(error)}") from error


def with_default_domain(node: NodeProto) -> NodeProto:
    """Return the node with its domain written as "" instead of "ai.onnx"; the node itself if nothing changes, else a
    copy.
    """
    if node.domain != "ai.onnx":
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.domain = ""
    return copy


def opset_of(imports: Iterable[Any]) -> int:
    """Return the version of the default domain among opset imports; 1 if there is none, as in models of IR versions 1
    and 2.
    """
    return next((entry.version for entry in imports if entry.domain in _DEFAULT_DOMAINS), 1)


@dataclass(frozen=True, slots=True)
class _Scope:
    """All nodes of a model's graph or of one model function, subgraphs included, with the imports that apply to them.

    Attributes
    ----------
    nodes : list of NodeProto
        Every node is listed before the nodes of its subgraphs.
    opsets : dict of str to int
        Version by domain; the default domain is "".
    attributes : tuple of str
        Names of the function's attributes; empty for the model's graph.
    """

    nodes: list[NodeProto]
    opsets: dict[str, int]
    attributes: tuple[str, ...]  # names declared by the function; empty for the model's graph


def _scopes(model: ModelProto) -> list[_Scope]:
    """Return the scope of the model's graph, followed by one scope per model function."""
    scopes = [_Scope(list(_all_nodes(model.graph.node)), _opsets(model.opset_import), ())]
    for function in model.functions:
        attributes = (*function.attribute, *(attribute.name for attribute in function.attribute_proto))
        scopes.append(_Scope(list(_all_nodes(function.node)), _opsets(function.opset_import), attributes))
    return scopes


def _opsets(imports: Iterable[Any]) -> dict[str, int]:
    return {**{entry.domain: entry.version for entry in imports if entry.domain != "ai.onnx"}, "": opset_of(imports)}


def _write_default_domains(model: ModelProto, scopes: list[_Scope]) -> None:
    """Replace the domain "ai.onnx" by "" in imports and nodes: onnx's checker and evaluator only know the latter."""
    imports = (entry for owner in (model, *model.functions) for entry in owner.opset_import)
    for item in chain(imports, *(scope.nodes for scope in scopes)):
        if item.domain == "ai.onnx":
            item.domain = ""


def _all_nodes(graph_nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes in depth-first order: each node before the nodes of its subgraphs."""
    stack = [iter(graph_nodes)]
    while stack:
        for node in stack[-1]:
            yield node
            inside = nodes.subgraphs(node) if node.attribute else ()
            if inside:  # most nodes have no subgraph, and a model may have very many nodes
                stack.append(chain.from_iterable([graph.node for graph in inside]))
                break
        else:
            stack.pop()


def _check_domains(model: ModelProto, scopes: list[_Scope], name: str) -> None:
    """Refuse gpuconv's private domain: nodes in it are created by folding and skip validation."""
    imports = chain.from_iterable(scope.opsets for scope in scopes)
    if DOMAIN in (*imports, *(function.domain for function in model.functions)):
        raise ArgumentError(f"{name} uses the domain {DOMAIN!r}, which is reserved; rename it")
    for scope in scopes:
        _refuse_domain(scope.nodes)


def _refuse_domain(inside: Iterable[NodeProto]) -> None:
    for node in inside:
        if node.domain == DOMAIN:
            raise ArgumentError(f"{nodes.describe(node)}: the domain {DOMAIN!r} is reserved; rename it")


def _check_keywords(scopes: list[_Scope]) -> None:
    for scope in scopes:
        for node in filter(nodes.supported, scope.nodes):
            nodes.keywords(node, scope.opsets[""])


def _check_dtypes(scope: _Scope, known: dict[str, Fact]) -> None:
    """Refuse element types that need a later opset; types inside functions are known only when the function runs."""
    for node in filter(nodes.supported, scope.nodes):
        for name in node.input:
            if name in known:
                nodes.check_dtype(node, scope.opsets[""], known[name].dtype)


def _refuse_attributes(
    inside: Iterable[NodeProto], opset: int, known: Collection[str] = (), given: Mapping[str, limits.Values] = _NOTHING
) -> None:
    """Refuse references to attributes that the enclosing function lacks, and attribute values that would crash onnx.

    Parameters
    ----------
    inside : iterable of NodeProto
    opset : int
        Version of the default domain.
    known : collection of str
        Names of the enclosing function's attributes.
    given : mapping of str to Values
        Values that calls pass for these attributes, as ``limits.given`` collects them.
    """
    for node in inside:
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                _check_reference(node, attribute, known)
            if attribute.type in limits.TYPES or attribute.name in limits.NAMES:
                limits.check(node, attribute, opset, given)


def _check_reference(node: NodeProto, attribute: AttributeProto, known: Collection[str]) -> None:
    if attribute.ref_attr_name not in known:
        where = "its function has not" if known else "no function around it has"
        raise ArgumentError(
            f"{nodes.describe(node)}: its attribute {quoted(attribute.name)} refers to "
            f"{quoted(attribute.ref_attr_name)}, an attribute that {where}"
        )


def _check_operators(scopes: list[_Scope], functions: Container[tuple[str, str]]) -> None:
    """Refuse nodes of domains that are not imported, and operators that a domain of ONNX does not define at that
    opset.
    """
    for opsets, node in ((scope.opsets, node) for scope in scopes for node in scope.nodes):
        if node.domain not in opsets:
            raise ArgumentError(
                f"{nodes.describe(node)}: the domain {quoted(node.domain)} is not imported; the imports are "
                f"{listed([quoted(domain) for domain in sorted(opsets)])}"
            )
        known = (node.domain, node.op_type) in functions or node.domain not in _DOMAINS
        if not known and not _is_operator(node.op_type, opsets[node.domain], node.domain):
            raise ArgumentError(
                f"{nodes.describe(node)}: {quoted(node.op_type)} is no operator of the domain "
                f"{quoted(node.domain)} at opset {opsets[node.domain]}"
            )


@lru_cache(maxsize=1024)
def _is_operator(op_type: str, opset: int, domain: str) -> bool:
    return bool(onnx.defs.has(op_type, opset, domain))


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known of a value before the model runs.

    Attributes
    ----------
    dtype : str
        NumPy's name of the element type.
    rank : int or None
        Number of axes; None if unknown.
    shape : tuple of int or None
        The extents; None unless all of them are known.
    """

    dtype: str
    rank: int | None
    shape: tuple[int, ...] | None = None


def _facts(
    model: ModelProto, constants: Mapping[str, Any], scopes: Sequence[_Scope], onnx_code: Local
) -> dict[str, Fact]:
    """Return the facts of values by name: constants of plain numeric types from their arrays, the rest from shape
    inference.
    """
    plain = {name: array for name, array in constants.items() if array.dtype.kind in "biuf"}
    facts = {name: Fact(array.dtype.name, array.ndim, array.shape) for name, array in plain.items()}
    for value in _inferred(model, constants, scopes, onnx_code):
        name = value.name
        if name not in plain and (fact := _fact(value)) is not None:
            facts[name] = fact
    return facts


def _fact(value: ValueInfoProto) -> Fact | None:
    """Return what a value's declared or inferred type says; None if its element type is unknown."""
    tensor = value.type.tensor_type
    kind = _type_name(tensor.elem_type)
    if not kind:
        return None
    if not tensor.HasField("shape"):
        return Fact(kind, None)
    dims = tensor.shape.dim
    extents = [dim.dim_value for dim in dims if dim.HasField("dim_value")]
    return Fact(kind, len(dims), tuple(extents) if len(extents) == len(dims) else None)


def _inferred(
    model: ModelProto, constants: Mapping[str, Any], scopes: Sequence[_Scope], onnx_code: Local
) -> list[ValueInfoProto]:
    """Return the inputs, and the values whose types onnx's shape inference finds.

    Declared output types are ignored, because inference must not trust them. Declared input types are used: they are
    checked when the model runs. Only the inputs are returned if inference fails, or would copy too many values.
    """
    graph = model.graph
    for value in graph.output:
        value.ClearField("type")
    for value in graph.input:
        if value.name not in constants:
            if not value.type.tensor_type.shape.dim:
                # an empty shape may be a placeholder: such inputs accept any array
                value.type.tensor_type.ClearField("shape")
            hiding.clear_negative_extents(value)
    if _values_seen(graph, scopes[0].nodes) > _MOST_SEEN:
        return list(graph.input)
    bodies = [hiding.Body(scopes[0].nodes, scopes[0].opsets[""], list(graph.input), constants)]
    bodies += [hiding.Body(scope.nodes, scope.opsets[""]) for scope in scopes[1:]]
    try:
        with hiding.hidden(bodies):
            found = onnx_code.infer(translating.inferable(model))
    except (MemoryError, GpuconvError):
        raise
    except Exception:  # types that contradict each other; the node that needs them reports this when it runs
        return list(graph.input)
    return [*graph.input, *found.value_info, *found.output]


def element_type(value: ValueInfoProto) -> str:
    """Return NumPy's name of a tensor's element type, or "" if the value is not a tensor or its type is unknown."""
    return _type_name(value.type.tensor_type.elem_type)


def _values_seen(graph: GraphProto, inside: Iterable[NodeProto]) -> int:
    """Return roughly how many outer values all subgraphs together see; onnx's shape inference copies each of them."""
    graphs = sum(len(nodes.subgraphs(node)) for node in inside if node.attribute)
    return graphs * (len(graph.input) + len(graph.node))


@lru_cache(maxsize=64)
def _type_name(number: int) -> str:
    if not number or number not in onnx.helper.get_all_tensor_dtypes():
        return ""
    name: str = onnx.helper.tensor_dtype_to_np_dtype(number).name
    return name
