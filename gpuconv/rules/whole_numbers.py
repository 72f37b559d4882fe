"""Random integer operands, whose sums are exact in any order, so that all correct kernels agree bit for bit.

``tune`` compares the results of candidate kernels on them. No error bound is needed that could hide a fault, and NaN in
the user's arrays plays no role.
"""

from __future__ import annotations

from math import isqrt, sqrt
from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError
from gpuconv.rules import dtypes, memory

_ALIGNMENT = 512  # bytes; alignment of newly allocated device arrays
_SIGNIFICAND = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}  # significant bits
_LEAST_OF_A_FACTOR = 11  # significant bits that every precision setting of float32 keeps
_EXACT = {"float16": 65504, "float64": 2**53}  # largest exact result per dtype; 2**24 for all others
_DEVIATIONS = 8  # bound of a sum, as a multiple of largest**2 * sqrt(terms): 24 standard deviations of random products


def largest(dtype: str, precision: str, terms: int) -> int:
    """Return the largest magnitude of random integers for which a sum of ``terms`` products of two is exact.

    Signs are random, so sums grow with the square root of their length, in any order that does not depend on the signs.
    """
    entry = dtypes.entry(dtype)
    real = entry.real or dtype
    if real not in _SIGNIFICAND:
        return 127
    bits = _SIGNIFICAND[real] if precision == "ieee" else _LEAST_OF_A_FACTOR
    spread = _DEVIATIONS * sqrt(max(1, terms) * (2 if entry.real else 1))
    return max(1, min(1 << bits, isqrt(int(_EXACT.get(real, 2**24) / spread))))


def random(count: int, dtype: Any, most: int, seed: int) -> Any:
    """Return a 1-D array of ``count`` random integers in a dtype, from -``most`` to ``most``, or from 0 if unsigned."""
    source = np.random.default_rng(seed)
    least = 0 if dtype.kind == "u" else -most
    values = np.empty(count, dtype)
    for part in (values.real, values.imag) if dtype.kind == "c" else (values,):
        part[...] = source.integers(least, most, count, np.int32, endpoint=True)
    return values


def alike(runtime: Any, array: Any, most: int, seed: int) -> Any:
    """Return a new device array of random integers with the shape, strides, dtype and alignment of an array.

    Parameters
    ----------
    runtime : module
        The device runtime.
    array : device array
    most, seed : int
        As in :func:`random`.

    Raises
    ------
    OutOfDeviceMemory
    """
    return _placed(runtime, array, lambda count: random(count, np.dtype(array.dtype), most, seed))


def holding(runtime: Any, array: Any, values: Any) -> Any:
    """Return a new device array of the shape, strides and dtype of an array, filled with values.

    Raises
    ------
    ArgumentError
        Elements share memory but have different values.
    OutOfDeviceMemory
    """
    start, _ = _extent(array)
    steps = zip(array.shape, array.strides, strict=True)
    at = start // array.itemsize + sum(np.ix_(*(np.arange(n) * (step // array.itemsize) for n, step in steps)))

    def flat(count: int) -> Any:
        flattened = np.zeros(count, array.dtype)
        flattened[at] = values
        if (flattened[at] != values).any():
            raise ArgumentError("elements share memory")
        return flattened

    return _placed(runtime, array, flat)


def _placed(runtime: Any, array: Any, make: Any) -> Any:
    """Return a device array with the strides of ``array`` over memory filled by ``make(number of elements)``."""
    start, end = _extent(array)
    flat = runtime.to_device(make(-(-end // array.itemsize)))
    return runtime.strided(flat, array.shape, array.strides, start)


def _extent(array: Any) -> tuple[int, int]:
    """Return the bytes in front of the first element (for negative strides, aligned), and the bytes in total."""
    place = memory.Place(array)
    start = -(place.low // _ALIGNMENT) * _ALIGNMENT
    return start, start + max(place.high, array.itemsize)
