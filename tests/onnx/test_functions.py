"""Functions of a model whose nodes take attributes from the caller, and sizes that do not fit any memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import gpuconv
from gpuconv.onnx import backend
from tests.onnx.models import model, value


def _run(operator: str, attribute: str, given: Any, x: Any, y: onnx.ValueInfoProto, fold: bool) -> Any:
    """Call a function of one node, one of whose attributes the call gives under another name."""
    inner, call = (
        helper.make_node(operator, ["a"], ["b"]),
        helper.make_node("F", ["x"], ["y"], domain="own", given=given),
    )
    inner.attribute.add(name=attribute, type=call.attribute[0].type, ref_attr_name="given")
    function = helper.make_function("own", "F", ["a"], ["b"], [inner], [helper.make_opsetid("", 22)], ["given"])
    inputs, domains = [value("x", x.dtype, x.shape)], [helper.make_opsetid("own", 1)]
    proto = model([call], inputs, [y], 22, domains=domains, functions=[function], ir_version=10)
    (got,) = backend.prepare(proto, fold=fold).run([x])
    return got


@pytest.mark.parametrize("fold", [True, False])
def test_a_constant_of_shape_takes_its_value_from_the_caller(fold: bool) -> None:
    filling = numpy_helper.from_array(np.array([7], np.int32))
    got = _run("ConstantOfShape", "value", filling, np.array([2, 3], np.int64), value("y", np.int32, 2), fold)
    assert (got.dtype, got.tolist()) == (np.int32, [[7, 7, 7], [7, 7, 7]])


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("to", ["float64", "int64", "bool", "float16"])
def test_a_cast_takes_its_type_from_the_caller(to: str, fold: bool) -> None:
    x, number = np.array([0, 1, -2], np.float32), helper.np_dtype_to_tensor_dtype(np.dtype(to))
    got = _run("Cast", "to", number, x, value("y", to, 1), fold)
    assert (got.dtype, got.tolist()) == (np.dtype(to), x.astype(to).tolist())


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_a_list_that_the_caller_gives_is_no_integer(operator: str) -> None:
    """Only Python calls accept one integer for all axes."""
    inner = helper.make_node(operator, ["a"], ["b"], kernel_shape=[1, 1])
    inner.attribute.add(name="strides", type=onnx.AttributeProto.INTS, ref_attr_name="given")
    function = helper.make_function("own", "F", ["a"], ["b"], [inner], [helper.make_opsetid("", 22)], ["given"])
    x = np.ones((1, 1, 4, 4), np.float32)

    def run(given: Any) -> Any:
        call = helper.make_node("F", ["x"], ["y"], domain="own", given=given)
        sides, domains = ([value(name, shape=4)] for name in "xy"), [helper.make_opsetid("own", 1)]
        proto = model([call], *sides, 22, domains=domains, functions=[function], ir_version=10)
        return backend.prepare(proto).run([x])

    assert run([2, 4])[0].shape == (1, 1, 2, 1)
    with pytest.raises(gpuconv.ArgumentError) as caught:
        run(2)
    assert str(caught.value) == f"{operator} node with output 'b': attribute strides must be of type INTS, not INT"


@pytest.mark.parametrize("repeats", [[2**62, 2], [2**63 - 1, 1], [2**40, 2**40], [0, 2**62]])
def test_a_tile_of_more_than_there_can_be_is_refused(repeats: list[int]) -> None:
    node = helper.make_node("Tile", ["x", "r"], ["y"], name="many")
    rep = backend.prepare(model([node], [value("x", shape=2), value("r", np.int64, 1)], [value("y", shape=2)], 22))
    with pytest.raises(gpuconv.ArgumentError) as caught:
        rep.run([np.ones((2, 3), np.float32), np.array(repeats, np.int64)])
    assert str(caught.value) == (
        f"Tile node 'many': x.shape=(2, 3), repeated {repeats} times, has more bytes than 64 bits can address"
    )


@pytest.mark.parametrize("fold", [True, False])
def test_an_activation_takes_its_slope_from_the_caller(fold: bool) -> None:
    conv, leaky = helper.make_node("Conv", ["a", "w"], ["c"]), helper.make_node("LeakyRelu", ["c"], ["b"])
    leaky.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    opsets = [helper.make_opsetid("", 22)]
    function = helper.make_function("own", "F", ["a", "w"], ["b"], [conv, leaky], opsets, ["slope"])
    call = helper.make_node("F", ["x", "w"], ["y"], domain="own", slope=0.5)
    weights, domains = {"w": np.ones((1, 1, 1), np.float32)}, [helper.make_opsetid("own", 1)]
    proto = model([call], [value("x")], [value("y")], 22, weights, domains=domains, functions=[function], ir_version=10)
    (got,) = backend.prepare(proto, fold=fold).run([np.float32([[[-2, 0, 3]]])])
    assert got.tolist() == [[[-1, 0, 3]]]
