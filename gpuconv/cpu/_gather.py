"""Conv as a matrix product: the inputs of a block of outputs are gathered into a matrix, and BLAS multiplies it.

``y[m, p] = sum over k of w[m, k] * columns[k, p]`` with ``k = (channel, tap)`` and ``p = (image, output position)``.
Blocks stay in cache and within the workspace. A 1x1 kernel needs no matrix of its own: the input is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from gpuconv._geometry import ConvGeometry, tap_range
from gpuconv.cpu import _threads
from gpuconv.cpu._workspace import Array, Box, Ints, Scratch, block_bytes, boxes, limit, shrink, spans

# OpenBLAS runs a product on the calling thread alone up to about these sizes, so that ours can run side by side.
_SERIAL_GEMM = 64 * 64 * 64
_SERIAL_GEMV = 9216
_SIDE_BY_SIDE_BYTES = 512 * 2**10


@dataclass(frozen=True, slots=True)
class _Plan:
    """How much one block takes of each letter; ``side_by_side`` runs blocks on threads of ours."""

    groups: int
    out_channels: int
    images: int
    box: Ints
    side_by_side: bool


@dataclass(frozen=True, slots=True)
class _Block:
    images: slice
    box: Box

    @property
    def positions(self) -> Ints:
        return tuple(stop - start for start, stop in self.box)


class _Padded(Exception):
    """A zero of the padding may have met an infinite weight."""


def fits(geometry: ConvGeometry, accumulator: str) -> bool:
    """Tell whether the column of a single output fits into the workspace."""
    return prod(geometry.w_shape[1:]) * np.dtype(accumulator).itemsize <= limit() // 8


def conv(x: Array, w: Array, b: Array | None, y: Array, geometry: ConvGeometry, accumulator: str) -> bool:
    """Write Conv into y; return False where it must be done again tap by tap, because of weights not finite."""
    group = geometry.group
    weights = w.reshape(group, -1, *w.shape[1:])
    plan = _plan(geometry, np.dtype(accumulator).itemsize, copies_weights=not _usable(w, accumulator))
    scratch = Scratch()
    for (g0, g1), (m0, m1) in product(
        list(spans(group, plan.groups)), list(spans(weights.shape[1], plan.out_channels))
    ):
        part = weights[g0:g1, m0:m1].astype(accumulator, copy=False)
        job = _Job(x, part.reshape(*part.shape[:2], -1), b, y, geometry, slice(g0, g1), m0, scratch)
        blocks = list(_blocks(geometry, plan))
        try:
            if plan.side_by_side:
                _threads.run(job.compute, blocks)
            else:
                for block in blocks:
                    job.compute(block)
        except _Padded:
            return False
    return True


def _usable(w: Array, accumulator: str) -> bool:
    return w.dtype == accumulator and w.flags.c_contiguous


def _plan(geometry: ConvGeometry, item: int, *, copies_weights: bool) -> _Plan:
    images, group = geometry.x_shape[0], geometry.group
    rows = max(1, geometry.w_shape[0] // group)
    depth = max(1, prod(geometry.w_shape[1:]))
    out = geometry.y_shape[2:]
    serial = (_SERIAL_GEMM if rows > 1 else _SERIAL_GEMV) // (rows * depth)
    if serial >= 64 and group > 1:
        box = shrink(out, serial)
        budget = min(_SIDE_BY_SIDE_BYTES, limit() // (4 * _threads.count()))
        groups = max(1, budget // (item * (depth + rows) * max(1, prod(box))))
        return _Plan(min(group, groups), rows, 1, box, side_by_side=True)
    if copies_weights:
        rows = min(rows, max(1, limit() // (4 * item * depth)))
    volume = max(1, block_bytes() // (item * (depth + rows)))
    box = shrink(out, volume)
    together = max(1, min(volume, 256) // max(1, prod(out)))  # few positions an image: several make one product
    return _Plan(1, rows, min(images, together) if box == out else 1, box, side_by_side=False)


def _blocks(geometry: ConvGeometry, plan: _Plan) -> Iterator[_Block]:
    for (n0, n1), box in product(
        list(spans(geometry.x_shape[0], plan.images)), list(boxes(geometry.y_shape[2:], plan.box))
    ):
        yield _Block(slice(n0, n1), box)


@dataclass(frozen=True, slots=True)
class _Job:
    """One set of weights (groups, rows, depth) over all blocks."""

    x: Array
    weights: Array
    b: Array | None
    y: Array
    geometry: ConvGeometry
    groups: slice
    first_row: int
    scratch: Scratch

    def compute(self, block: _Block) -> None:
        """Compute one block and store it."""
        columns = self._matrix(block)
        target = self._target(block)
        if target is None:
            shape = (*self.weights.shape[:2], columns.shape[2])
            result = self.scratch.take("result", shape, self.weights.dtype)
        else:
            result = target
        np.matmul(self.weights, columns, out=result)
        if self.b is not None:
            rows = self.b[self._channels].astype(result.dtype).reshape(*result.shape[:2], 1)
            np.add(result, rows, out=result)
        self._check(result)
        if target is None:
            self._store(result, block)

    @property
    def _channels(self) -> slice:
        """Output channels of this job: whole groups, or part of the rows of one."""
        per_group = self.geometry.w_shape[0] // self.geometry.group
        first = self.groups.start * per_group + self.first_row
        return slice(first, first + self.weights.shape[0] * self.weights.shape[1])

    def _target(self, block: _Block) -> Array | None:
        """Return the block's place in y as a matrix, where y can be written in place."""
        y = self.y
        if y.dtype != self.weights.dtype or not y.flags.c_contiguous or block.images.stop - block.images.start > 1:
            return None
        flat = y[block.images.start, self._channels].reshape(*self.weights.shape[:2], -1)
        first = _flat_index([start for start, _ in block.box], y.shape[2:])
        return flat[..., first : first + prod(block.positions)]

    def _store(self, result: Array, block: _Block) -> None:
        images = block.images.stop - block.images.start
        values = result.reshape(-1, images, *block.positions).swapaxes(0, 1)
        self.y[(block.images, self._channels, *(slice(*span) for span in block.box))] = values

    def _check(self, result: Array) -> None:
        padded = any(self.geometry.pads_begin) or any(self.geometry.pads_end)
        if padded and not np.isfinite(np.sum(result)) and not np.isfinite(self.weights).all():
            raise _Padded

    def _matrix(self, block: _Block) -> Array:
        """Return the block's inputs, (groups, depth, positions)."""
        geometry = self.geometry
        channels = geometry.w_shape[1]
        span = slice(self.groups.start * channels, self.groups.stop * channels)
        source = self.x[block.images, span]
        groups, images = self.weights.shape[0], source.shape[0]
        if self._is_matrix(images):
            first = _flat_index([start for start, _ in block.box], geometry.y_shape[2:])
            return source.reshape(groups, channels, -1)[..., first : first + prod(block.positions)]
        shape = (groups, channels, *geometry.kernel_shape, images, *block.positions)
        columns = self.scratch.take("columns", shape, self.weights.dtype)
        # (images, groups * channels, …) -> (groups, channels, images, …)
        source = np.moveaxis(source.reshape(images, groups, channels, *source.shape[2:]), 0, 2)
        for tap in product(*map(range, geometry.kernel_shape)):
            offsets = [axis[t] for axis, t in zip(geometry.offsets, tap, strict=True)]
            _copy_tap(source, columns[(slice(None), slice(None), *tap)], block.box, geometry.strides, offsets)
        return columns.reshape(groups, self.weights.shape[2], -1)

    def _is_matrix(self, images: int) -> bool:
        geometry = self.geometry
        return (
            images == 1
            and self.x.dtype == self.weights.dtype
            and self.x.flags.c_contiguous
            and all(k == 1 for k in geometry.kernel_shape)
            and geometry.x_shape[2:] == geometry.y_shape[2:]
            and not any(geometry.pads_begin)
            and all(s == 1 for s in geometry.strides)
        )


def _copy_tap(source: Array, target: Array, box: Box, strides: Ints, offsets: list[int]) -> None:
    """Copy what one tap sees of the last axes of ``source``; zeros where it looks past an edge."""
    reads: list[slice] = []
    writes: list[slice] = []
    first = source.ndim - len(box)
    for axis, ((start, stop), stride, offset) in enumerate(zip(box, strides, offsets, strict=True), first):
        offset += start * stride
        low, high = tap_range(stop - start, source.shape[axis], stride, offset)
        around = (slice(None),) * axis
        if low > 0:
            target[(*around, slice(0, low))] = 0
        if high < stop - start:
            target[(*around, slice(high, None))] = 0
        reads.append(slice(low * stride + offset, max(0, (high - 1) * stride + offset + 1), stride))
        writes.append(slice(low, high))
    if all(part.start < part.stop for part in writes):
        target[(..., *writes)] = source[(..., *reads)]


def _flat_index(position: list[int], extents: Ints) -> int:
    index = 0
    for p, extent in zip(position, extents, strict=True):
        index = index * extent + p
    return index
