"""Stream capture and graphs, by "Creating a Graph Using Stream Capture" of NVIDIA's CUDA C++ Programming Guide."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

GLOBAL, THREAD_LOCAL, RELAXED = range(3)  # cudaStreamCaptureMode
ILLEGAL_STATE = 401
UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED = range(900, 905)
ISOLATION, IMPLICIT, CAPTURED_EVENT, WRONG_THREAD = range(905, 909)
NONE, ACTIVE = False, True


@pytest.fixture
def streams(cuda: Any) -> Iterator[list[Any]]:
    """Three non-blocking streams; a capture that is still active at the end of the test is dropped."""
    made = [cuda.cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    yield made
    for stream in made:
        end(cuda, stream)


@pytest.fixture
def origin(streams: list[Any]) -> Any:
    return streams[0]


@pytest.fixture
def y(cuda: Any) -> Any:
    zeros = cuda.cupy.zeros(64, "f")
    cuda.runtime.deviceSynchronize()
    return zeros


def add(cuda: Any, stream: Any, y: Any, value: float = 1.0) -> int:
    """Launch ``y += value`` on a stream and return the error code."""
    with stream:
        return int(cuda.code(cuda.launch, "add", y, y, 64, value))


def end(cuda: Any, stream: Any) -> int:
    """End a capture, destroy its graph, and return the error code."""
    return int(cuda.code(lambda: cuda.runtime.graphDestroy(cuda.runtime.streamEndCapture(stream.ptr))))


def begin(cuda: Any, stream: Any, mode: int = RELAXED) -> None:
    cuda.runtime.streamBeginCapture(stream.ptr, mode)


# ---------------------------------------------------------------- what a graph does


def test_nothing_runs_while_it_is_captured(cuda: Any, origin: Any, y: Any) -> None:
    begin(cuda, origin)
    assert add(cuda, origin, y) == 0
    assert origin.is_capturing()
    assert end(cuda, origin) == 0
    assert not origin.is_capturing()
    cuda.runtime.deviceSynchronize()
    assert not y.get().any()


def test_a_graph_runs_whenever_it_is_launched_in_the_stream_s_order(cuda: Any, origin: Any, y: Any) -> None:
    with origin:
        origin.begin_capture()
        add(cuda, origin, y, 2.0)
        graph = origin.end_capture()
        graph.launch()
        add(cuda, origin, y, 10.0)
        graph.launch()
    origin.synchronize()
    assert (y.get() == 14).all()


def test_one_graph_in_two_streams_runs_once_at_a_time(cuda: Any, streams: list[Any], y: Any) -> None:
    """Launches of one executable graph are serialised, also on different streams."""
    with streams[0]:
        streams[0].begin_capture()
        for _ in range(3):
            add(cuda, streams[0], y)
        graph = streams[0].end_capture()
    graph.launch(streams[1])
    graph.launch(streams[2])
    streams[2].synchronize()
    assert (y.get() == 6).all()


def test_a_graph_can_be_part_of_another_one(cuda: Any, origin: Any, y: Any) -> None:
    with origin:
        origin.begin_capture()
        add(cuda, origin, y)
        inner = origin.end_capture()
        origin.begin_capture()
        inner.launch()
        add(cuda, origin, y, 4.0)
        outer = origin.end_capture()
        outer.launch()
    origin.synchronize()
    assert (y.get() == 5).all()


def test_copies_and_memsets_are_captured_as_kernels_are(cuda: Any, origin: Any, y: Any) -> None:
    z, host = cuda.cupy.empty(64, "f"), cuda.pinned(64)
    with origin:
        origin.begin_capture()
        cuda.runtime.memsetAsync(y.data.ptr, 0, 256, origin.ptr)
        add(cuda, origin, y, 3.0)
        cuda.runtime.memcpyAsync(z.data.ptr, y.data.ptr, 256, 4, origin.ptr)
        cuda.runtime.memcpyAsync(host.ctypes.data, z.data.ptr, 256, 4, origin.ptr)
        graph = origin.end_capture()
        assert not host.any()
        graph.launch()
    origin.synchronize()
    assert (host == 3).all()


def test_a_launched_graph_outlives_its_handle(cuda: Any, origin: Any, y: Any) -> None:
    with origin:
        origin.begin_capture()
        add(cuda, origin, y)
        origin.end_capture().launch()
    origin.synchronize()
    assert (y.get() == 1).all()


# ---------------------------------------------------------------- other streams


def fork(cuda: Any, source: Any, target: Any) -> None:
    event = cuda.cupy.cuda.Event(disable_timing=True)
    event.record(source)
    target.wait_event(event)


def test_a_stream_that_waits_for_a_captured_event_is_captured_as_well(cuda: Any, streams: list[Any], y: Any) -> None:
    begin(cuda, streams[0])
    add(cuda, streams[0], y, 2.0)
    fork(cuda, streams[0], streams[1])
    assert [stream.is_capturing() for stream in streams] == [ACTIVE, ACTIVE, NONE]
    with streams[1]:
        cuda.launch("scaled", y)  # y[0] = 3 * 4
    fork(cuda, streams[1], streams[0])
    add(cuda, streams[0], y)
    graph = cuda.runtime.streamEndCapture(streams[0].ptr)
    assert [stream.is_capturing() for stream in streams] == [NONE] * 3
    executable = cuda.runtime.graphInstantiate(graph)
    cuda.runtime.graphLaunch(executable, streams[2].ptr)
    streams[2].synchronize()
    assert y.get()[:2].tolist() == [13, 3]
    cuda.runtime.graphExecDestroy(executable)
    cuda.runtime.graphDestroy(graph)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("reader", [0, 1])
def test_branches_of_a_graph_do_not_wait_for_each_other(cuda: Any, streams: list[Any], reader: int) -> None:
    z, y = cuda.cupy.empty(64, "f"), cuda.cupy.zeros(64, "f")
    cuda.runtime.deviceSynchronize()
    with streams[0]:
        streams[0].begin_capture()
        fork(cuda, streams[0], streams[1])
        with streams[1 - reader]:
            cuda.launch("fill", z, 64, 1.0)
        with streams[reader]:
            cuda.launch("add", z, y, 64, 1.0)
        fork(cuda, streams[1], streams[0])
        graph = streams[0].end_capture()
        graph.launch()
    with pytest.raises(cuda.runtime.CUDARuntimeError, match="uninitialised global read"):
        streams[0].synchronize()


def test_904_a_branch_must_be_joined(cuda: Any, streams: list[Any], y: Any) -> None:
    begin(cuda, streams[0])
    add(cuda, streams[0], y)
    fork(cuda, streams[0], streams[1])
    add(cuda, streams[1], y)
    assert end(cuda, streams[0]) == UNJOINED
    assert [stream.is_capturing() for stream in streams] == [NONE] * 3


def test_904_joining_must_come_after_all_of_the_branch(cuda: Any, streams: list[Any], y: Any) -> None:
    begin(cuda, streams[0])
    fork(cuda, streams[0], streams[1])
    add(cuda, streams[1], y)
    fork(cuda, streams[1], streams[0])
    add(cuda, streams[1], y)
    assert end(cuda, streams[0]) == UNJOINED


def test_a_branch_of_a_branch_is_joined_through_it(cuda: Any, streams: list[Any], y: Any) -> None:
    begin(cuda, streams[0])
    for source, target in ((0, 1), (1, 2), (2, 1), (1, 0)):
        fork(cuda, streams[source], streams[target])
        add(cuda, streams[target], y)
    assert end(cuda, streams[0]) == 0


def test_903_a_capture_ends_in_the_stream_where_it_began(cuda: Any, streams: list[Any], y: Any) -> None:
    begin(cuda, streams[0])
    fork(cuda, streams[0], streams[1])
    assert cuda.code(cuda.runtime.streamEndCapture, streams[1].ptr) == UNMATCHED


def test_902_two_captures_are_not_merged(cuda: Any, streams: list[Any], y: Any) -> None:
    for stream in streams[:2]:
        begin(cuda, stream)
        add(cuda, stream, y)
    event = cuda.cupy.cuda.Event(disable_timing=True)
    event.record(streams[0])
    assert cuda.code(streams[1].wait_event, event) == MERGE
    assert end(cuda, streams[1]) == INVALIDATED


def test_905_a_captured_stream_does_not_wait_for_what_is_not(cuda: Any, streams: list[Any], y: Any) -> None:
    event = cuda.cupy.cuda.Event(disable_timing=True)
    event.record(streams[1])
    begin(cuda, streams[0])
    assert cuda.code(streams[0].wait_event, event) == ISOLATION
    assert end(cuda, streams[0]) == INVALIDATED


# ---------------------------------------------------------------- what is not allowed


def test_900_a_captured_stream_is_neither_waited_for_nor_queried(cuda: Any, origin: Any) -> None:
    for call in (cuda.runtime.streamSynchronize, cuda.runtime.streamQuery):
        begin(cuda, origin)
        answer = call(origin.ptr) if call is cuda.runtime.streamQuery else cuda.code(call, origin.ptr)
        assert answer == UNSUPPORTED
        assert end(cuda, origin) == INVALIDATED


def test_900_a_device_is_not_waited_for_while_a_stream_is_captured(cuda: Any, origin: Any) -> None:
    begin(cuda, origin)
    assert cuda.code(cuda.runtime.deviceSynchronize) == UNSUPPORTED
    assert end(cuda, origin) == INVALIDATED


def test_900_the_legacy_stream_is_not_captured(cuda: Any) -> None:
    assert cuda.code(cuda.runtime.streamBeginCapture, 0, RELAXED) == UNSUPPORTED


def test_901_a_capture_that_was_spoilt_takes_no_more_and_gives_no_graph(cuda: Any, origin: Any, y: Any) -> None:
    begin(cuda, origin)
    cuda.code(cuda.runtime.streamSynchronize, origin.ptr)
    assert add(cuda, origin, y) == INVALIDATED
    with pytest.raises(RuntimeError, match="invalidated"):
        origin.is_capturing()
    assert end(cuda, origin) == INVALIDATED
    assert add(cuda, origin, y) == 0
    origin.synchronize()
    assert (y.get() == 1).all()


def test_906_the_legacy_stream_is_not_used_while_a_blocking_one_is_captured(cuda: Any, y: Any) -> None:
    blocking = cuda.cupy.cuda.Stream()
    for call in (
        lambda: cuda.launch("fill", y, 1, 0.0),
        lambda: cuda.runtime.memcpy(y.data.ptr, y.data.ptr + 128, 4, 4),
        lambda: cuda.runtime.streamSynchronize(0),
        lambda: cuda.cupy.cuda.Event().record(cuda.cupy.cuda.Stream.null),
    ):
        begin(cuda, blocking)
        assert cuda.code(call) == IMPLICIT
        assert end(cuda, blocking) == INVALIDATED


def test_906_asking_whether_the_legacy_stream_is_captured_spoils_nothing(cuda: Any) -> None:
    blocking = cuda.cupy.cuda.Stream()
    begin(cuda, blocking)
    assert cuda.code(cuda.runtime.streamIsCapturing, 0) == IMPLICIT
    assert end(cuda, blocking) == 0


def test_the_legacy_stream_is_used_beside_a_capture_of_a_non_blocking_one(cuda: Any, origin: Any, y: Any) -> None:
    begin(cuda, origin)
    cuda.launch("fill", y, 64, 2.0)
    assert (y.get() == 2).all()
    assert end(cuda, origin) == 0


def test_907_a_captured_event_is_neither_waited_for_nor_queried(cuda: Any, origin: Any) -> None:
    event = cuda.cupy.cuda.Event(disable_timing=True)
    begin(cuda, origin)
    event.record(origin)
    assert cuda.code(event.synchronize) == CAPTURED_EVENT
    assert end(cuda, origin) == INVALIDATED
    begin(cuda, origin)
    event.record(origin)
    assert cuda.runtime.eventQuery(event.ptr) == CAPTURED_EVENT
    assert end(cuda, origin) == INVALIDATED


@pytest.mark.usefixtures("emulated")
def test_the_event_of_a_capture_that_has_ended_is_nothing_to_wait_for(cuda: Any, streams: list[Any]) -> None:
    event = cuda.cupy.cuda.Event(disable_timing=True)
    begin(cuda, streams[0])
    event.record(streams[0])
    assert end(cuda, streams[0]) == 0
    assert cuda.code(event.synchronize) == CAPTURED_EVENT
    assert cuda.code(streams[1].wait_event, event) == ISOLATION
    event.record(streams[0])
    assert cuda.code(event.synchronize) == 0


def test_an_event_recorded_in_a_capture_has_a_new_life_outside(cuda: Any, origin: Any) -> None:
    event = cuda.cupy.cuda.Event(disable_timing=True)
    begin(cuda, origin)
    event.record(origin)
    assert end(cuda, origin) == 0
    event.record(origin)
    event.synchronize()
    assert event.done


@pytest.mark.usefixtures("emulated")
def test_a_capture_begins_once_and_ends_once(cuda: Any, origin: Any) -> None:
    begin(cuda, origin)
    assert cuda.code(begin, cuda, origin) == ILLEGAL_STATE
    assert [end(cuda, origin), end(cuda, origin)] == [0, ILLEGAL_STATE]


@pytest.mark.usefixtures("emulated")
def test_a_capture_ends_with_the_stream_where_it_began(cuda: Any, streams: list[Any], y: Any) -> None:
    handle = cuda.runtime.streamCreateWithFlags(cuda.runtime.streamNonBlocking)
    begin(cuda, cuda.stream(handle), GLOBAL)
    fork(cuda, cuda.stream(handle), streams[0])
    cuda.runtime.streamDestroy(handle)
    cuda.runtime.free(cuda.runtime.malloc(256))
    assert add(cuda, streams[0], y) == 0
    streams[0].synchronize()
    assert (y.get() == 1).all()


# ---------------------------------------------------------------- modes

# Whether cudaMalloc, which is unsafe during captures, is allowed, by the capture mode and the thread that calls it
# (documentation of cudaThreadExchangeStreamCaptureMode).
ALLOWED = {(GLOBAL, "own"): 0, (GLOBAL, "other"): 0, (THREAD_LOCAL, "own"): 0, (THREAD_LOCAL, "other"): 1}


def elsewhere(function: Any) -> Any:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


@pytest.mark.parametrize("thread", ["own", "other"])
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_the_mode_says_whose_allocations_spoil_a_capture(cuda: Any, origin: Any, mode: int, thread: str) -> None:
    def allocate() -> int:
        return int(cuda.code(lambda: cuda.runtime.free(cuda.runtime.malloc(256))))

    begin(cuda, origin, mode)
    code = allocate() if thread == "own" else elsewhere(allocate)
    allowed = ALLOWED.get((mode, thread), 1)
    assert (code, end(cuda, origin)) == ((0, 0) if allowed else (UNSUPPORTED, INVALIDATED))


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL])
def test_908_a_capture_ends_in_the_thread_where_it_began(cuda: Any, origin: Any, mode: int) -> None:
    begin(cuda, origin, mode)
    assert elsewhere(lambda: end(cuda, origin)) == WRONG_THREAD
    assert end(cuda, origin) == 0


def test_a_relaxed_capture_ends_in_any_thread(cuda: Any, origin: Any) -> None:
    begin(cuda, origin, RELAXED)
    assert elsewhere(lambda: end(cuda, origin)) == 0


# ---------------------------------------------------------------- memory


def test_memory_that_is_allocated_while_a_stream_is_captured_is_used_by_the_graph(cuda: Any, origin: Any) -> None:
    with origin:
        origin.begin_capture()
        z = cuda.cupy.empty(64, "f")
        cuda.launch("fill", z, 64, 3.0)
        add(cuda, origin, z)
        graph = origin.end_capture()
        graph.launch()
        graph.launch()
    origin.synchronize()
    assert (z.get() == 4).all()


@pytest.mark.usefixtures("emulated")
def test_memory_that_was_freed_is_missed_by_the_graph(cuda: Any, origin: Any) -> None:
    pointer = cuda.runtime.malloc(256)
    with origin:
        origin.begin_capture()
        cuda.launch("fill", pointer, 64, 3.0)
        graph = origin.end_capture()
        graph.launch()
        cuda.runtime.free(pointer)
        assert cuda.code(origin.synchronize) == 0
        graph.launch()
    with pytest.raises(cuda.runtime.CUDARuntimeError, match="out of bounds"):
        origin.synchronize()
