"""Count the emulated launches of this test session, per kernel and architecture, for pytest's summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

launches: Counter[str] = Counter()  # by "kernel architecture"


def add(kernel: str, architecture: str) -> None:
    """Count one launch."""
    launches[f"{kernel} {architecture}"] += 1


def add_all(others: Iterable[tuple[str, int]]) -> None:
    """Add counts of another process, as pairs of key and number."""
    launches.update(dict(others))


def summary() -> str | None:
    """Return the line for pytest's summary, or None if nothing was emulated."""
    if not launches:
        return None
    return f"emulator: {sum(launches.values())} launches of {len(launches)} kernels"
