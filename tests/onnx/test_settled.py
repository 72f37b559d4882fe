"""Values that depend only on constants and shapes are computed once for each of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from gpuconv.onnx import backend, steps
from tests.onnx.models import parsed

ROWS = """rows (float[N, C, L] x) => (float[R, S] y)
<int64 zero = {0}, int64[1] rest = {-1}, int64[1] front = {0}>
{ shape = Shape (x) n = Gather (shape, zero) first = Unsqueeze (n, front)
  wanted = Concat <axis = 0> (first, rest) y = Reshape (x, wanted) }"""


def _rep(text: str) -> Any:
    return backend.prepare(parsed(text))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often nodes of each operator are computed."""
    counts: Counter[str] = Counter()
    compute = steps.TableStep.compute

    def counted(step: Any, *args: Any) -> Any:
        counts[step.onnx_node.op_type] += 1
        return compute(step, *args)

    monkeypatch.setattr(steps.TableStep, "compute", counted)
    return counts


def test_shapes_are_followed_once_for_each(computed: Counter[str]) -> None:
    rep = _rep(ROWS)
    for turn, shape in enumerate([(2, 3, 4), (2, 3, 4), (5, 1, 2), (5, 1, 2), (2, 3, 4)]):
        x = np.random.default_rng(turn).random(shape, np.float32)
        assert np.array_equal(rep.run([x])["y"], x.reshape(shape[0], -1))
    assert computed["Shape"] == computed["Gather"] == 3
    assert computed["Reshape"] == 5


def test_another_shape_of_the_same_part_changes_nothing_after_it(computed: Counter[str]) -> None:
    rep = _rep(ROWS)
    for shape in [(2, 3, 4), (3, 3, 4)]:
        assert rep.run([np.zeros(shape, np.float32)])["y"].shape == (shape[0], 12)
    assert computed["Unsqueeze"] == 2


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Shape (x)",
        "s = Shape (x) y = Identity (s)",
        "s = Shape (x) y = Reshape (s, rest)",
        "s = Shape (x) y = If (yes) <then_branch = a () => (int64[K] u) { u = Identity (s) }, "
        "else_branch = b () => (int64[K] v) { v = Identity (s) }>",
    ],
)
def test_what_a_caller_writes_to_an_output_is_gone_with_the_next_run(nodes: str) -> None:
    rep = _rep(f"g (float[N, M] x, bool yes) => (int64[K] y) <int64[1] rest = {{-1}}> {{ {nodes} }}")
    for _ in range(2):
        y = rep.run([np.zeros((2, 3), np.float32), np.array(True)])["y"]
        assert y.tolist() == [2, 3]
        y[...] = 7


def test_inputs_with_a_default_may_change_where_they_are() -> None:
    rep = _rep("g (float[N] x, int64[1] k = {3}) => (int64[1] y) { y = Neg (k) }")
    x, k = np.zeros(2, np.float32), np.array([4])
    assert rep.run({"x": x})["y"].tolist() == [-3]
    for value in (4, 5):
        k[0] = value
        assert rep.run({"x": x, "k": k})["y"].tolist() == [-value]


def test_variables_of_a_loop_that_are_called_like_constants_are_none() -> None:
    rep = _rep("""g (float[N] x) => (int64[T] y) <int64 trips = {3}, bool yes = {1}, int64 i = {9}>
    { y = Loop (trips, yes) <body = b (int64 i, bool c) => (bool d, int64 v) { d = Identity (c) v = Neg (i) }> }""")
    for _ in range(2):
        assert rep.run([np.zeros(1, np.float32)])["y"].tolist() == [0, -1, -2]


def test_branches_join_constants_from_around_ahead(computed: Counter[str]) -> None:
    rep = _rep("""g (bool yes, float[N] x) => (float[M] y) <float[2] a = {1, 2}, float[1] b = {3}>
    { y = If (yes) <then_branch = t () => (float[K] u) { ab = Concat <axis = 0> (a, b) u = Add (x, ab) },
                    else_branch = e () => (float[L] v) { ba = Concat <axis = 0> (b, a) v = Add (x, ba) }> }""")
    computed.clear()
    for yes, expected in ((True, [1, 2, 3]), (False, [3, 1, 2])):
        y = rep.run([np.array(yes), np.zeros(3, np.float32)])["y"]
        assert y.tolist() == expected
    assert computed == {"Add": 2}


def test_large_results_are_not_kept(computed: Counter[str]) -> None:
    rep = _rep("""g (float[N] x) => (float[N] y)
    { s = Shape (x) zeros = ConstantOfShape (s) y = Add (x, zeros) }""")
    for size, times in ((16384, 1), (16385, 2)):
        computed.clear()
        for _ in range(2):
            rep.run([np.ones(size, np.float32)])
        assert computed["ConstantOfShape"] == times
