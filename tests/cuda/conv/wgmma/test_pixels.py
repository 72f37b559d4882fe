"""TF32 convolution by wgmma with pixels in registers, in the emulator: whole calls, every tile, every form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gpuconv.cuda.conv.gemm import split as split_k
from gpuconv.cuda.conv.wgmma import pixels
from gpuconv.cuda.conv.wgmma.tiles import PIXELS, PixelsTile
from gpuconv.rules.geometry import Ints
from tests.cuda.conv.wgmma import wgmma_calls as calls
from tests.cuda.conv.wgmma.wgmma_calls import INTEGERS, SINGLE, call, conv, exact_of
from tests.oracle import oracle
from tests.oracle.operands import LAYOUTS, operands

pytestmark = [pytest.mark.emulator, pytest.mark.kernels("conv/wgmma/pixels.cu")]


PRECISIONS = ("tf32", "3xtf32")

# Rows of x, and of channels, are whole multiples of 16 bytes in all of them.
MORE = {
    "strides": conv((2, 40, 23, 36), (70, 40, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2]),
    "a large stride along W": conv((2, 64, 400), (70, 64, 5), pads=[2, 1], strides=[3]),
    "a larger stride than taps reach": conv((1, 40, 19, 76), (70, 40, 2, 1), strides=[3, 2]),
    "far taps along W": conv((1, 40, 14, 36), (64, 40, 3, 3), pads=[12, 12, 12, 12], dilations=[12, 12]),
    "short rows": conv((3, 36, 13, 12), (66, 36, 3, 3), False, pads=[1, 1, 1, 1]),
    "wide rows": conv((1, 40, 3, 260), (64, 40, 2, 3), pads=[0, 1, 1, 1]),
    "one tap of wide rows": conv((1, 36, 4, 300), (130, 36, 1, 1)),
    "one row of several taps along H": conv((2, 40, 3, 140), (70, 40, 3, 2), pads=[0, 1, 0, 0]),
    "two groups": conv((1, 128, 6, 40), (160, 64, 2, 3), group=2, pads=[1, 1, 0, 1], dilations=[1, 2]),
}
# Of which two strips of 256 columns would not fit.
NARROW = ("strides", "a large stride along W", "a larger stride than taps reach")
ALL = {**{name: given for name, given in calls.PROBLEMS.items() if name != "one tap"}, **MORE}


def form_of(tile: PixelsTile) -> str:
    return f"{tile.block_m}x{tile.block_n}_pixel_{'rows' if tile.rows else 'patches_direct'}"


KERNELS = [(form_of(tile), precision) for tile in PIXELS for precision in PRECISIONS]


def sampled() -> Iterator[Any]:
    """Yield for each problem a kernel of rows and one of patches, whole or split."""
    for number, name in enumerate(ALL):
        for form, split in (("rows", number % 2 == 0), ("patches", number % 2 == 1)):
            size = "128x128" if name in NARROW else ""
            kernels = [kernel for kernel in KERNELS if form in kernel[0] and size in kernel[0]]
            wanted, precision = kernels[number % len(kernels)]
            label = f"{wanted}-{precision}-{name}{'-shares' if split else ''}"
            yield pytest.param(wanted, precision, name, split, id=label)


@pytest.mark.parametrize(("wanted", "precision", "name", "split"), list(sampled()))
def test_integers_are_exact(wanted: str, precision: str, name: str, split: bool) -> None:
    calls.check_finished(ALL[name], wanted, SINGLE, precision, split)


def test_every_kernel_is_among_these() -> None:
    assert {(param.values[0], param.values[1]) for param in sampled()} == set(KERNELS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", calls.TRANSPOSED)
@pytest.mark.parametrize("form", ["rows", "patches_direct"])
def test_integers_are_exact_in_conv_transpose(name: str, form: str) -> None:
    given, number = calls.TRANSPOSED[name], list(calls.TRANSPOSED).index(name) + 3 * (form == "rows")
    size = ("64x256", "128x128")[number % 2]
    calls.check_finished(given, f"{size}_pixel_{form}", SINGLE, PRECISIONS[number // 2 % 2], number % 4 == 0)


# ---------------------------------------------------------------- forms of strips


def only(monkeypatch: pytest.MonkeyPatch, run: int, shares: tuple[int, int] | None = None) -> None:
    """Restrict strips to runs of one length, and optionally how taps share them."""
    monkeypatch.setattr(pixels, "_RUNS", (run,))
    if shares is not None:
        monkeypatch.setattr(pixels, "_shares", lambda _: iter((shares,)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", ["rows", "patches_direct"])
@pytest.mark.parametrize("run", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("shape", [(1, 36, 7, 40), (1, 36, 140)], ids=["rows", "one row"])
def test_runs_of_every_length(shape: Ints, run: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles extend beyond the ends of rows, or cover only one row."""
    only(monkeypatch, run)
    axes = len(shape) - 2
    given = conv(shape, (66, 36, *(2, 3)[:axes]), pads=[1] * 2 * axes, strides=[1, 1 if run == 128 else 2][-axes:])
    kernel, precision = f"128x128_pixel_{form}", PRECISIONS[run % 3 == 2]
    struct = calls.check_exact(given, kernel, SINGLE, precision, seed=run, async_order="random")
    assert struct["strips"]["run"]["divisor"] == run


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", ["rows", "patches_direct"])
@pytest.mark.parametrize("shares", [(3, 3), (1, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("strides", [[1, 1], [2, 1]], ids=str)
def test_taps_share_strips_or_do_not(
    strides: list[int], shares: tuple[int, int], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, 16, shares)
    given = conv((1, 36, 9, 20), (66, 36, 3, 3), pads=[1, 1, 1, 1], strides=strides)
    kernel = f"128x128_pixel_{form}"
    strips = calls.check_exact(given, kernel, SINGLE, "tf32", seed=sum(shares), async_order="random")["strips"]
    assert (strips["inner_h"], strips["inner_w"]) == shares
    assert list(strips["taps"]["divisor"]) == [1, 3 // shares[0], 3 // shares[1]]


def test_problems_meet_all_forms() -> None:
    """Adjacent and separate rows; taps that share strips along both axes, along one, or along none."""
    found = {}
    several = "one row of several taps along H"
    for name in ("as large as x", "one axis", "far taps along W", "one tap of wide rows", several):
        arrays = operands(ALL[name], INTEGERS, 0, SINGLE)
        _, struct = call(ALL[name], arrays, "128x128_pixel_rows", "tf32", check_shared=False, check_global=False)
        strips = struct["strips"]
        found[name] = int(strips["inner_h"]), int(strips["inner_w"]), int(strips["column_w"]) > 0
    assert list(found.values()) == [(3, 3, False), (1, 4, True), (1, 3, False), (1, 1, True), (1, 2, True)]


# ---------------------------------------------------------------- rings


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("tile", "precision", "changes"),
    [
        (PIXELS[0], "3xtf32", {"stages": 2}),
        (PIXELS[1], "tf32", {"stages": 5, "x_bytes": 65536}),
        (PIXELS[1], "3xtf32", {"stages": 3}),
        (PIXELS[2], "tf32", {"stages": 7}),
        (PIXELS[3], "3xtf32", {"stages": 4, "x_bytes": 196608}),
    ],
    ids=str,
)
def test_any_number_of_stages_in_every_order_of_arrival(
    tile: PixelsTile, precision: str, changes: dict[str, int], resized: Any
) -> None:
    given = conv((1, 72, 6, 36), (64, 72, 3, 2), pads=[1, 0, 2, 1])
    wanted, room = form_of(tile), changes.get("x_bytes", tile.x_bytes)
    resized("PIXELS", tile, **changes)
    for struct in calls.in_every_order(given, wanted, SINGLE, precision, (1, 2, 1)):
        assert struct["strips"]["stages"] == room // struct["strips"]["bytes"] >= 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tile", PIXELS, ids=form_of)
def test_shares_that_have_no_strip(tile: PixelsTile, monkeypatch: pytest.MonkeyPatch, resized: Any) -> None:
    """Three strips in four splits, the last one empty, which a divisor of 2 for splits of one strip causes."""
    monkeypatch.setattr(split_k, "_COUNTS", (2,))
    given = conv((1, 80, 6, 36), (64, 80, 2, 2))
    wanted = form_of(tile)
    resized("PIXELS", tile)
    order: dict[str, Any] = {"seed": tile.block_m, "async_order": "random"}
    struct = calls.check_exact(given, wanted, SINGLE, PRECISIONS[tile.ping_pong], split=True, **order)
    assert struct["loading"]["channel_slices"]["divisor"] == 3
    assert struct["splits"]["count"]["divisor"] == 2


# ---------------------------------------------------------------- numbers


def test_inputs_are_rounded_to_nearest_ties_away_from_zero() -> None:
    """Weights of one show how x is rounded: to 11 significant bits, for either sign."""
    mantissas = np.arange(0, 1 << 14, 0x7FF, dtype=np.uint32) | np.uint32(0x3F800000)
    bits = np.concatenate([mantissas, mantissas | np.uint32(0x80000000)])
    x = np.resize(bits.view(np.float32), (1, 32, 4, 20)).copy()
    w = np.zeros((64, 32, 1, 1), np.float32)
    for channel in range(32):
        w[channel, channel] = 1
    expected = ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    for form in ("rows", "patches_direct"):
        y, _ = call(conv(x.shape, w.shape, False), (x, w, None), f"64x256_pixel_{form}", "tf32")
        np.testing.assert_array_equal(y[:, :32], expected)
        assert not y[:, 32:].any()
        y, _ = call(conv(x.shape, w.shape, False), (x, w, None), f"128x128_pixel_{form}", "3xtf32")
        np.testing.assert_allclose(y[:, :32], x, rtol=2**-22.5)  # two parts of 11 bits, the second with its own sign


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00001, 0x7F7FFFFF], ids=hex)
def test_no_rounding_makes_a_number_of_what_is_none(bits: int, precision: str) -> None:
    """NaN with any payload stays NaN; the largest number, infinite in TF32, is multiplied unrounded."""
    given = conv((1, 32, 4, 20), (64, 32, 1, 1), False)
    x, w = np.ones(given.x_shape, np.float32), np.ones(given.w_shape, np.float32) / 64
    x.view(np.uint32)[0, 5, 1, 2] = bits
    y, _ = call(given, (x, w, None), "64x256_pixel_rows", precision)
    oracle.assert_close(y, exact_of(given, (x, w, None)), SINGLE, precision)
    assert np.isnan(y).sum() == (64 if np.isnan(x).any() else 0)


# ---------------------------------------------------------------- results


@pytest.mark.sampled(3)
@pytest.mark.parametrize("wanted", ["128x128_pixel_patches_direct", "64x256_pixel_rows"])
@pytest.mark.parametrize("filters", [65, 66, 70])
def test_channels_last_of_any_number_of_filters(filters: int, wanted: str) -> None:
    """Outputs are stored in pairs where these are whole, or one by one."""
    given = conv((2, 40, 5, 24), (filters, 40, 2, 2), pads=[0, 1, 1, 0])
    arrays = operands(given, INTEGERS, 6, SINGLE)
    exact = exact_of(given, arrays).value
    whole = LAYOUTS["channels last"](np.zeros((*exact.shape[:3], exact.shape[3] + 1), SINGLE))
    for out in (whole[..., 1:], LAYOUTS["channels last"](np.zeros(exact.shape, SINGLE))):
        y, _ = call(given, arrays, wanted, "tf32", more={"out": out, "activation": "relu"})
        np.testing.assert_array_equal(y, np.maximum(exact, 0))
