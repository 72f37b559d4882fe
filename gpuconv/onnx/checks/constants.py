"""Initializers of a graph as arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, SparseTensorProto, TensorProto, numpy_helper

from gpuconv._errors import ArgumentError
from gpuconv.onnx.messages import quoted, reason, warn

MOST_SPARSE = 2**26  # elements of all sparse initializers, most of which no file has to hold
_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")


def read(graph: GraphProto, name: str) -> dict[str, Any]:
    """Return the initializers of a graph, sparse ones with their zeros, by name.

    Parameters
    ----------
    graph : GraphProto
        With all data inside.
    name : str
        What messages call the model.

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
            found[label] = _dense(tensor) if sparse else _array(tensor)
        except MemoryError:
            raise
        except Exception as error:  # whatever onnx and NumPy raise for data that does not fit
            raise ArgumentError(f"{name} is not valid: the initializer {quoted(label)}: {reason(error)}") from error
    return found


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


def _dense(tensor: SparseTensorProto) -> Any:
    onnx.checker.check_sparse_tensor(tensor)
    shape = tuple(tensor.dims)
    values, places = _array(tensor.values), _array(tensor.indices)
    dense = np.zeros(shape, values.dtype)
    dense[np.unravel_index(places, shape) if places.ndim == 1 else tuple(places.T)] = values
    return dense
