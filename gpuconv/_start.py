"""Handles Ctrl-C for ``python -m gpuconv``, which imports the package before the command: imported first of all."""

from __future__ import annotations

import sys


def _is_command() -> bool:
    """Return whether Python is looking for the module to run, and that is this package."""
    words = sys.orig_argv
    finding = getattr(sys, "argv", [])[:1] == ["-m"]  # Python puts the module's path there once it is found
    return finding and "-m" in words and words[words.index("-m") + 1 :][:1] == ["gpuconv"]


if _is_command():
    from gpuconv_command import exit_on_interrupt

    exit_on_interrupt()
