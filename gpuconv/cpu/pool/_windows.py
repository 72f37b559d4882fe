"""Maxima over windows, one axis after the other: the sum of the kernel's extents in passes, not their product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from gpuconv.cpu._workspace import Array, Scratch
from gpuconv.rules.geometry import tap_range

_TAPS_PER_OUTPUT = 4  # of a window, from which it is reduced by itself
_LONG_STEP = 16  # elements between windows, from which those that begin at all elements are too many
# Nanoseconds that an element takes to be reduced or moved, each that is skipped before it, and each run of elements.
_REDUCE, _MOVE, _SKIP, _START = 0.35, 2.0, 0.25, 12.0
_ADD_IN_TURN = 3.0  # the same of an element that is added to the sum of those before it, each by itself
_MOST_SKIPPED = 8  # then each element is in another line of the cache
_LEAST_OTHERS = 16  # elements of the other axes, from which it pays to have them last
_SHORT_RUN, _SHORT_PLANE = 64, 1024  # elements along the last axis, and along one before it with all after it


@dataclass(frozen=True, slots=True)
class Axis:
    """Windows along one axis of a block: output ``q`` holds the inputs ``q * stride + offset`` that exist."""

    position: int
    count: int
    extent: int
    stride: int
    offsets: range

    def at(self, part: slice) -> tuple[slice, ...]:
        """Return the index of a part of this axis, and all of those before it."""
        return (*(slice(None),) * self.position, part)

    def taps(self) -> list[tuple[slice, slice]]:
        """Return which inputs every tap reads, and for which outputs; of a huge window, output by output."""
        if len(self.offsets) > self.count * self.extent:
            single = ((q, tap) for q in range(self.count) for tap in range(*self.inside(q)))
            return [(_one(q * self.stride + self.offsets[tap]), _one(q)) for q, tap in single]
        return _taps(self)

    def windows(self) -> list[tuple[slice, slice]]:
        """Return which inputs every output reads, and its place; not of those that read none."""
        return _windows(self)

    def inside(self, q: int) -> tuple[int, int]:
        """Return the taps of output ``q`` that meet an input."""
        return tap_range(len(self.offsets), self.extent, self.offsets.step, q * self.stride + self.offsets[0])

    @property
    def trivial(self) -> bool:
        """Tell whether every output is its input."""
        return self.offsets == range(1) and self.stride == 1 and self.count == self.extent


@lru_cache(maxsize=1024)
def _taps(axis: Axis) -> list[tuple[slice, slice]]:
    """Return which inputs every tap reads, and for which outputs."""
    pairs = []
    for offset in axis.offsets:
        low, high = tap_range(axis.count, axis.extent, axis.stride, offset)
        if low < high:
            first = low * axis.stride + offset
            pairs.append((slice(first, first + (high - low - 1) * axis.stride + 1, axis.stride), slice(low, high)))
    return pairs


@lru_cache(maxsize=256)
def _windows(axis: Axis) -> list[tuple[slice, slice]]:
    """Return which inputs every output reads, and its place; not of those that read none."""
    found = []
    for q in range(axis.count):
        low, high = axis.inside(q)
        if low < high:
            first, step = q * axis.stride + axis.offsets[low], axis.offsets.step
            found.append((slice(first, first + (high - low - 1) * step + 1, step), _one(q)))
    return found


@lru_cache(maxsize=1024)
def _empty(axis: Axis) -> list[slice]:
    """Return the outputs whose window holds nothing: all before and after the input, and those with it in a gap."""
    first, last = axis.offsets[0], axis.offsets[-1]
    low, high = tap_range(axis.count, axis.extent + last - first, axis.stride, last)
    ends = [range(*tap_range(axis.count, axis.extent, axis.stride, offset)) for offset in (first, last)]
    others = (q for q in range(low, high) if q not in ends[0] and q not in ends[1])
    return [slice(0, low), slice(high, None), *(_one(q) for q in others if not range(*axis.inside(q)))]


def _one(index: int) -> slice:
    return slice(index, index + 1)


def fill_empty(target: Array, axes: Sequence[Axis], value: float) -> None:
    """Set the outputs whose window holds nothing."""
    for axis in axes:
        for part in _empty(axis):
            target[axis.at(part)] = value


def reduce(source: Array, axes: Sequence[Axis], identity: Any, scratch: Scratch, target: Array | None = None) -> Array:
    """Return the maxima of all windows over ``axes``, in ``target`` if given, else in scratch memory.

    A window that holds nothing gives ``identity``, which no other value may fall below.
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
    """Reduce small windows along an axis as if it had no ends, then those that reach beyond an end.

    Short runs of elements cost more to start than to reduce, and neighbours are reduced faster than every other
    element: with a stride along the last axis, windows begin at every input, and those that are wanted are copied.
    Return False where this is not the way: long runs or strides, arrays with gaps, a window that is empty, or none
    that is wholly inside.
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
    # Windows wholly inside:
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
    """Tell whether to reduce an axis takes longer than to move it to the front and to reduce longer runs there.

    ``in_turn`` says that windows of more taps than there are windows would be summed one by one.
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
    """Tell whether windows that begin at every element take longer than to move the axis and reduce those wanted."""
    unwanted = (axis.extent - axis.count) * len(axis.offsets) * _REDUCE
    return prod(shape[:-1]) >= _LEAST_OTHERS and unwanted > _MOVE * (axis.extent + axis.count)


def _reduce_at_an_end(function: np.ufunc, source: Array, result: Array, axis: Axis, outputs: range) -> None:
    """Reduce windows that reach beyond an end, tap by tap from the first one inside; none of them is empty."""
    if function is np.add:
        identity: Any = -0.0  # leaves every element as it is
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
    """Reduce a copy that has this axis first, in the memory that doubling would take."""
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
    """Windows of 1, 2, 4, … taps at every input, each the maximum of two of half its taps."""
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
