"""What is done by Indices, on NumPy arrays: the gradient of MaxPool, and MaxUnpool."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from gpuconv.cpu import _threads
from gpuconv.cpu._threads import quietly
from gpuconv.cpu._workspace import Array, Box, boxes, last_axes, limit, shrink, spans
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints, MaxPoolGeometry, tap_range
from gpuconv.rules.gradients import MaxUnpoolGeometry
from gpuconv.rules.indices import IndexWindows

_CHECKED_PASSES = 4  # over Indices: so many times their bytes decide whether threads are worth waking
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

    def check(block: Box) -> None:
        wrong = _first_of_block(indices, block, windows, limits)
        if wrong is not None:
            found.append(wrong)

    is_shared = _threads.pays(_CHECKED_PASSES * indices.nbytes) and _threads.count() * _CHECKED_BYTES * most <= limit()
    for box in boxes(spatial, shrink(spatial, most)):
        limits = _limits(windows, box)
        work = [(*some, *box) for some in product(spans(images, many), spans(channels, deep))]
        _threads.run(check, work, side_by_side=is_shared)
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
    indices = array[tuple(slice(*span) for span in block)]
    possible = _possible(_in_plane(indices, block[0][0], block[1][0], windows), windows, limits)
    if possible.all():
        return None
    possible |= indices == -1
    at = np.unravel_index(int(possible.argmin()), possible.shape)
    return None if possible.all() else tuple(start + int(step) for (start, _), step in zip(block, at, strict=True))


def _in_plane(indices: Array, image: int, channel: int, windows: IndexWindows) -> Array:
    """Return what indices (N, C, …) from an image and a channel on number in their planes.

    Of several images they have all channels.
    """
    if windows.in_planes:
        return indices
    count, first = prod(indices.shape[:2]), image * windows.shape[1] + channel
    if count == 1:
        return indices - first * windows.plane if first else indices
    firsts = np.arange(first, first + count) * windows.plane
    found: Array = indices - firsts.reshape(*indices.shape[:2], *(1,) * (indices.ndim - 2))
    return found


def _possible(offsets: Array, windows: IndexWindows, limits: list[_Limits]) -> Array:
    """Tell which numbers (N, C, …) of elements in a plane lie in their windows."""
    possible: Array = offsets.view(np.uint64) < windows.plane
    if not limits:
        return possible
    rest, inside = offsets.astype(limits[0].first.dtype), np.empty(possible.shape, bool)
    for axis in limits:
        rest -= axis.first
        possible &= np.less(rest, axis.size, out=inside)
        if axis is limits[-1] and axis.dilation == 1:
            break
        quotient = rest // axis.step if axis.step > 1 else rest.copy()
        if axis.dilation > 1:
            possible &= (quotient + axis.before) % axis.dilation == 0
        if axis is not limits[-1]:
            quotient *= axis.step
            rest -= quotient
    return possible


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
        if prod(map(len, geometry.met)) > _MANY_TAPS:
            dx[part] = _sum_of_elements(dy[part], indices[part], start, geometry, accumulator)
            continue
        total = np.zeros((stop - start, *geometry.x_shape[1:]), accumulator)
        _add_windows(total, dy[part], indices[part], start, geometry)
        dx[part] = total


def _add_windows(total: Array, dy: Array, indices: Array, first: int, geometry: MaxPoolGeometry) -> None:
    channels, spatial = geometry.x_shape[1], geometry.x_shape[2:]
    planes = np.arange(first, first + len(dy))[:, None] * channels + np.arange(channels)
    planes = (planes * geometry.plane_step).reshape(*planes.shape, *(1,) * len(spatial))
    numbers = np.arange(prod(spatial)).reshape(spatial, order="F" if geometry.storage_order else "C")
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


def _sum_of_elements(dy: Array, indices: Array, first: int, geometry: MaxPoolGeometry, accumulator: str) -> Array:
    """Return dx of images from ``first`` on: every element of dy added to that of its index, if its window holds it.

    From the last window to the first: an element adds them up in the order of their taps, as they are added tap by tap.
    """
    spatial, (images, channels, *rest) = geometry.x_shape[2:], dy.shape
    plane, windows = prod(spatial), geometry.index_windows
    numbered = spatial[::-1] if geometry.storage_order else spatial
    total = np.zeros((images, channels, *numbered), accumulator)
    limits, most = _limits(windows, tuple((0, extent) for extent in rest)), max(1, _CHECKED // prod(rest))
    deep, many = min(channels, most), max(1, most // channels)
    for of_images, of_channels in product(spans(images, many), spans(channels, deep)):
        part = slice(*of_images), slice(*of_channels)
        numbers = _in_plane(indices[part], first + of_images[0], of_channels[0], windows)
        inside = _possible(numbers, windows, limits)
        planes = np.arange(images * channels).reshape(images, channels)[part] * plane
        places = (numbers + planes.reshape(*planes.shape, *(1,) * len(rest))).reshape(-1)
        values = dy[part].astype(accumulator, copy=False).reshape(-1)
        if not inside.all():
            kept = inside.reshape(-1)
            places, values = places[kept], values[kept]
        np.add.at(total.reshape(-1), places[::-1], values[::-1])
    return total.transpose(0, 1, *range(total.ndim - 1, 1, -1)) if geometry.storage_order else total


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
