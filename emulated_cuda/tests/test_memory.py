"""Memory, by the chapter "Memory Management" of the runtime's documentation and "API synchronization behavior"."""

from __future__ import annotations

import ctypes
import os
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

DEFAULT = 4  # cudaMemcpyDefault
INVALID_VALUE, OUT_OF_MEMORY, INVALID_PITCH, INVALID_DIRECTION = 1, 2, 12, 21


@pytest.fixture
def raw(cuda: Any) -> Any:
    """The address of 256 bytes from cudaMalloc."""
    pointer = cuda.runtime.malloc(256)
    yield pointer
    cuda.code(cuda.runtime.free, pointer)


# ---------------------------------------------------------------- what device memory is


@pytest.mark.usefixtures("emulated")
def test_the_host_cannot_read_device_memory(raw: int) -> None:
    sink, source = os.pipe()
    try:
        with pytest.raises(OSError, match="Bad address"):
            os.write(source, (ctypes.c_char * 4).from_address(raw))
    finally:
        os.close(sink)
        os.close(source)


@pytest.mark.usefixtures("emulated")
def test_bytes_that_nobody_wrote_are_not_read(cuda: Any, raw: int) -> None:
    assert "uninitialised global read" in cuda.finding("peek", raw, 3, raw)


@pytest.mark.usefixtures("emulated")
def test_a_copy_of_what_nobody_wrote_is_unwritten_as_well(cuda: Any, raw: int) -> None:
    cuda.runtime.memset(raw, 0, 4)
    y = cuda.cupy.zeros(2, "f")
    cuda.runtime.memcpy(y.data.ptr, raw, 8, DEFAULT)
    cuda.launch("peek", y, 0, y)
    assert "uninitialised global read" in cuda.finding("peek", y, 1, y)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("at", [64, -1])
def test_nothing_is_beside_an_allocation(cuda: Any, raw: int, at: int) -> None:
    assert "cudaErrorIllegalAddress" in cuda.finding("poke", raw, at)


@pytest.mark.usefixtures("emulated")
def test_memory_that_was_freed_is_out_of_bounds(cuda: Any) -> None:
    pointer = cuda.runtime.malloc(256)
    cuda.runtime.free(pointer)
    assert "cudaErrorIllegalAddress" in cuda.finding("poke", pointer, 0)
    assert cuda.code(cuda.runtime.memset, pointer, 0, 4) == INVALID_VALUE


@pytest.mark.usefixtures("emulated")
def test_memory_that_was_freed_in_a_stream_s_order_is_there_for_what_comes_before(cuda: Any) -> None:
    pointer, stream = cuda.runtime.mallocAsync(256, 0), cuda.cupy.cuda.Stream(non_blocking=True)
    with stream:
        cuda.launch("fill", pointer, 64, 2.0)
        cuda.runtime.freeAsync(pointer, stream.ptr)
    stream.synchronize()
    assert "cudaErrorIllegalAddress" in cuda.finding("poke", pointer, 0)


# ---------------------------------------------------------------- allocation


def test_free_memory_is_what_is_not_allocated(cuda: Any) -> None:
    free, total = cuda.runtime.memGetInfo()
    pointer = cuda.runtime.malloc(64 << 20)
    assert cuda.runtime.memGetInfo()[0] <= free - (64 << 20)
    assert cuda.runtime.memGetInfo()[1] == total
    cuda.runtime.free(pointer)
    assert cuda.runtime.memGetInfo()[0] == free


def test_more_than_there_is_cannot_be_allocated(cuda: Any) -> None:
    _, total = cuda.runtime.memGetInfo()
    assert cuda.code(cuda.runtime.malloc, total + 1) == OUT_OF_MEMORY
    with pytest.raises(cuda.cupy.cuda.memory.OutOfMemoryError):
        cuda.cupy.empty(total + 1, "b")


def test_no_bytes_have_no_address_and_nothing_is_freed_there(cuda: Any) -> None:
    assert cuda.runtime.malloc(0) == 0
    cuda.runtime.free(0)


def test_allocations_begin_at_multiples_of_256_bytes(cuda: Any) -> None:
    pointers = [cuda.runtime.malloc(size) for size in (1, 300, 5)]
    assert [pointer % 256 for pointer in pointers] == [0, 0, 0]
    for pointer in pointers:
        cuda.runtime.free(pointer)


