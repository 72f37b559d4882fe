"""Element-wise operators: activations, arithmetic, comparisons, bit operations and Cast, with broadcasting."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import onnx

from gpuconv._errors import ArgumentError
from gpuconv.onnx.operators import special
from gpuconv.onnx.operators.form import DTYPES, Form, Operator, is_float, name_of, namespace, wide

_Compute = Callable[[Any, Any, Form], Any]


def _unary(compute: _Compute, curve: special.Curve | None = None) -> Operator:
    """Make a unary operator from ``compute(xp, x, form)``, which works in the accumulator's type.

    ``curve`` computes the same for NumPy arrays, in cache-sized blocks.
    """

    def function(form: Form, x: Any) -> Any:
        if curve is not None and isinstance(x, np.ndarray):
            return special.applied(curve, form, x)
        return compute(namespace(x), wide(x), form).astype(x.dtype, copy=False)

    return Operator(function, into=curve)


def _relu(_: Form, x: Any) -> Any:
    """Relu, in the type of x."""
    if is_float(x) and isinstance(x, np.ndarray):
        return np.clip(wide(x), 0, np.inf).astype(x.dtype, copy=False)  # several times faster than np.maximum
    return namespace(x).maximum(0, x)


def _leaky_relu(xp: Any, x: Any, form: Form) -> Any:
    return xp.where(x < 0, x * form.get("alpha"), x)


def _elu(xp: Any, x: Any, form: Form) -> Any:
    return xp.where(x < 0, form.get("alpha") * xp.expm1(x), x)


def _celu(xp: Any, x: Any, form: Form) -> Any:
    alpha = form.get("alpha")
    return xp.where(x < 0, alpha * xp.expm1(x / alpha), x)


def _selu(xp: Any, x: Any, form: Form) -> Any:
    return form.get("gamma") * xp.where(x < 0, form.get("alpha") * xp.expm1(x), x)


def _swish(xp: Any, x: Any, form: Form) -> Any:
    return x / (1 + xp.exp(-form.get("alpha") * x))


def _mish(xp: Any, x: Any, form: Form) -> Any:
    return x * xp.tanh(_softplus(xp, x, form))


def _hard_sigmoid(xp: Any, x: Any, form: Form) -> Any:
    return xp.maximum(xp.minimum(x * form.get("alpha") + form.get("beta"), 1), 0)


def _hard_swish(xp: Any, x: Any, _: Form) -> Any:
    return x * xp.maximum(xp.minimum(x / 6 + 0.5, 1), 0)


def _softplus(xp: Any, x: Any, _: Form) -> Any:
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x)))


def _clip(form: Form, x: Any, low: Any = None, high: Any = None) -> Any:
    """Clip: apply the lower bound, then the upper one, which wins if the two cross.

    The bound is the first argument of maximum and minimum: NumPy returns the second of two equal numbers, and so keeps
    the sign of a zero in x.
    """
    if form.opset < 11:
        low, high = form.get("min"), form.get("max")
    xp, y = namespace(x), wide(x)
    if is_float(x) and isinstance(x, np.ndarray):  # one pass; several times faster than np.maximum and np.minimum
        bounds = -np.inf if low is None else low, np.inf if high is None else high
        return np.clip(y, *(_scalar(bound, y.dtype) for bound in bounds)).astype(x.dtype, copy=False)
    if low is not None:
        y = xp.maximum(_scalar(low, y.dtype), y)
    if high is not None:
        y = xp.minimum(_scalar(high, y.dtype), y)
    return y.astype(x.dtype, copy=y is x)


def _scalar(bound: Any, dtype: Any) -> Any:
    return np.asarray(bound).reshape(()).astype(dtype)[()]


def _prelu(form: Form, x: Any, slope: Any) -> Any:
    """PRelu; before opset 7, slope (C,) applies per channel."""
    xp = namespace(x)
    slope = slope if form.opset >= 7 or slope.size == 1 else slope.reshape(-1, *(1,) * (x.ndim - 2))
    y = wide(x)
    return xp.where(y < 0, y * wide(slope), y).astype(x.dtype, copy=False)


def _aligned(form: Form, a: Any, b: Any) -> Any:
    """Return b reshaped for the broadcasting of opsets before 7, whose attribute ``axis`` aligns its first axis."""
    if form.opset >= 7 or not form.get("broadcast"):
        return b
    axis = form.get("axis")
    axis = a.ndim - b.ndim if axis is None else axis % a.ndim
    return b.reshape(*b.shape, *(1,) * (a.ndim - axis - b.ndim))


def _binary(compute: Callable[[Any, Any], Any], ufunc: Any) -> Operator:
    """Make a binary operator from a function of two arrays; ``ufunc`` is its NumPy equivalent, for in-place results."""

    def function(form: Form, a: Any, b: Any) -> Any:
        return compute(wide(a), wide(_aligned(form, a, b))).astype(a.dtype, copy=False)

    def into(_: Form, a: Any, b: Any, y: Any) -> None:
        ufunc(a, b, out=y)

    return Operator(function, into=into)


def divide(a: Any, b: Any) -> Any:
    """Divide element by element; integers are truncated towards zero."""
    if a.dtype.kind not in "iu":
        return a / b
    quotient = a // b
    if a.dtype.kind == "u":
        return quotient
    return quotient + ((quotient * b != a) & ((a < 0) != (b < 0)))


def _power(form: Form, a: Any, b: Any) -> Any:
    """Pow, in the type of the base."""
    b, xp = _aligned(form, a, b), namespace(a)
    power = _integer_power if a.dtype.kind in "iu" and b.dtype.kind == "i" else _real_power
    return power(xp, a, b).astype(a.dtype, copy=False)


def _real_power(xp: Any, a: Any, b: Any) -> Any:
    """Return a ** b; cubes, which GELU uses, are multiplied out, because np.power is about 100 times slower."""
    if xp is np and isinstance(b, np.ndarray) and b.size == 1 and b.ndim <= a.ndim and is_float(a) and b.item() == 3:
        a = wide(a)
        return a * a * a
    return xp.power(wide(a), wide(b))


def _integer_power(xp: Any, a: Any, b: Any) -> Any:
    """Return a ** b for integers; negative exponents truncate towards zero: 0, except for bases 1 and -1."""
    inverse = xp.where(xp.abs(a) == 1, xp.power(a, b & 1), 0)
    return xp.where(b < 0, inverse, xp.power(a, xp.maximum(b, 0)))


def _comparison(compute: Callable[[Any, Any], Any]) -> Operator:
    """Make a comparison or logical operator from a function of two arrays."""

    def function(form: Form, a: Any, b: Any) -> Any:
        return compute(wide(a), wide(_aligned(form, a, b)))

    return Operator(function)


def _variadic(compute: Callable[[Any], Callable[[Any, Any], Any]], mean: bool = False) -> Operator:
    """Make a variadic operator; ``compute(xp)`` returns the function of two arrays with which to reduce the inputs."""

    def function(_: Form, *arrays: Any) -> Any:
        x = arrays[0]
        y = reduce(compute(namespace(x)), map(wide, arrays))
        y = y / len(arrays) if mean else y
        return y.astype(x.dtype, copy=y is x)

    return Operator(function)


def _add(_: Any) -> Callable[[Any, Any], Any]:
    return operator.add


def _not(_: Form, x: Any) -> Any:
    return ~x


def _bit_shift(form: Form, a: Any, b: Any) -> Any:
    """BitShift; for shifts by a negative amount or by all bits, the result is 0, or the sign for a right shift."""
    direction, xp, bits = form.get("direction"), namespace(a), 8 * a.dtype.itemsize
    if direction not in ("LEFT", "RIGHT"):
        raise ArgumentError(f"direction must be LEFT or RIGHT, not {direction!r}")
    inside = (b >= 0) & (b < bits)
    amount = xp.where(inside, b, 0).astype(a.dtype)
    if direction == "LEFT":
        return xp.where(inside, xp.left_shift(a, amount), 0).astype(a.dtype)
    return xp.where(inside, xp.right_shift(a, amount), 0 - (a < 0).astype(a.dtype)).astype(a.dtype)


def _where(_: Form, condition: Any, a: Any, b: Any) -> Any:
    """Where: choose elements of a or b by a condition; 16-bit floats go through float32."""
    if not is_float(a):
        return namespace(condition).where(condition, a, b)
    return namespace(condition).where(condition, wide(a), wide(b)).astype(a.dtype, copy=False)


def _castable(form: Form) -> bool:
    """Return whether the target type is supported; True if it depends on the caller of a function."""
    return form.get("to") is None or _numpy_type(_type_number(form)).name in DTYPES


def _type_number(form: Form) -> int:
    """Return the number of the target element type, which opset 1 gives as a name."""
    to = form.get("to")
    number: int = to if isinstance(to, int) else onnx.TensorProto.DataType.Value(to.upper())
    return number


def _cast(form: Form, x: Any) -> Any:
    """Cast to the type that the attribute ``to`` names."""
    return _as_type(x, _numpy_type(_type_number(form)))


@lru_cache(maxsize=64)
def _numpy_type(number: int) -> Any:
    return onnx.helper.tensor_dtype_to_np_dtype(number)


def _cast_like(_: Form, x: Any, other: Any) -> Any:
    """CastLike: convert to the type of another array."""
    return _as_type(x, other.dtype)


def _as_type(x: Any, dtype: Any) -> Any:
    """Convert to a dtype; conversions between bfloat16 and non-floating types go through float32."""
    if "bfloat16" in (name_of(dtype), name_of(x.dtype)) and not (is_float(x) and dtype.kind == "f"):
        x = x.astype(np.float32)  # CuPy converts bfloat16 only from and to floating-point types
    return x.astype(dtype)


OPERATORS = {
    "Abs": _unary(lambda xp, x, _: xp.abs(x)),
    "Add": _binary(operator.add, np.add),
    "And": _comparison(operator.and_),
    "BitShift": Operator(_bit_shift),
    "Cast": Operator(_cast, serves=_castable),
    "CastLike": Operator(_cast_like),
    "Celu": _unary(_celu, special.celu),
    "Ceil": _unary(lambda xp, x, _: xp.ceil(x)),
    "Clip": Operator(_clip, frozenset({1, 2})),
    "Div": _binary(divide, np.divide),
    "Elu": _unary(_elu, special.elu),
    "Equal": _comparison(operator.eq),
    "Exp": _unary(lambda xp, x, _: xp.exp(x)),
    "Floor": _unary(lambda xp, x, _: xp.floor(x)),
    "Greater": _comparison(operator.gt),
    "GreaterOrEqual": _comparison(operator.ge),
    "HardSigmoid": _unary(_hard_sigmoid, special.hard_sigmoid),
    "HardSwish": _unary(_hard_swish, special.hard_swish),
    "LeakyRelu": _unary(_leaky_relu, special.leaky_relu),
    "Less": _comparison(operator.lt),
    "LessOrEqual": _comparison(operator.le),
    "Log": _unary(lambda xp, x, _: xp.log(x)),
    "Max": _variadic(lambda xp: xp.maximum),
    "Mean": _variadic(_add, mean=True),
    "Min": _variadic(lambda xp: xp.minimum),
    "Mish": _unary(_mish, special.mish),
    "Mul": _binary(operator.mul, np.multiply),
    "Neg": _unary(lambda xp, x, _: -x),
    "Not": Operator(_not),
    "Or": _comparison(operator.or_),
    "PRelu": Operator(_prelu),
    "Pow": Operator(_power),
    "Reciprocal": _unary(lambda xp, x, _: 1 / x),
    "Relu": Operator(_relu),
    "Selu": _unary(_selu, special.selu),
    "Sigmoid": _unary(lambda xp, x, _: 1 / (1 + xp.exp(-x)), special.sigmoid),
    "Softsign": _unary(lambda xp, x, _: x / (1 + xp.abs(x))),
    "Softplus": _unary(_softplus, special.softplus),
    "Sqrt": _unary(lambda xp, x, _: xp.sqrt(x)),
    "Sub": _binary(operator.sub, np.subtract),
    "Sum": _variadic(_add),
    "Swish": _unary(_swish, special.swish),
    "Tanh": _unary(lambda xp, x, _: xp.tanh(x), special.tanh),
    "ThresholdedRelu": _unary(lambda xp, x, form: xp.where(x > form.get("alpha"), x, 0)),
    "Where": Operator(_where),
}
