"""AveragePool and its gradient on NumPy arrays: separable window sums, divided by the number of counted taps.

``_sums`` sums the windows axis by axis, block by block. An average over the whole image is one sum per channel. The
gradient divides dy by the same counts and adds it back axis by axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpuconv.cpu import _threads
from gpuconv.cpu._workspace import SCRATCH, Array, Box, boxes, in_order, last_axes, limit, shrink, spans
from gpuconv.cpu.pool._blocks import PooledBlocks, View, axis_of, elements, order_of_axes, partition, threads
from gpuconv.cpu.pool._sums import sums
from gpuconv.cpu.pool._windows import Axis, is_worth_moving
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import AveragePoolGeometry

_BLOCK_BYTES = 2**20  # of a block's buffers: they stay in a core's cache
_SHARE = 16  # a part of a window takes at most 1/16 of the workspace, for any number of threads: bits stay the same
_TOUCHED = 4  # accumulators per input: its copy, the sums of two axes, and windows at every input
_WINDOWS = 4  # windows that must fit into a block; else inputs are read without a copy


@_threads.quietly
def average_pool(x: Array, y: Array, geometry: AveragePoolGeometry, *, invariant_layout: str | None = None) -> None:
    """Write AveragePool of x (N, C, …) into y (N, C, Q1, …).

    ``invariant_layout`` is the layout ("NCHW" or "NHWC") if the call is batch-invariant: then bits do not
    depend on the strides of x and y. They never depend on other images or on the number of threads.
    """
    if y.size == 0:
        return
    if invariant_layout is None:
        _average_pool(x, y, geometry)
    else:
        in_order(invariant_layout, x, y, lambda x, y, _: _average_pool(x, y, geometry.of_images(x.shape[0])))


def _average_pool(x: Array, y: Array, geometry: AveragePoolGeometry) -> None:
    accumulator = np.dtype(dtypes.accumulator(x.dtype))
    real = _real(accumulator)
    is_single = set(geometry.y_shape[2:]) == {1}
    most = None if is_single else threads(limit())
    volume = _volume_of_parts(accumulator) if most is None else _volume(accumulator, most)
    if x.flags.c_contiguous and accumulator == real and _is_whole(geometry, volume):
        _average_rows(x, y, volume, accumulator)
        return
    work = _work(geometry, volume)

    def compute(number: int) -> None:
        block = work.blocks[number]
        (view,) = work.views(number)
        counts = _counts(geometry, block.box, real)
        for part_of_x, part_of_y in _parts(x, y):
            source = view.of(part_of_x, block)
            total = _sum_of_parts(source, view, volume, real) if is_single else _sums(source, view, volume, real)
            _divide(total, counts, part_of_y[block.place])

    _threads.run(compute, range(len(work.blocks)), side_by_side=_threads.pays(x.nbytes), most=most)


def _is_whole(geometry: AveragePoolGeometry, volume: int) -> bool:
    """Return whether the only window is the whole image without padding, and is summed in one part."""
    extents, windows = geometry.x_shape[2:], geometry.y_shape[2:]
    whole = all(offsets == range(extent) for offsets, extent in zip(geometry.offsets, extents, strict=True))
    counted = all(span == (0, extent) for span, extent in zip(geometry.counted, extents, strict=True))
    return whole and counted and set(windows) <= {1} and prod(extents) <= volume


def _average_rows(x: Array, y: Array, volume: int, accumulator: np.dtype[Any]) -> None:
    """Write averages of whole images, one sum per channel, with the same bits as the blocked algorithm."""
    rows = x.reshape(prod(x.shape[:2]), prod(x.shape[2:]))
    total = np.empty(len(rows), accumulator)
    shared = _threads.pays(x.nbytes)

    def compute(part: tuple[int, int]) -> None:
        source = rows[slice(*part)]
        if source.dtype != accumulator:
            wide = SCRATCH.take("averaged", source.shape, accumulator)
            _widen(source, wide)
            source = wide
        np.add.reduce(source, axis=1, out=total[slice(*part)])

    most = -(-len(rows) // (_threads.count() if shared else 1))
    if x.dtype != accumulator:
        most = max(1, min(most, volume // rows.shape[1]))
    _threads.run(compute, list(spans(len(rows), most)), side_by_side=shared)
    _divide(total.reshape(y.shape), accumulator.type(rows.shape[1]), y)


def _widen(source: Array, wide: Array) -> None:
    """Convert rows to a wider type; float16 by a lookup table, which takes half of NumPy's time."""
    if source.dtype == np.float16 and wide.dtype == np.float32:
        np.take(_of_float16(), source.view(np.uint16), out=wide, mode="clip")
    else:
        np.copyto(wide, source)


