"""Copy NumPy arrays to the device with their exact layout: strides, alignment, relative addresses, and gaps.

Bytes between the elements of a strided view are marked, so that a kernel which accesses them fails.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from emulated_cuda import control
from emulated_cuda.emulator.memory import NOTHING, READ_ONLY, UNWRITTEN, bounds, elements, owner_of
from emulated_cuda.modules import in_use

_ALIGNMENT = 16  # bytes; alignment of malloc. An array that is less aligned on the host stays so on the device
_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind


class Mirror:
    """Copies on the device of all arrays of a call. Views that share memory on the host share it on the device.

    Parameters
    ----------
    given : iterable of arrays
        Inputs, which kernels must not write.
    outs : iterable of arrays
        Outputs, which kernels may write, and must write before they read.
    """

    def __init__(self, given: Iterable[npt.NDArray[Any]], outs: Iterable[npt.NDArray[Any]] = ()) -> None:
        self._outs = list(outs)
        self._given = [*given, *self._outs]
        groups: dict[int, list[npt.NDArray[Any]]] = {}
        for array in self._given:
            groups.setdefault(id(owner_of(array)), []).append(array)
        self._arrays: dict[int, Any] = {}
        for group in groups.values():
            self._move(group)

    def _move(self, group: list[npt.NDArray[Any]]) -> None:
        """Allocate memory for views of the same array, copy their bytes, and set the state of each byte."""
        cupy = importlib.import_module("cupy")
        spans = [bounds(array) for array in group]
        low, high = min(low for low, _ in spans), max(high for _, high in spans)
        before, size = low % _ALIGNMENT, high - low
        memory = cupy.cuda.alloc(before + max(size, 1))
        if size:
            cupy.cuda.runtime.memcpy(memory.ptr + before, low, size, _TO_DEVICE)
        states = np.full(before + max(size, 1), NOTHING, np.uint8)
        for array in group:
            written = any(array is out for out in self._outs)
            start = before + array.ctypes.data - low
            mine = elements(states, start, array)
            np.maximum(mine, UNWRITTEN if written else READ_ONLY, out=mine)
            self._arrays[id(array)] = cupy.ndarray(array.shape, array.dtype, memory + start, array.strides)
        if in_use:
            control.mark(memory.ptr, states)

    def of(self, array: npt.NDArray[Any]) -> Any:
        """Return the copy of an array on the device, or the array itself if it has none."""
        return self._arrays.get(id(array), array)

    def bring_back(self) -> None:
        """Copy the outputs from the device into the arrays that were passed as ``outs``."""
        for out in self._outs:
            if out.flags.writeable:
                out[...] = on_host(self.of(out))


def unwritten(array: Any) -> int:
    """Return how many elements of an array on the device have bytes that no kernel has written; 0 if not tracked."""
    low, high, first = _span(array)
    states = control.marks(low, high - low) if array.size and in_use and in_use[0].check_global else None
    if states is None:
        return 0
    return int((elements(states, first - low, array) == UNWRITTEN).any(-1).sum())


def on_host(array: Any) -> npt.NDArray[Any]:
    """Return a NumPy copy of an array on the device, with the same strides."""
    cupy = importlib.import_module("cupy")
    low, high, first = _span(array)
    data = np.zeros(max(high - low, 1), np.uint8)
    if array.size:
        cupy.cuda.runtime.memcpy(data.ctypes.data, low, high - low, _TO_HOST)
    return np.ndarray(array.shape, array.dtype, data.data, first - low, array.strides)


def _span(array: Any) -> tuple[int, int, int]:
    """Return three addresses of an array: its lowest byte, the end of its highest element, and its first element."""
    first: int = array.data.ptr
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    low = first + sum(step for step in steps if step < 0)
    return low, first + sum(step for step in steps if step > 0) + array.itemsize, first
