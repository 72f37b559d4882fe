"""Bad input and devices that refuse: one error each that says what to do, and the next call works."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv import ArgumentError, ArgumentTypeError, DeviceError, OutOfDeviceMemory
from gpuconv.cuda.call import device
from tests.harness.cupy_stand_in import StandIn, cupy_stand_in

pytestmark = pytest.mark.usefixtures("general_kernels")


@pytest.fixture
def cupy(tmp_path: Path) -> Iterator[StandIn]:
    with cupy_stand_in(tmp_path, ("90", "90", "75")) as standin:
        yield standin


def array(cupy: StandIn, *shape: int, dtype: Any = np.float32) -> Any:
    return cupy.module.ndarray(shape, dtype)


def arrays(cupy: StandIn) -> tuple[Any, Any]:
    return array(cupy, 2, 4, 6, 7), array(cupy, 5, 4, 3, 2)


def refused(error: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    return str(caught.value)


def works(cupy: StandIn) -> None:
    """The next call does what it should."""
    before = len(cupy.launches)
    assert gpuconv.conv(*arrays(cupy)).shape == (2, 5, 4, 6)
    assert len(cupy.launches) == before + 2


# ---------------------------------------------------------------- devices and drivers


@pytest.mark.parametrize(
    "reason",
    [
        "cudaErrorNoDevice: no CUDA-capable device is detected",
        "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
    ],
)
def test_no_device_and_an_old_driver_are_named(cupy: StandIn, reason: str) -> None:
    cupy.no_driver = reason
    message = refused(DeviceError, lambda: gpuconv.to_device(np.zeros(3)))
    assert (
        message == f"no CUDA device was found (the CUDA driver reports {reason}); pass NumPy arrays to run on the CPU"
    )
    cupy.no_driver = None
    works(cupy)


def test_a_device_older_than_sm_80_is_refused(cupy: StandIn) -> None:
    with cupy.module.cuda.Device(2):
        x, w = arrays(cupy)
        message = refused(DeviceError, lambda: gpuconv.conv(x, w))
    assert message == "gpuconv needs compute capability 8.0 or newer, this device has 7.5"
    works(cupy)


def test_arrays_of_another_device(cupy: StandIn) -> None:
    x, w = arrays(cupy)
    with cupy.module.cuda.Device(1):
        message = refused(DeviceError, lambda: gpuconv.conv(x, w))
    assert message == (
        "conv: the current device is 1, but there is x on device 0, w on device 0; "
        "call it inside `with cupy.cuda.Device(0):`"
    )
    works(cupy)


@pytest.mark.parametrize("name", ["w", "out", "residual"])
def test_arrays_of_two_devices(cupy: StandIn, name: str) -> None:
    x, w = arrays(cupy)
    others: dict[str, Any] = {}
    with cupy.module.cuda.Device(1):
        if name == "w":
            w = array(cupy, 5, 4, 3, 2)
        else:
            others[name] = array(cupy, 2, 5, 4, 6)
    message = refused(DeviceError, lambda: gpuconv.conv(x, w, **others))
    assert f"{name} on device 1" in message
    assert message.endswith("gpuconv.to_device, called inside `with cupy.cuda.Device(n):`")
    works(cupy)


def test_a_launch_that_the_driver_refuses(cupy: StandIn) -> None:
    x, w = arrays(cupy)
    gpuconv.conv(x, w)
    cupy.refusal = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch"
    message = refused(DeviceError, lambda: gpuconv.conv(x, w))
    names = f"{cupy.launches[0].name}, {cupy.launches[1].name}"
    assert message == f"conv: the driver of device 0 refused to launch {names}: {cupy.refusal}"
    cupy.refusal = None
    works(cupy)


def test_a_kernel_that_does_not_load(cupy: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_image(module: Any, content: bytes) -> None:
        raise RuntimeError("CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available")

    with monkeypatch.context() as patch:
        patch.setattr(type(cupy.module.cuda.Module()), "load", no_image)
        message = refused(DeviceError, lambda: gpuconv.max_pool(array(cupy, 1, 1, 8), kernel_shape=[2]))
    assert "could not be loaded on device 0: CUDA_ERROR_NO_BINARY_FOR_GPU" in message
    assert device.prepared == {}
    works(cupy)


# ---------------------------------------------------------------- memory


def test_a_result_that_does_not_fit(cupy: StandIn) -> None:
    x, w = arrays(cupy)
    cupy.memory_left = 500
    message = refused(OutOfDeviceMemory, lambda: gpuconv.conv(x, w))
    assert message == (
        "conv: y of shape (2, 5, 4, 6) needs 960 bytes, which do not fit on device 0 "
        "(Out of memory allocating 960 bytes)"
    )
    cupy.memory_left = 2**40
    works(cupy)


def test_a_workspace_that_does_not_fit(cupy: StandIn) -> None:
    x, w = arrays(cupy)
    y = gpuconv.conv(x, w)
    (prepared,) = device.prepared.values()
    needed = prepared.plan.bytes_of("packed")
    cupy.memory_left = needed - 1
    message = refused(OutOfDeviceMemory, lambda: gpuconv.conv(x, w, out=y))
    assert message.startswith(f"conv: the workspace (the packed weights) needs {needed} bytes, ")
    cupy.memory_left = 2**40
    works(cupy)


def test_an_array_that_does_not_fit(cupy: StandIn) -> None:
    cupy.memory_left = 100
    message = refused(OutOfDeviceMemory, lambda: gpuconv.to_device(np.zeros((5, 6))))
    assert message.startswith(
        "to_device: a copy of an array of shape (5, 6) needs 240 bytes, which do not fit on device 0"
    )
    cupy.memory_left = 2**40
    works(cupy)


# ---------------------------------------------------------------- arguments


def test_dtypes_that_an_operator_does_not_take(cupy: StandIn) -> None:
    x, w = (array(cupy, *shape, dtype=np.int8) for shape in ((1, 4, 6, 7), (5, 4, 3, 2)))
    message = refused(ArgumentTypeError, lambda: gpuconv.conv(x, w))
    assert (
        message
        == "conv: x has dtype int8, but must be one of float16, bfloat16, float32, float64, complex64, complex128"
    )
    works(cupy)


def test_numpy_and_cupy_do_not_mix(cupy: StandIn) -> None:
    x, w = arrays(cupy)
    message = refused(ArgumentTypeError, lambda: gpuconv.conv(x, np.zeros((5, 4, 3, 2), np.float32)))
    assert message == (
        "conv: x is a CuPy array, w is a NumPy array; move them to one side with gpuconv.to_device or gpuconv.to_host"
    )
    message = refused(ArgumentTypeError, lambda: gpuconv.conv(x, w, out=np.zeros((2, 5, 4, 6), np.float32)))
    assert message.startswith("conv: out is a NumPy array, x is a CuPy array; ")
    works(cupy)


def _unaligned(cupy: StandIn) -> Any:
    return array(cupy, 2 * 4 * 6 * 7 * 4 + 1, dtype=np.uint8)[1:].view(np.float32).reshape((2, 4, 6, 7))


def test_an_address_that_is_not_aligned(cupy: StandIn) -> None:
    x, w = arrays(cupy)
    gpuconv.conv(x, w)
    unaligned = _unaligned(cupy)
    message = refused(ArgumentError, lambda: gpuconv.conv(unaligned, w))
    assert message == (
        f"conv: x is not aligned to its elements of 4 bytes (address {unaligned.data.ptr:#x}); pass x.copy()"
    )
    works(cupy)


@pytest.mark.parametrize("name", ["w", "b", "residual"])
def test_any_of_four_arrays_may_not_be_aligned(cupy: StandIn, name: str) -> None:
    shapes = {"x": (2, 4, 6, 7), "w": (4, 4, 1, 1), "b": (4,), "residual": (2, 4, 6, 7)}
    given = {which: array(cupy, *shape) for which, shape in shapes.items()}
    gpuconv.conv(**given)
    count = given[name].size
    given[name] = array(cupy, 4 * count + 1, dtype=np.uint8)[1:].view(np.float32).reshape(shapes[name])
    message = refused(ArgumentError, lambda: gpuconv.conv(**given))
    assert message.startswith(f"conv: {name} is not aligned to its elements of 4 bytes (address ")


def test_an_out_that_is_not_aligned(cupy: StandIn) -> None:
    out = _unaligned(cupy)
    x = array(cupy, 2, 4, 6, 8)
    message = refused(ArgumentError, lambda: gpuconv.max_pool(x, kernel_shape=[1, 2], out=out))
    assert message.startswith("max_pool: out is not aligned to its elements of 4 bytes (address ")


def test_strides_that_are_no_whole_elements(cupy: StandIn) -> None:
    records = array(cupy, 1, 1, 8, dtype=np.dtype([("a", np.float32), ("b", np.int8)]))
    x = records._view(records.host["a"])
    message = refused(ArgumentError, lambda: gpuconv.max_pool(x, kernel_shape=[2]))
    assert message == "max_pool: x is not aligned to its elements of 4 bytes (strides (40, 40, 5)); pass x.copy()"


@pytest.mark.parametrize("warm", [False, True])
def test_an_out_that_shares_memory(cupy: StandIn, warm: bool) -> None:
    memory = array(cupy, 400)
    x, out = memory[:336].reshape((2, 4, 6, 7)), memory[160:400].reshape((2, 5, 4, 6))
    w = array(cupy, 5, 4, 3, 2)
    if warm:
        gpuconv.conv(array(cupy, 2, 4, 6, 7), w, out=array(cupy, 2, 5, 4, 6))
    message = refused(ArgumentError, lambda: gpuconv.conv(x, w, out=out))
    assert message == "conv: out shares memory with x; pass an array of its own"
    works(cupy)


def test_an_out_between_the_elements_of_x_is_not_taken_for_sharing(cupy: StandIn) -> None:
    memory = array(cupy, 1, 1, 16)
    x, out = memory[..., ::2], memory[..., 1::2]
    assert gpuconv.max_pool(x, kernel_shape=[3], pads=[1, 1], out=out) is out


def test_the_two_results_may_not_share_memory(cupy: StandIn) -> None:
    x, indices = array(cupy, 1, 1, 9), array(cupy, 1, 1, 8, dtype=np.int64)
    y = indices.view(np.float32)[..., ::2]
    message = refused(
        ArgumentError, lambda: gpuconv.max_pool(x, kernel_shape=[2], return_indices=True, out=(y, indices))
    )
    assert message == "max_pool: out[1] shares memory with y; pass an array of its own"


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (lambda cupy: array(cupy, 2, 5, 4, 7), "must have the result's shape (2, 5, 4, 6), not (2, 5, 4, 7)"),
        (lambda cupy: array(cupy, 2, 5, 4, 6, dtype=np.int32), "must have the result's dtype float32, not int32"),
        (lambda cupy: cupy.module.ndarray((2, 5, 4, 6), np.float32, cupy.allocate(960), (0, 96, 24, 4)), "repeats"),
    ],
    ids=["shape", "dtype", "strides"],
)
def test_an_out_that_does_not_fit(cupy: StandIn, out: Callable[[StandIn], Any], message: str) -> None:
    x, w = arrays(cupy)
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        gpuconv.conv(x, w, out=out(cupy))
    assert str(caught.value).startswith(f"conv: out {message}")
    works(cupy)


def test_numpy_arrays_are_computed_while_another_thread_imports_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is being imported has its names one after the other."""
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    assert device.array_type() is None
    assert gpuconv.max_pool(np.ones((1, 1, 3)), 2).tolist() == [[[1, 1]]]
