"""The gradient of weights on NumPy arrays: for every tap the products of what meets through it, summed by BLAS.

``dw[m, c, t] = sum over images n and outputs q of dy[n, m, q] * x[n, c, q * s + offset(t)]``, where that input exists.
A tap at a time, so that nothing stands for padding; images and boxes of outputs in row-major order, so that the sum
does not depend on which thread makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import isqrt, prod

import numpy as np

from gpuconv.cpu import _blas, _threads
from gpuconv.cpu._workspace import SCRATCH, Array, Box, Span, boxes, first_axes, limit, share_rows, shrink, spans
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import ConvGeometry, Ints, tap_range

_TILE_ELEMENTS = 2**20  # stays in cache, and is worth a turn of the interpreter


@_threads.quietly
def weight_grad(x: Array, dy: Array, dw: Array, geometry: ConvGeometry) -> None:
    """Write the gradient of Conv's weights into dw (M, C/group, k_1 … k_n)."""
    if 0 in (x.size, dy.size, dw.size):
        dw[...] = 0
        return
    accumulator = dtypes.accumulator(dy.dtype)
    rows, columns = geometry.w_shape[0] // geometry.group, geometry.w_shape[1]
    budget = limit() // (2 * _threads.count() * np.dtype(accumulator).itemsize)
    # A quarter of it holds the sums and a part to add, another one what is multiplied.
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
    _blas.run(_TapPart.compute, parts, _blas.share(operations, threads, thin=min(rows, columns) == 1))


@_threads.quietly
def bias_grad(dy: Array, db: Array) -> None:
    """Write the sums of dy (N, M, Q1 … Qn) over all but its channels into db (M,)."""
    axes = (0, *range(2, dy.ndim))
    db[...] = np.sum(dy, axis=axes, dtype=dtypes.accumulator(dy.dtype))


@dataclass(frozen=True, slots=True)
class _TapPart:
    """One tap, some groups, rows and channels of each."""

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
        """Sum over all images and outputs, and store."""
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
        of_groups = of_tap.reshape(g.group, g.w_shape[0] // g.group, g.w_shape[1])  # a view: one axis becomes two
        of_groups[slice(*self.groups), slice(*self.rows), slice(*self.channels)] = total

    def _products(self, image: int, box: Box) -> Array:
        """Return the sums (groups, rows, channels) of one image's outputs in a box, all of which meet inputs."""
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
        """Return (groups, channels, positions) of one image in the accumulator's type."""
        groups = image.reshape(self.geometry.group, per_group, *image.shape[1:])  # a view
        part = groups[(slice(*self.groups), slice(*some), *box)]
        matrix = SCRATCH.take(name, part.shape, self.accumulator)
        np.copyto(matrix, part)
        return matrix.reshape(*part.shape[:2], prod(part.shape[2:]))
