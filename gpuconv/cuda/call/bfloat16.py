"""Reads bfloat16 host tensors by DLPack, whose dtype NumPy lacks, as arrays of ml_dtypes.bfloat16."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import numpy as np

_NAME = b"dltensor"
_CODE, _BITS = 4, 16


class _Tensor(ctypes.Structure):
    """The struct DLTensor of dlpack.h, which an unversioned capsule points to."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Memory:
    """A tensor's memory with an ``__array_interface__``; it keeps the DLPack capsule, and so the producer, alive."""

    def __init__(self, capsule: Any, tensor: _Tensor) -> None:
        self._capsule = capsule
        steps = tuple(2 * step for step in tensor.strides[: tensor.ndim]) if tensor.strides else None
        self.__array_interface__ = {
            "version": 3,
            "typestr": "=u2",
            "shape": tuple(tensor.shape[: tensor.ndim]),
            "strides": steps,
            "data": ((tensor.data or 0) + tensor.byte_offset, True),
        }


def from_dlpack(array: Any) -> Any:
    """Return a read-only array on the memory of a bfloat16 host tensor; None for other dtypes."""
    capsule = array.__dlpack__()
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    tensor = _Tensor.from_address(pointer(capsule, _NAME))
    if (tensor.code, tensor.bits, tensor.lanes) != (_CODE, _BITS, 1):
        return None
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError as error:
        raise ImportError(f"bfloat16 needs ml_dtypes ({error}); pip install 'gpuconv[onnx]' brings it") from error
    return np.asarray(_Memory(capsule, tensor)).view(ml_dtypes.bfloat16)
