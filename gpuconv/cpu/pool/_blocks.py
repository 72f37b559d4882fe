"""How pooling is cut into blocks of outputs that see few inputs, and a window that sees too many into parts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from gpuconv.cpu._workspace import Array, Box, Ints, boxes, shrink, spans
from gpuconv.cpu.pool._windows import Axis
from gpuconv.rules.geometry import AveragePoolGeometry, MaxPoolGeometry, tap_range

_FEW = 16  # blocks

Offsets = tuple[range, ...]
PoolGeometry = MaxPoolGeometry | AveragePoolGeometry


@dataclass(frozen=True, slots=True)
class PooledBlock:
    """Some outputs: images, channels, and a box of the spatial axes."""

    images: slice
    channels: slice
    box: Box

    @property
    def place(self) -> Any:
        """Index of the block's outputs."""
        return (self.images, self.channels, *(slice(*span) for span in self.box))


@dataclass(frozen=True, slots=True)
class View:
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


@dataclass(frozen=True, slots=True)
class PooledBlocks:
    """All blocks of the outputs, and the parts of the window that each is pooled through."""

    geometry: PoolGeometry
    windows: list[Offsets]
    blocks: list[PooledBlock]
    few: list[list[View]] | None  # where there are so few blocks that the time to describe them counts

    def views(self, number: int) -> list[View]:
        """Return what a block sees."""
        return _seen(self.geometry, self.windows, self.blocks[number]) if self.few is None else self.few[number]


def cut(geometry: PoolGeometry, windows: list[Offsets], volume: int, together: int) -> PooledBlocks:
    """Cut the outputs so that a block sees about ``volume`` inputs through each part of the window.

    No more images than ``together`` make a block.
    """
    found = blocks(geometry, volume, together)
    few = [_seen(geometry, windows, block) for block in found] if len(found) <= _FEW else None
    return PooledBlocks(geometry, windows, found, few)


def blocks(geometry: PoolGeometry, volume: int, together: int) -> list[PooledBlock]:
    """Cut the outputs so that a block sees about ``volume`` inputs."""
    images, channels, *extents = geometry.y_shape
    out = box = tuple(extents)
    while _inputs(geometry, box, geometry.offsets) > volume and prod(box) > 1:
        box = shrink(out, prod(box) // 2)
    planes = max(1, volume // max(1, _inputs(geometry, box, geometry.offsets)))
    deep, many = min(channels, planes), max(1, min(together, planes // channels))
    return [
        PooledBlock(slice(*n), slice(*c), part)
        for n, c, part in product(spans(images, many), spans(channels, deep), boxes(out, box))
    ]


def windows_within(geometry: PoolGeometry, volume: int) -> list[Offsets]:
    """Cut the window, in row-major order, where that of a single output already sees more than ``volume`` inputs."""
    kernel = chunk = geometry.kernel_shape
    single = (1,) * len(kernel)
    part = geometry.offsets
    while _inputs(geometry, single, part) > volume and prod(chunk) > 1:
        chunk = shrink(kernel, prod(chunk) // 2)
        part = tuple(axis[:taps] for axis, taps in zip(geometry.offsets, chunk, strict=True))
    return [
        tuple(axis[first:last] for axis, (first, last) in zip(geometry.offsets, box, strict=True))
        for box in boxes(kernel, chunk)
    ]


def _inputs(geometry: PoolGeometry, box: Ints, offsets: Offsets) -> int:
    axes = zip(box, geometry.strides, offsets, geometry.x_shape[2:], strict=True)
    return prod(min(n, (q - 1) * s + o[-1] - o[0] + 1) for q, s, o, n in axes)


def _seen(geometry: PoolGeometry, windows: list[Offsets], block: PooledBlock) -> list[View]:
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
            axes.append(axis_of(2 + len(axes), b - a, max(0, last - first), s, a * s - first, o))
        views.append(View((block.images, block.channels, *inputs), tuple(starts), tuple(axes)))
    return views


def order_of_axes(source: Array) -> Ints:
    """Return the axes as they are or, where channels are neighbours in memory, with these last."""
    axes = tuple(range(source.ndim))
    steps = [abs(step) for step, size in zip(source.strides[2:], source.shape[2:], strict=True) if size > 1]
    last = source.shape[1] > 1 and abs(source.strides[1]) < min(steps, default=0)
    return (0, *axes[2:], 1) if last else axes


def axis_of(position: int, count: int, extent: int, stride: int, start: int, offsets: range) -> Axis:
    """Describe the windows of one axis of a block, without taps that lie outside of it for every output."""
    shift = (count - 1) * stride
    low, high = tap_range(len(offsets), extent + shift, offsets.step, offsets[0] + start + shift)
    inside = offsets[low : max(high, low + 1)]
    return Axis(position, count, extent, stride, range(inside.start + start, inside.stop + start, inside.step))
