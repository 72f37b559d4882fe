"""Helpers of the tests on a device: arrays in every layout, a check of free memory, a busy device."""

from __future__ import annotations

import importlib
import warnings
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpuconv
from tests.oracle.operands import LAYOUTS

ON_DEVICE = ("contiguous", "fortran", "channels last", "strided", "reversed", "broadcast")
_SPIN = r"""
extern "C" __global__ void spin(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}
"""
_CYCLES = 2_000_000_000  # a second of a device at 2 GHz


def imported(name: str) -> Any:
    """Import an optional library, without its warnings; skip the test if it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def cupy() -> Any:
    return importlib.import_module("cupy")


def moved(arrays: list[Any]) -> list[Any]:
    return [None if array is None else gpuconv.to_device(array) for array in arrays]


def returned(result: Any) -> list[Any]:
    """Copy one result or several to the host."""
    return [gpuconv.to_host(array) for array in (result if isinstance(result, tuple) else (result,))]


def laid_out(array: Any, layout: str) -> tuple[Any, Any]:
    """Return an array on the device in a layout, and the same values on the host (others than given if broadcast).

    Elements are moved as integers: how CuPy's kernels treat subnormals or bfloat16 does not matter.
    """
    host = LAYOUTS[layout](array)
    if layout in ("contiguous", "fortran", "channels last"):
        return gpuconv.to_device(host), host
    kind = f"u{array.dtype.itemsize}" if array.dtype.itemsize <= 8 else array.dtype  # for which no integer type exists
    xp, bits = cupy(), np.ascontiguousarray(array).view(kind)
    if layout == "broadcast":
        moved = xp.broadcast_to(xp.asarray(bits[:1]), bits.shape) if bits.shape[0] else xp.asarray(bits)
    elif layout == "reversed":
        backwards = (slice(None, None, -1),) * bits.ndim
        moved = xp.asarray(np.ascontiguousarray(bits[backwards]))[backwards]
    else:
        spread = xp.zeros(tuple(2 * n + 1 for n in bits.shape), bits.dtype)
        moved = spread[tuple(slice(1, 2 * n + 1, 2) for n in bits.shape)]
        moved[...] = xp.asarray(bits)
    return moved.view(array.dtype), host


def exposed(array: Any, stream: int | None = None) -> Any:
    """Return an array that exposes itself as those of Numba and others do, with the stream that produces it."""
    interface = {
        "shape": array.shape,
        "typestr": array.dtype.str,
        "data": (array.data.ptr, False),
        "strides": array.strides,
        "stream": stream,
        "version": 3,
    }
    return SimpleNamespace(kept=array, __cuda_array_interface__=interface)


def require_room(nbytes: int) -> None:
    """Skip the test unless this many bytes are free on the device, after freeing CuPy's cached memory."""
    xp = cupy()
    xp.cuda.Device().synchronize()
    xp.get_default_memory_pool().free_all_blocks()
    free, total = xp.cuda.runtime.memGetInfo()
    if free < nbytes:
        pytest.skip(
            f"{nbytes / 1e9:.0f} GB of device memory are needed, {free / 1e9:.0f} of {total / 1e9:.0f} are free"
        )


def keep_busy(seconds: float = 0.5) -> Any:
    """Keep the current stream busy for about this long; return an event that follows."""
    xp = cupy()
    kernel = xp.RawKernel(_SPIN, "spin")
    kernel((1,), (1,), (np.int64(seconds * _CYCLES),))
    event = xp.cuda.Event(disable_timing=True)
    event.record()
    return event


def pattern(shape: tuple[int, ...], dtype: str, low: int = -3, count: int = 7) -> Any:
    """Return a large array of small integers that differ along both of the last two axes and over the first."""
    xp = cupy()
    *outer, rows, columns = shape
    result = xp.empty((prod(outer), rows, columns), dtype)
    across = xp.arange(columns, dtype=xp.int32) * 5
    for number in range(prod(outer)):
        for start in range(0, rows, 4096):
            down = xp.arange(start, min(start + 4096, rows), dtype=xp.int32)[:, None] * 3
            result[number, start : start + 4096] = (down + across + number) % count + low
    return result.reshape(shape)
