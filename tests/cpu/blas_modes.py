"""BLAS's own threads: limited to one during a call, restored in any case; run by cpu/test_threads.py in a process where
BLAS has two.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import gpuconv
from gpuconv.cpu import _blas, _product, _threads
from gpuconv.onnx import backend
from tests.harness.interruption import DEADLINE, eventually, interrupts
from tests.oracle.operands import filled


def _blas_threads() -> int:
    functions = _blas._functions()
    if functions is None:
        pytest.skip("this NumPy's BLAS cannot be asked for its threads")
    return functions[0]()


def _one_product() -> None:
    _blas.run(lambda _: None, range(1), _blas.Workers.ONE)


@pytest.fixture(autouse=True)
def _two_threads() -> Any:
    """Check that every test begins and ends with two threads of BLAS and none of them held."""
    if _blas_threads() != 2:
        pytest.skip("this system gives BLAS one thread only")
    yield
    assert eventually(lambda: _blas_threads() == 2 and not _blas._HOLD.inside)


def test_the_last_that_held_it_at_one_gives_it_back_its_threads() -> None:
    with _blas._HOLD.at_one():
        assert _blas_threads() == 1
        with _blas._HOLD.at_one():
            assert _blas_threads() == 1
            assert _blas._HOLD.threads() == 2
        assert _blas_threads() == 1
    assert _blas_threads() == 2


def test_the_first_of_two_may_leave_first() -> None:
    first, second = _blas._HOLD.at_one(), _blas._HOLD.at_one()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert _blas_threads() == 1
    assert _blas._HOLD.threads() == 2
    second.__exit__(None, None, None)
    assert _blas_threads() == 2


def test_it_gets_its_threads_back_after_an_error() -> None:
    with pytest.raises(KeyError), _blas._HOLD.at_one():
        raise KeyError
    with pytest.raises(KeyError):
        _blas.holding(lambda: (_one_product(), {}[0]))
    assert eventually(lambda: _blas_threads() == 2)


def test_a_setting_of_somebody_else_is_given_back() -> None:
    put = _blas._functions()[1]  # type: ignore[index]
    try:
        for number in (1, 2):
            put(number)
            with _blas._HOLD.at_one():
                assert _blas_threads() == 1
            assert _blas_threads() == number
    finally:
        put(2)


@pytest.mark.parametrize("by", [_blas.Workers.ONE, _blas.Workers.POOL])
def test_products_that_are_not_tiny_have_one_thread_each(by: Any) -> None:
    seen: list[Any] = []
    _blas.run(lambda _: seen.append((_blas_threads(), threading.get_ident())), range(20), by)
    assert {threads for threads, _ in seen} == {1}
    assert len({thread for _, thread in seen}) <= (1 if by is _blas.Workers.ONE else _threads.count())


def test_who_computes_a_product() -> None:
    workers_for, kinds = _blas.workers_for, _blas.Workers
    assert workers_for(2**19, 2) is workers_for(2**14, 2, thin=True) is kinds.CALLER
    assert workers_for(2**19 + 1, 2) is workers_for(2**14 + 1, 2, thin=True) is workers_for(10**12, 1) is kinds.ONE
    assert workers_for(10**8, 2) is kinds.POOL


def test_a_whole_call_holds_it_with_its_own_thread_at_work() -> None:
    seen: list[Any] = []

    def call() -> str:
        assert _blas_threads() == 2  # until a product asks for it
        _blas.run(lambda _: None, range(1), _blas.Workers.CALLER)
        assert _blas_threads() == 2
        _blas.run(lambda _: seen.append((_blas_threads(), threading.get_ident())), range(3), _blas.Workers.ONE)
        _blas.holding(lambda: seen.append((_blas_threads(), threading.get_ident())))
        return "done"

    assert _blas.holding(call) == "done"
    assert seen == [(1, threading.get_ident())] * 4
    assert _blas._held.get() is None


@pytest.mark.parametrize("function", [_blas.holding, _threads.run])
def test_a_call_that_an_interrupt_has_ended_holds_it_no_more(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blas, "_LONG", 0.02)
    _blas._HOLD.enter(object(), threading.get_ident(), function)
    assert _blas_threads() == 1
    assert eventually(lambda: _blas_threads() == 2 and not _blas._HOLD.inside)


def test_the_thread_that_looks_for_interrupted_calls_ends_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blas, "_LONG", 0.001)
    for _ in range(2):
        _one_product()
        assert eventually(lambda: _blas._HOLD._is_guarded)
        assert eventually(lambda: not _blas._HOLD._is_guarded)


def test_the_main_thread_multiplies_itself() -> None:
    seen: list[Any] = []
    _blas.run(lambda _: seen.append((_blas_threads(), threading.get_ident())), range(2), _blas.Workers.ONE)
    assert seen == [(1, threading.get_ident())] * 2


def test_a_call_that_takes_long_is_not_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blas, "_LONG", 0.01)
    seen: list[int] = []
    _blas.holding(lambda: (_one_product(), time.sleep(0.1), seen.append(_blas_threads())))
    assert seen == [1]


def test_a_call_goes_on_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_blas, "start_new_thread", refuse)
    seen: list[int] = []
    _blas.holding(lambda: _blas.run(lambda _: seen.append(_blas_threads()), range(1), _blas.Workers.ONE))
    assert seen == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_a_forked_child_does_not_wait_for_its_parents_threads() -> None:
    with _blas._HOLD.at_one():
        child = os.fork()
        if child == 0:  # pragma: no cover  # its exit status shows what it did
            with _blas._HOLD.at_one():
                pass
            done: list[int] = []
            _threads.run(done.append, range(10))
            os._exit(_blas_threads() != 2 or len(done) != 10)
    for _ in range(100 * DEADLINE):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        time.sleep(0.01)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child waits for ever")
    assert status == 0


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timers")
@pytest.mark.parametrize("where", ["in a pool", "here", "in a call that holds it"])
def test_interrupts_leave_nothing_behind(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blas, "_LONG", 0.02)

    def calls() -> None:
        for _ in range(200):
            if where == "in a pool":
                _blas.run(lambda _: None, range(3), _blas.Workers.POOL)
            elif where == "here":
                _one_product()
            else:
                _blas.holding(_one_product)

    with interrupts() as handler:
        cut = [handler.during(calls, 1e-5 + n % 211 * 1e-6, again=3e-5 if n % 3 == 0 else None) for n in range(1000)]
    assert sum(cut) > 500
    assert eventually(lambda: _blas_threads() == 2 and not _blas._HOLD.inside)


def _network() -> Any:
    """Return a model with products of every size, and its input."""
    shapes = {"a": (64, 64, 3, 3), "d": (64, 1, 3, 3), "p": (8, 64, 1, 1), "m": (576, 700), "g": (700, 10)}
    draw = np.random.default_rng(0)
    weights = [numpy_helper.from_array(draw.standard_normal(shape, np.float32), name) for name, shape in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["1"], pads=[1] * 4),
        helper.make_node("Conv", ["1", "d"], ["2"], pads=[1] * 4, group=64),
        helper.make_node("Conv", ["2", "p"], ["3"], strides=[4, 4]),
        helper.make_node("Reshape", ["3", "shape"], ["4"]),
        helper.make_node("MatMul", ["4", "m"], ["5"]),
        helper.make_node("Gemm", ["5", "g"], ["y"]),
    ]
    weights.append(numpy_helper.from_array(np.array([-1, 576]), "shape"))
    x = draw.standard_normal((1, 64, 48, 48), np.float32)
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", 1, x.shape)],
        [helper.make_tensor_value_info("y", 1, ["N", 10])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), x


def test_a_model_has_one_thread_of_blas_for_every_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for operators that call NumPy's product themselves, on threads of the library or the caller's."""
    seen: list[Any] = []
    proto, x = _network()
    rep, multiply, add = backend.prepare(proto), np.matmul, _product.add

    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arrays: Any, **options: Any) -> Any:
            seen.append((_blas_threads(), threading.get_ident()))
            return function(*arrays, **options)

        return noted

    monkeypatch.setattr(np, "matmul", note(multiply))
    monkeypatch.setattr(_product, "add", note(add))
    rep.run([x])
    assert len(seen) >= 4
    assert {threads for threads, _ in seen} == {1}
    assert len({thread for _, thread in seen}) <= _threads.count() + 1  # and the calling thread


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((300, 200), (200, 1000)),
        ((4, 300, 200), (200, 250)),
        ((6, 1, 90, 100), (1, 7, 100, 64)),
        ((50, 64, 64), (50, 64, 64)),
        ((1, 1000), (1000, 900)),
        ((900,), (900, 800)),
        ((3, 0, 4), (4, 5)),
    ],
)
def test_products_of_stacks_by_our_threads(a: tuple[int, ...], b: tuple[int, ...], monkeypatch: Any) -> None:
    monkeypatch.setattr(_blas, "_SMALL", 1e6)
    draw = np.random.default_rng(1)
    left, right = (draw.integers(-3, 4, shape).astype(np.float32) for shape in (a, b))
    found = _blas.matmul(left, right)
    expected = np.einsum("...i,ij->...j" if len(a) == 1 else "...ij,...jk->...ik", left, right)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


