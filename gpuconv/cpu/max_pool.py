"""MaxPool on NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from gpuconv.cpu import _argmax, _order, _threads, _windows
from gpuconv.cpu._windows import Axis
from gpuconv.cpu._workspace import SCRATCH, Array, Box, Ints, Scratch, boxes, limit, shrink, spans
from gpuconv.rules.dtypes import lowest
from gpuconv.rules.geometry import MaxPoolGeometry, tap_range

_TILE_BYTES = 2**24
_TOUCHED = 7  # bytes at work per byte of input: its keys, their signs, maxima of one axis, all windows, the next axis
_TOUCHED_INDICES = 56  # bytes at work per element of input: keys, integers with positions, three sets of maxima
_FEW = 16  # blocks

Offsets = tuple[range, ...]


@dataclass(frozen=True, slots=True)
class _PooledBlock:
    images: slice
    channels: slice
    box: Box

    @property
    def place(self) -> Any:
        """Index of the block's outputs."""
        return (self.images, self.channels, *(slice(*span) for span in self.box))


@dataclass(frozen=True, slots=True)
class _View:
    """What a block sees of x through one part of the window.

    Attributes
    ----------
    place : index
        Of its inputs in x.
    starts : tuple of int
        Per spatial axis, its first input.
    axes : tuple of Axis
        Of its windows.
    """

    place: Any
    starts: Ints
    axes: tuple[Axis, ...]


Views = list[_View]  # one for each part of the window


@dataclass(frozen=True, slots=True)
class _PooledBlocks:
    """All blocks of the outputs, and the parts of the window that each is pooled through."""

    geometry: MaxPoolGeometry
    windows: list[Offsets]
    blocks: list[_PooledBlock]
    few: list[Views] | None  # where there are so few blocks that the time to describe them counts

    def views(self, number: int) -> Views:
        """Return what a block sees."""
        return _seen(self.geometry, self.windows, self.blocks[number]) if self.few is None else self.few[number]


@_threads.quietly
def max_pool(x: Array, y: Array, indices: Array | None, geometry: MaxPoolGeometry) -> None:
    """Write the maxima of x into y and their positions, where asked for, into indices."""
    if y.size == 0:
        return
    work = _work(geometry, _TOUCHED_INDICES if indices is not None else _TOUCHED * x.dtype.itemsize, _most_bytes())

    def compute(number: int) -> None:
        _compute(x, y, indices, geometry, work.views(number), SCRATCH, work.blocks[number])

    _threads.run(compute, range(len(work.blocks)), side_by_side=_threads.pays(x.nbytes))


