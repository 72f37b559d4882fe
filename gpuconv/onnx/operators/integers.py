"""Integer convolutions and matrix products (ConvInteger, QLinearConv, MatMulInteger and relatives), exact via float32.

float32 represents every integer up to 2**24, so a product is exact while the sums of magnitudes stay below that bound.
Longer sums are split along K into exact parts, which are added as int32 and wrap, as the specification allows. Thus
integer operators run on the fast floating-point kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

import gpuconv
from gpuconv._errors import ArgumentError
from gpuconv.cpu import _threads
from gpuconv.onnx.operators.form import DTYPES, NARROW, Form, Operator, Schema, blocks_of_channels, namespace
from gpuconv.onnx.operators.pooling import on_device
from gpuconv.onnx.operators.products import matmul, product
from gpuconv.onnx.operators.quantizing import centred, floats, integer_range, saturated
from gpuconv.onnx.repeated import RepeatedConv
from gpuconv.rules import geometry

_EXACT = 2**24
_BLOCK = 2**17  # elements per block
_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_INTEGERS = {"int8", "uint8"}
_Span = tuple[int, int]  # (first, past the last)


@dataclass(frozen=True, slots=True)
class _Factor:
    """Integers minus their zero points as float32, and an upper bound of their magnitudes.

    Attributes
    ----------
    values : array of float32
    largest : int
        No element has a larger magnitude.
    """

    values: Any
    largest: int


def _factor(values: Any, zero: Any) -> _Factor:
    """Subtract zero points, which broadcast; for zero points on a device, the bound covers their whole range."""
    low, high = integer_range(values.dtype)
    known = zero is None or isinstance(zero, np.ndarray)
    least, most = (0, 0) if zero is None else (int(zero.min()), int(zero.max())) if known else (low, high)
    centred = values.astype(np.float32)
    if not known or least or most:
        centred -= floats(namespace(values), zero)
    return _Factor(centred, max(most - low, high - least))


class _Weights:
    """The second factor of a product, minus zero points, and how to split sums along K so that each part is exact.

    Parameters
    ----------
    factor : _Factor
    inner, taps : int
        K as the number of elements of the first factor, and the number of weights that each is multiplied by.
    arranged : callable
        Rearranges the magnitudes of all weights to an array (outputs, inner), summed over taps.

    Attributes
    ----------
    totals : array of float64
        Per output, the sum of the magnitudes of its weights, or an upper bound of it if they are on a device.
    largest_total : float
        The largest of the totals.
    """

    def __init__(self, factor: _Factor, inner: int, taps: int, arranged: Callable[[Any], Any]) -> None:
        self.values, self._arranged = factor.values, arranged
        self._each = (
            None if isinstance(factor.values, np.ndarray) else np.full((1, inner), float(factor.largest * taps))
        )
        self._spans_by_bound: dict[int, list[_Span] | None] = {}
        self.totals = self._sizes().sum(axis=1, dtype=np.float64)
        self.largest_total = float(self.totals.max(initial=0))

    def _sizes(self) -> Any:
        return self._arranged(np.abs(self.values)) if self._each is None else self._each

    def spans(self, largest: int) -> list[_Span] | None:
        """Split the inner extent into spans with exact sums, for first factors of magnitude at most ``largest``.

        Returns None if a single element already has too large a sum of weights. Results are cached.
        """
        if largest not in self._spans_by_bound:
            self._spans_by_bound[largest] = _cut(self._sizes(), _EXACT // largest)
        return self._spans_by_bound[largest]


def _cut(sizes: Any, most: int) -> list[_Span] | None:
    """Split rows of magnitudes greedily into spans whose sums are at most ``most``; None if one column exceeds it.

    Parameters
    ----------
    sizes : array (outputs, inner)
    most : int
        Largest sum that is exact.
    """
    running = np.cumsum(sizes, axis=1, dtype=np.float64)
    extent, start, spans = running.shape[1], 0, []
    while start < extent:
        sums = (running[:, start:] - (running[:, start - 1 : start] if start else 0)).max(axis=0)
        end = start + int(np.searchsorted(sums, most, side="right"))
        if end == start:
            return None
        spans.append((start, end))
        start = end
    return spans


def _total(partial_sums: Iterable[Any]) -> Any:
    """Add up partial results as int32."""
    first, *rest = (partial_sum.astype(np.int32) for partial_sum in partial_sums)
    for partial_sum in rest:
        first += partial_sum
    return first


def _prepare_second_factor(
    make: Callable[[Form, Any, Any], Any], at: int, zero_at: int
) -> Callable[..., dict[int, Any]]:
    """Return the ``prepare`` function of an operator: it builds the second factor once, if that is constant.

    ``at`` and ``zero_at`` are the positions of the weights and of their zero point.
    """

    def prepare(form: Form, constants: tuple[Any, ...]) -> dict[int, Any]:
        w, zero = (constants[position] if position < len(constants) else None for position in (at, zero_at))
        has_zero = zero_at < len(form.inputs) and form.inputs[zero_at]
        ready = w is not None and w.dtype.name in _INTEGERS and (zero is not None or not has_zero)
        return {at: make(form, w, zero)} if ready else {}

    return prepare


# --- convolutions -----------------------------------------------------------------------------------------------------


class _Filters:
    """The weights of an integer convolution; constant weights are analysed once and use the fast path of
    RepeatedConv.
    """

    def __init__(self, form: Form, w: Any, zero: Any, *, constant: bool = False) -> None:
        self._attributes, self._group = form.given(_CONV), form.get("group") or 1
        taps, factor = prod(w.shape[2:]), _factor(w, _per_output(zero, w.ndim))
        self._weights = _Weights(factor, w.shape[1], taps, lambda sizes: sizes.reshape(*w.shape[:2], taps).sum(axis=2))
        self._fast_paths: dict[_Span | None, tuple[Any, RepeatedConv]] | None = {} if constant else None

    def convolved(self, x: _Factor, bias: Any = None) -> Any:
        """Convolve and add an int32 bias; the result is float32 if that is known to be exact, int32 otherwise."""
        w, totals = self._weights.values, self._weights.totals * x.largest
        geometry.conv(x.values.shape, w.shape, None if bias is None else bias.shape, **self._attributes)
        if totals.max(initial=0) <= _EXACT:
            if isinstance(bias, np.ndarray) and (totals + np.abs(bias.astype(np.float64))).max(initial=0) <= _EXACT:
                return self._conv(x.values, None, bias.astype(np.float32))
            y = self._conv(x.values, None)
            return y if bias is None else _with_bias(y.astype(np.int32), bias)
        spans = self._weights.spans(x.largest)
        if spans is None:  # no exact split exists: use float64, which represents integers up to 2**53
            y = gpuconv.conv(x.values.astype(np.float64), w.astype(np.float64), **self._attributes)
            y = y.astype(np.int64).astype(np.int32)
        else:
            y = _total(self._conv(_channels(x.values, span, self._group), span) for span in spans)
        return y if bias is None else _with_bias(y, bias)

    def _conv(self, x: Any, span: _Span | None, bias: Any = None) -> Any:
        """Convolve with a span of the channels of each group, or with all."""
        w = self._weights.values if span is None else self._weights.values[:, slice(*span)]
        compute = partial(gpuconv.conv, precision="ieee", **self._attributes)
        if self._fast_paths is None:
            return compute(x, w, bias)
        if span not in self._fast_paths:
            repeated = RepeatedConv(self._attributes)
            repeated.keep(w)
            self._fast_paths[span] = w, repeated
        w, repeated = self._fast_paths[span]
        (y,) = repeated.call(lambda: (compute(x, w, bias),), x, w, bias)
        return y


def _channels(x: Any, span: _Span, group: int) -> Any:
    """Return a span of the channels of each group."""
    if group == 1:
        return x[:, slice(*span)]
    images, channels, *extents = x.shape
    return x.reshape(images, group, channels // group, *extents)[:, :, slice(*span)].reshape(images, -1, *extents)


def _with_bias(y: Any, bias: Any) -> Any:
    y += bias.reshape(-1, *(1,) * (y.ndim - 2))
    return y


def _per_output(parameter: Any, ndim: int) -> Any:
    """Reshape a per-output-channel parameter so that it broadcasts with an array that has output channels first."""
    return parameter if parameter is None or parameter.ndim == 0 else parameter.reshape(-1, *(1,) * (ndim - 1))


def _conv_integer(form: Form, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None) -> Any:
    """ConvInteger, also with weights prepared by :class:`_Filters`."""
    filters = w if isinstance(w, _Filters) else _Filters(form, w, w_zero)
    y = filters.convolved(_factor(x, None if x_zero is None else x_zero.reshape(())))
    return y.astype(np.int32, copy=False)


def _qlinear_conv(form: Form, x: Any, x_scale: Any, x_zero: Any, w: Any, *others: Any) -> Any:
    """QLinearConv: integer convolution, multiplied by x_scale * w_scale / y_scale and quantized, in blocks on the
    CPU.
    """
    w_scale, w_zero, y_scale, y_zero, *bias = others
    filters = w if isinstance(w, _Filters) else _Filters(form, w, w_zero)
    y = filters.convolved(_factor(x, x_zero.reshape(())), *bias)
    scale = _per_output(x_scale.reshape(()) * w_scale / y_scale.reshape(()), y.ndim - 1)
    zero, dtype = floats(namespace(y), y_zero.reshape(())), y_zero.dtype
    if not isinstance(y, np.ndarray):
        return saturated(y.astype(np.float32) * scale, zero, dtype)
    result = np.empty(y.shape, dtype)

    def fill(place: tuple[int, slice]) -> None:
        factor = scale[place[1]] if scale.size > 1 else scale
        result[place] = saturated(y[place].astype(np.float32, copy=False) * factor, zero, dtype)

    _threads.run(fill, blocks_of_channels(y, _BLOCK), side_by_side=_threads.pays(y.nbytes))
    return result


def _conv_cost(form: Form, x: Any, w: Any) -> int:
    """Return the multiplications of a convolution, and the elements of its inputs."""
    g = geometry.conv(x.shape, w.shape, None, **form.given(_CONV))
    return prod(g.y_shape) * prod(map(int, w.shape[1:])) + int(x.size) + int(w.size)


def _conv_integer_cost(form: Form, x: Any, w: Any, *_: Any) -> int:
    return _conv_cost(form, x, w)


def _qlinear_conv_cost(form: Form, x: Any, _: Any, __: Any, w: Any, *___: Any) -> int:
    return _conv_cost(form, x, w)


# --- matrices ---------------------------------------------------------------------------------------------------------


def _per_row(parameter: Any) -> Any:
    """Reshape a per-row parameter so that it broadcasts with matrices."""
    if parameter is None or parameter.size == 1:
        return parameter if parameter is None else parameter.reshape(())
    return parameter.reshape(-1, 1) if parameter.ndim == 1 else parameter


def columns(_: Form, b: Any, zero: Any) -> _Weights:
    """Return a matrix as the second factor of several products, minus its zero points."""
    return _Weights(_factor(b, zero), b.shape[0 if b.ndim == 1 else -2], 1, _by_column)


def _by_column(sizes: Any) -> Any:
    """Return matrices, stacks of matrices or a vector as (columns, rows)."""
    moved = sizes.swapaxes(-1, -2) if sizes.ndim > 1 else sizes
    return moved.reshape(prod(moved.shape[:-1]), moved.shape[-1])


def _product(form: Form, a: _Factor, b: Any, b_zero: Any) -> Any:
    """Multiply matrices, stacks or vectors; the result is float32 if that is known to be exact, int32 otherwise."""
    return _multiplied(a, b if isinstance(b, _Weights) else columns(form, b, b_zero))


def _multiplied(a: _Factor, weights: _Weights) -> Any:
    """Multiply by prepared weights, in exact parts if necessary, without reduced precision such as TF32."""

    def multiply(left: Any, right: Any) -> Any:
        if a.largest * weights.largest_total <= _EXACT:
            return product(left, right)
        spans = weights.spans(a.largest) or ()
        return _total(product(left[..., low:high], right[..., low:high, :]) for low, high in spans)

    with gpuconv.precision("ieee"):
        return matmul(a.values, weights.values, multiply)


def product_of(bytes_: Any, weights: Any) -> Any:
    """Multiply rows of integers of magnitude at most 255, given as float32, by the result of :func:`columns`.

    Returns float32. Short sums on the host take a single NumPy call, which matters for recurrent layers with many
    steps.
    """
    if isinstance(bytes_, np.ndarray) and 255 * weights.largest_total <= _EXACT:
        return np.matmul(bytes_, weights.values)
    return _multiplied(_Factor(bytes_, 255), weights).astype(np.float32, copy=False)


def _matmul_integer(form: Form, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    """MatMulInteger: return an int32 product."""
    y = _product(form, _factor(a, _per_row(a_zero)), b, b_zero)
    return y.astype(np.int32, copy=False)


def _qlinear_matmul(form: Form, *inputs: Any) -> Any:
    """QLinearMatMul: quantized product; types other than 8-bit integers are multiplied on the host in float32."""
    arrays = [array for array in inputs if not isinstance(array, _Weights)]
    if any(array.dtype.name in NARROW for array in arrays):  # CuPy lacks these types, so everything runs on the host
        inputs = tuple(gpuconv.to_host(array) if on_device(array) else array for array in inputs)
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
    if isinstance(b, _Weights) or {a.dtype.name, b.dtype.name} <= _INTEGERS:
        y = _product(form, _factor(a, _per_row(a_zero)), b, b_zero).astype(np.float32, copy=False)
    else:
        a, b, zeros = floats(np, a), floats(np, b), (floats(np, _per_row(a_zero)), floats(np, b_zero))
        y = matmul(a - zeros[0], b - zeros[1])
    of_a, of_b, of_y, zero = (
        floats(namespace(y), parameter)
        for parameter in (_per_row(a_scale), b_scale, _per_row(y_scale), _per_row(y_zero))
    )
    return saturated(y * (of_a * of_b / of_y), zero, y_zero.dtype)


def _matmul_cost(_: Form, a: Any, b: Any, *__: Any) -> int:
    return int(a.size) * int(b.size) // max(1, int(a.shape[-1]))


def _qlinear_matmul_cost(form: Form, a: Any, _: Any, __: Any, b: Any, *___: Any) -> int:
    return _matmul_cost(form, a, b)


# --- matrices of ONNX Runtime's domain com.microsoft ------------------------------------------------------------------


def _second(form: Form, b: Any, zero: Any) -> _Weights:
    """Return the second factor of QGemm as (K, N), minus its zero points."""
    return columns(form, b.T if form.get("transB") else b, zero)


def _qgemm(form: Form, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, *others: Any) -> Any:
    """QGemm: return ``(alpha * A @ B + C) / y_scale`` quantized; without y_scale, float32 of ``alpha * A @ B + C``.

    C is int32 with the scale ``alpha * a_scale * b_scale``, so it is added to the integer product.
    """
    c, y_scale, y_zero = (*others, None, None, None)[:3]
    weights = b if isinstance(b, _Weights) else _second(form, b, b_zero)
    y = _multiplied(_factor(a.T if form.get("transA") else a, a_zero.reshape(())), weights)
    if c is not None:
        if not broadcasts_to(c.shape, y.shape):
            raise ArgumentError(f"C of shape {c.shape} does not broadcast to the product's shape {y.shape}")
        y = y.astype(np.int32) + c
    scale = np.float32(form.get("alpha")) * a_scale.reshape(()) * b_scale
    if y_scale is None:
        return y.astype(np.float32, copy=False) * scale
    y = y.astype(np.float32) * (scale / y_scale.reshape(()))
    zero = np.zeros((), a.dtype) if y_zero is None else y_zero
    return saturated(y, floats(namespace(y), zero.reshape(())), zero.dtype)


def broadcasts_to(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether an array of one shape broadcasts to another shape without changing that shape."""
    ends = zip(shape[::-1], other[::-1], strict=False)
    return len(shape) <= len(other) and all(n in (1, m) for n, m in ends)


