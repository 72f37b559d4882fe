"""Operators that address elements by index: gather, scatter, OneHot, Unique, CumSum, ReverseSequence and ZipMap.

Indices on the host are validated; out-of-range indices on a device are not, because that would synchronise. Repeated
scatter indices are applied in order, on a device by rounds of distinct indices.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from operator import add, mul
from typing import Any

import numpy as np

import gpuconv
from gpuconv._errors import ArgumentError
from gpuconv.onnx.operators.form import DTYPES, NARROW, Form, Operator, namespace, only_int, wide
from gpuconv.onnx.operators.pooling import on_device
from gpuconv.onnx.operators.shaping import axis_of

_REDUCTIONS = ("add", "mul", "max", "min")
_ANY = DTYPES | NARROW | {"complex64", "complex128", "object"}  # "object" is the dtype of strings
_NO_WRAP_BEFORE = 11  # opset since which OneHot's negative indices count from the end


def _from_front(indices: Any, extent: int, axis: int) -> Any:
    """Return non-negative indices; out-of-range indices on the host raise ArgumentError."""
    if isinstance(indices, np.ndarray) and indices.size:
        low, high = int(indices.min()), int(indices.max())
        if low < -extent or high >= extent:
            wrong = low if low < -extent else high
            raise ArgumentError(f"index {wrong} is out of range for the {extent} elements of axis {axis}")
    indices = indices.astype(np.int64)
    return indices + extent * (indices < 0)


def _gather_elements(form: Form, x: Any, indices: Any) -> Any:
    """GatherElements: return the elements of x that indices along one axis select."""
    axis = axis_of(form.get("axis"), x.ndim)
    if isinstance(x, np.ndarray) and on_device(indices):  # x has a type that the device lacks
        indices = gpuconv.to_host(indices)
    return namespace(x).take(x.reshape(-1), _along(indices, x.shape, axis))


def _along(indices: Any, shape: tuple[int, ...], axis: int) -> Any:
    """Return the flat positions (C order) of the elements that indices along one axis select."""
    same = indices.ndim == len(shape)
    if not same or any(n > m for at, (n, m) in enumerate(zip(indices.shape, shape, strict=True)) if at != axis):
        raise ArgumentError(
            f"indices of shape {indices.shape} must have no axis longer than x, of shape {shape}, but for axis {axis}"
        )
    xp, starts = namespace(indices), 0
    for at, extent in enumerate(shape):
        along = xp.arange(0 if at == axis else indices.shape[at]).reshape(-1, *(1,) * (len(shape) - 1 - at))
        starts = starts * extent + (0 if at == axis else along)
    return _from_front(indices, shape[axis], axis) * prod(shape[axis + 1 :]) + starts


def _elements(_: Form, x: Any, indices: Any) -> int:
    """Return the number of gathered elements."""
    return int(np.size(indices))


def _gather_nd(form: Form, x: Any, indices: Any) -> Any:
    """GatherND: gather slices addressed by index tuples, after ``batch_dims`` common axes."""
    xp, batch = namespace(x), form.get("batch_dims") or 0
    depth = indices.shape[-1]
    if batch < 0 or x.shape[:batch] != indices.shape[:batch] or not 1 <= depth <= x.ndim - batch:
        raise ArgumentError(
            f"indices of shape {indices.shape} do not fit x.shape={x.shape} with batch_dims={batch}: the first {batch} "
            f"axes must be alike, and the last must have 1 to {x.ndim - batch} elements"
        )
    places = _places(indices, x.shape[batch : batch + depth], batch)
    of_batch = prod(x.shape[batch : batch + depth])
    if batch:
        starts = np.arange(prod(x.shape[:batch])).reshape(x.shape[:batch]) * of_batch
        places = places + xp.asarray(starts).reshape(*x.shape[:batch], *(1,) * (places.ndim - batch))
    rest = x.shape[batch + depth :]
    rows = x.reshape(prod(x.shape[:batch]) * of_batch, *rest)
    return xp.take(rows, places, axis=0)


def _places(indices: Any, extents: tuple[int, ...], first_axis: int) -> Any:
    """Return the flat positions (C order) of index tuples, stored along the last axis, within some extents."""
    place: Any = 0
    for at, extent in enumerate(extents):
        place = place * extent + _from_front(indices[..., at], extent, first_axis + at)
    return place


def _gather_nd_cost(form: Form, x: Any, indices: Any) -> int:
    depth = int(indices.shape[-1])
    row = prod(map(int, x.shape[(form.get("batch_dims") or 0) + depth :]))
    return int(indices.size) + int(indices.size) // max(1, depth) * row


def _scatter_elements(form: Form, x: Any, indices: Any, updates: Any) -> Any:
    """ScatterElements and Scatter: return a copy of x with updates at indices along one axis."""
    axis = axis_of(form.get("axis") or 0, x.ndim)
    if updates.shape != indices.shape:
        raise ArgumentError(f"updates of shape {updates.shape} must have the shape of indices, {indices.shape}")
    places = _along(indices, x.shape, axis)
    return _scattered(x, places.reshape(-1), updates.reshape(-1), form.get("reduction"))


def _scatter_nd(form: Form, x: Any, indices: Any, updates: Any) -> Any:
    """ScatterND: return a copy of x with slices updated that index tuples address."""
    depth = indices.shape[-1]
    expected = (*indices.shape[:-1], *x.shape[depth:])
    if depth > x.ndim or updates.shape != expected:
        raise ArgumentError(
            f"updates of shape {updates.shape} must have the shape {expected} "
            f"(x.shape={x.shape}, indices.shape={indices.shape})"
        )
    row = prod(x.shape[depth:])
    starts = np.asarray(_places(indices, x.shape[:depth], 0)).reshape(-1)
    if form.get("reduction") in (None, "none") and isinstance(x, np.ndarray):
        y = x.copy()
        y.reshape(prod(x.shape[:depth]), row)[starts] = updates.reshape(starts.size, row)
        return y
    places = (starts[:, None] * row + np.arange(row)).reshape(-1)
    return _scattered(x, places, updates.reshape(-1), form.get("reduction"))


def _scattered(x: Any, places: Any, updates: Any, reduction: str | None) -> Any:
    """Return a copy of x with updates applied at flat positions; several updates of one position are applied in
    order.
    """
    xp = namespace(x)
    if reduction in (None, "none"):
        y = x.copy().reshape(-1)
        if isinstance(x, np.ndarray):
            y[places] = updates
        else:
            last = _last(places)
            y[xp.asarray(places[last])] = updates[xp.asarray(last)]
        return y.reshape(x.shape)
    y, updates = wide(x).copy().reshape(-1), wide(updates)
    if isinstance(x, np.ndarray):
        {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[reduction].at(y, places, updates)
    else:
        function = {"add": add, "mul": mul, "max": xp.maximum, "min": xp.minimum}[reduction]
        for turn in _turns(places):
            at = xp.asarray(places[turn])
            y[at] = function(y[at], updates[xp.asarray(turn)])
    return y.astype(x.dtype, copy=False).reshape(x.shape)


def _last(places: Any) -> Any:
    """Return, for each distinct position, the index of its last update."""
    order = np.argsort(places, kind="stable")
    ends = np.ones(places.size, np.bool_)
    np.not_equal(places[order[1:]], places[order[:-1]], out=ends[:-1])
    return order[ends]


def _turns(places: Any) -> Iterator[Any]:
    """Yield rounds of updates: the first update of each position, the second, and so on; a round has no position
    twice.
    """
    order = np.argsort(places, kind="stable")
    starts = np.ones(places.size, np.bool_)
    np.not_equal(places[order[1:]], places[order[:-1]], out=starts[1:])
    count = np.arange(places.size)
    turn = count - np.maximum.accumulate(np.where(starts, count, 0))
    by_turn = np.argsort(turn, kind="stable")
    yield from np.split(order[by_turn], np.cumsum(np.bincount(turn))[:-1]) if places.size else ()


def _reduces(form: Form) -> bool:
    """Return whether the attribute ``reduction`` is supported."""
    return form.get("reduction") in (None, "none", *_REDUCTIONS)


def _scatter_cost(_: Form, x: Any, indices: Any, updates: Any) -> int:
    return int(x.size) + int(updates.size)


def _one_hot(form: Form, indices: Any, depth: Any, values: Any) -> Any:
    """OneHot: ``values`` holds the off value and the on value."""
    xp, count = namespace(indices), only_int("depth", depth)
    if count < 0:
        raise ArgumentError(f"depth is {count}, but there cannot be fewer than 0 classes")
    if np.shape(values) != (2,):
        raise ArgumentError(f"values must have the shape (2,), not {np.shape(values)}: off and on")
    axis = axis_of(form.get("axis"), indices.ndim + 1)
    classes = xp.expand_dims(wide(indices).astype(np.int64), axis)
    if form.opset >= _NO_WRAP_BEFORE:
        classes = classes + count * (classes < 0)
    along = xp.arange(count).reshape(-1, *(1,) * (indices.ndim - axis))
    return xp.take(xp.asarray(values), (classes == along).astype(np.int64))


def _one_hot_cost(_: Form, indices: Any, depth: Any, values: Any) -> int:
    return int(np.size(indices)) * int(np.asarray(depth).reshape(-1)[0])


def _unique(form: Form, x: Any) -> Any:
    """Unique: return distinct elements (or slices along an axis), first positions, inverse mapping, and counts.

    They are sorted, or in order of first occurrence if ``sorted`` is 0.
    """
    axis = form.get("axis")
    rows = x.reshape(-1) if axis is None else np.moveaxis(x, axis_of(axis, x.ndim), 0)
    keys = wide(rows) if axis is None else wide(rows).reshape(rows.shape[0], prod(rows.shape[1:]))
    if axis is not None and keys.dtype == object:
        keys = keys.astype(np.str_)
    options: Any = {"return_index": True, "return_inverse": True, "return_counts": True}
    _, first, inverse, counts = np.unique(keys, axis=None if axis is None else 0, **options)
    inverse = inverse.reshape(-1)
    if not form.get("sorted"):
        order = np.argsort(first, kind="stable")
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    y = np.take(rows, first, axis=0)
    y = y if axis is None else np.moveaxis(y, 0, axis_of(axis, x.ndim))
    return (y, *(values.astype(np.int64) for values in (first, inverse, counts)))[: len(form.outputs)]


def _reverse_sequence(form: Form, x: Any, lengths: Any) -> Any:
    """ReverseSequence: reverse the first ``sequence_lens[i]`` steps of each sequence along the time axis."""
    time, batch = form.get("time_axis"), form.get("batch_axis")
    if x.ndim < 2 or {time, batch} != {0, 1} or lengths.shape != (x.shape[batch],):
        raise ArgumentError(
            f"time_axis and batch_axis must be 0 and 1, not {time} and {batch}, and sequence_lens have one number for "
            f"each sequence of x.shape={x.shape}, not the shape {lengths.shape}"
        )
    if lengths.size and not 0 <= lengths.min() <= lengths.max() <= x.shape[time]:
        ends = f"{lengths.min()} to {lengths.max()}"
        raise ArgumentError(f"sequence_lens has {ends}, but must have 0 to {x.shape[time]}, the steps of x")
    steps = np.arange(x.shape[time])[:, None]
    places = np.where(steps < lengths, lengths - 1 - steps, steps)  # (time, batch)
    xp, columns = namespace(x), np.arange(x.shape[batch])
    index = (places, columns[None]) if time == 0 else (columns[:, None], places.T)
    return x[tuple(xp.asarray(part) for part in index)]


def _cum_sum(form: Form, x: Any, axis: Any) -> Any:
    """CumSum in the type of x, in which integers wrap; 16-bit floats are summed in float32."""
    along = axis_of(only_int("axis", axis), x.ndim)
    if x.shape[along] == 0:
        return x
    before = (slice(None),) * along
    turned = (*before, slice(None, None, -1 if form.get("reverse") else 1))
    y = wide(x)[turned]
    if form.get("exclusive"):
        nothing = namespace(x).zeros((*x.shape[:along], 1, *x.shape[along + 1 :]), y.dtype)
        y = namespace(x).concatenate([nothing, y[(*before, slice(0, -1))]], axis=along)
    return _running(y, along)[turned].astype(x.dtype, copy=False)


def _running(y: Any, axis: int) -> Any:
    """Return the inclusive prefix sum along an axis.

    On a device this is a Hillis-Steele scan: log2(n) additions with doubling offsets, which need none of NVIDIA's
    libraries.
    """
    if isinstance(y, np.ndarray):
        return np.cumsum(y, axis=axis, dtype=y.dtype)
    before, step = (slice(None),) * axis, 1
    while step < y.shape[axis]:
        start, shifted = y[(*before, slice(0, step))], y[(*before, slice(0, -step))]
        y = namespace(y).concatenate([start, y[(*before, slice(step, None))] + shifted], axis=axis)
        step *= 2
    return y


def _labels(form: Form) -> list[Any]:
    texts, numbers = form.get("classlabels_strings"), form.get("classlabels_int64s")
    if (texts is None) == (numbers is None):
        raise ArgumentError("one of classlabels_strings and classlabels_int64s must be given, and not both")
    return list(numbers) if texts is None else [text.decode() for text in texts]


def _zip_map(form: Form, x: Any) -> list[dict[Any, float]]:
    """ZipMap: return a dict per row of x (N, C) or (C), with the keys sorted as ONNX Runtime does."""
    labels = _labels(form)
    if x.ndim not in (1, 2) or x.shape[-1] != len(labels):
        raise ArgumentError(f"X must be (N, {len(labels)}), as there are {len(labels)} labels, not {x.shape}")
    order = sorted(range(len(labels)), key=labels.__getitem__)
    return [{labels[at]: row[at] for at in order} for row in x.reshape(-1, len(labels)).tolist()]


OPERATORS = {
    "CumSum": Operator(_cum_sum, frozenset({1})),
    "GatherElements": Operator(_gather_elements, cost=_elements, dtypes=_ANY),
    "GatherND": Operator(_gather_nd, cost=_gather_nd_cost),
    "OneHot": Operator(_one_hot, frozenset({1, 2}), cost=_one_hot_cost),
    "ReverseSequence": Operator(_reverse_sequence, frozenset({1}), cost=lambda _, x, __: int(x.size)),
    "Scatter": Operator(_scatter_elements, frozenset({1}), cost=_scatter_cost),
    "ScatterElements": Operator(_scatter_elements, frozenset({1}), _reduces, _scatter_cost),
    "ScatterND": Operator(_scatter_nd, frozenset({1}), _reduces, _scatter_cost),
    "Unique": Operator(_unique, frozenset({0}), dtypes=_ANY),
}

CLASSICAL = {"ZipMap": Operator(_zip_map, frozenset({0}), dtypes=frozenset({"float32"}))}  # of the domain ai.onnx.ml
