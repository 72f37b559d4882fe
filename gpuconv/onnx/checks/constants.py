"""Conversion of initializers, dense and sparse, and of large Constant nodes into arrays.

Arrays are kept outside of the protobuf model from then on, so that copies of the model stay small.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, SparseTensorProto, TensorProto, numpy_helper

from gpuconv._errors import ArgumentError, GpuconvError
from gpuconv.onnx.checks.native import Local
from gpuconv.onnx.messages import quoted, reason, warn

# elements of all sparse initializers together; a tiny file could otherwise demand any amount of memory
MOST_SPARSE = 2**26
_LARGE = 256  # elements; smaller Constants stay in the model, because copying them costs less than extracting them
_FLOAT = np.dtype(np.float32).itemsize
WITH_GRAPHS = frozenset(("If", "Loop", "Scan", "SequenceMap"))  # operators with graph attributes
_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")


def read(graph: GraphProto, name: str, onnx_code: Local) -> dict[str, Any]:
    """Return the initializers of a graph as arrays by name; sparse ones are converted to dense arrays.

    Parameters
    ----------
    graph : GraphProto
        With all tensor data inside.
    name : str
        How messages refer to the model.
    onnx_code : Local
        Checks sparse tensors.

    Raises
    ------
    ArgumentError
        An initializer's data does not fit its type and shape, its name is used twice, or sparse ones are too large.
    """
    arrays: dict[str, Any] = {}
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
        if label in arrays:
            raise ArgumentError(
                f"{name} is not valid: the initializer {quoted(label)} is there twice; keep one of them"
            )
        try:
            arrays[label] = _dense(tensor, onnx_code) if sparse else _array(tensor)
        except (MemoryError, GpuconvError):
            raise
        except Exception as error:  # the various errors that onnx and NumPy raise for inconsistent data
            raise ArgumentError(f"{name} is not valid: the initializer {quoted(label)}: {reason(error)}") from error
    return arrays


def of_nodes(graph: GraphProto) -> dict[str, Any]:
    """Return the tensors of large Constant nodes by output name, where extracting them is certainly safe.

    Only float32 tensors in raw_data qualify. Extraction keeps them out of every copy of the model. If the graph has
    subgraphs or nodes of other domains, none is extracted: names inside these may hide those of the graph.
    """
    arrays: dict[str, Any] = {}
    if any(node.domain not in ("", "ai.onnx") or node.op_type in WITH_GRAPHS for node in graph.node):
        return arrays
    for node in graph.node:
        array = _large(node) if node.op_type == "Constant" else None
        if array is not None:
            arrays[node.output[0]] = array
    if not arrays:
        return arrays
    names = Counter(name for node in graph.node for name in node.output)
    names.update(value.name for value in (*graph.input, *graph.output, *graph.initializer))
    names.update(tensor.values.name for tensor in graph.sparse_initializer)
    return {name: array for name, array in arrays.items() if name and names[name] == 1}


def _large(node: NodeProto) -> Any:
    """Return the tensor of a Constant node as an array if it is large, valid and float32; None otherwise."""
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
    """Return a dense tensor as an array; raise ValueError if its data contradicts its shape or is stored twice."""
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
    """Return a sparse tensor as a dense array, after onnx's check of its indices."""
    onnx_code.check_sparse_tensor(tensor)
    shape = tuple(tensor.dims)
    values, places = _array(tensor.values), _array(tensor.indices)
    dense = np.zeros(shape, values.dtype)
    dense[np.unravel_index(places, shape) if places.ndim == 1 else tuple(places.T)] = values
    return dense
