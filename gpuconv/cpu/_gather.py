"""Conv as a matrix product: the inputs of a block of outputs are gathered into a matrix, and BLAS multiplies it.

``y[m, p] = sum over k of w[m, k] * columns[k, p]`` with ``k = (channel, tap)`` and ``p = (image, output position)``.
Blocks stay in cache and within the workspace. A 1x1 kernel needs no gathering: its input is the matrix.

Gathering takes two steps: what every tap of the last axis sees of each row of inputs, zeros of the padding included,
then these rows once more for every tap of the axes before it. The second copies long runs; the first, whose runs are
an output row at most, is left with one axis of the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from gpuconv._geometry import ConvGeometry, tap_range
from gpuconv.cpu import _blas, _threads
from gpuconv.cpu._finish import Finish
from gpuconv.cpu._workspace import (
    SCRATCH,
    Array,
    Block,
    Ints,
    Plan,
    Span,
    balance,
    blocks,
    flat_index,
    last_axes,
    limit,
    pieces,
    share_rows,
    shrink,
    spans,
)

_TILE_BYTES = 2 * 2**20  # stays in cache, and is worth a turn of the interpreter
_FINISHED = 2**16  # results that are finished at a time: a core's cache has them still
_FEW = 8
_WIDE = 512  # columns from which a product is efficient


class _WeightsNotFinite(Exception):
    """A zero of the padding may have met an infinite or NaN weight."""


def conv(
    x: Array, w: Array, b: Array | None, y: Array, geometry: ConvGeometry, accumulator: str, finish: Finish
) -> bool:
    """Write Conv into y; return False where another way is needed: not enough workspace, or weights not finite."""
    converts = w.dtype != accumulator or not w.flags.c_contiguous
    item = np.dtype(accumulator).itemsize
    threads = _threads.count()
    team = _blas.team(2 * w.size * x.shape[0] * prod(y.shape[2:]), threads)
    work = _work(geometry, x.dtype == y.dtype == accumulator, converts, item, 1 if team else threads, limit())
    if work is None or (work.padded and w.size <= y.size and not _finite(w)):
        return False
    if converts and w.size * item <= limit() // 8:
        w, converts = np.ascontiguousarray(w, accumulator), False
    weights = w.reshape(geometry.group, w.shape[0] // geometry.group, *w.shape[1:])

    def job(groups: Span, rows: Span) -> _Job:
        part = weights[slice(*groups), slice(*rows)].astype(accumulator, copy=False)
        matrix = part.reshape(*part.shape[:2], prod(part.shape[2:]))
        return _Job(x, matrix, b, y, finish, geometry, slice(*groups), rows[0], work.padded and w.size > y.size)

    try:
        for some in [[part] for part in work.parts] if converts else [work.parts]:
            items = list(product([job(*part) for part in some], range(len(work.blocks))))
            _blas.run(lambda pair: pair[0].compute(work.piece(pair[1])), items, team)
    except _WeightsNotFinite:
        return False
    return True


def _finite(array: Array) -> bool:
    """Tell at the cost of one sum whether all is finite; only if the sum is not, element by element."""
    return bool(np.isfinite(np.add.reduce(array, axis=None)) or np.isfinite(array).all())


# ---------------------------------------------------------------- what a geometry asks for


@dataclass(frozen=True, slots=True)
class _Axis:
    """One spatial axis of a block's inputs: where the reads of one tap, or of all, go.

    Attributes
    ----------
    size : int
        Places; those in ``inside`` get inputs, the others zeros.
    """

    size: int
    inside: slice
    reads: slice

    @property
    def around(self) -> tuple[slice, ...]:
        """Return the parts with zeros."""
        ends = slice(0, self.inside.start), slice(self.inside.stop, self.size)
        return tuple(part for part in ends if part.start < part.stop)


@dataclass(frozen=True, slots=True)
class _Piece:
    """One block, and how its inputs are gathered.

    Attributes
    ----------
    box : tuple of slice
        Its positions, per spatial axis.
    first, count : int
        Where it starts in an image's positions, and how many positions it has.
    rows : tuple of _Axis
        Per spatial axis but the last, the inputs that any tap sees; of an axis with one tap, those of the outputs.
    seen : slice
        Of the last axis, what any tap sees.
    taps : tuple of _Axis
        Of the last axis, per tap; reads are counted from the first that is seen.
    """

    images: slice
    positions: Ints
    box: tuple[slice, ...]
    first: int
    count: int
    rows: tuple[_Axis, ...]
    seen: slice
    taps: tuple[_Axis, ...]


@dataclass(frozen=True, slots=True)
class _Work:
    """All blocks of all images, and the parts of the weights that each is multiplied with."""

    geometry: ConvGeometry
    parts: list[tuple[Span, Span]]
    blocks: list[Block]
    few: tuple[_Piece, ...]  # where there are so few blocks that the time to describe them counts
    padded: bool

    def piece(self, number: int) -> _Piece:
        """Return the description of a block."""
        return self.few[number] if self.few else _piece(self.geometry, self.blocks[number])


@lru_cache(maxsize=1024)
def _work(geometry: ConvGeometry, plain: bool, converts: bool, item: int, threads: int, bytes_: int) -> _Work | None:
    plan = _plan(geometry, plain, converts, item, threads, bytes_)
    if plan is None:
        return None
    parts = product(spans(geometry.group, plan.groups), spans(geometry.w_shape[0] // geometry.group, plan.rows))
    cut = blocks(geometry.x_shape[0], geometry.y_shape[2:], plan)
    few = tuple(_piece(geometry, block) for block in cut) if len(cut) <= _FEW else ()
    return _Work(geometry, list(parts), cut, few, any(geometry.pads_begin) or any(geometry.pads_end))


def _piece(geometry: ConvGeometry, block: Block) -> _Piece:
    axes = zip(
        block.box,
        block.positions,
        geometry.x_shape[2:],
        geometry.kernel_shape,
        geometry.strides,
        geometry.offsets,
        strict=True,
    )
    *outer, ((a, b), q, n, _, s, offsets) = axes
    seen = min(n, max(0, a * s + offsets[0])), max(0, min(n, (b - 1) * s + offsets[-1] + 1))
    return _Piece(
        block.images,
        block.positions,
        tuple(slice(*span) for span in block.box),
        flat_index(block.box, geometry.y_shape[2:]),
        prod(block.positions),
        tuple(_row_axis(*axis) for axis in outer),
        slice(*seen),
        tuple(_axis(q, max(0, seen[1] - seen[0]), s, a * s + offset - seen[0]) for offset in offsets),
    )


def _row_axis(span: Span, q: int, n: int, k: int, s: int, offsets: range) -> _Axis:
    """Inputs of an axis that a block sees, all of those between too if there are several taps."""
    start = span[0] * s + offsets[0]
    if k == 1:
        return _axis(q, n, s, start)
    return _axis((q - 1) * s + offsets[-1] - offsets[0] + 1, n, 1, start)


def _axis(size: int, extent: int, step: int, start: int) -> _Axis:
    low, high = tap_range(size, extent, step, start)
    first = low * step + start
    reads = slice(first, first + (high - low - 1) * step + 1, step) if low < high else slice(0, 0)
    return _Axis(size, slice(low, high), reads)


def _plan(geometry: ConvGeometry, plain: bool, converts: bool, item: int, threads: int, bytes_: int) -> Plan | None:
    """Choose the block, or return None where not even one output fits the workspace.

    ``plain`` says that x and y are of the accumulator's type, ``converts`` that weights have to be copied.
    """
    images, group = geometry.x_shape[0], geometry.group
    rows, depth, out = geometry.w_shape[0] // group, prod(geometry.w_shape[1:]), geometry.y_shape[2:]
    budget = bytes_ // (2 * threads * item)
    if _elements(geometry, (1,) * len(out), rows) > budget:
        return None
    column = (0 if plain and _pointwise(geometry) else depth) + (0 if plain else rows)
    tile = min(_TILE_BYTES // item, budget)
    share = -(-images * prod(out) // threads)
    box = shrink(out, max(_WIDE, min(tile // max(1, column), share)))
    # Small images: several make one product; of many small groups, several make one call instead.
    together = max(1, min(images, _WIDE // prod(box))) if box == out and group == 1 else 1
    if -(-images // threads) * prod(out) >= _WIDE // 4:  # enough for every thread to have a product of its own
        together = min(together, -(-images // threads))
    if together == group == 1:
        box = balance(box, out, images, threads, _WIDE // 2)
    while _elements(geometry, box, rows) * together > budget:
        box = shrink(out, prod(box) // 2) if together == 1 else box
        together = max(1, together // 2)
    if converts:
        rows = min(rows, max(1, budget // (4 * depth)))
    whole = rows * group == geometry.w_shape[0]
    groups = tile // (_elements(geometry, box, rows) + rows * depth) if whole else 1
    if group == 1:
        rows = share_rows(rows, -(-images // together) * pieces(box, out), threads)
    return Plan(max(1, min(group, groups)), rows, together, box)


def _elements(geometry: ConvGeometry, box: Ints, rows: int) -> int:
    """Elements that one group of one image holds for a block: gathered, results, and what it is gathered from."""
    depth, channels = prod(geometry.w_shape[1:]), geometry.w_shape[1]
    *outer, last = _reach(geometry, box)
    seen = prod(outer) * (last + geometry.kernel_shape[-1] * box[-1])  # converted, then once for every tap
    return (depth + rows) * prod(box) + channels * seen


def _pointwise(geometry: ConvGeometry) -> bool:
    """Tell whether output position and input position are the same thing."""
    return (
        geometry.x_shape[2:] == geometry.y_shape[2:]
        and max(geometry.kernel_shape) == max(geometry.strides) == 1
        and not any(geometry.pads_begin)
    )


def _flattens(array: Array) -> bool:
    """Tell whether BLAS can read and write an image's channels and positions as a matrix: C-contiguous, or NHWC."""
    return array.flags.c_contiguous or np.moveaxis(array, 1, -1).flags.c_contiguous


