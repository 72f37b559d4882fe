"""The tiers of tests: normal, normal plus thorough, or one part of the thorough tests."""

from __future__ import annotations

import zlib
from argparse import ArgumentTypeError
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pytest

from tests.selection import Choice, proves


class Part(NamedTuple):
    """One of several parts of the thorough tests, counted from 1."""

    number: int
    parts: int


def part(text: str | None) -> Part | None:
    """Parse a part such as ``2/3``; raises ValueError if it is invalid."""
    if text is None:
        return None
    number, parts = map(int, text.split("/"))
    if not 1 <= number <= parts:
        raise ValueError(text)
    return Part(number, parts)


def checked(text: str) -> str:
    """Validate the text of a part, and return it (text can be sent to workers); raises ArgumentTypeError."""
    try:
        part(text)
    except ValueError:
        raise ArgumentTypeError(f"{text} is not K/N with K from 1 to N, as 2/6") from None
    return text


def select(
    items: Sequence[pytest.Item], thorough: bool, part: Part | None, choice: Choice | None = None
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests to run, and the others; a choice restricts the tests further."""
    unsampled = _unsampled(items)

    def runs(item: pytest.Item) -> bool:
        adds = item in unsampled or item.get_closest_marker("thorough") is not None
        if part is not None:  # random tests run again there, with more examples
            adds = adds or hasattr(getattr(item, "obj", None), "hypothesis")
            return adds and _drawn(item, "part") % part.parts == part.number - 1
        if choice is None:
            return thorough or not adds
        return item not in unsampled and (bool(proves(item)) or not adds) and choice.takes(item)

    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (chosen if runs(item) else others).append(item)
    return chosen, others


def _unsampled(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that `sampled` excludes from the normal tier."""
    functions: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled is not None:
            functions.setdefault((item.nodeid.partition("[")[0], sampled.args[0]), []).append(item)
    left = set[pytest.Item]()
    for (_, count), cases in functions.items():
        first = min(cases, key=_drawn)
        left.update(item for item in cases if _drawn(item) % count and item is not first)
    return left


def _drawn(item: pytest.Item, purpose: str = "") -> int:
    """Return a stable pseudo-random number, equal for tests with equal parameters, which share compiled kernels."""
    name = item.callspec.id if hasattr(item, "callspec") else item.name
    return zlib.crc32(f"{purpose} {item.path.name} {name}".encode())
