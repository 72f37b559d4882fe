"""Scatter: one GEMM of all inputs with all taps, then col2im tap by tap, separately for each phase of the stride.

``parts[m, t, p] = sum over c of w[c, m, t] * x[c, p]``, then ``y[m, p * s + offset(t)] += parts[m, t, p]``. This is the
definition of ConvTranspose, and its default algorithm. A Conv of stride 1 with few output channels is the same with
negated offsets, and adds less than im2col would copy. The outputs ``u * s + phase`` of one phase are accumulated in a
contiguous buffer, and written to y once. Padding is never multiplied, so weights need not be finite. Overlap-add
(``_overlap_add.py``) replaces it for many phases with few outputs each, and if this one exceeds the workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpuconv.cpu import _blas, _threads
from gpuconv.cpu._finish import Finish, fill
from gpuconv.cpu._workspace import (
    MOST_AXES,
    SCRATCH,
    Array,
    Block,
    BlockSize,
    Box,
    Ints,
    Partition,
    Span,
    balance,
    blocks,
    first_axes,
    last_axes,
    limit,
    pieces,
    share_rows,
    shrink,
    spans,
)

_TILE_BYTES = 16 * 2**20  # of a block: beyond a core's cache, to amortise one NumPy call per phase and tap
_WIDE = 256  # columns (N) from which a GEMM is efficient


@dataclass(frozen=True, slots=True)
class ScatterProblem:
    """A problem: weights (G, C/G, M/G, k_1, …), and per spatial axis the stride and the output offset of every tap."""

    x: Array
    weights: Array
    b: Array | None
    y: Array
    finish: Finish
    strides: Ints
    offsets: tuple[Sequence[int], ...]
    accumulator: str


def serves(rank: int) -> bool:
    """Return whether products, with three axes and two per spatial axis, stay within NumPy's 64 axes."""
    return 2 * rank + 3 <= MOST_AXES


def run(problem: ScatterProblem, partition: Partition) -> bool:
    """Write the result into y; return False if the workspace is too small for this algorithm."""
    threads = _threads.count()
    positions = prod(problem.x.shape[2:])
    thin = positions == 1 or prod(problem.weights.shape[2:]) == 1
    of_image = _blas.operations(problem.weights.size * positions, problem.accumulator)
    workers = _blas.workers_for(of_image * problem.x.shape[0], threads, thin)
    plan = _plan(problem, replace(partition, threads=_blas.parts(of_image, partition, thin)))
    if plan is None:
        return False
    work = blocks(problem.x.shape[0], _coarse(problem), plan)
    groups, _, rows = problem.weights.shape[:3]
    parts = [(slice(*g), slice(*m)) for g, m in product(spans(groups, plan.groups), spans(rows, plan.rows))]
    fits = problem.weights.size * np.dtype(problem.accumulator).itemsize <= limit() // 8
    for some in [parts] if fits else [[part] for part in parts]:  # by parts if a copy may not fit
        jobs = [_ScatteredProduct(problem, _matrix(problem, *part), *part, partition.invariant) for part in some]
        _blas.run(lambda pair: pair[0].compute(pair[1]), list(product(jobs, work)), workers, partition.at_once(limit()))
    return True


