"""Invalid input and failing devices: each raises one error that says what to do, and the next call works."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import gpuconv
from emulated_cuda import control
from gpuconv import ArgumentError, ArgumentTypeError, DeviceError
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.call import device
from tests.harness.idle_kernels import Sent

pytestmark = pytest.mark.usefixtures("general_kernels")


def arrays(sent: Sent) -> tuple[Any, Any]:
    return sent.cupy.empty((2, 4, 6, 7), "f"), sent.cupy.empty((5, 4, 3, 2), "f")


def refused(error: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    return str(caught.value)


def works(sent: Sent) -> None:
    """Check that the next call works."""
    before = len(sent.launches)
    assert gpuconv.conv(*arrays(sent)).shape == (2, 5, 4, 6)
    assert len(sent.launches) == before + 2


# ---------------------------------------------------------------- devices and drivers


@pytest.mark.parametrize(
    "reason",
    [
        "cudaErrorNoDevice: no CUDA-capable device is detected",
        "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
    ],
)
def test_no_device_and_an_old_driver_are_named(sent: Sent, reason: str) -> None:
    with mock.patch.object(sent.cupy.cuda.runtime, "getDeviceCount", side_effect=RuntimeError(reason)):
        message = refused(DeviceError, lambda: gpuconv.to_device(np.zeros(3)))
    assert (
        message == f"no CUDA device was found (the CUDA driver reports {reason}); pass NumPy arrays to run on the CPU"
    )
    works(sent)


def test_a_device_older_than_sm_80_is_refused(sent: Sent) -> None:
    old = SimpleNamespace(compute_capability="75", attributes=sent.cupy.cuda.Device(0).attributes)
    with mock.patch.object(sent.cupy.cuda, "Device", return_value=old):
        message = refused(DeviceError, lambda: gpuconv.conv(*arrays(sent)))
    assert message == "gpuconv needs compute capability 8.0 or newer, this device has 7.5"
    works(sent)


@pytest.mark.parametrize("name", ["w", "out", "residual"])
def test_arrays_of_two_devices(sent: Sent, name: str) -> None:
    x, w = arrays(sent)
    others: dict[str, Any] = {}
    with sent.cupy.cuda.Device(1):
        if name == "w":
            w = arrays(sent)[1]
        else:
            others[name] = sent.cupy.empty((2, 5, 4, 6), "f")
    message = refused(DeviceError, lambda: gpuconv.conv(x, w, **others))
    assert f"{name} on device 1" in message
    assert message.endswith("gpuconv.to_device, called inside `with cupy.cuda.Device(n):`")
    works(sent)


def test_a_launch_that_the_driver_refuses(sent: Sent) -> None:
    """As after a kernel has failed, until the process ends."""
    x, w = arrays(sent)
    gpuconv.conv(x, w)
    poke = sent.cupy.RawKernel('extern "C" __global__ void poke(float* x) { x[1ll << 40] = 1; }', "poke")
    sent.cupy.cuda.runtime.deviceSynchronize()
    control.driver().emulated_reset(True)
    poke((1,), (1,), (w,))
    with pytest.raises(RuntimeError, match="cudaErrorIllegalAddress"):
        sent.cupy.cuda.runtime.deviceSynchronize()
    message = refused(DeviceError, lambda: gpuconv.conv(x, w))
    names = f"{sent.launches[0].name}, {sent.launches[1].name}"
    assert message.startswith(
        f"conv: the driver of device 0 refused to launch {names}: CUDA_ERROR_ILLEGAL_ADDRESS: poke: "
    )
    control.driver().emulated_reset(False)
    works(sent)


def test_a_kernel_that_does_not_load(sent: Sent) -> None:
    with mock.patch.object(compiler, "cubin", return_value=b"\x7fELF of another machine"):
        message = refused(DeviceError, lambda: gpuconv.max_pool(sent.cupy.empty((1, 1, 8), "f"), kernel_shape=[2]))
    assert "could not be loaded on device 0: CUDA_ERROR_INVALID_IMAGE: " in message
    assert device.prepared == {}
    works(sent)


# ---------------------------------------------------------------- arguments


def test_numpy_and_cupy_do_not_mix(sent: Sent) -> None:
    x, w = arrays(sent)
    message = refused(ArgumentTypeError, lambda: gpuconv.conv(x, np.zeros((5, 4, 3, 2), np.float32)))
    assert message == (
        "conv: x is a CuPy array, w is a NumPy array; move them to one side with gpuconv.to_device or gpuconv.to_host"
    )
    message = refused(ArgumentTypeError, lambda: gpuconv.conv(x, w, out=np.zeros((2, 5, 4, 6), np.float32)))
    assert message.startswith("conv: out is a NumPy array, x is a CuPy array; ")
    works(sent)


def _unaligned(sent: Sent, shape: tuple[int, ...]) -> Any:
    return sent.cupy.ndarray(shape, "f", sent.cupy.cuda.alloc(4 * prod(shape) + 1) + 1)


def test_an_address_that_is_not_aligned(sent: Sent) -> None:
    x, w = arrays(sent)
    gpuconv.conv(x, w)
    unaligned = _unaligned(sent, x.shape)
    message = refused(ArgumentError, lambda: gpuconv.conv(unaligned, w))
    assert message == (
        f"conv: x is not aligned to its elements of 4 bytes (address {unaligned.data.ptr:#x}); pass x.copy()"
    )
    works(sent)


@pytest.mark.parametrize("name", ["w", "b", "residual"])
def test_any_of_four_arrays_may_not_be_aligned(sent: Sent, name: str) -> None:
    shapes = {"x": (2, 4, 6, 7), "w": (4, 4, 1, 1), "b": (4,), "residual": (2, 4, 6, 7)}
    given = {which: sent.cupy.empty(shape, "f") for which, shape in shapes.items()}
    gpuconv.conv(**given)
    given[name] = _unaligned(sent, shapes[name])
    message = refused(ArgumentError, lambda: gpuconv.conv(**given))
    assert message.startswith(f"conv: {name} is not aligned to its elements of 4 bytes (address ")


def test_an_out_that_is_not_aligned(sent: Sent) -> None:
    out = _unaligned(sent, (2, 4, 6, 7))
    x = sent.cupy.empty((2, 4, 6, 8), "f")
    message = refused(ArgumentError, lambda: gpuconv.max_pool(x, kernel_shape=[1, 2], out=out))
    assert message.startswith("max_pool: out is not aligned to its elements of 4 bytes (address ")


def test_strides_that_are_no_whole_elements(sent: Sent) -> None:
    x = sent.cupy.ndarray((1, 1, 8), "f", sent.cupy.cuda.alloc(40), (40, 40, 5))
    message = refused(ArgumentError, lambda: gpuconv.max_pool(x, kernel_shape=[2]))
    assert message == "max_pool: x is not aligned to its elements of 4 bytes (strides (40, 40, 5)); pass x.copy()"


@pytest.mark.parametrize("warm", [False, True])
def test_an_out_that_shares_memory(sent: Sent, warm: bool) -> None:
    memory = sent.cupy.empty(400, "f")
    x, out = memory[:336].reshape((2, 4, 6, 7)), memory[160:400].reshape((2, 5, 4, 6))
    w = sent.cupy.empty((5, 4, 3, 2), "f")
    if warm:
        gpuconv.conv(sent.cupy.empty((2, 4, 6, 7), "f"), w, out=sent.cupy.empty((2, 5, 4, 6), "f"))
    message = refused(ArgumentError, lambda: gpuconv.conv(x, w, out=out))
    assert message == "conv: out shares memory with x; pass an array of its own"
    works(sent)


def test_an_out_in_the_memory_of_a_reversed_view(sent: Sent) -> None:
    x = sent.cupy.empty((1, 1, 9), "f")
    message = refused(ArgumentError, lambda: gpuconv.max_pool(x[..., ::-1], kernel_shape=[8], out=x[..., :2]))
    assert message == "max_pool: out shares memory with x; pass an array of its own"


def test_an_out_between_the_elements_of_x_is_not_taken_for_sharing(sent: Sent) -> None:
    memory = sent.cupy.empty((1, 1, 16), "f")
    x, out = memory[..., ::2], memory[..., 1::2]
    assert gpuconv.max_pool(x, kernel_shape=[3], pads=[1, 1], out=out) is out


def test_the_two_results_may_not_share_memory(sent: Sent) -> None:
    x, indices = sent.cupy.empty((1, 1, 9), "f"), sent.cupy.empty((1, 1, 8), np.int64)
    y = indices.view(np.float32)[..., ::2]
    message = refused(
        ArgumentError, lambda: gpuconv.max_pool(x, kernel_shape=[2], return_indices=True, out=(y, indices))
    )
    assert message == "max_pool: out[1] shares memory with y; pass an array of its own"
