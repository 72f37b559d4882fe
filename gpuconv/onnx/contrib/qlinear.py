"""Quantized 8-bit operators of com.microsoft, which ONNX Runtime's static quantization inserts (QOperator format).

Each operator is equivalent to DequantizeLinear, a float32 operator and QuantizeLinear. Sums of integers are exact here,
and the scales of inputs and output are combined into one factor. Unary operators use a lookup table of all 256 results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

import gpuconv
from gpuconv import cuda
from gpuconv._errors import ArgumentError
from gpuconv.cpu import _threads
from gpuconv.onnx.operators.form import Form, Operator, Schema, broadcast_cost, ints, namespace
from gpuconv.onnx.operators.quantizing import integer_range, saturated
from gpuconv.onnx.operators.shaping import axis_of

_BLOCK = 2**16  # elements per block of a binary operator
_AVERAGE_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
_MAX_POOL = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
_MOST_JOINED = 1024  # largest number of QLinearConcat inputs whose scales and zero points stay on the host


@dataclass(frozen=True, slots=True)
class Quantization:
    """Per-tensor quantization parameters: an integer q stands for ``(q - zero) * scale``.

    Attributes
    ----------
    scale : float
        A float32 number.
    zero : int
        The zero point.
    dtype : numpy.dtype
        Type of the integers, int8 or uint8.
    """

    scale: float
    zero: int
    dtype: Any

    @classmethod
    def of(cls, scale: Any, zero: Any, dtype: Any) -> Quantization:
        """Return the parameters from a node's inputs, which are on the host; a missing zero point is 0."""
        for name, given in (("scale", scale), ("zero point", zero)):
            if given is not None and given.size != 1:
                raise ArgumentError(f"a {name} must be one number, not an array of shape {given.shape}")
        if zero is not None and zero.dtype != dtype:
            raise ArgumentError(f"a zero point has dtype {zero.dtype}, but its tensor has dtype {dtype}")
        return cls(float(scale.reshape(())), 0 if zero is None else int(zero.reshape(())), np.dtype(dtype))

    def centred(self, x: Any) -> Any:
        """Return integers minus the zero point, as float32."""
        y = x.astype(np.float32)
        if self.zero:
            y -= np.float32(self.zero)
        return y

    def rounded(self, y: Any) -> Any:
        """Round and saturate float32 values, already divided by the scale, to integers; ``y`` may be overwritten."""
        return saturated(y, np.float32(self.zero), self.dtype)


# ---------------------------------------------------------------- one value

_Curve = Callable[[Any, float], Any]  # (float64 values, alpha) -> float64 values


class _Table:
    """Lookup table for a unary function on 8-bit integers: dequantize, apply the function, quantize."""

    def __init__(self, curve: _Curve, alpha: float, x: Quantization, y: Quantization) -> None:
        low, high = integer_range(x.dtype)
        self._low = low
        with np.errstate(all="ignore"):
            real = np.float32(x.scale) * np.arange(low - x.zero, high + 1 - x.zero, dtype=np.float32)
            results = curve(real.astype(np.float64), alpha).astype(np.float32)
            self._values = y.rounded(results / np.float32(y.scale))
        self._by_byte = np.roll(self._values, low).tobytes()
        self._on_devices: dict[Any, Any] = {}

    def of(self, x: Any) -> Any:
        """Return the result for every element of x, a NumPy or device array."""
        if isinstance(x, np.ndarray):
            translated = bytearray(x.tobytes()).translate(self._by_byte)
            return np.frombuffer(translated, self._values.dtype).reshape(x.shape)
        place = type(x), cuda.runtime.current_device()
        if place not in self._on_devices:
            self._on_devices[place] = namespace(x).asarray(self._values)
        return namespace(x).take(self._on_devices[place], x.astype(np.int32) - self._low)


_table = lru_cache(maxsize=1024)(_Table)


def _same(x: Any, _: float) -> Any:
    """Identity, for requantization."""
    return x


def _sigmoid(x: Any, _: float) -> Any:
    return 1 / (1 + np.exp(-x))


def _leaky_relu(x: Any, alpha: float) -> Any:
    """LeakyRelu with slope ``alpha`` for negative values."""
    return np.where(x < 0, alpha * x, x)


def _requantized(x: Any, before: Quantization, after: Quantization) -> Any:
    """Return the same numbers quantized with another scale and zero point."""
    return x if before == after else _table(_same, 0.0, before, after).of(x)


def _of_one(curve: _Curve) -> Callable[..., Any]:
    """Return the implementation of a unary operator from its float64 function."""

    def function(form: Form, x: Any, x_scale: Any, x_zero: Any, y_scale: Any, y_zero: Any = None) -> Any:
        before, after = Quantization.of(x_scale, x_zero, x.dtype), Quantization.of(y_scale, y_zero, x.dtype)
        return _table(curve, form.get("alpha") or 0.0, before, after).of(x)

    return function


