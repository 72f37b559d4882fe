"""Events, by the chapter "Event Management" of the runtime's documentation."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.gpu

INVALID_VALUE, NOT_READY, INVALID_HANDLE = 1, 600, 400


@pytest.fixture
def streams(cuda: Any) -> list[Any]:
    """Two non-blocking streams."""
    return [cuda.cupy.cuda.Stream(non_blocking=True) for _ in range(2)]


@pytest.fixture
def event(cuda: Any) -> Any:
    return cuda.cupy.cuda.Event()


def fill(cuda: Any, stream: Any, y: Any, value: float) -> None:
    with stream:
        cuda.launch("fill", y, y.size, value)


def test_an_event_that_was_never_recorded_is_done(cuda: Any, event: Any, streams: list[Any]) -> None:
    assert event.done
    event.synchronize()
    streams[0].wait_event(event)
    assert streams[0].done


def test_a_stream_waits_for_another_one_s_event(cuda: Any, event: Any, streams: list[Any]) -> None:
    y = cuda.cupy.empty(64, "f")
    fill(cuda, streams[0], y, 2.0)
    event.record(streams[0])
    streams[1].wait_event(event)
    with streams[1]:
        cuda.launch("add", y, y, 64, 1.0)
    streams[1].synchronize()
    assert (y.get() == 3).all()


@pytest.mark.usefixtures("emulated")
def test_a_stream_waits_for_no_more_than_the_event(cuda: Any, event: Any, streams: list[Any]) -> None:
    x, y = cuda.pinned(1), cuda.pinned(1)
    with streams[0]:
        cuda.launch("fill", x.ctypes.data, 1, 1.0)
        event.record()
        cuda.launch("fill", y.ctypes.data, 1, 1.0)
    streams[1].wait_event(event)
    streams[1].synchronize()
    assert (x[0], y[0]) == (1, 0)


def test_a_wait_is_for_what_the_event_was_when_the_wait_was_given(cuda: Any, event: Any, streams: list[Any]) -> None:
    y = cuda.cupy.empty(64, "f")
    fill(cuda, streams[0], y, 2.0)
    event.record(streams[0])
    streams[1].wait_event(event)
    event.record(cuda.cupy.cuda.Stream(non_blocking=True))
    with streams[1]:
        cuda.launch("add", y, y, 64, 1.0)
    streams[1].synchronize()
    assert (y.get() == 3).all()


@pytest.mark.usefixtures("emulated")
def test_an_event_that_is_recorded_again_stands_for_the_last_time(cuda: Any, event: Any, streams: list[Any]) -> None:
    y = cuda.cupy.empty(64, "f")
    fill(cuda, streams[0], y, 2.0)
    event.record(streams[0])
    event.record(cuda.cupy.cuda.Stream(non_blocking=True))
    streams[1].wait_event(event)
    with streams[1]:
        cuda.launch("add", y, y, 64, 1.0)
    with pytest.raises(cuda.runtime.CUDARuntimeError, match="uninitialised global read"):
        streams[1].synchronize()


def test_the_host_waits_for_an_event(cuda: Any, event: Any, streams: list[Any]) -> None:
    y = cuda.pinned(4)
    with streams[0]:
        cuda.launch("fill", y.ctypes.data, 4, 2.0)
    event.record(streams[0])
    event.synchronize()
    assert event.done
    assert y.tolist() == [2] * 4


@pytest.mark.usefixtures("emulated")
def test_who_polls_an_event_comes_to_an_end(cuda: Any, event: Any, streams: list[Any]) -> None:
    fill(cuda, streams[0], cuda.cupy.empty(1, "f"), 1.0)
    event.record(streams[0])
    answers = [cuda.runtime.eventQuery(event.ptr) for _ in range(8)]
    assert answers[0] == NOT_READY
    assert answers[-1] == 0


def test_time_passes_between_events(cuda: Any, event: Any, streams: list[Any]) -> None:
    end = cuda.cupy.cuda.Event()
    event.record(streams[0])
    fill(cuda, streams[0], cuda.cupy.empty(64, "f"), 1.0)
    end.record(streams[0])
    end.synchronize()
    assert cuda.cupy.cuda.get_elapsed_time(event, end) > 0
    assert cuda.cupy.cuda.get_elapsed_time(event, event) == 0


@pytest.mark.usefixtures("emulated")
def test_there_is_no_time_of_what_has_not_happened(cuda: Any, event: Any, streams: list[Any]) -> None:
    end = cuda.cupy.cuda.Event()
    event.record(streams[0])
    assert cuda.code(cuda.runtime.eventElapsedTime, event.ptr, end.ptr) == INVALID_HANDLE
    end.record(streams[0])
    assert cuda.code(cuda.runtime.eventElapsedTime, event.ptr, end.ptr) == NOT_READY


def test_events_without_timing_have_no_time(cuda: Any, event: Any, streams: list[Any]) -> None:
    end = cuda.cupy.cuda.Event(disable_timing=True)
    for each in (event, end):
        each.record(streams[0])
    end.synchronize()
    assert cuda.code(cuda.runtime.eventElapsedTime, event.ptr, end.ptr) == INVALID_HANDLE


def test_events_for_several_processes_have_no_time(cuda: Any) -> None:
    assert cuda.code(cuda.runtime.eventCreateWithFlags, cuda.runtime.eventInterprocess) == INVALID_VALUE


def test_a_wait_outlives_its_event(cuda: Any, streams: list[Any]) -> None:
    handle, y = cuda.runtime.eventCreateWithFlags(cuda.runtime.eventDisableTiming), cuda.cupy.empty(64, "f")
    fill(cuda, streams[0], y, 2.0)
    cuda.runtime.eventRecord(handle, streams[0].ptr)
    cuda.runtime.streamWaitEvent(streams[1].ptr, handle)
    cuda.runtime.eventDestroy(handle)
    with streams[1]:
        cuda.launch("add", y, y, 64, 1.0)
    streams[1].synchronize()
    assert (y.get() == 3).all()


@pytest.mark.usefixtures("emulated")
def test_an_event_that_is_no_more_is_not_used(cuda: Any, streams: list[Any]) -> None:
    handle = cuda.runtime.eventCreate()
    cuda.runtime.eventDestroy(handle)
    others = [cuda.cupy.cuda.Event() for _ in range(8)]
    calls = [
        (cuda.runtime.eventRecord, handle, streams[0].ptr),
        (cuda.runtime.streamWaitEvent, streams[0].ptr, handle),
        (cuda.runtime.eventSynchronize, handle),
        (cuda.runtime.eventDestroy, handle),
    ]
    assert [cuda.code(*call) for call in calls] == [INVALID_HANDLE] * len(calls)
    assert all(other.done for other in others)
