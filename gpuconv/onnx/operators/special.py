"""Erf, which NumPy lacks, and Gelu, which is made of it."""

from __future__ import annotations

from functools import reduce
from math import pi, sqrt
from typing import Any

from gpuconv.onnx.operators.form import Form, Operator, namespace, wide

# Rational approximations of the Cephes library (S. L. Moshier), highest power first; the denominators begin with 1.
_ERF = (
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
_ERFC = (
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
_ERFC_END = 6.0  # from where on 1 - erfc(x) is 1 in float64


def _ratio(fraction: tuple[tuple[float, ...], tuple[float, ...]], x: Any) -> Any:
    top, bottom = (reduce(lambda sum_, term: sum_ * x + term, terms[1:], x * 0 + terms[0]) for terms in fraction)
    return top / bottom


def erf(x: Any) -> Any:
    """Return the error function of a float32 or float64 array, to a few ulps."""
    xp = namespace(x)
    size = xp.minimum(xp.abs(x), _ERFC_END)  # NaN stays
    small = xp.minimum(size, 1)
    near = small * _ratio(_ERF, small * small)
    far = 1 - xp.exp(-size * size) * _ratio(_ERFC, size)
    found = xp.where(size < 1, near, far)
    return xp.where(x < 0, -found, found)


def _erf(_: Form, x: Any) -> Any:
    return erf(wide(x)).astype(x.dtype, copy=False)


def _gelu(form: Form, x: Any) -> Any:
    y = wide(x)
    if form.get("approximate") == "tanh":
        share = 1 + namespace(y).tanh(sqrt(2 / pi) * (y + 0.044715 * (y * y * y)))
    else:
        share = 1 + erf(y * sqrt(0.5))
    return (0.5 * y * share).astype(x.dtype, copy=False)


OPERATORS = {"Erf": Operator(_erf), "Gelu": Operator(_gelu)}
