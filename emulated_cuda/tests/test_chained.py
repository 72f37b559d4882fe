"""Programmatic dependent launch: races between a kernel and one that may overlap it are reported.

By the CUDA C++ Programming Guide and PTX's griddepcontrol, such a kernel may start before the kernel before it has
finished, and sees its writes only after griddepcontrol.wait. If no thread waits, later kernels are not ordered after
that one either.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from emulated_cuda import control

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("emulated")]

SOURCE = r"""
__device__ void wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ void let_go() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

extern "C" __global__ void fill(int* y, int value) { y[blockIdx.x * 32 + threadIdx.x] = value; }
extern "C" __global__ void sum(const int* x, int* y) { wait(); y[threadIdx.x] = x[threadIdx.x] + 1; }
extern "C" __global__ void lets_go(int* y, int value) { let_go(); y[threadIdx.x] = value; }
extern "C" __global__ void waits_and_lets_go(const int* x, int* y) {
    wait(), let_go(), y[threadIdx.x] = x[threadIdx.x];
}
extern "C" __global__ void lets_go_and_waits(const int* x, int* y) {
    let_go(), wait(), y[threadIdx.x] = x[threadIdx.x];
}

extern "C" __global__ void never_waits(int* y) { y[threadIdx.x] = 3; }
extern "C" __global__ void reads_first(const int* x, int* y) { int v = x[threadIdx.x]; wait(); y[threadIdx.x] = v; }
extern "C" __global__ void writes_first(int* x) { x[threadIdx.x] = 3; wait(); }
extern "C" __global__ void adds_first(int* x) { atomicAdd(x, 3); wait(); }
extern "C" __global__ void copies_first(const int* x, int* y) {
    __shared__ int tile[32];
    const unsigned to = shared_address(tile + threadIdx.x);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + threadIdx.x));
    wait();
    asm volatile("cp.async.wait_all;" ::: "memory");
    y[threadIdx.x] = tile[threadIdx.x];
}
extern "C" __global__ void one_thread_waits(const int* x, int* y) {
    if (threadIdx.x == 0) wait();
    __syncthreads();
    y[threadIdx.x] = x[threadIdx.x];
}
"""
SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class Chain:
    """The kernels of SOURCE, and three arrays of 32 integers, initially zero."""

    def __init__(self, cuda: Any) -> None:
        self.cuda, self.driver = cuda, importlib.import_module("cuda.bindings.driver")
        self.module = cuda.cupy.RawModule(code=SOURCE, options=("-lineinfo",))
        self.x, self.y, self.z = (cuda.cupy.zeros(32, "i4") for _ in range(3))
        cuda.runtime.deviceSynchronize()

    def plain(self, name: str, *arguments: Any) -> None:
        self.module.get_function(name)((1,), (32,), arguments)

    def chained(self, name: str, *arguments: Any, stream: int = 0, attribute: int = SERIALIZATION) -> int:
        """Launch with programmatic stream serialization by cuLaunchKernelEx, and return its error code."""
        driver = self.driver
        given = driver.CUlaunchAttribute()
        given.id = driver.CUlaunchAttributeID(attribute)
        given.value.programmaticStreamSerializationAllowed = 1
        config = driver.CUlaunchConfig()
        config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.blockDimX, config.hStream = 32, stream
        config.attrs, config.numAttrs = [given], 1
        values = [np.array([one.data.ptr if hasattr(one, "data") else one], np.uint64) for one in arguments]
        places = np.array([value.ctypes.data for value in values], np.uint64)
        function = self.module.get_function(name).kernel
        return int(driver.cuLaunchKernelEx(config, function.ptr, places.ctypes.data, 0)[0])

    def finding(self) -> str:
        """Run all pending work, and return the text of the error or ""."""
        try:
            self.cuda.runtime.deviceSynchronize()
        except self.cuda.runtime.CUDARuntimeError as error:
            return str(error)
        return ""


@pytest.fixture
def chain(cuda: Any) -> Chain:
    return Chain(cuda)


def test_a_kernel_that_waits_sees_what_the_one_before_wrote(chain: Chain) -> None:
    seen: list[control.Launch] = []
    with control.watched(seen.append):
        chain.plain("fill", chain.x, 4)
        assert chain.chained("sum", chain.x, chain.y) == 0
        assert chain.chained("sum", chain.y, chain.x) == 0
        chain.plain("fill", chain.z, 1)
    assert chain.finding() == ""
    assert [launch.chained for launch in seen] == [False, True, True, False]
    assert (chain.y.get() == 5).all()
    assert (chain.x.get() == 6).all()


FAULTS = {
    "reads_first": "read of device memory, which that kernel writes, before griddepcontrol.wait",
    "writes_first": "write of device memory, which that kernel writes, before griddepcontrol.wait",
    "adds_first": "write of device memory, which that kernel writes, before griddepcontrol.wait",
    "copies_first": "read of device memory, which that kernel writes, before griddepcontrol.wait",
    "one_thread_waits": "read of device memory, which that kernel writes, before griddepcontrol.wait",
    "never_waits": "for which no thread waits (griddepcontrol.wait)",
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_comes_before_the_wait_is_not_ordered(chain: Chain, name: str) -> None:
    arguments = (chain.x,) if name in ("writes_first", "adds_first", "never_waits") else (chain.x, chain.y)
    chain.plain("fill", chain.x, 4)
    assert chain.chained(name, *arguments) == 0
    found = chain.finding()
    assert FAULTS[name] in found, found
    if name != "never_waits":
        assert "race with the kernel before, fill" in found
        assert ".cu:" in found


def test_memory_that_the_kernel_before_reads_may_not_be_overwritten(chain: Chain) -> None:
    chain.plain("sum", chain.x, chain.y)
    chain.chained("writes_first", chain.x)
    assert "race with the kernel before, sum: write of device memory, which that kernel reads" in chain.finding()


def test_reading_what_both_read_is_no_race(chain: Chain) -> None:
    chain.plain("sum", chain.x, chain.y)
    assert chain.chained("reads_first", chain.x, chain.z) == 0
    assert chain.finding() == ""


@pytest.mark.parametrize("between", ["launch", "host", "other stream"])
def test_what_has_ended_is_not_overlapped(chain: Chain, between: str) -> None:
    """Nothing overlaps two launches back if the one between waited, after a host synchronisation, or across streams."""
    chain.plain("fill", chain.x, 4)
    if between == "launch":
        chain.chained("waits_and_lets_go", chain.z, chain.y)
        chain.chained("reads_first", chain.x, chain.z)
    elif between == "host":
        chain.cuda.runtime.deviceSynchronize()
        chain.chained("reads_first", chain.x, chain.z)
    else:
        stream = chain.cuda.cupy.cuda.Stream()  # which waits for the null stream
        chain.chained("reads_first", chain.x, chain.z, stream=stream.ptr)
    found = chain.finding()
    assert found == ""
    assert (chain.z.get() == 4).all()


def test_a_kernel_that_lets_the_next_one_go_before_it_waits_does_not_order_it(chain: Chain) -> None:
    """The second kernel lets the third one start before it has waited itself, so the third may overlap the first."""
    chain.plain("fill", chain.x, 4)
    chain.chained("lets_go_and_waits", chain.z, chain.y)
    chain.chained("reads_first", chain.x, chain.z)
    assert "race with the kernel before, fill: read of" in chain.finding()


def test_a_plain_launch_comes_after_all(chain: Chain) -> None:
    chain.plain("lets_go", chain.x, 4)
    chain.chained("lets_go_and_waits", chain.x, chain.y)
    chain.plain("never_waits", chain.x)
    assert chain.finding() == ""
    assert (chain.y.get() == 4).all()


def test_an_event_between_two_kernels_does_not_part_them(chain: Chain) -> None:
    chain.plain("fill", chain.x, 4)
    chain.cuda.cupy.cuda.Event().record()
    chain.chained("reads_first", chain.x, chain.y)
    assert "race with the kernel before" in chain.finding()


@pytest.mark.parametrize("name", ["sum", "reads_first"])
def test_captured_launches_overlap_in_the_graph_each_time(chain: Chain, name: str) -> None:
    stream = chain.cuda.cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        chain.plain("fill", chain.x, 4)
        assert chain.chained(name, chain.x, chain.y, stream=stream.ptr) == 0
        graph = stream.end_capture()
    for _ in range(2):
        graph.launch(stream)
        found = chain.finding()
        assert ("race with the kernel before, fill" in found) == (name == "reads_first")


def test_other_attributes_are_refused(chain: Chain) -> None:
    not_supported = 801
    assert chain.chained("sum", chain.x, chain.y, attribute=4) == not_supported
    assert chain.chained("sum", chain.x, chain.y, attribute=0) == 0  # to be ignored


def test_devices_before_9_0_refuse(chain: Chain) -> None:
    with control.changed(capability=89):
        assert chain.chained("sum", chain.x, chain.y) == 801
