"""Packs kernel parameters, structs passed by value, and decides on 32-bit or 64-bit indices.

``Index`` in CUDA is ``int`` if ``wide`` is false, else ``long long``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError
from gpuconv.cuda.build import structs

FINISH = "finish"  # name of the epilogue's field; may be omitted (all zeros) if there is no epilogue
_DIVISOR = "divisor"  # first member of a Divider
_LATER = (structs.POINTER, structs.MAP)
# exclusive bound on 32-bit offsets and coordinates; the rest is headroom for rounding up to tiles
INDEX_LIMIT = 2**31 - 2**16
_WIDE_LIMIT = 2**63 - 2**32


def division(divisor: int, wide: bool) -> tuple[int, ...]:
    """Return the fields of a ``Divider``; a divisor of 0, an empty axis, counts as 1.

    In 32 bits the quotient of n is ``(high word of n * multiplier + n) >> shift`` for n below 2**31: Granlund and
    Montgomery, "Division by invariant integers using multiplication" (PLDI 1994).
    """
    divisor = max(divisor, 1)
    if wide:
        return (divisor,)
    shift = (divisor - 1).bit_length()
    return divisor, (2**32 * (2**shift - divisor)) // divisor + 1, shift


def array_fields(name: str, strides: Sequence[int], extent: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the stride fields, and with ``extent`` the extent field, of an array."""
    batch, channel, *spatial = strides
    fields: dict[str, Any] = {f"{name}_batch": batch, f"{name}_channel": channel, f"{name}_stride": spatial}
    return fields if extent is None else fields | {f"{name}_extent": extent}


def members(source: Any, *names: str) -> dict[str, Any]:
    """Return the named attributes of ``source`` as fields."""
    return {name: getattr(source, name) for name in names}


def pack(layout: np.dtype[Any], fields: Mapping[str, Any]) -> bytes:
    """Return the bytes of a struct; pointers, tensor maps and ``FINISH`` may be omitted, other members may not.

    Nested structs are mappings, arrays of structs are sequences of mappings, a ``Divider`` is given by its divisor. A
    path such as ``common.finish`` overrides a nested member.
    """
    struct = np.zeros((), layout)
    _fill(struct, {name: value for name, value in fields.items() if "." not in name})
    for path, value in fields.items():
        if "." in path:
            *outer, name = path.split(".")
            inside = struct
            for member in outer:
                inside = inside[member]
            _set(inside, name, value)
    return struct.tobytes()


def _fill(struct: np.ndarray[Any, Any], fields: Mapping[str, Any]) -> None:
    """Set all members of a struct; KeyError if members are missing or unknown."""
    names = struct.dtype.names or ()
    zeros = {FINISH, *(name for name in names if struct.dtype[name] in _LATER)}
    missing = [name for name in names if name not in fields and name not in zeros]
    if missing or not set(fields) <= set(names):
        raise KeyError(f"fields missing: {missing}, fields unknown: {sorted(set(fields) - set(names))}")
    for name, value in fields.items():
        _set(struct, name, value)


def _set(struct: np.ndarray[Any, Any], name: str, value: Any) -> None:
    """Set one member: a scalar or array, a ``Divider``, a nested struct, or an array of structs."""
    kind = struct.dtype[name]
    members = kind.base.names
    if members is None:
        struct[name] = value
    elif members[0] == _DIVISOR:
        wide = len(members) == 1
        struct[name] = [division(divisor, wide) for divisor in value] if kind.shape else division(value, wide)
    elif kind.shape:
        for place, entry in enumerate(value):
            _fill(struct[name][place : place + 1].reshape(()), entry)
    else:
        _fill(struct[name], value)


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the distance in elements between the first and the last element of an array in memory."""
    return sum((extent - 1) * abs(stride) for extent, stride in zip(shape, strides, strict=True) if extent > 1)


def needs_wide(operator: str, magnitudes: Sequence[int]) -> bool:
    """Return whether these magnitudes need 64-bit indices; ArgumentError if 64 bits do not suffice."""
    largest = max(magnitudes, default=0)
    if largest >= _WIDE_LIMIT:
        raise ArgumentError(
            f"{operator}: coordinates up to {largest} do not fit into the 64-bit indices of CUDA kernels"
        )
    return largest >= INDEX_LIMIT
