"""wgmma convolution from slices of x in the emulator: whole calls, every tile, dtype and form of outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuconv.cuda.conv.gemm import split as split_k
from gpuconv.cuda.conv.wgmma.tiles import TILES, WgmmaTile
from tests.cuda.conv.wgmma import wgmma_calls as calls
from tests.cuda.conv.wgmma.wgmma_calls import HALF, INTEGERS, SINGLE, call, exact_of
from tests.oracle.operands import BFLOAT16, operands

pytestmark = [pytest.mark.emulator, pytest.mark.kernels("conv/wgmma/slices.cu")]

ARITHMETIC = [(BFLOAT16, "ieee"), (HALF, "ieee"), (SINGLE, "tf32"), (SINGLE, "3xtf32")]
FORMS = [f"{tile.block_m}x{tile.block_n}" for tile in TILES]
over_arithmetic = pytest.mark.parametrize(("dtype", "precision"), ARITHMETIC, ids=str)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", calls.SLICED)
@pytest.mark.parametrize("form", FORMS)
@over_arithmetic
def test_integers_are_exact(dtype: Any, precision: str, form: str, name: str) -> None:
    calls.check_finished(calls.SLICED[name], form, dtype, precision, split=False)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("tile", "stages"), [(TILES[0], 3), (TILES[1], 3), (TILES[1], 4)], ids=str)
def test_every_number_of_stages_in_every_order_of_arrival(tile: WgmmaTile, stages: int, resized: Any) -> None:
    given, wanted = calls.SLICED["several images in a tile"], f"{tile.block_m}x{tile.block_n}"
    resized("TILES", tile, stages=stages)
    list(calls.in_every_order(given, wanted, BFLOAT16, "ieee", (1, 3, 1)))


# ---------------------------------------------------------------- shares


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [2, 5, 8])
@pytest.mark.parametrize("name", ["groups", "phases", "one axis"])
def test_shares_are_added_up_by_who_finishes(name: str, count: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some splits have no slices; in 3xtf32, a split may begin between the products of parts."""
    monkeypatch.setattr(split_k, "_COUNTS", (count,))
    dtype, precision = ARITHMETIC[(count + len(name)) % 4]
    calls.check_finished(calls.SLICED[name], form, dtype, precision, split=True)


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize("dtype", [BFLOAT16, HALF], ids=str)
def test_bounds_do_not_hide_what_padding_spoils(dtype: Any) -> None:
    given = calls.SLICED["vectors of four"]
    arrays = operands(given, INTEGERS, 8, dtype)
    arrays[1][3, 5, 0, 0] = np.inf
    y, _ = call(given, arrays, FORMS[0], more={"activation": ("clip", 0, 6)})
    expected = np.clip(exact_of(given, arrays).value, 0, 6)
    assert np.isnan(expected).any()
    np.testing.assert_array_equal(y.astype(np.float64), expected)
