"""Numbers rounded up: to whole units, and so that a multiple of them leads to a certain bank of shared memory."""

from __future__ import annotations

RANK = 3  # of kernels for problems of this rank and of lower ones, which get axes of one element


def whole(number: int, unit: int) -> int:
    """Return the least multiple of a unit from ``number`` on."""
    return -(-number // unit) * unit


def congruent(least: int, factor: int, target: int, modulus: int) -> int:
    """Return the least number from ``least`` on whose product is congruent to ``target``; ``least`` without one."""
    for number in range(least, least + modulus):
        if (number * factor - target) % modulus == 0:
            return number
    return least
