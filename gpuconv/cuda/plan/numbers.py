"""Numbers rounded up: to whole units, and so that a multiple of them leads to a certain bank of shared memory."""

from __future__ import annotations

from collections.abc import Iterator

RANK = 3  # of kernels for problems of this rank and of lower ones, which get axes of one element
_MUCH_EMPTY = 0.25  # of the rows of tiles, which explanations name
_FEW = 64  # filters, that one tile may well be too large for


def whole(number: int, unit: int) -> int:
    """Return the least multiple of a unit from ``number`` on."""
    return -(-number // unit) * unit


def congruent(least: int, factor: int, target: int, modulus: int) -> int:
    """Return the least number from ``least`` on whose product is congruent to ``target``; ``least`` without one."""
    for number in range(least, least + modulus):
        if (number * factor - target) % modulus == 0:
            return number
    return least


def empty_rows(filters: int, block_m: int, rows: int = 1, tiles: int = 0) -> Iterator[str]:
    """Say how much of the tiles is empty along M, where that is a quarter or more of several or large ones.

    Filters have so many ``rows`` each, in so many ``tiles``, or as many as hold all rows.
    """
    tiles = tiles or -(-filters * rows // block_m)
    empty = 1 - filters * rows / (tiles * block_m)
    if (tiles > 1 or filters * rows > _FEW) and empty >= _MUCH_EMPTY:
        yield f"{filters} output channels of a group leave {empty:.0%} of {tiles} tiles of {block_m} rows empty"
