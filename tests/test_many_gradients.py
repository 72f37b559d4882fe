"""Every kernel of gradients, unpooling and complex numbers on a problem of several blocks."""

from __future__ import annotations

import many_gradients
import pytest
from many_gradients import Trial

pytestmark = pytest.mark.emulator


@pytest.mark.parametrize("trial", many_gradients.ALL, ids=lambda trial: f"{many_gradients.ALL.index(trial)}")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_many_blocks_are_right(trial: Trial, architecture: str) -> None:
    assert trial(architecture, seed=4).launches
