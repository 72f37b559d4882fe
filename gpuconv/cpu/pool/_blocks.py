"""How pooling is cut into blocks of outputs that see few inputs, and a window that sees too many into parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any

from gpuconv.cpu import _threads
from gpuconv.cpu._workspace import Array, Box, Ints, boxes, shrink, spans
from gpuconv.cpu.pool._windows import Axis
from gpuconv.rules.geometry import AveragePoolGeometry, MaxPoolGeometry, tap_range

_FEW = 64  # boxes
_BYTES_OF_THREAD = 2**20  # of workspace, with less of which no more threads work
_NEARLY = 1.25  # times the fewest elements, for which an axis is cut whose neighbours are farther apart in memory

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
    """What the outputs of a box see of x through one part of the window.

    Attributes
    ----------
    inputs : tuple of slice
        Of its inputs, per spatial axis.
    axes : tuple of Axis
        Of its windows.
    """

    inputs: tuple[slice, ...]
    axes: tuple[Axis, ...]

    @property
    def starts(self) -> Ints:
        """Per spatial axis, the first input."""
        return tuple(part.start for part in self.inputs)

    def of(self, x: Array, block: PooledBlock) -> Array:
        """Return what a block sees of x."""
        return x[(block.images, block.channels, *self.inputs)]


@dataclass(frozen=True, slots=True)
class PooledBlocks:
    """All blocks of the outputs, and the parts of the window that each is pooled through."""

    geometry: PoolGeometry
    windows: list[Offsets]
    blocks: list[PooledBlock]
    few: dict[Box, list[View]] | None  # where there are so few boxes that the time to describe them counts

    def views(self, number: int) -> list[View]:
        """Return what a block sees."""
        box = self.blocks[number].box
        return _seen(self.geometry, self.windows, box) if self.few is None else self.few[box]


def threads(workspace: int) -> int:
    """Return how many threads blocks are cut for: small ones take longer side by side than one after the other."""
    return min(_threads.count(), max(1, workspace // _BYTES_OF_THREAD))


def cut(
    geometry: PoolGeometry, windows: list[Offsets], volume: int, together: int, *, is_copied: bool = True
) -> PooledBlocks:
    """Cut the outputs so that a block sees, and has, about ``volume`` elements through each part of the window.

    No more images than ``together`` make a block. If what it sees is not copied, only what is left of it after the
    first spatial axis counts.
    """
    found = blocks(geometry, volume, together, is_copied=is_copied)
    parts = {block.box for block in found}
    few = {box: _seen(geometry, windows, box) for box in parts} if len(parts) <= _FEW else None
    return PooledBlocks(geometry, windows, found, few)


def blocks(geometry: PoolGeometry, volume: int, together: int, *, is_copied: bool = True) -> list[PooledBlock]:
    """Cut the outputs so that a block has about ``volume`` elements at work."""
    images, channels, *extents = geometry.y_shape
    out = box = tuple(extents)
    at_work = partial(elements, geometry, is_copied=is_copied)
    while at_work(box) > volume and prod(box) > 1:
        box = _smaller(box, at_work)
    planes = max(1, volume // max(1, at_work(box)))
    deep, many = min(channels, planes), max(1, min(together, planes // channels))
    return [
        PooledBlock(slice(*n), slice(*c), part)
        for n, c, part in product(spans(images, many), spans(channels, deep), boxes(out, box))
    ]


def _smaller(box: Ints, at_work: Callable[[Ints], int]) -> Ints:
    """Halve a box along the axis that saves most elements at work: where windows are long, others save none."""
    halves = [(*box[:axis], -(-size // 2), *box[axis + 1 :]) for axis, size in enumerate(box) if size > 1]
    sizes = [at_work(half) for half in halves]
    if min(sizes) == at_work(box):
        return min(halves, key=sum)
    return next(half for half, size in zip(halves, sizes, strict=True) if size <= _NEARLY * min(sizes))


def elements(geometry: PoolGeometry, box: Ints, *, is_copied: bool = True) -> int:
    """Return how many elements of a plane are at work for a box: per axis those seen, or the outputs if these are more.

    If what is seen is not copied, of the first axis only the outputs are.
    """
    axes = zip(box, geometry.strides, geometry.offsets, geometry.x_shape[2:], strict=True)
    sizes = [max(q, min(n, (q - 1) * s + o[-1] - o[0] + 1)) for q, s, o, n in axes]
    return prod(sizes) if is_copied else box[0] * prod(sizes[1:])


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


def _seen(geometry: PoolGeometry, windows: list[Offsets], box: Box) -> list[View]:
    """Return what the outputs of a box see through every part of the window."""
    views = []
    for window in windows:
        inputs: list[slice] = []
        axes: list[Axis] = []
        for (a, b), s, o, n in zip(box, geometry.strides, window, geometry.x_shape[2:], strict=True):
            first, last = min(n, max(0, a * s + o[0])), max(0, min(n, (b - 1) * s + o[-1] + 1))
            inputs.append(slice(first, last))
            axes.append(axis_of(2 + len(axes), b - a, max(0, last - first), s, a * s - first, o))
        views.append(View(tuple(inputs), tuple(axes)))
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
