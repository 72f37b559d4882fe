"""Bank conflicts of shared memory, counted lane by lane, and the pitches that avoid them.

Shared memory has 32 banks of four bytes. A warp takes a step for every 128 bytes that it reads: eight lanes of 16 bytes
take part in one. It takes more where lanes need several words of a bank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_BANKS, _WORD = 32, 4


def steps(addresses: Iterable[int], size: int) -> int:
    """Return the most steps that lanes with 128 bytes take, each with ``size`` bytes at its address; 1 is best.

    Lanes of one address share a step.
    """
    at, lanes, most = list(addresses), _BANKS * _WORD // size, 1
    for first in range(0, len(at), lanes):
        words = {address // _WORD + more for address in at[first : first + lanes] for more in range(-(-size // _WORD))}
        most = max(most, *Counter(word % _BANKS for word in words).values())
    return most


def next_in_bank(least: int, bank: int, banks: int, times: int = 1) -> int:
    """Return the least pitch from ``least`` on that leads to a bank, taken so many times: by trying."""
    return next(pitch for pitch in range(least, least + banks) if pitch * times % banks == bank % banks)
