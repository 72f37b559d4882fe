"""Streams, by "Stream Management" of the runtime's documentation and "Stream synchronization behavior"."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.gpu

INVALID_VALUE, NOT_READY, INVALID_HANDLE = 1, 600, 400
LEGACY, PER_THREAD = 1, 2
LAUNCHES = 50


@pytest.fixture
def stream(cuda: Any) -> Any:
    return cuda.cupy.cuda.Stream(non_blocking=True)


@pytest.fixture
def blocking(cuda: Any) -> Any:
    return cuda.cupy.cuda.Stream()


def filled(cuda: Any, stream: Any, value: float) -> Any:
    """Return an array, after a kernel that fills it has been enqueued on a stream."""
    y = cuda.cupy.empty(64, "f")
    with stream:
        cuda.launch("fill", y, 64, value)
    return y


# ---------------------------------------------------------------- order


def test_a_stream_runs_what_it_was_given_in_this_order(cuda: Any, stream: Any) -> None:
    y = filled(cuda, stream, 0.0)
    with stream:
        for step in range(LAUNCHES):
            cuda.launch("add", y, y, 64, float(step))
    stream.synchronize()
    assert (y.get() == sum(range(LAUNCHES))).all()


def test_the_legacy_stream_waits_for_blocking_streams(cuda: Any, blocking: Any) -> None:
    y = filled(cuda, blocking, 2.0)
    cuda.launch("add", y, y, 64, 1.0)
    cuda.runtime.streamSynchronize(LEGACY)
    assert (y.get() == 3).all()


def test_blocking_streams_wait_for_the_legacy_stream(cuda: Any, blocking: Any) -> None:
    y = filled(cuda, cuda.cupy.cuda.Stream.null, 2.0)
    with blocking:
        cuda.launch("add", y, y, 64, 1.0)
    blocking.synchronize()
    assert (y.get() == 3).all()


def test_blocking_streams_wait_for_each_other_where_the_legacy_one_was_used_between(cuda: Any, blocking: Any) -> None:
    y, last = filled(cuda, blocking, 2.0), cuda.cupy.cuda.Stream()
    cuda.launch("fill", cuda.cupy.empty(1, "f"), 1, 0.0)
    with last:
        cuda.launch("add", y, y, 64, 1.0)
    last.synchronize()
    assert (y.get() == 3).all()


def test_the_stream_of_a_thread_waits_for_the_legacy_one(cuda: Any) -> None:
    y, mine = filled(cuda, cuda.cupy.cuda.Stream.null, 2.0), cuda.cupy.cuda.Stream.ptds
    with mine:
        cuda.launch("add", y, y, 64, 1.0)
    cuda.launch("add", y, y, 64, 1.0)
    cuda.runtime.deviceSynchronize()
    assert (y.get() == 4).all()
    assert cuda.code(cuda.runtime.streamQuery, PER_THREAD) == 0


@pytest.mark.usefixtures("emulated")
def test_non_blocking_streams_and_the_legacy_one_do_not_wait_for_each_other(cuda: Any, stream: Any) -> None:
    y = filled(cuda, cuda.cupy.cuda.Stream.null, 2.0)
    with stream:
        cuda.launch("add", y, y, 64, 1.0)
    with pytest.raises(cuda.runtime.CUDARuntimeError, match="uninitialised global read"):
        stream.synchronize()
    z = filled(cuda, stream, 2.0)
    cuda.launch("add", z, z, 64, 1.0)
    with pytest.raises(cuda.runtime.CUDARuntimeError, match="uninitialised global read"):
        cuda.runtime.streamSynchronize(LEGACY)


@pytest.mark.usefixtures("emulated")
def test_blocking_streams_do_not_wait_for_each_other(cuda: Any, blocking: Any) -> None:
    y = filled(cuda, blocking, 2.0)
    other = cuda.cupy.cuda.Stream()
    with other:
        cuda.launch("add", y, y, 64, 1.0)
    with pytest.raises(cuda.runtime.CUDARuntimeError, match="uninitialised global read"):
        other.synchronize()


# ---------------------------------------------------------------- late


@pytest.mark.usefixtures("emulated")
def test_nothing_runs_before_something_waits_for_it(cuda: Any, stream: Any, blocking: Any) -> None:
    y = cuda.pinned(4)
    for each in (stream, blocking):
        with each:
            cuda.launch("add", y.ctypes.data, y.ctypes.data, 4, 1.0)
    assert y.tolist() == [0] * 4
    stream.synchronize()
    assert y.tolist() == [1] * 4
    blocking.synchronize()
    assert y.tolist() == [2] * 4


@pytest.mark.usefixtures("emulated")
def test_who_polls_a_stream_comes_to_an_end(cuda: Any, stream: Any) -> None:
    filled(cuda, stream, 1.0)
    answers = [cuda.runtime.streamQuery(stream.ptr) for _ in range(8)]
    assert answers[0] == NOT_READY
    assert answers[-1] == 0
    assert answers == sorted(answers, reverse=True)


def test_a_stream_is_ready_when_all_of_it_is_done(cuda: Any, stream: Any) -> None:
    assert stream.done
    filled(cuda, stream, 1.0)
    stream.synchronize()
    assert stream.done


@pytest.mark.usefixtures("emulated")
def test_making_an_array_is_no_work_of_a_stream(cuda: Any, stream: Any) -> None:
    with stream:
        cuda.cupy.empty(64, "f")
    assert cuda.runtime.streamQuery(stream.ptr) == 0


# ---------------------------------------------------------------- streams that come and go


def test_what_a_stream_was_given_is_done_after_its_end(cuda: Any) -> None:
    handle = cuda.runtime.streamCreateWithFlags(cuda.runtime.streamNonBlocking)
    y = filled(cuda, cuda.stream(handle), 2.0)
    cuda.runtime.streamDestroy(handle)
    cuda.runtime.deviceSynchronize()
    assert (y.get() == 2).all()


def test_the_legacy_stream_waits_for_blocking_streams_that_are_no_more(cuda: Any) -> None:
    handle = cuda.runtime.streamCreate()
    y = filled(cuda, cuda.stream(handle), 2.0)
    cuda.runtime.streamDestroy(handle)
    cuda.launch("add", y, y, 64, 1.0)
    cuda.runtime.streamSynchronize(LEGACY)
    assert (y.get() == 3).all()


@pytest.mark.usefixtures("emulated")
def test_a_stream_that_is_no_more_is_not_used(cuda: Any) -> None:
    runtime, handle = cuda.runtime, cuda.runtime.streamCreate()
    runtime.streamDestroy(handle)
    others = [runtime.streamCreate() for _ in range(8)]
    x = cuda.cupy.zeros(4, "f")
    calls = [
        (runtime.streamSynchronize, handle),
        (runtime.streamDestroy, handle),
        (runtime.memsetAsync, x.data.ptr, 0, 4, handle),
        (runtime.streamGetFlags, handle),
        (runtime.streamBeginCapture, handle),
    ]
    assert [cuda.code(*call) for call in calls] == [INVALID_HANDLE] * len(calls)
    with cuda.stream(handle):
        assert cuda.code(cuda.launch, "fill", x, 4, 1.0) == INVALID_HANDLE
    for other in others:
        runtime.streamDestroy(other)


def test_a_stream_keeps_its_flags_and_its_priority(cuda: Any) -> None:
    runtime = cuda.runtime
    handles = [runtime.streamCreate(), runtime.streamCreateWithPriority(runtime.streamNonBlocking, -1)]
    assert [runtime.streamGetFlags(handle) for handle in handles] == [0, runtime.streamNonBlocking]
    assert [runtime.streamGetPriority(handle) for handle in handles] == [0, -1]
    for handle in handles:
        runtime.streamDestroy(handle)


def test_priorities_that_a_device_does_not_have_become_the_nearest(cuda: Any) -> None:
    runtime = cuda.runtime
    handles = [runtime.streamCreateWithPriority(0, priority) for priority in (100, -100, -1000)]
    priorities = [runtime.streamGetPriority(handle) for handle in handles]
    assert priorities[0] == 0 >= priorities[1] == priorities[2] > -100
    for handle in handles:
        runtime.streamDestroy(handle)


def test_flags_that_there_are_not_are_refused(cuda: Any) -> None:
    assert cuda.code(cuda.runtime.streamCreateWithFlags, 2) == INVALID_VALUE


def test_functions_of_the_host_run_in_the_order_of_their_stream(cuda: Any, stream: Any) -> None:
    y, seen = cuda.pinned(1, 1), []
    with stream:
        cuda.launch("add", y.ctypes.data, y.ctypes.data, 1, 1.0)
        stream.launch_host_func(lambda _: seen.append(float(y[0])), None)
        cuda.launch("add", y.ctypes.data, y.ctypes.data, 1, 1.0)
    stream.synchronize()
    assert (seen, float(y[0])) == ([2], 3)
