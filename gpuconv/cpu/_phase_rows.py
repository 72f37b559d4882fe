"""ConvTranspose by implicit sub-pixel convolution: one im2col and GEMM computes all phases of the stride.

Output ``u * s + r`` of phase ``r`` is the sum over taps ``t`` with ``offset(t) % s == r`` of
``w[c, m, t] * x[c, u - offset(t) // s]``. So M of the GEMM enumerates (output channel, phase), and K enumerates (input
channel, stride that the taps span); a phase without a tap for some input gets a zero weight. The results are complete
sums, which are interleaved into y once (depth to space); overlap-add (``_overlap_add.py``) adds once per tap instead.
It is chosen if the predicted time is less: few input channels, or a kernel that spans several strides.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from gpuconv.cpu import _blas, _overlap_add, _threads
from gpuconv.cpu._gather import finite
from gpuconv.cpu._overlap_add import OverlapAdd, Sizes
from gpuconv.cpu._workspace import (
    SCRATCH,
    Array,
    Box,
    Ints,
    Partition,
    Span,
    balance,
    boxes,
    last_axes,
    limit,
    pieces,
    share_rows,
    shrink,
    spans,
)
from gpuconv.rules.geometry import tap_range

_TILE_BYTES = 2 * 2**20  # of a block's buffers: still in a core's cache when the results are interleaved
_WIDE = 256  # positions (N) from which a GEMM is efficient
_OPERATIONS, _ELEMENTS = 5e10, 1e9  # per second: GEMM operations, elements copied or added
_STEP = 5e-6  # seconds of a call of NumPy
_LOOP = 8  # cost of starting an inner loop, in elements copied or added
_MORE_STEPS = 10  # further NumPy calls of the other algorithms: preparing, clearing and storing buffers
_MARGIN = 0.9  # fraction of the other algorithm's predicted time up to which this one is chosen


class Axis(NamedTuple):
    """One spatial axis of the equivalent Conv of stride 1: output ``u`` uses inputs ``u + start + j * step``.

    Attributes
    ----------
    first, phases : int
        The first phase of the stride that has taps, and how many phases are computed.
    reached, step, start : int
        Number of inputs that an output uses (``j`` counts them), their distance, and the first one relative to ``u``.
    before : int
        Zero weights before the first tap, which pad the taps to ``reached * phases``.
    """

    first: int
    phases: int
    reached: int
    step: int
    start: int
    before: int


class Piece(NamedTuple):
    """The size of a block; ``box`` is its number of outputs of one phase along each spatial axis."""

    groups: int
    rows: int
    images: int
    box: Ints


def axis_of(offsets: range, stride: int) -> Axis | None:
    """Describe an axis; None if taps are dilated in a way that is no multiple of the stride."""
    away, first = divmod(offsets[0], stride)
    if offsets.step % stride == 0 or len(offsets) == 1:
        step = max(1, offsets.step // stride)
        return Axis(first, 1, len(offsets), step, -away - (len(offsets) - 1) * step, 0)
    if offsets.step > 1:
        return None
    reached = -(-(first + len(offsets)) // stride)
    if reached == 1:
        return Axis(first, len(offsets), 1, 1, -away, 0)
    return Axis(0, stride, reached, 1, -away - reached + 1, first)


def run(problem: OverlapAdd, partition: Partition, by_strides: bool) -> bool:
    """Write the result of a problem with one term into y; return False if another algorithm is faster or required.

    Another one is required if padding meets weights that are not finite, or a zero weight of a missing tap meets such
    an input. ``by_strides``: the alternative is overlap-add, which adds the taps of a stride in one call; else scatter.
    """
    (term,) = problem.terms
    sizes = _overlap_add.sizes_of(problem)._replace(in_place=True)
    axes = _axes(term.offsets, problem.strides)
    images, threads = problem.y.shape[0], _threads.count()
    if axes is None or not _pays(sizes, axes, partition.images, _steps(sizes, axes, by_strides)):
        return False
    item = np.dtype(problem.accumulator).itemsize
    operations = _blas.operations(_products(sizes, axes), problem.accumulator)
    cut_for = _blas.parts(operations, partition)
    piece = plan(sizes, axes, partition.images, cut_for, partition.share_of(limit()) // item, limit() // (8 * item))
    if piece is None:
        return False
    together = max(1, min(-(-images // threads), piece.images)) if piece.box == sizes.outputs else 1
    if _is_padded(sizes, axes) and not finite(term.weights):
        return False
    if _lacks_taps(sizes, axes) and not finite(term.x):
        return False
    work = list(product(spans(images, together), boxes(sizes.outputs, piece.box)))
    phases = prod(axis.phases for axis in axes)
    thin = prod(sizes.outputs) == 1 or (phases == 1 and (piece.rows == 1 or sizes.rows % piece.rows == 1))
    workers = _blas.workers_for(
        operations * images, threads, thin or (partition.invariant and piece.box != sizes.outputs)
    )
    for groups, rows in product(spans(sizes.groups, piece.groups), spans(sizes.rows, piece.rows)):
        job = _PhaseRows(problem, axes, _matrices(problem, axes, groups, rows), groups, rows, partition.invariant)
        _blas.run(lambda block, job=job: job.compute(*block), work, workers, partition.at_once(limit()))  # type: ignore[misc]
    return True


@lru_cache(maxsize=256)
def _axes(offsets: tuple[range, ...], strides: Ints) -> tuple[Axis, ...] | None:
    found = [axis_of(*axis) for axis in zip(offsets, strides, strict=True)]
    return None if None in found else tuple(axis for axis in found if axis is not None)


def _products(sizes: Sizes, axes: tuple[Axis, ...]) -> int:
    """Return the multiplications per image."""
    reached, phases = prod(axis.reached for axis in axes), prod(axis.phases for axis in axes)
    return sizes.groups * sizes.channels * reached * sizes.rows * phases * prod(sizes.outputs)


def _steps(sizes: Sizes, axes: tuple[Axis, ...], by_strides: bool) -> int:
    """Return the alternative's additions of arrays: one per stride that taps span (``by_strides``), or one per tap."""
    reached = (min(n, axis.reached) for n, axis in zip(sizes.inputs, axes, strict=True))
    return prod(reached) if by_strides else prod(sizes.kernel)


