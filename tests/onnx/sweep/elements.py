"""Elementwise operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.onnx.sweep.drawing import FLOATS, INTS, Draw, Trial, dtype, is_float, node_of, number, wide

CURVES = {
    "Acos": np.arccos, "Acosh": np.arccosh, "Asin": np.arcsin, "Asinh": np.arcsinh, "Atan": np.arctan,
    "Atanh": np.arctanh, "Cos": np.cos, "Cosh": np.cosh, "Sin": np.sin, "Sinh": np.sinh, "Tan": np.tan,
    "Softsign": lambda x: np.where(np.isinf(x), np.nan, x / (1 + np.abs(x))), "Round": np.rint,
}  # fmt: skip


@node_of(*CURVES)
def _curve(d: Draw) -> Trial:
    x = d.array(d.type(), d.shape(), d.one(0.5, 3.0), special=True)
    return Trial([x], {}, [CURVES[d.op_type](wide(x)).astype(x.dtype)])


def _each(function: Any, *arrays: Any, kind: Any) -> Any:
    """Compute element by element in Python."""
    arrays = np.broadcast_arrays(*arrays)
    values = [
        function(*(item.item() if hasattr(item, "item") else item for item in row))
        for row in zip(*((wide(a) if is_float(a.dtype) else a).reshape(-1) for a in arrays), strict=True)
    ]
    return np.array(values, np.float64 if is_float(kind) else kind).reshape(arrays[0].shape).astype(kind)


@node_of("Sign", "IsNaN", "IsInf", "BitwiseNot")
def _test(d: Draw) -> Trial:
    first = d.schema.inputs[0].type_str
    x = d.array(d.type(first), d.shape(), special=True)
    if d.op_type == "BitwiseNot":
        return Trial([x], {}, [_each(lambda v: (-v - 1) if x.dtype.kind == "i" else 2 ** (8 * x.itemsize) - 1 - v, x,
                                     kind=x.dtype)])  # fmt: skip
    if d.op_type == "Sign":
        sign = _each(lambda v: v if v != v else (v > 0) - (v < 0), x, kind=x.dtype)
        return Trial([x], {}, [sign])
    if d.op_type == "IsNaN":
        return Trial([x], {}, [_each(math.isnan, x, kind=np.bool_)])
    attributes = d.given(detect_negative=d.int(0, 1), detect_positive=d.int(0, 1))
    ends = [
        sign * math.inf for sign, name in ((1, "detect_positive"), (-1, "detect_negative")) if attributes.get(name, 1)
    ]
    return Trial([x], attributes, [_each(lambda v: v in ends, x, kind=np.bool_)])


@node_of("Shrink", "ThresholdedRelu")
def _thresholds(d: Draw) -> Trial:
    x = d.array(d.type(), d.shape(), special=True)
    x = x if is_float(x.dtype) else np.clip(x, 0 if x.dtype.kind == "u" else -9, 9)
    if d.op_type == "ThresholdedRelu":
        attributes = d.given(alpha=d.one(0.0, 1.0, -1.5, 2.0))
        alpha = attributes.get("alpha", 1.0)
        return Trial([x], attributes, [_each(lambda v: v if v > alpha else 0.0, x, kind=x.dtype)])
    attributes = d.given(lambd=d.one(0.5, 0.0, 2.0), bias=float(d.int(0, 0 if x.dtype.kind == "u" else 2)))
    lambd, bias = attributes.get("lambd", 0.5), attributes.get("bias", 0.0)
    y = _each(lambda v: v + bias if v < -lambd else v - bias if v > lambd else 0, x, kind=x.dtype)
    return Trial([x], attributes, [y])


def _pair(d: Draw, kind: Any, special: bool = False) -> tuple[Any, Any]:
    shape = d.shape()
    other = tuple(1 if d.maybe(0.2) else n for n in shape[d.int(0, len(shape)) :])
    pair = d.array(kind, shape, special=special), d.array(kind, other, special=special)
    return pair if d.maybe() else (pair[1], pair[0])


@node_of("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Xor")
def _bits(d: Draw) -> Trial:
    a, b = _pair(d, d.type(), special=True)
    if d.op_type == "Xor" and d.opset < 7:
        a = d.array(np.bool_, a.shape if a.size >= b.size else b.shape)
        b = d.array(np.bool_, a.shape)
    compute = {"And": lambda v, w: v & w, "Or": lambda v, w: v | w}.get(d.op_type[7:], lambda v, w: v ^ w)
    return Trial([a, b], {}, [_each(compute, a, b, kind=a.dtype)])


@node_of("BitShift")
def _shift(d: Draw) -> Trial:
    a, b = _pair(d, d.type(among=INTS), special=True)
    bits, left = 8 * a.itemsize, d.maybe()
    if d.opset < 28:  # larger amounts are specified since then
        b = (b.astype(np.uint64) % bits).astype(b.dtype)

    def compute(v: int, by: int) -> int:
        if not 0 <= by < bits:
            return -1 if not left and v < 0 else 0
        if not left:
            return v >> by
        wrapped = (v << by) % 2**bits
        return wrapped - 2**bits if a.dtype.kind == "i" and wrapped >= 2 ** (bits - 1) else wrapped

    return Trial([a, b], {"direction": "LEFT" if left else "RIGHT"}, [_each(compute, a, b, kind=a.dtype)])


@node_of("Mod")
def _mod(d: Draw) -> Trial:
    a, b = _pair(d, d.type(), special=True)
    floats = is_float(a.dtype)
    fmod = 1 if floats and d.opset < 28 else d.int(0, 1)
    if not floats:
        b = np.where(b == 0, 3, b).astype(b.dtype)

    def compute(v: Any, by: Any) -> Any:
        if not floats:
            return v % by if not fmod else int(math.copysign(1, v)) * (abs(v) % abs(by))
        if math.isnan(v) or math.isnan(by) or math.isinf(v) or by == 0:
            return math.nan
        if fmod:
            return math.fmod(v, by)
        if math.isinf(by):
            same = (v > 0) == (by > 0)
            return math.copysign(0.0, by) if v == 0 else v if same else by
        y = math.fmod(v, by)
        return math.copysign(0.0, by) if y == 0 else y + by if (y < 0) != (by < 0) else y

    return Trial([a, b], {"fmod": fmod} if fmod or d.maybe() else {}, [_each(compute, a, b, kind=a.dtype)])


@node_of("SwiGLU")
def _swiglu(d: Draw) -> Trial:
    kind, shape = d.type(), d.shape()
    a, b = (d.array(kind, shape) for _ in range(2))
    attributes = d.given(alpha=d.one(0.0, 0.5, 2.0))
    y = wide(a) / (1 + np.exp(-attributes.get("alpha", 1.0) * wide(a))) * wide(b)
    return Trial([a, b], attributes, [y.astype(kind)], loose=3)


@node_of("BitCast")
def _bit_cast(d: Draw) -> Trial:
    x = d.array(d.type("T1"), d.shape(), special=True)
    same = [name for name in (*FLOATS, *INTS, "bool") if dtype(name).itemsize == x.itemsize and name != "bool"]
    to = dtype(d.one(*same))
    y = np.frombuffer(x.tobytes(), to).reshape(x.shape)
    return Trial([x], {"to": number(to)}, [y])
