"""Reading a model and refusing, before anything runs, what is not one or what its opset does not allow."""

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
_MOST_SEEN = 20_000_000  # beyond that, types of values are found only when nodes run
_DOMAINS = {schema.domain for schema in onnx.defs.get_all_schemas()}  # those that onnx has operators of


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that has been checked.

    Attributes
    ----------
    proto : ModelProto
        A copy without initializers and large constants; the default domain is written as "".
    constants : dict of str to array
        These.
    facts : dict of str to Fact
        What onnx can infer of the values that have a known element type.
    """

    proto: ModelProto
    constants: dict[str, Any]
    facts: dict[str, Fact]


def load(source: ModelProto | bytes | str | os.PathLike[str], untrusted: bool = False) -> Loaded:
    """Read a model, external data included, and check it.

    What is wrong with it, but cannot change a result, is put right, and a warning tells.

    Parameters
    ----------
    source : ModelProto, bytes or path
        External data is read from beside the path, and from nowhere else.
    untrusted : bool
        Whether the parsers, the checker and the shape inference of onnx see the model in a child process first.

    Raises
    ------
    ArgumentError
        The file cannot be read, it is no model, the model is not valid or too large or too deep, or a node of Conv,
        ConvTranspose or MaxPool uses what its opset lacks.
    ArgumentTypeError
        The source is none of the types above.
    MemoryError
        The model needs more memory than there is.
    """
    with Isolated() if untrusted else nullcontext(Local()) as onnx_code:
        onnx_code.parse(source)
        model, name = files.read(source)
        return _load(model, name, source, onnx_code)


def _load(model: ModelProto, name: str, source: Any, onnx_code: Local) -> Loaded:
    try:
        return _checked(model, name, source, onnx_code)
    except (GpuconvError, MemoryError, UserWarning):
        raise
    except Exception as error:  # what protobuf and onnx raise for what no check of ours foresees
        raise ArgumentError(f"{name} cannot be used: {type(error).__name__}: {reason(error)}") from error


def _checked(model: ModelProto, name: str, source: Any, onnx_code: Local) -> Loaded:
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
    if not proto.opset_import:  # models of IR versions 1 and 2 must not have the import that the evaluator asks for
        proto.opset_import.add(domain="", version=opset)
    return Loaded(proto, constants, facts)


def check_node(node: NodeProto, opsets: dict[str, int]) -> None:
    """Check a node on its own, outside of a model; an error is an ArgumentError that names it."""
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
    """Write the default domain of a node as ""; a copy where it was not."""
    if node.domain != "ai.onnx":
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.domain = ""
    return copy


def opset_of(imports: Iterable[Any]) -> int:
    """Version of the default domain among opset imports; models older than these imports are of opset 1."""
    return next((entry.version for entry in imports if entry.domain in _DEFAULT_DOMAINS), 1)


@dataclass(frozen=True, slots=True)
class _Scope:
    """The nodes of a model's graph or of a function, with those of the graphs inside, and what they may refer to."""

    nodes: list[NodeProto]
    opsets: dict[str, int]
    attributes: tuple[str, ...]  # of the function


def _scopes(model: ModelProto) -> list[_Scope]:
    """Return the model's own scope, then those of its functions."""
    scopes = [_Scope(list(_all_nodes(model.graph.node)), _opsets(model.opset_import), ())]
    for function in model.functions:
        attributes = (*function.attribute, *(attribute.name for attribute in function.attribute_proto))
        scopes.append(_Scope(list(_all_nodes(function.node)), _opsets(function.opset_import), attributes))
    return scopes


def _opsets(imports: Iterable[Any]) -> dict[str, int]:
    return {**{entry.domain: entry.version for entry in imports if entry.domain != "ai.onnx"}, "": opset_of(imports)}


def _write_default_domains(model: ModelProto, scopes: list[_Scope]) -> None:
    """Write the default domain as "", which the checker and the evaluator know alone."""
    imports = (entry for owner in (model, *model.functions) for entry in owner.opset_import)
    for item in chain(imports, *(scope.nodes for scope in scopes)):
        if item.domain == "ai.onnx":
            item.domain = ""


def _all_nodes(graph_nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes, each before those of the graphs inside of it."""
    left = [iter(graph_nodes)]
    while left:
        for node in left[-1]:
            yield node
            inside = nodes.subgraphs(node) if node.attribute else ()
            if inside:  # most nodes have none, and there may be very many
                left.append(chain.from_iterable([graph.node for graph in inside]))
                break
        else:
            left.pop()


def _check_domains(model: ModelProto, scopes: list[_Scope], name: str) -> None:
    """Refuse our own domain: its nodes are those that folding makes, and run unchecked."""
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
    """Refuse element types that come with later opsets; those inside of functions are known only when they run."""
    for node in filter(nodes.supported, scope.nodes):
        for name in node.input:
            if name in known:
                nodes.check_dtype(node, scope.opsets[""], known[name].dtype)


def _refuse_attributes(
    inside: Iterable[NodeProto], opset: int, known: Collection[str] = (), given: Mapping[str, limits.Values] = _NOTHING
) -> None:
    """Refuse attributes that refer to one of a function which it has not, and numbers that onnx does not survive."""
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
    """Refuse domains that are not imported, and operators that ONNX's own domains do not have."""
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
    """What is known of a value before anything runs: NumPy's name of its element type, its axes and their extents."""

    dtype: str
    rank: int | None
    shape: tuple[int, ...] | None = None


def _facts(
    model: ModelProto, constants: Mapping[str, Any], scopes: Sequence[_Scope], onnx_code: Local
) -> dict[str, Fact]:
    """Return what is known of values; of plain numbers that are constant, which most often are most, by the arrays."""
    plain = {name: array for name, array in constants.items() if array.dtype.kind in "biuf"}
    facts = {name: Fact(array.dtype.name, array.ndim, array.shape) for name, array in plain.items()}
    for value in _inferred(model, constants, scopes, onnx_code):
        name = value.name
        if name not in plain and (fact := _fact(value)) is not None:
            facts[name] = fact
    return facts


def _fact(value: ValueInfoProto) -> Fact | None:
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
    """Infer the types of values from constants and from inputs, which are checked when the model runs."""
    graph = model.graph
    for value in graph.output:
        value.ClearField("type")
    for value in graph.input:
        if value.name not in constants:
            if not value.type.tensor_type.shape.dim:
                value.type.tensor_type.ClearField("shape")  # which any array may have
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
    except Exception:  # types that do not fit; what they are for is found when the node runs
        return list(graph.input)
    return [*graph.input, *found.value_info, *found.output]


def element_type(value: ValueInfoProto) -> str:
    """NumPy's name of a tensor's element type, or "" where the value is no tensor or has no known type."""
    return _type_name(value.type.tensor_type.elem_type)


def _values_seen(graph: GraphProto, inside: Iterable[NodeProto]) -> int:
    """Return about how many values the graphs inside see from outside, each of which onnx copies to infer types."""
    graphs = sum(len(nodes.subgraphs(node)) for node in inside if node.attribute)
    return graphs * (len(graph.input) + len(graph.node))


@lru_cache(maxsize=64)
def _type_name(number: int) -> str:
    if not number or number not in onnx.helper.get_all_tensor_dtypes():
        return ""
    name: str = onnx.helper.tensor_dtype_to_np_dtype(number).name
    return name