@lru_cache(maxsize=1024)
def _pays(sizes: Sizes, axes: tuple[Axis, ...], images: int, steps: int) -> bool:
    """Return whether this is predicted to beat the alternative: one GEMM with all taps, and ``steps`` additions."""
    reached, phases, taps = prod(axis.reached for axis in axes), prod(axis.phases for axis in axes), prod(sizes.kernel)
    inputs, outputs = prod(sizes.inputs), prod(sizes.outputs)
    channels, rows = sizes.groups * sizes.channels, sizes.groups * sizes.rows
    gathered = outputs * channels * reached if reached > 1 else 0
    moved = outputs * rows * phases if max(sizes.strides) > 1 else 0
    weights = channels * sizes.rows * (taps + 2 * reached * phases)  # once per call, for any number of images
    ours = 2 * _products(sizes, axes) / _OPERATIONS + _seconds(gathered + moved, sizes.outputs[-1])
    run = max(sizes.inputs[-1], min(sizes.kernel[-1], sizes.strides[-1]))
    theirs = 2 * inputs * channels * sizes.rows * taps / _OPERATIONS + _seconds(inputs * rows * taps, run)
    return images * ours + weights / _ELEMENTS < _MARGIN * (images * theirs + _STEP * (steps + _MORE_STEPS))


def _seconds(elements: int, run: int) -> float:
    """Return the seconds to copy or add ``elements`` elements in inner loops of length ``run``."""
    return elements * (1 + _LOOP / run) / _ELEMENTS


def _is_padded(sizes: Sizes, axes: tuple[Axis, ...]) -> bool:
    """Return whether some receptive field extends into the padding."""
    return any(
        axis.start < 0 or u - 1 + axis.start + (axis.reached - 1) * axis.step >= n
        for axis, u, n in zip(axes, sizes.outputs, sizes.inputs, strict=True)
    )


