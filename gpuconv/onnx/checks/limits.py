"""Numbers that onnx's native shape inference takes for indices, lengths and divisors, and the ranges that it survives.

No schema of onnx gives the range of an attribute. The ranges here follow from the operators' definitions: there is one
for each attribute with which the C++ of onnx 1.19 to 1.23 indexes, allocates, counts or divides without a check of its
own in one of these versions. What is outside of them no valid model has, so :func:`check` refuses it, also where a
node of a function refers to an attribute that its callers give.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, SparseTensorProto, TensorProto

from gpuconv._errors import ArgumentError
from gpuconv.onnx import nodes
from gpuconv.onnx.checks.structure import DEEPEST
from gpuconv.onnx.messages import quoted

MOST_AXES = 10_000
_LARGEST = 2**63 - 1
_AXES = frozenset(("axes", "axis", "batch_axis", "perm", "scan_input_axes", "scan_output_axes", "time_axis"))
_WINDOWS = (
    *("AveragePool", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "LpPool", "MaxPool", "MaxUnpool"),
    "QLinearConv",
)
_RANGES = {
    ("GatherND", "batch_dims"): (0, MOST_AXES),
    ("DepthToSpace", "blocksize"): (1, 2**15),  # extents are divided by its square
    ("SpaceToDepth", "blocksize"): (1, 2**15),
    ("Attention", "q_num_heads"): (1, _LARGEST),
    ("Attention", "kv_num_heads"): (1, _LARGEST),
    **{(kind, "strides"): (1, _LARGEST) for kind in _WINDOWS},
}
NAMES = _AXES | {name for _, name in _RANGES} | {"ngram_counts", "num_outputs", "num_scan_inputs", "pooled_shape"}
_TENSOR, _GRAPH, _SPARSE = AttributeProto.TENSOR, AttributeProto.GRAPH, AttributeProto.SPARSE_TENSOR
TYPES = frozenset((_TENSOR, _GRAPH, _SPARSE))
_BITS: dict[int, int] = {
    TensorProto.COMPLEX128: 128,
    **dict.fromkeys((TensorProto.DOUBLE, TensorProto.INT64, TensorProto.UINT64, TensorProto.COMPLEX64), 64),
    **dict.fromkeys((TensorProto.FLOAT, TensorProto.INT32, TensorProto.UINT32), 32),
    **dict.fromkeys((TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT16, TensorProto.UINT16), 16),
    **dict.fromkeys((TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL), 8),
}
_FIELDS: dict[int, str] = {  # which hold numbers that are not in raw_data; int32_data holds those of other types
    **dict.fromkeys((TensorProto.FLOAT, TensorProto.COMPLEX64), "float_data"),
    **dict.fromkeys((TensorProto.DOUBLE, TensorProto.COMPLEX128), "double_data"),
    **dict.fromkeys((TensorProto.UINT32, TensorProto.UINT64), "uint64_data"),
    TensorProto.INT64: "int64_data",
    TensorProto.STRING: "string_data",
}
_PACKED = 16  # elements that one entry of int32_data holds at most: those of 2 bits


@dataclass(frozen=True, slots=True)
class Values:
    """Bounds of the integers that an attribute has, or may have where several callers of a function give it."""

    integer: tuple[int, int]  # the least and the largest one of field i, 0 where it is missing
    integers: tuple[int, int]  # of field ints; (0, 0) for an empty list
    count: tuple[int, int]  # of these

    @classmethod
    def of(cls, attribute: AttributeProto) -> Values:
        """Return the bounds of one attribute."""
        listed, count = attribute.ints, len(attribute.ints)
        return cls((attribute.i,) * 2, (min(listed), max(listed)) if count else (0, 0), (count,) * 2)

    def __or__(self, other: Values) -> Values:
        return Values(
            _joined(self.integer, other.integer),
            _joined(self.integers, other.integers),
            _joined(self.count, other.count),
        )


def _joined(one: tuple[int, int], two: tuple[int, int]) -> tuple[int, int]:
    return min(one[0], two[0]), max(one[1], two[1])


def check(node: NodeProto, attribute: AttributeProto, opset: int, given: Mapping[str, Values]) -> None:
    """Refuse an attribute whose integers are out of range, or whose tensors have less data than their shape asks for.

    Parameters
    ----------
    node : NodeProto
        The default domain written as "".
    attribute : AttributeProto
        One of the node's. There is something to check only where its name is in ``NAMES``, or its type in ``TYPES``.
    opset : int
        Version of the default domain.
    given : dict of str to Values
        What the attributes of the function around the node may be, by name.

    Raises
    ------
    ArgumentError
        The message names the node, the attribute, the number and the range.
    """
    if attribute.name in NAMES:
        values = given.get(attribute.ref_attr_name) if attribute.ref_attr_name else Values.of(attribute)
        if values is not None:
            _check_integers(node, attribute.name, values)
            _check_counts(node, attribute.name, values, opset)
    if attribute.ref_attr_name:
        return
    if attribute.type == _TENSOR:
        _check_tensors(node, (attribute.t,))
    elif attribute.type == _GRAPH:
        _check_tensors(node, _initializers(attribute.g))
    elif attribute.type == _SPARSE:
        _check_tensors(node, _parts(attribute.sparse_tensor))


def _check_integers(node: NodeProto, name: str, values: Values) -> None:
    """Check those of every operator's axes, and those that this operator has a range for."""
    allowed = _RANGES.get((node.op_type, name)) if not node.domain else None
    if allowed is None and name in _AXES:
        _check_range(node, name, (*values.integer, *values.integers), (-MOST_AXES, MOST_AXES))
    elif allowed is not None and name != "strides":
        _check_range(node, name, values.integer, allowed)
    elif allowed is not None and values.count[1]:
        _check_range(node, name, values.integers, allowed)


