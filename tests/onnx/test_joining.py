"""Concat whose inputs are computed directly in its output."""

from __future__ import annotations

import threading
import tracemalloc
from typing import Any

import numpy as np
import onnx
import pytest

import gpuconv
from gpuconv.onnx import backend, joining
from tests.onnx.models import parsed

FIRE = """fire (float[N, 8, H, W] x, float[4, 8, 1, 1] a, float[6, 8, 3, 3] b) => (float[N, 10, H, W] y)
{ p = Conv (x, a) q = Conv <pads = [1, 1, 1, 1]> (x, b) r = Relu (q) y = Concat <axis = 1> (p, r) }"""
DENSE = """dense (float[N, 8, H, W] x, float[4, 8, 3, 3] a, float[4, 12, 3, 3] b, float[4, 16, 3, 3] c) =>
    (float[N, 20, H, W] y)
{ p = Conv <pads = [1, 1, 1, 1]> (x, a) x1 = Concat <axis = 1> (x, p)
  q = Conv <pads = [1, 1, 1, 1]> (x1, b) x2 = Concat <axis = -3> (x1, q)
  r = Conv <pads = [1, 1, 1, 1]> (x2, c) x3 = Concat <axis = 1> (x2, r)
  y = MaxPool <kernel_shape = [1, 1]> (x3) }"""


def _rep(text: str) -> Any:
    return backend.prepare(parsed(text))


def _feeds(text: str, seed: int, images: int = 1, extent: int = 6) -> list[Any]:
    sizes = {"N": images, "H": extent, "W": extent + 1}
    graph = parsed(text).graph
    shapes = [[d.dim_value or sizes[d.dim_param] for d in i.type.tensor_type.shape.dim] for i in graph.input]
    draw = np.random.default_rng(seed)
    return [draw.integers(-3, 4, shape).astype(np.float32) for shape in shapes]


def _expected(text: str, feeds: list[Any]) -> list[Any]:
    model = parsed(text)
    names = [value.name for value in model.graph.input]
    return onnx.reference.ReferenceEvaluator(model).run(None, dict(zip(names, feeds, strict=True)))