def _coarse(problem: ScatterProblem) -> Ints:
    """Return the most outputs of a phase, per spatial axis."""
    return tuple(-(-n // s) for n, s in zip(problem.y.shape[2:], problem.strides, strict=True))


def _matrix(problem: ScatterProblem, groups: slice, rows: slice) -> Array:
    """Return the weights of these groups and output channels as (groups, rows * taps, C/G); a view if possible."""
    part = problem.weights[groups, :, rows].astype(problem.accumulator, copy=False)
    return part.reshape(*part.shape[:2], prod(part.shape[2:])).swapaxes(1, 2)


def _plan(problem: ScatterProblem, partition: Partition) -> BlockSize | None:
    """Return the block size; None if no block fits the workspace, or only blocks that are mostly halo."""
    item = np.dtype(problem.accumulator).itemsize
    images, threads = partition.images, partition.threads
    budget = partition.share_of(limit()) // item
    group, channels, rows, *kernel = problem.weights.shape
    extents = _coarse(problem)
    rows = min(rows, max(1, budget // (4 * channels * prod(kernel))))
    while _elements(problem, (1,) * len(extents), rows) > budget and rows > 1:
        rows = -(-rows // 2)
    if _elements(problem, (1,) * len(extents), rows) > budget or 4 * channels * prod(kernel) > budget:
        return None
    tile = min(_TILE_BYTES // item, budget)
    share = -(-images * prod(extents) // threads)
    box = shrink(extents, max(_WIDE, min(tile // (rows * prod(kernel)), share)))
    if group == 1:
        box = balance(box, extents, images, threads, _WIDE)
    while _elements(problem, box, rows) > budget and prod(box) > 1:
        box = shrink(extents, prod(box) // 2)
    if box != extents and _inputs_reached(problem, box) > 3 * prod(box):
        return None  # adjacent blocks would recompute most products
    elements = _elements(problem, box, rows)
    many = problem.x.shape[0] if partition.invariant else images  # batch-invariant: one call, but a GEMM per image
    together = max(1, min(-(-many // threads), tile // elements)) if box == extents else 1
    groups = tile // (elements * together) if rows == problem.weights.shape[2] else 1
    if group == 1:
        rows = share_rows(rows, -(-images // together) * pieces(box, extents), threads)
    return BlockSize(max(1, min(group, groups)), rows, together, box)


def _elements(problem: ScatterProblem, box: Ints, rows: int) -> int:
    """Return the elements of a block of one group of one image: inputs, products, and the sums of one phase."""
    _, channels, _, *kernel = problem.weights.shape
    return int(_inputs_reached(problem, box) * (channels + rows * prod(kernel)) + rows * prod(box))


def _inputs_reached(problem: ScatterProblem, box: Ints) -> int:
    """Return the most inputs of one channel that contribute to a box of outputs."""
    axes = zip(problem.x.shape[2:], box, problem.offsets, problem.strides, strict=True)
    ends = ((n, u, *_ends(offsets, s)) for n, u, offsets, s in axes)
    return int(prod(min(n, u + last - first) for n, u, first, last in ends))


def _ends(offsets: Sequence[int], stride: int) -> Span:
    """Return the least and the greatest offset of an axis in whole strides; offsets are monotonic."""
    first, last = sorted((offsets[0] // stride, offsets[-1] // stride))
    return first, last


@dataclass(frozen=True, slots=True)
class _ScatteredProduct:
    """The GEMMs of some groups and output channels with all blocks."""

    problem: ScatterProblem
    matrix: Array
    groups: slice
    rows: slice
    invariant: bool

    def compute(self, block: Block) -> None:
        """Compute one block and store it."""
        problem = self.problem
        sizes = zip(block.box, problem.strides, problem.y.shape[2:], strict=True)
        outputs = [slice(a * s, min(b * s, n)) for (a, b), s, n in sizes]
        place = (block.images, self._channels, *outputs)
        target, finish = problem.y[place], problem.finish.at(place)
        bias = None if problem.b is None else problem.b[self._channels]
        inputs = self._inputs(block.box)
        if inputs is None or len(_phases(problem.offsets, problem.strides)) < prod(problem.strides):
            fill(target, bias, finish, problem.accumulator)
        if inputs is None:
            return
        parts = self._parts(block.images, inputs)
        for every, steps in _steps(problem.offsets, problem.strides, block.box, inputs, target.shape[2:]):
            _store(target[every], parts, bias, finish.at(every), steps)

    @property
    def _channels(self) -> slice:
        """Output channels of this job: whole groups, or a part of one group."""
        per_group = self.problem.weights.shape[2]
        first = self.groups.start * per_group + self.rows.start
        return slice(first, first + (self.groups.stop - self.groups.start) * (self.rows.stop - self.rows.start))

    def _inputs(self, box: Box) -> Box | None:
        """Return the inputs that contribute to a box of outputs, or None if there are none."""
        problem = self.problem
        sizes = zip(box, problem.offsets, problem.strides, problem.x.shape[2:], strict=True)
        ends = ((a, b, n, *_ends(offsets, s)) for (a, b), offsets, s, n in sizes)
        inputs = tuple((max(0, a - last), min(n, b - first)) for a, b, n, first, last in ends)
        return inputs if all(first < last for first, last in inputs) else None

    def _parts(self, images: slice, inputs: Box) -> Array:
        """Return the GEMM's result, the products of every tap: (images, groups, rows, k_1, …, p_1, …)."""
        problem = self.problem
        channels, kernel = problem.weights.shape[1], problem.weights.shape[3:]
        count, groups = images.stop - images.start, self.matrix.shape[0]
        span = slice(self.groups.start * channels, self.groups.stop * channels)
        source = problem.x[(images, span, *(slice(*ends) for ends in inputs))].astype(problem.accumulator, copy=False)
        positions = source.shape[2:]
        rows = self.matrix.shape[1]
        if count > 1 and not self.invariant and prod(positions) < _WIDE:  # merge small images along N
            columns = np.moveaxis(source.reshape(count, groups, channels, prod(positions)), 0, 2)
            shape: Ints = (groups, rows, count, prod(positions))
            parts = SCRATCH.take("parts", shape, problem.accumulator)
            self._multiply(columns.reshape(groups, channels, shape[2] * shape[3]), parts.reshape(*shape[:2], -1))
            parts = np.moveaxis(parts, 2, 0)
        else:
            parts = SCRATCH.take("parts", (count, groups, rows, prod(positions)), problem.accumulator)
            self._multiply(source.reshape(count, groups, channels, prod(positions)), parts)
        return parts.reshape(count, groups, rows // prod(kernel), *kernel, *positions)

    def _multiply(self, columns: Array, parts: Array) -> None:
        if columns.shape[-2] == 1:
            np.multiply(self.matrix, columns, out=parts)  # faster than a GEMM with K = 1
        else:
            np.matmul(self.matrix, columns, out=parts)


class _Step(NamedTuple):
    """One addition to the sums of a phase: the tap, which products, which sums, and whether these are all of them."""

    tap: Any
    reads: Any
    writes: Any
    covers: bool


@lru_cache(maxsize=256)
def _steps(
    offsets: tuple[Sequence[int], ...], strides: Ints, box: Box, inputs: Box, outputs: Ints
) -> list[tuple[Any, list[_Step]]]:
    """Return for every phase with taps the index of its outputs in the block, and one addition per tap."""
    found = []
    for phase, taps in _phases(offsets, strides):
        extents = [len(range(p, n, s)) for p, n, s in zip(phase, outputs, strides, strict=True)]
        axes = list(zip(offsets, strides, box, inputs, extents, strict=True))
        every = last_axes(slice(p, None, s) for p, s in zip(phase, strides, strict=True))
        found.append((every, [_step(tap, axes) for tap in taps]))
    return found


def _step(tap: Ints, axes: list[tuple[Sequence[int], int, Span, Span, int]]) -> _Step:
    """Describe the addition of one tap, clipped to the block."""
    starts = [o[t] // s + first - a for t, (o, s, (a, _), (first, _), _) in zip(tap, axes, strict=True)]
    sizes = [(start, last - first, n) for start, (*_, (first, last), n) in zip(starts, axes, strict=True)]
    reads = last_axes(slice(max(0, -start), max(0, n - start)) for start, _, n in sizes)
    writes = last_axes(slice(max(0, start), max(0, start + size)) for start, size, _ in sizes)
    covers = all(start <= 0 and start + size >= n for start, size, n in sizes)
    return _Step(first_axes(slice(None), slice(None), slice(None), tap), reads, writes, covers)


def _store(places: Array, parts: Array, bias: Array | None, finish: Finish, steps: list[_Step]) -> None:
    """Accumulate the taps of one phase, add bias and epilogue, and write to ``places`` (images, channels, u_1, …)."""
    extents = places.shape[2:]
    sums = SCRATCH.take("sums", (*parts.shape[:3], *extents), parts.dtype)
    if steps[0].covers and len(steps) == 1:
        sums = parts[steps[0].tap][steps[0].reads]
    elif steps[0].covers:
        np.copyto(sums, parts[steps[0].tap][steps[0].reads])
    else:
        sums.fill(0)
    for tap, reads, writes, _ in steps[1:] if steps[0].covers else steps:
        place = sums[writes]
        np.add(place, parts[tap][reads], out=place)
    sums = sums.reshape(places.shape)
    if bias is not None:
        wide = bias.astype(parts.dtype).reshape(-1, *(1,) * len(extents))
        if not finish:
            np.add(sums, wide, out=places, casting="same_kind")
            return
        sums += wide
    finish.apply(sums)
    places[...] = sums


@lru_cache(maxsize=256)
def _phases(offsets: tuple[Sequence[int], ...], strides: Ints) -> list[tuple[Ints, list[Ints]]]:
    """Return every phase that has taps, with the indices of its taps in row-major order."""
    axes: list[dict[int, list[int]]] = []
    for of_axis, stride in zip(offsets, strides, strict=True):
        by_phase: dict[int, list[int]] = {}
        for tap, offset in enumerate(of_axis):
            by_phase.setdefault(offset % stride, []).append(tap)
        axes.append(by_phase)
    return [(phase, list(product(*(taps[p] for taps, p in zip(axes, phase, strict=True))))) for phase in product(*axes)]
