"""Initializers of a graph as arrays, and large constants of its nodes, which are no other than these."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, SparseTensorProto, TensorProto, numpy_helper

from gpuconv._errors import ArgumentError, GpuconvError
from gpuconv.onnx.checks.native import Local
from gpuconv.onnx.messages import quoted, reason, warn

MOST_SPARSE = 2**26  # elements of all sparse initializers, most of which no file has to hold
_LARGE = 256  # elements of a Constant whose copies would cost more than to look for it
_FLOAT = np.dtype(np.float32).itemsize
WITH_GRAPHS = frozenset(("If", "Loop", "Scan", "SequenceMap"))  # operators whose attributes are graphs
_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")


def read(graph: GraphProto, name: str, onnx_code: Local) -> dict[str, Any]:
    """Return the initializers of a graph, sparse ones with their zeros, by name.

    Parameters
    ----------
    graph : GraphProto
        With all data inside.
    name : str
        What messages call the model.
    onnx_code : Local
        Checks sparse tensors.

    Raises
    ------
    ArgumentError
        An initializer's data does not fit its type and shape, or there is another one of the same name.
    """
    found: dict[str, Any] = {}
    elements = sum(abs(math.prod(tensor.dims)) for tensor in graph.sparse_initializer)
    if elements > MOST_SPARSE:
        raise ArgumentError(
            f"{name} has sparse initializers of {elements} elements together, but may have {MOST_SPARSE} at most"
        )
    for tensor in (*graph.initializer, *graph.sparse_initializer):
        sparse = isinstance(tensor, SparseTensorProto)
        label = tensor.values.name if sparse else tensor.name
        if not label:
            warn(f"{name} has an initializer without a name, which nothing can read; it is left out")
            continue
        if label in found:
            raise ArgumentError(
                f"{name} is not valid: the initializer {quoted(label)} is there twice; keep one of them"
            )
        try:
            found[label] = _dense(tensor, onnx_code) if sparse else _array(tensor)
        except (MemoryError, GpuconvError):
            raise
        except Exception as error:  # whatever onnx and NumPy raise for data that does not fit
            raise ArgumentError(f"{name} is not valid: the initializer {quoted(label)}: {reason(error)}") from error
    return found


def of_nodes(graph: GraphProto) -> dict[str, Any]:
    """Return what nodes of Constant make, of those that are large and plainly valid: float32 in one piece.

    Everything that is copied of a graph would have these inside. A graph with others inside of nodes has none: names
    there may be those of later nodes.
    """
    found: dict[str, Any] = {}
    if any(node.domain not in ("", "ai.onnx") or node.op_type in WITH_GRAPHS for node in graph.node):
        return found
    for node in graph.node:
        array = _large(node) if node.op_type == "Constant" else None
        if array is not None:
            found[node.output[0]] = array
    if not found:
        return found
    names = Counter(name for node in graph.node for name in node.output)
    names.update(value.name for value in (*graph.input, *graph.output, *graph.initializer))
    names.update(tensor.values.name for tensor in graph.sparse_initializer)
    return {name: array for name, array in found.items() if name and names[name] == 1}


def _large(node: NodeProto) -> Any:
    """Return the array of a Constant, or None."""
    if len(node.attribute) != 1 or node.input or len(node.output) != 1:
        return None
    attribute = node.attribute[0]
    if attribute.name != "value" or attribute.type != AttributeProto.TENSOR or attribute.ref_attr_name:
        return None
    tensor = attribute.t
    shape = tuple(tensor.dims)
    count = math.prod(shape)
    if count < _LARGE or min(shape) < 1 or tensor.data_type != TensorProto.FLOAT or tensor.HasField("segment"):
        return None
    if any(len(getattr(tensor, field)) for field in _FIELDS) or len(tensor.raw_data) != count * _FLOAT:
        return None
    return numpy_helper.to_array(tensor)


def _array(tensor: TensorProto) -> Any:
    shape = tuple(tensor.dims)
    if min(shape, default=0) < 0:
        raise ValueError(f"its shape {shape} has a negative extent")
    stored = [field for field in _FIELDS if len(getattr(tensor, field))]
    stored += ["raw_data"] if tensor.HasField("raw_data") else []
    if len(stored) > 1:
        raise ValueError(f"it has values in {' and in '.join(stored)}, but may have them in one place only")
    array = numpy_helper.to_array(tensor)
    if array.shape != shape:
        raise ValueError(f"it has data of shape {array.shape}, but the shape {shape}")
    return array


def _dense(tensor: SparseTensorProto, onnx_code: Local) -> Any:
    onnx_code.check_sparse_tensor(tensor)
    shape = tuple(tensor.dims)
    values, places = _array(tensor.values), _array(tensor.indices)
    dense = np.zeros(shape, values.dtype)
    dense[np.unravel_index(places, shape) if places.ndim == 1 else tuple(places.T)] = values
    return dense
