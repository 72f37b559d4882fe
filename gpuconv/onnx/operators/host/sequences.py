"""Sequences, whose arrays are on the host, and optional values: one that is there is itself, none is None."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError
from gpuconv.onnx.operators.form import DTYPES, NARROW, Form, Operator, ints, only_int
from gpuconv.onnx.operators.shaping import axis_of

_ANY = DTYPES | NARROW | {"complex64", "complex128", "object"}  # the last is text
_ALL_HOST = frozenset(range(3))


def _insert(_: Form, sequence: Any, tensor: Any, position: Any = None) -> Any:
    """Insert before a position, which counts from the end where it is negative; without one, at the end."""
    count = len(sequence)
    at = count if position is None else only_int("position", position)
    if not -count <= at <= count:
        raise ArgumentError(f"position is {at}, but must be {-count} to {count} for a sequence of {count}")
    place = at if at >= 0 else at + count
    return [*sequence[:place], tensor, *sequence[place:]]


def _split(form: Form, x: Any, split: Any = None) -> Any:
    """Cut x along an axis into parts of 1, of the size that split is, or of the sizes that it has."""
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
    return value


def _has_element(_: Form, value: Any = None) -> Any:
    return np.array(value is not None)


def _element(_: Form, value: Any) -> Any:
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