def _check_range(node: NodeProto, name: str, numbers: Iterable[int], allowed: tuple[int, int]) -> None:
    least, most = allowed
    wrong = [number for number in numbers if not least <= number <= most]
    if wrong:
        bounds = f"{least} or more" if most == _LARGEST else f"from {least} to {most}"
        raise ArgumentError(f"{nodes.describe(node)}: its attribute {name} is {wrong[0]}, but must be {bounds}")


def _check_counts(node: NodeProto, name: str, values: Values, opset: int) -> None:
    """Check integers that say how many inputs, outputs or extents there are."""
    wanted = None
    if node.domain:
        return
    outputs = len(node.output)
    if (node.op_type, name) == ("Split", "num_outputs") and values.integer != (outputs, outputs):
        wanted = f"{_differing(values.integer, outputs)}, but must be its number of outputs, {outputs}"
    elif (node.op_type, name) == ("MaxRoiPool", "pooled_shape") and values.count != (2, 2):
        wanted = f"a list of {_differing(values.count, 2)}, but must be one of 2 integers"
    elif (node.op_type, name) == ("Scan", "num_scan_inputs"):
        inputs = len(node.input) - (opset < 9)  # the first one was sequence_lens
        least = max(1, inputs - outputs)  # what is not scanned is a state, which is an output too
        if not least <= values.integer[0] <= values.integer[1] <= inputs:
            number = values.integer[0] if values.integer[0] < least else values.integer[1]
            wanted = f"{number}, but must be from {least} to {inputs}, as it has {len(node.input)} inputs"
    elif (node.op_type, name) == ("TfIdfVectorizer", "ngram_counts"):
        _check_range(node, name, values.integers, (0, _pool_length(node)))  # onnx's evaluator counts to them
    if wanted is not None:
        raise ArgumentError(f"{nodes.describe(node)}: its attribute {name} is {wanted}")


def _pool_length(node: NodeProto) -> int:
    pools = [attribute for attribute in node.attribute if attribute.name in ("pool_int64s", "pool_strings")]
    if any(pool.ref_attr_name for pool in pools):
        return MOST_AXES  # as long as callers say
    return max((len(pool.ints) or len(pool.strings) for pool in pools), default=0)


def _differing(bounds: tuple[int, int], wanted: int) -> int:
    return bounds[0] if bounds[0] != wanted else bounds[1]


def _initializers(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for tensor in graph.sparse_initializer:
        yield from _parts(tensor)


def _parts(tensor: SparseTensorProto) -> tuple[TensorProto, TensorProto]:
    return tensor.values, tensor.indices


def _check_tensors(node: NodeProto, tensors: Iterable[TensorProto]) -> None:
    """Refuse tensors with too little data; those with too much are left to others."""
    for tensor in tensors:
        shape, raw, kind = tuple(tensor.dims), len(tensor.raw_data), tensor.data_type
        if shape and min(shape) < 0:
            raise ArgumentError(f"{nodes.describe(node)}: its tensor {quoted(tensor.name)} has the shape {shape}")
        count = math.prod(shape)
        needed = -(-count * _BITS.get(kind, 0) // 8) if raw else count if kind in _BITS else -(-count // _PACKED)
        stored = raw or len(getattr(tensor, _FIELDS.get(kind, "int32_data")))
        if stored < needed and tensor.data_location != TensorProto.EXTERNAL:
            what = f"its tensor {quoted(tensor.name)} of {count} elements"
            unit = "bytes" if raw else "numbers"
            raise ArgumentError(f"{nodes.describe(node)}: {what} has {stored} {unit} of data")


def given(functions: Sequence[FunctionProto], bodies: Sequence[Sequence[NodeProto]]) -> list[dict[str, Values]]:
    """Return what the attributes of each function may be: their defaults, and what all calls give.

    Parameters
    ----------
    functions : sequence of FunctionProto
        None may call itself, and calls are at most ``DEEPEST`` deep.
    bodies : sequence of sequences of NodeProto
        All nodes of the model's graph, then those of each function.

    Returns
    -------
    list of dict of str to Values
        One per body; that of the graph is empty.
    """
    keys = [None, *(_key(function.domain, function.name) for function in functions)]
    found: dict[object, dict[str, Values]] = defaultdict(dict)
    links = []
    for key, function in zip(keys[1:], functions, strict=True):
        for attribute in function.attribute_proto:
            _add(found[key], attribute.name, Values.of(attribute))
    for owner, body in zip(keys, bodies, strict=True):
        for node in body if functions else ():
            called = _key(node.domain, node.op_type)
            for attribute in node.attribute if called in keys else ():
                if attribute.ref_attr_name:
                    links.append((owner, attribute.ref_attr_name, called, attribute.name))
                else:
                    _add(found[called], attribute.name, Values.of(attribute))
    for _ in range(DEEPEST if links else 0):
        for owner, outer, called, name in links:
            if outer in found[owner]:
                _add(found[called], name, found[owner][outer])
    return [found[key] if key is not None else {} for key in keys]


def _key(domain: str, name: str) -> tuple[str, str]:
    return ("" if domain == "ai.onnx" else domain), name


def _add(values: dict[str, Values], name: str, more: Values) -> None:
    values[name] = values[name] | more if name in values else more
