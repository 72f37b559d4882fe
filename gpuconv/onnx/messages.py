"""Formatting of error messages and warnings about models.

Each message is one printable line of bounded length, however long or odd the names in a model are.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from gpuconv._errors import DeviceError, GpuconvError, one_line

LONGEST = 500  # characters of a whole message
_LONGEST_NAME = 80
_LONGEST_REASON = 300  # characters quoted from another library's message
_PASSED = "gpuconv", "onnx"  # packages skipped when looking for the caller to warn: onnx calls gpuconv for subgraphs

_P = ParamSpec("_P")
_R = TypeVar("_R")


def quoted(name: str | bytes, longest: int = _LONGEST_NAME) -> str:
    """Return a name for use in messages: in quotes, with control characters escaped, cut to ``longest`` characters.

    Examples
    --------
    >>> print(quoted("a" + chr(10) + "b"))
    'a\\nb'
    """
    text = repr(name[:longest])
    whole = len(name) <= longest and len(text) <= longest + 2
    return text if whole else f"{text[:longest]}…{text[-1]}"


def reason(error: BaseException) -> str:
    """Return another library's error message as one line, or the name of its exception class if the message is
    empty.
    """
    return one_line(str(error), _LONGEST_REASON) or type(error).__name__


def presentable(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a function so that the GpuconvErrors it raises have one-line messages of at most LONGEST characters."""

    @wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except DeviceError:  # a compiler's log needs its line breaks
            raise
        except GpuconvError as error:
            error.args = (one_line(str(error), LONGEST),)
            raise

    return guarded


def warn(message: str) -> None:
    """Issue a UserWarning at the line of user code that called gpuconv; the message is cut to one line."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PASSED:
        level, frame = level + 1, frame.f_back
    warnings.warn(one_line(message, LONGEST), UserWarning, level)