@pytest.mark.usefixtures("emulated")
def test_only_what_was_allocated_is_freed_and_only_once(cuda: Any) -> None:
    pointer, pinned = cuda.runtime.malloc(256), cuda.runtime.hostAlloc(256, 0)
    assert cuda.code(cuda.runtime.free, pointer + 128) == INVALID_VALUE
    assert cuda.code(cuda.runtime.freeHost, pointer) == INVALID_VALUE
    assert cuda.code(cuda.runtime.free, pinned) == INVALID_VALUE
    assert [cuda.code(cuda.runtime.free, pointer) for _ in range(2)] == [0, INVALID_VALUE]
    assert [cuda.code(cuda.runtime.freeHost, pinned) for _ in range(2)] == [0, INVALID_VALUE]


@pytest.mark.usefixtures("emulated")
def test_free_waits_for_what_may_use_the_memory(cuda: Any, raw: int) -> None:
    y = cuda.pinned(64)
    cuda.launch("fill", raw, 64, 5.0)
    cuda.runtime.memcpyAsync(y.ctypes.data, raw, 256, DEFAULT, 0)
    assert not y.any()
    cuda.runtime.free(raw)
    assert (y == 5).all()


def test_kernels_use_pinned_memory_at_the_host_s_address(cuda: Any) -> None:
    y = cuda.pinned(8)
    cuda.launch("fill", y.ctypes.data, 8, 7.0)
    cuda.runtime.deviceSynchronize()
    assert y.tolist() == [7] * 8


def test_kernels_and_the_host_use_managed_memory_at_one_address(cuda: Any) -> None:
    pointer = cuda.runtime.mallocManaged(32)
    y = np.frombuffer((ctypes.c_char * 32).from_address(pointer), np.float32)
    y[:] = 4
    cuda.launch("add", pointer, pointer, 8, 1.5)
    cuda.runtime.deviceSynchronize()
    assert y.tolist() == [5.5] * 8
    cuda.runtime.free(pointer)


def test_managed_memory_of_no_bytes_is_an_error(cuda: Any) -> None:
    assert cuda.code(cuda.runtime.mallocManaged, 0) == INVALID_VALUE


def test_a_pointer_tells_what_memory_it_leads_to(cuda: Any, raw: int) -> None:
    managed, pinned, pageable = cuda.runtime.mallocManaged(256), cuda.pinned(8), np.zeros(8)
    x = cuda.cupy.zeros(8, "f")
    kinds = [
        cuda.runtime.pointerGetAttributes(pointer).type
        for pointer in (raw, raw + 255, managed, pinned.ctypes.data, pageable.ctypes.data, x.data.ptr)
    ]
    names = ("Device", "Device", "Managed", "Host", "Unregistered", "Device")
    assert kinds == [getattr(cuda.runtime, f"memoryType{name}") for name in names]
    cuda.runtime.free(managed)


# ---------------------------------------------------------------- memset and copies


def test_memset_writes_a_byte(cuda: Any) -> None:
    x = cuda.cupy.zeros(4, "i4")
    cuda.runtime.memset(x.data.ptr, 0x1FE, 8)
    cuda.runtime.memsetAsync(x.data.ptr + 12, 1, 2, 0)
    assert x.get().tolist() == [0xFEFEFEFE - 2**32, 0xFEFEFEFE - 2**32, 0, 0x0101]


def test_memset_of_pinned_memory_is_done_when_it_returns(cuda: Any) -> None:
    y = cuda.pinned(4, 1)
    cuda.runtime.memset(y.ctypes.data, 0, 16)
    assert not y.any()


def test_copies_go_between_all_kinds_of_memory(cuda: Any, raw: int) -> None:
    x, pinned, y = np.arange(64, dtype=np.float32), cuda.pinned(64), np.zeros(64, np.float32)
    other = cuda.cupy.zeros(64, "f")
    places = [x.ctypes.data, raw, other.data.ptr, pinned.ctypes.data, y.ctypes.data]
    for source, target in pairwise(places):
        cuda.runtime.memcpy(target, source, 256, DEFAULT)
        cuda.runtime.deviceSynchronize()
    assert (y == x).all()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("function", ["memcpy", "memcpyAsync", "memset", "memsetAsync"])
def test_what_leaves_an_allocation_is_refused_by_the_call(cuda: Any, raw: int, function: str) -> None:
    host = np.zeros(65, np.float32)
    arguments = (raw, host.ctypes.data, 257, DEFAULT) if "cpy" in function else (raw, 0, 257)
    stream = (0,) if "Async" in function else ()
    assert cuda.code(getattr(cuda.runtime, function), *arguments, *stream) == INVALID_VALUE


