"""NumPy arrays on the emulated device: whole operators run there, and violations by kernels are detected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.build import kernel_files
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.call import device
from gpuconv.cuda.plan.launch import Launch
from gpuconv.cuda.plan.limits import representative
from tests.emulator import EmulatorError, emulated_cuda, tally
from tests.emulator.compile import ARCHITECTURES, turn
from tests.emulator.device import EmulatedCuda
from tests.emulator.mirror import Mirror
from tests.harness import toolchain
from tests.kernels import passes

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
    for (int i = threadIdx.x; i < p.count; i += blockDim.x) p.y[i * p.y_step] = p.x[i * p.x_step] + MORE;
}
"""
}
COPY = Variant("copy_0", "copy.cu", "copy", ("0",), "Copy", 32, 1)


Copies = Callable[..., EmulatedCuda]


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copies:
    """Return a function that launches the kernel above, the only one."""
    written = toolchain.write(tmp_path / "kernels_cu", FILES)
    monkeypatch.setattr(kernel_files, "folder", lambda: written)
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path / "cache"))

    def run(x: Any, y: Any, count: int, x_step: int = 1, y_step: int = 1, **options: Any) -> EmulatedCuda:
        return passes.run(copying(count, x_step, y_step), {"x": x}, {"y": y}, **options)

    return run


def copying(count: int, x_step: int = 1, y_step: int = 1) -> Launch:
    fields = {"count": count, "x_step": x_step, "y_step": y_step}
    return Launch(COPY, (1, 1, 1), 0, fields, {"x": "x", "y": "y"})


def numbers(count: int) -> Any:
    return np.arange(count, dtype=np.float32)


# ---------------------------------------------------------------- arrays


def test_strided_arrays_are_read_and_written_at_their_elements(copy: Copies) -> None:
    y = np.full((9, 3), -1, np.float32)
    copy(numbers(20)[19::-2], y[:, 1], 9, -2, 3)
    assert (y[:, 1] == np.arange(19, 2, -2)).all()
    assert (y[:, ::2] == -1).all()


@pytest.mark.parametrize("beyond", ["x", "y"])
def test_one_element_beyond_a_view_is_out_of_bounds_though_its_base_goes_on(copy: Copies, beyond: str) -> None:
    x, y = numbers(40)[4:20:2], np.zeros(40, np.float32)[8:24:2]
    x, y = (x[:-1], y) if beyond == "x" else (x, y[:-1])
    with pytest.raises(
        EmulatorError, match=f"copy_0: global memory out of bounds: .* at byte 56 of {beyond}, which has 52"
    ):
        copy(x, y, 8, 2, 2)


def test_a_read_before_a_reversed_view_is_out_of_bounds(copy: Copies) -> None:
    with pytest.raises(EmulatorError, match="out of bounds: read of 4 bytes at"):
        copy(numbers(40)[19:11:-1], np.zeros(9, np.float32), 9, -1)


def test_a_write_between_the_elements_is_reported(copy: Copies) -> None:
    with pytest.raises(EmulatorError, match=r"copy_0: global write between the elements of y\n    copy.cu:"):
        copy(numbers(8), np.zeros(16, np.float32)[::2], 8)


def test_a_read_between_the_elements_is_reported(copy: Copies) -> None:
    with pytest.raises(EmulatorError, match="global read between the elements of x"):
        copy(numbers(16)[::2], np.zeros(8, np.float32), 8)


@pytest.mark.usefixtures("copy")
def test_inputs_are_not_written() -> None:
    with pytest.raises(EmulatorError, match="copy_0: write to a read-only part of y"):
        passes.run(copying(8), {"x": numbers(8), "y": numbers(8)}, {})


def test_elements_that_were_not_written_are_reported(copy: Copies) -> None:
    y = np.zeros((2, 8), np.float32)[:, ::2]
    with pytest.raises(EmulatorError, match=r"copy_0: 5 of 8 elements of y, of shape \(2, 4\), were never written"):
        copy(numbers(8), y, 3, 1, 2)
    copy(numbers(8), y, 8, 1, 2)
    assert (y == numbers(8).reshape(2, 4)).all()


def test_arrays_that_interleave_are_told_apart(copy: Copies) -> None:
    base = numbers(16)
    copy(base[::2], base[1::2], 8, 2, 2)
    assert (base == np.repeat(np.arange(0, 16, 2), 2)).all()
    with pytest.raises(EmulatorError, match="write to a read-only part of"):
        copy(base[::2], base[1::2], 8, 2, 1)


def test_arrays_without_elements_have_no_bytes(copy: Copies) -> None:
    copy(numbers(0), np.zeros((0, 3), np.float32), 0)
    with pytest.raises(EmulatorError, match="out of bounds"):
        copy(numbers(0), np.zeros(0, np.float32), 1)


