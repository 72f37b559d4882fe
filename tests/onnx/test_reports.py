"""The reports of `prepare(...).report()`, and the warnings about nodes left to onnx's reference evaluator."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from onnx import helper

from gpuconv.onnx import backend
from tests.onnx.models import BY_EVALUATOR, branching, floats, model, value

SCALES = {name: np.float32([1, 2]) for name in ("scale", "bias", "mean", "var")}


def names(nodes: Any) -> list[str]:
    return [node.output[0] for node in nodes]


def heard(rep: backend.Rep, *inputs: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rep.run(list(inputs))
    assert all(warning.filename == __file__ for warning in caught)
    return [str(warning.message) for warning in caught]


def test_what_is_folded_fused_and_left() -> None:
    nodes = """one = Constant <value = float {1.0}> ()  two = Add (one, one)  c = Conv (x, w)
               n = BatchNormalization (c, scale, bias, mean, var)  s = Add (n, x)  r = Relu (s)  h = Sinh (r)
               y = Mul (h, two)"""
    proto = model(nodes, [value("x", shape=4)], [value("y", shape=4)], weights={"w": floats(2, 2, 1, 1), **SCALES})
    report = backend.prepare(proto).report()
    assert names(report.folded) == ["one", "two"]
    assert [names(group) for group in report.fused] == [["c", "n", "s", "r"]]
    assert names(report.left) == ["h"]
    assert str(report).splitlines() == [
        "computed ahead of time: 1 Constant, 1 Add",
        "fused:",
        "  Conv node with output 'c', BatchNormalization node with output 'n', "
        "Add node with output 's', Relu node with output 'r'",
        "left to onnx's reference evaluator: 1 Sinh",
        "  Sinh node with output 'h'",
    ]
    plain = backend.prepare(proto, fold=False).report()
    assert (plain.folded, plain.fused, names(plain.left)) == ((), (), ["h"])


def test_a_model_that_is_run_as_it_is_has_little_to_report() -> None:
    rep = backend.prepare(model("y = Abs (x)", ["x"], ["y"]))
    assert str(rep.report()) == "computed ahead of time: none\nfused: none\nleft to onnx's reference evaluator: none"


def test_one_warning_for_each_operator_that_is_left() -> None:
    ops = ["Sinh", "Cosh", "Sinh", "Abs", "Cosh"]
    nodes = [helper.make_node(op, [f"v{n}"], [f"v{n + 1}"]) for n, op in enumerate(ops)]
    rep = backend.prepare(model(nodes, ["v0"], ["v5"]))
    how = "is left to onnx's reference evaluator, which is made to be right, not to be fast"
    x = floats(1, 1, 2)
    assert heard(rep, x) == [f"Sinh node with output 'v1': Sinh {how}", f"Cosh node with output 'v2': Cosh {how}"]
    assert heard(rep, x) == []
    assert names(rep.report().left) == ["v1", "v2", "v3", "v5"]


def test_graphs_and_functions_warn_and_report_with_what_is_around_them() -> None:
    nodes = f"{branching('a', 'k', 't = Sinh (x)')}  b = local.F (a)  y = local.F (b)"
    function = '<domain: "local", opset_import: ["" : 17]> F (i) => (o) { o = Sinh (i) }'
    proto = model(nodes, ["x"], ["y"], 17, {"k": np.array(True)}, functions=[function], domains=["local"])
    rep = backend.prepare(proto)
    assert names(rep.report().left) == ["t", "t", "o"]
    assert len(heard(rep, floats(1, 1, 2))) == 1


def test_constants_that_the_evaluator_makes_are_not_worth_a_warning() -> None:
    rep = backend.prepare(model('y = Constant <value_string = "text"> ()', [], [value("y", np.object_, ())]))
    assert heard(rep) == []
    assert rep.report().left == ()


@BY_EVALUATOR
def test_nodes_that_turn_out_to_be_left_are_reported_after_a_run() -> None:
    rep = backend.prepare(model("y = Identity (x)", [value("x", np.object_, 1)], [value("y", np.object_, 1)]))
    assert rep.report().left == ()
    rep.run([np.array(["a"])])
    assert names(rep.report().left) == ["y"]


def test_a_warning_may_be_made_an_error() -> None:
    rep = backend.prepare(model("y = Sinh (x)", ["x"], ["y"]))
    with pytest.raises(UserWarning, match=r"^Sinh node with output 'y': Sinh is left"):
        rep.run([floats(1, 1, 2)])