def _concat(form: Form, y_scale: Any, y_zero: Any, *inputs: Any) -> Any:
    """QLinearConcat: concatenate tensors, each followed by its scale and zero point, after requantization."""
    if len(inputs) % 3:
        raise ArgumentError(f"inputs must come with a scale and a zero point each, but there are {len(inputs)} in all")
    after = Quantization.of(y_scale, y_zero, y_zero.dtype)
    parts = [
        _requantized(x, Quantization.of(scale, zero, x.dtype), after)
        for x, scale, zero in zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    ]
    return namespace(parts[0]).concatenate(parts, axis=axis_of(form.get("axis"), parts[0].ndim))


def _where(_: Form, condition: Any, *inputs: Any) -> Any:
    """QLinearWhere: choose between X and Y, both requantized to the output's scale and zero point."""
    x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero = inputs
    after = Quantization.of(z_scale, z_zero, x.dtype)
    chosen = _requantized(x, Quantization.of(x_scale, x_zero, x.dtype), after)
    alternative = _requantized(y, Quantization.of(y_scale, y_zero, y.dtype), after)
    return namespace(condition).where(condition, chosen, alternative)


# ---------------------------------------------------------------- two values


def _add(a: Quantization, b: Quantization, c: Quantization) -> Callable[[Any, Any], Any]:
    """Return the function that computes QLinearAdd on arrays of integers with these quantizations."""
    of_a, of_b = np.float32(a.scale / c.scale), np.float32(b.scale / c.scale)

    def compute(x: Any, y: Any) -> Any:
        return c.rounded(a.centred(x) * of_a + b.centred(y) * of_b)

    return compute


def _multiply(a: Quantization, b: Quantization, c: Quantization) -> Callable[[Any, Any], Any]:
    """Return the function that computes QLinearMul on arrays of integers with these quantizations."""
    factor = np.float32(a.scale * b.scale / c.scale)

    def compute(x: Any, y: Any) -> Any:
        return c.rounded(a.centred(x) * b.centred(y) * factor)

    return compute


def _of_two(arithmetic: Callable[[Quantization, Quantization, Quantization], Callable[[Any, Any], Any]]) -> Any:
    """Return the implementation of a binary operator; ``arithmetic`` takes the quantization of A, B and C."""

    def function(_: Form, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, *of_c: Any) -> Any:
        of_a, of_b = Quantization.of(a_scale, a_zero, a.dtype), Quantization.of(b_scale, b_zero, b.dtype)
        c_scale, c_zero = (*of_c, None)[:2]
        return _by_blocks(arithmetic(of_a, of_b, Quantization.of(c_scale, c_zero, a.dtype)), a, b)

    return function


