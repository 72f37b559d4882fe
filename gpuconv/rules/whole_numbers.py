"""Whole numbers as operands: their sums are exact in every order that a kernel has, so that all make the same of them.

No bound is needed then, none hides a fault, and what the caller's arrays hold, a NaN say, plays no part.
"""

from __future__ import annotations

from math import isqrt, sqrt
from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError
from gpuconv.rules import dtypes, memory

_ALIGNMENT = 512  # bytes, as of new arrays
_SIGNIFICAND = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}  # bits
_LEAST_OF_A_FACTOR = 11  # bits that every precision of float32 keeps
_EXACT = {"float16": 65504, "float64": 2**53}  # up to where results are whole numbers and finite; of others 2**24
_DEVIATIONS = 8  # sums of random numbers stay below three times as many standard deviations


def largest(dtype: str, precision: str, terms: int) -> int:
    """Return how large random whole numbers may be so that the sums of so many products of two are exact.

    Signs are random: whatever the order, as long as it does not follow them, sums grow with the root of their length.
    """
    entry = dtypes.entry(dtype)
    real = entry.real or dtype
    if real not in _SIGNIFICAND:
        return 127
    bits = _SIGNIFICAND[real] if precision == "ieee" else _LEAST_OF_A_FACTOR
    spread = _DEVIATIONS * sqrt(max(1, terms) * (2 if entry.real else 1))
    return max(1, min(1 << bits, isqrt(int(_EXACT.get(real, 2**24) / spread))))


def random(count: int, dtype: Any, most: int, seed: int) -> Any:
    """Return a flat array of random whole numbers of a dtype, from -``most`` to ``most``; from 0 if it has no signs."""
    source = np.random.default_rng(seed)
    least = 0 if dtype.kind == "u" else -most
    values = np.empty(count, dtype)
    for part in (values.real, values.imag) if dtype.kind == "c" else (values,):
        part[...] = source.integers(least, most, count, np.int32, endpoint=True)
    return values


def alike(runtime: Any, array: Any, most: int, seed: int) -> Any:
    """Return a new device array of an array's shape, strides and dtype that holds random whole numbers.

    Its first element is as aligned as that of a new array.

    Raises
    ------
    OutOfDeviceMemory
    """
    return _placed(runtime, array, lambda count: random(count, np.dtype(array.dtype), most, seed))


def holding(runtime: Any, array: Any, values: Any) -> Any:
    """Return a new device array of an array's shape, strides and dtype that holds values, where no two share memory.

    Raises
    ------
    ArgumentError
        Some do.
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
    start, end = _extent(array)
    flat = runtime.to_device(make(-(-end // array.itemsize)))
    return runtime.strided(flat, array.shape, array.strides, start)


def _extent(array: Any) -> tuple[int, int]:
    """Return the bytes before the first element, in which those of negative strides lie, and the bytes of all."""
    place = memory.Place(array)
    start = -(place.low // _ALIGNMENT) * _ALIGNMENT
    return start, start + max(place.high, array.itemsize)
