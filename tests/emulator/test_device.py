"""The emulated device: whole operators run on it, and what kernels do to the arrays they are given is seen."""

from __future__ import annotations

import inspect
import operator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv import cuda
from gpuconv.cuda.build import kernel_files, params
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.call import device
from gpuconv.cuda.plan.limits import representative
from tests.emulator import EmulatorError, emulated_cuda, tally
from tests.emulator.compile import ARCHITECTURES, turn
from tests.emulator.device import LARGEST_GRID, EmulatedDevice
from tests.harness import toolchain

pytestmark = pytest.mark.emulator

FILES = {
    "copy.cu": """// Copies elements from one strided array to another one.
struct Copy {
    const float* x;
    float* y;
    int count, x_step, y_step;
};

template <int MORE> __device__ __forceinline__ void copy(const Copy& p)
{
    extern __shared__ float shared[];
    const int stride = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += stride) {
        p.y[i * p.y_step] = p.x[i * p.x_step] + MORE;
    }
    if (p.count < 0) shared[threadIdx.x] = 1;
}
"""
}
COPY = Variant("copy_0", "copy.cu", "copy", ("0",), "Copy", 32, 1)


@pytest.fixture
def emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An emulated device on which the kernel above is the only one there is."""
    written = toolchain.write(tmp_path / "kernels_cu", FILES)
    monkeypatch.setattr(kernel_files, "folder", lambda: written)
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path / "cache"))
    with emulated_cuda() as opened:
        yield opened


def begin(emulated: EmulatedDevice, x: Any, y: Any, count: int, x_step: int = 1, y_step: int = 1) -> tuple[Any, Any]:
    """Load the kernel and fill in its parameters, as the backend would."""
    addresses = {"x": emulated.address(x), "y": emulated.result_address(y)}
    handle = emulated.load(COPY, 0, 0)
    slot = emulated.parameters(params.pack(COPY.layout, {"count": count, "x_step": x_step, "y_step": y_step}))
    words = memoryview(slot.buffer).cast("B").cast("Q")
    words[0], words[1] = addresses["x"], addresses["y"]
    return handle, slot


def copy(emulated: EmulatedDevice, x: Any, y: Any, count: int, x_step: int = 1, y_step: int = 1) -> None:
    handle, slot = begin(emulated, x, y, count, x_step, y_step)
    emulated.bind(handle, (1, 1, 1), 32, 0, slot)()


def numbers(count: int) -> Any:
    return np.arange(count, dtype=np.float32)


# ---------------------------------------------------------------- arrays


def test_strided_arrays_are_read_and_written_at_their_elements(emulated: EmulatedDevice) -> None:
    y = np.full((9, 3), -1, np.float32)
    copy(emulated, numbers(20)[19::-2], y[:, 1], 9, -2, 3)
    emulated.check_written()
    assert (y[:, 1] == np.arange(19, 2, -2)).all()
    assert (y[:, ::2] == -1).all()


@pytest.mark.parametrize("beyond", ["x", "y"])
def test_one_element_beyond_a_view_is_out_of_bounds_though_its_base_goes_on(
    emulated: EmulatedDevice, beyond: str
) -> None:
    x, y = numbers(40)[4:20:2], np.zeros(40, np.float32)[8:24:2]
    x, y = (x[:-1], y) if beyond == "x" else (x, y[:-1])
    with pytest.raises(
        EmulatorError, match=f"copy_0: global memory out of bounds: .* at byte 56 of {beyond}, which has 52"
    ):
        copy(emulated, x, y, 8, 2, 2)


def test_a_read_before_a_reversed_view_is_out_of_bounds(emulated: EmulatedDevice) -> None:
    with pytest.raises(EmulatorError, match="out of bounds: read of 4 bytes at"):
        copy(emulated, numbers(40)[20:12:-1], np.zeros(9, np.float32), 9, -1)


def test_a_write_between_the_elements_is_reported(emulated: EmulatedDevice) -> None:
    with pytest.raises(EmulatorError, match=r"copy_0: global write between the elements of y\n    copy.cu:"):
        copy(emulated, numbers(8), np.zeros(16, np.float32)[::2], 8)


def test_a_read_between_the_elements_is_reported(emulated: EmulatedDevice) -> None:
    with pytest.raises(EmulatorError, match="global read between the elements of x"):
        copy(emulated, numbers(16)[::2], np.zeros(8, np.float32), 8)


def test_elements_that_were_not_written_are_reported_when_the_call_is_over(emulated: EmulatedDevice) -> None:
    y = np.zeros((2, 8), np.float32)[:, ::2]
    copy(emulated, numbers(8), y, 3, 1, 2)
    with pytest.raises(EmulatorError, match=r"copy_0: 5 of 8 elements of y, of shape \(2, 4\), were never written"):
        emulated.current_device()
    copy(emulated, numbers(8), y, 8, 1, 2)
    emulated.check_written()


def test_the_end_of_the_context_checks_the_last_call(emulated: EmulatedDevice) -> None:
    with pytest.raises(EmulatorError, match="1 of 8 elements of y"), emulated_cuda() as inner:
        copy(inner, numbers(8), np.zeros(8, np.float32), 7)


def test_arrays_that_interleave_are_told_apart(emulated: EmulatedDevice) -> None:
    base = numbers(16)
    copy(emulated, base[::2], base[1::2], 8, 2, 2)
    emulated.check_written()
    assert (base == np.repeat(np.arange(0, 16, 2), 2)).all()
    with pytest.raises(EmulatorError, match=r"write to a read-only part of (x and y|y and x)"):
        copy(emulated, base[::2], base[1::2], 8, 2, 1)


def test_an_array_is_as_aligned_for_kernels_as_on_the_host(emulated: EmulatedDevice) -> None:
    whole = np.zeros(64, np.uint8)
    odd = np.frombuffer(bytearray(65), np.uint8, offset=1)
    assert emulated.address(whole) % 16 == whole.ctypes.data % 16
    assert emulated.address(whole[3:]) - emulated.address(whole) == 3
    assert emulated.address(odd) % 16 == odd.ctypes.data % 16


def test_empty_arrays_have_addresses_and_no_bytes(emulated: EmulatedDevice) -> None:
    copy(emulated, numbers(0), np.zeros((0, 3), np.float32), 0)
    emulated.check_written()
    with pytest.raises(EmulatorError, match="out of bounds"):
        copy(emulated, numbers(0), np.zeros(0, np.float32), 1)


def test_a_workspace_keeps_its_values_from_launch_to_launch(emulated: EmulatedDevice) -> None:
    x, y = numbers(8), emulated.empty((8,), np.dtype(np.float32), "y")
    workspace = emulated.workspace(32, "the workspace")
    addresses = [emulated.address(x), emulated.result_address(y), emulated.result_address(workspace)]
    handle = emulated.load(COPY, 0, 0)
    for source, target in ((0, 2), (2, 1)):
        slot = emulated.parameters(params.pack(COPY.layout, {"count": 8, "x_step": 1, "y_step": 1}))
        words = memoryview(slot.buffer).cast("B").cast("Q")
        words[0], words[1] = addresses[source], addresses[target]
        emulated.bind(handle, (1, 1, 1), 32, 0, slot)()
    emulated.check_written()
    assert (y == x).all()


def test_a_workspace_has_no_values_at_first(emulated: EmulatedDevice) -> None:
    workspace = emulated.workspace(32, "the workspace")
    with pytest.raises(EmulatorError, match="uninitialised global read of x"):
        copy(emulated, workspace, np.zeros(8, np.float32), 8)


def test_new_arrays_hold_nan(emulated: EmulatedDevice) -> None:
    assert np.isnan(emulated.empty((2, 3), np.dtype(np.float16), "y")).all()
    assert emulated.empty((), np.dtype(np.float64), "y").shape == ()


# ---------------------------------------------------------------- launches


def test_a_struct_of_another_size_is_refused(emulated: EmulatedDevice) -> None:
    handle, slot = begin(emulated, numbers(8), np.zeros(8, np.float32), 8)
    longer = emulated.parameters(slot.buffer.tobytes() + bytes(8))
    with pytest.raises(EmulatorError, match="copy_0: launched with a struct of 40 bytes, but the kernel takes 32"):
        emulated.bind(handle, (1, 1, 1), 32, 0, longer)()


@pytest.mark.parametrize(
    ("grid", "threads", "shared_bytes", "message"),
    [
        ((LARGEST_GRID[0] + 1, 1, 1), 32, 0, "a grid of"),
        ((1, 65536, 1), 32, 0, "a grid of"),
        ((1, 1, 0), 32, 0, "a grid of"),
        ((1, 1, 1), 33, 0, "33 threads a block, which must be from 1 to 32"),
        ((1, 1, 1), 32, 49153, "49153 bytes of dynamic shared memory, but at most 49152 can be had"),
    ],
)
def test_what_the_driver_refuses_is_refused(
    emulated: EmulatedDevice, grid: tuple[int, int, int], threads: int, shared_bytes: int, message: str
) -> None:
    handle, slot = begin(emulated, numbers(8), np.zeros(8, np.float32), 8)
    with pytest.raises(EmulatorError, match=f"copy_0: launched with {message}"):
        emulated.bind(handle, grid, threads, shared_bytes, slot)()


def test_no_block_gets_more_shared_memory_than_the_device_has(emulated: EmulatedDevice) -> None:
    largest = representative("sm_90a").limits.shared_bytes_per_block
    assert emulated.load(COPY, 0, largest).shared_bytes == largest
    with pytest.raises(EmulatorError, match=f"{largest + 1} bytes of dynamic shared memory are more than"):
        emulated.load(COPY, 0, largest + 1)


def test_launches_are_recorded_and_counted(emulated: EmulatedDevice) -> None:
    before = tally.launches["copy_0 sm_80"]
    with emulated_cuda("sm_80", counters=True) as inner:
        copy(inner, numbers(64), np.zeros(64, np.float32), 64)
        copy(inner, numbers(64)[::2], np.zeros(32, np.float32), 32, 2)
    assert [(record.variant, record.grid, record.threads) for record in inner.launches] == [(COPY, (1, 1, 1), 32)] * 2
    assert np.frombuffer(inner.launches[1].parameters, COPY.layout)["x_step"] == [2]
    counters = inner.counters()["copy_0"]
    assert counters.total["global_sectors"] == 8 + 8 + 8 + 4
    assert counters.total["global_ideal"] == 8 + 8 + 4 + 4
    assert tally.launches["copy_0 sm_80"] == before + 2


def test_each_kernel_is_compiled_for_one_of_its_architectures(emulated: EmulatedDevice) -> None:
    kernels = [replace(COPY, name=f"copy_{number}") for number in range(40)]
    assert {turn(one) for one in kernels} == set(ARCHITECTURES)
    hopper = replace(COPY, architectures=("sm_90a",))
    assert turn(hopper) == "sm_90a"
    assert [emulated.load(one, 0, 0).architecture for one in (COPY, hopper)] == [turn(COPY), "sm_90a"]
    with emulated_cuda(limits_of="sm_86") as inner:
        assert inner.limits(0) == representative("sm_86").limits


# ---------------------------------------------------------------- in place of the device


def test_the_device_before_is_back_after_errors_and_nested_uses() -> None:
    before = cuda.runtime
    with emulated_cuda() as outer:
        with emulated_cuda() as inner:
            assert cuda.runtime is inner
            assert inner.prepared is not outer.prepared
        assert cuda.runtime is outer
        with pytest.raises(KeyError), emulated_cuda():
            raise KeyError
        assert cuda.runtime is outer
    assert cuda.runtime is before


INTERFACE = (
    *(
        "unavailable_reason",
        "array_type",
        "current_device",
        "device_of",
        "layout",
        "limits",
        "load",
        "parameters",
        "bind",
        "tensor_map",
    ),
    *("empty", "workspace", "parts", "address", "result_address", "keep"),
    *("is_capturing", "wait", "copied", "to_device", "to_host"),
)


@pytest.mark.parametrize("name", INTERFACE)
def test_both_devices_have_the_same_functions(name: str) -> None:
    real = getattr(device, name)
    emulated = inspect.signature(getattr(EmulatedDevice, name))
    one_array = isinstance(real, operator.attrgetter)
    assert list(emulated.parameters)[1:] == (["array"] if one_array else list(inspect.signature(real).parameters))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_the_operators_run_as_on_the_cpu(architecture: str) -> None:
    generator = np.random.default_rng(0)
    x = generator.integers(-3, 4, (2, 3, 9, 8)).astype(np.float32)
    w = generator.integers(-3, 4, (6, 3, 3, 2)).astype(np.float32)
    wanted = [
        gpuconv.conv(x, w, pads=[1, 0, 2, 1], strides=[1, 2]),
        gpuconv.conv_transpose(x, w[:3], strides=[2, 1]),
        *gpuconv.max_pool(x, kernel_shape=[2, 3], return_indices=True),
    ]
    with emulated_cuda(architecture, seed=1) as emulated:
        out = np.full((2, 6, 10, 8), np.nan, np.float32)[..., ::2]
        found = [
            gpuconv.conv(x, w, pads=[1, 0, 2, 1], strides=[1, 2], out=out),
            gpuconv.conv_transpose(x, w[:3], strides=[2, 1]),
            *gpuconv.max_pool(x, kernel_shape=[2, 3], return_indices=True),
        ]
    assert found[0] is out
    assert len(emulated.launches) >= 3
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert (one == other).all()
