"""Reads the environment variables ``GPUCONV_…``. Empty counts as unset; an invalid value raises ArgumentError."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any, TypeVar

from gpuconv._errors import ArgumentError, shown

Result = TypeVar("Result")
_LARGEST = 2**63 - 1
_read: ContextVar[dict[Any, Any] | None] = ContextVar("gpuconv.environment", default=None)


def steady(function: Callable[[], Result]) -> Result:
    """Return ``function()``. Within it, :func:`once` reads each variable at most once, so settings cannot change."""
    return copy_context().run(_steadily, function)


def _steadily(function: Callable[[], Result]) -> Result:
    _read.set({})
    return function()


def once(read: Callable[[], Result]) -> Result:
    """Return ``read()``, or its result from earlier in the same call of :func:`steady`."""
    known = _read.get()
    if known is None:
        return read()
    if read not in known:
        known[read] = read()
    found: Result = known[read]
    return found


def integer(name: str, least: int, most: int = _LARGEST) -> int | None:
    """Return a variable's value as an integer, or None if it is not set.

    Raises
    ------
    ArgumentError
        It has other characters than ASCII digits, or is below ``least`` or above ``most``.
    """
    text = os.environ.get(name, "")
    if not text:
        return None
    digits = text.lstrip("0") or "0"
    # int() would accept digits of other scripts, and has an error of its own for thousands of digits.
    if text.isascii() and text.isdecimal() and len(digits) <= len(str(_LARGEST)):
        number = int(digits)
        if least <= number <= most:
            return number
    raise ArgumentError(f"{name} must be an integer from {least} to {most}, not {shown(text)}")


def chained_launches() -> bool:
    """Return whether GPUCONV_CHAINED_LAUNCHES is 1: launches of a call may overlap (programmatic dependent launch).

    Off by default, as no device has run it yet.
    """
    return integer("GPUCONV_CHAINED_LAUNCHES", 0, 1) == 1


def folder(name: str) -> Path | None:
    """Return the folder that a variable names, as an absolute path with ``~`` expanded; None if it is not set.

    Raises
    ------
    ArgumentError
        The home folder is unknown, or the path is relative and the current folder no longer exists.
    """
    return _path(name, "folder")


def file(name: str) -> Path | None:
    """Return the file that a variable names, as an absolute path; see :func:`folder`."""
    return _path(name, "file")


def _path(name: str, kind: str) -> Path | None:
    text = os.environ.get(name, "")
    if not text:
        return None
    path = Path(os.path.expanduser(text))
    if text.startswith("~") and not path.is_absolute():
        raise ArgumentError(f"{name} must name a {kind}, but the home that {shown(text)} begins with is not known")
    try:
        return path.absolute()
    except OSError as error:
        raise ArgumentError(
            f"{name} must name a {kind}, but {shown(text)} begins at the current folder, which is gone ({error})"
        ) from error
