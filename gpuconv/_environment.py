"""How environment variables are read: one that is empty is unset, one that makes no sense is an error that names it."""

from __future__ import annotations

import os
from pathlib import Path

from gpuconv._errors import ArgumentError, shown

_LARGEST = 2**63 - 1


def integer(name: str, least: int, most: int = _LARGEST) -> int | None:
    """Return the number that a variable holds, or None where it is not set.

    Raises
    ------
    ArgumentError
        It is not a number of digits alone, or lies below ``least`` or above ``most``.
    """
    text = os.environ.get(name, "")
    if not text:
        return None
    digits = text.lstrip("0") or "0"
    if text.isdecimal() and len(digits) <= len(str(_LARGEST)):  # int() refuses thousands of digits in its own words
        number = int(digits)
        if least <= number <= most:
            return number
    raise ArgumentError(f"{name} must be an integer from {least} to {most}, not {shown(text)}")


def folder(name: str) -> Path | None:
    """Return the folder that a variable names, as an absolute path with ``~`` expanded; None where it is not set.

    Raises
    ------
    ArgumentError
        There is no such home, or the path begins at a current folder that is gone.
    """
    return _path(name, "folder")


def file(name: str) -> Path | None:
    """Return the file that a variable names; as :func:`folder`."""
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
