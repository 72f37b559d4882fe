"""Means and maxima of windows and of whole images, and MaxUnpool."""

from __future__ import annotations

from functools import reduce
from math import gcd, prod
from typing import Any

import numpy as np

import gpuconv
from gpuconv import cuda
from gpuconv._errors import ArgumentError
from gpuconv.cpu import _threads
from gpuconv.cpu._windows import Axis, over_all
from gpuconv.cpu._workspace import SCRATCH
from gpuconv.onnx.operators.form import Form, Operator, blocks_of_channels, ints, namespace, wide
from gpuconv.rules import geometry

_BLOCK = 2**17  # elements
_WINDOW = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")


def on_device(array: Any) -> bool:
    """Tell whether an array is on a CUDA device, where our kernels can take it."""
    kind = cuda.runtime.array_type()
    return kind is not None and isinstance(array, kind)


def _average_pool(form: Form, x: Any) -> Any:
    """Sum up each window and divide by its elements; what lies in the padding counts only with count_include_pad."""
    g = geometry.max_pool(x.shape, **form.given(_WINDOW))
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


def _average_pool_cost(form: Form, x: Any) -> int:
    """Count all taps inside, and what is between two axes."""
    g = geometry.max_pool(x.shape, **form.given(_WINDOW))
    taps = sum(map(min, g.kernel_shape, g.x_shape[2:]))
    return prod(map(max, g.x_shape, g.y_shape)) * taps


def _averages_into(y: Any, x: Any, g: geometry.MaxPoolGeometry, counts: Any) -> None:
    """Average the windows of some channels (C, D1, …) that stay in a processor's cache."""
    with np.errstate(all="ignore"):
        if y.dtype == x.dtype:
            np.divide(_sums_by_slices(x, g), counts, out=y)
        else:
            y[...] = _sums_by_slices(x, g) / counts


