"""Translation of ONNX nodes into calls of gpuconv's public functions.

:func:`keywords` checks a Conv, ConvTranspose or pooling node against its opset and returns the function's keywords;
:func:`call` computes it. All differences between opsets of these operators are recorded in this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, NodeProto

import gpuconv
from gpuconv._errors import ArgumentError, CaptureError, DeviceError, GpuconvError, one_line
from gpuconv.onnx.messages import quoted, reason
from gpuconv.rules import geometry, layout

_INT, _INTS, _STRING = AttributeProto.INT, AttributeProto.INTS, AttributeProto.STRING
_TYPE_NAMES = {number: name for name, number in AttributeProto.AttributeType.items()}


@dataclass(frozen=True, slots=True)
class _Operator:
    """Inputs, outputs, attributes and element types of one operator, with the opset that added each.

    Attributes
    ----------
    function : callable
        The public function that computes the operator.
    inputs : tuple of str
        Names of all inputs, required ones first.
    required_inputs : int
    outputs : dict of str to int
        Name of each output: first opset that has it.
    attributes : mapping of str to (int, int)
        Name: (AttributeProto type, first opset that has it).
    dtypes : dict of str to int
        NumPy's name of the element type of X: first opset. Types that the operator always had are not listed.
    """

    function: Callable[..., Any]
    inputs: tuple[str, ...]
    required_inputs: int
    outputs: dict[str, int]
    attributes: Mapping[str, tuple[int, int]]  # name: (AttributeProto type, opset)
    dtypes: dict[str, int]  # only types added after the operator's first version


_WINDOW = {"auto_pad": (_STRING, 1), "kernel_shape": (_INTS, 1), "pads": (_INTS, 1), "strides": (_INTS, 1)}
_CONV = {**_WINDOW, "dilations": (_INTS, 1), "group": (_INT, 1)}
_GRAPH = AttributeProto.GRAPH  # looked up once, because this is read for very many nodes
_OPERATORS = {
    "Conv": _Operator(gpuconv.conv, ("X", "W", "B"), 2, {"Y": 1}, _CONV, {"bfloat16": 22}),
    "ConvTranspose": _Operator(
        gpuconv.conv_transpose,
        ("X", "W", "B"),
        2,
        {"Y": 1},
        {**_CONV, "output_padding": (_INTS, 1), "output_shape": (_INTS, 1)},
        {"bfloat16": 22},
    ),
    "MaxPool": _Operator(
        gpuconv.max_pool,
        ("X",),
        1,
        {"Y": 1, "Indices": 8},
        {**_WINDOW, "storage_order": (_INT, 8), "ceil_mode": (_INT, 10), "dilations": (_INTS, 10)},
        {"int8": 12, "uint8": 12, "bfloat16": 22},
    ),
    "AveragePool": _Operator(
        gpuconv.average_pool,
        ("X",),
        1,
        {"Y": 1},
        {**_WINDOW, "count_include_pad": (_INT, 7), "ceil_mode": (_INT, 10), "dilations": (_INTS, 19)},
        {"bfloat16": 22},
    ),
    "GlobalAveragePool": _Operator(gpuconv.global_average_pool, ("X",), 1, {"Y": 1}, {}, {"bfloat16": 22}),
}


def supported(node: NodeProto) -> bool:
    """Return whether a node is Conv, ConvTranspose, MaxPool, AveragePool or GlobalAveragePool of the default domain.

    Examples
    --------
    >>> import onnx
    >>> supported(onnx.helper.make_node("Conv", ["x", "w"], ["y"]))
    True
    """
    return node.domain in ("", "ai.onnx") and node.op_type in _OPERATORS


def function_of(node: NodeProto) -> str:
    """Return the name of the public function that computes a node for which :func:`supported` returns True."""
    return _OPERATORS[node.op_type].function.__name__


def result_shape(node: NodeProto, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[int, ...]:
    """Return the output shape of a Conv or ConvTranspose node for these inputs; an error names the node."""
    name = function_of(node)
    shapes = [None if value is None else value.shape for value in inputs]
    try:
        shape: tuple[int, ...] = getattr(geometry, name)(*shapes, *[None] * (3 - len(shapes)), **keywords).y_shape
    except GpuconvError as error:
        raise renamed(node, error, name) from error
    return shape


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """Return the subgraphs of a node: the graph attributes of If, Loop or Scan."""
    return [attribute.g for attribute in node.attribute if attribute.type == _GRAPH]


def names_used(node: NodeProto) -> list[str]:
    """Return the names of a node's inputs and, for nodes with subgraphs, of all inputs of the nodes inside them."""
    names, stack = list(node.input), [node]
    while stack:
        for graph in subgraphs(stack.pop()):
            for inner in graph.node:
                names += inner.input
                if inner.attribute:
                    stack.append(inner)
    return names


