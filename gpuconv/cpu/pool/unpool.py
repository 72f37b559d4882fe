"""What is done by Indices, on NumPy arrays: the gradient of MaxPool, and MaxUnpool."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from gpuconv.cpu._threads import quietly
from gpuconv.cpu._workspace import Array, Box, boxes, last_axes, limit, shrink, spans
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints, MaxPoolGeometry, tap_range
from gpuconv.rules.gradients import MaxUnpoolGeometry
from gpuconv.rules.indices import IndexWindows

_CHECKED, _CHECKED_BYTES = 2**15, 32  # Indices that are checked at a time, and bytes at work for each

_MANY_TAPS = 8  # from which it is faster to look where each window's element is


def first_impossible(indices: Array, windows: IndexWindows) -> Ints | None:
    """Return where the first index (N, C, Q1, …), in row-major order, stands that no forward call returns.

    That is one that numbers an element outside its window, or none, except -1. Some planes are looked at a time, or a
    box of one, so that what is computed of them stays in the L2 cache.
    """
    if indices.size == 0:
        return None
    most = min(_CHECKED, limit() // _CHECKED_BYTES)
    if indices.size <= most:
        block = tuple((0, extent) for extent in indices.shape)
        return _first_of_block(indices, block, windows, _limits(windows, block[2:]))
    images, channels, *rest = indices.shape
    spatial = tuple(rest)
    planes = max(1, most // prod(spatial))
    deep, many = min(channels, planes), max(1, planes // channels)
    found: list[Ints] = []
    for box in boxes(spatial, shrink(spatial, most)):
        limits = _limits(windows, box)
        for some in product(spans(images, many), spans(channels, deep)):
            wrong = _first_of_block(indices, (*some, *box), windows, limits)
            if wrong is not None:
                found.append(wrong)
    return min(found, default=None)


class _Limits(NamedTuple):
    """What the windows of a box allow of the coordinates along one axis; arrays have the box's shape.

    Attributes
    ----------
    step : int
        From one element's number to its neighbour's.
    first, size : array of unsigned integers
        The number of the first element that a window can name, were all other coordinates 0, and how many numbers
        there are from it to that after the last one.
    before : array of unsigned integers
        Elements of the window before that first one, which lie in the padding.
    dilation : int
    """

    step: int
    first: Array
    size: Array
    before: Array
    dilation: int


@lru_cache(maxsize=16)
def _limits(windows: IndexWindows, box: Box) -> list[_Limits]:
    """Return what the windows of a box allow, the axis with the largest step first; not an axis of one element."""
    limits, step = [], windows.plane
    shape = tuple(stop - start for start, stop in box)
    dtype = np.dtype(np.uint32 if windows.plane < 2**31 else np.uint64)
    for axis in reversed(windows.fastest_first) if windows.plane else ():
        extent, reach = windows.numbered[2 + axis], windows.reach[axis]
        step //= extent
        begin = np.arange(*box[axis]) * windows.strides[axis] - windows.pads[axis]
        first = begin.clip(0, extent)
        size = (begin + reach).clip(first, extent) - first
        if extent == 1 and size.all() and windows.dilations[axis] == 1:
            continue
        along = (1,) * axis + (len(begin),) + (1,) * (len(shape) - 1 - axis)
        numbers, count, before = (
            np.broadcast_to(array.reshape(along), shape).astype(dtype, order="C")
            for array in (first * step, size * step, (first - begin) % windows.dilations[axis])
        )
        limits.append(_Limits(step, numbers, count, before, windows.dilations[axis]))
    return limits


def _first_of_block(array: Array, block: Box, windows: IndexWindows, limits: list[_Limits]) -> Ints | None:
    """Return where the first such index of a block stands; of some images it has all channels."""
    indices = offsets = array[tuple(slice(*span) for span in block)]
    if not windows.in_planes:
        count, (image, _), (channel, _) = prod(indices.shape[:2]), *block[:2]
        first = image * windows.shape[1] + channel
        firsts = np.arange(first, first + count) * windows.plane
        offsets = indices - firsts.reshape(*indices.shape[:2], *(1,) * (indices.ndim - 2))
    possible = offsets.view(np.uint64) < windows.plane
    rest = offsets.astype(limits[0].first.dtype) if limits else offsets
    for axis in limits:
        rest = rest - axis.first
        possible &= rest < axis.size
        if axis.dilation > 1:
            possible &= (rest // axis.step + axis.before) % axis.dilation == 0
        if axis is not limits[-1]:
            rest -= rest // axis.step * axis.step
    if possible.all():
        return None
    possible |= indices == -1
    at = np.unravel_index(int(possible.argmin()), possible.shape)
    return None if possible.all() else tuple(start + int(step) for (start, _), step in zip(block, at, strict=True))


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
    planes = (planes * geometry.plane_step).reshape(*planes.shape, *(1,) * len(spatial))
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
    """Write every element of x into y where its index says, the last of several; zeros elsewhere.

    An index that numbers no element is left out.
    """
    y[...] = 0
    windows = geometry.index_windows
    flat, values = indices.reshape(-1), x.reshape(-1)
    named = None
    if flat.size and (flat.min() < 0 or flat.max() >= windows.count):
        named = (flat >= 0) & (flat < windows.count)
    if windows.in_planes:
        planes = np.arange(prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * (x.ndim - 2))
        flat = (indices + planes * windows.plane).reshape(-1)
    if named is not None:
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