def _sums_by_conv(x: Any, g: geometry.MaxPoolGeometry) -> Any:
    """Every channel by a filter of ones; what ceil_mode adds at the end is padding, what it drops is not."""
    if 0 in g.y_shape:
        return namespace(x).ones(g.y_shape, x.dtype)  # no elements
    kernel, seen, begins, ends = [], [], [], []
    for q, s, k, d, n, before in zip(
        g.y_shape[2:], g.strides, g.kernel_shape, g.dilations, g.x_shape[2:], g.pads_begin, strict=True
    ):
        # Taps before the first one, and after the last one, that any output has inside, are left out.
        first = min(k - 1, max(0, -(((q - 1) * s - before) // d)))
        taps = max(1, min(k, (n - 1 + before) // d + 1) - first)
        begin = before - first * d
        end = (q - 1) * s + (taps - 1) * d + 1 - n - begin
        kernel.append(taps)
        seen.append(slice(max(0, -begin), n + min(0, end)))
        begins.append(max(0, begin))
        ends.append(max(0, end))
    ones = namespace(x).ones((x.shape[1], 1, *kernel), x.dtype)
    view = x[(slice(None), slice(None), *seen)]
    return gpuconv.conv(view, ones, group=x.shape[1], dilations=g.dilations, pads=begins + ends, strides=g.strides)


def _sums_by_slices(x: Any, g: geometry.MaxPoolGeometry) -> Any:
    """Axis by axis, each from a few sums of slices."""
    for axis in range(len(g.kernel_shape)):
        if g.kernel_shape[axis] > 1 or g.strides[axis] > 1 or g.y_shape[2 + axis] != x.shape[1 + axis]:
            x = _sums_along(x, g, axis)
    return x


def _sums_along(x: Any, g: geometry.MaxPoolGeometry, axis: int) -> Any:
    """Add up windows along an axis: each from its first tap inside to its last, whichever way takes fewer steps."""
    shape = (*x.shape[: 1 + axis], g.y_shape[2 + axis], *x.shape[2 + axis :])
    total = np.empty(shape, x.dtype)
    along = Axis(1 + axis, shape[1 + axis], x.shape[1 + axis], g.strides[axis], g.offsets[axis])
    if over_all(np.add, x, total, along, SCRATCH):
        return total
    total.fill(0)
    taps = len(along.offsets)
    if along.count < min(taps, along.extent):
        _add_by_outputs(x, total, along)
    elif along.extent < taps:
        _add_by_inputs(x, total, along)
    else:
        _add_by_taps(x, total, along)
    return total


def _add_by_taps(x: Any, total: Any, along: Axis) -> None:
    for offset in along.offsets:
        low, high = geometry.tap_range(along.count, along.extent, along.stride, offset)
        if low < high:
            start = low * along.stride + offset
            source = slice(start, start + (high - low - 1) * along.stride + 1, along.stride)
            total[along.at(slice(low, high))] += x[along.at(source)]


def _add_by_inputs(x: Any, total: Any, along: Axis) -> None:
    """Add every input to the outputs that have it in their window: every so many, where taps are apart."""
    stride, offsets = along.stride, along.offsets
    common = gcd(stride, offsets.step)
    every = offsets.step // common
    inverse = pow(stride // common, -1, every)
    for index in range(along.extent):
        away = index - offsets[0]  # a window has the input if so far from its start there is a tap
        if away % common == 0:
            low = max(0, -((offsets[-1] - index) // stride))
            low += (away // common * inverse - low) % every
            high = min(along.count, away // stride + 1)
            if low < high:
                total[along.at(slice(low, high, every))] += x[along.at(slice(index, index + 1))]


def _add_by_outputs(x: Any, total: Any, along: Axis) -> None:
    for q in range(along.count):
        low, high = along.inside(q)
        if low < high:
            start = q * along.stride + along.offsets[low]
            inside = x[along.at(slice(start, start + (high - low - 1) * along.offsets.step + 1, along.offsets.step))]
            # Sums one after the other, as the other ways make them; NumPy's sum has another order.
            total[along.at(slice(q, q + 1))] += np.add.accumulate(inside, along.position)[along.at(slice(-1, None))]


def _lp_pool(form: Form, x: Any) -> Any:
    """Take the root of the sum of powers of each window, in which the padding counts for nothing."""
    g, p = geometry.max_pool(x.shape, **form.given(_WINDOW)), form.get("p")
    if on_device(x):
        return _root(_sums_by_conv(_powers(wide(x), p), g), p).astype(x.dtype, copy=False)
    result = np.empty(g.y_shape, x.dtype)

    def fill(place: Any) -> None:
        result[place] = _root(_sums_by_slices(_powers(wide(x[place]), p), g), p)

    with np.errstate(all="ignore"):
        _threads.run(fill, blocks_of_channels(x, _BLOCK), side_by_side=_threads.pays(x.nbytes))
    return result


def _powers(x: Any, p: float) -> Any:
    xp = namespace(x)
    return xp.square(x) if p == 2 else xp.power(xp.abs(x), p)


def _root(x: Any, p: float) -> Any:
    xp = namespace(x)
    return xp.sqrt(x) if p == 2 else xp.power(x, 1 / p)


def _global_lp_pool(form: Form, x: Any) -> Any:
    p, axes = form.get("p"), tuple(range(2, x.ndim))
    return _root(namespace(x).sum(_powers(wide(x), p), axis=axes, keepdims=True), p).astype(x.dtype, copy=False)


def _elements(g: geometry.MaxPoolGeometry, padding: bool) -> Any:
    """How many taps of each window count, with the padding or without it; (Q1, …, Qn)."""
    return reduce(np.multiply.outer, (_counts(g, axis, padding) for axis in range(len(g.kernel_shape))))


def _counts(g: geometry.MaxPoolGeometry, axis: int, padding: bool) -> Any:
    """How many taps of each window count along an axis."""
    before, after = (g.pads_begin[axis], g.pads_end[axis]) if padding else (0, 0)
    taps, step = g.kernel_shape[axis], g.dilations[axis]
    starts = np.arange(g.y_shape[2 + axis]) * g.strides[axis] - g.pads_begin[axis] + before
    last = g.x_shape[2 + axis] + before + after - 1
    return np.maximum(0, np.minimum(taps, (last - starts) // step + 1) - np.maximum(0, -(starts // step)))


def _global_average_pool(_: Form, x: Any) -> Any:
    means = namespace(x).mean(wide(x), axis=tuple(range(2, x.ndim)), keepdims=True)
    return means.astype(x.dtype, copy=False)


def _global_max_pool(_: Form, x: Any) -> Any:
    if prod(x.shape[2:]) == 0:
        raise ArgumentError(f"an empty array has no maximum (x.shape={x.shape})")
    return namespace(x).max(wide(x), axis=tuple(range(2, x.ndim)), keepdims=True).astype(x.dtype, copy=False)


def _max_unpool(form: Form, x: Any, indices: Any, output_shape: Any = None) -> Any:
    """Put maxima back; on a device, indices that number nothing count for nothing, so that nobody has to wait."""
    extents = None if output_shape is None else ints(output_shape)
    attributes = form.given(("kernel_shape", "pads", "strides"))
    return gpuconv.max_unpool(x, indices, extents, check_indices=not on_device(x), **attributes)


def _never(_: Form, *__: Any) -> int:
    raise ArgumentError("MaxUnpool is not computed ahead of the run")


OPERATORS = {
    "AveragePool": Operator(_average_pool, cost=_average_pool_cost),
    "GlobalAveragePool": Operator(_global_average_pool),
    "GlobalLpPool": Operator(_global_lp_pool),
    "GlobalMaxPool": Operator(_global_max_pool),
    "LpPool": Operator(_lp_pool, cost=_average_pool_cost),
    "MaxUnpool": Operator(_max_unpool, frozenset({2}), cost=_never),
}
