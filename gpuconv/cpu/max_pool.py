"""MaxPool on NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np

from gpuconv._dtypes import lowest
from gpuconv._geometry import MaxPoolGeometry
from gpuconv.cpu import _argmax, _order, _threads, _windows
from gpuconv.cpu._windows import Axis
from gpuconv.cpu._workspace import Array, Box, Ints, Scratch, boxes, limit, shrink, spans

_TILE_BYTES = 2**23
_TOUCHED = 6  # bytes at work per byte of input: its keys, their signs, maxima of one axis and the next
_TOUCHED_INDICES = 48  # bytes at work per element of input: keys, an integer with the position, two sets of maxima


@dataclass(frozen=True, slots=True)
class _Block:
    images: slice
    channels: slice
    box: Box


def max_pool(x: Array, y: Array, indices: Array | None, geometry: MaxPoolGeometry) -> None:
    """Write the maxima of x into y and their positions, where asked for, into indices."""
    if y.size == 0:
        return
    touched = _TOUCHED * x.dtype.itemsize if indices is None else _TOUCHED_INDICES
    blocks = _blocks(geometry, max(1, min(_TILE_BYTES, limit() // (2 * _threads.count())) // touched))
    with np.errstate(all="ignore"):
        _threads.run(partial(_compute, x, y, indices, geometry, Scratch()), blocks)


def _blocks(geometry: MaxPoolGeometry, volume: int) -> list[_Block]:
    """Cut the outputs so that a block sees about ``volume`` inputs."""
    images, channels, *out = geometry.y_shape
    box = tuple(out)
    while _inputs(geometry, box) > volume and prod(box) > 1:
        box = shrink(tuple(out), prod(box) // 2)
    planes = max(1, volume // max(1, _inputs(geometry, box)))
    deep, many = min(channels, planes), max(1, planes // channels)
    return [
        _Block(slice(*n), slice(*c), part)
        for n, c, part in product(spans(images, many), spans(channels, deep), boxes(tuple(out), box))
    ]


def _inputs(geometry: MaxPoolGeometry, box: Ints) -> int:
    axes = zip(box, geometry.strides, geometry.offsets, geometry.x_shape[2:], strict=True)
    return prod(min(n, (q - 1) * s + o[-1] - o[0] + 1) for q, s, o, n in axes)


def _compute(
    x: Array, y: Array, indices: Array | None, geometry: MaxPoolGeometry, scratch: Scratch, block: _Block
) -> None:
    starts: list[int] = []
    inputs: list[slice] = []
    axes: list[Axis] = []
    for (a, b), s, o, n in zip(block.box, geometry.strides, geometry.offsets, geometry.x_shape[2:], strict=True):
        first, last = min(n, max(0, a * s + o[0])), max(0, min(n, (b - 1) * s + o[-1] + 1))
        starts.append(first)
        inputs.append(slice(first, last))
        offsets = tuple(offset + a * s - first for offset in o)
        axes.append(Axis(2 + len(axes), b - a, max(0, last - first), s, offsets))
    source = x[(block.images, block.channels, *inputs)]
    place = (block.images, block.channels, *(slice(*span) for span in block.box))
    if source.size == 0:
        y[place] = lowest(x.dtype)
        if indices is not None:
            indices[place] = -1
    elif indices is None:
        _values(source, y[place], axes, scratch)
    else:
        positions = _argmax.positions(source, axes, scratch)
        _argmax.store(x, y, indices, place, positions, starts, source, geometry)


def _values(source: Array, target: Array, axes: list[Axis], scratch: Scratch) -> None:
    dtype: Any = source.dtype
    if dtype.itemsize == 2:  # NumPy's own maxima of 16-bit floats go through float32, one by one
        maxima = _windows.reduce(_order.keys(source, scratch), axes, np.iinfo(np.int16).min, scratch)
        np.copyto(target, _order.values(maxima, dtype, scratch))
    else:
        least = -np.inf if _order.is_float(dtype) else lowest(dtype)
        _windows.reduce(source, axes, least, scratch, target)
    for axis in axes:
        for q in axis.empty():
            target[axis.at(slice(q, q + 1))] = lowest(dtype)
