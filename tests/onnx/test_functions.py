"""Functions of a model whose nodes take attributes from the caller, and sizes that do not fit any memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

import gpuconv
from gpuconv.onnx import backend
from tests.onnx.models import model, parsed, value

every_way = pytest.mark.parametrize("fold", [True, False])


def calling(body: str, given: str, x: str, y: str) -> ModelProto:
    """Return a model that calls a function of a to b, whose nodes refer to the attribute `given` of the call."""
    text = f"""g ({x} x) => ({y} y) {{ y = own.F <given = {given}> (x) }}
        <domain: "own", opset_import: ["" : 22]> F <given> (a) => (b) {{ {body} }}"""
    return parsed(text, domains=["own"])


@every_way
def test_a_constant_of_shape_takes_its_value_from_the_caller(fold: bool) -> None:
    proto = calling("b = ConstantOfShape <value : tensor = @given> (a)", "int32[1] {7}", "int64[2]", "int32[N, M]")
    (got,) = backend.prepare(proto, fold=fold).run([np.array([2, 3])])
    assert (got.dtype, got.tolist()) == (np.int32, [[7, 7, 7], [7, 7, 7]])


@every_way
@pytest.mark.parametrize("dtype", ["float64", "int64", "bool", "float16"])
def test_a_cast_takes_its_type_from_the_caller(dtype: str, fold: bool) -> None:
    x, number = np.array([0, 1, -2], np.float32), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    name = "double" if dtype == "float64" else dtype
    proto = calling("b = Cast <to : int = @given> (a)", str(int(number)), "float[3]", f"{name}[3]")
    (got,) = backend.prepare(proto, fold=fold).run([x])
    assert (got.dtype, got.tolist()) == (np.dtype(dtype), x.astype(dtype).tolist())


@every_way
def test_an_activation_takes_its_slope_from_the_caller(fold: bool) -> None:
    body = """w = Constant <value = float[1, 1, 1] {1.0}> ()  c = Conv (a, w)
              b = LeakyRelu <alpha : float = @given> (c)"""
    rep = backend.prepare(calling(body, "0.5", "float[1, 1, 3]", "float[1, 1, 3]"), fold=fold)
    assert rep.run([np.float32([[[-2, 0, 3]]])])[0].tolist() == [[[-1, 0, 3]]]


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_a_list_that_the_caller_gives_is_no_integer(operator: str) -> None:
    """One integer for all axes is for calls of Python's."""
    body, x = f"b = {operator} <kernel_shape = [1, 1], strides : ints = @given> (a)", np.ones((1, 1, 4, 4), np.float32)

    def run(given: str) -> Any:
        return backend.prepare(calling(body, given, "float[1, 1, 4, 4]", "float[1, 1, H, W]")).run([x])

    assert run("[2, 4]")[0].shape == (1, 1, 2, 1)
    with pytest.raises(gpuconv.ArgumentError) as caught:
        run("2")
    assert str(caught.value) == f"{operator} node with output 'b': attribute strides must be of type INTS, not INT"


@pytest.mark.parametrize("repeats", [[2**62, 2], [2**63 - 1, 1], [2**40, 2**40], [0, 2**62]])
def test_a_tile_of_more_than_there_can_be_is_refused(repeats: list[int]) -> None:
    inputs = [value("x", shape=2), value("r", np.int64, 1)]
    rep = backend.prepare(model("[many] y = Tile (x, r)", inputs, [value("y", shape=2)]))
    with pytest.raises(gpuconv.ArgumentError) as caught:
        rep.run([np.ones((2, 3), np.float32), np.array(repeats, np.int64)])
    assert str(caught.value) == (
        f"Tile node 'many': x.shape=(2, 3), repeated {repeats} times, has more bytes than 64 bits can address"
    )