def _reach(geometry: ConvGeometry, box: Ints) -> Ints:
    """Inputs per spatial axis that a box of outputs sees."""
    axes = zip(box, geometry.strides, geometry.kernel_shape, geometry.dilations, strict=True)
    return tuple((q - 1) * s + (k - 1) * d + 1 for q, s, k, d in axes)


# ---------------------------------------------------------------- the computation


@dataclass(frozen=True, slots=True)
class _Job:
    """One set of weights (groups, rows, depth) over all blocks."""

    x: Array
    weights: Array
    b: Array | None
    y: Array
    finish: Finish
    geometry: ConvGeometry
    groups: slice
    first_row: int
    suspicious: bool

    def compute(self, piece: _Piece) -> None:
        """Compute one block and store it."""
        columns = self._matrix(piece)
        target = self._target(piece)
        result = target
        if result is None:
            shape = (*self.weights.shape[:2], columns.shape[2])
            result = SCRATCH.take("result", shape, self.weights.dtype)
        np.matmul(self.weights, columns, out=result)
        if self.suspicious:
            self._check(result)
        images, channels = piece.images.stop - piece.images.start, result.shape[0] * result.shape[1]
        first = self._channels.start
        for start, stop in spans(channels, _FINISHED // (images * piece.count)):
            place = (piece.images, slice(first + start, first + stop), *piece.box)
            if target is not None:
                self._finish(self.y[place], place)
            else:
                sums = result.reshape(channels, images, *piece.positions)[start:stop].swapaxes(0, 1)
                self._finish(sums, place)
                self.y[place] = sums

    def _finish(self, sums: Array, place: Any) -> None:
        """Add the bias to the sums that a place in y has, and finish them."""
        if self.b is not None:
            sums += self.b[place[1]].astype(sums.dtype, copy=False).reshape(-1, *(1,) * (sums.ndim - 2))
        if self.finish:
            self.finish.at(place).apply(sums)

    @property
    def _channels(self) -> slice:
        """Output channels of this job: whole groups, or part of the rows of one."""
        per_group = self.geometry.w_shape[0] // self.geometry.group
        first = self.groups.start * per_group + self.first_row
        return slice(first, first + self.weights.shape[0] * self.weights.shape[1])

    def _target(self, piece: _Piece) -> Array | None:
        """Return the block's place in y as a matrix, where y can be written in place."""
        y = self.y
        if y.dtype != self.weights.dtype or piece.images.stop - piece.images.start > 1:
            return None
        if not (y.flags.c_contiguous or (self.weights.shape[1] > 1 and _flattens(y))):  # BLAS makes no rows with gaps
            return None
        flat = y[piece.images.start, self._channels].reshape(*self.weights.shape[:2], prod(y.shape[2:]))
        return flat[..., piece.first : piece.first + piece.count]

    def _check(self, result: Array) -> None:
        """Padding meets a weight that is not finite only where the result is not finite either."""
        if not _finite(result) and not _finite(self.weights):
            raise _WeightsNotFinite

    def _matrix(self, piece: _Piece) -> Array:
        """Return the block's inputs, (groups, depth, positions)."""
        geometry, channels = self.geometry, self.geometry.w_shape[1]
        groups, depth = self.weights.shape[0], self.weights.shape[2]
        source = self.x[piece.images, self.groups.start * channels : self.groups.stop * channels]
        images = source.shape[0]
        if images == 1 and self.x.dtype == self.weights.dtype and _pointwise(geometry) and _flattens(self.x):
            flat = source.reshape(groups, channels, prod(geometry.x_shape[2:]))
            return flat[..., piece.first : piece.first + piece.count]
        # (images, groups * channels, …) -> (groups, channels, images, …)
        if images == 1:
            source = source.reshape(groups, channels, 1, *source.shape[2:])
        else:
            source = np.moveaxis(source.reshape(images, groups, channels, *source.shape[2:]), 0, 2)
        rows = self._rows(source, piece)
        kernel = geometry.kernel_shape
        shape = (groups, channels, *kernel, images, *piece.positions)
        if max(kernel[:-1], default=1) == 1:
            columns = rows
        else:
            columns = SCRATCH.take("columns", shape, self.weights.dtype)
            np.copyto(columns, _windows(rows, shape, geometry))
        return columns.reshape(groups, depth, images * piece.count)

    def _rows(self, source: Array, piece: _Piece) -> Array:
        """Return (groups, channels, k_n, images, r_1 … r_(n-1), q_n): what the last axis's taps see of every row."""
        source = source[last_axes((*(axis.reads for axis in piece.rows), piece.seen))]
        if self.x.dtype != self.weights.dtype and len(piece.taps) > 1:  # once, not for every tap
            converted = SCRATCH.take("converted", source.shape, self.weights.dtype)
            np.copyto(converted, source)
            source = converted
        places = (*(axis.size for axis in piece.rows), piece.positions[-1])
        rows = SCRATCH.take("rows", (*source.shape[:2], len(piece.taps), source.shape[2], *places), self.weights.dtype)
        within = tuple(axis.inside for axis in piece.rows)
        for number, axis in enumerate(piece.rows, 4):
            for border in axis.around:
                rows[(*(slice(None),) * number, border)] = 0
        for number, tap in enumerate(piece.taps):
            target = rows[:, :, number][last_axes((*within, slice(None)))]
            for border in tap.around:
                target[..., border] = 0
            target[..., tap.inside] = source[..., tap.reads]
        return rows


def _windows(rows: Array, shape: Ints, geometry: ConvGeometry) -> Array:
    """Return a view (groups, channels, k_1 … k_n, images, q_1 … q_n) of rows for every tap."""
    group, channel, last_tap, image, *outer, one = rows.strides
    taps, moves = [], []
    # An axis of one element may have a stride or a dilation past any array; where it leads does not matter.
    for axis, step in enumerate(outer):
        several = geometry.kernel_shape[axis] > 1
        taps.append(geometry.dilations[axis] * step if several else 0)
        stride = geometry.strides[axis] if several else 1
        moves.append(stride * step if shape[-len(outer) - 1 + axis] > 1 else 0)
    return np.ndarray(shape, rows.dtype, rows, 0, (group, channel, *taps, last_tap, image, *moves, one))