def test_a_copy_has_one_of_five_directions(cuda: Any, raw: int) -> None:
    assert cuda.code(cuda.runtime.memcpy, raw, raw + 128, 4, 5) == INVALID_DIRECTION
    assert cuda.code(cuda.runtime.memcpyAsync, raw, raw + 128, 4, -1, 0) == INVALID_DIRECTION


def test_rows_are_copied_from_pitch_to_pitch(cuda: Any) -> None:
    x, y = cuda.cupy.arange(20, dtype="i4").reshape(4, 5), cuda.cupy.zeros((4, 8), "i4")
    cuda.runtime.memcpy2D(y.data.ptr, 32, x.data.ptr, 20, 12, 4, DEFAULT)
    wanted = np.zeros((4, 8), "i4")
    wanted[:, :3] = np.arange(20).reshape(4, 5)[:, :3]
    assert (y.get() == wanted).all()
    host = np.zeros((4, 3), "i4")
    cuda.runtime.memcpy2DAsync(host.ctypes.data, 12, y.data.ptr, 32, 12, 4, DEFAULT, 0)
    assert (host == wanted[:, :3]).all()


def test_a_row_is_not_longer_than_its_pitch(cuda: Any) -> None:
    x = cuda.cupy.zeros(64, "i4")
    assert cuda.code(cuda.runtime.memcpy2D, x.data.ptr, 8, x.data.ptr + 128, 16, 12, 2, DEFAULT) == INVALID_PITCH


@pytest.mark.usefixtures("emulated")
def test_the_last_row_ends_inside_of_the_memory(cuda: Any) -> None:
    x, y = cuda.cupy.zeros(15, "i4"), cuda.cupy.zeros(15, "i4")
    cuda.runtime.memcpy2D(y.data.ptr, 16, x.data.ptr, 16, 12, 4, DEFAULT)
    assert cuda.code(cuda.runtime.memcpy2D, y.data.ptr, 16, x.data.ptr, 16, 16, 4, DEFAULT) == INVALID_VALUE


# ---------------------------------------------------------------- what asynchronous copies wait for


def test_pageable_memory_is_read_before_the_call_returns(cuda: Any, raw: int) -> None:
    x, stream = np.full(64, 3, np.float32), cuda.cupy.cuda.Stream(non_blocking=True)
    cuda.runtime.memcpyAsync(raw, x.ctypes.data, 256, DEFAULT, stream.ptr)
    x[:] = 9
    stream.synchronize()
    y = np.zeros(64, np.float32)
    cuda.runtime.memcpy(y.ctypes.data, raw, 256, DEFAULT)
    assert (y == 3).all()


def test_pageable_memory_is_written_before_the_call_returns(cuda: Any, raw: int) -> None:
    y, stream = np.zeros(64, np.float32), cuda.cupy.cuda.Stream(non_blocking=True)
    with stream:
        cuda.launch("fill", raw, 64, 6.0)
        cuda.runtime.memcpyAsync(y.ctypes.data, raw, 256, DEFAULT, stream.ptr)
    assert (y == 6).all()


@pytest.mark.usefixtures("emulated")
def test_pinned_memory_is_read_and_written_late(cuda: Any, raw: int) -> None:
    x, y, stream = cuda.pinned(64, 3), cuda.pinned(64), cuda.cupy.cuda.Stream(non_blocking=True)
    cuda.runtime.memcpyAsync(raw, x.ctypes.data, 256, DEFAULT, stream.ptr)
    cuda.runtime.memcpyAsync(y.ctypes.data, raw, 256, DEFAULT, stream.ptr)
    x[:] = 9
    assert not y.any()
    stream.synchronize()
    assert (y == 9).all()


def test_a_copy_inside_of_the_host_is_done_when_the_call_returns(cuda: Any) -> None:
    x, y = cuda.pinned(64, 3), cuda.pinned(64)
    cuda.runtime.memcpyAsync(y.ctypes.data, x.ctypes.data, 256, DEFAULT, 0)
    assert (y == 3).all()


@pytest.mark.usefixtures("emulated")
def test_the_host_does_not_wait_for_a_copy_inside_of_the_device(cuda: Any, raw: int) -> None:
    x = cuda.cupy.empty(64, "f")
    cuda.launch("fill", x, 64, 1.0)
    cuda.runtime.memcpy(raw, x.data.ptr, 256, DEFAULT)
    assert cuda.runtime.streamQuery(0) == 600
