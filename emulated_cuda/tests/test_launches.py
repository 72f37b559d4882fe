"""Launches, by cuLaunchKernel, cuFuncSetAttribute and "Compute Capabilities" of the Programming Guide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

INVALID_VALUE, INVALID_HANDLE, OUT_OF_RESOURCES = 1, 400, 701
UNASKED = 48 * 1024  # bytes of dynamic shared memory per block that need no cuFuncSetAttribute


@pytest.fixture
def y(cuda: Any) -> Any:
    return cuda.cupy.zeros(1024, "f")


def launch(cuda: Any, name: str, *arguments: Any, **sizes: Any) -> int:
    """Launch a kernel and return the error code."""
    return int(cuda.code(lambda: cuda.launch(name, *arguments, **sizes)))


def raw_launch(cuda: Any, y: Any, grid: Any = (1, 1, 1), block: Any = (32, 1, 1), stream: int = 0) -> int:
    """Call cuLaunchKernel and return its error code; CuPy's launches would replace a grid axis of 0 blocks by 1."""
    function = cuda.module.get_function("fill").kernel
    arguments = np.array([y.data.ptr], np.uint64), np.array([1], np.int32), np.array([1], np.float32)
    values = np.array([argument.ctypes.data for argument in arguments], np.uint64)
    call = (function.ptr, *grid, *block, 0, stream, values.ctypes.data, 0)
    return int(cuda.code(cuda.driver.launchKernel, *call))


def test_blocks_are_numbered_along_three_axes(cuda: Any) -> None:
    y = cuda.cupy.empty(24, "u4")
    cuda.launch("places", y, grid=(2, 3, 4), block=1)
    assert (y.get() == np.arange(24)).all()


BLOCKS = {(1024, 1, 1): 0, (1025, 1, 1): 1, (0, 1, 1): 1, (1, 1, 64): 0, (1, 1, 65): 1, (1, 1024, 1): 0, (32, 33, 1): 1}
GRIDS = {(0, 1, 1): 1, (1, 0, 1): 1, (1, 1, 0): 1, (1, 65536, 1): 1, (1, 1, 65536): 1, (2147483648, 1, 1): 1}


@pytest.mark.parametrize(("block", "code"), BLOCKS.items())
def test_a_block_has_1_to_1024_threads_and_is_64_deep_at_most(cuda: Any, y: Any, block: Any, code: int) -> None:
    assert raw_launch(cuda, y, block=block) == code


@pytest.mark.parametrize(("grid", "code"), GRIDS.items())
def test_a_grid_is_not_empty_and_has_65535_blocks_along_its_later_axes(cuda: Any, y: Any, grid: Any, code: int) -> None:
    assert raw_launch(cuda, y, grid) == code


@pytest.mark.parametrize("block", [64, 65])
def test_launch_bounds_are_the_most_threads(cuda: Any, y: Any, block: int) -> None:
    code = launch(cuda, "narrow", y, block=block)
    assert code == 0 if block == 64 else code in (INVALID_VALUE, OUT_OF_RESOURCES)


def test_launch_bounds_are_an_attribute(cuda: Any) -> None:
    names = ("narrow", "fill")
    assert [cuda.module.get_function(name).max_threads_per_block for name in names] == [64, 1024]


def test_more_shared_memory_must_be_asked_for(cuda: Any, module: Any, y: Any) -> None:
    function = module.get_function("in_shared")
    most = cuda.cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    call = ((1,), (32,), (y,))
    assert cuda.code(lambda: function(*call, shared_mem=UNASKED)) == 0
    assert cuda.code(lambda: function(*call, shared_mem=UNASKED + 1)) == INVALID_VALUE
    function.max_dynamic_shared_size_bytes = most
    assert cuda.code(lambda: function(*call, shared_mem=most)) == 0
    assert function.max_dynamic_shared_size_bytes == most
    with pytest.raises(cuda.driver.CUDADriverError, match="INVALID_VALUE"):
        function.max_dynamic_shared_size_bytes = most + 1
    assert y.get()[:32].tolist() == list(range(32))


@pytest.mark.usefixtures("emulated")
def test_shared_memory_that_a_launch_does_not_ask_for_is_not_there(cuda: Any, y: Any) -> None:
    assert "shared memory out of bounds" in cuda.finding("in_shared", y)


@pytest.mark.parametrize(("name", "threads"), [("fill", 1024), ("fill", 33), ("narrow", 64)])
def test_blocks_share_a_multiprocessor(cuda: Any, name: str, threads: int) -> None:
    attributes, function = cuda.cupy.cuda.Device().attributes, cuda.module.get_function(name).kernel

    def blocks(threads: int, dynamic: int) -> int:
        return int(cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function.ptr, threads, dynamic))

    whole_warps = -(-threads // 32) * 32
    most = min(attributes["MaxThreadsPerMultiProcessor"] // whole_warps, attributes["MaxBlocksPerMultiprocessor"])
    assert 1 <= blocks(threads, 0) <= most
    each = UNASKED + attributes["ReservedSharedMemoryPerBlock"]
    assert 1 <= blocks(threads, UNASKED) <= attributes["MaxSharedMemoryPerMultiprocessor"] // each
    if name == "narrow":
        assert blocks(threads + 1, 0) == 0


@pytest.mark.usefixtures("emulated")
def test_what_a_launch_is_refused_for_is_said(cuda: Any, y: Any) -> None:
    with pytest.raises(cuda.driver.CUDADriverError, match="narrow: launched with 65 threads a block, more than"):
        cuda.launch("narrow", y, block=65)
    with pytest.raises(cuda.driver.CUDADriverError, match="fill: launched with 49153 bytes of dynamic shared memory"):
        cuda.launch("fill", y, 1, 1.0, shared=49153)


def test_the_stream_of_a_launch_is_of_the_current_device(cuda: Any, y: Any, other: Any) -> None:
    with other:
        handle = cuda.runtime.streamCreate()
    assert raw_launch(cuda, y, stream=handle) == INVALID_HANDLE
    with other:
        cuda.runtime.streamDestroy(handle)
