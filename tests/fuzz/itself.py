"""A fuzzer whose cases have planted faults of every kind, to test the fuzzing framework itself."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from random import Random

from tests.fuzz.frame import Fuzzer, Wrong

FAULTS = ("none", "none", "none", "wrong", "wrong", "error", "spoils", "dies", "hangs", "exits", "lasts")


class FUZZER(Fuzzer):
    """Each case names its fault and its size."""

    limit = 0.2

    def __init__(self) -> None:
        self._cases = 0

    def case(self, random: Random) -> tuple[str, int]:
        fault = random.choice(FAULTS[:4]) if random.random() < 0.9 else random.choice(FAULTS[4:])
        return fault, random.randint(2, 9)

    def check(self, case: tuple[str, int]) -> str:
        fault, size = case
        if fault == "wrong" and size > 1:
            raise Wrong("a planted fault", f"of size {size}")
        if fault == "error":
            raise KeyError(size)
        if fault == "dies":
            os.abort()
        if fault == "exits":
            os._exit(3)
        if fault == "lasts":
            self.lasts()
        if fault in ("hangs", "lasts"):
            time.sleep(3600)
        self.spoiled = fault == "spoils"
        return fault

    def smaller(self, case: tuple[str, int]) -> Iterator[tuple[str, int]]:
        if case[1] > 0:
            yield case[0], case[1] - 1