@lru_cache(maxsize=256)
def _work(geometry: MaxPoolGeometry, touched: int, most_bytes: int) -> _PooledBlocks:
    """Cut the outputs, and the window where it has to be, so that a block has so many bytes at work at most.

    ``touched`` are those for each input that it sees.
    """
    volume = max(1, most_bytes // touched)
    windows = _windows_within(geometry, volume)
    if len(windows) > 1:  # parts of a window are put together by their positions
        volume = max(1, most_bytes // _TOUCHED_INDICES)
        windows = _windows_within(geometry, volume)
    cut = _blocks(geometry, volume)
    few = [_seen(geometry, windows, block) for block in cut] if len(cut) <= _FEW else None
    return _PooledBlocks(geometry, windows, cut, few)


def _most_bytes() -> int:
    """Return how many bytes a block may have at work."""
    return min(_TILE_BYTES, limit() // (2 * _threads.count()))


def _blocks(geometry: MaxPoolGeometry, volume: int) -> list[_PooledBlock]:
    """Cut the outputs so that a block sees about ``volume`` inputs."""
    images, channels, *extents = geometry.y_shape
    out = box = tuple(extents)
    while _inputs(geometry, box, geometry.offsets) > volume and prod(box) > 1:
        box = shrink(out, prod(box) // 2)
    planes = max(1, volume // max(1, _inputs(geometry, box, geometry.offsets)))
    deep, many = min(channels, planes), max(1, planes // channels)
    return [
        _PooledBlock(slice(*n), slice(*c), part)
        for n, c, part in product(spans(images, many), spans(channels, deep), boxes(out, box))
    ]


def _windows_within(geometry: MaxPoolGeometry, volume: int) -> list[Offsets]:
    """Cut the window, in row-major order, where that of a single output already sees more than ``volume`` inputs."""
    kernel = chunk = geometry.kernel_shape
    single = (1,) * len(kernel)
    cut = geometry.offsets
    while _inputs(geometry, single, cut) > volume and prod(chunk) > 1:
        chunk = shrink(kernel, prod(chunk) // 2)
        cut = tuple(axis[:taps] for axis, taps in zip(geometry.offsets, chunk, strict=True))
    return [
        tuple(axis[first:last] for axis, (first, last) in zip(geometry.offsets, box, strict=True))
        for box in boxes(kernel, chunk)
    ]


def _inputs(geometry: MaxPoolGeometry, box: Ints, offsets: Offsets) -> int:
    axes = zip(box, geometry.strides, offsets, geometry.x_shape[2:], strict=True)
    return prod(min(n, (q - 1) * s + o[-1] - o[0] + 1) for q, s, o, n in axes)


def _seen(geometry: MaxPoolGeometry, windows: list[Offsets], block: _PooledBlock) -> Views:
    """Return what a block sees through every part of the window."""
    views = []
    for window in windows:
        starts: list[int] = []
        inputs: list[slice] = []
        axes: list[Axis] = []
        for (a, b), s, o, n in zip(block.box, geometry.strides, window, geometry.x_shape[2:], strict=True):
            first, last = min(n, max(0, a * s + o[0])), max(0, min(n, (b - 1) * s + o[-1] + 1))
            starts.append(first)
            inputs.append(slice(first, last))
            axes.append(_axis(2 + len(axes), b - a, max(0, last - first), s, a * s - first, o))
        views.append(_View((block.images, block.channels, *inputs), tuple(starts), tuple(axes)))
    return views


def _compute(
    x: Array,
    y: Array,
    indices: Array | None,
    geometry: MaxPoolGeometry,
    views: Views,
    scratch: Scratch,
    block: _PooledBlock,
) -> None:
    target = y[block.place]
    if len(views) == 1:
        places = None if indices is None else indices[block.place]
        _pool(x, target, places, geometry, views[0], scratch, block)
        return
    places = np.empty(target.shape, np.int64) if indices is None else indices[block.place]
    more, more_places = np.empty_like(target), np.empty_like(places)
    _pool(x, target, places, geometry, views[0], scratch, block)
    for view in views[1:]:
        _pool(x, more, more_places, geometry, view, scratch, block)
        _argmax.merge(target, places, more, more_places)


def _pool(
    x: Array,
    target: Array,
    places: Array | None,
    geometry: MaxPoolGeometry,
    view: _View,
    scratch: Scratch,
    block: _PooledBlock,
) -> None:
    """Pool one block through one part of the window."""
    source = x[view.place]
    if source.size == 0:
        target[...] = lowest(x.dtype)
        if places is not None:
            places[...] = -1
        return
    order, axes = _order_of_axes(source), view.axes
    if order != tuple(range(source.ndim)):
        axes = tuple(replace(axis, position=order.index(axis.position)) for axis in axes)
    if places is None:
        _values(source.transpose(order), target.transpose(order), axes, scratch)
    else:
        part = _argmax.Part(block.images.start, block.channels.start, view.starts, source, order)
        _argmax.store(target, places, part, _argmax.positions(part, axes, scratch), geometry)


def _order_of_axes(source: Array) -> Ints:
    """Return the axes as they are or, where channels are neighbours in memory, with these last."""
    axes = tuple(range(source.ndim))
    last = source.shape[1] > 1 and abs(source.strides[1]) < min(abs(step) for step in source.strides[2:])
    return (0, *axes[2:], 1) if last else axes


def _axis(position: int, count: int, extent: int, stride: int, start: int, offsets: range) -> Axis:
    """Describe the windows of one axis of a block, without taps that lie outside of it for every output."""
    shift = (count - 1) * stride
    low, high = tap_range(len(offsets), extent + shift, offsets.step, offsets[0] + start + shift)
    inside = offsets[low : max(high, low + 1)]
    return Axis(position, count, extent, stride, range(inside.start + start, inside.stop + start, inside.step))


def _values(source: Array, target: Array, axes: Sequence[Axis], scratch: Scratch) -> None:
    dtype: Any = source.dtype
    if dtype.itemsize == 2:  # NumPy's own maxima of 16-bit floats go through float32, one by one
        maxima = _windows.reduce(_order.keys(source, scratch), axes, np.iinfo(np.int16).min, scratch)
        np.copyto(target, _order.values(maxima, dtype, scratch))
    else:
        least = -np.inf if _order.is_float(dtype) else lowest(dtype)
        _windows.reduce(source, axes, least, scratch, target)
    _windows.fill_empty(target, axes, lowest(dtype))