def test_calls_from_many_threads_do_not_disturb_each_other() -> None:
    problems = [filled("conv", (2, 8 + n, 20, 21), (6, 8 + n, 3, 3), {}, "float32") for n in range(6)]
    expected = [gpuconv.conv(*arrays, **attributes) for arrays, attributes in problems]
    results: list[Any] = [None] * len(problems)

    def work(n: int) -> None:
        arrays, attributes = problems[n]
        for _ in range(5):
            results[n] = gpuconv.conv(*arrays, **attributes)

    _in_threads(work, len(problems))
    assert all(np.array_equal(a, b) for a, b in zip(results, expected, strict=True))


def test_bits_do_not_depend_on_what_other_threads_call() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((2, 48, 40, 41), (32, 48, 3, 3)))
    small, large = x[:1, :, :12, :12].copy(), np.concatenate([x] * 12)
    calls: list[Callable[[], Any]] = [lambda: gpuconv.conv(small, w), lambda: gpuconv.conv(large, w)]
    expected = [call() for call in calls]
    wrong: list[int] = []

    def work(n: int) -> None:
        rounds = range(30 if n % 2 == 0 else 3)
        wrong.extend(n for _ in rounds if not np.array_equal(calls[n % 2](), expected[n % 2]))

    _in_threads(work, 4)
    assert wrong == []


def _in_threads(work: Callable[[int], None], count: int) -> None:
    users = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for user in users:
        user.start()
    for user in users:
        user.join(DEADLINE)
        assert not user.is_alive()
