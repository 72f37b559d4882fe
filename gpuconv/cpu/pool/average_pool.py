"""AveragePool and its gradient on NumPy arrays."""

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
from gpuconv.cpu.pool._blocks import PooledBlocks, View, axis_of, cut, elements, order_of_axes, threads
from gpuconv.cpu.pool._sums import sums
from gpuconv.cpu.pool._windows import Axis, is_worth_moving
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import AveragePoolGeometry

_BLOCK_BYTES = 2**20  # that are at work at a time: they stay in a processor's cache
_SHARE = 16  # of the limit, of a part of a window: how sums are cut does not depend on how many threads make them
_TOUCHED = 4  # accumulators at work per input: itself, sums of one axis, of the next, windows that begin at every input
_WINDOWS = 4  # with so many inputs would have to fit into a block, or inputs are read where they are


@_threads.quietly
def average_pool(x: Array, y: Array, geometry: AveragePoolGeometry, *, alone: str | None = None) -> None:
    """Write the averages of x's windows into y.

    With ``alone``, the layout, an image's sums do not depend on how x and y lie in memory. They never depend on other
    images or on the number of threads.
    """
    if y.size == 0:
        return
    if alone is None:
        _average_pool(x, y, geometry)
    else:
        in_order(alone, x, y, lambda x, y, _: _average_pool(x, y, geometry.of_images(x.shape[0])))


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
    """Tell whether there is one window of all inputs, which is not summed in parts."""
    extents, windows = geometry.x_shape[2:], geometry.y_shape[2:]
    whole = all(offsets == range(extent) for offsets, extent in zip(geometry.offsets, extents, strict=True))
    counted = all(span == (0, extent) for span, extent in zip(geometry.counted, extents, strict=True))
    return whole and counted and set(windows) <= {1} and prod(extents) <= volume


def _average_rows(x: Array, y: Array, volume: int, accumulator: np.dtype[Any]) -> None:
    """Write averages of whole images, each summed as blocks of them would be."""
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
    """Copy rows into a wider type; float16 by a table, which takes half of NumPy's time."""
    if source.dtype == np.float16 and wide.dtype == np.float32:
        np.take(_of_float16(), source.view(np.uint16), out=wide, mode="clip")
    else:
        np.copyto(wide, source)


@lru_cache(maxsize=1)
def _of_float16() -> Array:
    return np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _volume_of_parts(accumulator: np.dtype[Any]) -> int:
    """Return how many inputs make a part of a single window's sum: bits must not depend on the threads."""
    return max(1, min(_BLOCK_BYTES, limit() // _SHARE) // (_TOUCHED * accumulator.itemsize))


def _volume(accumulator: np.dtype[Any], most: int) -> int:
    """Return how many elements a block may have at work, where at most so many threads are."""
    share = limit() // (2 * most)
    return max(1, min(_BLOCK_BYTES, share) // ((_TOUCHED + 1) * accumulator.itemsize))


@lru_cache(maxsize=256)
def _work(geometry: AveragePoolGeometry, volume: int) -> PooledBlocks:
    is_copied = set(geometry.y_shape[2:]) == {1} or not _is_huge(geometry, volume)
    return cut(geometry, [geometry.offsets], volume, geometry.x_shape[0], is_copied=is_copied)


def _is_huge(geometry: AveragePoolGeometry, volume: int) -> bool:
    """Tell whether a window sees so many inputs that blocks would have few outputs each, were these copied."""
    return _WINDOWS * elements(geometry, (1,) * len(geometry.kernel_shape)) > volume


@lru_cache(maxsize=32)
def _counts(geometry: AveragePoolGeometry, box: Box, dtype: np.dtype[Any]) -> Any:
    """Return how many taps of each window of a box count, or the number where it is the same for all."""
    spans_of = zip(_divisors(geometry), box, strict=True)
    counts = reduce(np.multiply.outer, (counts[a:b] for counts, (a, b) in spans_of)).astype(dtype)
    one = counts.reshape(-1)[0]
    return one if (counts == one).all() else counts


@lru_cache(maxsize=256)
def _divisors(geometry: AveragePoolGeometry) -> list[Array]:
    """Return how many taps of each window count, along each axis; their product counts in all."""
    axes = zip(geometry.counted, geometry.offsets, geometry.strides, geometry.y_shape[2:], strict=True)
    counts = []
    for (low, high), offsets, stride, windows in axes:
        starts = np.arange(windows) * stride + offsets[0]
        first, last = -((starts - low) // offsets.step), (high - 1 - starts) // offsets.step
        counts.append(np.maximum(0, np.minimum(len(offsets) - 1, last) - np.maximum(0, first) + 1))
    return counts


def _parts(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield real arrays as they are, and of complex ones the real parts, then the imaginary ones."""
    if arrays[0].dtype.kind != "c":
        yield arrays
    else:
        yield tuple(array.real for array in arrays)
        yield tuple(array.imag for array in arrays)


def _sums(source: Array, view: View, volume: int, accumulator: np.dtype[Any], *, is_single: bool = False) -> Array:
    """Return the sums of windows over a part of x (N, C, Q1, …, Qn), whatever its order in memory."""
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
    """Return the sum of a window over each plane (N, C, 1, …, 1), part after part if it sees too many inputs."""
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
    """Cut what a window sees into parts of its inputs: where each is, and its taps."""
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
    """Write into dx, of every element, the sum of dy over its windows, each divided by how many of its taps count."""
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
    """How outputs are handed back along an axis: where it is, whether it is moved to the front, what goes where."""

    axis: Axis
    is_moved: bool
    handed: list[tuple[slice, slice]]


@lru_cache(maxsize=256)
def _handing(geometry: AveragePoolGeometry, volume: int) -> tuple[list[_Step], list[int], list[tuple[slice, slice]]]:
    """Return the steps for a block of about ``volume`` elements, how to order axes then, and all blocks.

    Blocks are given as their images and channels.
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
    """Return what elements of x get from their windows, axis by axis, where each gives so much to all of its own."""
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
    """Return which inputs get which outputs, tap by tap; of fewer windows than taps all of a window at once.

    Windows are taken from the last to the first: an element adds them up in the order of its taps either way.
    """
    if axis.count >= len(axis.offsets):  # without any taps, all windows miss x
        return axis.taps()
    handed = []
    for q in reversed(range(axis.count)):
        low, high = axis.inside(q)
        if low < high:
            taps = axis.offsets[low:high]
            start = q * axis.stride
            handed.append((slice(start + taps.start, start + taps.stop, taps.step), slice(q, q + 1)))
    return handed
