"""wgmma convolution from strips of x in the emulator: whole calls, every tile, form and dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.conv.gemm import split as split_k
from gpuconv.cuda.conv.wgmma.tiles import HALF_SLICE, SLICE_BYTES, STRIPS, StripsTile
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.offers import Candidate
from tests.cuda.conv.wgmma import wgmma_calls as calls
from tests.cuda.conv.wgmma.wgmma_calls import HALF, INTEGERS, SINGLE, call, conv, exact_of
from tests.emulator import emulated_cuda
from tests.oracle.operands import BFLOAT16, LAYOUTS, operands
from tests.oracle.strategies import Problem

pytestmark = [pytest.mark.emulator, pytest.mark.kernels("conv/wgmma/strips.cu")]

ROWS, PATCHES = (
    [tile for tile in STRIPS if (tile.rows, tile.slice_bytes) == (rows, SLICE_BYTES)] for rows in (True, False)
)
HALVES = [
    tile for tile in STRIPS if tile.slice_bytes == HALF_SLICE
]  # for channels that leave the half of a slice empty


SHARED = [name for name in calls.PROBLEMS if name not in ("a stride along H", "one tap", "one axis")]


def form_of(tile: StripsTile) -> str:
    slices = "" if tile.slice_bytes == SLICE_BYTES else "x32"
    return f"{tile.block_m}x{tile.block_n}{slices}_{'rows' if tile.rows else 'patches'}"


KERNELS = [
    *((form_of(tile), dtype, "ieee") for tile in ROWS for dtype in (BFLOAT16, HALF)),
    *((f"{form_of(tile)}_direct", dtype, "ieee") for tile in PATCHES for dtype in (BFLOAT16, HALF)),
    *((form_of(tile), dtype, "ieee") for tile in PATCHES for dtype in (BFLOAT16, HALF)),
    *((form_of(tile), SINGLE, precision) for tile in PATCHES for precision in ("tf32", "3xtf32")),
]


def sampled() -> Iterator[Any]:
    """Yield one problem per kernel, all problems equally often, whole or split."""
    for number, (wanted, dtype, precision) in enumerate(KERNELS):
        names = list(calls.PROBLEMS) if "_rows" in wanted else SHARED
        name, split = names[number % len(names)], (number + number // 6) % 2 == 1
        label = f"{wanted}-{dtype}-{precision}-{name}{'-shares' if split else ''}"
        yield pytest.param(wanted, dtype, precision, name, split, id=label)


@pytest.mark.parametrize(("wanted", "dtype", "precision", "name", "split"), list(sampled()))
def test_integers_are_exact(wanted: str, dtype: Any, precision: str, name: str, split: bool) -> None:
    calls.check_finished(calls.PROBLEMS[name], wanted, dtype, precision, split)


def test_all_forms_of_strips_are_among_these_problems() -> None:
    """Taps that share strips or not; adjacent and separate rows."""
    found = {}
    for name in calls.PROBLEMS:
        arrays = operands(calls.PROBLEMS[name], INTEGERS, 0, BFLOAT16)
        _, struct = call(calls.PROBLEMS[name], arrays, form_of(ROWS[0]), check_shared=False, check_global=False)
        strips = struct["strips"]
        found[name] = int(strips["inner"]), int(strips["column_w"]), int(strips["piece_h"])
    assert found["as large as x"] == (3, 0, 1)
    assert found["a stride along H"] == (1, 0, 2)
    assert found["one tap"] == found["one axis"] == (1, 64, 0)


# ---------------------------------------------------------------- slices of half as many channels

HALVED = {
    "32": conv((2, 32, 9, 72), (64, 32, 3, 3), pads=[1, 1, 1, 1]),
    "96": conv((1, 96, 6, 136), (70, 96, 3, 2), False, pads=[1, 0, 2, 1], dilations=[2, 1]),
    "groups of 32": conv((1, 64, 9, 64), (140, 32, 3, 2), group=2, pads=[1, 1, 1, 1]),
    "as large as x": calls.PROBLEMS["as large as x"],
    "three axes": calls.PROBLEMS["three axes"],
    "one tap": calls.PROBLEMS["one tap"],
}


def halved() -> Iterator[Any]:
    forms = (form_of(HALVES[0]), f"{form_of(HALVES[1])}_direct", form_of(HALVES[1]))
    for number, (name, wanted) in enumerate((name, wanted) for name in HALVED for wanted in forms):
        dtype, split = (HALF, BFLOAT16)[number % 2], number % 5 == 4
        if name != "one tap" or "_rows" in wanted:
            yield pytest.param(wanted, dtype, name, split, id=f"{wanted}-{dtype}-{name}{'-shares' if split else ''}")


@pytest.mark.parametrize(("wanted", "dtype", "name", "split"), list(halved()))
def test_integers_are_exact_in_slices_of_half_as_many_channels(wanted: str, dtype: Any, name: str, split: bool) -> None:
    calls.check_finished(HALVED[name], wanted, dtype, "ieee", split)


# ---------------------------------------------------------------- weights that stay

# With as many slices of weights as fit, or fewer; there are more than twice as many tiles as multiprocessors.
STAYING = [
    ("64x256_rows", HALF, "ieee", conv((1, 64, 15, 72), (64, 64, 3, 3), pads=[1, 1, 1, 1]), 9),
    ("64x256_rows", BFLOAT16, "ieee", conv((1, 72, 24, 72), (64, 72, 1, 2), strides=[2, 1], pads=[0, 1, 0, 0]), 4),
    ("64x256_rows", BFLOAT16, "ieee", conv((2, 40, 6, 72), (60, 40, 3, 2), pads=[0, 1, 1, 0]), 6),
    ("128x256_rows", HALF, "ieee", conv((2, 48, 9, 136), (128, 48, 3, 2), pads=[1, 1, 1, 1]), 6),
    ("128x256_rows", HALF, "ieee", conv((3, 72, 8, 72), (72, 72, 1, 1)), 2),
    ("64x256_patches_direct", HALF, "ieee", conv((2, 128, 30, 20), (64, 128, 3, 2), dilations=[2, 1]), 12),
    ("64x256_patches_direct", BFLOAT16, "ieee", conv((1, 64, 22, 35), (64, 64, 2, 3), pads=[1, 0, 1, 2]), 6),
    ("64x256_patches", BFLOAT16, "ieee", conv((2, 64, 33, 20), (62, 64, 3, 1), pads=[1, 1, 1, 1]), 3),
    ("64x256_patches", SINGLE, "3xtf32", conv((1, 30, 20, 40), (64, 30, 2, 1)), 6),
    ("64x256_patches", SINGLE, "tf32", conv((2, 34, 20, 40), (64, 34, 3, 2)), 12),
    ("64x256x32_rows", HALF, "ieee", conv((1, 96, 15, 72), (64, 96, 3, 3), pads=[1, 1, 1, 1]), 27),
    ("64x256x32_patches_direct", BFLOAT16, "ieee", conv((2, 72, 31, 21), (64, 72, 3, 3), pads=[1, 0, 1, 2]), 27),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("wanted", "dtype", "precision", "given", "slices"),
    STAYING,
    ids=[f"{wanted}-{dtype}-{slices}" for wanted, dtype, _, _, slices in STAYING],
)
def test_weights_that_stay_are_those_of_every_tile(
    wanted: str, dtype: Any, precision: str, given: Problem, slices: int
) -> None:
    counts = (1, 2, 1)
    for struct, count in zip(calls.in_every_order(given, wanted, dtype, precision, counts), counts, strict=True):
        assert struct["strips"]["resident"] == 1
        assert struct["items"] > 2 * count
        found = struct["strips"]["taps"]["divisor"].prod() * struct["strips"]["inner"]
        products = 3 if precision == "3xtf32" else 1
        assert found * struct["loading"]["channel_slices"]["divisor"] * products == slices


def test_shares_of_tiles_have_their_own_weights() -> None:
    _, _, _, given, _ = STAYING[0]
    struct = calls.check_exact(given, "64x256_rows", HALF, split=True, seed=2, async_order="random")
    assert struct["strips"]["resident"] == 0


# ---------------------------------------------------------------- ConvTranspose of stride 1

TRANSPOSED_BY = [
    ("64x256_rows", HALF, "ieee", "as large as x", False),
    ("128x256_rows", BFLOAT16, "ieee", "as large as x", True),
    ("64x256_rows", BFLOAT16, "ieee", "larger than x", True),
    ("128x256_rows", HALF, "ieee", "cropped", False),
    ("64x256_rows", HALF, "ieee", "groups", False),
    ("64x256_rows", BFLOAT16, "ieee", "one axis", False),
    ("64x256x32_rows", BFLOAT16, "ieee", "three axes", False),
    ("64x256_patches_direct", BFLOAT16, "ieee", "as large as x", False),
    ("64x256_patches_direct", HALF, "ieee", "groups", True),
    ("64x256_patches", HALF, "ieee", "larger than x", False),
    ("64x256_patches", SINGLE, "tf32", "cropped", False),
    ("64x256_patches", SINGLE, "3xtf32", "larger than x", False),
    ("64x256x32_patches_direct", HALF, "ieee", "three axes", False),
]


@pytest.mark.parametrize(("wanted", "dtype", "precision", "name", "split"), TRANSPOSED_BY)
def test_integers_are_exact_in_conv_transpose(wanted: str, dtype: Any, precision: str, name: str, split: bool) -> None:
    calls.check_finished(calls.TRANSPOSED[name], wanted, dtype, precision, split)


# ---------------------------------------------------------------- rings


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("tile", "stages"),
    [*((ROWS[1], stages) for stages in (2, 3, 4, 5, 9)), (PATCHES[0], 2), (PATCHES[0], 5), (HALVES[0], 7)],
    ids=str,
)
def test_every_number_of_stages_of_weights_in_every_order_of_arrival(
    tile: StripsTile, stages: int, resized: Any
) -> None:
    given = conv((1, 72, 5, 72), (64, 72, 3, 2), pads=[1, 0, 2, 1])
    wanted = form_of(tile)
    resized("STRIPS", tile, stages=stages)
    for struct in calls.in_every_order(given, wanted, BFLOAT16, "ieee", (1, 3, 1)):
        assert struct["strips"]["resident"] == 0


def strips_that_there_is_room_for() -> Iterator[Any]:
    """Yield tiles, problems and the number of strips that fit: from the most, if a strip is a tile, down to two."""
    far: dict[str, Any] = {"pads": [0, 1, 0, 0]}
    for tile, reach, count in (
        *((ROWS[0], 0, 3), (ROWS[0], 2, 2), (ROWS[1], 0, 4), (ROWS[1], 1, 3), (ROWS[1], 4, 2)),
        *((PATCHES[0], 1, 3), (PATCHES[0], 8, 2)),
        *((HALVES[0], 0, 6), (HALVES[0], 8, 2), (HALVES[1], 1, 5), (HALVES[1], 20, 2)),
    ):
        taps, attributes = (2, {**far, "dilations": [reach, 1]}) if reach else (1, {**far, "strides": [2, 1]})
        given = conv((1, 200, reach + 6, 24), (64, 200, taps, 2), **attributes)
        yield pytest.param(tile, given, count, id=f"{form_of(tile)}-{count}")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("tile", "given", "count"), list(strips_that_there_is_room_for()))
def test_every_number_of_strips_in_every_order_of_arrival(tile: StripsTile, given: Problem, count: int) -> None:
    """Of eight strips an item, or of fourteen small ones."""
    for struct in calls.in_every_order(given, form_of(tile), HALF, "ieee", (1, 1, 1)):
        assert struct["strips"]["stages"] == count


# ---------------------------------------------------------------- shares


def of_halves(given: Problem) -> Problem:
    """Return the same problem with 32 channels instead of 64."""
    assert given.w_shape is not None
    x, w = ((shape[0], 32 if shape[1] == 64 else shape[1], *shape[2:]) for shape in (given.x_shape, given.w_shape))
    return replace(given, x_shape=x, w_shape=w)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tile", STRIPS, ids=form_of)
@pytest.mark.parametrize(
    ("name", "splits", "inner"),
    [("one slice", 3, 3), ("a stride along H", 9, 1), ("as large as x", 4, 3)],
    ids=["of one strip and three taps", "of one strip and one tap", "without strips"],
)
def test_short_shares(
    name: str, splits: int, inner: int, tile: StripsTile, monkeypatch: pytest.MonkeyPatch, resized: Any
) -> None:
    """Splits of one strip with one tap or three; and six strips in four splits, the last one empty."""
    if inner == 1 and not tile.rows:
        pytest.skip("patches are for taps that share them")
    given = calls.PROBLEMS[name] if tile in (*ROWS, *PATCHES) else of_halves(calls.PROBLEMS[name])
    wanted = form_of(tile)
    resized("STRIPS", tile)
    monkeypatch.setattr(split_k, "_COUNTS", (splits,))
    seed = splits + tile.block_n
    order = calls.ASYNCHRONOUS[seed % 3]
    struct = calls.check_exact(given, wanted, BFLOAT16, split=True, seed=seed, async_order=order)
    assert (struct["strips"]["inner"], struct["splits"]["count"]["divisor"]) == (inner, splits)


# ---------------------------------------------------------------- unpacked weights

WEIGHTS_AS_THEY_ARE = [
    ("64x256_rows", HALF, conv((1, 128, 9, 72), (70, 128, 3, 2), pads=[1, 0, 1, 1])),
    ("64x256_rows", BFLOAT16, conv((1, 64, 15, 72), (64, 64, 3, 3), pads=[1, 1, 1, 1])),
    ("128x256_rows_split", HALF, conv((1, 64, 9, 72), (70, 64, 3, 2), pads=[1, 0, 1, 1])),
    ("64x256_patches_direct", BFLOAT16, conv((1, 64, 31, 21), (130, 64, 3, 2), dilations=[2, 1])),
    ("64x256_patches_direct", HALF, conv((2, 128, 9, 20), (140, 64, 2, 3), group=2, pads=[1, 1, 1, 1])),
    ("64x256x32_rows", BFLOAT16, conv((1, 96, 9, 72), (72, 96, 3, 2), pads=[1, 0, 1, 1])),
    ("64x256x32_patches_direct", HALF, conv((1, 32, 20, 21), (64, 32, 3, 3))),
    ("64x256_direct", BFLOAT16, conv((1, 64, 11, 21), (130, 64, 3, 2), strides=[2, 1], pads=[1, 0, 1, 1])),
]


def of_each_tap(w: Any) -> Any:
    """Return the same weights in the memory order filters, taps, channels."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(w, 1, -1)), -1, 1)


