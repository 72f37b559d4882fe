"""Count shared-memory bank conflicts lane by lane, and find pitches that avoid them.

Shared memory has 32 banks of 4 bytes. A warp needs one wavefront for every 128 bytes that it reads, that is for 8 lanes
of 16 bytes each; more if lanes access different words of the same bank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_BANKS, _WORD = 32, 4


def steps(addresses: Iterable[int], size: int) -> int:
    """Return the most wavefronts that any group of lanes reading 128 bytes needs; 1 is conflict-free.

    Each lane reads ``size`` bytes at its address; equal addresses are broadcast.
    """
    at, lanes, most = list(addresses), _BANKS * _WORD // size, 1
    for first in range(0, len(at), lanes):
        words = {address // _WORD + more for address in at[first : first + lanes] for more in range(-(-size // _WORD))}
        most = max(most, *Counter(word % _BANKS for word in words).values())
    return most


def next_in_bank(least: int, bank: int, banks: int, times: int = 1) -> int:
    """Return the smallest pitch >= ``least`` such that ``times`` pitches lead to this bank, by trying."""
    return next(pitch for pitch in range(least, least + banks) if pitch * times % banks == bank % banks)
