"""Positions of window maxima: the first in row-major order, whatever the order of the reduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from gpuconv.cpu._workspace import Array, Ints, Scratch
from gpuconv.cpu.pool import _order, _windows
from gpuconv.cpu.pool._windows import Axis
from gpuconv.rules.dtypes import lowest
from gpuconv.rules.geometry import MaxPoolGeometry


@dataclass(frozen=True, slots=True)
class Part:
    """A part of x (images, channels, …), where in x it begins, and the order of axes that it is gone through in."""

    image: int
    channel: int
    starts: Ints
    source: Array
    order: Ints


_NOTHING = np.iinfo(np.int64).min
_LOW_HALF = 0xFFFFFFFF


def positions(part: Part, axes: Sequence[Axis], scratch: Scratch) -> Array:
    """Return each window's position in its plane of the part, row-major, int64; -1 for a window of nothing.

    Here and in ``axes`` the axes are in the part's order. Up to 32 bits, key and reversed position make one integer
    whose maximum is the first of the greatest. Of 64-bit keys, key and position are carried along side by side.
    """
    plane = part.source.shape[2:]
    numbers = np.arange(prod(plane)).reshape(1, 1, *plane).transpose(part.order)
    source = part.source.transpose(part.order)
    if source.dtype.itemsize == 8:
        return _carried(source, numbers, axes, scratch)
    found = _windows.reduce(_packed(source, numbers, scratch), axes, _NOTHING, scratch)
    result = scratch.take("positions", found.shape, np.int64)
    np.bitwise_and(found, _LOW_HALF, out=result)
    np.subtract(_LOW_HALF, result, out=result)
    _windows.fill_empty(result, axes, -1)
    return result


def _packed(source: Array, numbers: Array, scratch: Scratch) -> Array:
    """Return (key << 32) + (2^32 - 1 - position) of every element."""
    packed = scratch.take("packed", source.shape, np.int64)
    halves = packed.view(np.int32)  # along the last axis, so that there is no axis more
    high = halves[..., 1 if np.little_endian else 0 :: 2]
    np.copyto(high, _order.keys(source, scratch) if _order.is_float(source.dtype) else source)
    low = halves[..., 0 if np.little_endian else 1 :: 2]
    np.copyto(low.view(np.uint32), _LOW_HALF - numbers, casting="unsafe")
    return packed


def _carried(source: Array, numbers: Array, axes: Sequence[Axis], scratch: Scratch) -> Array:
    """Reduce the last axis first and keep what came first unless it is exceeded: row-major order by itself."""
    best = _order.keys(source, scratch)
    where = np.broadcast_to(numbers, source.shape)
    for axis in reversed(axes):
        shape = (*best.shape[: axis.position], axis.count, *best.shape[axis.position + 1 :])
        name = f"axis {axis.position}"
        values, places = scratch.take(f"{name} keys", shape, np.int64), scratch.take(f"{name} places", shape, np.int64)
        values.fill(_NOTHING)
        places.fill(-1)
        for reads, writes in axis.taps():
            candidates, into = best[axis.at(reads)], axis.at(writes)
            better = candidates > values[into]
            np.copyto(values[into], candidates, where=better)
            np.copyto(places[into], where[axis.at(reads)], where=better)
        best, where = values, places
    return where


def store(y: Array, indices: Array, part: Part, positions: Array, geometry: MaxPoolGeometry) -> None:
    """Write the elements at ``positions`` of a part of x into y, and their numbers in all of x, or in its planes."""
    plane, whole = part.source.shape[2:], geometry.x_shape[2:]
    source, y, indices = (array.transpose(part.order) for array in (part.source, y, indices))
    steps = [prod(source.shape[axis + 1 :]) for axis in range(source.ndim)]
    images, channels, *_, last = (part.order.index(axis) for axis in range(source.ndim))
    first = _along(images, source, steps[images]) + _along(channels, source, steps[channels])
    np.copyto(y, source.reshape(-1).take(positions * steps[last] + first, mode="clip"))
    offsets = positions
    if plane != whole or geometry.storage_order:
        offsets = _moved(positions, plane, part.starts, geometry)
    planes = (part.image + _along(images, source, 1)) * geometry.x_shape[1] + part.channel
    np.add(offsets, (planes + _along(channels, source, 1)) * geometry.plane_step, out=indices)
    if positions.min() < 0:
        nothing = positions < 0
        y[nothing] = lowest(y.dtype)
        indices[nothing] = -1


def _along(axis: int, source: Array, step: int) -> Array:
    """Return 0, step, 2 * step … along one axis of an array."""
    shape = [1] * source.ndim
    shape[axis] = source.shape[axis]
    return np.arange(0, step * source.shape[axis], step).reshape(shape)


def merge(y: Array, indices: Array, more: Array, more_indices: Array) -> None:
    """Take over what a later part of the window has found, where it exceeds what the parts before it have."""
    better = more_indices >= 0
    better &= (indices < 0) | (_comparable(more) > _comparable(y))
    np.copyto(y, more, where=better)
    np.copyto(indices, more_indices, where=better)


def _comparable(values: Array) -> Array:
    return _order.keys(values, Scratch()) if _order.is_float(values.dtype) else values


def _moved(positions: Array, plane: Ints, starts: Ints, geometry: MaxPoolGeometry) -> Array:
    """Number row-major positions of a part of a plane as the whole plane's, in its storage order."""
    whole = geometry.x_shape[2:]
    rank = len(whole)
    steps = [prod(whole[:axis]) if geometry.storage_order else prod(whole[axis + 1 :]) for axis in range(rank)]
    result = np.zeros(positions.shape, np.int64)
    rest = positions
    for axis in reversed(range(rank)):
        rest, coordinate = np.divmod(rest, plane[axis])
        result += (coordinate + starts[axis]) * steps[axis]
    return result
