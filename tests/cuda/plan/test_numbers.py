"""Rounding helpers, compared with trying."""

from __future__ import annotations

from itertools import product

from gpuconv.cuda.plan import numbers


def test_numbers_are_rounded_up_to_whole_units() -> None:
    for number, unit in product(range(20), (1, 3, 4, 8)):
        found = numbers.whole(number, unit)
        assert found % unit == 0
        assert number <= found < number + unit


def test_a_pitch_leads_to_the_wanted_bank_or_stays() -> None:
    """The first number >= ``least`` whose multiple is congruent, or ``least`` if there is none."""
    for least, times, bank in product((0, 10, 22, 592), (1, 2, 3, 4), range(8)):
        leading = [pitch for pitch in range(least, least + 8) if pitch * times % 8 == bank]
        assert numbers.congruent(least, times, bank, 8) == (leading or [least])[0]
