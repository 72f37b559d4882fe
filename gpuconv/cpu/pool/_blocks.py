"""Blocking of pooling: blocks of outputs whose inputs fit the workspace; larger windows are cut into parts."""

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

_FEW = 64  # boxes whose descriptions are cached with the plan
_BYTES_OF_THREAD = 2**20  # least workspace per thread
_NEARLY = 1.25  # an outer axis is cut instead of a better inner one if the block has at most this ratio more elements

Offsets = tuple[range, ...]
PoolGeometry = MaxPoolGeometry | AveragePoolGeometry


@dataclass(frozen=True, slots=True)
class PooledBlock:
    """A block of outputs: images, channels, and a box of the spatial axes."""

    images: slice
    channels: slice
    box: Box

    @property
    def place(self) -> Any:
        """Index of the block in y."""
        return (self.images, self.channels, *(slice(*span) for span in self.box))


@dataclass(frozen=True, slots=True)
class View:
    """The inputs that a box of outputs reduces, through one part of the window.

    Attributes
    ----------
    inputs : tuple of slice
        The inputs, per spatial axis.
    axes : tuple of Axis
        The windows over these inputs, per spatial axis.
    """

    inputs: tuple[slice, ...]
    axes: tuple[Axis, ...]

    @property
    def starts(self) -> Ints:
        """The first input along each spatial axis."""
        return tuple(part.start for part in self.inputs)

    def of(self, x: Array, block: PooledBlock) -> Array:
        """Return the view of x (N, C, …) that a block reduces."""
        return x[(block.images, block.channels, *self.inputs)]


@dataclass(frozen=True, slots=True)
class PooledBlocks:
    """All blocks of the outputs, and the parts of the window that each reduces in turn."""

    geometry: PoolGeometry
    windows: list[Offsets]
    blocks: list[PooledBlock]
    few: dict[Box, list[View]] | None  # the views of each box, cached if there are at most _FEW boxes

    def views(self, number: int) -> list[View]:
        """Return the inputs of a block, one view per part of the window."""
        box = self.blocks[number].box
        return _seen(self.geometry, self.windows, box) if self.few is None else self.few[box]


def threads(workspace: int) -> int:
    """Return the number of threads to plan for: at most one per MiB of ``workspace``; smaller blocks do not scale."""
    return min(_threads.count(), max(1, workspace // _BYTES_OF_THREAD))


def partition(
    geometry: PoolGeometry, windows: list[Offsets], volume: int, together: int, *, is_copied: bool = True
) -> PooledBlocks:
    """Return blocks with about ``volume`` elements of inputs and results each, for every part of the window.

    A block has at most ``together`` images. If inputs are not copied (``is_copied``), they count only as far as they
    remain after the reduction along the first spatial axis.
    """
    found = blocks(geometry, volume, together, is_copied=is_copied)
    parts = {block.box for block in found}
    few = {box: _seen(geometry, windows, box) for box in parts} if len(parts) <= _FEW else None
    return PooledBlocks(geometry, windows, found, few)


def blocks(geometry: PoolGeometry, volume: int, together: int, *, is_copied: bool = True) -> list[PooledBlock]:
    """Return blocks of outputs with about ``volume`` elements of buffers each; arguments as in :func:`partition`."""
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
    """Halve a box along the axis that saves most elements; with long windows, other axes save none."""
    halves = [(*box[:axis], -(-size // 2), *box[axis + 1 :]) for axis, size in enumerate(box) if size > 1]
    sizes = [at_work(half) for half in halves]
    if min(sizes) == at_work(box):
        return min(halves, key=sum)
    return next(half for half, size in zip(halves, sizes, strict=True) if size <= _NEARLY * min(sizes))


def elements(geometry: PoolGeometry, box: Ints, *, is_copied: bool = True) -> int:
    """Return the elements of buffers per plane for a box: along each axis its inputs, or its outputs if more.

    If inputs are not copied, only the outputs count along the first axis.
    """
    axes = zip(box, geometry.strides, geometry.offsets, geometry.x_shape[2:], strict=True)
    sizes = [max(q, min(n, (q - 1) * s + o[-1] - o[0] + 1)) for q, s, o, n in axes]
    return prod(sizes) if is_copied else box[0] * prod(sizes[1:])


def windows_within(geometry: PoolGeometry, volume: int) -> list[Offsets]:
    """Return the parts of the window in row-major order: one, or several if it has more than ``volume`` inputs."""
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
    """Return the inputs of a box of outputs, one view per part of the window."""
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
    """Return the order of axes for the reduction: channels last if they are innermost in memory, else unchanged."""
    axes = tuple(range(source.ndim))
    steps = [abs(step) for step, size in zip(source.strides[2:], source.shape[2:], strict=True) if size > 1]
    last = source.shape[1] > 1 and abs(source.strides[1]) < min(steps, default=0)
    return (0, *axes[2:], 1) if last else axes


def axis_of(position: int, count: int, extent: int, stride: int, start: int, offsets: range) -> Axis:
    """Describe the windows along one axis of a block, without taps that are out of bounds for every output."""
    shift = (count - 1) * stride
    low, high = tap_range(len(offsets), extent + shift, offsets.step, offsets[0] + start + shift)
    inside = offsets[low : max(high, low + 1)]
    return Axis(position, count, extent, stride, range(inside.start + start, inside.stop + start, inside.step))
