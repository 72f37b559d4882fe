"""Separable window maxima: one 1-D pass per spatial axis, so a k×k×k window costs 3k comparisons instead of k³.

Each pass chooses a loop by a cost model: over taps, over outputs, by doubling (windows of 1, 2, 4, … taps) for long
windows, or over a transposed copy if inner loops would be short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from gpuconv.cpu._workspace import Array, Scratch
from gpuconv.rules.geometry import tap_range

_TAPS_PER_OUTPUT = 4  # ratio of taps to outputs from which each output is one call of NumPy's reduce
_LONG_STEP = 16  # strides above this are too sparse to compute the windows at every element
# Nanoseconds: to reduce an element, to copy it, for each element skipped by a stride, and to start an inner loop.
_REDUCE, _MOVE, _SKIP, _START = 0.35, 2.0, 0.25, 12.0
_ADD_IN_TURN = 3.0  # nanoseconds to add an element sequentially
_MOST_SKIPPED = 8  # from here on, each element is in a cache line of its own
_LEAST_OTHERS = 16  # elements along the other axes from which transposing them to the end can pay
_SHORT_RUN, _SHORT_PLANE = 64, 1024  # most elements along the last axis, or of an inner plane, for `over_all`


@dataclass(frozen=True, slots=True)
class Axis:
    """Windows along one axis of a block: output ``q`` reduces the in-bounds inputs ``q * stride + offset``.

    Attributes
    ----------
    position : int
        The axis of the array.
    count, extent : int
        Outputs and inputs along it.
    stride : int
    offsets : range
        One offset per tap.
    """

    position: int
    count: int
    extent: int
    stride: int
    offsets: range

    def at(self, part: slice) -> tuple[slice, ...]:
        """Return the index expression that applies ``part`` to this axis."""
        return (*(slice(None),) * self.position, part)

    def taps(self) -> list[tuple[slice, slice]]:
        """Return slices (inputs, outputs) for every tap; for huge windows, for every output and tap."""
        if len(self.offsets) > self.count * self.extent:
            single = ((q, tap) for q in range(self.count) for tap in range(*self.inside(q)))
            return [(_one(q * self.stride + self.offsets[tap]), _one(q)) for q, tap in single]
        return _taps(self)

    def windows(self) -> list[tuple[slice, slice]]:
        """Return slices (inputs, output) for every output whose window is not empty."""
        return _windows(self)

    def inside(self, q: int) -> tuple[int, int]:
        """Return the half-open range of valid taps of output ``q``."""
        return tap_range(len(self.offsets), self.extent, self.offsets.step, q * self.stride + self.offsets[0])

    @property
    def trivial(self) -> bool:
        """Whether each window is the input of the same position: no reduction is needed."""
        return self.offsets == range(1) and self.stride == 1 and self.count == self.extent


@lru_cache(maxsize=1024)
def _taps(axis: Axis) -> list[tuple[slice, slice]]:
    """Return slices (inputs, outputs) for every tap."""
    pairs = []
    for offset in axis.offsets:
        low, high = tap_range(axis.count, axis.extent, axis.stride, offset)
        if low < high:
            first = low * axis.stride + offset
            pairs.append((slice(first, first + (high - low - 1) * axis.stride + 1, axis.stride), slice(low, high)))
    return pairs


@lru_cache(maxsize=256)
def _windows(axis: Axis) -> list[tuple[slice, slice]]:
    """Return slices (inputs, output) for every output whose window is not empty."""
    found = []
    for q in range(axis.count):
        low, high = axis.inside(q)
        if low < high:
            first, step = q * axis.stride + axis.offsets[low], axis.offsets.step
            found.append((slice(first, first + (high - low - 1) * step + 1, step), _one(q)))
    return found


@lru_cache(maxsize=1024)
def _empty(axis: Axis) -> list[slice]:
    """Return the outputs with an empty window: before and after the inputs, or with all inputs between dilated taps."""
    first, last = axis.offsets[0], axis.offsets[-1]
    low, high = tap_range(axis.count, axis.extent + last - first, axis.stride, last)
    ends = [range(*tap_range(axis.count, axis.extent, axis.stride, offset)) for offset in (first, last)]
    others = (q for q in range(low, high) if q not in ends[0] and q not in ends[1])
    return [slice(0, low), slice(high, None), *(_one(q) for q in others if not range(*axis.inside(q)))]


def _one(index: int) -> slice:
    return slice(index, index + 1)


def fill_empty(target: Array, axes: Sequence[Axis], value: float) -> None:
    """Set the outputs with an empty window to ``value``."""
    for axis in axes:
        for part in _empty(axis):
            target[axis.at(part)] = value


def reduce(source: Array, axes: Sequence[Axis], identity: Any, scratch: Scratch, target: Array | None = None) -> Array:
    """Return the maxima of all windows over ``axes``, in ``target`` if given, else in scratch memory.

    An empty window gives ``identity``, which must not be greater than any element.
    """
    steps = [axis for axis in axes if not axis.trivial]
    for number, axis in enumerate(steps):
        result = target if number == len(steps) - 1 else None
        if result is None:
            shape = (*source.shape[: axis.position], axis.count, *source.shape[axis.position + 1 :])
            result = scratch.take(f"maxima {number % 2}", shape, source.dtype)
        _reduce_axis(source, result, axis, identity, scratch)
        source = result
    if not steps and target is not None:
        np.copyto(target, source)
        return target
    return source


def _reduce_axis(source: Array, result: Array, axis: Axis, identity: Any, scratch: Scratch) -> None:
    if over_all(np.maximum, source, result, axis, scratch):
        return
    count = len(axis.offsets)
    taps = min(count, axis.extent)
    is_strided = axis.stride > 1 or axis.position == source.ndim - 1
    if axis.count < taps // _TAPS_PER_OUTPUT:
        _reduce_by_outputs(source, result, axis, identity)
    elif (count.bit_length() + 2) * axis.stride < count:
        _reduce_by_doubling(source, result, axis, identity, scratch)
    elif is_worth_moving(source.shape, axis):
        _reduce_moved(source, result, axis, identity, scratch)
    elif is_strided and axis.count < taps:
        _reduce_by_outputs(source, result, axis, identity)
    else:
        _reduce_by_taps(source, result, axis, identity)


def over_all(function: np.ufunc, source: Array, result: Array, axis: Axis, scratch: Scratch) -> bool:
    """Reduce small windows over the flattened array, ignoring the ends of rows, then recompute windows at the ends.

    If rows are short, starting an inner loop for each costs more than reducing them. With a stride along the last axis,
    the windows at every input are computed, since contiguous access is faster, and the wanted ones are copied. Return
    False, with nothing done, for long rows or strides, non-contiguous arrays, empty windows, or if no window is wholly
    in bounds.
    """
    low, high, taps, step = axis.offsets[0], axis.offsets[-1], len(axis.offsets), axis.stride
    if not source.flags.c_contiguous or not low <= 0 <= high or taps < 2 or not 3 * (high - low) <= axis.extent:
        return False
    inner = prod(source.shape[axis.position + 1 :])
    if step > 1:
        serves = inner == 1 and step < taps and step <= _LONG_STEP and not _is_quicker_moved(source.shape, axis)
    else:
        serves = inner * axis.extent <= (_SHORT_RUN if inner == 1 else _SHORT_PLANE)
    if not serves:
        return False
    # Outputs whose window is wholly in bounds:
    inside_only = range(-(low // step), min(axis.count, (axis.extent - 1 - high) // step + 1))
    if not inside_only or (axis.count - 1) * step + low >= axis.extent:
        return False
    direct = step == 1 and axis.count == axis.extent and result.flags.c_contiguous
    middle = result if direct else scratch.take("windows", source.shape, source.dtype)
    inputs, outputs = source.reshape(-1), middle.reshape(-1)
    first, last = -low * inner, inputs.size - high * inner
    parts = [inputs[first + offset * inner : last + offset * inner] for offset in axis.offsets]
    reduced = function(parts[0], parts[1], out=outputs[first:last])
    for part in parts[2:]:
        function(reduced, part, out=reduced)
    if not direct:
        wanted = slice(inside_only.start * step, (inside_only.stop - 1) * step + 1, step)
        result[axis.at(slice(inside_only.start, inside_only.stop))] = middle[axis.at(wanted)]
    for beyond in (range(inside_only.start), range(inside_only.stop, axis.count)):
        if beyond:
            _reduce_at_an_end(function, source, result, axis, beyond)
    return True


def is_worth_moving(shape: tuple[int, ...], axis: Axis, *, in_turn: bool = False) -> bool:
    """Return whether transposing an axis to the front, with long inner loops, saves more time than the copies take.

    ``in_turn``: sequential addition is used if there are more taps than windows (sums, not maxima).
    """
    if prod(shape[: axis.position]) < _LEAST_OTHERS:
        return False
    inner = prod(shape[axis.position + 1 :])
    taps = min(len(axis.offsets), axis.extent)
    if inner == 1 and axis.count < taps:
        time = (_ADD_IN_TURN if in_turn else _REDUCE) + _START / taps
    elif inner == 1:
        time = _REDUCE + _SKIP * min(axis.stride - 1, _MOST_SKIPPED) + _START / axis.count
    else:
        time = _REDUCE + _START / (inner * axis.count if axis.stride == 1 and axis.count >= taps else inner)
    return axis.count * taps * (time - _REDUCE) > _MOVE * (axis.extent + axis.count)


def _is_quicker_moved(shape: tuple[int, ...], axis: Axis) -> bool:
    """Return whether windows at every element take longer than transposing the axis and reducing the wanted ones."""
    unwanted = (axis.extent - axis.count) * len(axis.offsets) * _REDUCE
    return prod(shape[:-1]) >= _LEAST_OTHERS and unwanted > _MOVE * (axis.extent + axis.count)


def _reduce_at_an_end(function: np.ufunc, source: Array, result: Array, axis: Axis, outputs: range) -> None:
    """Reduce windows that extend out of bounds, from their first valid tap to the last; none of them is empty."""
    if function is np.add:
        identity: Any = -0.0  # the exact identity of addition
    else:
        identity = -np.inf if source.dtype.kind == "f" else np.iinfo(source.dtype).min
    result[axis.at(slice(outputs.start, outputs.stop))] = identity
    for offset in axis.offsets:
        low, high = tap_range(axis.count, axis.extent, axis.stride, offset)
        low, high = max(low, outputs.start), min(high, outputs.stop)
        if low < high:
            first = low * axis.stride + offset
            place = result[axis.at(slice(low, high))]
            taken = source[axis.at(slice(first, first + (high - low - 1) * axis.stride + 1, axis.stride))]
            function(place, taken, out=place)


def _reduce_by_taps(source: Array, result: Array, axis: Axis, identity: Any) -> None:
    taps = axis.taps()
    full = [reads for reads, writes in taps if writes == slice(0, axis.count)]
    parts = [(reads, writes) for reads, writes in taps if writes != slice(0, axis.count)]
    if len(full) > 1:
        np.maximum(source[axis.at(full[0])], source[axis.at(full[1])], out=result)
    elif full:
        np.copyto(result, source[axis.at(full[0])])
    else:
        result[...] = identity
    for reads, writes in [*((reads, slice(0, axis.count)) for reads in full[2:]), *parts]:
        place = result[axis.at(writes)]
        np.maximum(place, source[axis.at(reads)], out=place)


def _reduce_moved(source: Array, result: Array, axis: Axis, identity: Any, scratch: Scratch) -> None:
    """Reduce a transposed copy that has this axis first, in the buffers of `_reduce_by_doubling`."""
    place, axes = axis.position, range(source.ndim)
    order = [place, *axes[:place], *axes[place + 1 :]]
    moved = source.transpose(order)
    first = scratch.take("doubled 0", moved.shape, source.dtype)
    np.copyto(first, moved)
    found = scratch.take("doubled 1", (axis.count, *moved.shape[1:]), source.dtype)
    _reduce_by_taps(first, found, replace(axis, position=0), identity)
    np.copyto(result, found.transpose([order.index(each) for each in axes]))


def _reduce_by_outputs(source: Array, result: Array, axis: Axis, identity: Any) -> None:
    for q in range(axis.count):
        low, high = axis.inside(q)
        place = result[axis.at(_one(q))]
        if low < high:
            taps, start = axis.offsets[low:high], q * axis.stride
            inside = source[axis.at(slice(start + taps.start, start + taps.stop, taps.step))]
            np.maximum.reduce(inside, axis=axis.position, out=place, keepdims=True)
        else:
            place[...] = identity


def _reduce_by_doubling(source: Array, result: Array, axis: Axis, identity: Any, scratch: Scratch) -> None:
    """Compute windows of 1, 2, 4, … taps at every input, each as the maximum of two windows of half its size."""
    count, step, first = len(axis.offsets), axis.offsets.step, axis.offsets[0]
    length = (axis.count - 1) * axis.stride + (count - 1) * step + 1
    shape = (*source.shape[: axis.position], length, *source.shape[axis.position + 1 :])
    maxima, other = (scratch.take(name, shape, source.dtype) for name in ("doubled 0", "doubled 1"))
    low, high = tap_range(length, axis.extent, 1, first)
    maxima[axis.at(slice(0, low))] = identity
    maxima[axis.at(slice(low, high))] = source[axis.at(slice(low + first, high + first))]
    maxima[axis.at(slice(high, None))] = identity
    width = 1
    while 2 * width < count:
        length -= width * step
        left, right = maxima[axis.at(slice(0, length))], maxima[axis.at(slice(width * step, length + width * step))]
        np.maximum(left, right, out=other[axis.at(slice(0, length))])
        maxima, other = other, maxima
        width *= 2
    last, shift = (axis.count - 1) * axis.stride + 1, (count - width) * step
    left = maxima[axis.at(slice(0, last, axis.stride))]
    np.maximum(left, maxima[axis.at(slice(shift, shift + last, axis.stride))], out=result)
