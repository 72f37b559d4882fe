"""Structs passed to kernels by value: NumPy layouts that mirror those of ``kernels_cu/include``.

``Index`` in CUDA is ``int`` here where ``wide`` is false, else ``long long``. The generated entry of every kernel
asserts the size and every offset of its layout, so that the two sides cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError

POINTER = "<u8"
MAP = ("<u8", (16,))  # a CUtensorMap, which is aligned to 64 bytes; its struct's layout must say so
FINISH = "finish"  # the field of what comes after the sums; where nothing does, it is all zeros and may be left out
INDEX_LIMIT = 2**31 - 2**16  # of an offset or a coordinate in 32 bits; the rest is room to round up to tiles
_WIDE_LIMIT = 2**63 - 2**32


def index(wide: bool) -> str:
    """Return the NumPy type of ``Index``."""
    return "<i8" if wide else "<i4"


def index_name(wide: bool) -> str:
    """Return the CUDA name of ``Index``."""
    return "long long" if wide else "int"


@lru_cache(maxsize=2)
def divider(wide: bool) -> np.dtype[Any]:
    """Return the layout of ``Divider<Index>``."""
    if wide:
        return layout([("divisor", "<i8")])
    return layout([("divisor", "<u4"), ("multiplier", "<u4"), ("shift", "<u4")])


def division(divisor: int, wide: bool) -> tuple[int, ...]:
    """Return the fields of the ``Divider`` for one divisor; 0 stands for an empty axis, whose numbers are never split.

    In 32 bits the quotient of n is ``(high word of n * multiplier + n) >> shift``: Granlund and Montgomery, "Division
    by invariant integers using multiplication" (PLDI 1994), for n below 2**31.
    """
    divisor = max(divisor, 1)
    if wide:
        return (divisor,)
    shift = (divisor - 1).bit_length()
    return divisor, (2**32 * (2**shift - divisor)) // divisor + 1, shift


def divisions(divisors: Sequence[int], wide: bool) -> list[tuple[int, ...]]:
    """Return the fields of one ``Divider`` per axis."""
    return [division(divisor, wide) for divisor in divisors]


def layout(fields: Sequence[tuple[Any, ...]], alignment: int = 1) -> np.dtype[Any]:
    """Return the layout of a C struct with these fields, ``(name, type)`` or ``(name, type, (length,))``.

    Where a field is aligned to more than its numbers are, ``alignment`` is that of the struct, which has such fields in
    front.
    """
    found: np.dtype[Any] = np.dtype(list(fields), align=True)
    if found.itemsize % alignment == 0:
        return found
    names = list(found.names or ())
    described: Any = {
        "names": names,
        "formats": [found[name] for name in names],
        "offsets": [offset(found, name) for name in names],
        "itemsize": -(-found.itemsize // alignment) * alignment,
    }
    padded: np.dtype[Any] = np.dtype(described)
    return padded


def array_layout(
    names: Sequence[str], index: str, axes: tuple[int, ...], extents: bool = False
) -> list[tuple[Any, ...]]:
    """Return the fields of a struct for arrays: of each its strides along batch, channel and spatial axes, in order.

    With ``extents``, those of the spatial axes stand before their strides.
    """
    return [
        field
        for name in names
        for field in (
            (f"{name}_batch", index),
            (f"{name}_channel", index),
            *([(f"{name}_extent", index, axes)] if extents else []),
            (f"{name}_stride", index, axes),
        )
    ]


def array_fields(name: str, strides: Sequence[int], extent: Sequence[int] | None = None) -> dict[str, Any]:
    """Return what such fields hold for one array."""
    batch, channel, *spatial = strides
    found: dict[str, Any] = {f"{name}_batch": batch, f"{name}_channel": channel, f"{name}_stride": spatial}
    return found if extent is None else found | {f"{name}_extent": extent}


def pack(dtype: np.dtype[Any], values: Mapping[str, Any]) -> bytes:
    """Return the struct's bytes; pointers, maps and ``FINISH`` may be left out, every other field must be given.

    Structs inside are mappings or tuples, arrays of structs sequences of those.
    """
    struct = np.zeros((), dtype)
    _fill(struct, values)
    return struct.tobytes()


def _fill(struct: np.ndarray[Any, Any], values: Mapping[str, Any]) -> None:
    names = struct.dtype.names or ()
    later = (np.dtype(POINTER), np.dtype(MAP))
    zeros = {FINISH, *(name for name in names if struct.dtype[name] in later)}
    missing = [name for name in names if name not in values and name not in zeros]
    if missing or not set(values) <= set(names):
        raise KeyError(f"fields missing: {missing}, fields unknown: {sorted(set(values) - set(names))}")
    for name, value in values.items():
        if isinstance(value, Mapping):
            _fill(struct[name], value)
        elif isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
            for axis, entry in enumerate(value):
                _fill(struct[name][axis : axis + 1].reshape(()), entry)
        else:
            struct[name] = value


def offset(dtype: np.dtype[Any], field: str) -> int:
    """Return where a field of a struct begins, in bytes."""
    assert dtype.fields is not None
    return int(dtype.fields[field][1])


def pointers(dtype: np.dtype[Any], roles: Mapping[str, str], base: int = 0) -> tuple[tuple[str, int], ...]:
    """Return where each array's address belongs: ``roles`` maps pointer fields to the arrays' names."""
    return tuple((role, base + offset(dtype, name)) for name, role in roles.items())


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements lie between the outermost ones of an array."""
    return sum((extent - 1) * abs(stride) for extent, stride in zip(shape, strides, strict=True) if extent > 1)


def needs_wide(operator: str, magnitudes: Sequence[int]) -> bool:
    """Tell whether offsets and coordinates of these magnitudes need 64-bit indices.

    Raises
    ------
    ArgumentError
        Where even 64 bits are not enough to compute with them.
    """
    largest = max(magnitudes, default=0)
    if largest >= _WIDE_LIMIT:
        raise ArgumentError(
            f"{operator}: coordinates up to {largest} do not fit into the 64-bit indices of CUDA kernels"
        )
    return largest >= INDEX_LIMIT
