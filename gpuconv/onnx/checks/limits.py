"""Range checks of attributes that onnx's native shape inference uses unchecked as index, length or divisor.

onnx's schemas do not give ranges of attributes, so the ranges here follow from the operators' definitions. There is one
for each attribute that the C++ code of some onnx version from 1.19 to 1.23 uses without a check of its own. Such uses
are indexing, allocation, loop counts and division. No valid model has values outside the ranges. :func:`check` refuses
them, also for attributes that take their value from the callers of a function.
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
    ("DepthToSpace", "blocksize"): (1, 2**15),  # extents are divided by the square of blocksize
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
_FIELDS: dict[int, str] = {  # field that holds the elements if raw_data does not; all other types use int32_data
    **dict.fromkeys((TensorProto.FLOAT, TensorProto.COMPLEX64), "float_data"),
    **dict.fromkeys((TensorProto.DOUBLE, TensorProto.COMPLEX128), "double_data"),
    **dict.fromkeys((TensorProto.UINT32, TensorProto.UINT64), "uint64_data"),
    TensorProto.INT64: "int64_data",
    TensorProto.STRING: "string_data",
}
_PACKED = 16  # most elements per entry of int32_data: sixteen 2-bit integers


@dataclass(frozen=True, slots=True)
class Values:
    """Intervals that contain an attribute's integers; several calls of a function may give it different values.

    Attributes
    ----------
    integer : (int, int)
        Least and largest value of the field ``i``; 0 if it is missing.
    integers : (int, int)
        Least and largest element of the field ``ints``; (0, 0) if it is empty.
    count : (int, int)
        Least and largest length of ``ints``.
    """

    integer: tuple[int, int]  # least and largest value of field i; 0 if it is missing
    integers: tuple[int, int]  # least and largest element of field ints; (0, 0) if it is empty
    count: tuple[int, int]  # least and largest length of ints

    @classmethod
    def of(cls, attribute: AttributeProto) -> Values:
        """Return the intervals for a single attribute."""
        listed, count = attribute.ints, len(attribute.ints)
        return cls((attribute.i,) * 2, (min(listed), max(listed)) if count else (0, 0), (count,) * 2)

    def __or__(self, other: Values) -> Values:
        return Values(
            _joined(self.integer, other.integer),
            _joined(self.integers, other.integers),
            _joined(self.count, other.count),
        )


def _joined(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest interval that contains two others."""
    return min(a[0], b[0]), max(a[1], b[1])


def check(node: NodeProto, attribute: AttributeProto, opset: int, given: Mapping[str, Values]) -> None:
    """Refuse an attribute whose integers are out of range, or whose tensors hold less data than their shape needs.

    Parameters
    ----------
    node : NodeProto
        With the default domain written as "".
    attribute : AttributeProto
        An attribute of the node. Only names in ``NAMES`` and types in ``TYPES`` need this check.
    opset : int
        Version of the default domain.
    given : dict of str to Values
        Possible values of the enclosing function's attributes, by name.

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
        _check_tensors(node, _sparse_components(attribute.sparse_tensor))


def _check_integers(node: NodeProto, name: str, values: Values) -> None:
    """Check axis attributes of every operator, and attributes for which this operator has a range."""
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
    """Check integers that state the number of inputs, outputs or extents."""
    problem = None
    if node.domain:
        return
    outputs = len(node.output)
    if (node.op_type, name) == ("Split", "num_outputs") and values.integer != (outputs, outputs):
        problem = f"{_differing(values.integer, outputs)}, but must be its number of outputs, {outputs}"
    elif (node.op_type, name) == ("MaxRoiPool", "pooled_shape") and values.count != (2, 2):
        problem = f"a list of {_differing(values.count, 2)}, but must be one of 2 integers"
    elif (node.op_type, name) == ("Scan", "num_scan_inputs"):
        inputs = len(node.input) - (opset < 9)  # before opset 9, the first input was sequence_lens
        least = max(1, inputs - outputs)  # inputs that are not scanned are states, each of which is also an output
        if not least <= values.integer[0] <= values.integer[1] <= inputs:
            number = values.integer[0] if values.integer[0] < least else values.integer[1]
            problem = f"{number}, but must be from {least} to {inputs}, as it has {len(node.input)} inputs"
    elif (node.op_type, name) == ("TfIdfVectorizer", "ngram_counts"):
        _check_range(node, name, values.integers, (0, _pool_length(node)))  # onnx's evaluator loops up to these counts
    if problem is not None:
        raise ArgumentError(f"{nodes.describe(node)}: its attribute {name} is {problem}")


def _pool_length(node: NodeProto) -> int:
    pools = [attribute for attribute in node.attribute if attribute.name in ("pool_int64s", "pool_strings")]
    if any(pool.ref_attr_name for pool in pools):
        return MOST_AXES  # the length depends on the callers of the function
    return max((len(pool.ints) or len(pool.strings) for pool in pools), default=0)


def _differing(bounds: tuple[int, int], wanted: int) -> int:
    """Return a bound that differs from the required value, for the message."""
    return bounds[0] if bounds[0] != wanted else bounds[1]


def _initializers(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for tensor in graph.sparse_initializer:
        yield from _sparse_components(tensor)


def _sparse_components(tensor: SparseTensorProto) -> tuple[TensorProto, TensorProto]:
    return tensor.values, tensor.indices


def _check_tensors(node: NodeProto, tensors: Iterable[TensorProto]) -> None:
    """Refuse tensors with less data than their shape needs; excess data is refused elsewhere."""
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
    """Return the possible values of each function's attributes: the defaults, joined with the values of all calls.

    Values are propagated through nested calls until nothing can change.

    Parameters
    ----------
    functions : sequence of FunctionProto
        Not recursive, and nested at most ``DEEPEST`` deep.
    bodies : sequence of sequences of NodeProto
        All nodes of the model's graph, then those of each function.

    Returns
    -------
    list of dict of str to Values
        One per body; the first one, for the model's graph, is empty.
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
    """Return the key under which a function and its calls match; "ai.onnx" and "" are the same domain."""
    return ("" if domain == "ai.onnx" else domain), name


def _add(values: dict[str, Values], name: str, more: Values) -> None:
    values[name] = values[name] | more if name in values else more
