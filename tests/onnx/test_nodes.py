"""Nodes and opsets: the attributes of nodes at each opset, and their translation."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import AttributeProto, NodeProto, helper

import gpuconv
from gpuconv.onnx import nodes
from tests.onnx.models import NEWEST

OPERATORS = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool")
ATTRIBUTES: dict[str, Any] = {
    "auto_pad": "SAME_UPPER", "ceil_mode": 1, "count_include_pad": 1, "dilations": [1, 2], "group": 2,
    "kernel_shape": [3, 2], "output_padding": [0, 1], "output_shape": [5, 6], "pads": [0, 1, 2, 3], "storage_order": 1,
    "strides": [2, 1],
}  # fmt: skip
DTYPES = {
    "float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16, "float32": onnx.TensorProto.FLOAT,
    "float64": onnx.TensorProto.DOUBLE, "int8": onnx.TensorProto.INT8, "uint8": onnx.TensorProto.UINT8,
}  # fmt: skip


def node_of(op_type: str, **attributes: Any) -> NodeProto:
    if op_type == "GlobalAveragePool":
        return helper.make_node(op_type, ["x"], ["y"], **attributes)
    if "Pool" in op_type:
        return helper.make_node(op_type, ["x"], ["y"], **{"kernel_shape": [2, 2], **attributes})
    return helper.make_node(op_type, ["x", "w"], ["y"], **attributes)


def accepts(node: NodeProto, opset: int) -> bool:
    try:
        nodes.keywords(node, opset)
    except gpuconv.ArgumentError:
        return False
    return True


def accepts_dtype(node: NodeProto, opset: int, dtype: str) -> bool:
    try:
        nodes.check_dtype(node, opset, dtype)
    except gpuconv.ArgumentError:
        return False
    return True


# --- agreement with the schemas of every opset ---------------------------------------------------------------------


@pytest.mark.parametrize("op_type", OPERATORS)
def test_attributes_are_those_of_the_schema_at_every_opset(op_type: str) -> None:
    for opset in range(1, NEWEST + 1):
        schema = onnx.defs.get_schema(op_type, opset)
        accepted = {name for name, given in ATTRIBUTES.items() if accepts(node_of(op_type, **{name: given}), opset)}
        assert accepted == set(schema.attributes), f"{op_type} at opset {opset}"


@pytest.mark.parametrize("op_type", OPERATORS)
def test_attribute_types_are_those_of_the_schema(op_type: str) -> None:
    for name, attribute in onnx.defs.get_schema(op_type, NEWEST).attributes.items():
        assert helper.make_attribute(name, ATTRIBUTES[name]).type == attribute.type.value


@pytest.mark.parametrize("op_type", OPERATORS)
def test_outputs_are_those_of_the_schema_at_every_opset(op_type: str) -> None:
    for opset in range(1, NEWEST + 1):
        count = 0
        for outputs in (["y"], ["y", "i"], ["y", "i", "z"]):
            node = node_of(op_type)
            node.output[:] = outputs
            count += accepts(node, opset)
        assert count == onnx.defs.get_schema(op_type, opset).max_output, f"{op_type} at opset {opset}"


@pytest.mark.parametrize("op_type", OPERATORS)
def test_later_dtypes_are_those_of_the_schema_at_every_opset(op_type: str) -> None:
    newest = _dtypes_of_schema(op_type, NEWEST)
    for opset in range(1, NEWEST + 1):
        accepted = {dtype for dtype in newest if accepts_dtype(node_of(op_type), opset, dtype)}
        assert accepted == _dtypes_of_schema(op_type, opset), f"{op_type} at opset {opset}"


def _dtypes_of_schema(op_type: str, opset: int) -> set[str]:
    constraint = next(c for c in onnx.defs.get_schema(op_type, opset).type_constraints if c.type_param_str == "T")
    names = {onnx.helper.tensor_dtype_to_string(number): dtype for dtype, number in DTYPES.items()}
    short = {name.removeprefix("TensorProto.").lower(): dtype for name, dtype in names.items()}
    return {short[text.removeprefix("tensor(").removesuffix(")")] for text in constraint.allowed_type_strs}


# --- messages of refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attribute", "since"), [({"count_include_pad": 0}, 7), ({"ceil_mode": 0}, 10), ({"dilations": [1, 1]}, 19)]
)
def test_average_pool_features_need_their_opset(attribute: dict[str, Any], since: int) -> None:
    node = helper.make_node("AveragePool", ["x"], ["y"], name="a1", kernel_shape=[2, 2], **attribute)
    nodes.keywords(node, since)
    with pytest.raises(gpuconv.ArgumentError) as caught:
        nodes.keywords(node, since - 1)
    assert str(caught.value) == (
        f"AveragePool node 'a1': the attribute {next(iter(attribute))} needs opset {since}, but the model imports "
        f"opset {since - 1}; convert the model to opset {since} or later"
    )


@pytest.mark.parametrize(
    ("attributes", "outputs", "since", "feature"),
    [
        ({}, ["y", "i"], 8, "the output Indices"),
        ({"storage_order": 0}, ["y"], 8, "the attribute storage_order"),
        ({"ceil_mode": 0}, ["y"], 10, "the attribute ceil_mode"),
        ({"dilations": [1, 1]}, ["y"], 10, "the attribute dilations"),
    ],
)
def test_max_pool_features_need_their_opset(attributes: Any, outputs: Any, since: int, feature: str) -> None:
    node = helper.make_node("MaxPool", ["x"], outputs, name="p1", kernel_shape=[2, 2], **attributes)
    nodes.keywords(node, since)
    with pytest.raises(gpuconv.ArgumentError) as caught:
        nodes.keywords(node, since - 1)
    assert str(caught.value) == (
        f"MaxPool node 'p1': {feature} needs opset {since}, but the model imports opset {since - 1}; "
        f"convert the model to opset {since} or later"
    )


@pytest.mark.parametrize(
    ("op_type", "dtype", "since"),
    [("MaxPool", "int8", 12), ("MaxPool", "uint8", 12), *((op_type, "bfloat16", 22) for op_type in OPERATORS)],
)
def test_dtypes_need_their_opset(op_type: str, dtype: str, since: int) -> None:
    nodes.check_dtype(node_of(op_type), since, dtype)
    with pytest.raises(
        gpuconv.ArgumentError, match=rf"{op_type} node with output 'y': X of type {dtype} needs opset {since}, "
    ):
        nodes.check_dtype(node_of(op_type), since - 1, dtype)


@pytest.mark.parametrize("op_type", OPERATORS)
def test_an_unknown_attribute_is_named_with_the_known_ones(op_type: str) -> None:
    known = "none" if op_type == "GlobalAveragePool" else "auto_pad, .*strides"
    with pytest.raises(gpuconv.ArgumentError, match=f"'stride' is no attribute of {op_type}, which has {known}$"):
        nodes.keywords(node_of(op_type, stride=[1, 1]), NEWEST)


def test_attributes_of_the_other_operators_are_refused() -> None:
    for op_type, foreign in (("Conv", "output_shape"), ("MaxPool", "group"), ("ConvTranspose", "ceil_mode")):
        with pytest.raises(gpuconv.ArgumentError, match=f"'{foreign}' is no attribute of {op_type}"):
            nodes.keywords(node_of(op_type, **{foreign: ATTRIBUTES[foreign]}), NEWEST)


@pytest.mark.parametrize("op_type", OPERATORS)
def test_every_attribute_refuses_every_other_type(op_type: str) -> None:
    values = {"FLOAT": 1.0, "FLOATS": [1.0], "INT": 1, "INTS": [1], "STRING": "a", "STRINGS": ["a"]}
    for name, attribute in onnx.defs.get_schema(op_type, NEWEST).attributes.items():
        expected = AttributeProto.AttributeType.Name(attribute.type.value)
        for kind, given in values.items():
            if kind != expected:
                with pytest.raises(
                    gpuconv.ArgumentError, match=f"attribute {name} must be of type {expected}, not {kind}"
                ):
                    nodes.keywords(node_of(op_type, **{name: given}), NEWEST)


def test_a_repeated_attribute_is_refused() -> None:
    node = node_of("Conv", strides=[1, 1])
    node.attribute.append(helper.make_attribute("strides", [2, 2]))
    with pytest.raises(gpuconv.ArgumentError, match="attribute strides is given twice"):
        nodes.keywords(node, NEWEST)


def test_text_that_is_no_text_is_refused() -> None:
    with pytest.raises(gpuconv.ArgumentError, match=r"attribute auto_pad must be text, not b'\\xff'"):
        nodes.keywords(node_of("Conv", auto_pad=b"\xff"), NEWEST)


def test_max_pool_needs_a_kernel_shape() -> None:
    with pytest.raises(gpuconv.ArgumentError, match="MaxPool node with output 'y': attribute kernel_shape is required"):
        nodes.keywords(helper.make_node("MaxPool", ["x"], ["y"]), NEWEST)


@pytest.mark.parametrize(
    ("op_type", "inputs", "message"),
    [
        ("Conv", ["x"], r"must have 2 to 3 inputs \(X, W, B\), not 1"),
        ("Conv", ["x", "w", "b", "z"], r"must have 2 to 3 inputs \(X, W, B\), not 4"),
        ("Conv", ["x", ""], "input W is required"),
        ("ConvTranspose", ["", "w"], "input X is required"),
        ("MaxPool", [], r"must have 1 input \(X\), not 0"),
        ("MaxPool", ["x", "z"], r"must have 1 input \(X\), not 2"),
        ("MaxPool", [""], "input X is required"),
    ],
)
def test_the_number_of_inputs(op_type: str, inputs: list[str], message: str) -> None:
    with pytest.raises(gpuconv.ArgumentError, match=f"{op_type} node 'n': {message}"):
        nodes.keywords(helper.make_node(op_type, inputs, ["y"], name="n"), NEWEST)


@pytest.mark.parametrize(("op_type", "outputs"), [("Conv", []), ("Conv", ["y", "z"]), ("MaxPool", ["y", "i", "z"])])
def test_the_number_of_outputs(op_type: str, outputs: list[str]) -> None:
    node = node_of(op_type)
    node.output[:] = outputs
    with pytest.raises(gpuconv.ArgumentError, match=f"has {len(outputs)} outputs, but {op_type} gives Y"):
        nodes.keywords(node, NEWEST)


def test_opsets_outside_the_known_ones_are_refused() -> None:
    with pytest.raises(gpuconv.ArgumentError, match="imports opset 0 of the default domain, but the oldest one is 1"):
        nodes.keywords(node_of("Conv"), 0)
    with pytest.raises(gpuconv.ArgumentError, match=rf"opset {NEWEST + 1} .*knows opsets up to {NEWEST}; update onnx"):
        nodes.keywords(node_of("Conv"), NEWEST + 1)


# --- the translation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_type", OPERATORS)
def test_every_attribute_is_handed_on(op_type: str) -> None:
    given = {name: ATTRIBUTES[name] for name in onnx.defs.get_schema(op_type, NEWEST).attributes}
    expected = {**given, "return_indices": False} if op_type == "MaxPool" else given
    assert nodes.keywords(node_of(op_type, **given), NEWEST) == expected


def test_absent_attributes_are_left_to_the_function() -> None:
    assert nodes.keywords(node_of("Conv"), 1) == {}
    assert nodes.keywords(node_of("ConvTranspose"), 1) == {}


@pytest.mark.parametrize(("outputs", "asked"), [(["y"], False), (["y", ""], False), (["y", "i"], True)])
def test_indices_are_asked_for_by_the_second_output(outputs: list[str], asked: bool) -> None:
    node = helper.make_node("MaxPool", ["x"], outputs, kernel_shape=[2])
    assert nodes.keywords(node, 8)["return_indices"] is asked


def test_an_unused_indices_output_is_no_use_of_indices() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y", ""], kernel_shape=[2])
    assert nodes.keywords(node, 1)["return_indices"] is False


def test_supported_nodes() -> None:
    assert all(nodes.supported(node_of(op_type)) for op_type in OPERATORS)
    assert nodes.supported(helper.make_node("Conv", ["x", "w"], ["y"], domain="ai.onnx"))
    assert not nodes.supported(helper.make_node("Conv", ["x", "w"], ["y"], domain="com.example"))
    assert not nodes.supported(helper.make_node("Relu", ["x"], ["y"]))