def names_outside(graph: GraphProto) -> set[str]:
    """Return the names of outer values that a subgraph uses: used inside, but not defined there."""
    defined = {name for node in graph.node for name in node.output}
    defined.update(value.name for value in (*graph.input, *graph.initializer))
    defined.update(tensor.values.name for tensor in graph.sparse_initializer)
    used = {name for node in graph.node for name in names_used(node)}
    return used - defined - {""}


def describe(node: NodeProto) -> str:
    """Return how messages refer to a node: operator and name, or operator and first output if the node has no name.

    Examples
    --------
    >>> import onnx
    >>> describe(onnx.helper.make_node("Conv", ["x", "w"], ["y"]))
    "Conv node with output 'y'"
    """
    op_type = one_line(str(node.op_type), 80)
    if node.name:
        return f"{op_type} node {quoted(node.name)}"
    return f"{op_type} node with output {quoted(next(filter(None, node.output), ''))}"


def renamed(node: NodeProto, error: GpuconvError, function: str) -> GpuconvError:
    """Return a copy of an error whose message names the node instead of the function, without the advice on layouts.

    A CaptureError is returned unchanged: :func:`not_captured` builds its message.
    """
    # its message describes the function, which does not help the reader of a node's error
    if isinstance(error, CaptureError):
        return error
    message, _, _ = str(error).removeprefix(f"{function}: ").partition(layout.ADVICE)
    return type(error)(f"{describe(node)}: {message}")


def failed(node: NodeProto, error: BaseException, who: str = "") -> GpuconvError:
    """Return a GpuconvError that names the node and quotes an exception that was raised while computing it."""
    return GpuconvError(f"{describe(node)}: {who}{type(error).__name__}: {reason(error)}")


def not_captured(node: NodeProto, error: CaptureError) -> DeviceError:
    """Return a DeviceError that names the node which prevents the capture of a CUDA graph, and the reason."""
    return DeviceError(f"{describe(node)} {error.does}, which a CUDA graph cannot repeat")


def check_opset(opset: int) -> None:
    """Refuse an opset of the default domain that the installed onnx does not know.

    Raises
    ------
    ArgumentError
        The opset is less than 1, or newer than the newest one of the installed onnx.
    """
    newest = onnx.defs.onnx_opset_version()
    if opset < 1:
        raise ArgumentError(f"the model imports opset {opset} of the default domain, but the oldest one is 1")
    if opset > newest:
        raise ArgumentError(
            f"the model imports opset {opset} of the default domain, but the installed onnx {onnx.__version__} "
            f"knows opsets up to {newest}; update onnx"
        )


def keywords(node: NodeProto, opset: int) -> dict[str, Any]:
    """Translate a node's attributes and outputs into keywords of the public function.

    Parameters
    ----------
    node : onnx.NodeProto
        One for which :func:`supported` returns True. Attributes that refer to those of a function (``ref_attr_name``)
        are checked but left out: their values are known only when the function is called.
    opset : int
        Version of the default domain that the model (or function) imports.

    Returns
    -------
    dict
        Keywords of the public function; for max_pool, ``return_indices`` is always among them.

    Raises
    ------
    ArgumentError
        The node has a feature that its opset lacks, an unknown, repeated or mistyped attribute, no kernel_shape
        (MaxPool, AveragePool), or a wrong number of inputs or outputs. The message names the node.

    Examples
    --------
    >>> import onnx
    >>> node = onnx.helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2])
    >>> keywords(node, 12)
    {'kernel_shape': [2, 2], 'return_indices': False}
    """
    check_opset(opset)
    _check_inputs(node)
    _check_outputs(node, opset)
    result: dict[str, Any] = {}
    seen: set[str] = set()
    for attribute in node.attribute:
        _check_attribute(node, attribute, opset, seen)
        seen.add(attribute.name)
        if not attribute.ref_attr_name:
            result[attribute.name] = _value(node, attribute)
    if node.op_type in ("MaxPool", "AveragePool") and "kernel_shape" not in seen:
        raise ArgumentError(f"{describe(node)}: attribute kernel_shape is required, one integer per spatial axis")
    if node.op_type == "MaxPool":
        result["return_indices"] = len(node.output) > 1 and node.output[1] != ""
    return result


def check_linked(node: NodeProto, linked: Mapping[str, Any]) -> None:
    """Refuse a single integer for a list-of-integers attribute whose value comes from the enclosing function.

    Raises
    ------
    ArgumentError
        One integer for all axes is allowed in Python calls, but not in ONNX nodes.
    """
    for attribute in node.attribute:
        if attribute.type == _INTS and isinstance(linked.get(attribute.name), int):
            raise _mistyped(node, attribute.name, _INTS, _INT)


