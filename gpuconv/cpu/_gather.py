"""Conv as a matrix product: the inputs of a block of outputs are gathered into a matrix, and BLAS multiplies it.

``y[m, p] = sum over k of w[m, k] * columns[k, p]`` with ``k = (channel, tap)`` and ``p = (image, output position)``.
Blocks stay in cache and within the workspace, and run side by side. A 1x1 kernel needs no gathering: its input is
the matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

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

_TILE_BYTES = 4 * 2**20  # stays in cache, and is worth a turn of the interpreter
_WIDE = 512  # columns from which a product is efficient


class _WeightsNotFinite(Exception):
    """A zero of the padding may have met an infinite or NaN weight."""


def conv(
    x: Array, w: Array, b: Array | None, y: Array, geometry: ConvGeometry, accumulator: str, finish: Finish
) -> bool:
    """Write Conv into y; return False where another way is needed: not enough workspace, or weights not finite."""
    padded = any(geometry.pads_begin) or any(geometry.pads_end)
    converts = w.dtype != accumulator or not w.flags.c_contiguous
    item = np.dtype(accumulator).itemsize
    plan = _plan(geometry, x.dtype == y.dtype == accumulator, converts, item)
    if plan is None or (padded and w.size <= y.size and not _finite(w)):
        return False
    if converts and w.size * item <= limit() // 8:
        w, converts = np.ascontiguousarray(w, accumulator), False
    weights = w.reshape(geometry.group, w.shape[0] // geometry.group, *w.shape[1:])

    def job(groups: Span, rows: Span) -> _Job:
        part = weights[slice(*groups), slice(*rows)].astype(accumulator, copy=False)
        matrix = part.reshape(*part.shape[:2], prod(part.shape[2:]))
        return _Job(x, matrix, b, y, finish, geometry, slice(*groups), rows[0], padded and w.size > y.size)

    parts = list(product(spans(geometry.group, plan.groups), spans(weights.shape[1], plan.rows)))
    work = blocks(x.shape[0], y.shape[2:], plan)
    try:
        for some in [[part] for part in parts] if converts else [parts]:
            items = list(product([job(*part) for part in some], work))
            _blas.run(lambda pair: pair[0].compute(pair[1]), items)
    except _WeightsNotFinite:
        return False
    return True


def _finite(array: Array) -> bool:
    """Tell at the cost of one sum whether all is finite; only if the sum is not, element by element."""
    return bool(np.isfinite(np.sum(array)) or np.isfinite(array).all())


def _plan(geometry: ConvGeometry, plain: bool, converts: bool, item: int) -> Plan | None:
    """Choose the block, or return None where not even one output fits the workspace.

    ``plain`` says that x and y are of the accumulator's type, ``converts`` that weights have to be copied.
    """
    images, group, threads = geometry.x_shape[0], geometry.group, _threads.count()
    rows, depth, out = geometry.w_shape[0] // group, prod(geometry.w_shape[1:]), geometry.y_shape[2:]
    budget = limit() // (2 * threads * item)
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
    return (depth + rows) * prod(box) + channels * prod(_reach(geometry, box))


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

    def compute(self, block: Block) -> None:
        """Compute one block and store it."""
        columns = self._matrix(block)
        target = self._target(block)
        result = target
        if result is None:
            shape = (*self.weights.shape[:2], columns.shape[2])
            result = SCRATCH.take("result", shape, self.weights.dtype)
        np.matmul(self.weights, columns, out=result)
        if self.b is not None:
            result += self.b[self._channels].astype(result.dtype).reshape(*result.shape[:2], 1)
        self._check(result)
        if target is None:
            self._store(result, block)
        elif self.finish:
            place = self._place(block)
            self.finish.at(place).apply(self.y[place])

    @property
    def _channels(self) -> slice:
        """Output channels of this job: whole groups, or part of the rows of one."""
        per_group = self.geometry.w_shape[0] // self.geometry.group
        first = self.groups.start * per_group + self.first_row
        return slice(first, first + self.weights.shape[0] * self.weights.shape[1])

    def _target(self, block: Block) -> Array | None:
        """Return the block's place in y as a matrix, where y can be written in place."""
        y = self.y
        if y.dtype != self.weights.dtype or block.images.stop - block.images.start > 1:
            return None
        if not (y.flags.c_contiguous or (self.weights.shape[1] > 1 and _flattens(y))):  # BLAS makes no rows with gaps
            return None
        flat = y[block.images.start, self._channels].reshape(*self.weights.shape[:2], prod(y.shape[2:]))
        first = flat_index(block.box, y.shape[2:])
        return flat[..., first : first + prod(block.positions)]

    def _store(self, result: Array, block: Block) -> None:
        images = block.images.stop - block.images.start
        values = result.reshape(result.shape[0] * result.shape[1], images, *block.positions).swapaxes(0, 1)
        place = self._place(block)
        self.finish.at(place).apply(values)
        self.y[place] = values

    def _place(self, block: Block) -> tuple[slice, ...]:
        """Return the block's index in y."""
        return (block.images, self._channels, *(slice(*span) for span in block.box))

    def _check(self, result: Array) -> None:
        """Padding meets a weight that is not finite only where the result is not finite either."""
        if self.suspicious and not np.isfinite(np.sum(result)) and not _finite(self.weights):
            raise _WeightsNotFinite

    def _matrix(self, block: Block) -> Array:
        """Return the block's inputs, (groups, depth, positions)."""
        geometry, channels = self.geometry, self.geometry.w_shape[1]
        groups = self.weights.shape[0]
        source = self.x[block.images, self.groups.start * channels : self.groups.stop * channels]
        images = source.shape[0]
        if images == 1 and self.x.dtype == self.weights.dtype and _flattens(self.x) and _pointwise(geometry):
            first = flat_index(block.box, geometry.y_shape[2:])
            flat = source.reshape(groups, channels, prod(geometry.x_shape[2:]))
            return flat[..., first : first + prod(block.positions)]
        # (images, groups * channels, …) -> (groups, channels, images, …)
        source = np.moveaxis(source.reshape(images, groups, channels, *source.shape[2:]), 0, 2)
        shape = (groups, channels, *geometry.kernel_shape, images, *block.positions)
        columns = SCRATCH.take("columns", shape, self.weights.dtype)
        _copy_windows(columns, self._inside(source, block), geometry)
        return columns.reshape(groups, self.weights.shape[2], images * prod(block.positions))

    def _inside(self, source: Array, block: Block) -> Array:
        """Return the inputs that a block sees: a view where none of them is padding, else a copy with zeros."""
        geometry = self.geometry
        starts = [a * s - p for (a, _), s, p in zip(block.box, geometry.strides, geometry.pads_begin, strict=True)]
        reach = _reach(geometry, block.positions)
        sizes = list(zip(starts, reach, source.shape[3:], strict=True))
        if all(a >= 0 and a + r <= n for a, r, n in sizes) and source.dtype == self.weights.dtype:
            inside: Array = source[last_axes(slice(a, a + r) for a, r, _ in sizes)]
            return inside
        padded = SCRATCH.take("padded", (*source.shape[:3], *reach), self.weights.dtype)
        writes = [slice(*tap_range(r, n, 1, a)) for a, r, n in sizes]
        _clear_around(padded, writes)
        if all(part.start < part.stop for part in writes):
            reads = (slice(part.start + a, part.stop + a) for part, a in zip(writes, starts, strict=True))
            padded[last_axes(writes)] = source[last_axes(reads)]
        return padded


def _clear_around(target: Array, inner: list[slice]) -> None:
    """Set the last axes of ``target`` to zero outside of the inner parts."""
    for axis, part in enumerate(inner, target.ndim - len(inner)):
        for border in (slice(0, part.start), slice(part.stop, None)):
            target[(*(slice(None),) * axis, border)] = 0


def _copy_windows(columns: Array, inside: Array, geometry: ConvGeometry) -> None:
    """Copy into (groups, channels, k_1 … k_n, images, q_1 … q_n) what every tap sees of every output."""
    steps, positions = inside.strides[3:], columns.shape[3 + len(geometry.kernel_shape) :]
    # An axis of one element may have a stride or a dilation past any array; where it leads does not matter.
    taps = [
        d * step if k > 1 else 0 for d, k, step in zip(geometry.dilations, geometry.kernel_shape, steps, strict=True)
    ]
    moves = [s * step if q > 1 else 0 for s, q, step in zip(geometry.strides, positions, steps, strict=True)]
    strides = (*inside.strides[:2], *taps, inside.strides[2], *moves)
    np.copyto(columns, as_strided(inside, columns.shape, strides, writeable=False))
