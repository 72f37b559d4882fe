"""The small problems that mutants of convolution by wgmma are tried on are right, and ask for what they are said to."""

from __future__ import annotations

import many_wgmma
import numpy as np
import pytest
from many_wgmma import ALL, DIVIDED, STRIPS, Trial

from gpuconv.cuda import wgmma_plan, wgmma_tile

pytestmark = pytest.mark.emulator


@pytest.mark.parametrize("trial", ALL, ids=lambda trial: f"{trial.operator}-{trial.dtype}-{trial.candidate}")
@pytest.mark.parametrize(("seed", "order"), [(0, "at once"), (3, "late"), (4, "random")])
def test_a_small_problem_is_right(trial: Trial, seed: int, order: str) -> None:
    emulated = trial(seed=seed, async_order=order)
    last = emulated.launches[-1]
    struct = np.frombuffer(last.parameters, last.variant.layout)[0]
    kernel = trial.candidate.removesuffix("_split").removesuffix("_direct")
    assert last.variant.name.endswith(f"wgmma_{kernel}")
    assert (struct["splits"]["count"]["divisor"] > 1) == (trial in DIVIDED)
    if trial not in DIVIDED:
        assert struct["items"] >= 2 * last.grid[0] == 2 * trial.multiprocessors


def test_every_tile_is_among_them() -> None:
    tiles = {f"{tile.block_m}x{tile.block_n}" for tile in wgmma_plan.tiles("conv")}
    assert {trial.candidate.partition("_")[0] for trial in ALL} == tiles
    assert {(trial.operator, trial.precision) for trial in ALL} >= {("conv", "tf32"), ("conv", "3xtf32")}
    assert {trial.operator for trial in DIVIDED} == {"conv", "conv_transpose"}
    assert many_wgmma.TRANSPOSED in ALL


def test_every_form_of_strips_is_among_them() -> None:
    forms = {(tile.rows, tile.turns) for tile in wgmma_tile.STRIPS}
    assert len({trial.candidate.removesuffix("_split") for trial in STRIPS}) > len(forms)
    assert {"rows" in trial.candidate for trial in STRIPS} == {True, False}
    assert set(STRIPS) & set(DIVIDED)