def _qlinear_conv_of(form: Form, x: Any, *others: Any) -> Any:
    """QLinearConv of com.microsoft: as ONNX's, or with channels_last on x (N, D1, ..., Dn, C), weights unchanged."""
    if not form.get("channels_last"):
        return _qlinear_conv(form, x, *others)
    axes = range(1, x.ndim - 1)
    y = _qlinear_conv(form, x.transpose(0, x.ndim - 1, *axes), *others)
    return y.transpose(0, *(axis + 1 for axis in axes), 1)


def _qlinear_conv_of_cost(form: Form, x: Any, _: Any, __: Any, w: Any, *___: Any) -> int:
    return int(x.size) * int(w.size)


def _qgemm_cost(form: Form, a: Any, _: Any, __: Any, b: Any, *___: Any) -> int:
    return int(a.size) * int(b.size) // max(1, int(a.shape[0 if form.get("transA") else -1]))


def _scaled(y: Any, scale: Any, bias: Any) -> Any:
    """Return a product times its scales, plus a bias."""
    for name, given in (("scale", scale), ("bias", bias)):
        if given is not None and not broadcasts_to(given.shape, y.shape):
            raise ArgumentError(f"a {name} of shape {given.shape} does not broadcast to the product's shape {y.shape}")
    return y * scale if bias is None else y * scale + bias


