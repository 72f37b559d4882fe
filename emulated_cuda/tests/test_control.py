"""The module emulated_cuda.control: temporary settings, a view of each launch, and states of bytes of memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulated_cuda import control
from emulated_cuda.emulator.memory import NOTHING, READ_ONLY, UNWRITTEN, WRITTEN

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("emulated")]


def states(array: Any) -> list[int]:
    """Return the state of the first byte of each element."""
    found = control.marks(array.data.ptr, array.nbytes)
    assert found is not None
    return found[:: array.itemsize].tolist()


def test_settings_change_for_a_while(cuda: Any) -> None:
    def described() -> tuple[int, str]:
        device = cuda.cupy.cuda.Device(0)
        return device.attributes["MultiProcessorCount"], device.compute_capability

    before = described()
    with control.changed(multiprocessors=7, capability=120):
        assert cuda.runtime.getDeviceProperties(0)["multiProcessorCount"] == 7
        assert cuda.runtime.deviceGetAttribute(16, 0) == 7  # cudaDevAttrMultiProcessorCount
        with control.changed(multiprocessors=5):
            assert cuda.runtime.deviceGetAttribute(16, 0) == 5
            assert cuda.runtime.deviceGetAttribute(75, 0) == 12  # cudaDevAttrComputeCapabilityMajor
        assert cuda.runtime.deviceGetAttribute(16, 0) == 7
    assert described() == before


def test_launches_run_at_once_where_they_are_not_late(cuda: Any) -> None:
    y = cuda.cupy.zeros(4, np.float32)
    cuda.runtime.deviceSynchronize()
    with control.changed(late=False):
        cuda.launch("fill", y, 4, 2.0)
        assert states(y) == [WRITTEN] * 4
    y = cuda.cupy.empty(4, np.float32)
    cuda.launch("fill", y, 4, 2.0)
    assert states(y) == [UNWRITTEN] * 4
    assert y.tolist() == [2] * 4
    assert states(y) == [WRITTEN] * 4


def test_an_endless_kernel_ends_after_the_steps_that_it_may_take(cuda: Any) -> None:
    y = cuda.cupy.zeros(400_000, np.float32)
    cuda.runtime.deviceSynchronize()
    with control.changed(max_steps=1000, late=False), pytest.raises(cuda.driver.CUDADriverError, match="TIMEOUT"):
        cuda.launch("fill", y, y.size, 2.0)
    assert "instruction limit" in control.findings()


def test_launches_are_seen_as_the_driver_was_asked_for_them(cuda: Any) -> None:
    y, seen = cuda.cupy.zeros(8, np.float32), []
    stream = cuda.cupy.cuda.Stream(non_blocking=True)
    with control.watched(seen.append):
        cuda.launch("fill", y, 8, 2.5, block=64, shared=96)
        with stream:
            cuda.launch("places", y, grid=(2, 3), block=1)
    stream.synchronize()
    cuda.launch("fill", y, 8, 1.0)
    fill, places = seen
    assert [(one.name, one.device, one.stream) for one in seen] == [("fill", 0, 0), ("places", 0, stream.ptr)]
    assert [(one.grid, one.block) for one in seen] == [((1, 1, 1), (64, 1, 1)), ((2, 3, 1), (1, 1, 1))]
    assert (fill.shared_bytes, places.shared_bytes) == (96, 0)
    assert fill.parameters == y.data.ptr.to_bytes(8, "little") + b"\x08\0\0\0" + np.float32(2.5).tobytes()
    assert fill.counters is None


def test_launches_that_are_refused_are_not_seen(cuda: Any) -> None:
    y, seen = cuda.cupy.zeros(8, np.float32), []
    with control.watched(seen.append), pytest.raises(cuda.driver.CUDADriverError):
        cuda.launch("fill", y, 8, 2.5, block=2048)
    assert seen == []


def test_an_inner_watch_takes_the_place_of_an_outer_one(cuda: Any) -> None:
    y, outer, inner = cuda.cupy.zeros(8, np.float32), [], []
    with control.watched(outer.append):
        with control.watched(inner.append):
            cuda.launch("fill", y, 8, 2.5)
        cuda.launch("add", y, y, 8, 2.5)
    assert [launch.name for launch in inner] == ["fill"]
    assert [launch.name for launch in outer] == ["add"]
    assert y.tolist() == [5] * 8


def test_instructions_are_counted_where_it_is_asked_for(cuda: Any) -> None:
    y, seen = cuda.cupy.zeros(64, np.float32), []
    with control.watched(seen.append, counters=True):
        cuda.launch("fill", y, 64, 2.5)
    cuda.runtime.deviceSynchronize()
    total = seen[0].counters.total
    assert total["global_sectors"] == total["global_ideal"] == 64 * 4 // 32
    assert total["instructions"] > 0


def test_nothing_may_be_written_between_elements_or_over_inputs(cuda: Any) -> None:
    y = cuda.cupy.zeros(4, np.float32)
    cuda.runtime.deviceSynchronize()
    control.name(y.data.ptr, "the rows")
    control.mark(y.data.ptr, np.repeat(np.array([WRITTEN, NOTHING, READ_ONLY, UNWRITTEN], np.uint8), 4))
    assert "write between the elements of the rows" in cuda.finding("poke", y, 1)
    assert "read between the elements of the rows" in cuda.finding("peek", y, 1, y)
    assert "write to a read-only part of the rows" in cuda.finding("poke", y, 2)
    assert "uninitialised global read of the rows" in cuda.finding("peek", y, 3, y)
    control.findings()
    cuda.launch("peek", y, 2, y)
    cuda.launch("poke", y, 3)
    cuda.runtime.deviceSynchronize()
    assert states(y) == [WRITTEN, NOTHING, READ_ONLY, WRITTEN]
    assert control.findings() == ""


def test_a_copy_has_values_where_what_it_copies_has(cuda: Any) -> None:
    x, y = cuda.cupy.zeros(4, np.float32), cuda.cupy.zeros(4, np.float32)
    cuda.runtime.deviceSynchronize()
    control.mark(x.data.ptr, np.repeat(np.array([WRITTEN, NOTHING, READ_ONLY, UNWRITTEN], np.uint8), 4))
    y.data.copy_from_device(x.data, x.nbytes)
    cuda.runtime.deviceSynchronize()
    assert states(y) == [WRITTEN, UNWRITTEN, WRITTEN, UNWRITTEN]


def test_what_was_found_is_told_once(cuda: Any) -> None:
    y = cuda.cupy.zeros(4, np.float32)
    text = cuda.finding("poke", y, 99)
    assert control.findings() in text.removeprefix("cudaErrorIllegalAddress: ")
    assert control.findings() == ""


def test_of_memory_of_the_host_nothing_is_known(cuda: Any) -> None:
    assert control.marks(cuda.pinned(4).ctypes.data, 16) is None


def test_libraries_read_inputs_that_nobody_may_write(cuda: Any) -> None:
    a, out = cuda.cupy.ones((4, 4), np.float32), cuda.cupy.zeros((4, 4), np.float32)
    cuda.runtime.deviceSynchronize()
    control.mark(a.data.ptr, np.full(a.nbytes, READ_ONLY, np.uint8))
    cuda.cupy.matmul(a, a, out=out)
    assert (out.get() == 4).all()
    cuda.cupy.matmul(out, out, out=a)
    with pytest.raises(cuda.runtime.CUDARuntimeError, match="write to a read-only part of C"):
        cuda.runtime.deviceSynchronize()
