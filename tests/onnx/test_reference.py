"""The operators in onnx's own reference evaluator, at every opset."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import AttributeProto, helper
from onnx.reference import ReferenceEvaluator

import gpuconv
from gpuconv.onnx import OPS, nodes
from tests.onnx.models import NEWEST, floats, model, pool, value

OPSETS = sorted({1, 6, 7, 8, 9, 10, 11, 12, 13, 21, 22, NEWEST})


def evaluate(proto: onnx.ModelProto, **feeds: Any) -> list[Any]:
    return list(ReferenceEvaluator(proto, new_ops=OPS).run(None, feeds))


def operator_model(op_type: str, opset: int, inputs: list[str]) -> onnx.ModelProto:
    node = helper.make_node(op_type, inputs, ["y"], group=2, strides=[2, 1], pads=[1, 0, 0, 1])
    return model([node], [value(name, shape=4) for name in inputs if name], ["y"], opset)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(("op_type", "w_shape"), [("Conv", (6, 2, 3, 2)), ("ConvTranspose", (4, 3, 3, 2))])
def test_convolutions_at_every_opset(op_type: str, w_shape: tuple[int, ...], opset: int) -> None:
    function = gpuconv.conv if op_type == "Conv" else gpuconv.conv_transpose
    x, w, b = floats(2, 4, 6, 5), floats(*w_shape, seed=1), floats(6, seed=2)
    attributes: dict[str, Any] = {"group": 2, "strides": [2, 1], "pads": [1, 0, 0, 1]}
    (y,) = evaluate(operator_model(op_type, opset, ["x", "w", "b"]), x=x, w=w, b=b)
    np.testing.assert_array_equal(y, function(x, w, b, **attributes))
    for inputs in (["x", "w", ""], ["x", "w"]):
        (y,) = evaluate(operator_model(op_type, opset, inputs), x=x, w=w)
        np.testing.assert_array_equal(y, function(x, w, **attributes))


@pytest.mark.parametrize("opset", OPSETS)
def test_max_pool_at_every_opset(opset: int, computed_indices: list[bool]) -> None:
    x = floats(2, 3, 9)
    (y,) = evaluate(pool(opset, strides=[2]), x=x)
    assert computed_indices == [False]
    np.testing.assert_array_equal(y, gpuconv.max_pool(x, kernel_shape=[2], strides=[2]))
    if opset >= 8:
        later = {"ceil_mode": 1, "dilations": [2]} if opset >= 10 else {}
        got = evaluate(pool(opset, outputs=["y", "i"], storage_order=1, **later), x=x)
        expected = gpuconv.max_pool(x, kernel_shape=[2], storage_order=1, return_indices=True, **later)
        assert computed_indices[2:] == [True, True]
        for actual, wanted in zip(got, expected, strict=True):
            assert actual.dtype == wanted.dtype
            np.testing.assert_array_equal(actual, wanted)


@pytest.fixture
def computed_indices(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record for each MaxPool whether it computed Indices."""
    calls: list[bool] = []
    compute = gpuconv.cpu.max_pool

    def spy(x: Any, y: Any, indices: Any, geometry: Any, **options: Any) -> None:
        calls.append(indices is not None)
        compute(x, y, indices, geometry, **options)

    monkeypatch.setattr(gpuconv.cpu, "max_pool", spy)
    return calls


@pytest.mark.parametrize(("dtype", "since"), [(np.int8, 12), (np.uint8, 12), (ml_dtypes.bfloat16, 22)])
def test_the_evaluator_refuses_dtypes_before_their_opset(dtype: Any, since: int) -> None:
    x = np.arange(6).reshape(1, 1, 6).astype(dtype)
    (y,) = evaluate(pool(since, dtype), x=x)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.astype(np.int64), [[[1, 2, 3, 4, 5]]])
    with pytest.raises(gpuconv.ArgumentError, match=f"needs opset {since}, but the model imports opset {since - 1}"):
        evaluate(pool(since - 1, dtype), x=x)


def test_the_evaluator_refuses_features_when_the_model_is_loaded() -> None:
    with pytest.raises(gpuconv.ArgumentError, match="MaxPool node 'pool': the output Indices needs opset 8"):
        ReferenceEvaluator(pool(7, outputs=["y", "i"]), new_ops=OPS)
    with pytest.raises(gpuconv.ArgumentError, match="attribute kernel_shape is required"):
        ReferenceEvaluator(helper.make_node("MaxPool", ["x"], ["y"]), new_ops=OPS)


