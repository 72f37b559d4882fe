"""The setting ``invariant``: whether results are bit-identical for every batch size.

It is given per call, or for a block of code by :func:`invariant`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Literal, get_args

from gpuconv._errors import ArgumentError, ArgumentTypeError, shown
from gpuconv.rules.settings import Setting
from gpuconv.rules.signatures import refusing

Invariance = Literal["batch"]
WORDS: tuple[str, ...] = get_args(Invariance)
CURRENT: ContextVar[Invariance | None] = ContextVar("gpuconv.invariant", default=None)


def check(operator: str, invariant: Any) -> bool:
    """Return whether batch invariance is on; raise ArgumentError or ArgumentTypeError for an invalid value."""
    if invariant is None:
        return False
    if not isinstance(invariant, str):
        raise ArgumentTypeError(f'{operator}: invariant must be "batch" or None, not {type(invariant).__name__}')
    if invariant not in WORDS:
        raise ArgumentError(f'{operator}: invariant must be "batch" or None, not {shown(invariant)}')
    return True


def asked(operator: str, invariant: Any) -> bool:
    """Return whether a call, or else its context, asks for batch invariance; raise as :func:`check` does."""
    return check(operator, CURRENT.get() if invariant is None else invariant)


@refusing
def invariant(value: Invariance | None) -> AbstractContextManager[None]:
    """Guarantee batch invariance of results, for a block of code or for a function.

    The setting is local to the current thread or asynchronous task. Blocks can be nested; leaving one restores the
    previous setting, after an exception too. A new thread starts with None.

    Parameters
    ----------
    value : {"batch", None}
        With "batch", the result for an image is bit-identical whatever else is in the batch: ``conv(x, w)[i]`` equals
        ``conv(x[i : i + 1], w)[0]`` for every batch size, position, memory layout and number of threads. This holds for
        :func:`conv`, :func:`conv_transpose`, their input gradients, and for all pooling and its gradients. On CUDA
        devices, AveragePool with several windows and the gradients of pooling then use the general kernel, which is
        slower. Gradients of weights and biases sum over images and are not affected. None guarantees identical bits
        only for identical calls.

    Returns
    -------
    context manager
        Can be entered more than once. Also a decorator of functions, except for asynchronous functions and generators.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        The value is not "batch" or None.

    Examples
    --------
    >>> import numpy as np, gpuconv
    >>> x, w = np.ones((2, 3, 8), np.float32), np.ones((4, 3, 3), np.float32)
    >>> with gpuconv.invariant("batch"):
    ...     y = gpuconv.conv(x, w)  # as conv(x, w, invariant="batch")
    >>> bool((y[:1] == gpuconv.conv(x[:1], w, invariant="batch")).all())
    True
    """
    check("invariant", value)
    return Setting(CURRENT, value)
