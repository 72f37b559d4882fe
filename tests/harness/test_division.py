"""Division by numbers known beforehand: quotients and remainders are exact, whoever prepared the divisor."""

from __future__ import annotations

import pytest

from tests.harness import division

pytestmark = pytest.mark.emulator


@pytest.mark.parametrize("side", division.PREPARED)
@pytest.mark.parametrize("wide", [False, True], ids=["32-bit", "64-bit"])
def test_quotients_and_remainders_are_exact(wide: bool, side: str) -> None:
    division.check(wide, side)