def test_errors_of_the_functions_name_the_node() -> None:
    proto = model([helper.make_node("Conv", ["x", "w"], ["y"], name="c7")], ["x", "w"], ["y"])
    with pytest.raises(gpuconv.ArgumentError, match=r"^Conv node 'c7': x has 3 channels, but w expects 2 per group"):
        evaluate(proto, x=floats(1, 3, 4), w=floats(1, 2, 2))
    with pytest.raises(gpuconv.ArgumentError, match=r"w\.shape=\(1, 2, 2\)\)$"):  # models cannot specify a layout
        evaluate(proto, x=floats(1, 3, 2), w=floats(1, 2, 2))
    with pytest.raises(gpuconv.ArgumentTypeError, match=r"^Conv node 'c7': w has dtype float64, but x has float32"):
        evaluate(proto, x=floats(1, 2, 4), w=floats(1, 2, 2, dtype=np.float64))


def test_a_missing_required_input_is_named() -> None:
    with pytest.raises(gpuconv.ArgumentError, match="node with output 'y': input W is required, but was not given"):
        nodes.call(helper.make_node("Conv", ["x", "w"], ["y"]), NEWEST, (floats(1, 1, 2), None), {})


def test_attributes_may_refer_to_those_of_a_function() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"])
    node.attribute.add(name="kernel_shape", type=AttributeProto.INTS, ref_attr_name="size")
    function = helper.make_function("local", "Pool", ["x"], ["y"], [node], [helper.make_opsetid("", 12)], ["size"])
    inner = ReferenceEvaluator(function, new_ops=OPS)
    proto = model("y = local.Pool <size = [3]> (x)", ["x"], ["y"], domains=["local"])
    x = floats(1, 2, 7)
    (y,) = ReferenceEvaluator(proto.graph, opsets={"": 12, "local": 1}, functions=[inner], new_ops=OPS).run(
        None, {"x": x}
    )
    np.testing.assert_array_equal(y, gpuconv.max_pool(x, kernel_shape=[3]))
    with pytest.raises(gpuconv.ArgumentError, match=r"^MaxPool node .*: attribute kernel_shape must be of type INTS"):
        inner.run(None, {"x": x}, attributes={"size": 3})
    assert nodes.keywords(node, 12) == {"return_indices": False}


@pytest.mark.parametrize("opset", [9, 11, 22, NEWEST])
@pytest.mark.parametrize("given", [None, [1, 1, 5, 5]])
def test_max_unpool_at_every_opset(opset: int, given: list[int] | None) -> None:
    """The numbers of ONNX's node test without output_shape; with it, zeros are added at the end, as in gpuconv."""
    x, indices = np.array([[[[1, 2], [3, 4]]]], np.float32), np.array([[[[5, 7], [13, 15]]]], np.int64)
    wanted = np.zeros((1, 1, *(given or [1, 1, 4, 4])[2:]), np.float32)
    wanted[0, 0, 1, [1, 3]], wanted[0, 0, 3, [1, 3]] = (1, 2), (3, 4)
    shape = ", shape" if given else ""
    text = f"y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, indices{shape})"
    inputs = [value("x", shape=4), value("indices", np.int64, 4), value("shape", np.int64, 1)][: 3 if given else 2]
    proto = model(text, inputs, [value("y", shape=4)], opset)
    feeds = {"x": x, "indices": indices} | ({"shape": np.array(given, np.int64)} if given else {})
    np.testing.assert_array_equal(evaluate(proto, **feeds)[0], wanted)


def test_max_unpool_takes_the_numbers_of_any_elements_as_onnx_does() -> None:
    """ONNX asks that they are numbers of elements, not that a MaxPool with the node's attributes has returned them."""
    nodes = "y = MaxUnpool <kernel_shape = [2], strides = [2]> (x, indices)"
    proto = model(nodes, ["x", value("indices", np.int64)], ["y"], 22)
    x = np.array([[[1, 2], [3, 4]]], np.float32)
    (y,) = evaluate(proto, x=x, indices=np.array([[[7, 2], [0, -1]]]))
    np.testing.assert_array_equal(y, np.float32([[[3, 0, 2, 0], [0, 0, 0, 1]]]))
    for wrong in (8, -2):
        with pytest.raises(gpuconv.ArgumentError, match=rf"indices hold {wrong} at \(0, 1, 0\), but the elements of"):
            evaluate(proto, x=x, indices=np.array([[[7, 2], [wrong, -1]]]))
