"""The definition of a probe, and the comparison of a device's results with the documented ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.probes.launch import Device, Program

Comparison = tuple[str, Any, Any]  # label, expected array, actual array
Comparisons = Iterator[Comparison]  # a generator may return a note


class Wrong(Exception):
    """An instruction behaves differently than expected; the message says how, and at which element."""


@dataclass(frozen=True)
class Probe:
    """One row.

    Attributes
    ----------
    name : str
    run : callable
        Takes a device and yields comparisons; its return value is a note.
    programs : tuple of Program
        Kernels that it runs, to compile them ahead.
    architectures : tuple of str
        Architectures that it runs on; empty: all.
    """

    name: str
    run: Callable[[Device], Iterator[Comparison]]
    programs: tuple[Program, ...] = ()
    architectures: tuple[str, ...] = ()

    def runs_on(self, architecture: str) -> bool:
        """Return whether the probe applies to an architecture."""
        return not self.architectures or architecture in self.architectures


def check(comparisons: Comparisons) -> str:
    """Compare bit by bit, and return how many numbers were compared.

    Raises
    ------
    Wrong
        With the number of differences and the first one, for each comparison that fails.
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
    """Iterates over comparisons and keeps the generator's return value."""

    def __init__(self, comparisons: Comparisons) -> None:
        self.note, self._comparisons = "", comparisons

    def __iter__(self) -> Iterator[Comparison]:
        note: Any = yield from self._comparisons
        self.note = f"; {note}" if note else ""


def difference(expected: Any, got: Any) -> str:
    """Describe where two arrays differ in their bits, with the first difference; "" if they are equal."""
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
    """Return a number with its bit pattern."""
    pattern = f"{int(bits(np.asarray(value)).reshape(-1)[0]):#0{2 * value.itemsize + 2}x}"
    return pattern if value.dtype.kind in "ui" else f"{value!s} ({pattern})"
