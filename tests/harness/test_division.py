"""Division by precomputed divisors is exact, prepared by the host or by a kernel."""

from __future__ import annotations

import pytest

from tests.harness import division

pytestmark = pytest.mark.emulator


@pytest.mark.parametrize("side", division.PREPARED)
@pytest.mark.parametrize("wide", [False, True], ids=["32-bit", "64-bit"])
def test_quotients_and_remainders_are_exact(wide: bool, side: str) -> None:
    division.check(wide, side)
