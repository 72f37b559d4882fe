"""What is done by Indices, on NumPy arrays: the gradient of MaxPool, and MaxUnpool."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from gpuconv.cpu._threads import quietly
from gpuconv.cpu._workspace import Array, last_axes, limit, spans
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints, MaxPoolGeometry, tap_range
from gpuconv.rules.gradients import MaxUnpoolGeometry

_MANY_TAPS = 8  # from which it is faster to look where each window's element is


def first_out_of_range(indices: Array, count: int) -> Ints | None:
    """Return where the first index stands that is not from -1 to below a count."""
    if indices.size == 0 or (indices.min() >= -1 and indices.max() < count):
        return None
    wrong = (indices < -1) | (indices >= count)
    return tuple(map(int, np.unravel_index(int(wrong.argmax()), indices.shape)))


@quietly
def max_pool_grad(dy: Array, indices: Array, dx: Array, geometry: MaxPoolGeometry) -> None:
    """Write into dx, of every element, the sum of dy over the windows whose index it is.

    A tap at a time: no two windows meet the same element through one tap, and the order of the sum is that of the taps.
    """
    dx[...] = 0
    accumulator = dtypes.accumulator(dy.dtype)
    if 0 in (dx.size, dy.size):
        return
    bytes_of_image = prod(geometry.x_shape[1:]) * np.dtype(accumulator).itemsize + prod(geometry.y_shape[1:]) * 80
    images = max(1, limit() // (2 * bytes_of_image))
    for start, stop in spans(geometry.x_shape[0], images):
        part = slice(start, stop)
        total = np.zeros((stop - start, *geometry.x_shape[1:]), accumulator)
        _add_windows(total, dy[part], indices[part], start, geometry)
        dx[part] = total


def _add_windows(total: Array, dy: Array, indices: Array, first: int, geometry: MaxPoolGeometry) -> None:
    channels, spatial = geometry.x_shape[1], geometry.x_shape[2:]
    planes = np.arange(first, first + len(dy))[:, None] * channels + np.arange(channels)
    planes = (planes * prod(spatial)).reshape(*planes.shape, *(1,) * len(spatial))
    numbers = np.arange(prod(spatial)).reshape(spatial, order="F" if geometry.storage_order else "C")
    if prod(map(len, geometry.met)) > _MANY_TAPS:
        _add_elements(total, dy, indices - planes, geometry)
        return
    for tap in product(*geometry.met):
        offsets = [axis[t] for axis, t in zip(geometry.offsets, tap, strict=True)]
        axes = zip(geometry.y_shape[2:], spatial, geometry.strides, offsets, strict=True)
        ranges = [tap_range(q, n, s, offset) for q, n, s, offset in axes]
        if any(low >= high for low, high in ranges):
            continue
        steps = zip(ranges, geometry.strides, offsets, strict=True)
        reads = last_axes(slice(*span) for span in ranges)
        met = last_axes(slice(low * s + o, (high - 1) * s + o + 1, s) for (low, high), s, o in steps)
        chosen = indices[reads] == planes + numbers[met]
        place = total[met]
        np.add(place, dy[reads].astype(total.dtype, copy=False), out=place, where=chosen)


def _add_elements(total: Array, dy: Array, numbers: Array, geometry: MaxPoolGeometry) -> None:
    """Add every element of dy to that of its number in its plane, if its window holds it.

    From the last window to the first: an element adds them up in the order of their taps, as they are added tap by tap.
    """
    spatial, rank = geometry.x_shape[2:], len(geometry.x_shape) - 2
    inside = (numbers >= 0) & (numbers < prod(spatial))
    places = np.arange(prod(dy.shape[:2])).reshape(*dy.shape[:2], *(1,) * rank) * prod(spatial)
    places, rest = np.broadcast_to(places, dy.shape).copy(), numbers
    for axis in range(rank) if geometry.storage_order else reversed(range(rank)):
        rest, coordinate = np.divmod(rest, spatial[axis])
        places += coordinate * prod(spatial[axis + 1 :])
        starts = np.arange(dy.shape[2 + axis]) * geometry.strides[axis] + geometry.offsets[axis][0]
        away = coordinate - starts.reshape(-1, *(1,) * (rank - 1 - axis))
        step, taps = geometry.dilations[axis], geometry.kernel_shape[axis]
        inside &= (away >= 0) & (away <= (taps - 1) * step)
        if step > 1:
            inside &= away % step == 0
    np.add.at(total.reshape(-1), places[inside][::-1], dy[inside][::-1].astype(total.dtype, copy=False))


def max_unpool(x: Array, indices: Array, y: Array, geometry: MaxUnpoolGeometry) -> None:
    """Write every element of x into y where its index says, the last of several; zeros elsewhere."""
    y[...] = 0
    flat, values = indices.reshape(-1), x.reshape(-1)
    if flat.size and flat.min() < 0:
        named = flat >= 0
        flat, values = flat[named], values[named]
    if flat.size == 0:
        return
    if y.flags.c_contiguous and tuple(geometry.numbered_shape) == y.shape:
        y.reshape(-1)[flat] = values
        return
    # An axis of one element needs no place: arrays may have more axes than NumPy takes places along.
    numbered = geometry.numbered_shape
    kept = [axis for axis, extent in enumerate(numbered) if extent > 1 or axis == 0]
    places = np.unravel_index(flat, [numbered[axis] for axis in kept])
    y[tuple(slice(None) if axis in kept else 0 for axis in range(y.ndim))][places] = values
