"""BLAS's own threads: held at one meanwhile, given back whatever happens; run by cpu/test_threads.py in a process where
BLAS has two.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cpu import _blas, _threads
from tests.harness.interruption import DEADLINE, eventually, interrupts
from tests.oracle.operands import filled


def _blas_threads() -> int:
    functions = _blas._functions()
    if functions is None:
        pytest.skip("this NumPy's BLAS cannot be asked for its threads")
    return functions[0]()


@pytest.fixture(autouse=True)
def _two_threads() -> Any:
    """Every test begins with two threads of BLAS and nobody inside, and leaves it so."""
    if _blas_threads() != 2:
        pytest.skip("this system gives BLAS one thread only")
    yield
    assert eventually(lambda: _blas_threads() == 2 and not _blas._MODES.inside)


def _mode(team: bool) -> AbstractContextManager[None]:
    return _blas._MODES.teamed() if team else _blas._MODES.held_at_one()


def test_the_last_that_held_it_at_one_gives_it_back_its_threads() -> None:
    with _mode(team=False):
        assert _blas_threads() == 1
        with _mode(team=False):
            assert _blas_threads() == 1
            assert _blas._MODES.threads() == 2
        assert _blas_threads() == 1
    assert _blas_threads() == 2


def test_the_first_of_two_may_leave_first() -> None:
    first, second = _mode(team=False), _mode(team=False)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert _blas_threads() == 1
    assert _blas._MODES.threads() == 2
    second.__exit__(None, None, None)
    assert _blas_threads() == 2


@pytest.mark.parametrize("team", [False, True])
def test_it_gets_its_threads_back_after_an_error(team: bool) -> None:
    with pytest.raises(KeyError), _mode(team):
        raise KeyError
    assert _blas_threads() == 2


def test_a_setting_of_somebody_else_is_given_back() -> None:
    put = _blas._functions()[1]  # type: ignore[index]
    try:
        for number in (1, 2):
            put(number)
            with _mode(team=False):
                assert _blas_threads() == 1
            assert _blas_threads() == number
    finally:
        put(2)


@pytest.mark.parametrize("team", [False, True])
def test_one_mode_waits_for_the_other(team: bool) -> None:
    entered = threading.Event()
    seen: list[int] = []

    def other() -> None:
        with _mode(not team):
            seen.append(_blas_threads())
            entered.set()

    waiting = threading.Thread(target=other)
    with _mode(team):
        waiting.start()
        assert not entered.wait(0.05)
    waiting.join(DEADLINE)
    assert seen == [1 if team else 2]
    assert _blas_threads() == 2


def test_each_mode_has_the_threads_that_it_asks_for() -> None:
    for team, expected in ((True, 2), (False, 1)):
        seen: list[int] = []
        _blas.run(lambda _, seen=seen: seen.append(_blas_threads()), range(20), team)
        assert seen == [expected] * 20


def test_a_team_comes_after_those_who_hold_it_at_one() -> None:
    """Not at once on the calling thread, but by the pool."""
    seen: list[Any] = []

    def hold() -> None:
        with _mode(team=False):
            inside.set()
            release.wait(DEADLINE)
            seen.append("left")

    inside, release = threading.Event(), threading.Event()
    holding = threading.Thread(target=hold)
    holding.start()
    inside.wait(DEADLINE)
    threading.Timer(0.05, release.set).start()
    _blas.run(lambda item: seen.append((item, _blas_threads())), range(3), True)
    holding.join(DEADLINE)
    assert seen == ["left", (0, 2), (1, 2), (2, 2)]


def test_who_waits_has_a_turn() -> None:
    """Teams that come one after the other do not keep out somebody who wants to hold it at one."""
    done = threading.Event()

    def hold() -> None:
        with _mode(team=False):
            done.set()

    holding = threading.Thread(target=hold)
    stop = threading.Event()

    def teams() -> None:
        while not stop.is_set():
            _blas.run(lambda _: time.sleep(0.001), range(2), True)

    users = [threading.Thread(target=teams) for _ in range(3)]
    for user in users:
        user.start()
    time.sleep(0.02)
    holding.start()
    assert done.wait(DEADLINE)
    stop.set()
    for user in (*users, holding):
        user.join(DEADLINE)


def test_a_stay_that_an_interrupt_has_left_behind_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blas, "_LONG", 0.05)
    left_by_this_thread = _blas._Stay()
    left_by_another: list[Any] = []
    ended = threading.Thread(target=lambda: left_by_another.append(_blas._Stay()))
    ended.start()
    ended.join()
    for stay in (left_by_this_thread, *left_by_another):
        assert _blas._MODES.joined(stay)
    done: list[int] = []
    _blas.run(done.append, range(10), False)
    assert sorted(done) == list(range(10))
    assert not _blas._MODES.inside


def test_a_team_at_work_is_not_taken_for_one_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blas, "_LONG", 0.01)
    order: list[str] = []

    def work(_: int) -> None:
        started.set()
        time.sleep(0.2)
        order.append(f"team with {_blas_threads()}")

    started = threading.Event()
    user = threading.Thread(target=_blas.run, args=(work, range(1), True))
    user.start()
    started.wait(DEADLINE)
    with _mode(team=False):
        order.append("held")
    user.join(DEADLINE)
    assert order == ["team with 2", "held"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
@pytest.mark.parametrize("team", [False, True])
def test_a_forked_child_does_not_wait_for_its_parents_threads(team: bool) -> None:
    with _mode(team):
        child = os.fork()
        if child == 0:  # pragma: no cover  # what it does is seen by its exit
            with _mode(not team):
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


def test_small_products_are_for_its_own_threads() -> None:
    assert not _blas.team(10, 1)
    assert _blas.team(10, 2)
    assert not _blas.team(10, 3)  # BLAS was told otherwise
    assert not _blas.team(10**12, 2)
    with _mode(team=False):
        assert _blas.team(10, 2)  # whoever else is inside


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timers")
@pytest.mark.parametrize("team", [False, True])
def test_interrupts_leave_nothing_behind(team: bool) -> None:
    def calls() -> None:
        for _ in range(200):
            _blas.run(lambda _: None, range(3), team)

    with interrupts() as handler:
        cut = [handler.during(calls, 1e-5 + n % 211 * 1e-6, again=3e-5 if n % 3 == 0 else None) for n in range(1000)]
    assert sum(cut) > 500
    seen: list[int] = []
    _blas.run(lambda _: seen.append(_blas_threads()), range(4), not team)
    assert seen == [1 if team else 2] * 4


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
