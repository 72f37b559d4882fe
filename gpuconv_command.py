"""The command ``gpuconv``: runs :mod:`gpuconv.cli.main` and handles Ctrl-C while Python imports modules and exits.

It stands beside the package: importing any part of that also imports NumPy, which takes most of a command's start-up
time, and an interrupt in there would print a traceback.
"""

from __future__ import annotations

import _signal as signal  # the module signal imports enum first, during which Ctrl-C would print a traceback
import os

_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def main() -> int:
    """Run the command that the process was started with, and return its exit code."""
    exit_on_interrupt()
    code = _INTERRUPTED
    try:
        from gpuconv.cli.main import main as command

        _replace(exit_at_once, signal.default_int_handler)
        code = command()
    except KeyboardInterrupt:  # just before the command handles it, or once more while it does
        pass
    finally:
        _replace(signal.default_int_handler, signal.SIG_IGN)  # all is done: the rest is the interpreter's own exit
    return code


def exit_on_interrupt() -> None:
    """End the process on Ctrl-C with exit code 130 and no output, unless it was started to ignore Ctrl-C."""
    _replace(signal.default_int_handler, exit_at_once)


def exit_at_once(*_: object) -> None:
    """End the process without any clean-up: nothing has been written or opened yet."""
    os._exit(_INTERRUPTED)


def _replace(expected: object, handler: object) -> None:
    if signal.getsignal(signal.SIGINT) is expected:
        signal.signal(signal.SIGINT, handler)
