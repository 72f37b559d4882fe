"""Threads of ours, and BLAS held at one thread meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from operands import filled

import gpuconv
from gpuconv.cpu import _blas, _threads


def _blas_threads() -> int:
    functions = _blas._functions()
    if functions is None:
        pytest.skip("this NumPy's BLAS cannot be asked for its threads")
    return functions[0]()


@pytest.mark.parametrize("threads", ["1", "2", "7"])
def test_every_item_is_done_once(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", threads)
    done: list[int] = []
    _threads.run(done.append, range(500))
    assert sorted(done) == list(range(500))


@pytest.mark.parametrize("threads", ["1", "2"])
def test_an_error_ends_the_work_and_is_raised(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", threads)
    done: list[int] = []

    def work(item: int) -> None:
        if item == 3:
            raise ValueError(f"item {item}")
        time.sleep(0.001)
        done.append(item)

    with pytest.raises(ValueError, match="item 3"):
        _threads.run(work, range(1000))
    assert len(done) < 100
    _threads.run(done.append, [1000])  # the pool works on
    assert done[-1] == 1000


def test_errstate_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "2")
    seen: list[dict[str, str]] = []
    with np.errstate(all="ignore"):
        _threads.run(lambda _: seen.append(dict(np.geterr())), range(4))
    assert seen == [dict.fromkeys(("divide", "over", "under", "invalid"), "ignore")] * 4


@pytest.mark.parametrize("text", ["0", "-2", "two", "1.5"])
def test_a_thread_count_must_be_a_positive_integer(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", text)
    with pytest.raises(gpuconv.ArgumentError) as caught:
        gpuconv.conv(*filled("conv", (1, 2, 9), (2, 2, 3), {}, "float32")[0])
    assert str(caught.value) == f"GPUCONV_NUM_THREADS must be a positive integer, not {text!r}"


def test_blas_gets_its_threads_back_from_the_last_that_held_it_at_one() -> None:
    before = _blas_threads()
    with _blas._MODES.entered(team=False):
        assert _blas_threads() == 1
        with _blas._MODES.entered(team=False):
            assert _blas_threads() == 1
            assert _blas._MODES.threads() == before
        assert _blas_threads() == 1
    assert _blas_threads() == before


def test_blas_gets_its_threads_back_after_an_error() -> None:
    before = _blas_threads()
    with pytest.raises(KeyError), _blas._MODES.entered(team=False):
        raise KeyError
    assert _blas_threads() == before


@pytest.mark.parametrize("team", [False, True])
def test_one_mode_of_blas_waits_for_the_other(team: bool) -> None:
    before, entered = _blas_threads(), threading.Event()
    seen: list[int] = []

    def other() -> None:
        with _blas._MODES.entered(not team):
            seen.append(_blas_threads())
            entered.set()

    waiting = threading.Thread(target=other)
    with _blas._MODES.entered(team):
        waiting.start()
        assert not entered.wait(0.05)
    waiting.join(10)
    assert seen == [1 if team else before]
    assert _blas_threads() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
@pytest.mark.parametrize("team", [False, True])
def test_a_forked_child_does_not_wait_for_its_parents_threads(team: bool) -> None:
    before = _blas_threads()
    with _blas._MODES.entered(team):
        child = os.fork()
        if child == 0:  # pragma: no cover  # what it does is seen by its exit
            with _blas._MODES.entered(not team):
                pass
            os._exit(_blas_threads() != before)
    for _ in range(1000):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        time.sleep(0.01)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child waits for ever")
    assert status == 0


def test_small_products_are_for_the_threads_of_blas() -> None:
    threads = _blas_threads()
    assert not _blas.team(10, 1)
    assert _blas.team(10, threads) == (threads > 1)
    assert not _blas.team(10, threads + 1)  # BLAS was told otherwise
    assert not _blas.team(10**12, threads)


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_results_are_exact_with_any_number_of_threads(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, attributes = filled("conv", (3, 40, 37, 35), (50, 40, 3, 3), {"pads": [1, 1, 1, 1]}, "float32")
    expected = gpuconv.conv(*arrays, **attributes)
    monkeypatch.setenv("GPUCONV_NUM_THREADS", threads)
    assert np.array_equal(gpuconv.conv(*arrays, **attributes), expected)  # sums of integers: exact in any order


def test_results_are_exact_where_blas_cannot_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, attributes = filled("conv", (3, 40, 37, 35), (50, 40, 3, 3), {"pads": [1, 1, 1, 1]}, "float32")
    expected = gpuconv.conv(*arrays, **attributes)
    monkeypatch.setattr(_blas, "_functions", lambda: None)
    assert np.array_equal(gpuconv.conv(*arrays, **attributes), expected)


def test_calls_from_many_threads_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "2")
    before = _blas_threads()
    problems = [filled("conv", (2, 8 + n, 20, 21), (6, 8 + n, 3, 3), {}, "float32") for n in range(6)]
    expected = [gpuconv.conv(*arrays, **attributes) for arrays, attributes in problems]
    results: list[Any] = [None] * len(problems)

    def work(n: int) -> None:
        arrays, attributes = problems[n]
        for _ in range(5):
            results[n] = gpuconv.conv(*arrays, **attributes)

    users = [threading.Thread(target=work, args=(n,)) for n in range(len(problems))]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert all(np.array_equal(a, b) for a, b in zip(results, expected, strict=True))
    assert _blas_threads() == before
