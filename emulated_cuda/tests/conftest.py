"""Fixtures and helpers for tests of the emulated driver: the device, a few small kernels, and CUDA error codes.

Tests with the fixture ``emulated`` are about the emulated device only. All other tests follow NVIDIA's documentation of
the runtime and the driver, and should also pass on a GPU.
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
    """Install the emulated device, unless there is a GPU or it is installed already; return why that fails, or None."""
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
    """Return why this machine cannot run a test: no device (marker ``gpu``) or no compiler (marker ``emulator``)."""
    reason = None
    if item.get_closest_marker("emulator") or (item.get_closest_marker("gpu") and not hardware()):
        reason = nvrtc.unavailable_reason()
    return reason or (unavailable_reason() if item.get_closest_marker("gpu") else None)


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Ignore these tests in runs of the marker ``quick``, in which nothing is compiled."""
    return True if config.option.markexpr == "quick" else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that this machine cannot run, or fail it if the environment requires a GPU or the emulator."""
    if item.get_closest_marker("gpu") and os.environ.get("GPUCONV_REQUIRE_GPU") == "1" and not hardware():
        pytest.fail("GPUCONV_REQUIRE_GPU=1, but there is no GPU", pytrace=False)
    reason = lacking(item)
    if reason is not None and os.environ.get("GPUCONV_REQUIRE_EMULATOR") == "1":
        pytest.fail(f"GPUCONV_REQUIRE_EMULATOR=1, but {reason}", pytrace=False)
    if reason is not None:
        pytest.skip(reason)


def _narrow(value: Any) -> Any:
    """Convert a Python number to a kernel argument of 32 bits; larger integers (addresses) are returned unchanged."""
    if isinstance(value, float):
        return np.float32(value)
    return np.int32(value) if isinstance(value, int) and abs(value) < 2**31 else value


class Cuda:
    """CuPy, its bindings of the runtime and the driver, and the kernels of SOURCE."""

    def __init__(self) -> None:
        self.cupy: Any = importlib.import_module("cupy")
        self.runtime, self.driver = self.cupy.cuda.runtime, self.cupy.cuda.driver
        self.module = self.cupy.RawModule(code=SOURCE)

    def launch(self, name: str, *arguments: Any, block: int = 32, shared: int = 0, grid: Any = (1,)) -> None:
        """Launch a kernel of SOURCE on the current stream, by default one block of 32 threads."""
        given = tuple(map(_narrow, arguments))
        self.module.get_function(name)(grid, (block,), given, shared_mem=shared)

    def stream(self, handle: int) -> Any:
        """Return a CuPy stream for a handle of the runtime; the caller keeps ownership."""
        foreign = SimpleNamespace(__cuda_stream__=lambda: (0, handle))
        return self.cupy.cuda.Stream.from_external(foreign)

    def code(self, function: Callable[..., Any], *arguments: Any) -> int:
        """Call a function of the runtime or the driver and return its error code, 0 if it succeeds."""
        try:
            function(*arguments)
        except (self.runtime.CUDARuntimeError, self.driver.CUDADriverError) as error:
            return int(error.status)
        return 0

    def finding(self, name: str, *arguments: Any) -> str:
        """Launch a kernel that fails, and return the text of the error that the next synchronisation raises."""
        self.launch(name, *arguments)
        with pytest.raises(self.runtime.CUDARuntimeError) as error:
            self.runtime.deviceSynchronize()
        return str(error.value)

    def pinned(self, count: int, value: float = 0) -> Any:
        """Return an array of floats in pinned host memory."""
        memory = self.cupy.cuda.alloc_pinned_memory(4 * count)
        array = np.frombuffer(memory, np.float32, count)
        array[:] = value
        return array


@pytest.fixture(scope="session")
def _cuda() -> Cuda:
    return Cuda()


@pytest.fixture
def cuda(_cuda: Cuda) -> Iterator[Cuda]:
    """CuPy and the kernels of SOURCE. After each test the device is synchronised, so no work is left over."""
    yield _cuda
    _cuda.code(_cuda.runtime.deviceSynchronize)


@pytest.fixture
def module(cuda: Cuda, request: pytest.FixtureRequest) -> Any:
    """A separate module of the same kernels: CuPy loads equal source only once, and then shares variables."""
    return cuda.cupy.RawModule(code=f"{SOURCE}// {request.node.name}")


@pytest.fixture
def emulated() -> None:
    """Skip the test on a real device."""
    if hardware():
        pytest.skip("it is about the emulated device")


@pytest.fixture
def library(emulated: None) -> ctypes.CDLL:
    """The emulated driver, for its C functions."""
    return ctypes.CDLL("libcuda.so.1")


@pytest.fixture
def sticky(library: ctypes.CDLL) -> Iterator[None]:
    """Make kernel errors sticky for a test, as on a real device: the context is lost."""
    library.emulated_reset(1)
    yield
    library.emulated_reset(0)


@pytest.fixture
def other(cuda: Cuda) -> Iterator[Any]:
    """A second device; skips the test if there is only one."""
    if cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is one device only")
    yield cuda.cupy.cuda.Device(1)
    with cuda.cupy.cuda.Device(1):
        cuda.code(cuda.runtime.deviceSynchronize)
