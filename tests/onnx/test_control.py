"""If, Loop and Scan: ONNX's node tests, ONNX Runtime, values visible in subgraphs, folding and copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import gpuconv
from gpuconv.onnx import backend
from gpuconv.onnx.operators import CONTROL, Body, Form
from tests.harness.device_arrays import device_arrays
from tests.onnx.models import (
    BY_EVALUATOR,
    CONTROL_TESTS,
    assert_expected,
    data_of,
    floats,
    node_tests,
    parsed,
    referred,
    values,
)
from tests.onnx.networks import onnxruntime_run

__all__ = ["referred"]  # a fixture
pytestmark = pytest.mark.slow


def agrees(text: str, *feeds: dict[str, Any], opset: int = 21) -> None:
    model = parsed(text, opset)
    for feed in feeds:
        for fold in (True, False):
            got = backend.prepare(model, fold=fold).run(feed)
            for actual, wanted in zip(got, onnxruntime_run(model, feed), strict=True):
                assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
                np.testing.assert_allclose(actual, wanted, rtol=1e-6, atol=1e-6)


def test_these_are_all_node_tests() -> None:
    operators = {name: {node.op_type for node in data_of(test)[0].graph.node} for name, test in node_tests().items()}
    assert {name for name, found in operators.items() if found <= set(CONTROL)} == set(CONTROL_TESTS)


@pytest.mark.parametrize("name", CONTROL_TESTS)
@BY_EVALUATOR
def test_node_tests(name: str, referred: list[str]) -> None:
    model, data = data_of(node_tests()[name])
    for inputs, outputs in data:
        assert_expected(backend.prepare(model).run(values(inputs)), values(outputs), node_tests()[name])
        if not referred:  # text, sequences and optional values cannot be on a device
            with device_arrays():
                assert_expected(backend.prepare(model, "CUDA").run(values(inputs)), values(outputs), node_tests()[name])
    assert not set(referred) & set(CONTROL)


# ---------------------------------------------------------------- Loop

LOOP = """
g (int64 m, bool go, float[2] x, float[2] a) => (float[2] y, float[T, 2] s, int64[T] i) {
  y, s, i = Loop (m, go, x) <body = b (int64 trip, bool on, float[2] v) => (bool d, float[2] w, float[2] o,
      int64 n) {
    w = Add (v, a)
    o = Mul (w, v)
    total = ReduceSum <keepdims = 0> (w)
    most = Constant <value = float {9.0}> ()
    d = Less (total, most)
    n = Identity (trip)
  }>
}"""


def test_a_loop_ends_by_its_trips_or_its_condition() -> None:
    x, a = np.float32([1, 2]), np.float32([0.5, 1])
    agrees(LOOP, *({"m": np.array(m), "go": np.array(go), "x": x, "a": a} for m in (1, 3, 50) for go in (True, False)))
    agrees(LOOP, {"m": np.array(0), "go": np.array(True), "x": x, "a": a})


def test_a_loop_without_a_condition_ignores_that_of_its_body() -> None:
    """By the specification, unlike ONNX Runtime."""
    text = LOOP.replace(", bool go", "").replace("(m, go, x)", "(m, , x)")
    feed = {"m": np.array(7), "x": np.float32([1, 2]), "a": np.float32([0.5, 1])}
    y, s, i = backend.prepare(parsed(text, 21)).run(feed)
    assert y.tolist() == [4.5, 9]
    assert i.tolist() == list(range(7))
    np.testing.assert_array_equal(s, [[(1 + 0.5 * n) * (0.5 + 0.5 * n), (2 + n) * (1 + n)] for n in range(1, 8)])


def test_a_loop_without_trips_runs_while_its_condition_holds() -> None:
    text = LOOP.replace("int64 m, ", "").replace("(m, go, x)", "(, go, x)")
    agrees(text, {"go": np.array(True), "x": np.float32([1, 2]), "a": np.float32([0.5, 1])})


def test_what_no_trip_made_is_empty_as_the_graph_declares_it() -> None:
    body = "b (int64 i, bool c, float[N] v) => (bool d, float[N] w, int8[3, K] o)"
    text = f"""g (int64 m, int8[3, 2] z, float[N] x) => (float[N] y, int8[T, 3, K] s) {{
      y, s = Loop (m, , x) <body = {body} {{
        d = Identity (c)
        w = Identity (v)
        o = Identity (z)
      }}>
    }}"""
    y, s = backend.prepare(parsed(text, 21)).run({"m": np.array(0), "z": np.ones((3, 2), np.int8), "x": floats(2)})
    np.testing.assert_array_equal(y, floats(2))
    assert (s.dtype, s.shape) == (np.int8, (0, 3, 0))
    _, s = backend.prepare(parsed(text, 21)).run({"m": np.array(4), "z": np.ones((3, 2), np.int8), "x": floats(2)})
    assert s.shape == (4, 3, 2)


def test_graphs_inside_of_graphs_see_all_that_is_around() -> None:
    agrees(
        """g (int64 m, float[2] x, float[2] a) => (float[2] y) {
      yes = Constant <value = bool {1}> ()
      b = Neg (a)
      y = Loop (m, yes, x) <body = outer (int64 i, bool c, float[2] v) => (bool d, float[2] w) {
        d = Identity (c)
        one = Constant <value = int64 {1}> ()
        first = Less (i, one)
        t = If (first) <
          then_branch = p () => (float[2] p1) { p1 = Add (v, b) },
          else_branch = q () => (float[2] q1) {
            two = Constant <value = int64 {2}> ()
            q1 = Loop (two, yes, v) <body = inner (int64 j, bool e, float[2] u) => (bool f, float[2] r) {
              f = Identity (e)
              k = Cast <to = 1> (i)
              r0 = Mul (u, a)
              r = Add (r0, k)
            }>
          }>
        w = Add (t, x)
      }>
    }""",
        *({"m": np.array(m), "x": np.float32([1, 2]), "a": np.float32([0.5, -1])} for m in (1, 4)),
    )


# ---------------------------------------------------------------- Scan

SCAN = """
g (float[2] s, float[{first}] x, float[{second}] z) => (float[2] y, float[{out}] p, float[T, 2] q) {{
  y, p, q = Scan <num_scan_inputs = 2, {attributes}
      body = b (float[2] v, float[2] e, float[2] f) => (float[2] w, float[2] m, float[2] n) {{
    w = Add (v, e)
    m = Mul (w, f)
    n = Identity (w)
  }}> (s, x, z)
}}"""


@pytest.mark.parametrize("opset", [9, 11, 21])
@pytest.mark.parametrize(
    ("first", "second", "out", "attributes"),
    [
        ((4, 2), (4, 2), "T, 2", ""),
        ((2, 4), (4, 2), "2, T", "scan_input_axes = [1, 0], scan_output_axes = [1, 0],"),
        ((4, 2), (4, 2), "T, 2", "scan_input_directions = [1, 0], scan_output_directions = [0, 1],"),
        ((2, 4), (2, 4), "2, T", "scan_input_axes = [1, 1], scan_input_directions = [0, 1], "
         "scan_output_axes = [1, 0], scan_output_directions = [1, 1],"),
    ],
)  # fmt: skip
def test_scans_of_all_axes_and_directions(
    first: tuple[int, int], second: tuple[int, int], out: str, attributes: str, opset: int
) -> None:
    shapes = {"first": "{}, {}".format(*first), "second": "{}, {}".format(*second)}
    feed = {"s": floats(2), "x": floats(*first, seed=1), "z": floats(*second, seed=2)}
    agrees(SCAN.format(**shapes, out=out, attributes=attributes), feed, opset=opset)


def test_axes_of_scans_count_from_the_end_too() -> None:
    shapes = {"first": "2, 4", "second": "4, 2", "out": "2, T"}
    feed = {"s": floats(2), "x": floats(2, 4, seed=1), "z": floats(4, 2, seed=2)}
    counted = [
        backend.prepare(parsed(SCAN.format(**shapes, attributes=attributes), 21)).run(feed)
        for attributes in (
            "scan_input_axes = [1, 0], scan_output_axes = [1, 0],",
            "scan_input_axes = [-1, -2], scan_output_axes = [-1, -2],",
        )
    ]
    for one, other in zip(*counted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_scan_of_nothing_keeps_its_state() -> None:
    shapes = {"first": "N, 2", "second": "N, 2", "out": "2, T"}
    text = SCAN.format(**shapes, attributes="scan_output_axes = [1, 0],").replace("float[2] n)", "float[2, K] n)")
    feed = {"s": floats(2), "x": floats(0, 2), "z": floats(0, 2)}
    y, p, q = backend.prepare(parsed(text, 21)).run(feed)
    np.testing.assert_array_equal(y, feed["s"])
    assert (p.shape, q.shape) == ((2, 0), (0, 2, 0))


def test_what_no_trip_made_must_have_a_declared_type() -> None:
    body = Body("Loop node 'l'", lambda _: [], [onnx.ValueInfoProto(name=name) for name in ("d", "o")])
    with pytest.raises(gpuconv.ArgumentError, match=r"^Loop node 'l': it runs no time, and its graph does not say"):
        CONTROL["Loop"](Form(21, {}), {"body": body}, np.array(0))


@pytest.mark.parametrize("lengths", [None, [3, 1], [0, 2]])
def test_the_first_scan_was_of_batches(lengths: list[int] | None) -> None:
    """Scan of opset 8 handles each entry separately, up to the length of its sequence; the rest of the output is 0."""
    text = """g (int64[B] lengths, float[B, 2] s, float[B, T, 2] x) => (float[B, 2] y, float[B, T, 2] p) {
      y, p = Scan <num_scan_inputs = 1, directions = [1], body = b (float[2] v, float[2] e) => (float[2] w, float[2] m)
        { w = Add (v, e) m = Neg (w) }> (lengths, s, x)
    }"""
    feed = {"s": floats(2, 2), "x": floats(2, 3, 2, seed=1)}
    if lengths is None:
        text = text.replace("int64[B] lengths, ", "").replace("(lengths, s, x)", "(, s, x)")
    else:
        feed["lengths"] = np.array(lengths)
    y, p = backend.prepare(parsed(text, 8)).run(feed)
    for entry, length in enumerate(lengths or [3, 3]):
        state = feed["s"][entry]
        for step, element in enumerate(feed["x"][entry, :length][::-1]):
            state = state + element
            np.testing.assert_array_equal(p[entry, step], -state)
        np.testing.assert_array_equal(y[entry], state)
        assert not p[entry, length:].any()


# ---------------------------------------------------------------- what is folded, kept and copied

BRANCHES = """
g (bool c, float[1, 1, 6] x, float[1, 1, 3] w = {1, 2, 3}) => (float[1, 1, M] y) {
  y = If (c) <
    then_branch = p () => (float[1, 1, M] p1) { t = Conv (x, w) p1 = Relu (t) },
    else_branch = q () => (float[1, 1, M] q1) {
      two = Constant <value = float {2.0}> ()
      three = Constant <value = float {3.0}> ()
      six = Mul (two, three)
      q1 = Mul (x, six)
    }>
}"""


def test_graphs_inside_are_folded_by_one_budget() -> None:
    x = floats(1, 1, 6)
    for fold, lengths in ((True, [1, 1]), (False, [2, 4])):
        rep = backend.prepare(parsed(BRANCHES, 21), fold=fold)
        evaluators = rep._evaluator.rt_nodes_[0].evaluators
        assert [len(evaluators[name].rt_nodes_) for name in ("then_branch", "else_branch")] == lengths
        assert all(inner._budget is rep._evaluator._budget for inner in evaluators.values())
        np.testing.assert_array_equal(rep.run({"c": np.array(False), "x": x})[0], x * 6)
        convolved = x[..., :4] + 2 * x[..., 1:5] + 3 * x[..., 2:]
        got = rep.run({"c": np.array(True), "x": x})[0]
        np.testing.assert_allclose(got, np.maximum(convolved, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fold", [True, False])
def test_defaults_that_the_caller_replaces_are_replaced_inside_too(fold: bool) -> None:
    rep, x = backend.prepare(parsed(BRANCHES, 21), fold=fold), floats(1, 1, 6)
    other = np.float32([0, 0, -1]).reshape(1, 1, 3)
    for _ in range(2):
        (y,) = rep.run({"c": np.array(True), "x": x, "w": other})
        np.testing.assert_array_equal(y, np.maximum(-x[..., 2:], 0))


CONVOLVING = """
g (int64 m, float[1, 1, 8] x, float[1, 1, 3] w) => (float[1, 1, 8] y, float[T, 1, 1, 8] s) {
  yes = Constant <value = bool {1}> ()
  start = Neg (x)
  y, s = Loop (m, yes, start) <body = b (int64 i, bool c, float[1, 1, 8] v)
      => (bool d, float[1, 1, 8] z, float[1, 1, 8] o) {
    z = Conv <pads = [1, 1]> (v, w)
    o = Relu (z)
    total = ReduceSum <keepdims = 0> (o)
    zero = Constant <value = float {0.0}> ()
    d = GreaterOrEqual (total, zero)
  }>
}"""


def test_a_loop_stays_on_the_device() -> None:
    """But for its condition; a constant of outside goes there once, not at every trip."""
    model = parsed(CONVOLVING, 21)
    model.graph.initializer.append(onnx.numpy_helper.from_array(floats(1, 1, 3, seed=1), "w"))
    feed = {"m": np.array(3), "x": floats(1, 1, 8)}
    expected = backend.prepare(model).run(feed)
    with device_arrays() as device:
        rep = backend.prepare(model, "CUDA")
        got = rep.run(feed)
        assert device.computed == ["conv"] * 3
        assert sorted(device.to_host) == sorted([(), (), (), (1, 1, 8), (3, 1, 1, 8)])
        assert device.to_device.count((1, 1, 3)) == 1
        rep.run(feed)
        assert device.to_device.count((1, 1, 3)) == 1
    for actual, wanted in zip(got, expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_attributes_of_a_function_reach_the_graphs_inside() -> None:
    text = """g (bool c, float[3] x) => (float[3] y) { y = own.F <slope = 0.25> (c, x) }
    <domain: "own", opset_import: ["" : 21]>
    F <slope> (c, x) => (y) {
      y = If (c) <
        then_branch = p () => (float[3] p1) { p1 = LeakyRelu <alpha : float = @slope> (x) },
        else_branch = q () => (float[3] q1) { q1 = Identity (x) }>
    }"""
    (y,) = backend.prepare(parsed(text, 21, ["own"])).run({"c": np.array(True), "x": np.float32([-4, 0, 3])})
    assert y.tolist() == [-1, 0, 3]


# ---------------------------------------------------------------- errors


def test_errors_name_the_node() -> None:
    scan = SCAN.format(first="4, 2", second="3, 2", out="T, 2", attributes="")
    growing = """g (int64 m, float[N] x) => (float[K] y, float[T, M] s) {
      yes = Constant <value = bool {1}> ()
      y, s = Loop (m, yes, x) <body = b (int64 i, bool c, float[P] v) => (bool d, float[Q] w, float[R] o)
        { d = Identity (c) w = Concat <axis = 0> (v, v) o = Identity (w) }>
    }"""
    branch = """g (bool[K] c, float[2] x) => (float[2] y) {
      y = If (c) <then_branch = p () => (float[2] p1) { p1 = Neg (x) },
        else_branch = q () => (float[2] q1) { q1 = Abs (x) }>
    }"""
    inside = """g (bool c, float[M] x) => (float[M] y) {
      three = Constant <value = int64[1] {3}> ()
      y = If (c) <then_branch = p () => (float[M] p1) { p1 = Reshape (x, three) },
        else_branch = q () => (float[M] q1) { q1 = Abs (x) }>
    }"""
    wrong: list[tuple[str, dict[str, Any], str]] = [
        (scan, {"s": floats(2), "x": floats(4, 2), "z": floats(3, 2)},
         r"^Scan node with output 'y': its scanned inputs must have one length, not \[3, 4\]"),
        (growing, {"m": np.array(2), "x": floats(2)},
         r"^Loop node with output 'y': the shapes of what it collects differ: \[\(4,\), \(8,\)\]"),
        (branch, {"c": np.array([True, False]), "x": floats(2)},
         r"^If node with output 'y': cond must have a single element, but has the shape \(2,\)"),
        (inside, {"c": np.array(True), "x": floats(2)},
         r"^Reshape node with output 'p1': an array of shape \(2,\) cannot have the shape \[3\]"),
    ]  # fmt: skip
    for text, feed, message in wrong:
        with pytest.raises(gpuconv.ArgumentError, match=message):
            backend.prepare(parsed(text, 21)).run(feed)


def test_a_body_has_an_input_for_every_value() -> None:
    text = """g (int64 m, float[2] x) => (float[2] y) {
      yes = Constant <value = bool {1}> ()
      y = Loop (m, yes, x) <body = b (int64 i, bool c) => (bool d, float[2] w)
        { d = Identity (c) w = Identity (x) }>
    }"""
    with pytest.raises(gpuconv.ArgumentError, match="the graph body has 2 inputs, but is given 3 values"):
        backend.prepare(parsed(text, 21)).run({"m": np.array(1), "x": floats(2)})