def _lacks_taps(sizes: Sizes, axes: tuple[Axis, ...]) -> bool:
    """Return whether some phase has a zero weight, in place of a missing tap."""
    return any(axis.phases * axis.reached > k for axis, k in zip(axes, sizes.kernel, strict=True))


@lru_cache(maxsize=256)
def plan(sizes: Sizes, axes: tuple[Axis, ...], images: int, threads: int, budget: int, of_weights: int) -> Piece | None:
    """Return a block size with buffers of at most ``budget`` elements; None if blocks would be too narrow to pay.

    The weights of a part, which is some groups and output channels, have at most ``of_weights`` elements.
    """
    reached, phases = prod(axis.reached for axis in axes), prod(axis.phases for axis in axes)
    of_row = 2 * sizes.channels * reached * phases
    rows = min(sizes.rows, of_weights // of_row)
    if rows < min(sizes.rows, 16):
        return None
    groups = max(1, min(sizes.groups, of_weights // (of_row * rows))) if rows == sizes.rows else 1
    tile = min(_TILE_BYTES // 4, budget)
    box = shrink(sizes.outputs, max(_WIDE, tile // (sizes.channels * reached + 2 * rows * prod(sizes.strides))))
    if groups == sizes.groups == 1:
        box = balance(box, sizes.outputs, images, threads, _WIDE // 2)
    while _elements(sizes, axes, rows, box) > budget and prod(box) > 1:
        box = shrink(sizes.outputs, prod(box) // 2)
    elements = _elements(sizes, axes, rows, box)
    if elements > budget or (box != sizes.outputs and prod(box) < min(_WIDE, prod(sizes.outputs)) // 8):
        return None
    groups = min(groups, max(1, max(tile, elements) // elements))
    if groups == sizes.groups == 1:
        rows = share_rows(rows, images * pieces(box, sizes.outputs), threads)
    return Piece(groups, rows, max(1, tile // (elements * groups)), box)


def _elements(sizes: Sizes, axes: tuple[Axis, ...], rows: int, box: Ints) -> int:
    """Return the elements of all buffers of a block of one group of one image."""
    reached, phases = prod(axis.reached for axis in axes), prod(axis.phases for axis in axes)
    seen = prod(u + (axis.reached - 1) * axis.step for u, axis in zip(box, axes, strict=True))
    of_outputs = rows * (phases + prod(sizes.strides)) + sizes.channels * reached
    return sizes.channels * seen + of_outputs * prod(box)


def _matrices(problem: OverlapAdd, axes: tuple[Axis, ...], groups: Span, rows: Span) -> Array:
    """Return the GEMM operand (groups, rows * phases, channels * reached); zero where a phase has no tap."""
    part = problem.terms[0].weights[slice(*groups), :, slice(*rows)]
    taps = part.shape[3:]
    extents = tuple(axis.reached * axis.phases for axis in axes)
    if extents != taps:
        padded = np.zeros((*part.shape[:3], *extents), problem.accumulator)
        padded[last_axes(slice(axis.before, axis.before + k) for axis, k in zip(axes, taps, strict=True))] = part
        part = padded
    split = part.reshape(*part.shape[:3], *(n for axis in axes for n in (axis.reached, axis.phases)))
    rank = len(axes)
    backwards = split[last_axes(part for _ in axes for part in (slice(None, None, -1), slice(None)))]
    reached, phases = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
    matrices = np.ascontiguousarray(backwards.transpose(0, 2, *phases, 1, *reached), problem.accumulator)
    return matrices.reshape(part.shape[0], part.shape[2] * prod(axis.phases for axis in axes), -1)


class _PhaseRows(NamedTuple):
    """The GEMMs of some groups and output channels with all blocks."""

    problem: OverlapAdd
    axes: tuple[Axis, ...]
    matrices: Array
    groups: Span
    rows: Span
    invariant: bool

    def compute(self, images: Span, box: Box) -> None:
        """Compute one block and store it."""
        problem, count = self.problem, images[1] - images[0]
        extents = tuple(stop - start for start, stop in box)
        groups, rows, depth = self.matrices.shape
        merged = not self.invariant and count > 1 and prod(extents) < _WIDE
        columns = self._columns(images, box, extents, merged)
        shape = (groups, rows, count * prod(extents)) if merged else (count, groups, rows, prod(extents))
        products = SCRATCH.take("parts", shape, problem.accumulator)
        if depth == 1:
            np.multiply(self.matrices, columns, out=products)  # faster than a GEMM with K = 1
        else:
            np.matmul(self.matrices, columns, out=products)
        if merged:
            products = np.moveaxis(products.reshape(groups, rows, count, prod(extents)), 2, 0)
        total = self._in_place(products, extents)
        _overlap_add.store(problem, total, images, self.groups, self.rows, box)

    def _columns(self, images: Span, box: Box, extents: Ints, merged: bool) -> Array:
        """Return the im2col matrix (images, groups, channels * reached, positions); if ``merged``, images along N."""
        term, count, groups = self.problem.terms[0], images[1] - images[0], self.matrices.shape[0]
        of_group, dtype = term.weights.shape[1], self.problem.accumulator
        channels = slice(self.groups[0] * of_group, self.groups[1] * of_group)
        seen, inside, reads = self._reads(box)
        source = term.x[(slice(*images), channels, *reads)]
        padded = source
        if source.shape[2:] != seen or source.dtype != dtype:
            padded = SCRATCH.take("padded", (*source.shape[:2], *seen), dtype)
            if source.shape[2:] != seen:
                padded.fill(0)
            padded[last_axes(inside)] = source
        reached = tuple(axis.reached for axis in self.axes)
        image, channel, *steps = padded.strides
        # Along an axis of one input, the step has no effect and may be huge: use 0.
        taps = [step * axis.step if axis.reached > 1 else 0 for step, axis in zip(steps, self.axes, strict=True)]
        view = np.lib.stride_tricks.as_strided(
            padded, (count, groups, of_group, *reached, *extents), (image, channel * of_group, channel, *taps, *steps)
        )
        if merged:
            view = np.moveaxis(view, 0, 2 + len(reached))
        if prod(reached) == 1 and view.flags.c_contiguous:
            columns = view
        else:
            columns = SCRATCH.take("columns", view.shape, dtype)
            np.copyto(columns, view)
        depth = of_group * prod(reached)
        return columns.reshape((groups, depth, -1) if merged else (count, groups, depth, prod(extents)))

    def _reads(self, box: Box) -> tuple[Ints, list[slice], list[slice]]:
        """Return per spatial axis: the extent of the receptive field, its in-bounds part, and the inputs there."""
        seen, inside, reads = [], [], []
        for (a, b), axis, n in zip(box, self.axes, self.problem.terms[0].x.shape[2:], strict=True):
            places, start = b - a + (axis.reached - 1) * axis.step, a + axis.start
            low, high = tap_range(places, n, 1, start)
            high = max(low, high)
            seen.append(places)
            inside.append(slice(low, high))
            reads.append(slice(low + start, high + start) if low < high else slice(0, 0))
        return tuple(seen), inside, reads

    def _in_place(self, products: Array, extents: Ints) -> Array:
        """Interleave results (images, groups, rows * phases, positions) into (images, groups, rows, u_1 * s_1, …)."""
        strides, axes = self.problem.strides, self.axes
        count, groups = products.shape[:2]
        phases = tuple(axis.phases for axis in axes)
        outer = count, groups, self.rows[1] - self.rows[0]
        if prod(strides) == 1:
            return products.reshape(*outer, *extents)
        total = SCRATCH.take("total", (*outer, *(u * s for u, s in zip(extents, strides, strict=True))), products.dtype)
        if phases != strides:
            total.fill(0)
        phased = _overlap_add.by_phase(total, extents, strides)
        made = [slice(axis.first, axis.first + axis.phases) for axis in axes]
        phased[last_axes(made + [slice(None)] * len(axes))] = products.reshape(*outer, *phases, *extents)
        return total
