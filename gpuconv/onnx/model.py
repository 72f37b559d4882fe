"""Reading a model and refusing, before anything runs, what is not one or what its opset does not allow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from gpuconv._errors import ArgumentError, ArgumentTypeError
from gpuconv.onnx import nodes

_DEFAULT_DOMAINS = ("", "ai.onnx")
_DOMAINS = {schema.domain for schema in onnx.defs.get_all_schemas()}  # those that onnx has operators of


def load(source: ModelProto | bytes | str | os.PathLike[str]) -> ModelProto:
    """Read a model, external data included, and check it.

    Parameters
    ----------
    source : ModelProto, bytes or path
        External data is read from beside the path.

    Returns
    -------
    ModelProto
        The same object if one came, unless it names the default domain in another way than the evaluator knows.

    Raises
    ------
    ArgumentError
        The file cannot be read, it is no model, the model is not valid, or a node of Conv, ConvTranspose or
        MaxPool uses what its opset lacks. The message is one sentence.
    ArgumentTypeError
        The source is none of the types above.
    """
    model, name = _parse(source)
    if model.ir_version < 1 or not model.HasField("graph"):
        raise ArgumentError(f"{name} is not an ONNX model, or is truncated: it holds no graph or no IR version")
    model = _with_default_domains(model)
    _check_external_data(model, name)
    opset = opset_of(model.opset_import)
    nodes.check_opset(opset)
    _check_nodes(model, opset)
    _check_operators(model)
    _check_values(model.graph, set())
    _run_checker(model, name, source)
    return model if model.opset_import else _with_import(model, opset)


def check_node(node: NodeProto, opsets: dict[str, int]) -> None:
    """Check a node on its own, outside of a model; an error is an ArgumentError that names it."""
    if nodes.supported(node):
        nodes.keywords(node, opsets[""])
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = opsets
    try:
        onnx.checker.check_node(node, context)
    except Exception as error:
        raise ArgumentError(f"{nodes.describe(node)} is not valid: {_sentence(error)}") from error


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


def _parse(source: Any) -> tuple[ModelProto, str]:
    if isinstance(source, ModelProto):
        return source, "the model"
    if isinstance(source, bytes | bytearray | memoryview):
        return _decode(bytes(source), "the model")
    if not isinstance(source, str | os.PathLike):
        raise ArgumentTypeError(f"prepare: a model must be a ModelProto, bytes or a path, not {type(source).__name__}")
    name = f"the model {os.fspath(source)!r}"
    try:
        return onnx.load(source), name
    except DecodeError:
        raise ArgumentError(f"{name} is not an ONNX model, or is truncated ({os.path.getsize(source)} bytes)") from None
    except Exception as error:  # missing files, forbidden ones, external data, the text formats' own errors
        raise ArgumentError(f"{name} cannot be read: {_sentence(error)}") from error


def _decode(data: bytes, name: str) -> tuple[ModelProto, str]:
    try:
        return onnx.load_model_from_string(data), name
    except DecodeError:
        raise ArgumentError(f"{name} is not an ONNX model, or is truncated ({len(data)} bytes)") from None


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
        for graph in nodes.subgraphs(node):
            yield from _all_nodes(graph.node)


def _check_external_data(model: ModelProto, name: str) -> None:
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            raise ArgumentError(
                f"{name} keeps the tensor {tensor.name!r} in another file; pass the path of the model instead of its "
                "contents, or call onnx.load_external_data_for_model first"
            )


def _check_nodes(model: ModelProto, opset: int) -> None:
    types = _element_types(model)
    for node in filter(nodes.supported, _all_nodes(model.graph.node)):
        nodes.keywords(node, opset)
        for name in node.input:
            if name in types:
                nodes.check_dtype(node, opset, types[name])
    for function in model.functions:
        for node in filter(nodes.supported, _all_nodes(function.node)):
            nodes.keywords(node, opset_of(function.opset_import))


def _element_types(model: ModelProto) -> dict[str, str]:
    """Find the element types of values, by NumPy's names."""
    return {value.name: name for value in _inferred(model) if (name := element_type(value))}


def _check_operators(model: ModelProto) -> None:
    """Refuse domains that are not imported, and operators that ONNX's own domains do not have."""
    own = {(function.domain, function.name) for function in model.functions}
    for scope in (model, *model.functions):
        opsets = {entry.domain: entry.version for entry in scope.opset_import}
        opsets.setdefault("", opset_of(scope.opset_import))
        for node in _all_nodes(scope.graph.node if scope is model else scope.node):
            if node.domain not in opsets:
                raise ArgumentError(
                    f"{nodes.describe(node)}: the domain {node.domain!r} is not imported; the imports are "
                    f"{', '.join(map(repr, sorted(opsets)))}"
                )
            known = (node.domain, node.op_type) in own or node.domain not in _DOMAINS
            if not known and not onnx.defs.has(node.op_type, opsets[node.domain], node.domain):
                raise ArgumentError(
                    f"{nodes.describe(node)}: {node.op_type!r} is no operator of the domain {node.domain!r} at opset "
                    f"{opsets[node.domain]}"
                )


def _check_values(graph: GraphProto, outside: set[str]) -> None:
    """Refuse inputs of nodes that nothing before them makes."""
    seen = outside | {value.name for value in (*graph.input, *graph.initializer)} | {""}
    seen |= {tensor.values.name for tensor in graph.sparse_initializer}
    for node in graph.node:
        for name in node.input:
            if name not in seen:
                raise ArgumentError(
                    f"{nodes.describe(node)}: its input {name!r} is no input of the graph, no initializer, and no "
                    "output of an earlier node"
                )
        for inner in nodes.subgraphs(node):
            _check_values(inner, seen)
        seen.update(node.output)


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known of a value before anything runs: NumPy's name of its element type, and the number of its axes."""

    dtype: str
    rank: int | None


def facts(model: ModelProto) -> dict[str, Fact]:
    """Return what onnx can infer of the values that have a known element type."""
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
    try:
        inferred = onnx.shape_inference.infer_shapes(skeleton).graph
    except Exception:  # an invalid model, which the checker reports later
        inferred = skeleton.graph
    return [*inferred.input, *inferred.value_info, *inferred.output]


def element_type(value: ValueInfoProto) -> str:
    """NumPy's name of a tensor's element type, or "" where the value is no tensor or has no known type."""
    number = value.type.tensor_type.elem_type
    if not number or number not in onnx.helper.get_all_tensor_dtypes():
        return ""
    return onnx.helper.tensor_dtype_to_np_dtype(number).name


def _run_checker(model: ModelProto, name: str, source: Any) -> None:
    try:
        if isinstance(source, str | os.PathLike) and model.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
            onnx.checker.check_model(os.fspath(source))  # too large to be handed over in memory
        else:
            onnx.checker.check_model(model)
    except Exception as error:
        raise ArgumentError(f"{name} is not valid: {_sentence(error)}") from error


def _sentence(error: BaseException) -> str:
    """The error's text in one line, without the places in onnx's own sources."""
    return " ".join(str(error).split()) or type(error).__name__
