"""Numbers rounded up: to whole units, and so that a multiple of them leads to a certain bank of shared memory."""

from __future__ import annotations

from collections.abc import Iterator

RANK = 3  # of kernels for problems of this rank and of lower ones, which get axes of one element
_MUCH_EMPTY = 0.25  # of the rows or columns of tiles, which explanations name
_FEW = 64  # rows or columns, that one tile may well be too large for


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
    used = filters * rows
    yield from _empty(f"{filters} output channels of a group", used, tiles or -(-used // block_m), block_m, "rows")


def empty_columns(channels: int, taps: int, of_tap: int, block_n: int) -> Iterator[str]:
    """Say the same of N where it has the channels of each tap, which take so many columns."""
    used = taps * of_tap
    what = f"{channels} channels of a group{f' in {taps} taps' if taps > 1 else ''}"
    yield from _empty(what, used, -(-used // block_n), block_n, "columns")


def _empty(what: str, used: int, tiles: int, size: int, side: str) -> Iterator[str]:
    empty = 1 - used / (tiles * size)
    if (tiles > 1 or used > _FEW) and empty >= _MUCH_EMPTY:
        yield f"{what} leave {empty:.0%} of {tiles} tiles of {size} {side} empty"
