"""Kernels number ConvTranspose's phases completely, those with the most taps first."""

from __future__ import annotations

import pytest

from tests.harness import phases

pytestmark = pytest.mark.emulator


@pytest.mark.parametrize("wide", [False, True], ids=["32-bit", "64-bit"])
def test_phases_come_by_falling_number_of_taps(wide: bool) -> None:
    phases.check(wide)
