"""Pooling operators other than Conv's companions: LpPool, GlobalLpPool, GlobalMaxPool and MaxUnpool.

On a device, LpPool is a depthwise Conv with a filter of ones on powers of x. On the CPU it sums windows axis by axis,
in cache-sized blocks.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

import gpuconv
from gpuconv import cuda
from gpuconv._errors import ArgumentError
from gpuconv.cpu import _threads
from gpuconv.cpu.pool._sums import sums
from gpuconv.cpu.pool._windows import Axis
from gpuconv.onnx.operators.form import Form, Operator, blocks_of_channels, ints, namespace, wide
from gpuconv.rules import geometry, gradients
from gpuconv.rules.indices import refuse

_BLOCK = 2**17  # elements per block
_WINDOW = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")


def on_device(array: Any) -> bool:
    """Return whether an array is on a CUDA device, so that gpuconv's kernels can read it."""
    kind = cuda.runtime.array_type()
    return kind is not None and isinstance(array, kind)


def _window_cost(form: Form, x: Any) -> int:
    """Return an upper bound of the additions of all windows, computed axis by axis."""
    g = geometry.max_pool(x.shape, **form.given(_WINDOW))
    taps = sum(map(min, g.kernel_shape, g.x_shape[2:]))
    return prod(map(max, g.x_shape, g.y_shape)) * taps


def _sums_by_conv(x: Any, g: geometry.MaxPoolGeometry) -> Any:
    """Return window sums by a depthwise Conv with a filter of ones.

    Windows that ceil_mode adds at the end become padding, and elements that no window covers are cut off.
    """
    if 0 in g.y_shape:
        return namespace(x).ones(g.y_shape, x.dtype)  # the result is empty
    kernel, seen, begins, ends = [], [], [], []
    for q, s, k, d, n, before in zip(
        g.y_shape[2:], g.strides, g.kernel_shape, g.dilations, g.x_shape[2:], g.pads_begin, strict=True
    ):
        # Omit leading and trailing taps that are out of bounds for every output.
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


def _axes(g: geometry.MaxPoolGeometry) -> list[Axis]:
    """Return the window geometry of each spatial axis, for blocks (C, D1, ...)."""
    columns = zip(g.y_shape[2:], g.x_shape[2:], g.strides, g.offsets, strict=True)
    return [Axis(1 + axis, *numbers) for axis, numbers in enumerate(columns)]


def _lp_pool(form: Form, x: Any) -> Any:
    """LpPool: the p-norm of each window; padding contributes 0."""
    g, p = geometry.max_pool(x.shape, **form.given(_WINDOW)), form.get("p")
    if on_device(x):
        return _root(_sums_by_conv(_powers(wide(x), p), g), p).astype(x.dtype, copy=False)
    result, axes, is_single = np.empty(g.y_shape, x.dtype), _axes(g), prod(g.y_shape[2:]) == 1

    def fill(place: Any) -> None:
        powers = _powers(wide(x[place]), p)
        result[place] = _root(sums(powers, axes, powers.dtype, is_single=is_single), p)

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
    """GlobalLpPool: the p-norm over all spatial axes."""
    p, axes = form.get("p"), tuple(range(2, x.ndim))
    return _root(namespace(x).sum(_powers(wide(x), p), axis=axes, keepdims=True), p).astype(x.dtype, copy=False)


def _global_max_pool(_: Form, x: Any) -> Any:
    """GlobalMaxPool: the maximum over all spatial axes."""
    if prod(x.shape[2:]) == 0:
        raise ArgumentError(f"an empty array has no maximum (x.shape={x.shape})")
    return namespace(x).max(wide(x), axis=tuple(range(2, x.ndim)), keepdims=True).astype(x.dtype, copy=False)


def _max_unpool(form: Form, x: Any, indices: Any, output_shape: Any = None) -> Any:
    """MaxUnpool: store x at the positions that Indices give, which need not come from a MaxPool with these attributes.

    On the CPU, out-of-range indices raise ArgumentError. On a device they are ignored, because checking would
    synchronise.
    """
    extents = None if output_shape is None else ints(output_shape)
    attributes = form.given(("kernel_shape", "pads", "strides"))
    if not on_device(x):
        windows = gradients.max_unpool(x.shape, indices.shape, output_shape=extents, **attributes).index_windows
        wrong = np.argwhere((indices < -1) | (indices >= windows.count))
        if len(wrong):
            at = tuple(map(int, wrong[0]))
            refuse("max_unpool", int(indices[at]), at, windows, "NCHW")
    return gpuconv.max_unpool(x, indices, extents, check_indices=False, **attributes)


def _never(_: Form, *__: Any) -> int:
    """Refuse constant folding."""
    raise ArgumentError("MaxUnpool is not computed ahead of the run")


OPERATORS = {
    "GlobalLpPool": Operator(_global_lp_pool),
    "GlobalMaxPool": Operator(_global_max_pool),
    "LpPool": Operator(_lp_pool, cost=_window_cost),
    "MaxUnpool": Operator(_max_unpool, frozenset({2}), cost=_never),
}
