"""The library's threads: their work, their state after an interrupt, and their number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cpu import _blas, _threads
from tests.harness.interruption import DEADLINE, Interrupt, eventually, interrupts
from tests.oracle.operands import filled

pytestmark = pytest.mark.slow

NEEDS_SIGNALS = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timers")


def pool_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"gpuconv-{os.getpid()}"]


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
    _threads.run(done.append, [1000])  # the pool continues
    assert done[-1] == 1000


@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_context_is_entered_once_around_all_items(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", threads)
    seen: list[Any] = []

    @contextmanager
    def within() -> Iterator[None]:
        seen.append(("in", threading.current_thread() is threading.main_thread()))
        yield
        seen.append(("out", threading.current_thread() is threading.main_thread()))

    _threads.run(seen.append, range(50), within=within)
    assert seen[0] == ("in", threads == "1")
    assert seen[-1] == ("out", threads == "1")
    assert sorted(seen[1:-1]) == list(range(50))


def test_an_error_on_the_way_in_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "2")
    done: list[int] = []

    @contextmanager
    def within() -> Iterator[None]:
        raise KeyError("closed")
        yield

    with pytest.raises(KeyError, match="closed"):
        _threads.run(done.append, range(50), within=within)
    assert done == []


def test_errstate_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "2")
    seen: list[dict[str, str]] = []
    with np.errstate(all="ignore"):
        _threads.run(lambda _: seen.append(dict(np.geterr())), range(4))
    assert seen == [dict.fromkeys(("divide", "over", "under", "invalid"), "ignore")] * 4


# ---------------------------------------------------------------- interrupts


@NEEDS_SIGNALS
def test_after_an_interrupt_nothing_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "2")
    begun: list[int] = []
    done: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 3:
            os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(0.05)
        done.append(item)

    with interrupts(times=1), pytest.raises(Interrupt):
        _threads.run(work, range(1000))
    assert sorted(begun) == sorted(done)
    assert 4 <= len(done) < 20
    time.sleep(0.15)
    assert sorted(begun) == sorted(done)  # no other item has been started
    _threads.run(done.append, [1000, 1001])
    assert done[-2:] in ([1000, 1001], [1001, 1000])


@NEEDS_SIGNALS
def test_a_second_interrupt_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "2")
    release = threading.Event()
    begun: list[int] = []
    done: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        while handler.left and item == 0:
            os.kill(os.getpid(), signal.SIGALRM)
            time.sleep(0.02)
        release.wait(DEADLINE)
        done.append(item)

    with interrupts(times=2) as handler, pytest.raises(Interrupt):
        _threads.run(work, range(1000))
    assert done == []  # the started items are still running
    release.set()
    _threads.run(lambda _: None, range(4))
    assert eventually(lambda: len(done) == len(begun))
    assert len(done) <= 2  # and the threads have been told to stop


@NEEDS_SIGNALS
@pytest.mark.parametrize(
    ("operator", "x", "w", "attributes"),
    [
        ("conv", (4, 64, 56, 56), (64, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
        ("conv_transpose", (2, 32, 40, 40), (32, 32, 4, 4), {"strides": [2, 2]}),
        ("max_pool", (8, 64, 112, 112), None, {"kernel_shape": [5, 5]}),
    ],
    ids=["conv", "conv_transpose", "max_pool"],
)
def test_after_an_interrupt_nothing_is_written(
    operator: str, x: Any, w: Any, attributes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "2")
    arrays = [np.ones(shape, np.float32) for shape in (x, w) if shape is not None]
    call = getattr(gpuconv, operator)
    out = np.empty_like(call(*arrays, **attributes))
    caught = 0
    with interrupts() as handler:
        for n in range(1, 40):
            out.fill(-7)
            if handler.during(lambda: call(*arrays, **attributes, out=out), n * 0.0005):
                caught += 1
                before = out.copy()
                time.sleep(0.002)
                assert np.array_equal(out, before)
    assert caught > 3


@NEEDS_SIGNALS
def test_floating_point_warnings_are_as_they_were_after_interrupts() -> None:
    x = np.ones((1, 2, 6, 6), np.float32)
    before = np.geterr()

    def calls() -> None:
        for _ in range(50):
            gpuconv.max_pool(x, kernel_shape=[2, 2])
            gpuconv.conv(x, x[:, :, :2, :2])

    calls()
    with interrupts() as handler:
        cut = 0
        for n in range(1000):
            cut += handler.during(calls, 1e-5 + n % 97 * 2e-6)
            assert np.geterr() == before
    assert cut > 500


# ---------------------------------------------------------------- how many


@pytest.mark.parametrize("text", ["0", "-2", "two", "1.5", "10000"])
def test_a_thread_count_must_be_a_positive_integer(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", text)
    with pytest.raises(gpuconv.ArgumentError) as caught:
        gpuconv.conv(*filled("conv", (1, 2, 9), (2, 2, 3), {}, "float32")[0])
    assert str(caught.value) == f"GPUCONV_NUM_THREADS must be an integer from 1 to 9999, not {text!r}"


def test_the_threads_of_another_number_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads in (3, 5, 2):
        monkeypatch.setenv("GPUCONV_NUM_THREADS", str(threads))
        _threads.run(lambda _: None, range(8))
        assert eventually(lambda threads=threads: len(pool_threads()) == threads)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinities")
def test_threads_follow_a_changed_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "2")
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []

    def look(_: int) -> None:
        seen.append(os.sched_getaffinity(threading.get_native_id()))

    try:
        for processors in ({min(before)}, {max(before)}, before):
            os.sched_setaffinity(0, processors)
            seen.clear()
            _threads.run(look, range(8))
            assert seen
            assert all(each <= processors for each in seen)
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinities")
def test_threads_have_a_processor_each_where_there_is_one_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    processors = os.sched_getaffinity(0)
    if len(processors) < 2:
        pytest.skip("there is one processor")
    monkeypatch.setenv("GPUCONV_NUM_THREADS", str(len(processors)))
    seen: dict[int, set[int]] = {}

    def look(_: int) -> None:
        time.sleep(0.001)
        seen[threading.get_native_id()] = os.sched_getaffinity(threading.get_native_id())

    assert eventually(lambda: _threads.run(look, range(50)) is None and len(seen) >= 2)
    assert all(len(each) == 1 for each in seen.values())
    assert len(set.union(*seen.values())) == len(seen)


VERSION_2 = {"proc": "0::/a/b\n", "files": {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}}
VERSION_1 = {
    "proc": "5:memory:/x\n3:cpu,cpuacct:/x\n0::/x\n",
    "files": {"cpu,cpuacct/x/cpu.cfs_quota_us": "300000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
}


@pytest.mark.parametrize(
    ("proc", "files", "expected"),
    [
        (VERSION_2["proc"], VERSION_2["files"], 2),  # one and a half, of the group above
        (VERSION_1["proc"], VERSION_1["files"], 3),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/not/seen/from/inside\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/../../other\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("0::/\n", {"cpu.max": "nonsense"}, None),
        ("", {}, None),
    ],
)
def test_quotas_of_processor_time_count(proc: str, files: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text(proc)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    found = _threads._quota.__wrapped__(str(tmp_path / "cgroup"), str(tmp_path / "fs"))
    assert found == (2**31 if expected is None else expected)


def test_a_quota_bounds_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUCONV_NUM_THREADS", raising=False)
    monkeypatch.setattr(_threads, "_processors", lambda: tuple(range(8)))
    monkeypatch.setattr(_threads, "_quota", lambda: 3)
    assert _threads.count() == 3
    monkeypatch.setattr(_threads, "_quota", lambda: 30)
    assert _threads.count() == 8


def test_who_is_alone_has_one_thread_for_as_long_as_that_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUCONV_NUM_THREADS", raising=False)
    monkeypatch.setattr(_threads, "_processors", lambda: tuple(range(8)))
    monkeypatch.setattr(_threads, "_quota", lambda: 8)
    with _threads.single_threaded():
        assert _threads.count() == 1
    assert _threads.count() == 8


def test_what_is_not_to_be_done_side_by_side_is_done_in_order_by_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "4")
    seen: list[Any] = []
    _threads.run(lambda item: seen.append((item, threading.get_ident())), range(40), side_by_side=False)
    assert seen == [(item, threading.get_ident()) for item in range(40)]


def test_the_caller_does_the_work_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_threads, "_current", None)
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "2")
    done: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(_threads, "start_new_thread", refuse)
        _threads.run(done.append, range(10))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        patch.setattr(_threads, "_LOST", 0.01)
        _threads.run(done.append, range(10, 20))
    assert done == list(range(20))


def test_the_caller_does_no_work_while_threads_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "2")
    monkeypatch.setattr(_threads, "_LOST", 0.005)
    seen: set[int] = set()

    def work(_: int) -> None:
        time.sleep(0.03)
        seen.add(threading.get_ident())

    _threads.run(work, range(8))
    assert threading.get_ident() not in seen


def test_a_pool_is_used_again_for_as_many_threads_in_the_same_process_on_the_same_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_threads, "_current", None)
    monkeypatch.setattr(_threads, "_processors", lambda: (0, 1, 2))
    pools = [_threads._pool(3)]
    assert _threads._pool(3) is pools[0]
    for change in (lambda: None, lambda: monkeypatch.setattr(_threads, "_processors", lambda: (0, 2))):
        change()
        pools.append(_threads._pool(4))
        assert _threads._pool(4) is pools[-1]
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)  # after a fork
    pools.append(_threads._pool(4))
    assert len({id(pool) for pool in pools}) == 4


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinities")
def test_threads_have_processors_of_their_own_only_where_there_are_as_many() -> None:
    for threads, processors, expected in (
        (2, (4, 7), [4, 7]),
        (3, (1, 2, 3), [1, 2, 3]),
        (2, (1, 2, 3), [None, None]),
        (4, (1, 2, 3), [None] * 4),
    ):
        assert _threads._Pool((os.getpid(), threads, processors))._places() == expected


@pytest.mark.parametrize("within", [None, nullcontext])
def test_one_thread_is_the_caller_s(within: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "2")
    seen: list[int] = []

    def look(_: int) -> None:
        seen.append(threading.get_ident())

    here = threading.get_ident()
    _threads.run(look, range(1), within=within)
    assert seen == [here], "a single item wakes nobody"
    _threads.run(look, range(2), within=within)
    assert len(seen) == 3
    assert here not in seen[1:], "two items are done by threads of the pool"
    assert all(thread.daemon for thread in pool_threads())
    _threads.run(look, [], within=within)
    assert len(seen) == 3


def test_a_pool_is_deserted_when_none_of_its_threads_is_left() -> None:
    pool = _threads._Pool((os.getpid(), 2, (0,)))
    gone, there = threading.Thread(target=int), threading.current_thread()
    for started, threads, expected in ((True, [gone], True), (True, [], True), (True, [gone, there], False)):
        pool._is_started, pool._threads = started, threads
        assert pool.is_deserted() == expected


# ---------------------------------------------------------------- BLAS's threads


def test_blas_keeps_its_threads() -> None:
    """In a separate process: here BLAS may have only one thread, with which none of these tests could fail."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    environment |= {"OPENBLAS_NUM_THREADS": "2", "GPUCONV_NUM_THREADS": "2"}
    path = str(Path(__file__).with_name("blas_modes.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10 * DEADLINE)
    assert done.returncode == 0, done.stdout


def test_results_are_exact_where_blas_cannot_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, attributes = filled("conv", (3, 40, 37, 35), (50, 40, 3, 3), {"pads": [1, 1, 1, 1]}, "float32")
    expected = gpuconv.conv(*arrays, **attributes)
    monkeypatch.setattr(_blas, "_functions", lambda: None)
    assert np.array_equal(gpuconv.conv(*arrays, **attributes), expected)


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_results_are_exact_with_any_number_of_threads(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, attributes = filled("conv", (3, 40, 37, 35), (50, 40, 3, 3), {"pads": [1, 1, 1, 1]}, "float32")
    expected = gpuconv.conv(*arrays, **attributes)
    monkeypatch.setenv("GPUCONV_NUM_THREADS", threads)
    assert np.array_equal(gpuconv.conv(*arrays, **attributes), expected)  # sums of integers: exact in any order


def test_what_does_not_multiply_has_the_same_bits_with_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 32, 96, 97), np.float32)  # large enough for several threads
    x[:, :, ::7, ::5] = rng.choice([0.0, -0.0, np.nan, np.inf], x[:, :, ::7, ::5].shape)
    window: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    found = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("GPUCONV_NUM_THREADS", threads)
        y, indices = gpuconv.max_pool(x, **window, return_indices=True)
        dx = gpuconv.max_pool_grad(y, indices, x_shape=x.shape, **window)
        db = gpuconv.conv_bias_grad(x)
        back = gpuconv.max_unpool(y, indices, **window)
        found.append([array.tobytes() for array in (y, indices, dx, db, back)])
    assert found[0] == found[1] == found[2]
