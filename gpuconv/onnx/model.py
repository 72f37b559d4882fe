"""Reading a model and refusing, before anything runs, what is not one or what its opset does not allow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from gpuconv._errors import ArgumentError, GpuconvError, listed
from gpuconv.onnx import files, nodes, structure
from gpuconv.onnx.messages import quoted, reason
from gpuconv.onnx.steps import DOMAIN

_DEFAULT_DOMAINS = ("", "ai.onnx")
_AXES = frozenset(("axes", "axis", "batch_axis", "num_scan_inputs", "perm", "scan_input_axes", "scan_output_axes"))
_MOST_AXES = 10_000
_MOST_SEEN = 20_000_000  # beyond that, types of values are found only when nodes run
_DOMAINS = {schema.domain for schema in onnx.defs.get_all_schemas()}  # those that onnx has operators of


def load(source: ModelProto | bytes | str | os.PathLike[str]) -> tuple[ModelProto, dict[str, Fact]]:
    """Read a model, external data included, and check it.

    Parameters
    ----------
    source : ModelProto, bytes or path
        External data is read from beside the path, and from nowhere else.

    Returns
    -------
    model : ModelProto
        The same object if one came, unless it names the default domain in another way than the evaluator knows.
    facts : dict of str to Fact
        What onnx can infer of the values that have a known element type.

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
    model, name = files.read(source)
    try:
        return _checked(model, name, source)
    except (GpuconvError, MemoryError):
        raise
    except Exception as error:  # what protobuf and onnx raise for what no check of ours foresees
        raise ArgumentError(f"{name} cannot be used: {type(error).__name__}: {reason(error)}") from error


def _checked(model: ModelProto, name: str, source: Any) -> tuple[ModelProto, dict[str, Fact]]:
    if model.ir_version < 1 or not model.HasField("graph"):
        raise ArgumentError(f"{name} is not an ONNX model, or is truncated: it holds no graph or no IR version")
    structure.check(model, name)
    model = _with_default_domains(model)
    _check_domains(model, name)
    opset = opset_of(model.opset_import)
    nodes.check_opset(opset)
    _check_keywords(model, opset)
    _check_operators(model)
    _check_values(model)
    _check_attributes(model)
    _run_checker(model, name, source)
    known = _facts(model)
    _check_dtypes(model, opset, known)
    return (model if model.opset_import else _with_import(model, opset)), known


def check_node(node: NodeProto, opsets: dict[str, int]) -> None:
    """Check a node on its own, outside of a model; an error is an ArgumentError that names it."""
    structure.check_node(node, "the node")
    files.check_in_memory(node, "the node")
    _refuse_attributes(_all_nodes([node]))
    _refuse_domain(_all_nodes([node]))
    if nodes.supported(node):
        nodes.keywords(node, opsets[""])
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = opsets
    try:
        onnx.checker.check_node(node, context)
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


def _with_default_domains(model: ModelProto) -> ModelProto:
    """Write the default domain as "", which the checker and the evaluator know alone; a copy where it was not."""
    if all(item.domain != "ai.onnx" for items in _scopes(model) for item in items):
        return model
    copy = _copy(model)
    for items in _scopes(copy):
        for item in items:
            item.domain = "" if item.domain == "ai.onnx" else item.domain
    return copy


def _with_import(model: ModelProto, opset: int) -> ModelProto:
    """Add the import that models of IR versions 1 and 2 must not have and the evaluator asks for."""
    copy = _copy(model)
    copy.opset_import.add(domain="", version=opset)
    return copy


