"""The one tree of errors; of values (``ValueError``), of types (``TypeError``), of devices (``RuntimeError``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_LONGEST = 120  # characters of a value that a message shows
_SLICED = (list, tuple, str, bytes, bytearray)  # each entry takes a character or more in their repr


def shown(value: Any) -> str:
    """Return what a caller passed as a message shows it: its repr as :func:`one_line` puts it.

    Only as much of a long list or text is looked at as can be shown.
    """
    try:
        return one_line(repr(value[:_LONGEST] if type(value) in _SLICED and len(value) > _LONGEST else value))
    except Exception:  # of a class of the caller's, or of an integer with too many digits
        return f"<{type(value).__name__}>"


def text_of(value: Any) -> str:
    """Return ``str(value)``, or a short text where that fails: of too many digits, or of a class of the caller's."""
    try:
        return str(value)
    except Exception:
        return shown(value)


def one_line(text: str, longest: int = _LONGEST) -> str:
    """Return a text of somebody else's as :func:`printable` puts it, cut where it is long."""
    line = printable(text[: 4 * longest])  # several blanks become one
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def printable(text: str) -> str:
    """Put a text on one line, with control characters escaped: names in models are anybody's."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return texts separated by commas; of many, the first ones and the number of the others."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


class GpuconvError(Exception):
    """Base of every error that gpuconv raises on purpose."""


class ArgumentError(GpuconvError, ValueError):
    """An argument has the right type but an impossible value: a shape, a range, a contradiction."""


class ArgumentTypeError(GpuconvError, TypeError):
    """An argument has the wrong type: not an array, a dtype the operator does not take, mixed libraries."""


class DeviceError(GpuconvError, RuntimeError):
    """No usable CUDA device, or the device refused."""


class CaptureError(DeviceError):
    """The current stream captures a graph, in which this cannot be done.

    Attributes
    ----------
    does : str
        What is done instead of launching kernels, such as "copies an array to the host".
    """

    def __init__(self, message: str, does: str = "") -> None:
        super().__init__(message)
        self.does = does


class OutOfDeviceMemory(DeviceError, MemoryError):
    """The device lacks free memory; the message gives the bytes and what they were for."""


class CompileError(DeviceError):
    """A kernel did not compile; the message holds the compiler's log."""
