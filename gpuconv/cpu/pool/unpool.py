"""Operators that read MaxPool's Indices, on NumPy arrays: MaxPool's gradient, MaxUnpool, and the check of Indices.

All are scatters, and process blocks of planes whose arrays stay in the L2 cache. Checked Indices only name elements of
their own planes, so blocks are independent and can be shared among threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpuconv.cpu import _threads
from gpuconv.cpu._threads import quietly
from gpuconv.cpu._workspace import SCRATCH, Array, Box, boxes, last_axes, limit, shrink, spans
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints, MaxPoolGeometry
from gpuconv.rules.gradients import MaxUnpoolGeometry
from gpuconv.rules.indices import IndexWindows

_PASSES = 4  # over Indices: their bytes times this decide whether several threads pay
_TOGETHER, _BYTES = 2**16, 64  # Indices per block, and bytes of temporary arrays for each
_ELEMENTS = 2**17  # elements of the planes of a block
_FEW, _FEW_NUMBERS = 256, 4096  # Indices, and allowed values in all, up to which Python's sets are faster than NumPy


# ---------------------------------------------------------------- the check


def first_impossible(indices: Array, windows: IndexWindows) -> Ints | None:
    """Return the position (n, c, q1, …) of the first index, in row-major order, that no forward call can return.

    Such an index names an element outside its window, or no element and is not -1. None if all are possible.
    """
    if indices.size == 0:
        return None
    if indices.size <= _FEW:
        allowed = _allowed(windows)
        if allowed and all(map(frozenset.__contains__, allowed, indices.reshape(-1).tolist())):
            return None
    images, channels, *rest = indices.shape
    spatial, most = tuple(rest), min(_TOGETHER, limit() // _BYTES)
    if indices.size <= most:
        return _first_of_block(indices, tuple((0, extent) for extent in indices.shape), windows)
    found: list[Ints] = []

    def check(block: Box) -> None:
        wrong = _first_of_block(indices, block, windows)
        if wrong is not None:
            found.append(wrong)

    is_shared = _threads.pays(_PASSES * indices.nbytes) and _threads.count() * _BYTES * most <= limit()
    for box in boxes(spatial, shrink(spatial, most)):
        work = [(*some, *box) for some in _planes(images, channels, most // prod(spatial))]
        _threads.run(check, work, side_by_side=is_shared)
    return min(found, default=None)


@lru_cache(maxsize=64)
def _allowed(windows: IndexWindows) -> list[frozenset[int]]:
    """Return the set of allowed values for each index; an empty list if there are too many values in all."""
    if (
        prod(windows.shape) * prod(-(-r // d) for r, d in zip(windows.reach, windows.dilations, strict=True))
        > _FEW_NUMBERS
    ):
        return []
    steps, step = [0] * len(windows.strides), 1
    for axis in windows.fastest_first:
        steps[axis], step = step, step * windows.numbered[2 + axis]
    allowed = []
    for image, channel, *window in product(*map(range, windows.shape)):
        first = 0 if windows.in_planes else (image * windows.shape[1] + channel) * windows.plane
        axes = zip(window, windows.strides, windows.pads, windows.reach, windows.dilations, strict=True)
        coordinates = (range(q * s - pad, q * s - pad + reach, d) for q, s, pad, reach, d in axes)
        along = zip(coordinates, windows.numbered[2:], steps, strict=True)
        numbers = product(*([i * step for i in each if 0 <= i < extent] for each, extent, step in along))
        allowed.append(frozenset([-1, *(first + sum(number) for number in numbers)]))
    return allowed


def _planes(images: int, channels: int, most: int) -> list[Box]:
    """Return blocks of planes as (span of images, span of channels), at most ``most`` planes each but at least one."""
    deep, many = max(1, min(channels, most)), max(1, most // channels)
    return list(product(spans(images, many), spans(channels, deep)))


class _Digit(NamedTuple):
    """Bounds on the coordinate along one axis; an index is a mixed-radix number with one digit per axis.

    Attributes
    ----------
    modulus : int
        The index modulo this has only this digit and the faster-varying ones.
    step : int
        Difference of the indices of adjacent elements along the axis.
    size : unsigned integer, or array of one for each window
        Extent of the in-bounds part of the window along the axis, times ``step``.
    before : unsigned integer, or array of one for each window
        First in-bounds coordinate less the window's start, modulo the dilation.
    dilation : int
    """

    modulus: int
    step: int
    size: Any
    before: Any
    dilation: int


class _Bounds(NamedTuple):
    """Bounds on the Indices of the windows of some planes.

    Attributes
    ----------
    first : array of int64
        The index of each window's first in-bounds element.
    digits : list of _Digit
        Bounds on the digits of the difference between an index and ``first``.
    dtype : dtype
        The narrowest unsigned integer for these differences, after they have passed the first digit's bound.
    """

    first: Array
    digits: list[_Digit]
    dtype: np.dtype[Any]


@lru_cache(maxsize=16)
def _bounds(windows: IndexWindows, planes: int, box: Box) -> _Bounds:
    """Return the bounds on Indices for a box of windows of some planes, slowest-varying axis first.

    Axes along which each window covers all elements are skipped, except the slowest, whose digit bounds the index.
    """
    shape = (planes, *(stop - start for start, stop in box))
    step = plane = windows.plane
    first = np.zeros(shape, np.int64)
    if not windows.in_planes:
        first += (np.arange(planes) * plane).reshape(-1, *(1,) * len(box))
    found: list[tuple[int, int, Array, Array, int]] = []
    for axis in reversed(windows.fastest_first) if plane else ():
        extent, dilation = windows.numbered[2 + axis], windows.dilations[axis]
        modulus, step = step, step // extent
        begin = np.arange(*box[axis]) * windows.strides[axis] - windows.pads[axis]
        nearest = begin.clip(0, extent)
        size = (begin + windows.reach[axis]).clip(nearest, extent) - nearest
        along = (1,) * (1 + axis) + (len(begin),) + (1,) * (len(box) - 1 - axis)
        first += (nearest * step).reshape(along)
        if dilation > 1 or (size < extent).any() or (extent > 1 and not found):
            before = (nearest - begin) % dilation
            found.append((modulus, step, (size * step).reshape(along), before.reshape(along), dilation))
    if not found:
        return _Bounds(first, [_Digit(plane, 1, np.uint64(plane), np.uint64(0), 1)], np.dtype(np.uint64))
    dtype = np.min_scalar_type(max(int(found[0][2].max()), *(int(before.max()) + plane for *_, before, _ in found)))
    digits = [
        _Digit(modulus, step, _of_windows(size, shape, dtype if digit else np.uint64),
               _of_windows(before, shape, dtype), dilation)
        for digit, (modulus, step, size, before, dilation) in enumerate(found)
    ]  # fmt: skip
    return _Bounds(first, digits, dtype)


def _of_windows(values: Array, shape: Ints, dtype: Any) -> Any:
    """Return a value for every window as a flat array, or one number if all are equal."""
    values = values.astype(dtype)
    one = values.reshape(-1)[0]
    return one if (values == one).all() else np.broadcast_to(values, shape).reshape(-1)


def _first_of_block(array: Array, block: Box, windows: IndexWindows) -> Ints | None:
    """Return the position of the first impossible index of a block, or None; several images have all their channels."""
    indices = array[tuple(slice(*span) for span in block)]
    if all(_are_below(*digit) for digit in _digits(indices, block, windows)):
        return None
    possible = _inside(indices, block, windows)
    possible |= indices == -1
    at = np.unravel_index(int(possible.argmin()), possible.shape)
    return None if possible.all() else tuple(start + int(step) for (start, _), step in zip(block, at, strict=True))


def _are_below(values: Array, bounds: Any) -> bool:
    if isinstance(bounds, np.ndarray):
        return bool(np.less(values, bounds, out=SCRATCH.take("below", values.shape, bool)).all())
    return bool(values.max() < bounds)


def _number_of_first(block: Box, windows: IndexWindows) -> int:
    """Return the index of the first element of a block's first plane."""
    return 0 if windows.in_planes else (block[0][0] * windows.shape[1] + block[1][0]) * windows.plane


