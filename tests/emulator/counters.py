"""What a launch cost: instructions, products on tensor cores, wavefronts and sectors, by source line."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FIELDS = (  # in the order of state.hpp
    "instructions",
    "lanes",
    "mma_macs",
    "shared_requests",
    "shared_wavefronts",
    "shared_ideal",
    "global_requests",
    "global_sectors",
    "global_ideal",
)


class Counters:
    """Counts of one kernel, one row for each instruction.

    `shared_wavefronts` against `shared_ideal` shows bank conflicts, `global_sectors` against `global_ideal` how far
    accesses are from reading and writing only what they need.
    """

    def __init__(self, keys: list[str], lines: list[str], counts: npt.NDArray[np.uint64]) -> None:
        self.keys = keys
        self.lines = lines
        self.counts = counts

    def __add__(self, other: Counters) -> Counters:
        return Counters(self.keys, self.lines, self.counts + other.counts)

    @property
    def total(self) -> dict[str, int]:
        return dict(zip(FIELDS, map(int, self.counts.sum(0)), strict=True))

    def by_line(self, *fields: str) -> dict[str, tuple[int, ...]]:
        """Return the sums of some fields for each source line where the first one is not zero."""
        columns = [FIELDS.index(field) for field in fields]
        sums: dict[str, Any] = {}
        for line, counts in zip(self.lines, self.counts[:, columns], strict=True):
            sums[line] = sums.get(line, 0) + counts
        return {line: tuple(map(int, counts)) for line, counts in sums.items() if counts[0]}

    def conflicts(self) -> dict[str, tuple[int, ...]]:
        """Return the lines with more wavefronts than necessary: those and the ideal."""
        return {
            line: both for line, both in self.by_line("shared_wavefronts", "shared_ideal").items() if both[0] > both[1]
        }

    def scattered(self) -> dict[str, tuple[int, ...]]:
        """Return the lines with more sectors than necessary: those and the ideal."""
        return {
            line: both for line, both in self.by_line("global_sectors", "global_ideal").items() if both[0] > both[1]
        }
