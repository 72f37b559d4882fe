"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear, to integers and to floating-point types of few bits.

A real value is ``(q - zero_point) * scale``; scale and zero point are per tensor, per axis or per block. On the CPU
large arrays are processed in cache-sized blocks. Types that CuPy lacks (below 8 bits, float8) are computed on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx

import gpuconv
from gpuconv._errors import ArgumentError
from gpuconv.cpu import _threads
from gpuconv.onnx.operators.form import DTYPES, NARROW, Form, Operator, Schema, namespace
from gpuconv.onnx.operators.pooling import on_device
from gpuconv.onnx.operators.shaping import axis_of

_BLOCK = 2**18  # elements per block
_STEPS = np.float32(255)  # largest unsigned 8-bit integer: the number of quantization steps
_PRECISION_SINCE = 23  # opset that introduced the attribute ``precision``; before it, quotients are float32


def _type_of(number: int) -> Any:
    return onnx.helper.tensor_dtype_to_np_dtype(number)


def _is_integer(dtype: Any) -> bool:
    return str(dtype.name).lstrip("u").startswith("int")


def integer_range(dtype: Any) -> tuple[int, int]:
    """Return the least and greatest value of an integer dtype of 2 to 64 bits."""
    unsigned = dtype.name.startswith("u")
    bits = int(dtype.name.lstrip("uint"))
    return (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def floats(xp: Any, values: Any) -> Any:
    """Return values of any dtype, on the host or in the library ``xp``, as float32 in ``xp``."""
    return xp.asarray(values.astype(np.float32))


def _library(*arrays: Any) -> Any:
    """Return the library to compute with: CuPy if any array is on the device, else NumPy."""
    return next((namespace(array) for array in arrays if not isinstance(array, np.ndarray)), np)


def _broadcastable(form: Form, parameter: Any, shape: tuple[int, ...]) -> Any:
    """Reshape or repeat scales or zero points so that they broadcast with x: per tensor, per axis or per block."""
    if parameter is None or parameter.size == 1:
        return parameter if parameter is None else parameter.reshape(())
    ndim, block = len(shape), form.get("block_size") or 0
    given = form.get("axis")
    axis = 0 if ndim == 1 else axis_of(1 if given is None else given, ndim)
    if not block:
        if parameter.shape != (shape[axis],):
            raise ArgumentError(
                f"a scale or zero point per element of axis {axis} must have the shape ({shape[axis]},), "
                f"not {parameter.shape} (x.shape={shape})"
            )
        return parameter.reshape(-1, *(1,) * (ndim - 1 - axis))
    expected = (*shape[:axis], -(-shape[axis] // block), *shape[axis + 1 :])
    if block < 0 or parameter.shape != expected:
        raise ArgumentError(
            f"a scale or zero point per block of {block} along axis {axis} must have the shape {expected}, "
            f"not {parameter.shape} (x.shape={shape})"
        )
    repeated = namespace(parameter).repeat(parameter, block, axis)
    return repeated[(*(slice(None),) * axis, slice(0, shape[axis]))]


def _by_blocks(compute: Callable[[Any], Any], x: Any, dtype: Any, alike: bool) -> Any:
    """Compute element by element; on the host with one scale for all elements (``alike``), in cache-sized blocks."""
    if not (alike and isinstance(x, np.ndarray)) or x.size <= _BLOCK:
        return compute(x)
    flat, y = x.reshape(-1), np.empty(x.size, dtype)

    def fill(place: slice) -> None:
        y[place] = compute(flat[place])

    places = [slice(low, low + _BLOCK) for low in range(0, x.size, _BLOCK)]
    _threads.run(fill, places, side_by_side=_threads.pays(x.nbytes))
    return y.reshape(x.shape)


def saturated(y: Any, zero: Any, dtype: Any, saturate: bool = True) -> Any:
    """Round floats to the nearest value of a dtype, ties to even, add the zero point, and saturate.

    y may be overwritten. NaN becomes the least integer. Targets that are not integers are computed on the host.
    """
    with np.errstate(all="ignore"):
        return _to_integers(y, zero, dtype) if _is_integer(dtype) else _to_floats(y, zero, dtype, saturate)


def _to_integers(y: Any, zero: Any, dtype: Any) -> Any:
    """Round to the nearest integer, ties to even, add the zero point, and saturate."""
    xp, (low, high) = namespace(y), integer_range(dtype)
    if not isinstance(y, np.ndarray):
        y = xp.rint(y)
        return xp.fmin(xp.fmax(y if zero is None else y + zero, low), high).astype(dtype)
    np.rint(y, out=y)
    if zero is not None:
        y += zero
    np.clip(y, low, high, out=y)  # several times faster than fmin and fmax, but keeps NaN
    if np.isnan(np.max(y, initial=low)):
        y[np.isnan(y)] = low
    return y.astype(dtype)


def _to_floats(y: Any, zero: Any, dtype: Any, saturate: bool) -> Any:
    """Add the zero point and convert to a narrow floating-point type; float8 types saturate at their largest value."""
    if zero is not None and zero.any():  # the specification requires 0; adding it would change the sign of -0.0
        y = y + zero
    if saturate and dtype.name.startswith("float8"):
        greatest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        y = np.clip(y, -greatest, greatest)
    return y.astype(dtype)


def _quantized_type(form: Form, zero: Any) -> Any:
    """Return the output dtype: from the zero point, or the attribute output_dtype, or uint8."""
    requested = form.get("output_dtype")
    if zero is None:
        return _type_of(requested) if requested else np.dtype(np.uint8)
    if requested and _type_of(requested) != zero.dtype:
        raise ArgumentError(f"output_dtype is {_type_of(requested)}, but y_zero_point has dtype {zero.dtype}")
    return zero.dtype


def _quotient_type(form: Form, scale: Any) -> Any:
    """Return the dtype to which the quotient x / scale is rounded."""
    if form.opset < _PRECISION_SINCE:
        return np.dtype(np.float32)
    return _type_of(form.get("precision")) if form.get("precision") else scale.dtype


def _quantize(form: Form, x: Any, scale: Any, zero: Any = None) -> Any:
    """QuantizeLinear: return ``saturate(round(x / scale) + zero_point)``."""
    dtype = _quantized_type(form, zero)
    if dtype.name in NARROW:  # CuPy lacks these types
        x, scale = (gpuconv.to_host(a) if on_device(a) else a for a in (x, scale))
    xp = _library(x, scale)
    precision = _quotient_type(form, scale)
    exact = np.float64 if precision.kind == "i" else np.float32
    scales = _broadcastable(form, floats(xp, scale).astype(exact), x.shape)
    zeros = None if zero is None else _broadcastable(form, floats(xp, zero), x.shape)

    def compute(part: Any) -> Any:
        with np.errstate(all="ignore"):
            y = part.astype(exact, copy=False) / scales
            if precision.name in ("float16", "bfloat16"):
                y = y.astype(precision).astype(np.float32)
        return saturated(y, zeros, dtype, form.get("saturate") != 0)

    return _by_blocks(compute, xp.asarray(x), dtype, scales.ndim == 0)


def _dequantize(form: Form, x: Any, scale: Any, zero: Any = None) -> Any:
    """DequantizeLinear: return ``(x - zero_point) * scale``."""
    xp = _library(x, scale)
    dtype = _type_of(form.get("output_dtype")) if form.get("output_dtype") else scale.dtype
    if dtype.name in NARROW:
        raise ArgumentError(f"x_scale has dtype {dtype}, which x cannot have: the attribute output_dtype must be given")
    scales = _broadcastable(form, floats(xp, scale), x.shape)
    zeros = zero
    if zero is not None:
        zeros = _broadcastable(form, xp.asarray(zero) if x.dtype == np.int32 else floats(xp, zero), x.shape)

    if isinstance(x, np.ndarray) and x.dtype.name in ("int8", "uint8") and dtype == np.float32 and scales.ndim:
        return _scaled(x, scales, zeros)

    def compute(part: Any) -> Any:
        if x.dtype == np.int32 and zeros is not None:  # subtract int32 zero points as integers, which is exact
            part = part - zeros
        y = floats(xp, part)
        if x.dtype != np.int32 and zeros is not None:
            y -= zeros
        y *= scales
        return y.astype(dtype, copy=False)

    return _by_blocks(compute, x, dtype, scales.ndim == 0)


def _scaled(x: Any, scales: Any, zeros: Any) -> Any:
    """Dequantize 8-bit arrays with scales per axis or block, a range of the first axis at a time."""
    y, step = np.empty(x.shape, np.float32), max(1, _BLOCK * len(x) // max(1, x.size))
    for low in range(0, len(x), step):
        rows = slice(low, low + step)
        part, zero, scale = y[rows], _slice_of(zeros, rows, x), _slice_of(scales, rows, x)
        part[...] = x[rows]
        if zero is not None and zero.any():
            part -= zero
        part *= scale
    return y


def _slice_of(parameter: Any, rows: slice, x: Any) -> Any:
    """Return the slice of a parameter for a range of the first axis of x; the whole if it does not vary along it."""
    goes_along = parameter is not None and parameter.ndim == x.ndim and len(parameter) == len(x)
    return parameter[rows] if goes_along else parameter


def _range(xp: Any, x: Any) -> tuple[Any, Any]:
    """Return minimum and maximum of x and 0; NaN is ignored."""
    if isinstance(x, np.ndarray):  # np.min reports NaN, which saves a separate pass
        low, high = np.min(x, initial=0), np.max(x, initial=0)
        if not np.isnan(low):
            return low, high
    if x.size == 0:
        return (xp.zeros((), np.float32),) * 2
    numbers = xp.where(x == x, x, 0)
    return xp.minimum(xp.min(numbers), 0), xp.maximum(xp.max(numbers), 0)


def _parameters(xp: Any, x: Any) -> tuple[Any, Any]:
    """Return scale and uint8 zero point from the range of x, extended to include 0; NaN is ignored."""
    low, high = _range(xp, x)
    with np.errstate(all="ignore"):
        scale = xp.where(low == high, 1, (high - low) / 255).astype(np.float32)
        return scale, xp.asarray(saturated(-low / scale, None, np.dtype(np.uint8)))


def centred(x: Any) -> tuple[Any, Any]:
    """Quantize x dynamically to uint8; return the integers minus their zero point as float32, and the scale."""
    if isinstance(x, np.ndarray):
        low, high = np.minimum.reduce(x, None, initial=0), np.maximum.reduce(x, None, initial=0)
        step = (high - low) / _STEPS
        if 0 < step < np.inf:
            return _centred(x, low, step), step
    xp = namespace(x)
    scale, zero = _parameters(xp, x)
    zero = zero.astype(np.float32)
    with np.errstate(all="ignore"):
        y = xp.rint(x / scale)
    return xp.fmin(xp.fmax(y, -zero), 255 - zero), scale


def _centred(x: Any, low: Any, scale: Any) -> Any:
    """As :func:`centred`, for NumPy arrays with a finite non-zero range, with a minimum of NumPy calls."""
    zero = np.rint(-low / scale)
    y = np.rint(x / scale)
    np.minimum(y, _STEPS - zero, out=y)
    np.maximum(y, -zero, out=y)
    return y


def _dynamic(_: Form, x: Any) -> Any:
    """DynamicQuantizeLinear: quantize to uint8 by the range of x; return integers, scale and zero point."""
    scale, zero = _parameters(namespace(x), x)

    def compute(part: Any) -> Any:
        with np.errstate(all="ignore"):
            return saturated(part / scale, zero.astype(np.float32), zero.dtype)

    return _by_blocks(compute, x, zero.dtype, True), scale, zero


def _cost(_: Form, x: Any, *__: Any) -> int:
    return int(x.size)


OPERATORS = {
    "DequantizeLinear": Operator(_dequantize, cost=_cost, dtypes=DTYPES | NARROW),
    "DynamicQuantizeLinear": Operator(_dynamic, cost=_cost),
    "QuantizeLinear": Operator(_quantize, cost=_cost, dtypes=DTYPES | NARROW),
}


def _before_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an implementation so that its quotients are float32 at every opset, as com.microsoft's operators define."""
    return lambda form, *inputs: function(replace(form, opset=_PRECISION_SINCE - 1), *inputs)


CONTRIBUTED = {
    name: Operator(
        _before_precision(function),
        cost=_cost,
        dtypes=DTYPES | NARROW,
        schema=Schema(("x", "scale", "zero_point?"), {"axis": int}),
    )
    for name, function in (("DequantizeLinear", _dequantize), ("QuantizeLinear", _quantize))
}  # domain com.microsoft
