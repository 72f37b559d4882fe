"""Several devices: memory and streams of each, peer access, and contexts of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from emulated_cuda import control

pytestmark = pytest.mark.gpu

INVALID_DEVICE, INVALID_CONTEXT, INVALID_HANDLE, ALREADY, NOT_ENABLED = 101, 201, 400, 704, 705
INVALID_VALUE = 1
L2_CACHE_SIZE = 38  # cudaDevAttrL2CacheSize


def in_thread(function: Any) -> Any:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


# ---------------------------------------------------------------- which device


def test_devices_are_counted_from_0(cuda: Any) -> None:
    count = cuda.runtime.getDeviceCount()
    assert [cuda.code(cuda.runtime.setDevice, number) for number in (count, -1, 0)] == [INVALID_DEVICE] * 2 + [0]
    assert cuda.code(cuda.runtime.getDeviceProperties, count) == INVALID_DEVICE
    assert cuda.code(cuda.runtime.deviceGetAttribute, 1, count) == INVALID_DEVICE


def test_every_thread_begins_with_device_0(cuda: Any, other: Any) -> None:
    with other:
        assert cuda.runtime.getDevice() == 1
        assert in_thread(cuda.runtime.getDevice) == 0


def test_attributes_and_properties_agree(cuda: Any) -> None:
    properties, attributes = cuda.runtime.getDeviceProperties(0), cuda.cupy.cuda.Device(0).attributes
    pairs = {
        "multiProcessorCount": "MultiProcessorCount",
        "sharedMemPerBlockOptin": "MaxSharedMemoryPerBlockOptin",
        "sharedMemPerMultiprocessor": "MaxSharedMemoryPerMultiprocessor",
        "maxThreadsPerMultiProcessor": "MaxThreadsPerMultiProcessor",
        "l2CacheSize": "L2CacheSize",
        "warpSize": "WarpSize",
    }
    assert [properties[name] for name in pairs] == [attributes[name] for name in pairs.values()]
    assert cuda.cupy.cuda.Device(0).compute_capability == f"{properties['major']}{properties['minor']}"


@pytest.mark.usefixtures("emulated")
def test_the_l2_cache_is_as_large_as_asked_for(cuda: Any) -> None:
    with control.changed(l2_bytes=4096):
        assert cuda.runtime.deviceGetAttribute(L2_CACHE_SIZE, 0) == 4096


# ---------------------------------------------------------------- what belongs to one device


def test_an_event_is_recorded_in_streams_of_its_device(cuda: Any, other: Any) -> None:
    event = cuda.cupy.cuda.Event()
    with other:
        handle = cuda.runtime.streamCreate()
        assert cuda.code(cuda.runtime.eventRecord, event.ptr, handle) == INVALID_HANDLE
        cuda.runtime.streamDestroy(handle)


def test_there_is_no_time_between_events_of_two_devices(cuda: Any, other: Any) -> None:
    here = cuda.cupy.cuda.Event()
    here.record()
    with other:
        there = cuda.cupy.cuda.Event()
        there.record()
        there.synchronize()
    here.synchronize()
    assert cuda.code(cuda.runtime.eventElapsedTime, here.ptr, there.ptr) == INVALID_HANDLE


def test_streams_wait_for_events_of_other_devices(cuda: Any, other: Any) -> None:
    event, y = cuda.cupy.cuda.Event(), cuda.pinned(64)
    cuda.launch("fill", y.ctypes.data, 64, 2.0)
    event.record()
    with other:
        stream = cuda.cupy.cuda.Stream(non_blocking=True)
        stream.wait_event(event)
        with stream:
            cuda.launch("add", y.ctypes.data, y.ctypes.data, 64, 1.0)
        stream.synchronize()
    assert (y == 3).all()


@pytest.mark.usefixtures("emulated")
def test_legacy_streams_of_two_devices_do_not_wait_for_each_other(cuda: Any, other: Any) -> None:
    y = cuda.pinned(1)
    cuda.launch("fill", y.ctypes.data, 1, 2.0)
    with other:
        cuda.runtime.deviceSynchronize()
    assert y[0] == 0
    cuda.runtime.deviceSynchronize()
    assert y[0] == 2


def test_a_kernel_is_launched_on_the_device_where_it_was_loaded(cuda: Any, other: Any) -> None:
    function = cuda.module.get_function("trap").kernel
    with other:
        cuda.runtime.free(0)
        launched = (function.ptr, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
        assert cuda.code(cuda.driver.launchKernel, *launched) in (INVALID_HANDLE, INVALID_CONTEXT)


def test_memory_is_that_of_the_current_device(cuda: Any, other: Any) -> None:
    with other:
        pointer = cuda.runtime.malloc(256)
        free = cuda.runtime.memGetInfo()[0]
    assert cuda.runtime.pointerGetAttributes(pointer).device == 1
    cuda.runtime.free(pointer)
    with other:
        assert cuda.runtime.memGetInfo()[0] > free


# ---------------------------------------------------------------- peers


@pytest.fixture
def apart(cuda: Any, other: Any) -> Any:
    """A second device, with peer access disabled in both directions; CuPy may have enabled it for copies."""

    enable, disable = cuda.runtime.deviceEnablePeerAccess, cuda.runtime.deviceDisablePeerAccess

    def disabled() -> list[tuple[Any, int]]:
        """Disable peer access; return the pairs of device and peer for which it was enabled."""
        found = []
        for device, peer in ((cuda.cupy.cuda.Device(0), 1), (other, 0)):
            with device:
                found += [(device, peer)] if cuda.code(disable, peer) == 0 else []
        return found

    before = disabled()
    yield other
    disabled()
    for device, peer in before:
        with device:
            enable(peer)


@pytest.fixture
def peers(cuda: Any, apart: Any) -> Any:
    """A second device whose memory device 0 may access during the test."""
    if not cuda.runtime.deviceCanAccessPeer(0, 1):
        pytest.skip("device 0 cannot use the memory of device 1")
    cuda.runtime.deviceEnablePeerAccess(1)
    return apart


@pytest.mark.usefixtures("emulated")
def test_a_kernel_does_not_reach_the_memory_of_another_device(cuda: Any, apart: Any) -> None:
    with apart:
        x = cuda.cupy.zeros(4, "f")
        cuda.runtime.deviceSynchronize()
    assert "out of bounds" in cuda.finding("poke", x.data.ptr, 0)


def test_a_kernel_reaches_the_memory_of_a_peer(cuda: Any, peers: Any) -> None:
    with peers:
        x = cuda.cupy.zeros(4, "f")
        cuda.runtime.deviceSynchronize()
    cuda.launch("fill", x.data.ptr, 4, 2.0)
    cuda.runtime.deviceSynchronize()
    with peers:
        assert x.get().tolist() == [2] * 4


@pytest.mark.usefixtures("emulated")
def test_access_of_peers_is_in_one_direction(cuda: Any, peers: Any) -> None:
    x = cuda.cupy.zeros(4, "f")
    cuda.runtime.deviceSynchronize()
    with peers:
        assert "out of bounds" in cuda.finding("poke", x.data.ptr, 0)


def test_access_of_peers_is_enabled_and_disabled_once(cuda: Any, peers: Any) -> None:
    enable, disable = cuda.runtime.deviceEnablePeerAccess, cuda.runtime.deviceDisablePeerAccess
    count = cuda.runtime.getDeviceCount()
    assert cuda.code(enable, 1) == ALREADY
    assert [cuda.code(disable, 1), cuda.code(disable, 1)] == [0, NOT_ENABLED]
    assert [cuda.code(enable, number) for number in (0, count)] == [INVALID_DEVICE] * 2
    assert cuda.code(cuda.runtime.deviceCanAccessPeer, 0, count) == INVALID_DEVICE
    assert not cuda.runtime.deviceCanAccessPeer(0, 0)


def test_copies_go_from_one_device_to_another(cuda: Any, other: Any) -> None:
    x = cuda.cupy.arange(4, dtype="f")
    with other:
        y, z = cuda.cupy.empty(4, "f"), cuda.cupy.empty(4, "f")
        cuda.runtime.memcpyPeer(y.data.ptr, 1, x.data.ptr, 0, 16)
        cuda.runtime.memcpyPeerAsync(z.data.ptr, 1, y.data.ptr, 1, 16, 0)
        assert z.get().tolist() == [0, 1, 2, 3]


# ---------------------------------------------------------------- contexts


def test_201_a_thread_that_has_not_used_the_device_has_no_context(cuda: Any) -> None:
    def before_and_after() -> tuple[int, int, int]:
        first, code = cuda.driver.ctxGetCurrent(), cuda.code(cuda.driver.ctxGetDevice)
        cuda.runtime.free(0)
        return first, code, cuda.driver.ctxGetCurrent()

    first, code, then = in_thread(before_and_after)
    assert (first, code) == (0, INVALID_CONTEXT)
    cuda.runtime.free(0)
    assert then == cuda.driver.ctxGetCurrent() != 0


def test_201_a_thread_without_a_context_launches_nothing(cuda: Any) -> None:
    function = cuda.module.get_function("trap").kernel
    call = (function.ptr, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    assert in_thread(lambda: cuda.code(cuda.driver.launchKernel, *call)) == INVALID_CONTEXT


def test_201_a_thread_without_a_context_loads_nothing(cuda: Any) -> None:
    assert in_thread(lambda: cuda.code(cuda.driver.moduleLoadData, b".version 8.0\n")) == INVALID_CONTEXT


def test_a_thread_takes_and_leaves_contexts(cuda: Any, other: Any) -> None:
    def take(context: int) -> tuple[int, int, int]:
        cuda.driver.ctxSetCurrent(context)
        device = cuda.driver.ctxGetDevice()
        cuda.driver.ctxSetCurrent(0)
        return device, cuda.driver.ctxGetCurrent(), cuda.code(cuda.driver.ctxGetDevice)

    with other:
        cuda.runtime.free(0)
        context = cuda.driver.ctxGetCurrent()
    assert in_thread(lambda: take(context)) == (1, 0, INVALID_CONTEXT)


@pytest.mark.usefixtures("emulated")
def test_201_what_is_no_context_is_not_taken(cuda: Any) -> None:
    assert cuda.code(cuda.driver.ctxSetCurrent, 12345) == INVALID_CONTEXT
