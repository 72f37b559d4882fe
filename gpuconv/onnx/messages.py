"""Error messages about models: each is one line of printable text, and short however long a model's names are."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from gpuconv._errors import DeviceError, GpuconvError, one_line

LONGEST = 500  # characters of a message
_LONGEST_NAME = 80
_LONGEST_REASON = 300  # of another library's message
_PASSED = "gpuconv", "onnx"  # whose lines no warning is about: onnx calls us for graphs inside of nodes

_P = ParamSpec("_P")
_R = TypeVar("_R")


def quoted(name: str | bytes, longest: int = _LONGEST_NAME) -> str:
    """Return a name as messages have it: in quotes, control characters escaped, and not too long.

    Examples
    --------
    >>> print(quoted("a" + chr(10) + "b"))
    'a\\nb'
    """
    text = repr(name[:longest])
    whole = len(name) <= longest and len(text) <= longest + 2
    return text if whole else f"{text[:longest]}…{text[-1]}"


def reason(error: BaseException) -> str:
    """Return what another library says, or the name of its error where it says nothing."""
    return one_line(str(error), _LONGEST_REASON) or type(error).__name__


def presentable(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make one short, printable line of the message of every error of gpuconv that a function raises."""

    @wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except DeviceError:  # a compiler's log has many lines
            raise
        except GpuconvError as error:
            error.args = (one_line(str(error), LONGEST),)
            raise

    return guarded


def warn(message: str) -> None:
    """Warn whoever called gpuconv, at the line that did, in one short, printable line."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PASSED:
        level, frame = level + 1, frame.f_back
    warnings.warn(one_line(message, LONGEST), UserWarning, level)
