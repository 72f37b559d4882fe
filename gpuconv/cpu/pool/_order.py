"""Order-preserving integer keys of floats: NaN is greatest, and the two zeros are equal.

Integer maxima then have ONNX's semantics. The bits of a float, read as a signed integer, are ordered for positive
numbers and reversed for negative ones; flipping all bits but the sign of negative numbers corrects that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuconv.cpu._workspace import Array, Scratch

_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}


def is_float(dtype: Any) -> bool:
    """Return whether a dtype needs keys; integers are their own keys."""
    return dtype.name in _INFINITY


def keys(x: Array, scratch: Scratch) -> Array:
    """Return keys: integers of the elements' size that compare as the floats do; the greatest integer for NaN."""
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
    """Convert keys back to elements, in place: some NaN for every NaN, and +0 for both zeros."""
    _flip_negative(keys, scratch.take("signs", keys.shape, keys.dtype))
    return keys.view(dtype)


def _flip_negative(bits: Array, other: Array) -> None:
    np.right_shift(bits, 8 * bits.dtype.itemsize - 1, out=other)
    np.bitwise_and(other, np.iinfo(bits.dtype).max, out=other)
    np.bitwise_xor(bits, other, out=bits)
