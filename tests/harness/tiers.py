"""Which tests a run takes: the normal tier, the thorough one as well, or a part of the thorough one alone."""

from __future__ import annotations

import zlib
from argparse import ArgumentTypeError
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pytest


class Part(NamedTuple):
    """One of several parts of the thorough tests, counted from 1."""

    number: int
    parts: int


def part(text: str | None) -> Part | None:
    """Return ``2/3`` as a part; ValueError for what is none."""
    if text is None:
        return None
    number, parts = map(int, text.split("/"))
    if not 1 <= number <= parts:
        raise ValueError(text)
    return Part(number, parts)


def checked(text: str) -> str:
    """Return the text of a part, which unlike a part can be sent to other processes; ArgumentTypeError otherwise."""
    try:
        part(text)
    except ValueError:
        raise ArgumentTypeError(f"{text} is not K/N with K from 1 to N, as 2/6") from None
    return text


def _mark(items: Iterable[pytest.Item]) -> None:
    """Mark as thorough what `sampled` leaves out of the normal tier."""
    functions: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled is not None:
            functions.setdefault((item.nodeid.partition("[")[0], sampled.args[0]), []).append(item)
    for (_, count), cases in functions.items():
        first = min(cases, key=_drawn)
        for item in cases:
            if _drawn(item) % count and item is not first:
                item.add_marker("thorough")


def select(
    items: Sequence[pytest.Item], thorough: bool, part: Part | None
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests that run, and those that do not."""
    _mark(items)
    chosen, others = [], []
    for item in items:
        (chosen if _runs(item, thorough, part) else others).append(item)
    return chosen, others


def _runs(item: pytest.Item, thorough: bool, part: Part | None) -> bool:
    if part is None:
        return thorough or item.get_closest_marker("thorough") is None
    return _is_thorough(item) and _drawn(item, "part") % part.parts == part.number - 1


def _is_thorough(item: pytest.Item) -> bool:
    """Tell whether the thorough tier adds to a test, or is all that runs it: random tests take more examples there."""
    return item.get_closest_marker("thorough") is not None or hasattr(getattr(item, "obj", None), "hypothesis")


def _drawn(item: pytest.Item, purpose: str = "") -> int:
    """Return a number that stays, the same for tests of the same parameters, which share what is compiled."""
    name = item.callspec.id if hasattr(item, "callspec") else item.name
    return zlib.crc32(f"{purpose} {item.path.name} {name}".encode())
