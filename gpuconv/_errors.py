"""gpuconv's exceptions, each also a ValueError, TypeError or RuntimeError; and how values appear in messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_LONGEST = 120  # most characters of a value in a message
_SLICED = (list, tuple, str, bytes, bytearray)  # cut before repr: each entry has at least one character there


def shown(value: Any) -> str:
    """Return a caller's value for a message: its repr on one line, cut to 120 characters.

    Long lists and texts are cut before their repr is computed.
    """
    try:
        return one_line(repr(value[:_LONGEST] if type(value) in _SLICED and len(value) > _LONGEST else value))
    except Exception:  # raised by the caller's class, or an integer with too many digits
        return f"<{type(value).__name__}>"


def text_of(value: Any) -> str:
    """Return ``str(value)``, or :func:`shown` if that raises: too many digits, or a faulty class of the caller."""
    try:
        return str(value)
    except Exception:
        return shown(value)


def one_line(text: str, longest: int = _LONGEST) -> str:
    """Return an untrusted text as :func:`printable` does, cut to ``longest`` characters."""
    line = printable(text[: 4 * longest])  # several blanks become one
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def printable(text: str) -> str:
    """Return a text on one line, with control characters escaped: names in models are untrusted."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return names separated by commas; beyond ``most``, only how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


class GpuconvError(Exception):
    """Base of every error that gpuconv raises on purpose."""


class ArgumentError(GpuconvError, ValueError):
    """An argument has the right type but an invalid value: a shape, a range, or a contradiction."""


class ArgumentTypeError(GpuconvError, TypeError):
    """An argument has the wrong type: not an array, a dtype that the operator does not take, or mixed libraries."""


class DeviceError(GpuconvError, RuntimeError):
    """There is no usable CUDA device, CuPy is missing, or the driver reported an error."""


class CaptureError(DeviceError):
    """The current stream captures a CUDA graph, and the call would wait for the device or copy to the host.

    Attributes
    ----------
    does : str
        What the call does other than launching kernels, such as "copies an array to the host".
    """

    def __init__(self, message: str, does: str = "") -> None:
        super().__init__(message)
        self.does = does


class OutOfDeviceMemory(DeviceError, MemoryError):
    """The device has too little free memory; the message gives the bytes and their purpose."""


class CompileError(DeviceError):
    """A kernel did not compile; the message holds the compiler's log."""
