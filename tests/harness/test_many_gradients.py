"""Every kernel of gradients, unpooling and complex numbers on a problem of several blocks."""

from __future__ import annotations

import pytest

from tests.harness import many_gradients
from tests.harness.many_gradients import Trial

pytestmark = pytest.mark.emulator


def _title(trial: Trial) -> str:
    """What kind of trial it is, of what, and its number."""
    return f"{trial.func.__name__.strip('_')}-{trial.args[0]}-{many_gradients.ALL.index(trial)}"


@pytest.mark.parametrize("trial", many_gradients.ALL, ids=_title)
def test_many_blocks_are_right(trial: Trial) -> None:
    assert trial(None, seed=4).launches


DOUBLE = [trial for trial in many_gradients.LARGE_WEIGHTS if "float64" in trial.args]


@pytest.mark.parametrize("trial", DOUBLE, ids=_title)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_products_of_float64_are_right_in_both_shapes(trial: Trial, architecture: str) -> None:
    """Newer tensor cores multiply larger fragments: the only source that asks for the architecture."""
    assert trial(architecture, seed=4).launches


def test_there_are_products_of_float64() -> None:
    assert len(DOUBLE) == 2
