"""The definition of AveragePool and MaxUnpool: ONNX's own tests, and numbers worked out by hand."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.backend.test.case import node

from gpuconv.judge import definition, problems, rulings
from gpuconv.judge.cases import CASES

NAN, INF = np.nan, np.inf


@cache
def node_tests(op: str) -> list[Any]:
    """Return ONNX's own tests of an operator, without generating those of all other operators, which is slow."""
    import_module(f"onnx.backend.test.case.node.{op.lower()}")
    tests = [test for test in node._NodeTestCases if test.model.graph.node[0].op_type == op]
    return [test for test in tests if len(test.model.graph.node) == 1]


def keywords(model: Any) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in model.graph.node[0].attribute}


@pytest.mark.parametrize("large", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["small", "large"])
def test_average_pool_agrees_with_onnx_s_node_tests(large: bool) -> None:
    assert len(node_tests("AveragePool")) >= 15
    tests = [test for test in node_tests("AveragePool") if (test.data_sets[0][0][0].size > 10_000) == large]
    assert len(tests) >= 4
    for test in tests:
        ((x,), (y,)) = test.data_sets[0]
        found = definition.average_pool(x, **keywords(test.model))
        np.testing.assert_allclose(found.value, y, rtol=test.rtol, atol=test.atol, err_msg=test.name)


def test_max_unpool_agrees_with_onnx_s_node_tests() -> None:
    assert len(node_tests("MaxUnpool")) == 2
    for test in node_tests("MaxUnpool"):
        (inputs, (y,)) = test.data_sets[0]
        if len(inputs) == 2:  # Indices with output_shape are disputed
            np.testing.assert_array_equal(definition.max_unpool(*inputs, **keywords(test.model)), y)


@pytest.mark.parametrize(
    ("expected", "attributes"),
    [
        ([2, 4, 5.5], {"strides": [2], "ceil_mode": 1}),  # the last window has 5 and 6
        ([2, 4, 5.5], {"strides": [2], "ceil_mode": 1, "count_include_pad": 1}),  # no padding, so nothing else counts
        ([1, 3, 5, 6], {"strides": [2], "pads": [1, 3], "count_include_pad": 0, "kernel_shape": [2]}),
        ([1.5, 3, 5], {"strides": [2], "pads": [1, 0]}),
        ([1, 3, 5], {"strides": [2], "pads": [1, 0], "count_include_pad": 1}),  # (0 + 1 + 2) / 3
        ([1, 3, 5], {"strides": [2], "auto_pad": "SAME_LOWER", "count_include_pad": 1}),
        ([NAN, NAN, 1, 1.5], {"kernel_shape": [2], "pads": [3, 0]}),
        ([0, 0, 0.5, 1.5], {"kernel_shape": [2], "pads": [3, 0], "count_include_pad": 1}),
        ([2.5, 3.5, 4.5], {"kernel_shape": [2], "dilations": [3]}),
    ],
)
def test_averages_by_hand(expected: list[float], attributes: dict[str, Any]) -> None:
    found = definition.average_pool(np.arange(1.0, 7).reshape(1, 1, 6), **{"kernel_shape": [3], **attributes})
    if attributes.get("kernel_shape") == [2] and attributes.get("pads") == [3, 0]:
        expected = [*expected, 2.5, 3.5, 4.5, 5.5]
    if attributes.get("pads") == [1, 3]:
        expected = [1, 2.5, 4.5, 6, NAN]
    np.testing.assert_array_equal(found.value[0, 0], expected)


def test_unpooling_by_hand() -> None:
    x, indices = np.array([[[5.0, 6.0, 7.0]]]), np.array([[[1, -1, 1]]])
    found = definition.max_unpool(x, indices, kernel_shape=[2], strides=[2])
    assert found.tolist() == [[[0, 7, 0, 0, 0, 0]]]  # the last of two with one index; -1 names none
    larger = definition.max_unpool(
        x[..., :2], np.array([[[0, 3]], [[5, 4]]])[:1], [1, 1, 6], kernel_shape=[2], strides=[2]
    )
    assert larger.tolist() == [[[5, 0, 0, 6, 0, 0]]]


def test_every_rule_of_a_case_has_a_ruling() -> None:
    assert {case.rule for case in CASES} == set(rulings.RULINGS)
    known = {rulings.SPECIFIED, rulings.REFERENCE, rulings.DISPUTED, rulings.RULED}
    assert {ruling.status for ruling in rulings.RULINGS.values()} == known
    names = [ruling.name for ruling in rulings.RULINGS.values()]
    assert len(set(names)) == len(names)
    for ruling in rulings.RULINGS.values():
        assert all(address.startswith("https://github.com/") for address in ruling.discussions)


@pytest.mark.parametrize("number", rulings.OPEN_QUESTIONS)
def test_what_onnx_s_list_of_open_questions_has_is_answered(number: int) -> None:
    address = f"https://github.com/onnx/onnx/issues/{number}"
    rules = {rule for rule, ruling in rulings.RULINGS.items() if address in ruling.discussions}
    assert rules & {case.rule for case in CASES}


def test_bounds_by_hand() -> None:
    exact = definition.Exact(np.array([1.0, 65519.999, NAN]), np.array([2.0, 65519.999, INF]), 3)
    found = problems.rounded(exact, "float16")
    assert found.outputs[0].tolist()[:2] == [1.0, 65504.0]
    slack = 4 * 2.0**-24 * 2.0
    assert found.bounds[0][0] == slack + 2.0**-11 + 2.0**-25
    assert found.bounds[0][1] == INF  # the sum may round to infinity
    assert found.bounds[0][2] == 0
    assert found.looser["wide"][0][0] == 4 * 2.0**-11 * 2.0 + 2.0**-11 + 2.0**-25
