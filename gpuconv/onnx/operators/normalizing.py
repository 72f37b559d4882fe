"""Operators that combine many elements: normalisations, Softmax and its variants, reductions, ArgMax and ArgMin.

16-bit floats are computed in float32 and rounded once. Differences between opsets, such as axes as attribute or input,
are resolved here.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import onnx

from gpuconv._errors import ArgumentError
from gpuconv.onnx.operators.elementwise import divide
from gpuconv.onnx.operators.form import Form, Operator, ints, is_float, namespace, saturated, wide
from gpuconv.onnx.operators.shaping import axis_of

_TINY_DEVIATION = 1e-9  # MeanVarianceNormalization adds this to standard deviations


def _batch_normalization(form: Form, x: Any, *parameters: Any) -> Any:
    """BatchNormalization in inference mode, with mean and variance as inputs."""
    ones = (1,) * (x.ndim - 2)
    # Before opset 9, spatial=0 has parameters of the shape of one image, which broadcast without reshaping.
    shaped = [wide(p.reshape(-1, *ones) if p.ndim == 1 else p) for p in parameters]
    scale, bias, mean, var = shaped
    factor = scale / namespace(x).sqrt(var + form.get("epsilon"))
    return ((wide(x) - mean) * factor + bias).astype(x.dtype, copy=False)


def _per_channel_cost(_: Form, x: Any, *parameters: Any) -> int:
    """Return an upper bound that allows for a single channel broadcasting to several parameters."""
    return int(x.size) * max(int(np.size(p)) for p in parameters)


def _infers(form: Form) -> bool:
    """Return whether a node is in inference mode; before opset 7 the attribute is_test says so, with default 0."""
    return not form.get("training_mode") and form.get("is_test") != 0 and sum(form.outputs) == 1


def standardized(x: Any, axes: tuple[int, ...], epsilon: float) -> tuple[Any, Any, Any]:
    """Return (x - mean) / sqrt(variance + epsilon) over some axes, the mean, and 1 / sqrt(variance + epsilon)."""
    xp = namespace(x)
    mean = xp.mean(x, axis=axes, keepdims=True)
    shifted = x - mean
    factor = 1 / xp.sqrt(xp.mean(xp.square(shifted), axis=axes, keepdims=True) + epsilon)
    shifted *= factor
    return shifted, mean, factor


def _instance_normalization(form: Form, x: Any, scale: Any, bias: Any) -> Any:
    """InstanceNormalization: normalise each channel of each image over its spatial axes."""
    per_channel = (-1, *(1,) * (x.ndim - 2))
    if scale.shape != (x.shape[1],) or bias.shape != (x.shape[1],):
        raise ArgumentError(
            f"scale and B must have the shape ({x.shape[1]},), one number per channel, "
            f"not {scale.shape} and {bias.shape}"
        )
    y, _, _ = standardized(wide(x), tuple(range(2, x.ndim)), form.get("epsilon"))
    return (y * wide(scale).reshape(per_channel) + wide(bias).reshape(per_channel)).astype(x.dtype, copy=False)


def _group_normalization(form: Form, x: Any, scale: Any, bias: Any) -> Any:
    """GroupNormalization, in the wider of stash_type and the type of x.

    Before opset 21, scale and bias have one element per group, later one per channel.
    """
    groups, channels = form.get("num_groups"), x.shape[1]
    if groups < 1 or channels % groups:
        raise ArgumentError(f"num_groups is {groups}, which does not divide the {channels} channels of X {x.shape}")
    owners = groups if form.opset < 21 else channels
    if scale.shape != (owners,) or bias.shape != (owners,):
        raise ArgumentError(f"scale and bias must have the shape ({owners},), not {scale.shape} and {bias.shape}")
    values = wide(x)
    if form.get("stash_type") == onnx.TensorProto.DOUBLE:
        values = values.astype(np.float64)
    size = channels * prod(x.shape[2:])  # elements per image
    y, _, _ = standardized(values.reshape(x.shape[0], groups, size // groups), (2,), form.get("epsilon"))
    y = y.reshape(x.shape[0], owners, size // owners) * wide(scale).reshape(-1, 1) + wide(bias).reshape(-1, 1)
    return y.reshape(x.shape).astype(x.dtype, copy=False)


def _layer_normalization(form: Form, x: Any, scale: Any, bias: Any = None) -> Any:
    """LayerNormalization over the axes from ``axis`` on, with outputs Mean and InvStdDev in the type stash_type."""
    axes = tuple(range(axis_of(form.get("axis"), x.ndim), x.ndim))
    y, mean, factor = standardized(wide(x), axes, form.get("epsilon"))
    y *= wide(scale)
    if bias is not None:
        y += wide(bias)
    y = y.astype(x.dtype, copy=False)
    stash_dtype = onnx.helper.tensor_dtype_to_np_dtype(form.get("stash_type"))
    return (y, mean.astype(stash_dtype, copy=False), factor.astype(stash_dtype, copy=False))[: len(form.outputs)]


def _rms_normalization(form: Form, x: Any, scale: Any) -> Any:
    """RMSNormalization: divide by the root mean square, in the wider of stash_type and the type of x.

    The quotient is rounded to the type of x, its product with scale to the type of scale.
    """
    values, axis = wide(x), axis_of(form.get("axis"), x.ndim)
    if form.get("stash_type") == onnx.TensorProto.DOUBLE:
        values = values.astype(np.float64)
    xp, axes = namespace(x), tuple(range(axis, x.ndim))
    y = values / xp.sqrt(xp.mean(xp.square(values), axis=axes, keepdims=True) + form.get("epsilon"))
    return (wide(y.astype(x.dtype, copy=False)) * wide(scale)).astype(scale.dtype, copy=False)


def _mean_variance_normalization(form: Form, x: Any) -> Any:
    """MeanVarianceNormalization: ``(x - mean) / (deviation + 1e-9)``, as its function definition in ONNX says."""
    axes = form.get("axes") if form.opset >= 9 else (0, 2, 3)
    over, values, xp = tuple(axis_of(axis, x.ndim) for axis in axes), wide(x), namespace(x)
    centred = values - xp.mean(values, axis=over, keepdims=True)
    deviation = xp.sqrt(xp.mean(xp.square(centred), axis=over, keepdims=True))
    return (centred / (deviation + _TINY_DEVIATION)).astype(x.dtype, copy=False)


def _lp_normalization(form: Form, x: Any) -> Any:
    """LpNormalization: divide by the L1 or L2 norm along an axis; if the norm is 0, results are 0.

    Elements are first divided by the largest magnitude, so that squares neither overflow nor underflow.
    """
    axis, p = axis_of(form.get("axis"), x.ndim), form.get("p")
    if p not in (1, 2):
        raise ArgumentError(f"p must be 1 or 2, not {p}")
    if not x.size:
        return x
    xp = namespace(x)
    largest = xp.max(xp.abs(wide(x)), axis=axis, keepdims=True)
    y = wide(x) / xp.where((largest > 0) & (largest < np.inf), largest, 1)
    norm = xp.sum(xp.abs(y) if p == 1 else xp.square(y), axis=axis, keepdims=True)
    norm = norm if p == 1 else xp.sqrt(norm)
    return (y / xp.where(norm == 0, 1, norm)).astype(x.dtype, copy=False)


def _lrn(form: Form, x: Any) -> Any:
    """LRN: normalise across channels c - floor((size - 1) / 2) to c + ceil((size - 1) / 2)."""
    size, channels = form.get("size"), x.shape[1]
    if size < 1:
        raise ArgumentError(f"size must be at least 1, not {size}")
    squares = namespace(x).square(wide(x))
    total = squares.copy()
    for offset in range(-min((size - 1) // 2, channels - 1), min(size // 2, channels - 1) + 1):
        low, high = max(0, -offset), min(channels, channels - offset)
        if offset:
            total[:, low:high] += squares[:, low + offset : high + offset]
    total *= form.get("alpha") / size
    total += form.get("bias")
    return (wide(x) / _raised(total, form.get("beta"))).astype(x.dtype, copy=False)


def _lrn_cost(form: Form, x: Any) -> int:
    return int(x.size * min(form.get("size"), 2 * x.shape[1]))


def _raised(x: Any, power: float) -> Any:
    """Return x ** power; for the default 3/4 by two square roots, which is faster."""
    if power != 0.75:
        return x**power
    root = namespace(x).sqrt(x)
    return root * namespace(x).sqrt(root)


def _of_rows(compute: Callable[[Any, Any, int], Any]) -> Operator:
    """Make a Softmax-like operator along one axis; before opset 13, that axis and all later ones are flattened."""

    def function(form: Form, x: Any) -> Any:
        if x.size == 0:
            return x
        axis = axis_of(form.get("axis"), x.ndim, last=form.opset < 13)
        rows = x if form.opset >= 13 else x.reshape(prod(x.shape[:axis]), -1)
        y = compute(namespace(x), wide(rows), axis if form.opset >= 13 else 1)
        return y.reshape(x.shape).astype(x.dtype, copy=False)

    return Operator(function)


def _softmax(xp: Any, x: Any, axis: int) -> Any:
    powers = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return powers / xp.sum(powers, axis=axis, keepdims=True)


def _log_softmax(xp: Any, x: Any, axis: int) -> Any:
    shifted = x - xp.max(x, axis=axis, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))


def _hardmax(xp: Any, x: Any, axis: int) -> Any:
    """Return 1 at the first maximum along an axis, 0 elsewhere."""
    along = xp.arange(x.shape[axis]).reshape(-1, *(1,) * (x.ndim - 1 - axis))
    return (along == xp.expand_dims(xp.argmax(x, axis=axis), axis)).astype(x.dtype)


def _reduction(
    compute: Callable[[Any], Callable[..., Any]],
    axes_come_since: int,
    elementwise_result: Callable[[Any, Any], Any] | None = None,
) -> Operator:
    """Make a reduction; ``compute(xp)`` returns the library's function.

    Axes are an input since opset ``axes_come_since``, and an attribute before. ``elementwise_result(xp, x)`` is the
    result with noop_with_empty_axes and no axes, where each element is reduced by itself; the default is x.
    """

    def function(form: Form, x: Any, axes: Any = None) -> Any:
        axes = axes if form.opset >= axes_come_since else form.get("axes")
        over = [] if axes is None else ints(axes)
        if not over and form.get("noop_with_empty_axes"):
            return x if elementwise_result is None else _as(x, elementwise_result(namespace(x), wide(x)))
        dropped = tuple(axis_of(axis, x.ndim) for axis in over) if over else None
        return _as(x, compute(namespace(x))(wide(x), axis=dropped, keepdims=bool(form.get("keepdims"))))

    return Operator(function, frozenset({1}))


def _as(x: Any, y: Any) -> Any:
    """Return y in the type of x; floating-point values are truncated and saturated for integer types."""
    return saturated(y, x.dtype) if x.dtype.kind in "iu" and y.dtype.kind == "f" else y.astype(x.dtype, copy=False)


def _of_squares(xp: Any) -> Callable[..., Any]:
    return lambda x, **options: xp.sum(xp.square(x), **options)


def _l1(xp: Any) -> Callable[..., Any]:
    return lambda x, **options: xp.sum(xp.abs(x), **options)


def _l2(xp: Any) -> Callable[..., Any]:
    return lambda x, **options: xp.sqrt(xp.sum(xp.square(x), **options))


def _log_sum(xp: Any) -> Callable[..., Any]:
    def log_sum(x: Any, **options: Any) -> Any:
        return xp.log(xp.sum(_real(x), **options))

    return log_sum


def _log_sum_exp(xp: Any) -> Callable[..., Any]:
    """Log of the sum of exponentials, shifted by the maximum to avoid overflow; -inf for no elements."""

    def log_sum_exp(x: Any, axis: tuple[int, ...] | None, keepdims: bool) -> Any:
        x = _real(x)
        top = _extreme("max")(xp)(x, axis=axis, keepdims=True)
        shift = xp.where(xp.abs(top) < np.inf, top, 0)
        total = xp.log(xp.sum(xp.exp(x - shift), axis=axis, keepdims=keepdims))
        return total + shift.reshape(total.shape)

    return log_sum_exp


def _real(x: Any) -> Any:
    """Return integers as float64: logarithms accept them before opset 27."""
    return x if is_float(x) else x.astype(np.float64)


def _place(name: str) -> Operator:
    """Make ArgMax or ArgMin from the name of the library's function."""

    def function(form: Form, x: Any) -> Any:
        axis = axis_of(form.get("axis"), x.ndim)
        if not x.shape[axis]:
            raise ArgumentError(f"axis {axis} of x.shape={x.shape} has no elements to choose from")
        last = form.get("select_last_index")
        turned = wide(x)[(*(slice(None),) * axis, slice(None, None, -1))] if last else wide(x)
        found = getattr(namespace(x), name)(turned, axis=axis)
        places = (x.shape[axis] - 1 - found if last else found).astype(np.int64)
        kept = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        return places.reshape(kept) if form.get("keepdims") else places

    return Operator(function)


