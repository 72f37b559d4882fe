"""Operators on sequences and optional values: SequenceInsert, SplitToSequence, Optional and its accessors.

A sequence is a Python list of arrays in host memory. An optional value is the value itself, or None if it is empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError
from gpuconv.onnx.operators.form import DTYPES, NARROW, Form, Operator, ints, only_int
from gpuconv.onnx.operators.shaping import axis_of

_ANY = DTYPES | NARROW | {"complex64", "complex128", "object"}  # "object" is the dtype of strings
_ALL_HOST = frozenset(range(3))


def _insert(_: Form, sequence: Any, tensor: Any, position: Any = None) -> Any:
    """SequenceInsert: insert before a position, negative positions counting from the end; by default at the end."""
    count = len(sequence)
    at = count if position is None else only_int("position", position)
    if not -count <= at <= count:
        raise ArgumentError(f"position is {at}, but must be {-count} to {count} for a sequence of {count}")
    place = at if at >= 0 else at + count
    return [*sequence[:place], tensor, *sequence[place:]]


def _split(form: Form, x: Any, split: Any = None) -> Any:
    """SplitToSequence: split x along an axis into slices of size 1, of the scalar ``split``, or of the sizes in it."""
    axis = axis_of(form.get("axis"), x.ndim)
    extent = x.shape[axis]
    if split is None or not split.ndim:
        size = 1 if split is None else only_int("split", split)
        if size < 1:
            raise ArgumentError(f"split is {size}, but parts must have at least 1 element")
        sizes = [min(size, extent - start) for start in range(0, extent, size)]
    else:
        sizes = ints(split)
    if min(sizes, default=0) < 0 or sum(sizes) != extent:
        raise ArgumentError(f"the sizes {sizes} must not be negative, and add up to the {extent} of axis {axis}")
    before, parts, start = (slice(None),) * axis, [], 0
    drop = split is None and not form.get("keepdims")
    for size in sizes:
        parts.append(x[(*before, start if drop else slice(start, start + size))])
        start += size
    return parts


def _optional(_: Form, value: Any = None) -> Any:
    """Optional: return the value, or None for an empty optional."""
    return value


def _has_element(_: Form, value: Any = None) -> Any:
    """OptionalHasElement: return whether the optional has a value."""
    return np.array(value is not None)


def _element(_: Form, value: Any) -> Any:
    """OptionalGetElement: return the value; an empty optional is an error."""
    if value is None:
        raise ArgumentError("the optional value has no element")
    return value


def _one(*_: Any) -> int:
    return 1


OPERATORS = {
    "Optional": Operator(_optional, cost=_one, dtypes=_ANY, collections=True),
    "OptionalGetElement": Operator(_element, cost=_one, dtypes=_ANY, collections=True),
    "OptionalHasElement": Operator(_has_element, cost=_one, dtypes=_ANY, collections=True),
    "SequenceInsert": Operator(_insert, _ALL_HOST, cost=_one, dtypes=_ANY, collections=True),
    "SplitToSequence": Operator(_split, _ALL_HOST, cost=lambda _, x, *__: int(x.size), dtypes=_ANY),
}