def integers_to_float(form: Form, a: Any, b: Any, a_scale: Any, b_scale: Any, *others: Any) -> Any:
    """Return the product of integer matrices times both scales, plus a bias, as float32.

    ``others`` are the zero point of a, the zero point of b, and the bias; each may be None.
    """
    a_zero, b_zero, bias = (*others, None, None, None)[:3]
    y = _product(form, _factor(a, _per_row(a_zero)), b, b_zero).astype(np.float32, copy=False)
    return _scaled(y, _per_row(a_scale) * b_scale, bias)


def _dynamic_matmul(form: Form, a: Any, b: Any, b_scale: Any, b_zero: Any = None, bias: Any = None) -> Any:
    """DynamicQuantizeMatMul: quantize A by its range, as DynamicQuantizeLinear does, and multiply by integers."""
    quantized, scale = centred(a)
    y = product_of(quantized, b if isinstance(b, _Weights) else columns(form, b, b_zero))
    return _scaled(y, scale * b_scale, bias)


_known_filters = partial(_Filters, constant=True)

_operator = partial(Operator, by_kernels=True)

OPERATORS = {
    "ConvInteger": _operator(
        _conv_integer, frozenset({3}), cost=_conv_integer_cost, prepare=_prepare_second_factor(_known_filters, 1, 3)
    ),
    "MatMulInteger": _operator(
        _matmul_integer, frozenset({3}), cost=_matmul_cost, prepare=_prepare_second_factor(columns, 1, 3)
    ),
    "QLinearConv": _operator(
        _qlinear_conv,
        frozenset({2, 5, 7}),
        cost=_qlinear_conv_cost,
        prepare=_prepare_second_factor(_known_filters, 3, 5),
    ),
    "QLinearMatMul": _operator(
        _qlinear_matmul,
        frozenset({2, 5, 7}),
        cost=_qlinear_matmul_cost,
        dtypes=DTYPES | NARROW,
        prepare=_prepare_second_factor(columns, 3, 5),
    ),
}