def _copy(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def _scopes(model: ModelProto) -> Iterator[Any]:
    """Everything with a domain: the imports, then every node, those of functions and inner graphs included."""
    yield model.opset_import
    yield list(_all_nodes(model.graph.node))
    for function in model.functions:
        yield function.opset_import
        yield list(_all_nodes(function.node))


def _all_nodes(graph_nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    for node in graph_nodes:
        yield node
        if node.attribute:  # most nodes have none, and there may be very many
            for graph in nodes.subgraphs(node):
                yield from _all_nodes(graph.node)


def _check_domains(model: ModelProto, name: str) -> None:
    """Refuse our own domain: its nodes are those that folding makes, and run unchecked."""
    imports = [entry.domain for scope in (model, *model.functions) for entry in scope.opset_import]
    if DOMAIN in (*imports, *(function.domain for function in model.functions)):
        raise ArgumentError(f"{name} uses the domain {DOMAIN!r}, which is reserved; rename it")
    for scope in (model.graph, *model.functions):
        _refuse_domain(_all_nodes(scope.node))


def _refuse_domain(inside: Iterable[NodeProto]) -> None:
    for node in inside:
        if node.domain == DOMAIN:
            raise ArgumentError(f"{nodes.describe(node)}: the domain {DOMAIN!r} is reserved; rename it")


def _check_keywords(model: ModelProto, opset: int) -> None:
    for scope in (model.graph, *model.functions):
        version = opset_of(scope.opset_import) if isinstance(scope, FunctionProto) else opset
        for node in filter(nodes.supported, _all_nodes(scope.node)):
            nodes.keywords(node, version)


def _check_dtypes(model: ModelProto, opset: int, known: dict[str, Fact]) -> None:
    """Refuse element types that come with later opsets; those inside of functions are known only when they run."""
    for node in filter(nodes.supported, _all_nodes(model.graph.node)):
        for name in node.input:
            if name in known:
                nodes.check_dtype(node, opset, known[name].dtype)


def _check_attributes(model: ModelProto) -> None:
    """Refuse attributes that refer to one of a function which it has not, and numbers that onnx does not survive."""
    _refuse_attributes(_all_nodes(model.graph.node))
    for function in model.functions:
        known = {*function.attribute, *(attribute.name for attribute in function.attribute_proto)}
        _refuse_attributes(_all_nodes(function.node), known)


def _refuse_attributes(inside: Iterable[NodeProto], known: Iterable[str] = ()) -> None:
    for node in inside:
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                _check_reference(node, attribute, known)
            elif attribute.name in _AXES:
                _check_axes(node, attribute)


def _check_reference(node: NodeProto, attribute: AttributeProto, known: Iterable[str]) -> None:
    if attribute.ref_attr_name not in known:
        where = "its function has not" if known else "no function around it has"
        raise ArgumentError(
            f"{nodes.describe(node)}: its attribute {quoted(attribute.name)} refers to "
            f"{quoted(attribute.ref_attr_name)}, an attribute that {where}"
        )


def _check_axes(node: NodeProto, attribute: AttributeProto) -> None:
    """Refuse axes that no array has: onnx's inference takes some of them for addresses, and its Scan counts to them."""
    wrong = [axis for axis in (attribute.i, *attribute.ints) if not -_MOST_AXES <= axis <= _MOST_AXES]
    if wrong:
        raise ArgumentError(
            f"{nodes.describe(node)}: its attribute {attribute.name} is {wrong[0]}, but must be from -{_MOST_AXES} to "
            f"{_MOST_AXES}"
        )


def _check_operators(model: ModelProto) -> None:
    """Refuse domains that are not imported, and operators that ONNX's own domains do not have."""
    own = {(function.domain, function.name) for function in model.functions}
    for scope in (model, *model.functions):
        opsets = {entry.domain: entry.version for entry in scope.opset_import}
        opsets.setdefault("", opset_of(scope.opset_import))
        for node in _all_nodes(scope.graph.node if scope is model else scope.node):
            if node.domain not in opsets:
                raise ArgumentError(
                    f"{nodes.describe(node)}: the domain {quoted(node.domain)} is not imported; the imports are "
                    f"{listed([quoted(domain) for domain in sorted(opsets)])}"
                )
            known = (node.domain, node.op_type) in own or node.domain not in _DOMAINS
            if not known and not _is_operator(node.op_type, opsets[node.domain], node.domain):
                raise ArgumentError(
                    f"{nodes.describe(node)}: {quoted(node.op_type)} is no operator of the domain "
                    f"{quoted(node.domain)} at opset {opsets[node.domain]}"
                )


@lru_cache(maxsize=1024)
def _is_operator(op_type: str, opset: int, domain: str) -> bool:
    return bool(onnx.defs.has(op_type, opset, domain))


def _check_values(model: ModelProto) -> None:
    """Refuse inputs of nodes that nothing before them makes, and outputs that nothing makes."""
    _check_graph(model.graph, {""})
    for function in model.functions:
        seen = {"", *function.input}
        _check_inputs(function.node, seen, "no input of the function")
        for name in function.output:
            if name not in seen:
                raise ArgumentError(f"the function {quoted(function.name)}: no node makes its output {quoted(name)}")


def _check_graph(graph: GraphProto, seen: set[str]) -> None:
    """Check a graph that sees some values; they are the same ones afterwards."""
    own = {value.name for value in (*graph.input, *graph.initializer)}
    own |= {tensor.values.name for tensor in graph.sparse_initializer}
    own -= seen
    seen |= own
    own |= _check_inputs(graph.node, seen, "no input of the graph, no initializer,")
    for value in graph.output:
        if value.name not in seen:
            raise ArgumentError(f"the graph {quoted(graph.name)}: no node makes its output {quoted(value.name)}")
    seen -= own


def _check_inputs(graph_nodes: Iterable[NodeProto], seen: set[str], others: str) -> set[str]:
    """Check the inputs of nodes, and return the names that these make; they are added to those that are seen."""
    own: set[str] = set()
    for node in graph_nodes:
        for name in node.input:
            if name not in seen:
                raise ArgumentError(
                    f"{nodes.describe(node)}: its input {quoted(name)} is {others} and no output of an earlier node"
                )
        if node.attribute:
            for inner in nodes.subgraphs(node):
                _check_graph(inner, seen)
        own.update(name for name in node.output if name not in seen)
        seen.update(node.output)
    return own


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known of a value before anything runs: NumPy's name of its element type, and the number of its axes."""

    dtype: str
    rank: int | None


def _facts(model: ModelProto) -> dict[str, Fact]:
    return {value.name: Fact(name, _rank(value)) for value in _inferred(model) if (name := element_type(value))}


def _rank(value: ValueInfoProto) -> int | None:
    tensor = value.type.tensor_type
    return len(tensor.shape.dim) if tensor.HasField("shape") else None


def _inferred(model: ModelProto) -> list[ValueInfoProto]:
    """Infer the types of values; of weights only their types take part, not the data."""
    graph = model.graph
    inputs = {value.name: value for value in graph.input}
    for tensor in graph.initializer:
        inputs[tensor.name] = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
    skeleton = ModelProto(
        ir_version=model.ir_version,
        opset_import=model.opset_import,
        functions=model.functions,
        graph=GraphProto(name="types", node=graph.node, input=inputs.values(), output=graph.output),
    )
    if _values_seen(graph) > _MOST_SEEN:
        return [*skeleton.graph.input, *skeleton.graph.output]
    try:
        inferred = onnx.shape_inference.infer_shapes(skeleton).graph
    except MemoryError:
        raise
    except Exception:  # types that do not fit; what they are for is found when the node runs
        inferred = skeleton.graph
    return [*inferred.input, *inferred.value_info, *inferred.output]


def element_type(value: ValueInfoProto) -> str:
    """NumPy's name of a tensor's element type, or "" where the value is no tensor or has no known type."""
    return _type_name(value.type.tensor_type.elem_type)


def _values_seen(graph: GraphProto) -> int:
    """Return about how many values the graphs inside see from outside, each of which onnx copies to infer types."""
    inside = sum(len(list(nodes.subgraphs(node))) for node in _all_nodes(graph.node) if node.attribute)
    return inside * (len(graph.input) + len(graph.node))


@lru_cache(maxsize=64)
def _type_name(number: int) -> str:
    if not number or number not in onnx.helper.get_all_tensor_dtypes():
        return ""
    name: str = onnx.helper.tensor_dtype_to_np_dtype(number).name
    return name


def _run_checker(model: ModelProto, name: str, source: Any) -> None:
    try:
        if isinstance(source, str | os.PathLike) and model.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
            onnx.checker.check_model(os.fspath(source))  # too large to be handed over in memory
        else:
            onnx.checker.check_model(model)
    except Exception as error:
        raise ArgumentError(f"{name} is not valid: {reason(error)}") from error
