"""A crash-safe log of a long measurement, row by row, so that a later process can continue it.

All steps of a GPU run share one file of JSON lines. Each row writes two lines at once: that it has begun, and how it
ended. A row whose process was lost has only begun; the supervising process then ends it as hung or died.
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
_TRIES = 2  # a row begun this often without an end is recorded as hung


def read(path: Path) -> list[Line]:
    """Return the lines of a file; a truncated line is skipped, and a missing file has none."""
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
    """Return whether this process uses the emulated device; every line is then marked as such."""
    return os.environ.get("EMULATED_CUDA") == "1"


def spread(items: Sequence[Item], most: int | None) -> list[Item]:
    """Return at most ``most`` items, evenly spaced; all items for None."""
    return list(items[:: max(1, ceil(len(items) / most))] if most else items)


class Rows:
    """The rows of one step in a shared file.

    Parameters
    ----------
    path : Path
        The file of all steps; created if missing.
    step : str

    Attributes
    ----------
    ended : dict of str to dict
        By row, the line that ended it.
    noted : dict of str to dict
        By row, all fields that it has noted as its progress, merged.
    """

    def __init__(self, path: Path, step: str) -> None:
        self._path, self._step = path, step
        if path.exists() and not path.read_text(encoding="utf-8", errors="replace").endswith("\n"):
            self._append("\n")  # terminate a truncated line
        lines = [line for line in read(path) if line.get("step") == step]
        self._begun = Counter(line["row"] for line in lines if line["status"] == "begun")
        self.noted: dict[str, Line] = {}
        for line in lines:
            if line["status"] == "noted":
                self._merge(line)
        self.ended: dict[str, Line] = {line["row"]: line for line in lines if line["status"] not in _OPEN}

    def left(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the names of the rows that have not ended, in order, writing for each that it has begun."""
        for name in names:
            if name in self.ended:
                continue
            if self._begun[name] >= _TRIES:
                self.end(name, "hung", detail=f"begun {self._begun[name]} times, and never ended")
                continue
            self._write({"row": name, "status": "begun"})
            yield name

    def note(self, name: str, **found: Any) -> None:
        """Write the progress of a row that has begun, to be found if it never ends."""
        self._merge({"row": name, **found})
        self._write({"row": name, "status": "noted", **found})

    def _merge(self, line: Line) -> None:
        self.noted.setdefault(line["row"], {}).update(line)

    def end(self, name: str, status: str = "passed", **found: Any) -> None:
        """Write how a row ended (passed, failed, skipped, hung or died) and its results."""
        self.ended[name] = {"step": self._step, "row": name, "status": status, **found}
        self._write({"row": name, "status": status, **found})

    def open(self) -> list[str]:
        """Return the rows that have begun and not ended, the most recent last."""
        lines = [line for line in read(self._path) if line.get("step") == self._step]
        state = {line["row"]: line["status"] for line in lines}
        return [name for name, status in state.items() if status in _OPEN]

    def _write(self, line: Line) -> None:
        """Append a line by one system call, so that it is written completely or not at all."""
        mark = {"emulated": True} if emulated() else {}
        self._append(json.dumps({"step": self._step, **mark, **line}, separators=(",", ":")) + "\n")

    def _append(self, text: str) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
