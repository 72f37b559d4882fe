"""Convolution by wgmma from slices of x, in the emulator: whole calls, every tile, type and form of outputs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.conv.gemm import split as split_k
from gpuconv.cuda.conv.wgmma import tiles
from gpuconv.cuda.conv.wgmma.family import variant
from gpuconv.cuda.conv.wgmma.tiles import TILES, WgmmaTile
from tests.cuda.conv.wgmma.wgmma_calls import (
    ASYNCHRONOUS,
    HALF,
    INTEGERS,
    SINGLE,
    call,
    check_finished,
    check_not_finite,
    conv,
    conv_transpose,
    divided,
    exact_of,
)
from tests.oracle import oracle
from tests.oracle.operands import BFLOAT16, operands

pytestmark = pytest.mark.emulator

ARITHMETIC = [(BFLOAT16, "ieee"), (HALF, "ieee"), (SINGLE, "tf32"), (SINGLE, "3xtf32")]
FORMS = [f"{tile.block_m}x{tile.block_n}" for tile in TILES]
over_arithmetic = pytest.mark.parametrize(("dtype", "precision"), ARITHMETIC, ids=str)
_UNEQUAL: dict[str, Any] = {"strides": [2, 3], "dilations": [1, 2], "pads": [1, 0, 2, 1]}

PROBLEMS = {
    "several images in a tile": conv((3, 72, 5, 7), (150, 72, 3, 3), pads=[1, 1, 1, 1]),
    "all unequal": conv((2, 40, 9, 11), (130, 40, 3, 2), False, pads=[2, 1, 0, 1], strides=[2, 1], dilations=[1, 2]),
    "vectors of eight": conv((2, 64, 8, 16), (80, 64, 1, 1)),
    "vectors of four": conv((3, 64, 6, 6), (96, 64, 3, 3), pads=[1, 1, 1, 1]),
    "groups": conv((2, 80, 5, 7), (140, 40, 2, 2), False, group=2),
    "one axis": conv((5, 100, 37), (70, 100, 4), pads=[1, 3], strides=[2], dilations=[3]),
    "three axes": conv(
        (2, 40, 5, 7, 6), (300, 40, 2, 3, 2), pads=[1, 1, 0, 1, 0, 2], strides=[2, 1, 3], dilations=[1, 2, 1]
    ),
    "phases": conv_transpose((2, 72, 3, 5), (72, 80, 3, 4), **_UNEQUAL, output_padding=[1, 0]),
    "one phase of vectors": conv_transpose((2, 72, 4, 8), (72, 72, 3, 3), pads=[1, 1, 1, 1]),
    "a phase without taps": conv_transpose((2, 144, 5), (144, 70, 2), strides=[3]),
    "groups of phases": conv_transpose((2, 144, 7, 5), (144, 70, 3, 2), group=2, strides=[2, 2]),
    "phases of three axes": conv_transpose(
        (1, 24, 3, 4, 5), (24, 66, 3, 2, 4), strides=[1, 2, 2], pads=[1, 0, 1, 1, 1, 2]
    ),
    "fewer outputs than phases": conv_transpose((1, 40, 1, 3), (40, 64, 2, 3), strides=[4, 2]),
    "crops beyond the windows": conv_transpose((1, 40, 6, 7), (40, 64, 3, 3), strides=[2, 2], pads=[3, 2, 0, 3]),
    "filters of several tiles": conv_transpose((1, 40, 4, 5), (40, 300, 3, 2), strides=[2, 1]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("form", FORMS)
@over_arithmetic
def test_integers_are_exact(dtype: Any, precision: str, form: str, name: str) -> None:
    check_finished(PROBLEMS[name], form, dtype, precision, split=False)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("tile", "stages"), [(TILES[0], 3), (TILES[1], 3), (TILES[1], 4)], ids=str)
def test_every_number_of_stages_in_every_order_of_arrival(tile: WgmmaTile, stages: int, resized: Any) -> None:
    given, wanted = PROBLEMS["several images in a tile"], f"{tile.block_m}x{tile.block_n}"
    resized("TILES", tile, stages=stages)
    arrays = operands(given, INTEGERS, 2, BFLOAT16)
    expected = exact_of(given, arrays).value.astype(BFLOAT16)
    for seed, order in enumerate(ASYNCHRONOUS):
        y, _ = call(given, arrays, wanted, seed=seed, async_order=order, multiprocessors=1 + 2 * (seed % 2))
        np.testing.assert_array_equal(y, expected, err_msg=order)


# ---------------------------------------------------------------- shares


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [2, 5, 8])
@pytest.mark.parametrize("name", ["groups", "phases", "one axis"])
def test_shares_are_added_up_by_who_finishes(name: str, count: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some shares are left without slices; those of float32 may begin between the products of parts."""
    monkeypatch.setattr(split_k, "_COUNTS", (count,))
    dtype, precision = ARITHMETIC[(count + len(name)) % 4]
    check_finished(PROBLEMS[name], form, dtype, precision, split=True)


# ---------------------------------------------------------------- numbers


@pytest.mark.sampled(3)
@pytest.mark.parametrize("split", [False, True], ids=["whole", "shares"])
@pytest.mark.parametrize("form", FORMS)
@over_arithmetic
def test_random_numbers_are_within_the_bound(dtype: Any, precision: str, form: str, split: bool) -> None:
    given = PROBLEMS["several images in a tile"]
    arrays = operands(given, ("normal", "normal", "normal"), 3, dtype)
    y, _ = (divided if split else call)(given, arrays, form, precision)
    oracle.assert_close(y, exact_of(given, arrays), dtype, "tensor cores" if precision == "ieee" else precision)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("split", ["", "_split"], ids=["whole", "shares"])
@pytest.mark.parametrize("kinds", [("integers", "nonfinite"), ("nonfinite", "integers")])
@pytest.mark.parametrize("name", ["vectors of four", "phases"])
@over_arithmetic
def test_padding_adds_nothing_to_what_is_not_finite(
    dtype: Any, precision: str, name: str, kinds: tuple[str, str], split: str
) -> None:
    form = FORMS[precision == "tf32"]
    check_not_finite(PROBLEMS[name], form + split, dtype, precision, kinds, multiprocessors=5)


@pytest.mark.parametrize("dtype", [BFLOAT16, HALF], ids=str)
def test_bounds_do_not_hide_what_padding_spoils(dtype: Any) -> None:
    given = PROBLEMS["vectors of four"]
    arrays = operands(given, INTEGERS, 8, dtype)
    arrays[1][3, 5, 0, 0] = np.inf
    y, _ = call(given, arrays, FORMS[0], more={"activation": ("clip", 0, 6)})
    expected = np.clip(exact_of(given, arrays).value, 0, 6)
    assert np.isnan(expected).any()
    np.testing.assert_array_equal(y.astype(np.float64), expected)


@pytest.mark.parametrize("kernel", [("conv", "bfloat16", TILES[0]), ("conv_transpose", "float32", TILES[1])])
def test_warps_hand_over_no_more_registers_than_a_launch_has(kernel: tuple[str, str, WgmmaTile]) -> None:
    text = compiler.ptx(variant(*kernel), "sm_90a")
    handed = dict(re.findall(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32\s+(\d+);", text))
    assert tiles.registers_fit(int(handed["inc"]), int(handed["dec"]))
    assert not tiles.registers_fit(240, 40)