def test_arrays_are_as_aligned_and_as_far_apart_as_on_the_host() -> None:
    whole, odd = np.zeros(64, np.uint8), np.frombuffer(bytearray(65), np.uint8, offset=1)
    arrays = whole, whole[3:], odd
    with emulated_cuda():
        mirror = Mirror(arrays)
        places = [mirror.of(array).data.ptr for array in arrays]
    assert [place % 16 for place in places] == [array.ctypes.data % 16 for array in arrays]
    assert places[1] - places[0] == 3


# ---------------------------------------------------------------- launches


def test_launches_are_recorded_and_counted(copy: Copies) -> None:
    before = tally.launches["copy_0 sm_80"]
    emulated = copy(numbers(64), np.zeros(64, np.float32), 64, architecture="sm_80", counters=True)
    (record,) = emulated.launches
    assert (record.variant, record.grid, record.threads, record.shared_bytes) == (COPY, (1, 1, 1), 32, 0)
    strided = copy(numbers(64)[::2], np.zeros(32, np.float32), 32, 2, architecture="sm_80", counters=True)
    assert np.frombuffer(strided.launches[0].parameters, COPY.layout)["x_step"] == [2]
    totals = [one.counters()["copy_0"].total for one in (emulated, strided)]
    assert [total["global_sectors"] for total in totals] == [8 + 8, 8 + 4]
    assert [total["global_ideal"] for total in totals] == [8 + 8, 4 + 4]
    assert tally.launches["copy_0 sm_80"] == before + 2


@pytest.mark.usefixtures("copy")
def test_each_kernel_is_compiled_for_one_of_its_architectures() -> None:
    kernels = [replace(COPY, name=f"copy_{number}") for number in range(40)]
    assert {turn(one) for one in kernels} == set(ARCHITECTURES)
    hopper = replace(COPY, architectures=("sm_90a",))
    assert turn(hopper) == "sm_90a"
    with emulated_cuda(limits_of="sm_86") as emulated:
        assert device.limits(0) == representative("sm_86").limits
        for kernel, architecture in ((COPY, turn(COPY)), (hopper, "sm_90a")):
            assert f".target {architecture}\n" in emulated.ptx(kernel, "sm_86").decode()
    with emulated_cuda("sm_100a") as emulated:
        assert ".target sm_100a\n" in emulated.ptx(COPY, "sm_86").decode()


# ---------------------------------------------------------------- gpuconv's functions


def test_what_was_before_is_back_after_errors_and_nested_uses() -> None:
    before = gpuconv.conv, device.prepared, device.limits
    with emulated_cuda() as outer:
        within = gpuconv.conv
        with emulated_cuda() as inner:
            assert device.prepared is inner.prepared is not outer.prepared
        assert device.prepared is outer.prepared
        with pytest.raises(KeyError), emulated_cuda():
            raise KeyError
        assert (gpuconv.conv, device.prepared) == (within, outer.prepared)
    assert (gpuconv.conv, device.prepared, device.limits) == before


@pytest.mark.parametrize("architecture", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_the_operators_run_as_on_the_cpu(architecture: str) -> None:
    generator = np.random.default_rng(0)
    x = generator.integers(-3, 4, (2, 3, 9, 8)).astype(np.float32)
    w = generator.integers(-3, 4, (6, 3, 3, 2)).astype(np.float32)
    out = np.full((2, 6, 10, 8), np.nan, np.float32)[..., ::2]

    def results(**outs: Any) -> list[Any]:
        return [
            gpuconv.conv(x, w=w, pads=[1, 0, 2, 1], strides=[1, 2], **outs),
            gpuconv.conv_transpose(x, w[:3], strides=[2, 1]),
            *gpuconv.max_pool(x, kernel_shape=[2, 3], return_indices=True),
        ]

    wanted = results()
    with emulated_cuda(architecture, seed=1) as emulated:
        found = results(out=out)
    assert found[0] is out
    assert len(emulated.launches) >= 3
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert (one == other).all()


def test_arrays_of_the_device_stay_there() -> None:
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 8)
    with emulated_cuda():
        pooled = gpuconv.max_pool(gpuconv.to_device(x), kernel_shape=[2])
        assert type(pooled).__module__ == "cupy"
        np.testing.assert_array_equal(gpuconv.to_host(pooled), x[..., 1:])


def test_operands_that_share_memory_share_it_on_the_device() -> None:
    x = np.zeros((1, 1, 9), np.float32)
    with emulated_cuda(), pytest.raises(gpuconv.ArgumentError, match="out shares memory with x"):
        gpuconv.max_pool(x, kernel_shape=[2], out=x[..., 1:])


def test_a_function_that_was_looked_up_before_does_not_run_on_the_cpu() -> None:
    conv = gpuconv.conv
    with emulated_cuda(), pytest.raises(AssertionError, match="look conv up in gpuconv"):
        conv(np.ones((1, 1, 3)), np.ones((1, 1, 1)))