def check_dtype(node: NodeProto, opset: int, dtype: str) -> None:
    """Refuse an element type that the operator accepts only in later opsets.

    ``dtype`` is NumPy's name. Types that no opset accepts are left for the public functions to refuse.

    Raises
    ------
    ArgumentError
        The message names the node, the type, the opset it needs, and the model's opset.
    """
    _require(node, f"X of type {dtype}", _OPERATORS[node.op_type].dtypes.get(dtype, 1), opset)


def call(node: NodeProto, opset: int, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
    """Compute a node on NumPy or CuPy arrays.

    Parameters
    ----------
    node : onnx.NodeProto
        One that :func:`keywords` accepted.
    opset : int
        Version of the default domain; it decides which element types are allowed.
    inputs : tuple of arrays
        One per input of the node; None for an absent optional one.
    keywords : dict
        As :func:`keywords` returned them, completed with the values of attributes that refer to a function's.

    Returns
    -------
    tuple of arrays
        One per output; MaxPool's Indices only if the node has that output.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError
        As the public functions raise them; the message names the node.
    """
    operator = _OPERATORS[node.op_type]
    for name, value in zip(operator.inputs[: operator.required_inputs], inputs, strict=False):
        if value is None:
            raise ArgumentError(f"{describe(node)}: input {name} is required, but was not given")
    check_dtype(node, opset, str(getattr(inputs[0], "dtype", "")))
    try:
        result = operator.function(*inputs, **keywords)
    except GpuconvError as error:
        raise renamed(node, error, operator.function.__name__) from error
    return result if isinstance(result, tuple) else (result,)


def _require(node: NodeProto, feature: str, needed: int, opset: int) -> None:
    """Raise ArgumentError if a feature needs a later opset than the model imports."""
    if opset < needed:
        raise ArgumentError(
            f"{describe(node)}: {feature} needs opset {needed}, but the model imports opset {opset}; "
            f"convert the model to opset {needed} or later"
        )


def _check_inputs(node: NodeProto) -> None:
    """Raise ArgumentError if a node has the wrong number of inputs, or a required one is omitted."""
    operator = _OPERATORS[node.op_type]
    low, high, count = operator.required_inputs, len(operator.inputs), len(node.input)
    if not low <= count <= high:
        wanted = f"{low} to {high} inputs" if low < high else f"{low} input"
        raise ArgumentError(f"{describe(node)}: must have {wanted} ({', '.join(operator.inputs)}), not {count}")
    for name, value in zip(operator.inputs[:low], node.input, strict=False):
        if not value:
            raise ArgumentError(f"{describe(node)}: input {name} is required and cannot be left out")


def _check_outputs(node: NodeProto, opset: int) -> None:
    """Raise ArgumentError if a node has the wrong number of outputs, or one that its opset lacks."""
    outputs = _OPERATORS[node.op_type].outputs
    if not 1 <= len(node.output) <= len(outputs):
        raise ArgumentError(
            f"{describe(node)}: has {len(node.output)} outputs, but {node.op_type} gives {', '.join(outputs)} only"
        )
    for (name, since), value in zip(outputs.items(), node.output, strict=False):
        if value:
            _require(node, f"the output {name}", since, opset)


def _check_attribute(node: NodeProto, attribute: AttributeProto, opset: int, seen: set[str]) -> None:
    """Raise ArgumentError if an attribute is unknown, repeated, of the wrong type, or missing in the opset."""
    name, known = attribute.name, _OPERATORS[node.op_type].attributes
    if name not in known:
        raise ArgumentError(
            f"{describe(node)}: {quoted(name)} is no attribute of {node.op_type}, which has "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    expected, since = known[name]
    _require(node, f"the attribute {name}", since, opset)
    if attribute.type != expected:
        raise _mistyped(node, name, expected, attribute.type)
    if name in seen:
        raise ArgumentError(f"{describe(node)}: attribute {name} is given twice; keep one of them")


def _mistyped(node: NodeProto, name: str, expected: int, given: int) -> ArgumentError:
    return ArgumentError(
        f"{describe(node)}: attribute {name} must be of type {_TYPE_NAMES[expected]}, "
        f"not {_TYPE_NAMES.get(given, given)}"
    )


def _value(node: NodeProto, attribute: AttributeProto) -> Any:
    """Return the value of an INT, INTS or STRING attribute; a string that is not UTF-8 is an ArgumentError."""
    if attribute.type == _INT:
        return attribute.i
    if attribute.type == _INTS:
        return list(attribute.ints)
    try:
        return attribute.s.decode()
    except UnicodeDecodeError:
        raise ArgumentError(
            f"{describe(node)}: attribute {attribute.name} must be text, not {quoted(attribute.s)}"
        ) from None