CONTRIBUTED = {
    "DynamicQuantizeMatMul": _operator(
        _dynamic_matmul,
        frozenset({3}),
        cost=_matmul_cost,
        prepare=_prepare_second_factor(columns, 1, 3),
        schema=Schema(("A", "B", "b_scale", "b_zero_point?", "bias?"), {}),
    ),
    "MatMulIntegerToFloat": _operator(
        integers_to_float,
        frozenset({5}),
        cost=_matmul_cost,
        prepare=_prepare_second_factor(columns, 1, 5),
        schema=Schema(("A", "B", "a_scale", "b_scale", "a_zero_point?", "b_zero_point?", "bias?"), {}),
    ),
    "QLinearConv": _operator(
        _qlinear_conv_of,
        frozenset({2, 5, 7}),
        cost=_qlinear_conv_of_cost,
        prepare=_prepare_second_factor(_known_filters, 3, 5),
        schema=Schema(
            ("x", "x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale", "y_zero_point", "B?"),
            {
                **dict.fromkeys(("dilations", "kernel_shape", "pads", "strides"), list),
                "auto_pad": str,
                "channels_last": 0,
                "group": 1,
            },
        ),
    ),
    "QGemm": _operator(
        _qgemm,
        frozenset({2, 5, 8}),
        cost=_qgemm_cost,
        prepare=_prepare_second_factor(_second, 3, 5),
        schema=Schema(
            ("A", "a_scale", "a_zero_point", "B", "b_scale", "b_zero_point", "C?", "y_scale?", "y_zero_point?"),
            {"alpha": 1.0, "transA": 0, "transB": 0},
        ),
    ),
}  # domain com.microsoft