def _assert_right(rep: Any, text: str, feeds: list[Any]) -> None:
    for result, expected in zip(rep.run(feeds), _expected(text, feeds), strict=True):
        assert np.array_equal(result, expected)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many inputs of every Concat that was completed in place had to be copied."""
    counts: list[int] = []
    joined = joining.joined

    def counted(inputs: tuple[Any, ...], out: Any) -> bool:
        before = [np.may_share_memory(array, out) for array in inputs]
        done = joined(inputs, out)
        if done:
            counts.append(before.count(False))
        return done

    monkeypatch.setattr(joining, "joined", counted)
    return counts


@pytest.mark.parametrize(("text", "expected"), [(FIRE, [0]), (DENSE, [1, 0, 0])])
def test_what_convolutions_give_is_not_copied(text: str, expected: list[int], copies: list[int]) -> None:
    rep = _rep(text)
    for seed in range(4):
        copies.clear()
        _assert_right(rep, text, _feeds(text, seed))
    assert copies == expected


@pytest.mark.parametrize("text", [FIRE, DENSE])
def test_shapes_may_change_from_run_to_run(text: str) -> None:
    rep = _rep(text)
    for seed, (images, extent) in enumerate([(1, 6), (1, 6), (1, 9), (2, 6), (2, 6), (1, 6), (1, 9), (1, 9), (1, 6)]):
        _assert_right(rep, text, _feeds(text, seed, images, extent))


def test_other_parts_that_add_up_to_the_same_are_joined_anew() -> None:
    text = """net (float[1, 2, 4, 4] x, float[A, 2, 1, 1] a, float[B, 2, 1, 1] b, float[C, 2, 1, 1] c) =>
        (float[1, 12, 4, 4] y)
    { p = Conv (x, a) q = Conv (x, b) r = Conv (x, c) y = Concat <axis = 1> (p, q, r) }"""
    rep, draw = _rep(text), np.random.default_rng(1)
    for sizes in [(2, 4, 6), (2, 4, 6), (2, 6, 4), (4, 4, 4), (6, 4, 2), (6, 4, 2), (2, 4, 6), (4, 4, 4)]:
        weights = [draw.integers(-3, 4, (size, 2, 1, 1)).astype(np.float32) for size in sizes]
        feeds = [draw.integers(-3, 4, (1, 2, 4, 4)).astype(np.float32), *weights]
        for _ in range(2):
            _assert_right(rep, text, feeds)


def test_values_that_others_see_are_left_alone() -> None:
    """Outputs of a graph do not share memory: writing to one does not change the others."""
    text = """net (float[1, 8, 6, 7] x, float[4, 8, 1, 1] a, float[6, 8, 1, 1] b, int64[2] t) =>
        (float[1, 10, 6, 7] y, float[1, 4, 6, 7] p, float[6, 42] s, float[1, 14, 6, 7] z)
    { p = Conv (x, a) q = Conv (x, b) y = Concat <axis = 1> (p, q) s = Reshape (q, t) z = Concat <axis = 1> (y, p) }"""
    rep = _rep(text)
    for seed in range(3):
        feeds = [*_feeds(text, seed)[:3], np.array([6, 42])]
        results, expected = rep.run(feeds), _expected(text, feeds)
        for number, result in enumerate(results):
            assert np.array_equal(result, expected[number])
            result[...] = 12345


def test_a_function_that_is_named_as_an_operator_may_return_its_input() -> None:
    text = """net (float[1, 8, 6, 7] x, float[4, 8, 1, 1] a, float[6, 8, 1, 1] b) =>
        (float[1, 4, 6, 7] s, float[1, 10, 6, 7] y)
    { p = Conv (x, a) q = Conv (x, b) s = own.Conv (p) y = Concat <axis = 1> (p, q) }
    <domain: "own", opset_import: ["" : 22]> Conv (p) => (s) { s = Identity (p) }"""
    rep = backend.prepare(parsed(text, domains=["own"]))
    for seed in range(3):
        draw = np.random.default_rng(seed)
        feeds = [draw.integers(-3, 4, shape).astype(np.float32) for shape in ((1, 8, 6, 7), (4, 8, 1, 1), (6, 8, 1, 1))]
        s, y = rep.run(feeds)
        assert np.array_equal(s, y[:, :4])
        assert not np.shares_memory(s, y)


def test_inputs_that_stand_twice_and_other_axes() -> None:
    text = """net (float[1, 8, 6, 6] x, float[4, 8, 1, 1] a) => (float[1, 8, 6, 6] y, float[1, 4, 12, 6] z)
    { p = Conv (x, a) y = Concat <axis = 1> (p, p) q = Conv (x, a) z = Concat <axis = 2> (p, q) }"""
    rep = _rep(text)
    draw = np.random.default_rng(2)
    for _ in range(3):
        feeds = [draw.integers(-3, 4, shape).astype(np.float32) for shape in ((1, 8, 6, 6), (4, 8, 1, 1))]
        _assert_right(rep, text, feeds)


def test_inputs_that_do_not_fit_are_refused_after_some_that_did() -> None:
    text = """net (float[A] a, int64[R] shape, float[1, 3] y) => (float[P, Q] z)
    { x = Reshape (a, shape) z = Concat <axis = 1> (x, y) }"""
    rep, a, y = _rep(text), np.ones(6, np.float32), np.full((1, 3), 2, np.float32)
    for wrong in ([6], [2, 3], [1, 6, 1], [1, 2, 3]):
        for _ in range(2):
            assert rep.run([a, np.array([1, 6]), y])[0].tolist() == [[1] * 6 + [2] * 3]
        with pytest.raises(gpuconv.GpuconvError, match="Concat"):
            rep.run([a, np.array(wrong), y])


def test_memory_is_let_go_with_the_values_in_it() -> None:
    text = "net (float[1, C, L] x) => (float y) { " + " ".join(
        f"a{n} = Concat <axis = 1> (x, x) b{n} = ReduceSum <keepdims = 0> (a{n}) " for n in range(8)
    )
    text += "y = Sum (" + ", ".join(f"b{n}" for n in range(8)) + ") }"
    rep, x = _rep(text), np.ones((1, 64, 4096), np.float32)
    rep.run([x])
    tracemalloc.start()
    try:
        assert rep.run([x])[0] == 16 * x.size
        assert tracemalloc.get_traced_memory()[1] < 3 * 2 * x.nbytes
    finally:
        tracemalloc.stop()


def test_results_of_earlier_runs_stay_as_they_are() -> None:
    rep = _rep(FIRE)
    feeds = [_feeds(FIRE, seed) for seed in range(4)]
    results = [rep.run(one)[0] for one in feeds]
    for one, result in zip(feeds, results, strict=True):
        assert np.array_equal(result, _expected(FIRE, one)[0])


def test_runs_at_the_same_time_have_their_own_memory() -> None:
    rep, wrong = _rep(DENSE), []
    problems = [_feeds(DENSE, seed, 1, 6 + seed % 2) for seed in range(4)]
    expected = [_expected(DENSE, feeds)[0] for feeds in problems]

    def work(number: int) -> None:
        wrong.extend(number for _ in range(30) if not np.array_equal(rep.run(problems[number])[0], expected[number]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
