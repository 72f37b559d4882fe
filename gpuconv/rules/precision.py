"""The setting ``precision``: how float32 operands are multiplied on tensor cores.

It is given per call, or for a block of code by :func:`precision`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Literal, get_args

from gpuconv._errors import ArgumentError, ArgumentTypeError, shown
from gpuconv.rules.settings import Setting
from gpuconv.rules.signatures import refusing

Precision = Literal["ieee", "tf32", "3xtf32"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
CURRENT: ContextVar[Precision] = ContextVar("gpuconv.precision", default="ieee")


def check(operator: str, precision: Any) -> str:
    """Return the precision if it is valid; raise ArgumentError or ArgumentTypeError otherwise."""
    if not isinstance(precision, str):
        raise ArgumentTypeError(f"{operator}: precision must be a string, not {type(precision).__name__}")
    if precision not in PRECISIONS:
        raise ArgumentError(f"{operator}: precision must be one of {', '.join(PRECISIONS)}, not {shown(precision)}")
    return precision


@refusing
def precision(value: Precision) -> AbstractContextManager[None]:
    """Set the default precision of calls, for a block of code or for a function.

    The setting is local to the current thread or asynchronous task. Blocks can be nested; leaving one restores the
    previous setting, after an exception too. A new thread starts with "ieee".

    Parameters
    ----------
    value : {"ieee", "tf32", "3xtf32"}
        How to multiply float32 operands of :func:`conv` and :func:`conv_transpose` on CUDA devices. "ieee" uses all 24
        significant bits. "tf32" rounds operands to 11 significant bits for tensor cores. "3xtf32" splits each operand
        into two such parts and sums three products, which recovers nearly all bits. Kernels may be more exact than
        requested. NumPy arrays and other dtypes are not affected.

    Returns
    -------
    context manager
        Can be entered more than once. Also a decorator of functions, except for asynchronous functions and generators.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        The value is none of the three.

    Notes
    -----
    For a sum of K terms whose magnitudes add up to S, the error is at most (K + 1)·u·S with "ieee", where u = 2⁻²⁴. On
    tensor cores, 2u replaces u; "tf32" adds 2·2⁻¹¹·S, and "3xtf32" adds 2·2⁻²¹·S. Both drop parts of factors below
    2⁻¹³⁶, which matters for factors below about 2⁻¹¹⁵. Infinities and NaN give the same results as with "ieee", and so
    do the largest numbers, up to that error. In an emulator that rounds sums, products of "3xtf32" were within 2⁻²¹·⁴
    of exact ones.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> x, w = np.ones((1, 3, 8), np.float32), np.ones((4, 3, 3), np.float32)
    >>> with gpuconv.precision("tf32"):
    ...     y = gpuconv.conv(x, w)  # as conv(x, w, precision="tf32")
    """
    check("precision", value)
    return Setting(CURRENT, value)
