"""Arrays of other libraries (PyTorch, JAX, Numba, …) as NumPy or CuPy arrays on the same memory, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuconv._errors import ArgumentTypeError, DeviceError, one_line
from gpuconv.cuda.call import bfloat16, device

# DLPack device types of host-readable memory (CPU, CUDA pinned) and of CUDA device memory (CUDA, managed)
_HOST, _DEVICE = (1, 3), (2, 13)


def adopt(operator: str, name: str, array: Any) -> Any:
    """Return a NumPy or CuPy array on an object's memory, ordered after its producer's stream.

    DLPack is preferred, since it can express bfloat16. If the reader works on another stream than the object's library,
    the object must stay alive until the reader is done: neither protocol can tell that library.

    Raises
    ------
    ArgumentTypeError
        It requires gradients, its library refuses to share it, or its device is neither the host nor CUDA.
    DeviceError
        It is on a CUDA device, but CuPy finds none.
    """
    kind = f"{type(array).__module__}.{type(array).__qualname__}"
    try:
        if getattr(array, "requires_grad", False) is True:
            raise ArgumentTypeError(
                f"{operator}: {name} ({kind}) requires gradients, which are not computed here; pass {name}.detach()"
            )
        return _by_dlpack(array) if hasattr(array, "__dlpack_device__") else device.from_interface(array)
    except (ArgumentTypeError, DeviceError):
        raise
    except Exception as error:  # other libraries raise anything: for layouts, dtypes, streams, devices
        raise ArgumentTypeError(
            f"{operator}: {name} ({kind}) cannot be read in place: {one_line(str(error))}"
        ) from error


def _by_dlpack(array: Any) -> Any:
    """Return an array on a tensor's memory by DLPack; any exception means that it cannot be read."""
    kind = int(array.__dlpack_device__()[0])
    if kind in _DEVICE:
        return device.from_dlpack(array)
    if kind not in _HOST:
        raise TypeError(f"its memory is on a device of DLPack's type {kind}, neither the host nor a CUDA device")
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError):  # the producer cannot express its dtype, or NumPy lacks it
        imported = bfloat16.from_dlpack(array)
        if imported is None:
            raise
        return imported