def call_as_they_are(given: Problem, arrays: Sequence[Any], wanted: str, **options: Any) -> Any:
    """Return the result of a plan that packs no weights."""
    x, w, b = arrays
    x = LAYOUTS["channels last"](x) if "_direct" in wanted else x

    def pick(candidates: Sequence[Candidate]) -> Candidate:
        return next(one for one in candidates if one.name.endswith(wanted))

    with offers.picking(pick), emulated_cuda(**options) as emulated:
        y = getattr(gpuconv, given.operator)(x, w, b, **given.attributes)
    names = [launch.variant.name for launch in emulated.launches]
    assert len(names) == (2 if "_split" in wanted else 1)
    assert all("wgmma" in name for name in names)
    return y


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("wanted", "dtype", "given"),
    WEIGHTS_AS_THEY_ARE,
    ids=[f"{wanted}-{dtype}-{given.w_shape}" for wanted, dtype, given in WEIGHTS_AS_THEY_ARE],
)
def test_weights_of_several_taps_with_channels_last_are_read_as_they_are(
    wanted: str, dtype: Any, given: Problem
) -> None:
    x, w, b = operands(given, INTEGERS, 10, dtype)
    expected = exact_of(given, (x, w, b)).value.astype(dtype)
    for seed, order in enumerate(calls.ASYNCHRONOUS[1:]):
        count = 7 if "_split" in wanted else 1 + seed
        y = call_as_they_are(given, (x, of_each_tap(w), b), wanted, seed=seed, async_order=order, multiprocessors=count)
        np.testing.assert_array_equal(y, expected, err_msg=order)


@pytest.mark.parametrize("wanted", ["64x256_rows", "64x256_patches_direct"])
def test_weights_of_conv_transpose_are_read_as_they_are(wanted: str) -> None:
    """Their channels are along the first axis."""
    given = calls.conv_transpose((1, 64, 9, 72), (64, 70, 3, 2), pads=[1, 0, 0, 1])
    x, w, b = operands(given, INTEGERS, 11, HALF)
    as_they_are = np.moveaxis(np.ascontiguousarray(np.moveaxis(w, 0, -1)), -1, 0)
    y = call_as_they_are(given, (x, as_they_are, b), wanted, seed=1, async_order="random", multiprocessors=2)
    np.testing.assert_array_equal(y, exact_of(given, (x, w, b)).value.astype(HALF))
