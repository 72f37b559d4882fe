"""Tiles of convolution by wgmma that several items share: right, and the same bits whoever adds up, and wherever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuconv.cuda.conv.wgmma import tiles
from gpuconv.cuda.conv.wgmma.tiles import WgmmaTile
from tests.cuda.conv.wgmma import wgmma_launch
from tests.cuda.conv.wgmma.wgmma_launch import EVERYTHING, INTEGERS, NORMAL, Call, check, transposed
from tests.oracle import oracle
from tests.oracle.operands import BFLOAT16, operands
from tests.oracle.strategies import Problem

pytestmark = pytest.mark.emulator

SMALL = WgmmaTile(64, 128, 6, turns=True)
TOGETHER = WgmmaTile(128, 128, 4, turns=False)


def conv(x_shape: Any, w_shape: Any, **attributes: Any) -> Problem:
    return Problem("conv", x_shape, w_shape, w_shape[:1], attributes)


PROBLEMS = {
    "conv": conv((5, 72, 9, 7), (140, 72, 3, 2), pads=[1, 0, 2, 1], strides=[1, 2]),
    "groups": conv((3, 80, 9, 7), (140, 40, 3, 2), group=2, pads=[1, 1, 1, 1]),
    "phases": transposed((2, 72, 5, 7), (72, 70, 3, 4), **EVERYTHING),
    "phases without taps": transposed((2, 40, 5, 7), (40, 70, 2, 3), strides=[3, 2], dilations=[1, 2]),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tile", [SMALL, TOGETHER], ids=["in turns", "together"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_shares_are_added_up(name: str, tile: WgmmaTile) -> None:
    """Of all tiles, or of the last ones; of some, shares are left without slices."""
    for whole, splits, blocks in ((0, 2, 1), (1, 5, 2), (3, 9, 4)):
        call = Call(tile, blocks=blocks, whole=whole, splits=splits)
        check(PROBLEMS[name], call, seed=splits)
        check(PROBLEMS[name], replace(call, tickets=False), seed=whole)


@pytest.mark.parametrize("tile", tiles.TILES, ids=lambda tile: f"{tile.block_m}x{tile.block_n}")
def test_every_tile_can_be_shared(tile: WgmmaTile) -> None:
    call = Call(tile, blocks=3, whole=1, splits=3)
    check(PROBLEMS["conv"], call, BFLOAT16, NORMAL, "channels last", async_order="random", seed=4)


@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
def test_shares_of_float32_may_begin_between_the_products_of_parts(precision: str) -> None:
    """Six taps, two slices of channels, one or three products of each, in four or five shares."""
    for splits in (4, 5):
        check(PROBLEMS["conv"], Call(SMALL, precision, blocks=2, whole=1, splits=splits), np.float32, NORMAL)


def test_what_is_not_finite_passes_through_the_workspace() -> None:
    kinds = ("nonfinite", "nonfinite", "integers")
    for precision, dtype in (("ieee", BFLOAT16), ("3xtf32", np.float32)):
        check(PROBLEMS["phases"], Call(SMALL, precision, blocks=2, whole=0, splits=3), dtype, kinds)


def test_who_adds_up_finishes() -> None:
    problem = PROBLEMS["conv"]
    x, w, b = operands(problem, INTEGERS, 0, BFLOAT16)
    exact = oracle.conv(x, w, b, **problem.attributes)
    residual = np.random.default_rng(1).integers(-9, 10, exact.value.shape).astype(BFLOAT16)
    call = Call(TOGETHER, blocks=2, whole=1, splits=3, residual=residual, finish=(0.0, -np.inf, 6.0))
    y = wgmma_launch.run(problem, (x, w, b), call)
    expected = np.clip(exact.value + residual.astype(np.float64), 0, 6)
    np.testing.assert_array_equal(y.astype(np.float64), expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tile", [SMALL, TOGETHER], ids=["in turns", "together"])
@pytest.mark.parametrize("name", ["conv", "phases"])
def test_the_bits_are_the_same_on_any_number_of_multiprocessors(name: str, tile: WgmmaTile) -> None:
    problem = PROBLEMS[name]
    x, w, b = operands(problem, NORMAL, 0, np.float16)
    found = {
        wgmma_launch.run(
            problem,
            (x, w, b),
            Call(tile, blocks=blocks, whole=1, splits=4, tickets=tickets),
            seed=seed,
            async_order=order,
        ).tobytes()
        for blocks, seed, order in ((1, 0, "late"), (2, 1, "at once"), (3, 2, "random"), (7, 3, "random"))
        for tickets in (True, False)
    }
    assert len(found) == 1
