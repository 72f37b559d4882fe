"""Element-wise special functions (sigmoid, ELU, GELU, erf and others), block by block on NumPy arrays.

Each block passes through all steps of a formula while it is in cache, with in-place NumPy operations. No step selects
per element between two formulas, because branches on random signs are mispredicted. A curve takes float32 or float64
values x and writes to ``y``, which may be ``x`` itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import pi, sqrt
from typing import Any

import numpy as np

from gpuconv.cpu import _threads
from gpuconv.onnx.operators.form import Form, Operator, namespace, wide

Curve = Callable[[Form, Any, Any], None]
BLOCK = 2**16  # elements per block
_PASSES = 4  # estimated cost of a curve, in passes over memory

# Polynomial in x * x for atanh(erf(x)) / x, highest power first. erf(x) = tanh(x * p(x * x)) has an error of at most 5
# ulps in float32. It minimises the largest relative error of erf for |x| <= 4, and grows beyond until tanh of it is
# exactly 1.
_ERF = (
    *(1.4185268119259163e-07, -5.668484069641387e-06, 8.763738253867186e-05, -6.197848161356905e-04),
    *(-1.9183060592815014e-04, 1.0276905569895356e-01, 1.1283792743174113),
)
_ERF_END = 4.25


def over(compute: Callable[[Any, Any], None], x: Any, out: Any = None) -> Any:
    """Apply ``compute(x, y)``, which writes y, to all blocks of x and return the result, in ``out`` if given.

    Blocks are 1-D. ``out`` may be x itself. Large arrays are shared among threads.
    """
    y = np.empty(x.shape, x.dtype) if out is None else out
    flat, results, count = x.reshape(-1), y.reshape(-1), -(-x.size // BLOCK)
    if count < 2:
        compute(flat, results)
        return y
    step = -(-x.size // count)
    places = [slice(low, low + step) for low in range(0, x.size, step)]
    is_shared = _threads.pays(_PASSES * x.nbytes)
    _threads.run(lambda place: compute(flat[place], results[place]), places, side_by_side=is_shared)
    return y


def applied(curve: Curve, form: Form, x: Any, out: Any = None) -> Any:
    """Return a curve applied to a floating-point array; 16-bit types are computed in float32 and rounded once."""

    def compute(block: Any, y: Any) -> None:
        values = wide(block)
        if values is block:
            curve(form, block, y)
        else:
            curve(form, values, values)
            y[...] = values

    return over(compute, x, out)


def sigmoid(_: Form, x: Any, y: Any) -> None:
    """Compute ``1 / (1 + exp(-x))``."""
    np.negative(x, out=y)
    np.exp(y, out=y)
    y += 1
    np.divide(1, y, out=y)


def tanh(_: Form, x: Any, y: Any) -> None:
    """Compute the hyperbolic tangent."""
    np.tanh(x, out=y)


def leaky_relu(form: Form, x: Any, y: Any) -> None:
    """Compute LeakyRelu: negative numbers times alpha."""
    alpha = form.get("alpha")
    if 0 < alpha < np.inf:  # then max or min of x and alpha * x is the result, and no product turns into NaN
        (np.maximum if alpha < 1 else np.minimum)(x * alpha, x, out=y)
    else:
        y[...] = np.where(x < 0, x * alpha, x)


def elu(form: Form, x: Any, y: Any) -> None:
    """Compute ELU: ``alpha * expm1(x)`` for negative x, else x."""
    _bent(x, form.get("alpha"), 1, y)


def celu(form: Form, x: Any, y: Any) -> None:
    """Compute CELU: ``alpha * expm1(x / alpha)`` for negative x, else x."""
    _bent(x, form.get("alpha"), form.get("alpha"), y)


def selu(form: Form, x: Any, y: Any) -> None:
    """Compute SELU: ``gamma`` times ELU."""
    _bent(x, form.get("alpha"), 1, y)
    y *= form.get("gamma")


def _bent(x: Any, factor: float, scale: float, y: Any) -> None:
    """Compute ``factor * expm1(x / scale)`` for negative x, else x."""
    negative = np.clip(x, -np.inf, 0)
    if scale != 1:
        negative /= scale
    np.expm1(negative, out=negative)
    negative *= factor
    np.clip(x, 0, np.inf, out=y)
    y += negative


def swish(form: Form, x: Any, y: Any) -> None:
    """Compute Swish: ``x / (1 + exp(-alpha * x))``."""
    below = x * -form.get("alpha")
    np.exp(below, out=below)
    below += 1
    np.divide(x, below, out=y)


def mish(form: Form, x: Any, y: Any) -> None:
    """Compute Mish: ``x * tanh(softplus(x))``."""
    share = np.empty_like(x)
    softplus(form, x, share)
    np.tanh(share, out=share)
    np.multiply(x, share, out=y)


def hard_sigmoid(form: Form, x: Any, y: Any) -> None:
    """Compute HardSigmoid: ``x * alpha + beta``, clipped to 0 and 1."""
    np.multiply(x, form.get("alpha"), out=y)
    y += form.get("beta")
    y.clip(0, 1, out=y)


def hard_swish(_: Form, x: Any, y: Any) -> None:
    """Compute HardSwish: ``x * clip(x / 6 + 0.5, 0, 1)``."""
    share = x / 6
    share += 0.5
    share.clip(0, 1, out=share)
    np.multiply(x, share, out=y)


def softplus(_: Form, x: Any, y: Any) -> None:
    """Compute Softplus as ``max(x, 0) + log1p(exp(-|x|))``, which cannot overflow."""
    tail = np.abs(x)
    np.negative(tail, out=tail)
    np.exp(tail, out=tail)
    np.log1p(tail, out=tail)
    np.clip(x, 0, np.inf, out=y)
    y += tail


def erf(_: Form, x: Any, y: Any) -> None:
    """Compute the error function of float32 numbers, to 5 ulps."""
    _erf_scaled(x, _ERF_END, _ERF, y)


def gelu(_: Form, x: Any, y: Any) -> None:
    """Compute GELU of float32 numbers: ``x / 2 * (1 + erf(x / sqrt(2)))``."""
    share = np.empty_like(x)
    _erf_scaled(x, _ERF_END * sqrt(2), _GELU, share)
    share += 1
    share *= 0.5
    np.multiply(x, share, out=y)


def _erf_scaled(x: Any, end: float, terms: tuple[float, ...], y: Any) -> None:
    """Compute ``tanh(x * p(x * x))`` with the polynomial of _ERF or _GELU; x is clipped to ``end``."""
    within = np.clip(x, -end, end)
    square = np.square(within)
    np.multiply(square, terms[0], out=y)
    for term in terms[1:-1]:
        y += term
        y *= square
    y += terms[-1]
    y *= within
    np.tanh(y, out=y)


# as _ERF, for x / sqrt(2)
_GELU = tuple(term / sqrt(2) / 2 ** (len(_ERF) - 1 - place) for place, term in enumerate(_ERF))


def gelu_by_tanh(_: Form, x: Any, y: Any) -> None:
    """Compute GELU's approximation: ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``."""
    share = np.square(x)
    share *= 0.044715
    share += 1
    share *= x
    share *= sqrt(2 / pi)
    np.tanh(share, out=share)
    share += 1
    share *= 0.5
    np.multiply(x, share, out=y)


