"""Rows of a long measurement, which go on behind a row that hangs, and in a later command where one was cut off.

All steps of a visit share one file of JSON lines. A row is two of them, each written at once: that it has begun, and
how it ended. A row that a process was lost in has begun only; who watches the process ends it, as hung or as died.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

Line = dict[str, Any]
Item = TypeVar("Item")
_OPEN = ("begun", "noted")
_TRIES = 2  # that a row is begun and not ended by anybody, before it is taken to be at fault


def read(path: Path) -> list[Line]:
    """Return the file's lines; a last one that was cut off is left out, and a file that is absent has none."""
    if not path.exists():
        return []
    found = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return found


def emulated() -> bool:
    """Tell whether this is on the emulated device of the tests: every line then says so."""
    return os.environ.get("EMULATED_CUDA") == "1"


def spread(items: Sequence[Item], most: int | None) -> list[Item]:
    """Return no more than so many, at equal distances; all of them for None."""
    return list(items[:: max(1, ceil(len(items) / most))] if most else items)


class Rows:
    """The rows of one step.

    Parameters
    ----------
    path : Path
        The file of all steps; made where it is absent.
    step : str

    Attributes
    ----------
    ended, noted : dict of str to dict
        By row, the line that ended it, and the last of everything that it said it was at.
    """

    def __init__(self, path: Path, step: str) -> None:
        self._path, self._step = path, step
        if path.exists() and not path.read_text(encoding="utf-8", errors="replace").endswith("\n"):
            self._append("\n")  # behind a line that was cut off
        lines = [line for line in read(path) if line.get("step") == step]
        self._begun = Counter(line["row"] for line in lines if line["status"] == "begun")
        self.noted: dict[str, Line] = {}
        for line in lines:
            if line["status"] == "noted":
                self._merge(line)
        self.ended: dict[str, Line] = {line["row"]: line for line in lines if line["status"] not in _OPEN}

    def left(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the names of the rows that are left, in order, and write that each begins."""
        for name in names:
            if name in self.ended:
                continue
            if self._begun[name] >= _TRIES:
                self.end(name, "hung", detail=f"begun {self._begun[name]} times, and never ended")
                continue
            self._write({"row": name, "status": "begun"})
            yield name

    def note(self, name: str, **found: Any) -> None:
        """Write what a row that has begun is at, for whoever finds that it never ended."""
        self._merge({"row": name, **found})
        self._write({"row": name, "status": "noted", **found})

    def _merge(self, line: Line) -> None:
        self.noted.setdefault(line["row"], {}).update(line)

    def end(self, name: str, status: str = "passed", **found: Any) -> None:
        """Write how a row ended: passed, failed, skipped, hung or died; and what was found."""
        self.ended[name] = {"step": self._step, "row": name, "status": status, **found}
        self._write({"row": name, "status": status, **found})

    def open(self) -> list[str]:
        """Return the rows that have begun and not ended, the last one at the end."""
        lines = [line for line in read(self._path) if line.get("step") == self._step]
        state = {line["row"]: line["status"] for line in lines}
        return [name for name, status in state.items() if status in _OPEN]

    def _write(self, line: Line) -> None:
        """Append a line by one call of the system, so that it is there whole or not at all."""
        mark = {"emulated": True} if emulated() else {}
        self._append(json.dumps({"step": self._step, **mark, **line}, separators=(",", ":")) + "\n")

    def _append(self, text: str) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