def _inside(indices: Array, block: Box, windows: IndexWindows) -> Array:
    """Return a mask (N, C, …) of the Indices of a block that name elements of their own windows."""
    inside = np.ones(indices.size, bool)
    for values, bounds in _digits(indices, block, windows):
        inside &= values < bounds
    return inside.reshape(indices.shape)


def _digits(indices: Array, block: Box, windows: IndexWindows) -> Iterator[tuple[Array, Any]]:
    """Yield pairs (values, bounds) of flat arrays: an index lies in its window if all its values are below the bounds.

    The difference between an index and its window's first element is split into digits, one per axis. If a coordinate
    lies before the window, its digit borrows from the next one and becomes so large that it exceeds the bound.
    """
    first, digits, dtype = _bounds(windows, prod(indices.shape[:2]), block[2:])
    numbers = SCRATCH.take("numbers", indices.shape, np.int64)
    np.subtract(indices, first.reshape(indices.shape), out=numbers)
    start = _number_of_first(block, windows)
    if start:
        np.subtract(numbers, start, out=numbers)
    rest: Array = numbers.reshape(-1)
    yield rest.view(np.uint64), digits[0].size
    if len(digits) == 1 and digits[0].dilation == 1:
        return
    narrow, quotient = (SCRATCH.take(name, rest.shape, dtype) for name in ("rests", "quotients"))
    np.copyto(narrow, rest, casting="unsafe")
    for digit in digits:
        if digit is not digits[0]:
            np.floor_divide(narrow, digit.modulus, out=quotient)
            np.multiply(quotient, digit.modulus, out=quotient)
            np.subtract(narrow, quotient, out=narrow)
            yield narrow, digit.size
        if digit.dilation > 1:
            np.floor_divide(narrow, digit.step, out=quotient)
            np.add(quotient, digit.before, out=quotient)
            whole = quotient // digit.dilation
            whole *= digit.dilation
            yield np.subtract(quotient, whole, out=quotient), 1


