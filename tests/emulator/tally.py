"""Count the emulated launches and kernels of this test session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

launches: Counter[str] = Counter()  # by "KERNEL ARCHITECTURE"


def add(kernel: str, architecture: str) -> None:
    launches[f"{kernel} {architecture}"] += 1


def add_all(others: Iterable[tuple[str, int]]) -> None:
    launches.update(dict(others))


def summary() -> str | None:
    """Return the line for pytest's summary, or None if nothing was emulated."""
    if not launches:
        return None
    return f"emulator: {sum(launches.values())} launches of {len(launches)} kernels"
