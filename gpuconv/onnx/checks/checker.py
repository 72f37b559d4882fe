"""onnx's checker, with its refusals of harmless defects turned into warnings.

:func:`mend` makes a light copy of the model, without weights and without the harmless defects. :func:`check` runs
onnx's checker on it, and :func:`declare` restores the declarations afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, SparseTensorProto, TensorProto, ValueInfoProto, helper

from gpuconv._errors import ArgumentError, GpuconvError, listed
from gpuconv.onnx.checks.native import Local
from gpuconv.onnx.messages import quoted, reason, warn
from gpuconv.onnx.nodes import subgraphs

_FIRST_WITH_IMPORTS, _FIRST_WITH_FREE_INITIALIZERS = 3, 4  # IR versions
_ANY = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])


def mend(model: ModelProto, name: str, constants: Mapping[str, Any]) -> ModelProto:
    """Return a copy of a model with initializers as inputs without data, and with harmless defects fixed.

    Parameters
    ----------
    model : ModelProto
    name : str
        How warnings about defects refer to the model.
    constants : dict of str to array
        Outputs of extracted Constant nodes, which become inputs without data too.
    """
    tensors = model.graph.initializer, model.graph.sparse_initializer
    weights = {value.name: value for value in map(_kind_of, chain(*tensors)) if value.name}
    inputs = [weights.pop(value.name, value) for value in model.graph.input]
    made = [helper.make_tensor_value_info(key, TensorProto.FLOAT, array.shape) for key, array in constants.items()]
    copy = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph = copy.graph
    graph.name = model.graph.name
    graph.node.extend([node for node in model.graph.node if not node.output or node.output[0] not in constants])
    graph.input.extend([*inputs, *weights.values(), *made])
    graph.output.extend(model.graph.output)
    _mend_names(copy.graph, name)
    _mend_version(copy, sorted(weights), name)
    keys = [entry.key for entry in model.metadata_props]
    if len(keys) > len(set(keys)):
        warn(f"{name} has the key {quoted(max(keys, key=keys.count))} more than once in its metadata")
    return copy


def declare(copy: ModelProto, model: ModelProto) -> None:
    """Restore the declared inputs, outputs and types of the model in its mended copy."""
    del copy.graph.input[:], copy.graph.output[:]
    copy.graph.input.extend(model.graph.input)
    copy.graph.output.extend(model.graph.output)
    copy.graph.value_info.extend(value for value in model.graph.value_info if value.HasField("type"))


def _kind_of(tensor: TensorProto | SparseTensorProto) -> ValueInfoProto:
    """Return the declaration of a value with an initializer's name, type and shape."""
    dense = tensor if isinstance(tensor, TensorProto) else tensor.values
    return ValueInfoProto(name=dense.name, type=helper.make_tensor_type_proto(dense.data_type, tensor.dims))


def _mend_names(graph: GraphProto, name: str) -> None:
    unnamed = [inner for inner in _graphs(graph) if not inner.name]
    for inner in unnamed:
        inner.name = "graph"
    if unnamed:
        warn(f"{name} has a graph without a name")


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        if node.attribute:
            for inner in subgraphs(node):
                yield from _graphs(inner)


def _mend_version(copy: ModelProto, weights: list[str], name: str) -> None:
    """Warn of features that the model's IR version lacks; raise the version where the model imports opsets."""
    version = copy.ir_version
    if version < _FIRST_WITH_FREE_INITIALIZERS and weights:
        warn(
            f"{name} has initializers that are no inputs, which IR version {version} does not allow: "
            f"{listed(list(map(quoted, weights)))}"
        )
    if version < _FIRST_WITH_IMPORTS and copy.opset_import:
        warn(f"{name} imports opsets, which IR version {version} does not allow")
        copy.ir_version = _FIRST_WITH_IMPORTS


def check(model: ModelProto, name: str, source: Any, onnx_code: Local) -> None:
    """Run onnx's checker on a model whose initializers are inputs.

    Inputs and outputs without a type or shape are accepted, with a warning.

    Raises
    ------
    ArgumentError
        The checker refuses the model, or the installed onnx does not know its IR version.
    """
    if model.ir_version > onnx.IR_VERSION:
        raise ArgumentError(
            f"{name} is of IR version {model.ir_version}, but the installed onnx {onnx.__version__} knows them up to "
            f"{onnx.IR_VERSION}; update onnx"
        )
    vague = [value for value in (*model.graph.input, *model.graph.output) if not _is_complete(value)]
    types = [value.type.SerializeToString() if value.HasField("type") else None for value in vague]
    for value in vague:
        value.type.CopyFrom(_ANY)
    try:
        onnx_code.check(model, source if isinstance(source, str | os.PathLike) else None)
    except GpuconvError:
        raise
    except Exception as error:
        raise ArgumentError(f"{name} is not valid: {reason(error)}") from error
    for value, kind in zip(vague, types, strict=True):
        value.ClearField("type")
        if kind is not None:
            value.type.ParseFromString(kind)
    if vague:
        names = listed([quoted(value.name) for value in vague])
        warn(f"{name} does not say of what type and shape these inputs and outputs are, so anything fits: {names}")


def _is_complete(value: ValueInfoProto) -> bool:
    """Return whether a value declares its type, and for a tensor its element type and shape."""
    kind = value.type
    if kind.WhichOneof("value") is None:
        return False
    tensor = kind.tensor_type
    return not kind.HasField("tensor_type") or (tensor.elem_type != 0 and tensor.HasField("shape"))
