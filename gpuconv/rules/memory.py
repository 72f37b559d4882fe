"""Validation of the argument ``out``, on any backend: shape, dtype, writability, and no aliasing.

``out`` must not share memory with an operand, and each of its elements must have its own memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError, ArgumentTypeError, one_line


def result(operator: str, out: Any, shape: tuple[int, ...], dtype: Any, name: str = "out", **others: Any) -> Any:
    """Return ``out`` after validation, or a new array if it is None; ``others`` are arrays it must not overlap."""
    if out is None:
        return np.empty(shape, dtype)
    check_result(operator, name, out, shape, dtype)
    for other, array in others.items():
        if array is not None:
            refuse_overlap(operator, name, out, other, array)
    return out


def check_result(operator: str, name: str, out: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """Refuse an ``out`` of wrong shape or dtype, one that is read-only, or one whose elements overlap each other."""
    if out.shape != shape:
        raise ArgumentError(f"{operator}: {name} must have the result's shape {shape}, not {out.shape}")
    if out.dtype != dtype:
        raise ArgumentTypeError(
            f"{operator}: {name} must have the result's dtype {np.dtype(dtype)}, not {one_line(str(out.dtype))}"
        )
    if not getattr(out.flags, "writeable", True):  # CuPy's flags have no such attribute
        raise ArgumentError(f"{operator}: {name} is read-only; pass a writeable array")
    if _repeats_itself(out):
        raise ArgumentError(
            f"{operator}: {name} repeats its own memory (strides {out.strides}); pass an array of its own"
        )


def refuse_overlap(operator: str, name: str, out: Any, other: str, array: Any) -> None:
    """Raise ArgumentError if ``out`` and another NumPy array share an element; device arrays go through
    :class:`Place`.
    """
    try:
        shared = np.shares_memory(out, array, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        shared = True
    if shared:
        raise ArgumentError(f"{operator}: {name} shares memory with {other}; pass an array of its own")


class Place:
    """Memory range and strides of an array without its address, for overlap tests of device arrays on the host.

    Attributes
    ----------
    low, high : int
        Byte range of the elements, relative to the first one.
    itemsize : int
        Bytes per element.
    """

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
        """Return a NumPy array at an address with this layout; it serves overlap tests only and must not be read."""
        return np.asarray(_Interface({**self._interface, "data": (address, True)}))


class _Interface:
    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _repeats_itself(array: Any) -> bool:
    """Return whether elements overlap: some axis has a stride smaller than the span of the axes inside it."""
    span = array.itemsize
    axes = zip(array.strides, array.shape, strict=True)
    for stride, size in sorted((abs(stride), size) for stride, size in axes if size > 1 and array.size):
        if stride < span:
            return True
        span += stride * (size - 1)
    return False
