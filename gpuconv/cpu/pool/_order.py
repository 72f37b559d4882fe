"""Integers in the order of the elements: NaN above everything, the two zeros equal.

The bits of a float, taken as a signed integer, are in order for positive numbers and reversed for negative ones;
flipping all but the sign of the negative ones puts them right.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuconv.cpu._workspace import Array, Scratch

_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}


def is_float(dtype: Any) -> bool:
    """Tell whether elements of this dtype have keys other than themselves."""
    return dtype.name in _INFINITY


def keys(x: Array, scratch: Scratch) -> Array:
    """Return integers of the elements' size that compare as the floats do; the greatest integer for every NaN."""
    integer = np.dtype(f"int{8 * x.dtype.itemsize}")
    greatest = np.iinfo(integer).max
    bits, other = (scratch.take(name, x.shape, integer) for name in ("keys", "signs"))
    np.copyto(bits, x.view(integer))
    np.bitwise_and(bits, greatest, out=other)
    nan = other > _INFINITY[x.dtype.name] if other.size and other.max() > _INFINITY[x.dtype.name] else None
    _flip_negative(bits, other)
    np.copyto(bits, 0, where=bits == -1)  # minus zero
    if nan is not None:
        np.copyto(bits, greatest, where=nan)
    return bits


def values(keys: Array, dtype: Any, scratch: Scratch) -> Array:
    """Turn keys into elements, in place: a NaN for every NaN, plus zero for every zero."""
    _flip_negative(keys, scratch.take("signs", keys.shape, keys.dtype))
    return keys.view(dtype)


def _flip_negative(bits: Array, other: Array) -> None:
    np.right_shift(bits, 8 * bits.dtype.itemsize - 1, out=other)
    np.bitwise_and(other, np.iinfo(bits.dtype).max, out=other)
    np.bitwise_xor(bits, other, out=bits)
