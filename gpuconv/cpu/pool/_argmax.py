"""MaxPool's Indices: the position of each window's maximum, the first one in row-major order among equal elements.

The reduction is separable, so its order is not row-major. Elements of up to 32 bits are packed with their position into
64-bit integers, whose maximum is the first of the greatest elements. 64-bit elements carry an array of positions along.
"""

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
    """A part of x (images, channels, …), its offset in x, and the order of axes in which it is reduced."""

    image: int
    channel: int
    starts: Ints
    source: Array
    order: Ints


_NOTHING = np.iinfo(np.int64).min
_LOW_HALF = 0xFFFFFFFF


def positions(part: Part, axes: Sequence[Axis], scratch: Scratch) -> Array:
    """Return the position of each window's maximum in its plane of the part: int64, row-major; -1 for an empty window.

    Axes of the result and of ``axes`` are in the part's order. Keys (see ``_order``) of up to 32 bits are packed with
    the reversed position into one integer; 64-bit keys and positions are separate arrays.
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
    """Return ``(key << 32) + (2^32 - 1 - position)`` for every element."""
    packed = scratch.take("packed", source.shape, np.int64)
    halves = packed.view(np.int32)  # interleaved along the last axis: no additional axis
    high = halves[..., 1 if np.little_endian else 0 :: 2]
    np.copyto(high, _order.keys(source, scratch) if _order.is_float(source.dtype) else source)
    low = halves[..., 0 if np.little_endian else 1 :: 2]
    np.copyto(low.view(np.uint32), _LOW_HALF - numbers, casting="unsafe")
    return packed


def _carried(source: Array, numbers: Array, axes: Sequence[Axis], scratch: Scratch) -> Array:
    """Reduce keys with positions, last axis first; only greater keys replace, so the first in row-major order wins."""
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
    """Write the elements at ``positions`` of a part of x into y, and their ONNX Indices into ``indices``.

    Indices count elements of all of x, or of the plane, in the geometry's storage order.
    """
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
    """Return 0, step, 2 * step, … along one axis, shaped to broadcast with ``source``."""
    shape = [1] * source.ndim
    shape[axis] = source.shape[axis]
    return np.arange(0, step * source.shape[axis], step).reshape(shape)


def merge(y: Array, indices: Array, more: Array, more_indices: Array) -> None:
    """Merge the result of a later part of the windows into y and indices, where its maximum is greater."""
    better = more_indices >= 0
    better &= (indices < 0) | (_comparable(more) > _comparable(y))
    np.copyto(y, more, where=better)
    np.copyto(indices, more_indices, where=better)


def _comparable(values: Array) -> Array:
    return _order.keys(values, Scratch()) if _order.is_float(values.dtype) else values


def _moved(positions: Array, plane: Ints, starts: Ints, geometry: MaxPoolGeometry) -> Array:
    """Convert row-major positions in a part of a plane to positions in the whole plane, in its storage order."""
    whole = geometry.x_shape[2:]
    rank = len(whole)
    steps = [prod(whole[:axis]) if geometry.storage_order else prod(whole[axis + 1 :]) for axis in range(rank)]
    result = np.zeros(positions.shape, np.int64)
    rest = positions
    for axis in reversed(range(rank)):
        rest, coordinate = np.divmod(rest, plane[axis])
        result += (coordinate + starts[axis]) * steps[axis]
    return result
