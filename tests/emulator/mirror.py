"""Arrays of the host on the device as they are: with their strides, their distances, and nothing between elements."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.emulated_cuda import control
from tests.emulated_cuda.emulator.memory import NOTHING, READ_ONLY, UNWRITTEN
from tests.emulated_cuda.modules import in_use

_ALIGNMENT = 16  # of what malloc gives: an array of the host that has less is misaligned for kernels, too
_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind


def bounds(array: npt.NDArray[Any]) -> tuple[int, int]:
    if array.size:
        return np.lib.array_utils.byte_bounds(array)
    return array.ctypes.data, array.ctypes.data


def _owner(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    (low, high), (owner_low, owner_high) = bounds(array), bounds(owner)
    return owner if owner_low <= low and high <= owner_high else array


def elements(whole: npt.NDArray[np.uint8], start: int, array: Any) -> npt.NDArray[np.uint8]:
    """Return the bytes of an array's elements, along one axis more, of those of a place, none of them twice."""
    axes = [(n, step) for n, step in zip(array.shape, array.strides, strict=True) if n != 1 and step]
    shape, strides = (*(n for n, _ in axes), array.itemsize), (*(step for _, step in axes), 1)
    return np.ndarray(shape, np.uint8, whole.data, start, strides) if array.size else np.empty((0, 1), np.uint8)


class Mirror:
    """The memory on the device of all arrays of a call: views of one array are views of one there.

    Parameters
    ----------
    given : arrays; kernels may write those of ``outs`` and no others.
    """

    def __init__(self, given: Iterable[npt.NDArray[Any]], outs: Iterable[npt.NDArray[Any]] = ()) -> None:
        self._outs = list(outs)
        self._given = [*given, *self._outs]
        groups: dict[int, list[npt.NDArray[Any]]] = {}
        for array in self._given:
            groups.setdefault(id(_owner(array)), []).append(array)
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
        """Return an array's counterpart on the device, or the array if it has none."""
        return self._arrays.get(id(array), array)

    def bring_back(self) -> None:
        """Copy what was written into the arrays of ``outs``."""
        for out in self._outs:
            if out.flags.writeable:
                out[...] = on_host(self.of(out))


def unwritten(array: Any) -> int:
    """Return how many elements of an array of the device have bytes that nobody wrote."""
    low, high, first = _span(array)
    states = control.marks(low, high - low) if array.size and in_use and in_use[0].check_global else None
    if states is None:
        return 0
    return int((elements(states, first - low, array) == UNWRITTEN).any(-1).sum())


def on_host(array: Any) -> npt.NDArray[Any]:
    """Return a copy of an array of the device, with its strides."""
    cupy = importlib.import_module("cupy")
    low, high, first = _span(array)
    data = np.zeros(max(high - low, 1), np.uint8)
    if array.size:
        cupy.cuda.runtime.memcpy(data.ctypes.data, low, high - low, _TO_HOST)
    return np.ndarray(array.shape, array.dtype, data.data, first - low, array.strides)


def _span(array: Any) -> tuple[int, int, int]:
    """Return the lowest byte of an array's elements, the end of the highest, and the first one's."""
    first: int = array.data.ptr
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    low = first + sum(step for step in steps if step < 0)
    return low, first + sum(step for step in steps if step > 0) + array.itemsize, first
