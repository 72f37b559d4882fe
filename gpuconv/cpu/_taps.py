"""Tap-wise accumulation: one small GEMM per tap over its in-bounds inputs. The fallback for every other algorithm.

``y[m, q] += w[m, :, tap] @ x[:, q * s + offset(tap)]`` for each tap, restricted to outputs whose input exists. No zero
of the padding is multiplied, so infinite or NaN weights over padding contribute nothing. It is chosen if the other
algorithms do not fit: their arrays would need more than 64 axes (taps and positions), or even one output exceeds a tiny
workspace. Here no array has more axes than x and w.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import isqrt, prod

import numpy as np

from gpuconv.cpu._finish import Finish
from gpuconv.cpu._workspace import Array, Box, Ints, Span, boxes, first_axes, last_axes, limit, shrink, spans
from gpuconv.rules.geometry import ConvGeometry, ConvTransposeGeometry, tap_range

Slices = tuple[slice, ...]


def conv(
    x: Array, w: Array, b: Array | None, y: Array, geometry: ConvGeometry, accumulator: str, finish: Finish
) -> None:
    """Write Conv of x (N, C, …) and w (M, C/G, k_1, …), with bias and epilogue, into y (N, M, …)."""
    _run(x, w, b, y, geometry, accumulator, finish, _conv_axis, _conv_matrix)


def conv_transpose(
    x: Array, w: Array, b: Array | None, y: Array, geometry: ConvTransposeGeometry, accumulator: str, finish: Finish
) -> None:
    """Write ConvTranspose of x (N, C, …) and w (C, M/G, k_1, …), with bias and epilogue, into y (N, M, …)."""
    _run(x, w, b, y, geometry, accumulator, finish, _conv_transpose_axis, _conv_transpose_matrix)


def _conv_matrix(w: Array, first_row: int, rows: Span, _: int, channels: Span, tap: Ints) -> Array:
    """Return the weights (rows, channels) of one tap; ``first_row`` is the group's first output channel."""
    place = slice(first_row + rows[0], first_row + rows[1])
    matrix: Array = w[first_axes(place, slice(*channels), tap)]
    return matrix


def _conv_transpose_matrix(w: Array, _: int, rows: Span, first_channel: int, channels: Span, tap: Ints) -> Array:
    place = slice(first_channel + channels[0], first_channel + channels[1])
    matrix: Array = w[first_axes(place, slice(*rows), tap)].T
    return matrix


def _conv_axis(start: int, stop: int, extent: int, stride: int, offset: int) -> tuple[slice, slice]:
    """Return which inputs a tap reads for outputs ``start`` to ``stop`` of an axis, and which of these have one."""
    offset += start * stride
    low, high = tap_range(stop - start, extent, stride, offset)
    return _spread(low, high, stride, offset), slice(low, high)


def _conv_transpose_axis(start: int, stop: int, extent: int, stride: int, offset: int) -> tuple[slice, slice]:
    offset -= start
    low, high = tap_range(extent, stop - start, stride, offset)
    return slice(low, high), _spread(low, high, stride, offset)


def _spread(low: int, high: int, stride: int, offset: int) -> slice:
    return slice(low * stride + offset, (high - 1) * stride + offset + 1, stride) if low < high else slice(0, 0)


def _run(
    x: Array,
    w: Array,
    b: Array | None,
    y: Array,
    geometry: ConvGeometry | ConvTransposeGeometry,
    accumulator: str,
    finish: Finish,
    axis_slices: Callable[[int, int, int, int, int], tuple[slice, slice]],
    matrix_of: Callable[[Array, int, Span, int, Span, Ints], Array],
) -> None:
    group, met = geometry.group, geometry.met
    out_channels, in_channels = y.shape[1] // group, x.shape[1] // group
    item = np.dtype(accumulator).itemsize
    channels = max(1, isqrt(limit() // (8 * item)))  # a block of weights takes an eighth of the workspace
    rows, columns = min(out_channels, channels), min(in_channels, channels)
    chunk = shrink(y.shape[2:], max(1, limit() // (4 * item * (2 * rows + columns + 1))))
    for image, g, (m0, m1), box in product(
        range(x.shape[0]), range(group), list(spans(out_channels, rows)), list(boxes(y.shape[2:], chunk))
    ):
        total = np.zeros((m1 - m0, *(stop - start for start, stop in box)), accumulator)
        source, first = x[image, g * in_channels : (g + 1) * in_channels], g * out_channels
        for tap in product(*met):
            reads, writes = _slices(box, tap, geometry, axis_slices)
            if any(part.start >= part.stop for part in writes):
                continue
            for c0, c1 in spans(in_channels, columns):
                block = source[c0:c1][last_axes(reads)].astype(accumulator)
                matrix = matrix_of(w, first, (m0, m1), g * in_channels, (c0, c1), tap).astype(accumulator)
                part = np.matmul(matrix, block.reshape(c1 - c0, prod(block.shape[1:])))
                total[last_axes(writes)] += part.reshape(m1 - m0, *block.shape[1:])
        if b is not None:
            bias = b[first + m0 : first + m1].astype(accumulator)
            total += bias.reshape(-1, *(1,) * len(box))
        place = first_axes(image, slice(first + m0, first + m1), tuple(slice(*span) for span in box))
        finish.at(place).apply(total)
        y[place] = total


def _slices(
    box: Box,
    tap: Ints,
    geometry: ConvGeometry | ConvTransposeGeometry,
    axis_slices: Callable[[int, int, int, int, int], tuple[slice, slice]],
) -> tuple[Slices, Slices]:
    pairs = [
        axis_slices(start, stop, extent, stride, offsets[t])
        for (start, stop), extent, stride, offsets, t in zip(
            box, geometry.x_shape[2:], geometry.strides, geometry.offsets, tap, strict=True
        )
    ]
    return tuple(read for read, _ in pairs), tuple(write for _, write in pairs)