# ---------------------------------------------------------------- Erf and Gelu in float64, and in other libraries

# Rational approximations from the Cephes library (S. L. Moshier), highest power first; denominators have the leading
# coefficient 1.
_CEPHES_ERF = (
    (
        9.60497373987051638749,
        90.0260197203842689217,
        2232.00534594684319226,
        7003.32514112805075473,
        55592.3013010394962768,
    ),
    (
        1.0,
        33.5617141647503099647,
        521.357949780152679795,
        4594.32382970980127987,
        22629.0000613890934246,
        49267.3942608635921086,
    ),
)
_CEPHES_ERFC = (
    (
        *(2.46196981473530512524e-10, 0.564189564831068821977, 7.46321056442269912687, 48.6371970985681366614),
        *(196.520832956077098242, 526.445194995477358631, 934.528527171957607540, 1027.55188689515710272),
        557.535335369399327526,
    ),
    (
        *(1.0, 13.2281951154744992508, 86.7072140885989742329, 354.937778887819891062, 975.708501743205489753),
        *(1823.90916687909736289, 2246.33760818710981792, 1656.66309194161350182, 557.535340817727675546),
    ),
)
_CEPHES_END = 6.0  # beyond this, 1 - erfc(x) is 1 in float64


def _ratio(fraction: tuple[tuple[float, ...], tuple[float, ...]], x: Any) -> Any:
    """Evaluate a rational function by Horner's rule."""
    top, bottom = (reduce(lambda sum_, term: sum_ * x + term, terms[1:], x * 0 + terms[0]) for terms in fraction)
    return top / bottom


def _by_cephes(x: Any) -> Any:
    """Return the error function of a float32 or float64 array of either library, to a few ulps."""
    xp = namespace(x)
    size = xp.minimum(xp.abs(x), _CEPHES_END)  # keeps NaN
    small = xp.minimum(size, 1)
    near = small * _ratio(_CEPHES_ERF, small * small)
    far = 1 - xp.exp(-size * size) * _ratio(_CEPHES_ERFC, size)
    found = xp.where(size < 1, near, far)
    return xp.where(x < 0, -found, found)


def _by_formula(_: Form, x: Any, y: Any) -> None:
    y[...] = _by_cephes(x)


def _erf(form: Form, x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return applied(_erf_into, form, x)
    return _by_cephes(wide(x)).astype(x.dtype, copy=False)


def _gelu(form: Form, x: Any) -> Any:
    by_tanh = form.get("approximate") == "tanh"
    if isinstance(x, np.ndarray) and (by_tanh or x.dtype != np.float64):
        return applied(gelu_by_tanh if by_tanh else gelu, form, x)
    y = wide(x)
    found = namespace(y).tanh(sqrt(2 / pi) * (y + 0.044715 * (y * y * y))) if by_tanh else _by_cephes(y * sqrt(0.5))
    return (0.5 * y * (1 + found)).astype(x.dtype, copy=False)


def _erf_into(form: Form, x: Any, y: Any) -> None:
    (_by_formula if x.dtype == np.float64 else erf)(form, x, y)


OPERATORS = {"Erf": Operator(_erf, into=_erf_into), "Gelu": Operator(_gelu)}
