"""Gradients and unpooling against others: PyTorch's autograd, as kept in gradients.json, and ONNX's own node tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test.case import node as node_tests
from onnx.backend.test.case.node import maxunpool as _  # noqa: F401  # which makes its tests when imported

import gpuconv
from tests.harness.emulated import any_cuda
from tests.oracle import gradients
from tests.oracle.make_gradients import CASES, PATH, operand
from tests.oracle.oracle import assert_same, bound
from tests.oracle.strategies import Problem

KEPT = json.loads(PATH.read_text())["rows"]
UNPOOL = {test.name: test for test in node_tests._NodeTestCases if test.model.graph.node[0].op_type == "MaxUnpool"}


@pytest.fixture(params=["numpy", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> Callable[[], AbstractContextManager[Any]]:
    return any_cuda if request.param == "cuda" else nullcontext


def test_the_file_has_the_cases_that_its_script_makes() -> None:
    made = [(row["operator"], tuple(row["x"]), tuple(row["w"]), row["attributes"]) for row in KEPT]
    assert made == list(CASES)


@pytest.mark.parametrize("number", range(len(KEPT)), ids=[f"{row['operator']} {row['x']}" for row in KEPT])
def test_autograd_gives_the_same(backend: Callable[[], AbstractContextManager[Any]], number: int) -> None:
    row = KEPT[number]
    x, dy = operand(number, 0, tuple(row["x"])), operand(number, 3, tuple(row["y"]))
    attributes = {**row["attributes"]}
    if "pads" in attributes:
        attributes["pads"] = attributes["pads"] * 2
    if row["operator"] == "max_pool":
        with backend():
            y, indices = gpuconv.max_pool(x, return_indices=True, **attributes)
            found = {
                "dx": (
                    gpuconv.max_pool_grad(dy, indices, x.shape, **attributes),
                    gradients.max_pool_grad(dy, indices, x.shape, 0),
                )
            }
        assert y.shape == dy.shape
    else:
        w, operator = operand(number, 1, tuple(row["w"])), row["operator"]
        problem = Problem(operator, x.shape, w.shape, None, attributes)
        with backend():
            found = {
                "dx": (
                    getattr(gpuconv, f"{operator}_input_grad")(dy, w, x.shape, **attributes),
                    gradients.input_grad(problem, dy, w),
                ),
                "dw": (
                    getattr(gpuconv, f"{operator}_weight_grad")(x, dy, w.shape, **attributes),
                    gradients.weight_grad(problem, x, dy),
                ),
                "db": (getattr(gpuconv, f"{operator}_bias_grad")(dy), gradients.bias_grad(dy)),
            }
    for name, (actual, exact) in found.items():
        theirs = np.array(row[name]).reshape(actual.shape)
        # Both may be off by the bound, in opposite directions.
        assert (np.abs(actual - theirs) <= 2 * bound(exact, np.float32)).all(), name


@pytest.mark.parametrize("case", UNPOOL.values(), ids=UNPOOL)
def test_the_node_tests_of_max_unpool_pass(backend: Callable[[], AbstractContextManager[Any]], case: Any) -> None:
    node = case.model.graph.node[0]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    for inputs, (expected,) in case.data_sets:
        y, indices, *shape = inputs
        with backend():
            x = gpuconv.max_unpool(y, indices, *(list(map(int, s)) for s in shape), **attributes)
        assert_same(x, expected)


def test_there_are_node_tests_of_max_unpool() -> None:
    assert len(UNPOOL) == 2
