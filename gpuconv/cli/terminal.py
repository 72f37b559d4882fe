"""Shared by the commands: CommandError, the progress line, warnings, JSON and tables."""

from __future__ import annotations

import json
import re
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from types import TracebackType
from typing import Any

from gpuconv._errors import printable

_SECONDS_BETWEEN_UPDATES = 0.1
_SECONDS_BETWEEN_SIGNS_OF_LIFE = 1.0


class CommandError(Exception):
    """A command failed; the message is the one line that the user sees."""


def whole(text: str) -> int:
    """Parse an integer of ASCII digits with an optional sign; raise ValueError for anything else."""
    if not re.fullmatch("[+-]?[0-9]+", text):
        raise ValueError(text)
    return int(text)


@contextmanager
def warnings_in_lines() -> Iterator[None]:
    """Within this context, print warnings in the form of the command's messages, without source locations."""
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("default")
        warnings.showwarning = _write_warning
        yield


def _write_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    if sys.stderr is not None:
        clear = "\r\x1b[K" if sys.stderr.isatty() else ""  # the progress line
        sys.stderr.write(f"{clear}gpuconv: warning: {printable(str(message))}\n")


class Progress:
    """One line on stderr, rewritten in place if stderr is a terminal.

    If nothing was written for a second, the line is written again with the seconds for which its text has not changed.

    Parameters
    ----------
    lines : bool
        Where stderr is no terminal, write a line every one to one and a half seconds instead of nothing, so that the
        log of a long command shows where it is.
    """

    def __init__(self, lines: bool = False) -> None:
        self._live = sys.stderr is not None and sys.stderr.isatty()
        self._lines = lines and sys.stderr is not None and not self._live
        self._next, self._text = 0.0, ""
        self._since = self._written = time.monotonic()
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Progress:
        if self._live or self._lines:
            self._clock.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._live or self._lines:
            self._clock.join()
        if self._live:
            self._write("")

    def show(self, text: str) -> None:
        """Replace the line, at most ten times a second."""
        now = time.monotonic()
        self._text, self._since = text, now
        if self._live and now >= self._next:
            self._next = now + _SECONDS_BETWEEN_UPDATES
            self._write(text)

    def _tick(self) -> None:
        while not self._stopped.wait(_SECONDS_BETWEEN_SIGNS_OF_LIFE / 2):
            now, text, since = time.monotonic(), self._text, self._since
            if text and now - self._written >= _SECONDS_BETWEEN_SIGNS_OF_LIFE:
                unchanged = now - since
                self._write(f"{text} ({unchanged:.0f} s)" if unchanged >= _SECONDS_BETWEEN_SIGNS_OF_LIFE else text)

    def _write(self, text: str) -> None:
        self._written = time.monotonic()
        shown = f"\r\x1b[K{printable(text)[: shutil.get_terminal_size().columns - 1]}"
        if self._lines:
            shown = f"gpuconv: {printable(text)}\n"
        with self._lock, suppress(OSError, ValueError):  # the reader of a pipe may be gone
            sys.stderr.write(shown)
            sys.stderr.flush()


def as_json(value: Any) -> str:
    """Return a value as JSON with one line per member, and one per row of lists or objects that hold containers only.

    A number that is not finite becomes null.
    """
    value = _finite(value)
    return _lines(value, _table) if isinstance(value, dict) else _table(value)


def _table(value: Any) -> str:
    rows = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (None,)
    return _lines(value, json.dumps) if all(isinstance(row, (dict, list)) for row in rows) else json.dumps(value)


def _lines(value: Any, text: Callable[[Any], str]) -> str:
    """Return JSON of an object or a list with one line per item."""
    if not value:
        return json.dumps(value)
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"{json.dumps(str(name))}: {text(item)}" for name, item in value.items()) + "\n}"
    return "[\n" + ",\n".join(map(text, value)) + "\n]"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return a text table: the first ``left`` columns are left-aligned, the remaining ones right-aligned."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]

    def cell(text: str, column: int) -> str:
        return text.ljust(widths[column]) if column < left else text.rjust(widths[column])

    return "\n".join("  ".join(cell(text, column) for column, text in enumerate(line)).rstrip() for line in lines)
