"""The small problems that mutants of convolution by wgmma are tried on are right, and ask for what they are said to."""

from __future__ import annotations

import numpy as np
import pytest

from gpuconv.cuda.conv.wgmma import tiles as wgmma_tiles
from tests.harness import many_wgmma
from tests.harness.many_wgmma import ALL, DIVIDED, PIXELS, STRIPS, Trial

pytestmark = pytest.mark.emulator


def label(trial: Trial) -> str:
    return f"{trial.operator}-{trial.dtype}-{trial.candidate}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("trial", [trial for trial in ALL if trial not in (*STRIPS, *PIXELS)], ids=label)
@pytest.mark.parametrize(("seed", "order"), [(0, "at once"), (3, "late"), (4, "random")])
def test_a_small_problem_is_right(trial: Trial, seed: int, order: str) -> None:
    emulated = trial(seed=seed, async_order=order)
    last = emulated.launches[-1]
    struct = np.frombuffer(last.parameters, last.variant.layout)[0]
    assert last.variant.name.endswith(trial.kernel)
    assert (struct["splits"]["count"]["divisor"] > 1) == (trial in DIVIDED)
    if trial not in DIVIDED:
        assert struct["items"] >= 2 * last.grid[0] == 2 * trial.multiprocessors
    if trial in STRIPS:
        assert struct["strips"]["resident"] == (trial is many_wgmma.STAYING)


@pytest.mark.parametrize("trial", [*STRIPS, *PIXELS], ids=label)
def test_a_small_problem_of_strips_is_right(trial: Trial) -> None:
    """In one order of arrival: the tests of each kernel of strips have all of them."""
    test_a_small_problem_is_right(trial, 4, "random")


def test_every_tile_is_among_them() -> None:
    tiles = {f"{tile.block_m}x{tile.block_n}" for tile in wgmma_tiles.TILES}
    assert {trial.candidate.partition("_")[0] for trial in ALL if trial not in (*STRIPS, *PIXELS)} == tiles
    assert {(trial.operator, trial.precision) for trial in ALL} >= {("conv", "tf32"), ("conv", "3xtf32")}
    assert {trial.operator for trial in DIVIDED} == {"conv", "conv_transpose"}
    assert many_wgmma.TRANSPOSED in ALL


def test_every_form_of_strips_is_among_them() -> None:
    forms = {(tile.rows, tile.turns) for tile in wgmma_tiles.STRIPS}
    assert len({trial.candidate.removesuffix("_split") for trial in STRIPS}) > len(forms)
    assert {"rows" in trial.candidate for trial in STRIPS} == {True, False}
    assert any("x32_" in trial.candidate for trial in STRIPS)
    assert {trial.operator for trial in STRIPS} == {"conv", "conv_transpose"}
    assert set(STRIPS) & set(DIVIDED)


def test_every_form_of_pixels_is_among_them() -> None:
    kernels = {trial.kernel.removeprefix("wgmma_") for trial in PIXELS}
    tiles = {f"{tile.block_m}x{tile.block_n}" for tile in wgmma_tiles.PIXELS}
    assert {kernel.partition("_")[0] for kernel in kernels} == tiles
    assert {"rows" in kernel for kernel in kernels} == {True, False}
    assert {trial.precision for trial in PIXELS} == {"tf32", "3xtf32"}
    assert set(PIXELS) & set(DIVIDED)