# ---------------------------------------------------------------- the gradient, and MaxUnpool


@quietly
def max_pool_grad(dy: Array, indices: Array, dx: Array, geometry: MaxPoolGeometry, *, is_checked: bool = False) -> None:
    """Write the gradient of MaxPool into dx (N, C, …): for each element, the sum of dy over the windows that name it.

    Windows are added from the last to the first, so that an element adds them in the order of its taps.
    ``is_checked``: :func:`first_impossible` has returned None.
    """
    accumulator = np.dtype(dtypes.accumulator(dy.dtype))
    _Scatter(dy, indices, dx, geometry.index_windows, accumulator, is_checked, is_sum=True).run()


def max_unpool(x: Array, indices: Array, y: Array, geometry: MaxUnpoolGeometry, *, is_checked: bool = False) -> None:
    """Write MaxUnpool into y: each element of x goes where its index says, the last one wins; zeros elsewhere.

    ``is_checked``: :func:`first_impossible` has returned None. Otherwise an index may name an element of another plane,
    and one that names none is skipped.
    """
    if is_checked and indices.size > _FEW:
        _Scatter(x, indices, y, geometry.index_windows, x.dtype, is_checked, is_sum=False).run()
    else:
        _put_anywhere(x, indices, y, geometry, is_checked=is_checked)


