"""Copy host arrays to the device with their exact layout: strides, relative positions, and no data between elements."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from emulated_cuda import control
from emulated_cuda.emulator.memory import NOTHING, READ_ONLY, UNWRITTEN, bounds, elements, owner_of
from emulated_cuda.modules import in_use

_ALIGNMENT = 16  # alignment of malloc; an array that is less aligned on the host is so on the device, too
_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind


class Mirror:
    """Device memory of all arrays of a call; views of one host array become views of one device array.

    Parameters
    ----------
    given : input arrays, which kernels must not write.
    outs : arrays that kernels may write.
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
        """Return an array's counterpart on the device, or the array itself if it has none."""
        return self._arrays.get(id(array), array)

    def bring_back(self) -> None:
        """Copy the results back into the arrays of ``outs``."""
        for out in self._outs:
            if out.flags.writeable:
                out[...] = on_host(self.of(out))


def unwritten(array: Any) -> int:
    """Return the number of elements of a device array with bytes that were never written."""
    low, high, first = _span(array)
    states = control.marks(low, high - low) if array.size and in_use and in_use[0].check_global else None
    if states is None:
        return 0
    return int((elements(states, first - low, array) == UNWRITTEN).any(-1).sum())


def on_host(array: Any) -> npt.NDArray[Any]:
    """Return a copy of a device array, with its strides."""
    cupy = importlib.import_module("cupy")
    low, high, first = _span(array)
    data = np.zeros(max(high - low, 1), np.uint8)
    if array.size:
        cupy.cuda.runtime.memcpy(data.ctypes.data, low, high - low, _TO_HOST)
    return np.ndarray(array.shape, array.dtype, data.data, first - low, array.strides)


def _span(array: Any) -> tuple[int, int, int]:
    """Return the lowest address of an array's elements, the end of the highest, and the address of the first."""
    first: int = array.data.ptr
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    low = first + sum(step for step in steps if step < 0)
    return low, first + sum(step for step in steps if step > 0) + array.itemsize, first
