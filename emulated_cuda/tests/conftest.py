"""What the tests of the emulated driver share: the device, a few tiny kernels, and what calls answer.

Tests with the fixture ``emulated`` are about the emulated device only; the others hold on every device, by NVIDIA's
documentation of the runtime and the driver.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from emulated_cuda import Settings, Unsuitable, install, nvrtc
from emulated_cuda.install import hardware, installed

SOURCE = r"""
__device__ float scale = 3;
__device__ int table[4] = {1, 2, 3, 4};

extern "C" __global__ void fill(float* y, int count, float value)
{
    for (int i = threadIdx.x; i < count; i += blockDim.x) y[i] = value;
}
extern "C" __global__ void add(const float* x, float* y, int count, float value)
{
    for (int i = threadIdx.x; i < count; i += blockDim.x) y[i] = x[i] + value;
}
extern "C" __global__ void poke(float* y, int at) { y[at] = 1; }
extern "C" __global__ void peek(const float* x, int at, float* y) { y[0] = x[at]; }
extern "C" __global__ void scaled(float* y) { y[0] = scale * table[3]; }
extern "C" __global__ void __launch_bounds__(64) narrow(float* y) { y[threadIdx.x] = 1; }
extern "C" __global__ void in_shared(float* y)
{
    extern __shared__ float shared[];
    shared[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = shared[threadIdx.x];
}
extern "C" __global__ void misaligned(char* y) { *reinterpret_cast<int*>(y + 1) = 1; }
extern "C" __global__ void trap() { __trap(); }
extern "C" __global__ void places(unsigned* y)
{
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    y[block] = block;
}
"""


@cache
def unavailable_reason() -> str | None:
    """Install the emulated device, unless there is a GPU or other tests have installed it; return why CuPy has none."""
    if find_spec("cupy") is None:
        return "CuPy is not installed"
    if hardware() or installed():
        return None
    try:
        install(replace(Settings.from_environment(), devices=2), replace_nvrtc=False)
    except (Unsuitable, RuntimeError) as error:
        return str(error)
    return None


def lacking(item: pytest.Item) -> str | None:
    """Return what this machine lacks for a test: a device for the marker ``gpu``, a compiler for ``emulator``."""
    reason = None
    if item.get_closest_marker("emulator") or (item.get_closest_marker("gpu") and not hardware()):
        reason = nvrtc.unavailable_reason()
    return reason or (unavailable_reason() if item.get_closest_marker("gpu") else None)


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave these tests out of the quick tier, which compiles nothing."""
    return True if config.option.markexpr == "quick" else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test for which something is lacking, with the reason; fail it where that is required."""
    if item.get_closest_marker("gpu") and os.environ.get("GPUCONV_REQUIRE_GPU") == "1" and not hardware():
        pytest.fail("GPUCONV_REQUIRE_GPU=1, but there is no GPU", pytrace=False)
    reason = lacking(item)
    if reason is not None and os.environ.get("GPUCONV_REQUIRE_EMULATOR") == "1":
        pytest.fail(f"GPUCONV_REQUIRE_EMULATOR=1, but {reason}", pytrace=False)
    if reason is not None:
        pytest.skip(reason)


def _narrow(value: Any) -> Any:
    """Return a number of 32 bits, unless it is an address."""
    if isinstance(value, float):
        return np.float32(value)
    return np.int32(value) if isinstance(value, int) and abs(value) < 2**31 else value


class Cuda:
    """CuPy with the kernels above."""

    def __init__(self) -> None:
        self.cupy: Any = importlib.import_module("cupy")
        self.runtime, self.driver = self.cupy.cuda.runtime, self.cupy.cuda.driver
        self.module = self.cupy.RawModule(code=SOURCE)

    def launch(self, name: str, *arguments: Any, block: int = 32, shared: int = 0, grid: Any = (1,)) -> None:
        """Launch a kernel on the current stream, usually one block."""
        given = tuple(map(_narrow, arguments))
        self.module.get_function(name)(grid, (block,), given, shared_mem=shared)

    def stream(self, handle: int) -> Any:
        """Return CuPy's stream for a handle of the runtime, which stays the caller's."""
        foreign = SimpleNamespace(__cuda_stream__=lambda: (0, handle))
        return self.cupy.cuda.Stream.from_external(foreign)

    def code(self, function: Callable[..., Any], *arguments: Any) -> int:
        """Return what a function of the runtime or the driver answers."""
        try:
            function(*arguments)
        except (self.runtime.CUDARuntimeError, self.driver.CUDADriverError) as error:
            return int(error.status)
        return 0

    def finding(self, name: str, *arguments: Any) -> str:
        """Return what is said of a launch, and of all that comes before, when the device has run it."""
        self.launch(name, *arguments)
        with pytest.raises(self.runtime.CUDARuntimeError) as error:
            self.runtime.deviceSynchronize()
        return str(error.value)

    def pinned(self, count: int, value: float = 0) -> Any:
        """Return floats of the host that the device can use."""
        memory = self.cupy.cuda.alloc_pinned_memory(4 * count)
        array = np.frombuffer(memory, np.float32, count)
        array[:] = value
        return array


@pytest.fixture(scope="session")
def _cuda() -> Cuda:
    return Cuda()


@pytest.fixture
def cuda(_cuda: Cuda) -> Iterator[Cuda]:
    """CuPy and the kernels; whatever a test leaves to run has run before the next one."""
    yield _cuda
    _cuda.code(_cuda.runtime.deviceSynchronize)


@pytest.fixture
def module(cuda: Cuda, request: pytest.FixtureRequest) -> Any:
    """The kernels' module once more: CuPy loads the same text once only, and with it variables and attributes."""
    return cuda.cupy.RawModule(code=f"{SOURCE}// {request.node.name}")


@pytest.fixture
def emulated() -> None:
    """Leave a test out on a real device."""
    if hardware():
        pytest.skip("it is about the emulated device")


@pytest.fixture
def library(emulated: None) -> ctypes.CDLL:
    """The emulated driver."""
    return ctypes.CDLL("libcuda.so.1")


@pytest.fixture
def sticky(library: ctypes.CDLL) -> Iterator[None]:
    """Let errors of kernels be the end of their context, as they are on a device."""
    library.emulated_reset(1)
    yield
    library.emulated_reset(0)


@pytest.fixture
def other(cuda: Cuda) -> Iterator[Any]:
    """A second device."""
    if cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is one device only")
    yield cuda.cupy.cuda.Device(1)
    with cuda.cupy.cuda.Device(1):
        cuda.code(cuda.runtime.deviceSynchronize)