def _mean(xp: Any) -> Callable[..., Any]:
    """Mean; for integers, the truncated quotient of sum and count."""

    def mean(x: Any, **options: Any) -> Any:
        if is_float(x):
            return xp.mean(x, **options)
        return divide(xp.sum(x, **options), _count(x, options["axis"]))

    return mean


def _extreme(name: str) -> Callable[[Any], Callable[..., Any]]:
    """Return the maximum or minimum of a library; for no elements it is the end of the type's range."""

    def pick(xp: Any) -> Callable[..., Any]:
        def extreme(x: Any, **options: Any) -> Any:
            if x.size:
                return getattr(xp, name)(x, **options)
            return xp.full(xp.sum(x, **options).shape, _end(x.dtype, name == "max"), x.dtype)

        return extreme

    return pick


def _end(dtype: Any, lowest: bool) -> Any:
    if dtype.kind == "b":
        return not lowest
    if dtype.kind == "f":
        return -np.inf if lowest else np.inf
    return np.iinfo(dtype).min if lowest else np.iinfo(dtype).max


def _count(x: Any, axes: tuple[int, ...] | None) -> int:
    return prod(x.shape if axes is None else (x.shape[axis] for axis in axes))


OPERATORS = {
    "ArgMax": _place("argmax"),
    "ArgMin": _place("argmin"),
    "BatchNormalization": Operator(_batch_normalization, serves=_infers, cost=_per_channel_cost),
    "GroupNormalization": Operator(_group_normalization, cost=_per_channel_cost),
    "Hardmax": _of_rows(_hardmax),
    "InstanceNormalization": Operator(_instance_normalization, cost=_per_channel_cost),
    "LRN": Operator(_lrn, cost=_lrn_cost),
    "LayerNormalization": Operator(_layer_normalization),
    "LogSoftmax": _of_rows(_log_softmax),
    "LpNormalization": Operator(_lp_normalization),
    "MeanVarianceNormalization": Operator(_mean_variance_normalization),
    "RMSNormalization": Operator(_rms_normalization),
    "ReduceL1": _reduction(_l1, 18, lambda xp, x: xp.abs(x)),
    "ReduceL2": _reduction(_l2, 18, lambda xp, x: xp.abs(x)),
    "ReduceLogSum": _reduction(_log_sum, 18, lambda xp, x: xp.log(_real(x))),
    "ReduceLogSumExp": _reduction(_log_sum_exp, 18),
    "ReduceMax": _reduction(_extreme("max"), 18),
    "ReduceMean": _reduction(_mean, 18),
    "ReduceMin": _reduction(_extreme("min"), 18),
    "ReduceProd": _reduction(lambda xp: xp.prod, 18),
    "ReduceSum": _reduction(lambda xp: xp.sum, 13),
    "ReduceSumSquare": _reduction(_of_squares, 18, lambda xp, x: xp.square(x)),
    "Softmax": _of_rows(_softmax),
}
