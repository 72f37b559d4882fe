"""Rounding helpers: to multiples, to bank-conflict-free pitches, and reports of how empty tiles are."""

from __future__ import annotations

from collections.abc import Iterator

RANK = 3  # spatial axes of most kernels; problems with fewer get axes of one element
_MUCH_EMPTY = 0.25  # fraction of empty rows or columns from which reasons mention it
_FEW = 64  # rows or columns that a single tile may well be too large for


def whole(number: int, unit: int) -> int:
    """Return the least multiple of ``unit`` that is at least ``number``."""
    return -(-number // unit) * unit


def congruent(least: int, factor: int, target: int, modulus: int) -> int:
    """Return the least n >= ``least`` with n × ``factor`` ≡ ``target`` (mod ``modulus``), or else ``least``."""
    for number in range(least, least + modulus):
        if (number * factor - target) % modulus == 0:
            return number
    return least


def empty_rows(filters: int, block_m: int, rows: int = 1, tiles: int = 0) -> Iterator[str]:
    """Yield a reason if a quarter or more of the tiles is empty along M, for several or large tiles.

    Each filter has ``rows`` rows of M. ``tiles`` is the number of tiles along M; 0: as many as hold all rows.
    """
    used = filters * rows
    yield from _empty(f"{filters} output channels of a group", used, tiles or -(-used // block_m), block_m, "rows")


def empty_columns(channels: int, taps: int, of_tap: int, block_n: int) -> Iterator[str]:
    """Yield the same reason for N, where each of ``taps`` taps has ``of_tap`` columns."""
    used = taps * of_tap
    what = f"{channels} channels of a group{f' in {taps} taps' if taps > 1 else ''}"
    yield from _empty(what, used, -(-used // block_n), block_n, "columns")


def _empty(what: str, used: int, tiles: int, size: int, side: str) -> Iterator[str]:
    """Yield the reason if enough of the tiles is empty."""
    empty = 1 - used / (tiles * size)
    if (tiles > 1 or used > _FEW) and empty >= _MUCH_EMPTY:
        yield f"{what} leave {empty:.0%} of {tiles} tiles of {size} {side} empty"