def _by_blocks(compute: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Compute element by element; for NumPy arrays of equal shape in blocks whose float32 values fit in the cache."""
    if not isinstance(a, np.ndarray) or a.shape != b.shape or a.size <= _BLOCK:
        return compute(a, b)
    a_flat, b_flat, y = a.reshape(-1), b.reshape(-1), np.empty(a.size, a.dtype)

    def fill(place: slice) -> None:
        y[place] = compute(a_flat[place], b_flat[place])

    places = [slice(low, low + _BLOCK) for low in range(0, a.size, _BLOCK)]
    _threads.run(fill, places, side_by_side=_threads.pays(4 * a.size))
    return y.reshape(a.shape)


# ---------------------------------------------------------------- means and sums of several values


def _average_pool(form: Form, x: Any, x_scale: Any, x_zero: Any, y_scale: Any, y_zero: Any = None) -> Any:
    """QLinearAveragePool: average ``integer - zero point`` in float32; padding counts as 0."""
    before, after = Quantization.of(x_scale, x_zero, x.dtype), Quantization.of(y_scale, y_zero, x.dtype)
    keywords = {**form.given(_AVERAGE_POOL), "layout": "NHWC" if form.get("channels_last") else "NCHW"}
    y = gpuconv.average_pool(before.centred(x), **keywords)
    y *= np.float32(before.scale / after.scale)
    return after.rounded(y)


def _max_pool(form: Form, x: Any) -> Any:
    """NhwcMaxPool: MaxPool of x in NHWC layout (N, D1, ..., Dn, C)."""
    keywords = {**form.given(_MAX_POOL), "layout": "NHWC"}
    return gpuconv.max_pool(x, **keywords)


def _global_average_pool(form: Form, x: Any, *parameters: Any) -> Any:
    """QLinearGlobalAveragePool: mean over the spatial axes of NCHW or NHWC input."""
    last = bool(form.get("channels_last"))
    return _mean(x, tuple(range(2 - last, x.ndim - last)), True, *parameters)


def _reduce_mean(form: Form, x: Any, *parameters: Any) -> Any:
    """QLinearReduceMean: mean over the given axes, or over all."""
    axes = tuple(axis_of(axis, x.ndim) for axis in ints(form.get("axes"))) or tuple(range(x.ndim))
    return _mean(x, axes, bool(form.get("keepdims")), *parameters)


def _mean(
    x: Any, axes: tuple[int, ...], keepdims: bool, x_scale: Any, x_zero: Any, y_scale: Any, y_zero: Any = None
) -> Any:
    """Return the quantized mean over axes: an exact integer sum, then a single multiplication by scales and 1 /
    count.
    """
    before, after = Quantization.of(x_scale, x_zero, x.dtype), Quantization.of(y_scale, y_zero, x.dtype)
    count = prod(x.shape[axis] for axis in axes)
    if not count:
        raise ArgumentError(f"there is no mean of no elements (x.shape={x.shape}, axes {axes})")
    total = namespace(x).sum(x, axis=axes, dtype=np.int64, keepdims=keepdims) - before.zero * count
    return after.rounded(total.astype(np.float32) * np.float32(before.scale / (after.scale * count)))


def _softmax(form: Form, x: Any, x_scale: Any, x_zero: Any, y_scale: Any, y_zero: Any = None) -> Any:
    """QLinearSoftmax along an axis; for an ``opset`` attribute before 13, over that axis and all later ones."""
    before, after = Quantization.of(x_scale, x_zero, x.dtype), Quantization.of(y_scale, y_zero, x.dtype)
    if not x.size:
        return x
    axis, rows = axis_of(form.get("axis"), x.ndim), x
    if form.get("opset") < 13:
        axis, rows = 1, x.reshape(prod(x.shape[:axis]), -1)
    xp, numbers = namespace(x), rows.astype(np.float32)
    powers = xp.exp((numbers - xp.max(numbers, axis=axis, keepdims=True)) * np.float32(before.scale))
    powers /= xp.sum(powers, axis=axis, keepdims=True)
    powers /= np.float32(after.scale)
    return after.rounded(powers).reshape(x.shape)


# ---------------------------------------------------------------- the table


def _places(inputs: tuple[str, ...]) -> frozenset[int]:
    """Return the positions of scales and zero points, which stay on the host."""
    return frozenset(at for at, name in enumerate(inputs) if name.rstrip("?").endswith(("_scale", "_zero_point")))


def _operator(
    function: Callable[..., Any],
    inputs: str,
    attributes: Mapping[str, Any] | None = None,
    required: tuple[str, ...] = (),
    cost: Callable[..., int] = broadcast_cost,
) -> Operator:
    names = tuple(inputs.split())
    return Operator(function, _places(names), cost=cost, schema=Schema(names, attributes or {}, required))


def _first_cost(_: Form, x: Any, *__: Any) -> int:
    return int(x.size)


def _concat_cost(_: Form, *inputs: Any) -> int:
    return sum(int(x.size) for x in inputs)


def _pool_cost(form: Form, x: Any, *_: Any) -> int:
    return int(x.size) * prod(ints(form.get("kernel_shape")))


_ONE = "X X_scale X_zero_point? Y_scale Y_zero_point?"
_TWO = "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?"
_WINDOW = {
    "auto_pad": str,
    "ceil_mode": 0,
    "count_include_pad": 0,
    "kernel_shape": list,
    "pads": list,
    "strides": list,
    "channels_last": 0,
}

CONTRIBUTED = {
    "NhwcMaxPool": _operator(_max_pool, "x", {**_WINDOW, "dilations": list}, ("kernel_shape",), _pool_cost),
    "QLinearAdd": _operator(_of_two(_add), _TWO),
    "QLinearAveragePool": _operator(
        _average_pool, _ONE, {**_WINDOW, "channels_last": 0, "count_include_pad": 0}, ("kernel_shape",), _pool_cost
    ),
    "QLinearConcat": Operator(
        _concat,
        frozenset(at for at in range(2 + 3 * _MOST_JOINED) if at % 3 != 2),
        cost=_concat_cost,
        schema=Schema(("Y_scale", "Y_zero_point", "inputs*"), {"axis": int}, ("axis",)),
    ),
    "QLinearGlobalAveragePool": _operator(_global_average_pool, _ONE, {"channels_last": 0}),
    "QLinearLeakyRelu": _operator(_of_one(_leaky_relu), _ONE, {"alpha": float(np.float32(0.01))}),
    "QLinearMul": _operator(_of_two(_multiply), _TWO),
    "QLinearReduceMean": _operator(_reduce_mean, _ONE, {"axes": list, "keepdims": int}, ("axes", "keepdims")),
    "QLinearSigmoid": _operator(_of_one(_sigmoid), _ONE),
    "QLinearSoftmax": _operator(_softmax, _ONE, {"axis": -1, "opset": int}, ("opset",), _first_cost),
    "QLinearWhere": _operator(_where, "condition X X_scale X_zero_point Y Y_scale Y_zero_point Z_scale Z_zero_point"),
}
