"""The only module that imports CuPy, and only when a device is asked for."""

from __future__ import annotations

import importlib
from typing import Any

from gpuconv._errors import DeviceError, OutOfDeviceMemory


def unavailable_reason() -> str | None:
    """Return why no CUDA device can be used, or None where one can."""
    try:
        cupy: Any = importlib.import_module("cupy")
    except Exception as error:  # a CuPy without its libraries fails in many ways, all of them meaning "no device"
        return f"CuPy cannot be imported: {error}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        return f"the CUDA driver reports {error}"
    return None if count else "the CUDA driver lists no device"


def _cupy() -> Any:
    reason = unavailable_reason()
    if reason is not None:
        raise DeviceError(f"no CUDA device was found ({reason}); pass NumPy arrays to run on the CPU")
    return importlib.import_module("cupy")


def to_device(array: Any) -> Any:
    """Copy a NumPy array to the current device, keeping dtype, shape and memory order."""
    cupy = _cupy()
    try:
        return cupy.asarray(array, order="K")
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise OutOfDeviceMemory(
            f"to_device: {array.nbytes} bytes for an array of shape {array.shape} do not fit on the device ({error})"
        ) from error


def to_host(array: Any) -> Any:
    """Copy a CuPy array to a NumPy array, keeping dtype, shape and memory order."""
    return _cupy().asnumpy(array, order="K")
