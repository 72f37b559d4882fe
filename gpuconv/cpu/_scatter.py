"""Convolution as a matrix product whose result is added up: every input times every tap, then sums over taps.

``parts[m, t, p] = sum over c of w[c, m, t] * x[c, p]``, then ``y[m, p * s + offset(t)] += parts[m, t, p]``. This is
ConvTranspose as it is defined; a Conv of stride 1 with few output channels is the same with other offsets, and cheaper
so than by gathering many channels. Outputs ``u * s + phase`` of one phase are summed side by side in memory and
spread out once. Only what exists is multiplied, so every input is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from gpuconv.cpu import _blas, _threads
from gpuconv.cpu._workspace import Array, Box, Ints, Scratch, boxes, limit, shrink, spans

_TILE_BYTES = 2 * 2**20
_WIDE = 256


@dataclass(frozen=True, slots=True)
class Problem:
    """Weights (G, C/G, M/G, k_1, …) and, per spatial axis, the stride and the offset of every tap."""

    x: Array
    weights: Array
    b: Array | None
    y: Array
    strides: Ints
    offsets: tuple[Ints, ...]
    accumulator: str


@dataclass(frozen=True, slots=True)
class _Plan:
    groups: int
    rows: int
    images: int
    box: Ints


@dataclass(frozen=True, slots=True)
class _Block:
    """Outputs ``u`` of every phase, of some images."""

    images: slice
    box: Box


def run(problem: Problem) -> bool:
    """Write the result into y; return False where the workspace is too small for this way."""
    plan = _plan(problem)
    if plan is None:
        return False
    group, _, out_channels = problem.weights.shape[:3]
    extents = _coarse(problem)
    blocks = [
        _Block(slice(*images), box)
        for images, box in product(spans(problem.x.shape[0], plan.images), boxes(extents, plan.box))
    ]
    with _blas.single_threaded() as alone:
        for (g0, g1), (m0, m1) in product(spans(group, plan.groups), spans(out_channels, plan.rows)):
            job = _Job(problem, _matrix(problem, slice(g0, g1), slice(m0, m1)), slice(g0, g1), slice(m0, m1), Scratch())
            _threads.run(job.compute, blocks, side_by_side=alone)
    return True


def fill_with_bias(y: Array, b: Array | None) -> None:
    """Set y (N, M, …) to what a sum over nothing gives."""
    y[...] = 0 if b is None else b.reshape(-1, *(1,) * (y.ndim - 2))


def _coarse(problem: Problem) -> Ints:
    """Outputs per phase and axis, at most."""
    return tuple(-(-n // s) for n, s in zip(problem.y.shape[2:], problem.strides, strict=True))


def _matrix(problem: Problem, groups: slice, rows: slice) -> Array:
    """Return the weights of these groups and output channels as (groups, rows * taps, C/G), without a copy if possible."""
    part = problem.weights[groups, :, rows].astype(problem.accumulator, copy=False)
    return part.reshape(*part.shape[:2], prod(part.shape[2:])).swapaxes(1, 2)


def _plan(problem: Problem) -> _Plan | None:
    """Choose the block, or return None where not even one output per phase fits the workspace."""
    item, threads = np.dtype(problem.accumulator).itemsize, _threads.count()
    budget = limit() // (4 * threads * item)
    images = problem.x.shape[0]
    group, channels, rows, *kernel = problem.weights.shape
    extents = _coarse(problem)
    rows = min(rows, max(1, budget // (channels * prod(kernel))))
    while _elements(problem, (1,) * len(extents), rows) > budget and rows > 1:
        rows = -(-rows // 2)
    if _elements(problem, (1,) * len(extents), rows) > budget or channels * prod(kernel) > budget:
        return None
    tile = _TILE_BYTES // item
    share = -(-images * prod(extents) // threads)
    box = shrink(extents, max(_WIDE, min(4 * tile // (rows * prod(kernel)), share)))
    while _elements(problem, box, rows) > budget and prod(box) > 1:
        box = shrink(extents, prod(box) // 2)
    each = _elements(problem, box, rows)
    together = max(1, min(images, _WIDE // prod(box), budget // each)) if box == extents else 1
    groups = tile // (each + rows * channels * prod(kernel)) if together < 2 and rows == problem.weights.shape[2] else 1
    return _Plan(max(1, min(group, groups)), rows, together, box)


def _elements(problem: Problem, box: Ints, rows: int) -> int:
    """Elements that one group of one image holds for a block: inputs, products, and sums of every phase."""
    _, channels, _, *kernel = problem.weights.shape
    inputs = prod(
        min(n, u + max(o) // s - min(o) // s)
        for n, u, o, s in zip(problem.x.shape[2:], box, problem.offsets, problem.strides, strict=True)
    )
    phases = prod(len({o % s for o in axis}) for axis, s in zip(problem.offsets, problem.strides, strict=True))
    return inputs * (channels + rows * prod(kernel)) + rows * phases * prod(box)


@dataclass(frozen=True, slots=True)
class _Job:
    """One set of weights over all blocks."""

    problem: Problem
    matrix: Array
    groups: slice
    rows: slice
    scratch: Scratch

    def compute(self, block: _Block) -> None:
        """Compute one block and store it."""
        problem = self.problem
        outputs = tuple(
            slice(a * s, min(b * s, n))
            for (a, b), s, n in zip(block.box, problem.strides, problem.y.shape[2:], strict=True)
        )
        target = problem.y[(block.images, self._channels, *outputs)]
        inputs = [
            (max(0, a - max(o) // s), min(n, b - min(o) // s))
            for (a, b), o, s, n in zip(block.box, problem.offsets, problem.strides, problem.x.shape[2:], strict=True)
        ]
        bias = None if problem.b is None else problem.b[self._channels]
        phases = list(_phases(problem))
        if len(phases) < prod(problem.strides) or any(first >= last for first, last in inputs):
            fill_with_bias(target, bias)
        if all(first < last for first, last in inputs):
            parts = self._parts(block.images, inputs)
            for phase, taps in phases:
                self._add_phase(target, parts, bias, phase, taps, block.box, inputs)

    @property
    def _channels(self) -> slice:
        """Output channels of this job: whole groups, or part of the rows of one."""
        per_group = self.problem.weights.shape[2]
        first = self.groups.start * per_group + self.rows.start
        return slice(first, first + (self.groups.stop - self.groups.start) * (self.rows.stop - self.rows.start))

    def _parts(self, images: slice, inputs: list[tuple[int, int]]) -> Array:
        """Return the products of every tap, (groups * rows, k_1, …, images, p_1, …)."""
        problem = self.problem
        channels = problem.weights.shape[1]
        count, groups = images.stop - images.start, self.matrix.shape[0]
        span = slice(self.groups.start * channels, self.groups.stop * channels)
        source = problem.x[(images, span, *(slice(*ends) for ends in inputs))]
        positions = source.shape[2:]
        source = np.moveaxis(source.reshape(count, groups, channels, *positions), 0, 2)
        columns = source.astype(problem.accumulator, copy=False).reshape(groups, channels, count * prod(positions))
        parts = self.scratch.take("parts", (*self.matrix.shape[:2], columns.shape[2]), problem.accumulator)
        np.matmul(self.matrix, columns, out=parts)
        kernel = problem.weights.shape[3:]
        return parts.reshape(parts.shape[0] * parts.shape[1] // prod(kernel), *kernel, count, *positions)

    def _add_phase(
        self,
        target: Array,
        parts: Array,
        bias: Array | None,
        phase: Ints,
        taps: list[Ints],
        box: Box,
        inputs: list[tuple[int, int]],
    ) -> None:
        """Add up the taps of one phase and store the sums, every stride-th output of ``target``."""
        places = target[(..., *(slice(p, None, s) for p, s in zip(phase, self.problem.strides, strict=True)))]
        rank = len(phase)
        count, extents = places.shape[0], places.shape[2:]
        sums: Array | None = None
        for tap in taps:
            reads, writes = [], []
            for axis, t in enumerate(tap):
                shift = self.problem.offsets[axis][t] // self.problem.strides[axis] - box[axis][0]
                first, last = inputs[axis]
                low, high = max(0, first + shift), min(extents[axis], last + shift)
                reads.append(slice(low - shift - first, max(low, high) - shift - first))
                writes.append(slice(low, max(low, high)))
            part = parts[(slice(None), *tap)][(..., *reads)]
            if sums is None and part.shape[-rank:] == extents:
                if len(taps) == 1:
                    sums = part
                    break
                sums = self.scratch.take("sums", (parts.shape[0], count, *extents), parts.dtype)
                np.copyto(sums, part)
                continue
            if sums is None:
                sums = self.scratch.take("sums", (parts.shape[0], count, *extents), parts.dtype)
                sums.fill(0)
            place = sums[(..., *writes)]
            np.add(place, part, out=place)
        assert sums is not None
        sums = sums.swapaxes(0, 1)
        if bias is None:
            places[...] = sums
        else:
            wide = bias.astype(parts.dtype).reshape(-1, *(1,) * rank)
            np.add(sums, wide, out=places, casting="same_kind")


def _phases(problem: Problem) -> Iterator[tuple[Ints, list[Ints]]]:
    """Yield every phase that some tap reaches, with the indices of its taps in row-major order."""
    axes: list[dict[int, list[int]]] = []
    for offsets, stride in zip(problem.offsets, problem.strides, strict=True):
        by_phase: dict[int, list[int]] = {}
        for tap, offset in enumerate(offsets):
            by_phase.setdefault(offset % stride, []).append(tap)
        axes.append(by_phase)
    for phase in product(*axes):
        yield phase, list(product(*(taps[p] for taps, p in zip(axes, phase, strict=True))))
