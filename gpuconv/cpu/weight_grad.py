"""Weight and bias gradients of Conv (wgrad) on NumPy arrays, by im2col and GEMM.

``dw[m, c, t] = sum over images n and outputs q of dy[n, m, q] * x[n, c, q * s + offset(t)]``, over in-bounds inputs.
The default is one GEMM of dy with the im2col matrix of x, for all taps that fit a block. With few filters, the im2col
matrix of dy is smaller and is used instead. If inputs and outputs are few compared with taps, overlap-add is chosen.
Each tap is a GEMM of its own if padding would meet a dy that is not finite, or would fill most of the im2col matrix.
A sum runs over images and output blocks in row-major order, so its bits do not depend on the threads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import isqrt, prod
from typing import Any, NamedTuple

import numpy as np

from gpuconv.cpu import _blas, _overlap_add, _scatter, _threads
from gpuconv.cpu._crop import crop
from gpuconv.cpu._finish import PLAIN
from gpuconv.cpu._gather import finite
from gpuconv.cpu._overlap_add import remainders
from gpuconv.cpu._workspace import (
    MOST_AXES,
    SCRATCH,
    Array,
    Box,
    Partition,
    Span,
    boxes,
    first_axes,
    last_axes,
    limit,
    share_rows,
    shrink,
    spans,
)
from gpuconv.cpu.conv import as_overlap_add
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import ConvGeometry, Ints, tap_range

_TILE_ELEMENTS = 2**20  # of a block: fits the cache, amortises the interpreter
_WIDE = 64  # outputs (K of this GEMM) from which it is efficient
_DEEP, _MANY = 8, 4  # least channels of a job; jobs per thread from which imbalance does not matter
_COPY = 64  # GEMM operations in the time of copying an element of the im2col matrix
_MOST_PHASES = 16  # of the strides, each of which is a problem of stride 1
_WORTH_A_PHASE = 50_000  # elements of the im2col matrix that amortise the calls of one phase
_FEW_PAIRS = 2  # (input, output) pairs per tap up to which most taps have few valid pairs, or none
_SPARSE = 8  # most staged inputs and zeros for each element of the im2col matrix


@_threads.quietly
def weight_grad(x: Array, dy: Array, dw: Array, geometry: ConvGeometry) -> None:
    """Write the weight gradient of Conv, from x (N, C, …) and dy (N, M, …), into dw (M, C/group, k_1 … k_n)."""
    if 0 in (x.size, dy.size, dw.size):
        dw[...] = 0
        return
    accumulator = dtypes.accumulator(dy.dtype)
    of_taps, cropped = crop(dw, geometry)
    if of_taps is not dw:
        dw[...] = 0
        if of_taps.size == 0:
            return
    for part in _phases(x, of_taps, cropped):
        _weight_grad(*part, dy, accumulator)


def _weight_grad(x: Array, dw: Array, geometry: ConvGeometry, dy: Array, accumulator: str) -> None:
    """Write the gradient, with the im2col matrix of x or of dy, whichever is cheaper."""
    has_room = geometry.group == 1 or dw.nbytes <= limit() // 8  # with groups, the result needs a transposed copy
    if not (has_room and _gathers_less_of_dy(geometry)):
        _by_either(x, dy, dw, geometry, accumulator)
        return
    exchanged, group = _exchanged(geometry), geometry.group
    reverse = last_axes([slice(None, None, -1)] * (dw.ndim - 2))
    if group == 1:
        _by_either(dy, x, dw.swapaxes(0, 1)[reverse], exchanged, accumulator)
        return
    found = np.empty(exchanged.w_shape, dw.dtype)
    _by_either(dy, x, found, exchanged, accumulator)
    split = found.reshape(group, -1, *found.shape[1:]).swapaxes(1, 2)
    dw.reshape(group, -1, *dw.shape[1:])[...] = split[reverse]  # reshape gives a view: it splits one axis


def _by_either(x: Array, dy: Array, dw: Array, geometry: ConvGeometry, accumulator: str) -> None:
    done = _by_windows(x, dy, dw, geometry, accumulator) or _by_inputs(x, dy, dw, geometry, accumulator)
    if not done:
        _by_taps(x, dy, dw, geometry, accumulator)


def _by_inputs(x: Array, dy: Array, dw: Array, geometry: ConvGeometry, accumulator: str) -> bool:
    """Compute the gradient by overlap-add, if (input, output) pairs are few compared with taps; else return False.

    dw (C, M, …) is the Conv of x (C, N, …) with dy (M, N, …) as weights, with strides and dilations exchanged.
    """
    pairs = prod(geometry.x_shape[2:]) * prod(geometry.y_shape[2:])
    if geometry.group > 1 or pairs > _FEW_PAIRS * prod(geometry.kernel_shape):
        return False
    if not _scatter.serves(len(geometry.kernel_shape)):
        return False
    x, dy, y = x.swapaxes(0, 1), dy.swapaxes(0, 1), dw.swapaxes(0, 1)
    shapes: dict[str, Any] = {"x_shape": x.shape, "y_shape": y.shape, "w_shape": dy.shape}
    of_conv = replace(
        geometry, **shapes, kernel_shape=dy.shape[2:], strides=geometry.dilations, dilations=geometry.strides
    )
    problem = as_overlap_add(x, dy, None, y, of_conv, accumulator, PLAIN)
    return _overlap_add.run(problem, Partition(x.shape[0], _threads.count()))


def _phases(x: Array, dw: Array, geometry: ConvGeometry) -> list[tuple[Array, Array, ConvGeometry]]:
    """Split a problem by phase of the strides, if im2col of dy is cheaper then: a list of (x, dw, geometry).

    Taps with one remainder of ``offset / stride`` only use every stride-th input: each phase is a problem of stride 1.
    """
    parts = _split(geometry)
    if parts is None:
        return [(x, dw, geometry)]
    return [(x[inputs], dw[taps], part) for inputs, taps, part in parts]


@lru_cache(maxsize=256)
def _split(geometry: ConvGeometry) -> list[tuple[Any, Any, ConvGeometry]] | None:
    axes = [remainders(*axis) for axis in zip(geometry.offsets, geometry.strides, geometry.x_shape[2:], strict=True)]
    phases = prod(map(len, axes))
    copied = geometry.x_shape[0] * prod(geometry.w_shape[1:]) * prod(geometry.y_shape[2:])
    if max(geometry.strides) == 1 or phases > _MOST_PHASES or copied < phases * _WORTH_A_PHASE:
        return None
    parts = []
    for of_axes in product(*axes):
        taps, inputs, offsets = zip(*of_axes, strict=True)
        kernel = tuple(map(len, offsets))
        extents = [len(range(n)[some]) for n, some in zip(geometry.x_shape[2:], inputs, strict=True)]
        parts.append(
            (
                last_axes(inputs),
                last_axes(taps),
                ConvGeometry(
                    (*geometry.x_shape[:2], *extents),
                    geometry.y_shape,
                    kernel,
                    (1,) * len(kernel),
                    tuple(-some.step for some in offsets),
                    tuple(some[0] for some in offsets),
                    tuple(some[0] for some in offsets),
                    (*geometry.w_shape[:2], *kernel),
                    geometry.group,
                ),
            )
        )
    covered = sum(prod(part.kernel_shape) for *_, part in parts)
    if covered < prod(geometry.kernel_shape) or not all(_gathers_less_of_dy(part) for *_, part in parts):
        return None
    return parts


@lru_cache(maxsize=256)
def _gathers_less_of_dy(geometry: ConvGeometry) -> bool:
    """Return whether im2col of dy is cheaper than im2col of x: stride 1, and few filters compared with channels.

    Compares copies (each as expensive as 64 operations) and GEMM operations, which grow with the extents of x.
    """
    if max(geometry.strides) > 1:
        return False
    rows, channels = geometry.w_shape[0] // geometry.group, geometry.w_shape[1]
    of_x, of_y = prod(geometry.x_shape[2:]), prod(geometry.y_shape[2:])
    products = 2 * rows * channels
    return of_x * (products + _COPY * rows) < of_y * (products + _COPY * channels) * 2 // 3


def _exchanged(geometry: ConvGeometry) -> ConvGeometry:
    """Return the geometry with x and dy exchanged: input ``p`` meets output ``p - offset(t)``.

    Its dw has the channels and filters of each group exchanged, and the taps reversed.
    """
    axes = zip(geometry.kernel_shape, geometry.dilations, geometry.pads_begin, geometry.pads_end, strict=True)
    pads = [((k - 1) * d - begin, (k - 1) * d - end) for k, d, begin, end in axes]
    begin, end = zip(*pads, strict=True)
    rows, channels, *kernel = geometry.w_shape
    w_shape = (channels * geometry.group, rows // geometry.group, *kernel)
    shapes: dict[str, Any] = {"x_shape": geometry.y_shape, "y_shape": geometry.x_shape, "w_shape": w_shape}
    return replace(geometry, **shapes, pads_begin=begin, pads_end=end)


def _by_taps(x: Array, dy: Array, dw: Array, geometry: ConvGeometry, accumulator: str) -> None:
    rows, columns = geometry.w_shape[0] // geometry.group, geometry.w_shape[1]
    budget = limit() // (2 * _threads.count() * np.dtype(accumulator).itemsize)
    # One quarter of the budget holds the sums and a summand, another quarter the GEMM operands.
    most = max(1, isqrt(budget // 8))
    rows, columns = min(rows, most), min(columns, most)
    room = max(1, min(_TILE_ELEMENTS, budget // 4) // (rows + columns))
    box = shrink(geometry.y_shape[2:], room)
    groups = max(1, min(geometry.group, room // prod(box), budget // (8 * rows * columns)))
    met, threads = geometry.met, _threads.count()
    taps = prod(map(len, met))
    rows = share_rows(rows, taps * -(-geometry.group // groups) * -(-geometry.w_shape[1] // columns), threads)
    if taps < prod(geometry.kernel_shape):
        dw[...] = 0
    parts = [
        _TapPart(x, dy, dw, geometry, accumulator, tap, *some, box)
        for tap in product(*met)
        for some in product(
            list(spans(geometry.group, groups)),
            list(spans(geometry.w_shape[0] // geometry.group, rows)),
            list(spans(geometry.w_shape[1], columns)),
        )
    ]
    operations = _blas.operations(dw.size * dy.shape[0] * prod(dy.shape[2:]), accumulator)
    _blas.run(_TapPart.compute, parts, _blas.workers_for(operations, threads, thin=min(rows, columns) == 1))


@_threads.quietly
def bias_grad(dy: Array, db: Array) -> None:
    """Write the bias gradient into db (M,): the sums of dy (N, M, Q1 … Qn) over all axes but the channels."""
    axes = (0, *range(2, dy.ndim))
    db[...] = np.sum(dy, axis=axes, dtype=dtypes.accumulator(dy.dtype))


@dataclass(frozen=True, slots=True)
class _TapPart:
    """The gradient of one tap, for some groups and some filters and channels of each: one job."""

    x: Array
    dy: Array
    dw: Array
    geometry: ConvGeometry
    accumulator: str
    tap: Ints
    groups: Span
    rows: Span
    channels: Span
    box: Ints

    def compute(self) -> None:
        """Accumulate one GEMM per image and box of outputs, and store the sums."""
        counts = [stop - start for start, stop in (self.groups, self.rows, self.channels)]
        total = np.zeros(counts, self.accumulator)
        g = self.geometry
        axes = zip(self.tap, g.offsets, g.strides, g.x_shape[2:], g.y_shape[2:], strict=True)
        inside = [tap_range(q, n, s, offsets[t]) for t, offsets, s, n, q in axes]
        if all(low < high for low, high in inside):
            sizes = tuple(high - low for low, high in inside)
            for image, box in product(range(g.x_shape[0]), list(boxes(sizes, self.box))):
                place = tuple((low + a, low + b) for (low, _), (a, b) in zip(inside, box, strict=True))
                total += self._products(image, place)
        of_tap = self.dw[first_axes(slice(None), slice(None), self.tap)]
        of_groups = of_tap.reshape(g.group, g.w_shape[0] // g.group, g.w_shape[1])  # a view, as it splits an axis
        of_groups[slice(*self.groups), slice(*self.rows), slice(*self.channels)] = total

    def _products(self, image: int, box: Box) -> Array:
        """Return the GEMM (groups, rows, channels) of one image and a box of outputs; all inputs are in bounds."""
        g = self.geometry
        offsets = [axis[t] for axis, t in zip(g.offsets, self.tap, strict=True)]
        steps = zip(box, g.strides, offsets, strict=True)
        inputs = [slice(a * s + o, (b - 1) * s + o + 1, s) for (a, b), s, o in steps]
        outputs = [slice(*span) for span in box]
        left = self._matrix("outputs", self.dy[image], g.w_shape[0] // g.group, self.rows, outputs)
        right = self._matrix("inputs", self.x[image], g.w_shape[1], self.channels, inputs)
        result: Array = np.matmul(left, right.swapaxes(1, 2))
        return result

    def _matrix(self, name: str, image: Array, per_group: int, some: Span, box: list[slice]) -> Array:
        """Return one image's part as a GEMM operand (groups, channels, positions) in the accumulator's type."""
        groups = image.reshape(self.geometry.group, per_group, *image.shape[1:])  # a view
        part = groups[(slice(*self.groups), slice(*some), *box)]
        matrix = SCRATCH.take(name, part.shape, self.accumulator)
        np.copyto(matrix, part)
        return matrix.reshape(*part.shape[:2], prod(part.shape[2:]))


# ---------------------------------------------------------------- im2col


class Piece(NamedTuple):
    """Block sizes: the part of dw that one job accumulates, and the images and outputs (K) of each of its GEMMs."""

    groups: int
    rows: int
    channels: int
    taps: Ints
    images: int
    box: Ints


def _by_windows(x: Array, dy: Array, dw: Array, geometry: ConvGeometry, accumulator: str) -> bool:
    """Write the gradient by im2col of several taps; return False if another algorithm is faster or required."""
    taps, met = prod(geometry.kernel_shape), prod(map(len, geometry.met))
    together = geometry.x_shape[0] > 1 and prod(geometry.y_shape[2:]) < _WIDE  # several images per GEMM
    if (taps == 1 and not together) or 2 * met < taps or 2 * len(geometry.kernel_shape) + 3 > MOST_AXES:
        return False
    operations = _blas.operations(dw.size * dy.shape[0] * prod(dy.shape[2:]), accumulator)
    workers = _blas.workers_for(operations, _threads.count())
    parts = _threads.count() if workers is _blas.Workers.POOL else 1
    piece = plan(geometry, parts, limit() // (2 * _threads.count() * np.dtype(accumulator).itemsize))
    if piece is None or not (_is_inside(geometry) or finite(dy)):
        return False
    sums = [
        _Windows(x, dy, dw, geometry, accumulator, piece, *some)
        for some in product(
            boxes(geometry.kernel_shape, piece.taps),
            spans(geometry.group, piece.groups),
            spans(geometry.w_shape[0] // geometry.group, piece.rows),
            spans(geometry.w_shape[1], piece.channels),
        )
    ]
    _blas.run(_Windows.compute, sums, workers)
    return True


def _is_inside(geometry: ConvGeometry) -> bool:
    """Return whether all receptive fields are in bounds."""
    axes = zip(geometry.offsets, geometry.y_shape[2:], geometry.strides, geometry.x_shape[2:], strict=True)
    return all(offsets[0] >= 0 and (q - 1) * s + offsets[-1] < n for offsets, q, s, n in axes)


@lru_cache(maxsize=256)
def plan(geometry: ConvGeometry, threads: int, budget: int) -> Piece | None:
    """Return block sizes whose buffers have at most ``budget`` elements per thread; None if they hold mostly padding.

    Half of the budget is for the im2col matrix, the staged inputs and dy; a quarter for the sums and the GEMM's result.
    """
    group, rows, channels = geometry.group, geometry.w_shape[0] // geometry.group, geometry.w_shape[1]
    images, *_ = geometry.x_shape
    out, taps = geometry.y_shape[2:], geometry.kernel_shape
    tile = max(1, min(_TILE_ELEMENTS, budget // 4))
    wide = min(_WIDE, images * prod(out))
    while channels * prod(taps) * wide > tile or rows * channels * prod(taps) > budget // 8:
        if prod(taps) > 1:
            taps = shrink(taps, prod(taps) // 2)
        elif channels > rows:
            channels = -(-channels // 2)
        elif rows > 1 and rows * channels > budget // 8:
            rows = -(-rows // 2)
        elif channels > 1:
            channels = -(-channels // 2)
        else:
            break
    jobs = _jobs(geometry, rows, channels, taps) * group
    if jobs % threads and jobs < _MANY * threads and channels >= threads * _DEEP:  # balance the threads
        channels = -(-channels // threads)
    while _jobs(geometry, rows, channels, taps) * group < threads and prod(taps) > 1:
        taps = shrink(taps, prod(taps) // 2)
    column = channels * prod(taps) + rows
    box = shrink(out, max(1, tile // column))
    while channels * _seen(geometry, taps, box) > tile and prod(box) > 1:
        box = shrink(out, prod(box) // 2)
    seen = channels * _seen(geometry, taps, box)
    if seen > max(tile, _SPARSE * column * prod(box)):
        return None
    elements = max(seen, column * prod(box))
    together = max(1, min(images, tile // elements)) if box == out else 1
    groups = max(1, min(group // min(group, threads), tile // (elements * together), budget // (8 * rows * column)))
    return Piece(groups, rows, channels, taps, together, box)


def _jobs(geometry: ConvGeometry, rows: int, channels: int, taps: Ints) -> int:
    """Return the number of jobs per group."""
    of_taps = prod(-(-k // part) for k, part in zip(geometry.kernel_shape, taps, strict=True))
    return of_taps * -(-(geometry.w_shape[0] // geometry.group) // rows) * -(-geometry.w_shape[1] // channels)


def _seen(geometry: ConvGeometry, taps: Ints, box: Ints) -> int:
    """Return the size of the receptive field of a box of outputs through these taps, for one channel, with padding."""
    axes = zip(taps, box, geometry.strides, geometry.dilations, strict=True)
    return prod(q if k == 1 else (q - 1) * s + (k - 1) * d + 1 for k, q, s, d in axes)


@dataclass(frozen=True, slots=True)
class _Windows:
    """The gradient of some taps, groups, filters (``rows``) and channels: one job."""

    x: Array
    dy: Array
    dw: Array
    geometry: ConvGeometry
    accumulator: str
    piece: Piece
    taps: Box
    groups: Span
    rows: Span
    channels: Span

    def compute(self) -> None:
        """Accumulate one GEMM per block of images and outputs, and store the sums."""
        g = self.geometry
        groups, rows, channels = (stop - start for start, stop in (self.groups, self.rows, self.channels))
        kernel = tuple(stop - start for start, stop in self.taps)
        total = np.zeros((groups, rows, channels * prod(kernel)), self.accumulator)
        every = product(spans(g.x_shape[0], self.piece.images), boxes(g.y_shape[2:], self.piece.box))
        for images, box in every:
            left = self._outputs(images, box)
            right = self._gathered(images, box, kernel)
            total += np.matmul(left, right.swapaxes(1, 2))
        of_groups = self.dw.reshape(g.group, g.w_shape[0] // g.group, *self.dw.shape[1:])  # a view
        place = first_axes(
            slice(*self.groups), slice(*self.rows), slice(*self.channels), tuple(slice(*span) for span in self.taps)
        )
        of_groups[place] = total.reshape(groups, rows, channels, *kernel)

    def _outputs(self, images: Span, box: Box) -> Array:
        """Return dy as (groups, rows, images * positions) in the accumulator's type."""
        part = self._part(self.dy, images, self.rows, [slice(*span) for span in box])
        matrix = SCRATCH.take("outputs", part.shape, self.accumulator)
        np.copyto(matrix, part)
        return matrix.reshape(*part.shape[:2], -1)

    def _part(self, array: Array, images: Span, some: Span, spatial: list[slice]) -> Array:
        """Return a view (groups, rows or channels, images, …) of x or dy."""
        group = self.geometry.group
        split = array.reshape(len(array), group, array.shape[1] // group, *array.shape[2:])
        return np.moveaxis(split[(slice(*images), slice(*self.groups), slice(*some), *spatial)], 0, 2)

    def _gathered(self, images: Span, box: Box, kernel: Ints) -> Array:
        """Return the im2col matrix of x, (groups, channels * taps, images * positions)."""
        g, positions = self.geometry, tuple(stop - start for start, stop in box)
        reads, inside, extents = [], [], []
        for (a, b), (t, _), k, offsets, s, n in zip(
            box, self.taps, kernel, g.offsets, g.strides, g.x_shape[2:], strict=True
        ):
            step, start = s if k == 1 else 1, a * s + offsets[t]
            extent = b - a if k == 1 else (b - a - 1) * s + (k - 1) * offsets.step + 1
            low, high = tap_range(extent, n, step, start)
            extents.append(extent)
            inside.append(slice(low, high))
            first = low * step + start
            reads.append(slice(first, first + (high - low - 1) * step + 1, step) if low < high else slice(0, 0))
        source = self._part(self.x, images, self.channels, reads)
        seen = SCRATCH.take("seen", (*source.shape[:3], *extents), self.accumulator)
        if source.shape != seen.shape:
            seen.fill(0)
        np.copyto(seen[last_axes(inside)], source)
        shape = (*source.shape[:2], *kernel, source.shape[2], *positions)
        windows = SCRATCH.take("windows", shape, self.accumulator)
        np.copyto(windows, _windows(seen, shape, kernel, g))
        return windows.reshape(shape[0], shape[1] * prod(kernel), -1)


def _windows(seen: Array, shape: Ints, kernel: Ints, geometry: ConvGeometry) -> Array:
    """Return the im2col matrix as a strided view (groups, channels, k_1 …, images, q_1 …) of the staged inputs."""
    group, channel, image, *steps = seen.strides
    axes = list(zip(steps, kernel, shape[-len(kernel) :], geometry.strides, geometry.dilations, strict=True))
    # Along an axis of one element, stride and dilation have no effect and may be huge: use 0 for them.
    taps = [step * d if k > 1 else 0 for step, k, _, _, d in axes]
    moves = [step * (s if k > 1 else 1) if q > 1 else 0 for step, k, q, s, _ in axes]
    return np.ndarray(shape, seen.dtype, seen, 0, (group, channel, *taps, image, *moves))
