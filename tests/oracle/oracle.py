"""The definitions of the operators (gpuconv/judge/definition.py), and assertions against them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuconv.judge.definition import (
    ARITHMETIC,
    BFLOAT16,
    FORMATS,
    Array,
    Exact,
    acceptable,
    average_pool,
    bound,
    conv,
    conv_transpose,
    counted_taps,
    max_pool,
    max_unpool,
    round_to,
)

__all__ = [
    "ARITHMETIC",
    "BFLOAT16",
    "FORMATS",
    "Array",
    "Exact",
    "assert_close",
    "assert_same",
    "average_pool",
    "bound",
    "conv",
    "conv_transpose",
    "counted_taps",
    "max_pool",
    "max_unpool",
    "round_to",
]


def _check_form(actual: Array, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
    assert isinstance(actual, np.ndarray), f"not a NumPy array: {type(actual)}"
    assert actual.shape == shape, f"shape {actual.shape}, expected {shape}"
    assert actual.dtype == np.dtype(dtype), f"dtype {actual.dtype}, expected {np.dtype(dtype)}"


def assert_close(actual: Array, exact: Exact, dtype: npt.DTypeLike, arithmetic: str = "ieee") -> None:
    """Assert shape, dtype, the elementwise error bound, and NaN and infinities in the right places."""
    _check_form(actual, exact.value.shape, dtype)
    wide = actual.astype(np.float64)
    with np.errstate(all="ignore"):
        good = acceptable(wide, exact, dtype, arithmetic)
        if good.all():
            return
        limit = bound(exact, dtype, arithmetic)
        error = np.abs(wide - exact.value)
        excess = np.where(good, -1.0, np.nan_to_num(error / limit, nan=np.inf, posinf=np.inf))
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))
    raise AssertionError(
        f"{int((~good).sum())} of {good.size} elements are wrong; the worst, at {at}: got {wide[at]!r}, "
        f"exact {exact.value[at]!r}, error {error[at]:.6g}, bound {limit[at]:.6g} "
        f"({np.dtype(dtype)}, {arithmetic})"
    )


def assert_same(actual: Array, expected: Array, *, bits: bool = True) -> None:
    """Assert bitwise equality (as for MaxPool with Indices); with bits=False equality by ==, where any NaN equals any
    NaN."""
    _check_form(actual, expected.shape, expected.dtype)
    if bits:
        kind = f"u{expected.dtype.itemsize}"
        good = np.ascontiguousarray(actual).view(kind) == np.ascontiguousarray(expected).view(kind)
    else:
        left, right = (a.astype(np.float64) if a.dtype.kind not in "iu" else a for a in (actual, expected))
        good = (left == right) | ((left != left) & (right != right))
    if not good.all():
        at = tuple(int(i) for i in np.argwhere(~good)[0])
        raise AssertionError(
            f"{int((~good).sum())} of {good.size} elements differ; the first, at {at}: "
            f"got {actual[at]!r}, expected {expected[at]!r}"
        )
