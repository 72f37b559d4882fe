"""Bounds and lifetimes of arrays from CuPy's memory pools: an access beyond an array, or after its end, is reported."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import emulated_cuda

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("emulated")]

_BLOCK = 2**16

_PLAIN = """
from emulated_cuda import install
install()
import cupy
poke = cupy.RawKernel('extern "C" __global__ void poke(float* y, int at) { y[at] = 5; }', "poke")
cupy.empty(2**16, "b")  # a block, of which the next two are parts
x, y = cupy.zeros(128, "f"), cupy.zeros(128, "f")
assert y.data.ptr == x.data.ptr + 512, "the pool does not give parts of one block"
poke((1,), (1,), (x, 128))
assert y.get()[0] == 5
poke((1,), (1,), (x, 1 << 30))
codes = []
for call in (cupy.cuda.runtime.deviceSynchronize, cupy.cuda.runtime.deviceSynchronize, lambda: x + 1):
    try:
        call()
    except Exception as error:
        codes.append(error.status)
assert codes == [700] * 3, codes
print("as settings say")
import os
os._exit(0)
"""


@pytest.fixture
def pool(cuda: Any) -> Iterator[Any]:
    """A memory pool with one block of 64 KiB, from which all small arrays of the test are allocated."""
    made = cuda.cupy.cuda.MemoryPool()
    made.malloc(_BLOCK)
    with cuda.cupy.cuda.using_allocator(made.malloc):
        yield made
    cuda.code(cuda.runtime.deviceSynchronize)


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("count", [128, 100, 1])
@pytest.mark.parametrize("behind", [True, False])
def test_a_kernel_that_leaves_its_array_does_not_find_the_one_beside_it(cuda: Any, count: int, behind: bool) -> None:
    arrays = [cuda.cupy.zeros(count, "f") for _ in range(3)]
    assert "out of bounds: write" in cuda.finding("poke", arrays[1], count if behind else -1)
    assert "out of bounds: read" in cuda.finding("peek", arrays[1], count if behind else -1, arrays[0])
    assert not any(array.get().any() for array in arrays)


@pytest.mark.usefixtures("pool")
def test_views_reach_as_far_as_the_array_that_owns_their_memory(cuda: Any) -> None:
    x = cuda.cupy.zeros(12, "f")
    view = x[4:8]
    del x
    for at in (-4, 7):
        cuda.launch("poke", view, at)
    assert "out of bounds" in cuda.finding("poke", view, 8)
    assert view.base.get().tolist() == [1] + [0] * 10 + [1]


@pytest.mark.usefixtures("pool")
def test_parts_of_a_workspace_are_one_piece_of_memory(cuda: Any) -> None:
    workspace = cuda.cupy.cuda.alloc(1000)
    part = workspace + 512
    cuda.launch("fill", workspace.ptr, 128, 1.0)
    cuda.launch("fill", part.ptr, 122, 2.0)
    y = cuda.cupy.ndarray((250,), "f", workspace)
    assert y.get().tolist() == [1] * 128 + [2] * 122
    assert "out of bounds" in cuda.finding("poke", part.ptr, 122)


@pytest.mark.usefixtures("pool")
def test_a_copy_beyond_the_end_of_an_array_is_refused(cuda: Any) -> None:
    x, y = cuda.cupy.zeros(4, "f"), cuda.cupy.zeros(128, "f")
    assert cuda.code(cuda.runtime.memcpyAsync, y.data.ptr, x.data.ptr, 20, 4, 0) == 1
    assert cuda.code(cuda.runtime.memset, x.data.ptr, 0, 17) == 1


def test_a_pool_counts_and_gives_again_as_it_does_on_a_device(cuda: Any, pool: Any) -> None:
    x = cuda.cupy.zeros(100, "f")
    address = x.data.ptr
    y = cuda.cupy.zeros(129, "f")
    assert (pool.used_bytes(), address % 512, y.data.ptr % 512) == (512 + 1024, 0, 0)
    del x
    assert (pool.used_bytes(), pool.free_bytes(), pool.total_bytes()) == (1024, _BLOCK - 1024, _BLOCK)
    again = cuda.cupy.empty(3, "f")
    assert again.data.ptr == address
    del y, again
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


@pytest.mark.usefixtures("pool")
def test_what_is_given_again_has_no_values(cuda: Any) -> None:
    x = cuda.cupy.zeros(100, "f")
    address = x.data.ptr
    del x
    y = cuda.cupy.empty(100, "f")
    assert y.data.ptr == address
    assert "uninitialised global read" in cuda.finding("peek", y, 0, y)


@pytest.mark.usefixtures("pool")
def test_an_array_that_is_no_more_is_not_used_by_what_is_launched_then(cuda: Any) -> None:
    x = cuda.cupy.zeros(100, "f")
    address = x.data.ptr
    del x
    assert "out of bounds" in cuda.finding("poke", address, 0)


@pytest.mark.usefixtures("pool")
def test_an_array_that_is_no_more_is_used_by_what_was_launched_before(cuda: Any) -> None:
    x = cuda.cupy.empty(100, "f")
    result = cuda.cupy.empty(100, "f")
    cuda.launch("fill", x, 100, 4.0)
    cuda.launch("add", x, result, 100, 1.0)
    del x
    smaller = cuda.cupy.empty(1, "f")  # in the same place
    cuda.launch("fill", smaller, 1, 8.0)
    cuda.runtime.deviceSynchronize()
    assert (result.get() == 5).all()
    assert smaller.get().tolist() == [8]


@pytest.mark.usefixtures("pool")
def test_another_stream_that_is_late_destroys_what_has_the_memory_by_then(cuda: Any) -> None:
    x, stream = cuda.cupy.empty(100, "f"), cuda.cupy.cuda.Stream(non_blocking=True)
    address = x.data.ptr
    with stream:
        cuda.launch("fill", x, 100, 4.0)
    del x
    y = cuda.cupy.zeros(100, "f")
    assert y.data.ptr == address
    cuda.runtime.streamSynchronize(0)
    stream.synchronize()
    assert (y.get() == 4).all()


@pytest.mark.usefixtures("pool")
def test_a_graph_needs_its_arrays_whenever_it_runs(cuda: Any) -> None:
    x, stream = cuda.cupy.zeros(100, "f"), cuda.cupy.cuda.Stream(non_blocking=True)
    cuda.runtime.deviceSynchronize()
    with stream:
        stream.begin_capture()
        cuda.launch("add", x, x, 100, 1.0)
        graph = stream.end_capture()
        graph.launch()
        graph.launch()
        stream.synchronize()
        assert (x.get() == 2).all()
        del x
        graph.launch()
    with pytest.raises(cuda.runtime.CUDARuntimeError, match="out of bounds"):
        stream.synchronize()


@pytest.mark.usefixtures("pool")
def test_arrays_of_other_threads_have_bounds_as_well(cuda: Any) -> None:
    made: list[Any] = []

    def allocate() -> None:
        with cuda.cupy.cuda.Device(0):
            made.append(cuda.cupy.get_default_memory_pool().malloc(8))

    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
    cuda.launch("fill", made[0].ptr, 2, 1.0)
    assert "out of bounds" in cuda.finding("poke", made[0].ptr, 2)


def test_a_pool_of_a_pool_has_bounds_as_well(cuda: Any, pool: Any) -> None:
    inner = cuda.cupy.cuda.MemoryPool(pool.malloc)
    inner.malloc(_BLOCK // 2)
    with cuda.cupy.cuda.using_allocator(inner.malloc):
        x, y = cuda.cupy.zeros(128, "f"), cuda.cupy.zeros(128, "f")
    assert "out of bounds" in cuda.finding("poke", x, 128)
    assert not y.get().any()


def test_a_pool_of_managed_memory_stays_where_the_host_finds_it(cuda: Any) -> None:
    managed = cuda.cupy.cuda.MemoryPool(cuda.cupy.cuda.malloc_managed)
    with cuda.cupy.cuda.using_allocator(managed.malloc):
        x = cuda.cupy.full(4, 3, "f")
    cuda.runtime.deviceSynchronize()
    assert cuda.runtime.pointerGetAttributes(x.data.ptr).type == cuda.runtime.memoryTypeManaged
    assert x.get().tolist() == [3] * 4


def test_arrays_without_elements_have_no_memory(cuda: Any, pool: Any) -> None:
    assert cuda.cupy.empty(0, "f").data.ptr == 0
    assert pool.used_bytes() == 0


def test_settings_leave_bounds_to_the_pool_and_let_errors_stick() -> None:
    """In a separate process, because these settings are only read before CuPy is imported."""
    root = Path(emulated_cuda.__file__).parents[1]
    settings = {"EMULATED_CUDA_EXACT_BOUNDS": "0", "EMULATED_CUDA_STICKY_ERRORS": "1", "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", _PLAIN], env=os.environ | settings, capture_output=True, text=True)
    assert done.stdout == "as settings say\n", done.stderr
