"""What a probe is, and how what a device gave is compared with what NVIDIA documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.probes.launch import Device, Program

Comparison = tuple[str, Any, Any]  # a label, what is expected, what came
Comparisons = Iterator[Comparison]  # or a generator that returns a note


class Wrong(Exception):
    """An instruction does something else than was expected; the message says what, and where."""


@dataclass(frozen=True)
class Probe:
    """One row.

    Attributes
    ----------
    name : str
    run : callable
        Takes a device and yields comparisons; what it returns in the end is a note.
    programs : tuple of Program
        That it runs, to be compiled ahead.
    architectures : tuple of str
        That it runs on; empty: all.
    """

    name: str
    run: Callable[[Device], Iterator[Comparison]]
    programs: tuple[Program, ...] = ()
    architectures: tuple[str, ...] = ()

    def runs_on(self, architecture: str) -> bool:
        """Tell whether an architecture has the instructions."""
        return not self.architectures or architecture in self.architectures


def check(comparisons: Comparisons) -> str:
    """Compare bit by bit, and return how much there was.

    Raises
    ------
    Wrong
        With the number of differences, and the first of each comparison.
    """
    labels, elements, wrong = 0, 0, []
    noting = _Noting(comparisons)
    for label, expected, got in noting:
        labels, elements = labels + 1, elements + np.size(got)
        found = difference(expected, got)
        wrong += [f"{label}: {found}"] if found else []
    if wrong:
        raise Wrong("; ".join(wrong[:4]) + (f"; and {len(wrong) - 4} more" if len(wrong) > 4 else ""))
    if not elements:
        raise Wrong("nothing was compared")
    return f"{elements} numbers of {labels} comparisons are as expected{noting.note}"


class _Noting:
    """Iterates, and keeps what a generator returns in the end."""

    def __init__(self, comparisons: Comparisons) -> None:
        self.note, self._comparisons = "", comparisons

    def __iter__(self) -> Iterator[Comparison]:
        note: Any = yield from self._comparisons
        self.note = f"; {note}" if note else ""


def difference(expected: Any, got: Any) -> str:
    """Return where two arrays have different bits, and which; nothing where they have the same."""
    expected, got = np.asarray(expected), np.asarray(got)
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return f"expected {expected.dtype}{expected.shape}, got {got.dtype}{got.shape}"
    unlike = bits(expected) != bits(got)
    count = int(unlike.sum())
    if not count:
        return ""
    at = tuple(int(index[0]) for index in np.nonzero(unlike))
    return f"{count} of {got.size} differ, first at {list(at)}: expected {shown(expected[at])}, got {shown(got[at])}"


def bits(array: Any) -> Any:
    """Return an array's bits as unsigned integers."""
    array = np.ascontiguousarray(array)
    return array.view(f"u{array.itemsize}")


def shown(value: Any) -> str:
    """Return a number and its bits."""
    pattern = f"{int(bits(np.asarray(value)).reshape(-1)[0]):#0{2 * value.itemsize + 2}x}"
    return pattern if value.dtype.kind in "ui" else f"{value!s} ({pattern})"
