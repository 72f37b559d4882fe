"""Means and maxima of windows and of whole images, and MaxUnpool."""

from __future__ import annotations

from functools import reduce
from math import prod
from typing import Any

import numpy as np

import gpuconv
from gpuconv import _geometry, cuda
from gpuconv._errors import ArgumentError
from gpuconv.cpu import _threads
from gpuconv.cpu._windows import Axis, over_all
from gpuconv.cpu._workspace import SCRATCH
from gpuconv.onnx.operators.form import Form, Operator, blocks_of_channels, ints, namespace, wide

_BLOCK = 2**17  # elements
_WINDOW = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")


def on_device(array: Any) -> bool:
    """Tell whether an array is on a CUDA device, where our kernels can take it."""
    kind = cuda.runtime.array_type()
    return kind is not None and isinstance(array, kind)


def _given(form: Form, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := form.get(name)) is not None}


def _average_pool(form: Form, x: Any) -> Any:
    """Sum up each window and divide by its elements; what lies in the padding counts only with count_include_pad."""
    g = _geometry.max_pool(x.shape, **_given(form, _WINDOW))
    counts = _elements(g, bool(form.get("count_include_pad"))).astype(wide(x).dtype)
    if on_device(x):
        y = _sums_by_conv(wide(x), g) / namespace(x).asarray(counts)
        return y.astype(x.dtype, copy=False)
    result = np.empty(g.y_shape, x.dtype)
    _threads.run(
        lambda place: _averages_into(result[place], wide(x[place]), g, counts),
        blocks_of_channels(x, _BLOCK),
        side_by_side=_threads.pays(x.nbytes),
    )
    return result


def _averages_into(y: Any, x: Any, g: _geometry.MaxPoolGeometry, counts: Any) -> None:
    """Average the windows of some channels (C, D1, …) that stay in a processor's cache."""
    with np.errstate(all="ignore"):
        if y.dtype == x.dtype:
            np.divide(_sums_by_slices(x, g), counts, out=y)
        else:
            y[...] = _sums_by_slices(x, g) / counts


def _sums_by_conv(x: Any, g: _geometry.MaxPoolGeometry) -> Any:
    """Every channel by a filter of ones; what ceil_mode adds at the end is padding, what it drops is not."""
    ends = [
        (q - 1) * s + (k - 1) * d + 1 - n - before
        for q, s, k, d, n, before in zip(
            g.y_shape[2:], g.strides, g.kernel_shape, g.dilations, g.x_shape[2:], g.pads_begin, strict=True
        )
    ]
    seen = tuple(slice(0, n + min(0, end)) for n, end in zip(g.x_shape[2:], ends, strict=True))
    pads = [*g.pads_begin, *(max(0, end) for end in ends)]
    ones = namespace(x).ones((x.shape[1], 1, *g.kernel_shape), x.dtype)
    view = x[(slice(None), slice(None), *seen)]
    return gpuconv.conv(view, ones, group=x.shape[1], dilations=g.dilations, pads=pads, strides=g.strides)


def _sums_by_slices(x: Any, g: _geometry.MaxPoolGeometry) -> Any:
    """Axis by axis, each from a few sums of slices."""
    for axis in range(len(g.kernel_shape)):
        if g.kernel_shape[axis] > 1 or g.strides[axis] > 1 or g.y_shape[2 + axis] != x.shape[1 + axis]:
            x = _sums_along(x, g, axis)
    return x


def _sums_along(x: Any, g: _geometry.MaxPoolGeometry, axis: int) -> Any:
    shape = (*x.shape[: 1 + axis], g.y_shape[2 + axis], *x.shape[2 + axis :])
    total = np.empty(shape, x.dtype)
    along = Axis(1 + axis, shape[1 + axis], x.shape[1 + axis], g.strides[axis], g.offsets[axis])
    if over_all(np.add, x, total, along, SCRATCH):
        return total
    total.fill(0)
    before: tuple[slice, ...] = (slice(None),) * (1 + axis)
    for tap in range(g.kernel_shape[axis]):
        out, source = _meeting(g, axis, tap, 0, 0)
        total[(*before, out)] += x[(*before, source)]
    return total


def _meeting(g: _geometry.MaxPoolGeometry, axis: int, tap: int, before: int, after: int) -> tuple[slice, slice]:
    """Slices of the outputs whose tap lies in the input, widened by so much before and after, and of where it lies."""
    stride, offset = g.strides[axis], tap * g.dilations[axis] - g.pads_begin[axis] + before
    low, high = _geometry.tap_range(g.y_shape[2 + axis], g.x_shape[2 + axis] + before + after, stride, offset)
    start = low * stride + offset
    return slice(low, high), slice(start, start + max(0, high - low - 1) * stride + (high > low), stride)


def _elements(g: _geometry.MaxPoolGeometry, padding: bool) -> Any:
    """How many taps of each window count, with the padding or without it; (Q1, …, Qn)."""
    return reduce(np.multiply.outer, (_counts(g, axis, padding) for axis in range(len(g.kernel_shape))))


def _counts(g: _geometry.MaxPoolGeometry, axis: int, padding: bool) -> Any:
    """How many taps of each window count along an axis."""
    before, after = (g.pads_begin[axis], g.pads_end[axis]) if padding else (0, 0)
    counts = np.zeros(g.y_shape[2 + axis], np.int64)
    for tap in range(g.kernel_shape[axis]):
        counts[_meeting(g, axis, tap, before, after)[0]] += 1
    return counts


def _global_average_pool(_: Form, x: Any) -> Any:
    means = namespace(x).mean(wide(x), axis=tuple(range(2, x.ndim)), keepdims=True)
    return means.astype(x.dtype, copy=False)


def _global_max_pool(_: Form, x: Any) -> Any:
    if prod(x.shape[2:]) == 0:
        raise ArgumentError(f"there is no maximum of nothing (x.shape={x.shape})")
    return namespace(x).max(wide(x), axis=tuple(range(2, x.ndim)), keepdims=True).astype(x.dtype, copy=False)


def _max_unpool(form: Form, x: Any, indices: Any, output_shape: Any = None) -> Any:
    """Put maxima back; on a device, indices that number nothing count for nothing, so that nobody has to wait."""
    extents = None if output_shape is None else ints(output_shape)
    attributes = _given(form, ("kernel_shape", "pads", "strides"))
    return gpuconv.max_unpool(x, indices, extents, check_indices=not on_device(x), **attributes)


OPERATORS = {
    "AveragePool": Operator(_average_pool),
    "GlobalAveragePool": Operator(_global_average_pool),
    "GlobalMaxPool": Operator(_global_max_pool),
    "MaxUnpool": Operator(_max_unpool, frozenset({2})),
}
