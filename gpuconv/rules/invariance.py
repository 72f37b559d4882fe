"""What bits of a result do not depend on: said by each call, or by the context that it is made in."""

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
    """Tell whether images are computed as if alone; raise ArgumentError, ArgumentTypeError for what is no word."""
    if invariant is None:
        return False
    if not isinstance(invariant, str):
        raise ArgumentTypeError(f'{operator}: invariant must be "batch" or None, not {type(invariant).__name__}')
    if invariant not in WORDS:
        raise ArgumentError(f'{operator}: invariant must be "batch" or None, not {shown(invariant)}')
    return True


def asked(operator: str, invariant: Any) -> bool:
    """Tell whether a call or, where it says nothing, its context asks for it; raise as :func:`check` does."""
    return check(operator, CURRENT.get() if invariant is None else invariant)


@refusing
def invariant(value: Invariance | None) -> AbstractContextManager[None]:
    """Set what bits of results do not depend on, for a block of code or for a function.

    The setting belongs to the thread or the asynchronous task that makes it. Blocks nest, and the end of one restores
    the previous setting, after an error too. A thread that is started meanwhile begins with None.

    Parameters
    ----------
    value : {"batch", None}
        With "batch", an image's result has the same bits whatever stands beside it: ``conv(x, w)[i]`` equals
        ``conv(x[i : i + 1], w)[0]`` bit for bit, for every number of images, place among them, memory layout and
        number of threads. It holds for :func:`conv`, :func:`conv_transpose`, their input gradients, and for all
        pooling and its gradients. On CUDA devices, averages of several windows and the gradients of pooling then take
        the general kernel, which is slower. Gradients of weights and of biases add up images and do not depend on it.
        None promises the same bits for the same call only.

    Returns
    -------
    context manager
        May be entered more than once. Also a decorator of functions, other than asynchronous ones and generators.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Neither of the two.

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
