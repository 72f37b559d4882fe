"""A program that is started once and answers for one test after another.

It reads a line per test from its input: the folder of the test and the folder for its outputs, separated by a tab. It
writes the outputs as programs for ``command:`` do, and then a line to its output: ``ok``, or ``refused:`` and why. It
must not buffer that line. Other lines are ignored. If it ends or dies, it is started again for the next test.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuconv.judge.adapters.command import Program, read_outputs, run_with, types, version
from gpuconv.judge.adapters.node import Crashed, Inexpressible

__all__ = ["run", "run_folder", "version"]

_running: dict[str, Program] = {}  # by the command


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Send the program one model with its inputs, written as a test; read its outputs."""
    return run_with(run_folder, model, inputs, option)


def run_folder(test: Path, outputs: Path, option: str) -> list[Any]:
    """Send both folders to the program, wait for its reply and read what it wrote.

    If a program ends that has answered for other tests before, a new one gets the last word.
    """
    while True:
        fresh = option not in _running
        program = _running.get(option) or _running.setdefault(option, Program(shlex.split(option), answers=True))
        with suppress(OSError):  # it ended; the missing reply tells
            program.send(f"{test}\t{outputs}")
        while (line := program.next_line()) is not None:
            if line == "ok":
                return read_outputs(outputs, types(test), "the command said ok")
            if line.startswith("refused"):
                raise Inexpressible(line[len("refused") :].lstrip(": ") or "no message")
        code = _running.pop(option).stop()
        if fresh:
            raise Crashed(f"the command ended with code {code} without a reply: {program.last_line()}")