@lru_cache(maxsize=1)
def _of_float16() -> Array:
    return np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _volume_of_parts(accumulator: np.dtype[Any]) -> int:
    """Return the inputs per part of a single window's sum. Bits depend on it, so the number of threads must not."""
    return max(1, min(_BLOCK_BYTES, limit() // _SHARE) // (_TOUCHED * accumulator.itemsize))


def _volume(accumulator: np.dtype[Any], most: int) -> int:
    """Return the elements that a block's buffers may have if at most ``most`` threads run."""
    share = limit() // (2 * most)
    return max(1, min(_BLOCK_BYTES, share) // ((_TOUCHED + 1) * accumulator.itemsize))


@lru_cache(maxsize=256)
def _work(geometry: AveragePoolGeometry, volume: int) -> PooledBlocks:
    is_copied = set(geometry.y_shape[2:]) == {1} or not _is_huge(geometry, volume)
    return partition(geometry, [geometry.offsets], volume, geometry.x_shape[0], is_copied=is_copied)


def _is_huge(geometry: AveragePoolGeometry, volume: int) -> bool:
    """Return whether windows are so large that blocks would have few outputs if inputs were copied."""
    return _WINDOWS * elements(geometry, (1,) * len(geometry.kernel_shape)) > volume


@lru_cache(maxsize=32)
def _counts(geometry: AveragePoolGeometry, box: Box, dtype: np.dtype[Any]) -> Any:
    """Return the divisor of each window of a box, or a single number if all are the same."""
    spans_of = zip(_divisors(geometry), box, strict=True)
    counts = reduce(np.multiply.outer, (counts[a:b] for counts, (a, b) in spans_of)).astype(dtype)
    one = counts.reshape(-1)[0]
    return one if (counts == one).all() else counts


@lru_cache(maxsize=256)
def _divisors(geometry: AveragePoolGeometry) -> list[Array]:
    """Return the counted taps of each window along each axis; a window's divisor is their product."""
    axes = zip(geometry.counted, geometry.offsets, geometry.strides, geometry.y_shape[2:], strict=True)
    counts = []
    for (low, high), offsets, stride, windows in axes:
        starts = np.arange(windows) * stride + offsets[0]
        first, last = -((starts - low) // offsets.step), (high - 1 - starts) // offsets.step
        counts.append(np.maximum(0, np.minimum(len(offsets) - 1, last) - np.maximum(0, first) + 1))
    return counts


def _parts(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield real arrays unchanged; for complex ones, yield the real parts, then the imaginary parts."""
    if arrays[0].dtype.kind != "c":
        yield arrays
    else:
        yield tuple(array.real for array in arrays)
        yield tuple(array.imag for array in arrays)


def _sums(source: Array, view: View, volume: int, accumulator: np.dtype[Any], *, is_single: bool = False) -> Array:
    """Return the window sums (N, C, Q1, …, Qn) of a part of x, for any strides."""
    if source.size == 0:
        return np.zeros((*source.shape[:2], *(axis.count for axis in view.axes)), accumulator)
    order, axes = order_of_axes(source), view.axes
    is_moved = order != tuple(range(source.ndim))
    if is_moved:
        axes = tuple(replace(axis, position=order.index(axis.position)) for axis in axes)
        source = source.transpose(order)
    is_copied = source.size <= volume
    if is_copied and (source.dtype != accumulator or not source.flags.c_contiguous):
        wide = SCRATCH.take("averaged", source.shape, accumulator)
        np.copyto(wide, source)
        source = wide
    found = sums(source, axes, accumulator, is_single=is_single, may_move=is_copied)
    return found.transpose(tuple(order.index(axis) for axis in range(found.ndim))) if is_moved else found


def _sum_of_parts(source: Array, view: View, volume: int, accumulator: np.dtype[Any]) -> Array:
    """Return the sum of the only window of each plane, (N, C, 1, …, 1), in parts of at most ``volume`` inputs."""
    total = None
    for place, axes in _within(view.axes, volume):
        part = source[last_axes(place)]
        if part.size == 0:
            continue
        found = _sums(part, View(place, axes), volume, accumulator, is_single=True)
        total = found.copy() if total is None else np.add(total, found, out=total)
    if total is None:
        return np.zeros((*source.shape[:2], *(1 for _ in view.axes)), accumulator)
    return total


def _within(axes: tuple[Axis, ...], volume: int) -> Iterator[tuple[tuple[slice, ...], tuple[Axis, ...]]]:
    """Yield the parts of a window's inputs, of at most ``volume`` each: their slices, and their taps."""
    extents = tuple(axis.extent for axis in axes)
    if prod(extents) <= volume:
        yield tuple(slice(None) for _ in axes), axes
        return
    for box in boxes(extents, shrink(extents, volume)):
        yield (
            tuple(slice(a, b) for a, b in box),
            tuple(
                replace(
                    axis,
                    extent=b - a,
                    offsets=range(axis.offsets.start - a, axis.offsets.stop - a, axis.offsets.step),
                )
                for axis, (a, b) in zip(axes, box, strict=True)
            ),
        )


def _real(accumulator: np.dtype[Any]) -> np.dtype[Any]:
    return np.empty(0, accumulator).real.dtype


def _divide(total: Array, counts: Any, target: Array) -> None:
    if target.dtype == total.dtype:
        np.divide(total, counts, out=target)
    else:
        target[...] = total / counts


# ---------------------------------------------------------------- the gradient


@_threads.quietly
def average_pool_grad(dy: Array, dx: Array, geometry: AveragePoolGeometry) -> None:
    """Write into dx (N, C, …), for each element, the sum of dy / divisor over the windows that contain it."""
    if 0 in (dx.size, dy.size):
        dx[...] = 0
        return
    accumulator = _real(np.dtype(dtypes.accumulator(dy.dtype)))
    counts = reduce(np.multiply.outer, _divisors(geometry)).astype(accumulator)
    steps, order, places = _handing(geometry, _volume_of_parts(accumulator))

    def compute(place: tuple[slice, slice]) -> None:
        for part_of_dy, part_of_dx in _parts(dy, dx):
            part_of_dx[place] = _handed_back(part_of_dy[place].astype(accumulator) / counts, steps).transpose(order)

    _threads.run(compute, places, side_by_side=_threads.pays(dx.nbytes))


class _Step(NamedTuple):
    """The gradient along one axis: the axis, whether to transpose it to the front, slices (inputs, outputs) to add."""

    axis: Axis
    is_moved: bool
    handed: list[tuple[slice, slice]]


@lru_cache(maxsize=256)
def _handing(geometry: AveragePoolGeometry, volume: int) -> tuple[list[_Step], list[int], list[tuple[slice, slice]]]:
    """Return the steps for blocks of about ``volume`` elements, the final order of axes, and all blocks.

    A block is a pair of slices: images and channels.
    """
    images, channels, *extents = geometry.x_shape
    planes = max(1, volume // prod(map(max, extents, geometry.y_shape[2:])))
    together, deep = min(images, max(1, planes // channels)), min(channels, planes)
    blocks = product(spans(images, together), spans(channels, deep))
    shape = (together, deep, *geometry.y_shape[2:])
    order, steps = list(range(len(shape))), []
    columns = zip(geometry.y_shape[2:], geometry.x_shape[2:], geometry.strides, geometry.offsets, strict=True)
    for number, (windows, extent, stride, offsets) in enumerate(columns, 2):
        place = order.index(number)
        axis = axis_of(place, windows, extent, stride, 0, offsets)
        if axis.trivial:
            continue
        is_moved = is_worth_moving(shape, axis)
        if is_moved:
            order, shape = order[place:] + order[:place], shape[place:] + shape[:place]
        here = 0 if is_moved else place
        steps.append(_Step(axis, is_moved, _handed(axis)))
        shape = (*shape[:here], extent, *shape[here + 1 :])
    return (
        steps,
        [order.index(axis) for axis in range(len(order))],
        [(slice(*of_images), slice(*of_channels)) for of_images, of_channels in blocks],
    )


def _handed_back(given: Array, steps: Sequence[_Step]) -> Array:
    """Return the gradient of x: the value ``given`` for each window is added to all its elements, axis by axis."""
    for axis, is_moved, handed in steps:
        place = axis.position
        if is_moved:
            given = np.ascontiguousarray(given.transpose(*range(place, given.ndim), *range(place)))
            place = 0
        total = np.zeros((*given.shape[:place], axis.extent, *given.shape[place + 1 :]), given.dtype)
        before = (slice(None),) * place
        for reads, writes in handed:
            total[(*before, reads)] += given[(*before, writes)]
        given = total
    return given


def _handed(axis: Axis) -> list[tuple[slice, slice]]:
    """Return slices (inputs, outputs) to add: one per tap, or one per window if there are fewer windows than taps.

    Windows go from the last to the first, so that an element adds them in the order of its taps either way.
    """
    if axis.count >= len(axis.offsets):  # also if all windows are out of bounds
        return axis.taps()
    handed = []
    for q in reversed(range(axis.count)):
        low, high = axis.inside(q)
        if low < high:
            taps = axis.offsets[low:high]
            start = q * axis.stride
            handed.append((slice(start + taps.start, start + taps.stop, taps.step), slice(q, q + 1)))
    return handed
