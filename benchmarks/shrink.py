"""Shrink layers for the emulator so that the same kernels are chosen: fewer images, rows and channels.

Rows keep their length as far as possible, since alignment and coalescing depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks import layers
from benchmarks.layers import Ints, Layer

_ROW = 512  # longer rows are shortened, in elements
_ALIGNED_TO = 128  # rows are shortened by multiples of this, so that each starts at the same offset within a sector


def shrunk(layer: Layer, work: float, accepted: Callable[[Layer], bool], layout: str = "NCHW") -> Layer:
    """Return the layer reduced to at most ``work`` operations, or as few as possible.

    It repeatedly takes the first of these steps that ``accepted`` allows: halve the batch; halve a spatial axis but the
    last, outermost first, as long as two windows fit; then, in NCHW, halve the groups, a long row, the channels, the
    filters, and the row; in NHWC, halve the row, the filters, the channels, and the groups.
    """
    while layer.flops > work:
        smaller = next((one for one in _steps(layer, layout) if one != layer and accepted(one)), None)
        if smaller is None:
            break
        layer = smaller
    return layer


def _steps(layer: Layer, layout: str) -> Iterator[Layer]:
    batch, _, *extents = layer.x
    if batch > 1:
        yield replace(layer, x=(batch // 2, *layer.x[1:]))
    for axis in range(len(extents) - 1):
        yield _with_extent(layer, axis, -(-extents[axis] // 2))
    last, row = len(extents) - 1, extents[-1]
    half = _with_extent(layer, last, -(-row // 2))
    if layout == "NCHW":
        yield from _fewer_groups(layer)
        if row > _ROW:
            yield _with_extent(layer, last, row // _ALIGNED_TO // 2 * _ALIGNED_TO + row % _ALIGNED_TO)
        yield from _fewer_channels(layer)
        yield from _fewer_filters(layer)
        yield half
    else:
        yield half
        yield from _fewer_filters(layer)
        yield from _fewer_channels(layer)
        yield from _fewer_groups(layer)


def _with_extent(layer: Layer, axis: int, extent: int) -> Layer:
    """Return the layer with another extent of an axis, or unchanged if two windows would no longer fit."""
    if extent < 2 * layers.reach(layer)[axis]:
        return layer
    x: Ints = (*layer.x[: 2 + axis], extent, *layer.x[3 + axis :])
    return replace(layer, x=x)


def _fewer_groups(layer: Layer) -> Iterator[Layer]:
    """Yield the layer with half of its groups; in a pool every channel is a group."""
    batch, channels, *extents = layer.x
    if layer.pools and channels > 1:
        yield replace(layer, x=(batch, -(-channels // 2), *extents))
    elif layer.group >= 4:  # a single group would be of another class
        count = layer.group // 2
        x = (batch, channels // layer.group * count, *extents)
        yield replace(layer, group=count, x=x, k_out=layer.k_out // layer.group * count)


def _fewer_channels(layer: Layer) -> Iterator[Layer]:
    batch, channels, *extents = layer.x
    if not layer.pools and (channels // layer.group) % 2 == 0:
        yield replace(layer, x=(batch, channels // 2, *extents))


def _fewer_filters(layer: Layer) -> Iterator[Layer]:
    if not layer.pools and (layer.k_out // layer.group) % 2 == 0:
        yield replace(layer, k_out=layer.k_out // 2)
