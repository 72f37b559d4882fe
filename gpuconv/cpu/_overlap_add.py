"""Overlap-add (GEMM and col2im): multiply every input by all taps, then add the products to the outputs.

``parts[p, m, t] = sum over c of x[c, p] * w[c, m, t]`` is one GEMM over the inputs, then
``total[m, p * s + offset(t)] += parts[p, m, t]`` is col2im, into an accumulator in the order of y. All taps that fall
into the same stride are added in one NumPy call, so a stride of 1024 takes no more calls than one of 2. Output
channels, taps, input channels and positions are blocked until all buffers fit the workspace. It is chosen for strides
with many phases, for kernels with far more taps than inputs, and if the other algorithms need too much workspace.
Padding is never multiplied, so weights need not be finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, product
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from gpuconv.cpu import _blas, _threads
from gpuconv.cpu._finish import Finish, fill
from gpuconv.cpu._workspace import (
    SCRATCH,
    Array,
    Box,
    Ints,
    Partition,
    Span,
    balance,
    boxes,
    first_axes,
    last_axes,
    limit,
    pieces,
    share_rows,
    shrink,
    spans,
)
from gpuconv.rules.geometry import tap_range

_TILE_BYTES = 16 * 2**20  # of a block's buffers: larger GEMMs are not faster
_WIDE = 256  # positions or channels from which a GEMM is efficient
_DEEP = 64  # input channels (K) below which a block is not cut further along them by preference
_FEW_SUMS, _MANY_SUMS = 2**11, 2**15  # sums per phase: adding the first takes less time than NumPy's call overhead
_FEWER = 4  # ratio of taps to additions of arrays from which fewer additions pay
_RUN = 16  # adjacent taps from which they are the inner loop of an addition


class Term(NamedTuple):
    """Inputs (N, C, p_1, …), weights (G, C/G, M/G, k_1, …), and per spatial axis the output offset of every tap."""

    x: Array
    weights: Array
    offsets: tuple[range, ...]


@dataclass(frozen=True, slots=True)
class OverlapAdd:
    """A problem: y (N, M, …) is the sum of terms. Input ``p`` adds to output ``p * stride + offset`` on each axis."""

    terms: tuple[Term, ...]
    b: Array | None
    y: Array
    finish: Finish
    strides: Ints
    accumulator: str


class Sizes(NamedTuple):
    """The sizes of a problem, from which its blocks are planned.

    Attributes
    ----------
    inputs, kernel : tuple of int
        Extents per spatial axis, of the largest term.
    steps : tuple of int
        Distance of adjacent taps in outputs, per spatial axis.
    outputs : tuple of int
        Outputs of one phase of the stride, per spatial axis.
    strides : tuple of int
    groups, rows, channels : int
        Number of groups; output and input channels of one group.
    in_place : bool
        Whether all weights are contiguous and in the accumulator's type, so that GEMM can read them without a copy.
    """

    inputs: Ints
    kernel: Ints
    steps: Ints
    outputs: Ints
    strides: Ints
    groups: int
    rows: int
    channels: int
    in_place: bool


class Piece(NamedTuple):
    """The size of a block; ``box`` is its number of outputs of one phase along each spatial axis."""

    images: int
    groups: int
    rows: int
    channels: int
    taps: Ints
    box: Ints

    def elements(self, sizes: Sizes) -> dict[str, int]:
        """Return the elements of each buffer of one block, by the buffer's name."""
        axes = zip(sizes.inputs, self.box, self.taps, sizes.steps, sizes.strides, strict=True)
        positions = prod(min(n, u - (1 - k) * step // s) for n, u, k, step, s in axes) * self.images * self.groups
        weights = self.rows * prod(self.taps) * self.channels * self.groups
        copied = not sizes.in_place or (self.rows > 1 and self.taps != sizes.kernel)
        return {
            "total": self.images * self.groups * self.rows * prod(self.box) * prod(sizes.strides),
            "columns": positions * self.channels,
            "parts": positions * self.rows * prod(self.taps),
            "weights": weights if copied else 0,
        }


def sizes_of(problem: OverlapAdd) -> Sizes:
    """Return the sizes of a problem, for :func:`plan`."""
    terms, (groups, channels, rows) = problem.terms, problem.terms[0].weights.shape[:3]
    in_place = all(
        term.weights.flags.c_contiguous and term.weights.flags.aligned and term.weights.dtype == problem.accumulator
        for term in terms
    )
    return Sizes(
        tuple(map(max, zip(*(term.x.shape[2:] for term in terms), strict=True))),
        tuple(map(max, zip(*(term.weights.shape[3:] for term in terms), strict=True))),
        tuple(abs(offsets.step) for offsets in terms[0].offsets),
        tuple(-(-n // s) for n, s in zip(problem.y.shape[2:], problem.strides, strict=True)),
        problem.strides,
        groups,
        rows,
        channels,
        in_place,
    )


def pays(problem: OverlapAdd, partition: Partition) -> bool:
    """Return whether overlap-add is faster than scatter (``_scatter.py``), which adds tap by tap and phase by phase.

    It is with several phases of few outputs each; with a stride so long that adjacent taps make a long inner loop; or
    with far fewer inputs than taps.
    """
    if _saves_steps(problem, partition):
        return True
    phases = prod(problem.strides)
    sums = partition.images * prod(problem.y.shape[1:]) // phases
    if problem.strides[-1] >= _RUN and problem.terms[0].offsets[-1].step == 1:
        return sums < _MANY_SUMS or prod(problem.terms[0].weights.shape[2:]) >= _DEEP
    return phases > 1 and sums < _FEW_SUMS


def _saves_steps(problem: OverlapAdd, partition: Partition) -> bool:
    """Return whether merged additions pay: scatter's time would mostly be the overhead of one call per tap."""
    inputs = problem.terms[0].x.shape[2:]
    kernel = problem.terms[0].weights.shape[3:]
    axes = zip(inputs, problem.terms[0].offsets, problem.strides, strict=True)
    steps = prod(min(n, _runs_of(offsets, s)) for n, offsets, s in axes)
    sums = partition.images * problem.y.shape[1] * prod(inputs)  # per tap
    return prod(kernel) >= _FEWER * steps and (sums < _MANY_SUMS or inputs[-1] < _RUN)


def _runs_of(offsets: range, stride: int) -> int:
    """Return how many strides the taps of an axis span, at most."""
    return min(len(offsets), abs(offsets[-1] - offsets[0]) // stride + 2)


def run(problem: OverlapAdd, partition: Partition) -> bool:
    """Write the result into y; return False if not even one output of each phase fits the workspace."""
    if not problem.terms:  # no tap meets an input
        fill(problem.y, problem.b, problem.finish, problem.accumulator)
        return True
    threads, images = _threads.count(), problem.y.shape[0]
    products = sum(prod(term.x.shape[2:]) * term.weights.size for term in problem.terms)
    of_image = _blas.operations(products, problem.accumulator)
    sizes, cut_for = sizes_of(problem), _blas.parts(of_image, partition)
    budget = partition.share_of(limit()) // np.dtype(problem.accumulator).itemsize
    tile = min(budget, _TILE_BYTES // np.dtype(problem.accumulator).itemsize)
    piece = plan(sizes, partition.images, cut_for, tile)
    if piece is None:
        return False
    thin = prod(sizes.inputs) == 1 or (partition.invariant and piece.box != sizes.outputs)  # a block may have one input
    workers = _blas.workers_for(of_image * images, threads, thin)
    if partition.invariant:  # several images per NumPy call, but a GEMM for each
        together = tile // sum(piece.elements(sizes).values())
        piece = piece._replace(images=max(1, min(-(-images // threads), together)))
    work = product(
        spans(images, piece.images),
        spans(sizes.groups, piece.groups),
        spans(sizes.rows, piece.rows),
        boxes(sizes.outputs, piece.box),
    )
    _blas.run(
        lambda block: _compute(problem, piece, partition.invariant, *block),
        list(work),
        workers,
        partition.at_once(limit()),
    )
    return True


@lru_cache(maxsize=256)
def plan(sizes: Sizes, images: int, threads: int, most: int) -> Piece | None:
    """Return a block size whose buffers have at most ``most`` elements; None if the smallest block has more."""
    piece = Piece(-(-images // threads), sizes.groups, sizes.rows, sizes.channels, sizes.kernel, sizes.outputs)
    while sum((elements := piece.elements(sizes)).values()) > most:
        smaller = _smaller(piece, sizes, elements)
        if smaller is None:
            return None
        piece = smaller
    if piece.images > 1 or piece.groups > 1:
        return piece
    box = balance(piece.box, sizes.outputs, images, threads, _WIDE // 2)
    blocks = images * sizes.groups * pieces(box, sizes.outputs)
    return piece._replace(box=box, rows=share_rows(piece.rows, blocks * -(-sizes.rows // piece.rows), threads))


def _smaller(piece: Piece, sizes: Sizes, elements: dict[str, int]) -> Piece | None:
    """Halve the dimension of the largest buffer whose halving costs least time; None if all are 1."""
    largest = max(elements, key=lambda name: elements[name])
    many = piece.rows * prod(piece.taps) * piece.channels > _DEEP * _WIDE  # weights to convert for each block
    if piece.images > 1 and not (largest == "weights" and many):
        return piece._replace(images=-(-piece.images // 2))
    if piece.groups > 1:
        return piece._replace(groups=-(-piece.groups // 2))
    outputs, positions = prod(piece.box), elements["columns"] // piece.channels
    halves = {
        "channels": piece._replace(channels=-(-piece.channels // 2)),
        "rows": piece._replace(rows=-(-piece.rows // 2)),
        "taps": piece._replace(taps=shrink(piece.taps, prod(piece.taps) // 2)),
        "box": piece._replace(box=shrink(piece.box, outputs // 2)),
    }
    pays = {  # adjacent blocks recompute the halo between them, so a box should be large compared with it
        "channels": piece.channels > _DEEP,
        "rows": piece.rows * prod(piece.taps) > _WIDE,
        "taps": prod(piece.taps) > 1 and (positions > 2 * outputs or piece.rows * prod(piece.taps) > _DEEP),
        "box": outputs > _WIDE or 2 * outputs > positions > _DEEP,
    }
    order = {
        "total": ("rows", "box"),
        "columns": ("channels", "box", "taps"),
        "parts": ("taps", "rows", "box"),
        "weights": ("channels", "rows", "taps"),
    }[largest]
    candidates = [name for name in order if pays[name]] + [*order, *halves]
    return next((halves[name] for name in candidates if halves[name] != piece), None)


def _compute(
    problem: OverlapAdd, piece: Piece, invariant: bool, images: Span, groups: Span, rows: Span, box: Box
) -> None:
    """Compute one block and store it; with ``invariant`` (batch-invariant), each image is a GEMM of its own."""
    counts = [stop - start for start, stop in (images, groups, rows)]
    extents = [stop - start for start, stop in box]
    total = SCRATCH.take(
        "total", (*counts, *(u * s for u, s in zip(extents, problem.strides, strict=True))), problem.accumulator
    )
    total.fill(0)
    for term in problem.terms:
        for taps in boxes(term.weights.shape[3:], piece.taps):
            offsets = tuple(axis[slice(*some)] for axis, some in zip(term.offsets, taps, strict=True))
            inputs = _inputs(term.x.shape[2:], offsets, problem.strides, box)
            if inputs is not None:
                by_inputs = [_takes_inputs(*axis) for axis in zip(offsets, problem.strides, inputs, strict=True)]
                in_runs = offsets[-1].step == 1 and problem.strides[-1] >= _RUN
                for channels in spans(term.weights.shape[1], piece.channels):
                    weights = _weights(term.weights, groups, channels, rows, taps, problem.accumulator)
                    columns = _columns(term, images, groups, channels, inputs, problem.accumulator, invariant)
                    parts = _products(columns, weights, in_runs or by_inputs[-1], invariant)
                    _add(total, parts, offsets, problem.strides, box, inputs, by_inputs)
    store(problem, total, images, groups, rows, box)


def by_phase(total: Array, extents: Ints, strides: Ints) -> Array:
    """Return a view of sums (…, u_1 * s_1, …, u_n * s_n) by phase: (…, s_1, …, s_n, u_1, …, u_n)."""
    outer = total.shape[:3]
    rank = len(strides)
    split = total.reshape(*outer, *(n for pair in zip(extents, strides, strict=True) for n in pair))
    return split.transpose(0, 1, 2, *range(4, 4 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2))


def _inputs(extents: Ints, offsets: tuple[range, ...], strides: Ints, box: Box) -> Box | None:
    """Return the inputs that contribute to a box of outputs through these taps, or None if there are none."""
    found = []
    for n, axis, s, (a, b) in zip(extents, offsets, strides, box, strict=True):
        first, last = sorted((axis[0] // s, axis[-1] // s))
        found.append((max(0, a - last), min(n, b - first)))
    return tuple(found) if all(low < high for low, high in found) else None


def _weights(weights: Array, groups: Span, channels: Span, rows: Span, taps: Box, accumulator: str) -> Array:
    """Return a part of the weights (groups, channels, rows, k_1, …) in the accumulator's type; a view if possible."""
    place = first_axes(slice(*groups), slice(*channels), slice(*rows), tuple(slice(*span) for span in taps))
    part: Array = weights[place]
    if part.dtype != accumulator:
        copied = SCRATCH.take("weights", part.shape, accumulator)
        np.copyto(copied, part)
        part = copied
    return part


def _columns(
    term: Term, images: Span, groups: Span, channels: Span, inputs: Box, accumulator: str, invariant: bool
) -> Array:
    """Return the inputs of a block in the accumulator's type; a view if possible.

    The shape is (groups, channels, images, p_1, …), or (images, groups, channels, p_1, …) with ``invariant``.
    """
    of_group = term.weights.shape[1]
    x = term.x[(slice(*images), slice(groups[0] * of_group, groups[1] * of_group), *(slice(*span) for span in inputs))]
    split = x.reshape(x.shape[0], groups[1] - groups[0], of_group, *x.shape[2:])[:, :, slice(*channels)]
    columns = split if invariant else np.moveaxis(split, 0, 2)
    is_matrix = (invariant or x.shape[0] == 1) and x.shape[3:] == term.x.shape[3:] and term.x.flags.c_contiguous
    if is_matrix and x.dtype == accumulator and x.flags.aligned:
        return columns
    copied = SCRATCH.take("columns", columns.shape, accumulator)
    np.copyto(copied, columns)
    return copied


def _products(columns: Array, weights: Array, taps_last: bool, invariant: bool) -> Array:
    """Return the GEMM's result (images, groups, rows, k_1, …, p_1, …); taps or positions are innermost in memory."""
    (groups, channels, rows, *taps), rank = weights.shape, weights.ndim - 3
    images, positions = columns.shape[0 if invariant else 2], columns.shape[3:]
    columns = columns.reshape(*columns.shape[: 2 + invariant], -1)  # images merged along the positions, or separate
    weights = weights.reshape(groups, channels, rows * prod(taps))
    if taps_last:
        left, right = columns.swapaxes(-2, -1), weights
    else:
        left, right = weights.swapaxes(-2, -1), columns
    parts = SCRATCH.take("parts", (*columns.shape[:-2], left.shape[-2], right.shape[-1]), columns.dtype)
    if channels == 1:
        np.multiply(left, right, out=parts)  # faster than a GEMM with K = 1
    else:
        np.matmul(left, right, out=parts)
    if taps_last:
        shape = *positions, rows, *taps
        split = (
            parts.reshape(images, groups, *shape) if invariant else parts.reshape(groups, images, *shape).swapaxes(0, 1)
        )
        return split.transpose(0, 1, *range(2 + rank, 3 + 2 * rank), *range(2, 2 + rank))
    if invariant:
        return parts.reshape(images, groups, rows, *taps, *positions)
    return np.moveaxis(parts.reshape(groups, rows, *taps, images, *positions), 2 + rank, 0)


def _takes_inputs(offsets: range, stride: int, inputs: Span) -> bool:
    """Return whether an axis has fewer inputs than its taps span strides: then add all taps of one input at once."""
    return inputs[1] - inputs[0] < _runs_of(offsets, stride)


def _add(
    total: Array,
    parts: Array,
    offsets: tuple[range, ...],
    strides: Ints,
    box: Box,
    inputs: Box,
    by_inputs: list[bool],
) -> None:
    """Add products to sums (images, groups, rows, u_1 * s_1, …): the col2im step.

    Along each axis, one addition covers either the taps of one stride for all inputs, or all taps of one input
    (``by_inputs``). Both add the products of an output in the order of the taps, so the bits are the same.
    """
    extents = [stop - start for start, stop in box]
    split = [(1, u * s) if whole else (u, s) for whole, u, s in zip(by_inputs, extents, strides, strict=True)]
    outputs, phases_of = zip(*split, strict=True)
    phased = by_phase(total, outputs, phases_of)
    axes: Any = zip(by_inputs, offsets, strides, box, inputs, strict=True)
    for runs in product(*((_taps_of if whole else _reached)(*axis) for whole, *axis in axes)):
        taps, reads, phases, writes = zip(*runs, strict=True)
        place = phased[(..., *phases, *writes)]
        np.add(place, parts[(..., *taps, *reads)], out=place)


def _taps_of(offsets: range, stride: int, outputs: Span, inputs: Span) -> Iterator[tuple[slice, slice, slice, slice]]:
    """Yield for every input of an axis: its taps, the input, and the outputs that they contribute to.

    Outputs are given as phases of a single stride and counted from the block's first. The inputs are ordered such that
    each output gets its products from its first tap to its last.
    """
    rises, extent = offsets.step > 0, (outputs[1] - outputs[0]) * stride
    upwards = offsets if rises else offsets[::-1]
    for index in reversed(range(*inputs)) if rises else range(*inputs):
        start = (index - outputs[0]) * stride + upwards[0]
        low, high = tap_range(len(offsets), extent, upwards.step, start)
        if low < high:
            count, first = len(offsets), start + low * upwards.step
            last = count - 1 - high if high < count else None
            taps = slice(low, high) if rises else slice(count - 1 - low, last, -1)
            reads = slice(index - inputs[0], index - inputs[0] + 1)
            yield taps, reads, slice(first, first + (high - low - 1) * upwards.step + 1, upwards.step), slice(0, 1)


def _reached(offsets: range, stride: int, outputs: Span, inputs: Span) -> Iterator[tuple[slice, slice, slice, slice]]:
    """Yield for the taps of every stride of an axis: taps, inputs, phases and outputs, relative to the block."""
    for quotient, taps, phases in _runs(offsets, stride):
        low, high = max(inputs[0], outputs[0] - quotient), min(inputs[1], outputs[1] - quotient)
        if low < high:
            start = low + quotient - outputs[0]
            yield taps, slice(low - inputs[0], high - inputs[0]), phases, slice(start, start + high - low)


@lru_cache(maxsize=256)
def _runs(offsets: range, stride: int) -> list[tuple[int, slice, slice]]:
    """Group the taps of an axis by ``offset // stride``; return each quotient with its taps and their phases."""
    runs = []
    for quotient, some in groupby(range(len(offsets)), lambda tap: offsets[tap] // stride):
        taps = list(some)
        first, last = (offsets[tap] % stride for tap in (taps[0], taps[-1]))
        runs.append((quotient, slice(taps[0], taps[-1] + 1), slice(first, last + 1, max(1, offsets.step))))
    return runs


def store(problem: OverlapAdd, total: Array, images: Span, groups: Span, rows: Span, box: Box) -> None:
    """Add the bias to the sums of a block, apply the epilogue, and write those inside y."""
    of_group = problem.terms[0].weights.shape[2]
    channels = slice(groups[0] * of_group + rows[0], (groups[1] - 1) * of_group + rows[1])
    sizes = zip(box, problem.strides, problem.y.shape[2:], strict=True)
    place = (slice(*images), channels, *(slice(a * s, min(b * s, n)) for (a, b), s, n in sizes))
    target, finish = problem.y[place], problem.finish.at(place)
    sums = total.reshape(total.shape[0], -1, *total.shape[3:])[last_axes(slice(n) for n in target.shape[2:])]
    if problem.b is not None:
        sums += problem.b[channels].astype(sums.dtype).reshape(-1, *(1,) * len(box))
    finish.apply(sums)
    target[...] = sums


def remainders(offsets: range, stride: int, extent: int) -> list[tuple[slice, slice, range]]:
    """Return for each remainder of ``offset / stride``: its taps, the inputs they use, and their output offsets."""
    step = stride // gcd(stride, offsets.step)
    found = []
    for first in range(min(step, len(offsets))):
        away, remainder = divmod(offsets[first], stride)
        some = offsets[first::step]
        to = range(-away, -away - len(some) * (some.step // stride), -(some.step // stride))
        if remainder < extent:
            found.append((slice(first, None, step), slice(remainder, None, stride), to))
    return found
