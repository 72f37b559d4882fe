"""MaxPool on NumPy arrays, with or without Indices: separable maxima, block by block.

Values only: ``_windows`` reduces the elements, 16-bit floats by integer keys. With Indices, ``_argmax`` reduces keys
with positions. A window that exceeds the workspace is reduced in parts, which are merged by their positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from gpuconv.cpu import _threads
from gpuconv.cpu._workspace import INVARIANT, SCRATCH, Array, Partition, Scratch, in_order, limit
from gpuconv.cpu.pool import _argmax, _order, _windows
from gpuconv.cpu.pool._blocks import PooledBlock, PooledBlocks, View, order_of_axes, threads, windows_within
from gpuconv.cpu.pool._blocks import partition as cut_into
from gpuconv.cpu.pool._windows import Axis
from gpuconv.rules.dtypes import lowest
from gpuconv.rules.geometry import MaxPoolGeometry

_TILE_BYTES = 2**24  # of a block's buffers
_TOUCHED = 7  # bytes of buffers per byte of input: keys, signs, maxima of two axes, windows at every input
_TOUCHED_INDICES = 56  # bytes of buffers per input: keys, keys packed with positions, three sets of maxima


@_threads.quietly
def max_pool(
    x: Array, y: Array, indices: Array | None, geometry: MaxPoolGeometry, *, invariant_layout: str | None = None
) -> None:
    """Write MaxPool of x (N, C, …) into y (N, C, Q1, …), and Indices into ``indices`` unless it is None.

    ``invariant_layout`` is the layout ("NCHW" or "NHWC") if the call is batch-invariant: then the sign of a
    zero does not depend on other images, on threads, or on the strides of x and y. With Indices it never does.
    """
    if y.size == 0:
        return
    if invariant_layout is None or indices is not None:
        workspace = limit()
        _max_pool(x, y, indices, geometry, Partition(x.shape[0], threads(workspace)), workspace)
        return

    def compute(x: Array, y: Array, _: slice) -> None:
        x_shape, y_shape = (x.shape[0], *geometry.x_shape[1:]), (x.shape[0], *geometry.y_shape[1:])
        _max_pool(x, y, None, replace(geometry, x_shape=x_shape, y_shape=y_shape), INVARIANT, limit())

    in_order(invariant_layout, x, y, compute)


def _max_pool(
    x: Array, y: Array, indices: Array | None, geometry: MaxPoolGeometry, partition: Partition, workspace: int
) -> None:
    touched = _TOUCHED_INDICES if indices is not None else _TOUCHED * x.dtype.itemsize
    work = _work(geometry, touched, min(_TILE_BYTES, partition.share_of(workspace)), partition.images)

    def compute(number: int) -> None:
        _compute(x, y, indices, geometry, work.views(number), SCRATCH, work.blocks[number])

    most = partition.at_once(workspace) if partition.invariant else partition.threads
    _threads.run(compute, range(len(work.blocks)), side_by_side=_threads.pays(x.nbytes), most=most)


@lru_cache(maxsize=256)
def _work(geometry: MaxPoolGeometry, touched: int, most_bytes: int, together: int) -> PooledBlocks:
    """Return blocks of outputs, and parts of the window if needed, with at most ``most_bytes`` of buffers per block.

    ``touched``: bytes of buffers per input. ``together``: most images per block.
    """
    volume = max(1, most_bytes // touched)
    windows = windows_within(geometry, volume)
    if len(windows) > 1:  # merging parts of a window needs positions
        volume = max(1, most_bytes // _TOUCHED_INDICES)
        windows = windows_within(geometry, volume)
    return cut_into(geometry, windows, volume, together)


def _compute(
    x: Array,
    y: Array,
    indices: Array | None,
    geometry: MaxPoolGeometry,
    views: list[View],
    scratch: Scratch,
    block: PooledBlock,
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
    view: View,
    scratch: Scratch,
    block: PooledBlock,
) -> None:
    """Reduce one block over one part of the window."""
    source = view.of(x, block)
    if source.size == 0:
        target[...] = lowest(x.dtype)
        if places is not None:
            places[...] = -1
        return
    order, axes = order_of_axes(source), view.axes
    if order != tuple(range(source.ndim)):
        axes = tuple(replace(axis, position=order.index(axis.position)) for axis in axes)
    if places is None:
        _values(source.transpose(order), target.transpose(order), axes, scratch)
    else:
        part = _argmax.Part(block.images.start, block.channels.start, view.starts, source, order)
        _argmax.store(target, places, part, _argmax.positions(part, axes, scratch), geometry)


def _values(source: Array, target: Array, axes: Sequence[Axis], scratch: Scratch) -> None:
    dtype: Any = source.dtype
    if dtype.itemsize == 2:  # NumPy's maximum of 16-bit floats is slow: it converts each element to float32
        maxima = _windows.reduce(_order.keys(source, scratch), axes, np.iinfo(np.int16).min, scratch)
        np.copyto(target, _order.values(maxima, dtype, scratch))
    else:
        least = -np.inf if _order.is_float(dtype) else lowest(dtype)
        _windows.reduce(source, axes, least, scratch, target)
    _windows.fill_empty(target, axes, lowest(dtype))
