"""ConvTranspose by wgmma: phases that meet many taps, few or none, groups, and numbers in parts, against the oracle."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from gpuconv.cuda.conv.wgmma import tiles
from gpuconv.cuda.conv.wgmma.tiles import WgmmaTile
from gpuconv.rules import geometry as geometries
from tests.cuda.conv.wgmma import wgmma_launch
from tests.cuda.conv.wgmma.wgmma_launch import EVERYTHING, INTEGERS, NORMAL, ODD, Call, check, transposed
from tests.oracle import oracle
from tests.oracle.operands import BFLOAT16, operands
from tests.oracle.strategies import GENERATORS, Problem

pytestmark = pytest.mark.emulator

SMALL = WgmmaTile(64, 128, 6, turns=True)


PROBLEMS = {
    "one axis": transposed((3, 40, 37), (40, 70, 5), strides=[3], pads=[2, 1], output_padding=[2]),
    "two axes": transposed((2, 72, 7, 9), (72, 70, 3, 4), **EVERYTHING),
    "three axes": transposed((1, 24, 3, 4, 5), (24, 66, 3, 2, 4), strides=[1, 2, 2], pads=[1, 0, 1, 1, 1, 2]),
    "stride 1": transposed((2, 64, 9, 8), (64, 130, 3, 3), pads=[1, 1, 1, 1]),
    "phases without taps": transposed((2, 40, 7, 6), (40, 64, 2, 3), strides=[3, 2], dilations=[1, 2]),
    "a tap for each phase": transposed((1, 64, 6, 7), (64, 64, 2, 2), False, strides=[2, 2]),
    "fewer outputs than phases": transposed((1, 40, 1, 3), (40, 64, 2, 3), strides=[4, 2]),
    "crops beyond the windows": transposed((1, 40, 6, 7), (40, 64, 3, 3), strides=[2, 2], pads=[3, 2, 0, 3]),
    "filters of two tiles": transposed((1, 40, 4, 5), (40, 300, 3, 2), strides=[2, 1]),
    "few filters": transposed((1, 40, 5, 4), (40, 3, 3, 3), strides=[2, 2]),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_phases_are_right(name: str) -> None:
    for blocks, seed in ((1, 0), (3, 1)):
        check(PROBLEMS[name], Call(SMALL, blocks=blocks), seed=seed)
    check(PROBLEMS[name], Call(SMALL), np.float16, NORMAL, "strided", async_order="random", seed=2)


@pytest.mark.parametrize("tile", tiles.TILES, ids=lambda tile: f"{tile.block_m}x{tile.block_n}")
def test_every_tile_makes_phases(tile: WgmmaTile) -> None:
    problem = transposed((3, 72, 7, 9), (72, 200, 3, 4), **EVERYTHING)
    check(problem, Call(tile, blocks=2), BFLOAT16, NORMAL, "channels last")


@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
@pytest.mark.parametrize("group", [1, 3])
def test_float32_comes_rounded_or_in_parts(precision: str, group: int) -> None:
    problem = transposed((2, 40 * group, 5, 6), (40 * group, 70, 3, 4), group=group, **EVERYTHING)
    check(problem, Call(SMALL, precision, blocks=2), np.float32, NORMAL)


@pytest.mark.parametrize("group", [2, 3])
def test_groups_have_their_own_channels(group: int) -> None:
    problem = transposed((2, 40 * group, 5, 6), (40 * group, 66, 2, 3), group=group, strides=[2, 1])
    check(problem, Call(SMALL, blocks=2))


@pytest.mark.parametrize(("dtype", "precision"), [(BFLOAT16, "ieee"), (np.float32, "tf32"), (np.float32, "3xtf32")])
@pytest.mark.parametrize("kinds", [ODD, ("integers", "nonfinite", "integers"), ("nonfinite",) * 3], ids="".join)
def test_padding_adds_nothing_to_what_is_not_finite(dtype: Any, precision: str, kinds: Any) -> None:
    problem = transposed((2, 6, 4, 5), (6, 64, 3, 3), strides=[2, 1], pads=[1, 0, 0, 1])
    check(problem, Call(SMALL, precision, blocks=2), dtype, kinds)


def test_channels_last_are_read_as_they_are() -> None:
    problem = transposed((2, 72, 5, 6), (72, 70, 3, 2), **EVERYTHING)
    x, w, b = operands(problem, INTEGERS, 0, BFLOAT16)
    last = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    copied, direct = (
        wgmma_launch.run(problem, (array, w, b), Call(SMALL, blocks=2), "channels last") for array in (x, last)
    )
    oracle.assert_same(direct, copied)


def test_a_residual_and_bounds_are_added_in_every_phase() -> None:
    problem = PROBLEMS["two axes"]
    x, w, b = operands(problem, INTEGERS, 0, BFLOAT16)
    exact = oracle.conv_transpose(x, w, b, **problem.attributes)
    residual = np.random.default_rng(1).integers(-9, 10, exact.value.shape).astype(BFLOAT16)
    call = Call(SMALL, blocks=2, residual=residual, finish=(0.0, -np.inf, 6.0))
    y = wgmma_launch.run(problem, (x, w, b), call)
    expected = np.clip(exact.value + residual.astype(np.float64), 0, 6)
    np.testing.assert_array_equal(y.astype(np.float64), expected)


# ---------------------------------------------------------------- random problems


def is_taken(problem: Problem) -> bool:
    """Whether the kernel and its maps take it: there are outputs, at most three axes, and 32 phases."""
    geometry = getattr(geometries, problem.operator)(*problem.shapes, **problem.attributes)
    if problem.rank > 3 or 0 in geometry.y_shape or 0 in problem.x_shape:
        return False
    taps, places = zip(geometry.kernel_shape, geometry.strides, strict=True), geometry.strides
    return all(min(k, s) > 0 for k, s in taps) and int(np.prod(places)) <= 32


@pytest.mark.parametrize("seed", range(40))
def test_random_problems(seed: int) -> None:
    random = Random(seed)
    while True:
        problem = GENERATORS["conv_transpose"](random)
        if is_taken(problem):
            break
    dtype, precision = random.choice(
        [(BFLOAT16, "ieee"), (np.float16, "ieee"), (np.float32, "tf32"), (np.float32, "3xtf32")]
    )
    kinds, layout = random.choice([INTEGERS, NORMAL, ODD]), random.choice(["contiguous", "channels last", "strided"])
    call = Call(SMALL, precision, blocks=random.randint(1, 4))
    check(problem, call, dtype, kinds, layout, seed=seed, async_order=random.choice(["late", "at once", "random"]))
