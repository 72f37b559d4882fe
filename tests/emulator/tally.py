"""How many launches of how many kernels this test session emulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

launches: Counter[str] = Counter()  # of every kernel of every architecture


def add(kernel: str, architecture: str) -> None:
    launches[f"{kernel} {architecture}"] += 1


def add_all(others: Iterable[tuple[str, int]]) -> None:
    launches.update(dict(others))


def summary() -> str | None:
    """Return the line for pytest's summary, or None where nothing was emulated."""
    if not launches:
        return None
    return f"emulator: {sum(launches.values())} launches of {len(launches)} kernels"