@dataclass(frozen=True, slots=True)
class _Scatter:
    """Scatter values (N, C, Q1, …) to the elements that ``indices`` name, block by block.

    Values are added (``is_sum``, from the last to the first) or assigned (from the first to the last). Those whose
    index is outside its window are skipped.
    """

    values: Array
    indices: Array
    target: Array
    windows: IndexWindows
    accumulator: np.dtype[Any]
    is_checked: bool
    is_sum: bool

    def run(self) -> None:
        """Write the target: zeros, and the scattered values."""
        if 0 in (self.target.size, self.values.size):
            self.target[...] = 0
            return
        images, channels, *rest = self.indices.shape
        spatial, most = tuple(rest), min(_TOGETHER, limit() // _BYTES)
        inner = list(boxes(spatial, shrink(spatial, most)))
        bytes_of_plane = 0 if self._is_direct else self.windows.plane * self.accumulator.itemsize
        bytes_of_plane += min(most, prod(spatial)) * _BYTES
        together = min(most // prod(spatial), _ELEMENTS // self.windows.plane)
        together = max(1, min(together, limit() // (2 * _threads.count() * bytes_of_plane)))
        _threads.run(
            lambda planes: self._fill(planes, inner),
            _planes(images, channels, together),
            side_by_side=_threads.pays(self.target.nbytes + _PASSES * self.indices.nbytes),
            most=max(1, limit() // (together * bytes_of_plane)),
        )

    @property
    def _is_direct(self) -> bool:
        """Whether values can be scattered into the target itself, without a temporary."""
        whole = self.target.shape[2:] == self.windows.numbered[2:] and not self.windows.storage_order
        return whole and self.target.flags.c_contiguous and self.target.dtype == self.accumulator

    def _fill(self, planes: Box, inner: list[Box]) -> None:
        """Write some planes of the target, one box of windows at a time."""
        part, spatial = self.target[tuple(slice(*span) for span in planes)], self.windows.numbered[2:]
        if self._is_direct:
            part.fill(0)
            flat = part if self.windows.in_planes else self.target  # Indices are offsets into it
            self._put(flat.reshape(-1), planes, inner)
            return
        numbered = spatial[::-1] if self.windows.storage_order else spatial
        total = SCRATCH.take("scattered", (*part.shape[:2], *numbered), self.accumulator)
        total.fill(0)
        self._put(total.reshape(-1), planes, inner)
        if part.shape[2:] != spatial:
            part[...] = 0
        turned = total.transpose(0, 1, *range(total.ndim - 1, 1, -1)) if self.windows.storage_order else total
        part[last_axes(map(slice, spatial))] = turned

    def _put(self, flat: Array, planes: Box, inner: list[Box]) -> None:
        """Scatter the values of some planes into ``flat``: these planes, or the whole target."""
        for box in reversed(inner) if self.is_sum else inner:
            block = (*planes, *box)
            at = tuple(slice(*span) for span in block)
            indices, values = self.indices[at], self.values[at].astype(self.accumulator, copy=False)
            is_whole = flat.size == self.target.size and not self.windows.in_planes and self._is_direct
            places = indices if is_whole else _places(indices, block, self.windows)
            if not self.is_checked:
                kept = _inside(indices, block, self.windows)
                places, values = places[kept], values[kept]
            elif indices.min() < 0:
                kept = indices >= 0
                places, values = places[kept], values[kept]
            places, values = places.reshape(-1), values.reshape(-1)
            if self.is_sum:
                np.add.at(flat, places[::-1], values[::-1])
            else:
                flat[places] = values


def _places(indices: Array, block: Box, windows: IndexWindows) -> Array:
    """Return a block's Indices as offsets into its planes, in scratch memory."""
    places = SCRATCH.take("places", indices.shape, np.int64)
    if not windows.in_planes:
        return np.subtract(indices, _number_of_first(block, windows), out=places)
    planes = np.arange(0, prod(indices.shape[:2]) * windows.plane, windows.plane)
    return np.add(indices, planes.reshape(*indices.shape[:2], *(1,) * (indices.ndim - 2)), out=places)


def _put_anywhere(x: Array, indices: Array, y: Array, geometry: MaxUnpoolGeometry, *, is_checked: bool) -> None:
    y[...] = 0
    windows = geometry.index_windows
    flat, values = indices.reshape(-1), x.reshape(-1)
    named = None
    if flat.size and (flat.min() < 0 or not (is_checked or flat.max() < windows.count)):
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
    # Axes of one element need no index array: NumPy allows fewer index arrays than axes.
    numbered = geometry.numbered_shape
    kept = [axis for axis, extent in enumerate(numbered) if extent > 1 or axis == 0]
    places = np.unravel_index(flat, [numbered[axis] for axis in kept])
    y[tuple(slice(None) if axis in kept else 0 for axis in range(y.ndim))][places] = values
