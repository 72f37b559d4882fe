"""What an ``out`` must be, on any backend: of the result's shape and dtype, its own memory, every element once."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError, ArgumentTypeError, one_line


def result(operator: str, out: Any, shape: tuple[int, ...], dtype: Any, name: str = "out", **others: Any) -> Any:
    """Return an ``out`` that the result fits into and that shares no memory with the others; None: a new array."""
    if out is None:
        return np.empty(shape, dtype)
    check_result(operator, name, out, shape, dtype)
    for other, array in others.items():
        if array is not None:
            refuse_overlap(operator, name, out, other, array)
    return out


def check_result(operator: str, name: str, out: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """Refuse an ``out`` that the result does not fit into, that is read-only, or whose elements overlap."""
    if out.shape != shape:
        raise ArgumentError(f"{operator}: {name} must have the result's shape {shape}, not {out.shape}")
    if out.dtype != dtype:
        raise ArgumentTypeError(
            f"{operator}: {name} must have the result's dtype {np.dtype(dtype)}, not {one_line(str(out.dtype))}"
        )
    if not getattr(out.flags, "writeable", True):  # CuPy's flags have no such entry
        raise ArgumentError(f"{operator}: {name} is read-only; pass a writeable array")
    if _repeats_itself(out):
        raise ArgumentError(
            f"{operator}: {name} repeats its own memory (strides {out.strides}); pass an array of its own"
        )


def refuse_overlap(operator: str, name: str, out: Any, other: str, array: Any) -> None:
    """Raise where an element of ``out`` is also one of another NumPy array; device arrays have a :class:`Place`."""
    try:
        shared = np.shares_memory(out, array, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        shared = True
    if shared:
        raise ArgumentError(f"{operator}: {name} shares memory with {other}; pass an array of its own")


class Place:
    """Where the elements of an array lie, but for its address."""

    __slots__ = ("_interface", "high", "itemsize", "low")

    def __init__(self, array: Any) -> None:
        steps = [stride * (size - 1) for size, stride in zip(array.shape, array.strides, strict=True)]
        empty = 0 in array.shape
        self.itemsize = array.itemsize
        self.low = 0 if empty else sum(step for step in steps if step < 0)
        self.high = 0 if empty else sum(step for step in steps if step > 0) + array.itemsize
        self._interface = {
            "shape": array.shape,
            "strides": array.strides,
            "typestr": f"|V{array.itemsize}",
            "version": 3,
        }

    def at(self, address: int) -> Any:
        """Return a NumPy array that lies there; its elements can be compared in place only, not read."""
        return np.asarray(_Interface({**self._interface, "data": (address, True)}))


class _Interface:
    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _repeats_itself(array: Any) -> bool:
    """Tell whether steps along some axis are shorter than what the axes inside of it span."""
    span = array.itemsize
    axes = zip(array.strides, array.shape, strict=True)
    for stride, size in sorted((abs(stride), size) for stride, size in axes if size > 1 and array.size):
        if stride < span:
            return True
        span += stride * (size - 1)
    return False
