"""Bugs in convolution by wgmma of pixels that come through registers: whatever is forgotten, exchanged or off by one is
noticed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.conv.wgmma import family as wgmma
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.offers import Candidate
from tests.emulator import emulated_cuda
from tests.harness.many_blocks import _INFINITE_WEIGHTS, _filled
from tests.harness.many_wgmma import Trial
from tests.harness.mutate_kernels import changed_kernels
from tests.harness.test_planted_bugs import exchanged
from tests.harness.tiers import first_of_each, report
from tests.oracle import oracle

pytestmark = pytest.mark.emulator

PIXELS, ITEMS = "conv/wgmma/pixels.cuh", "conv/wgmma/items.cuh"
SINGLE = np.dtype("float32")
NORMAL = ("normal", "normal", "normal")
WRONG = "elements are wrong"
Ints = tuple[int, ...]


def conv(candidate: str, x: Ints, w: Ints, attributes: Any, multiprocessors: int = 1, **more: Any) -> Trial:
    return Trial("conv", candidate, SINGLE, (x, w), attributes, multiprocessors, **{"precision": "tf32", **more})


# More strips an item than there is room for, and, in one block, several items.
_FAR = {"pads": [1, 0, 2, 1], "dilations": [2, 1]}
_GROUPS = {"group": 2}
IN_TURNS = conv("64x256_pixel_rows", (1, 72, 6, 36), (70, 72, 3, 2), _FAR)
LONG = conv("128x128_pixel_rows", (1, 40, 9, 20), (70, 40, 1, 1), {})
STRIDED = conv("128x128_pixel_rows", (1, 40, 23, 36), (70, 40, 3, 2), {"strides": [2, 3], "pads": [1, 0, 0, 1]})
DEEP = conv("128x128_pixel_rows", (2, 40, 3, 5, 20), (70, 40, 2, 2, 2), {"strides": [2, 1, 1]})
PATCHES = conv("64x256_pixel_patches_direct", (1, 40, 9, 20), (70, 40, 3, 2), _FAR, layout="channels last")
GROUPS = conv("64x256_pixel_rows", (1, 64, 9, 20), (140, 32, 2, 2), _GROUPS)
IN_PARTS = conv("128x128_pixel_rows", (1, 128, 9, 20), (140, 64, 2, 2), _GROUPS, precision="3xtf32", kinds=NORMAL)
INFINITE = conv("64x256_pixel_rows", (1, 40, 6, 36), (70, 40, 3, 2), _FAR, kinds=_INFINITE_WEIGHTS)
LAST = conv("128x128_pixel_rows", (1, 64, 5, 20), (70, 32, 2, 2), _GROUPS, out="channels last")
SPREAD = conv("128x128_pixel_rows", (1, 40, 5, 20), (70, 40, 2, 2), {}, out="strided")
SHARES = conv("64x256_pixel_rows_split", (1, 100, 9, 20), (70, 100, 3, 3), {"pads": [1, 1, 2, 1]}, 5)
DEEP_SHARES = conv("128x128_pixel_rows_split", (2, 40, 3, 5, 20), (70, 40, 2, 2, 2), {"strides": [2, 1, 1]}, 5)


@dataclass(frozen=True, eq=False)
class Exactly:
    """A Conv of one tap, all sums of which float32 holds.

    Attributes
    ----------
    x, w : what is given.
    rounded : numbers in place of x, whose sums are to be found.
    activation : None or "relu".
    """

    x: Any
    w: Any
    rounded: Any
    activation: str | None = None

    def __call__(self, **options: Any) -> None:
        def pick(candidates: Sequence[Candidate]) -> Candidate:
            return next(one for one in candidates if one.name.endswith("128x128_pixel_rows"))

        with offers.picking(pick), gpuconv.precision("tf32"), emulated_cuda(multiprocessors=1, **options):
            y = gpuconv.conv(self.x, self.w, activation=self.activation)
        with np.errstate(invalid="ignore"):
            sums = oracle.conv(self.rounded, self.w).value
            expected = sums if self.activation is None else np.maximum(sums, 0)
        wrong = int((~((y == expected) | (np.isnan(y) & np.isnan(expected)))).sum())
        assert not wrong, f"{wrong} of {y.size} {WRONG}"


def one_of(*numbers: float) -> Any:
    """An input of these numbers."""
    return np.array(numbers, np.float32)[np.random.default_rng(0).integers(0, len(numbers), (1, 32, 3, 40))]


def overflowing() -> Exactly:
    """The first of three inputs is rounded to infinity, so that its sum is minus infinity before it is repaired."""
    x, w = np.zeros((1, 32, 3, 40), np.float32), np.zeros((64, 32, 1, 1), np.float32)
    x[:, 0], x[:, 1:3] = np.finfo(np.float32).max, 1.9375 * 2.0**127
    w[:, 0], w[:, 1:3] = -1, 1
    return Exactly(x, w, x, "relu")


UNIT = 2.0**-10  # the last place of TF32 from 1 to 2
WEIGHTS = _filled("integers", 1, (64, 32, 1, 1), SINGLE)
TIES = Exactly(
    one_of(1 + UNIT / 2, -1 - UNIT * 5 / 2, 1 + UNIT * 3 / 4, 1 + UNIT / 4, 3),
    WEIGHTS,
    one_of(1 + UNIT, -1 - UNIT * 3, 1 + UNIT, 1, 3),
)
LAST_NAN = float(np.array(0x7FFFFFFF, np.uint32).view(np.float32))  # the one before -0
NANS = Exactly(one_of(*range(9), LAST_NAN), WEIGHTS, one_of(*range(9), np.nan))
TRIALS: dict[str, Callable[..., Any]] = {
    "in turns": IN_TURNS,
    "one run after the other": LONG,
    "strides": STRIDED,
    "three axes": DEEP,
    "patches": PATCHES,
    "groups": GROUPS,
    "numbers in parts": IN_PARTS,
    "infinite weights": INFINITE,
    "channels last": LAST,
    "channels and pixels apart": SPREAD,
    "shares": SHARES,
    "shares on three axes": DEEP_SHARES,
    "ties": TIES,
    "the last NaN": NANS,
    "a number that is rounded to infinity": overflowing(),
}


@dataclass(frozen=True)
class Bug:
    """One bug: what stands in the file, what stands there instead, what is said of it, the problem that meets it."""

    name: str
    old: str
    new: str
    message: str = WRONG
    trial: Callable[..., Any] = IN_TURNS
    path: str = PIXELS
    orders: Sequence[tuple[int, str]] = ((0, "late"),)


EARLY = "shared memory race|more arrivals|in flight|is not waited for"
RANDOM = [(seed, "random") for seed in range(9)]
UNWRITTEN = "uninitialised|fence.proxy|outside shared|in flight|race"
LATE = "in flight|uninitialised|deadlock|race"
PLACES = f"{WRONG}|never written|race|out of bounds|misaligned"
W_RELEASED = "            if (speaks && begun) barrier_arrive(w.empty_before());\n"
TAPS_MULTIPLIED = """\
            if (parts == 2 && last) tile.template multiply<true>(w.address(), inputs, places);
            else tile.template multiply<false>(w.address(), inputs, places);
"""
LIMITS = "found.q[1] < int(p.extent[1].divisor) && found.q[2] < int(p.extent[2].divisor)"
BUGS = (
    # ---- the rings
    Bug("strips are not waited for", "        x.wait_full();\n", "", f"{LATE}|fence.proxy", orders=RANDOM),
    Bug("weights are not waited for", "            w.wait_full();\n", "", LATE),
    Bug("strips are filled while they are read", "            x.wait_empty();\n", "", EARLY),
    Bug("weights are filled while they are read", "                        w.wait_empty();\n", "", EARLY),
    Bug("products are not waited for", "            products_wait<1>();\n", "", EARLY),
    Bug("weights are released too early", TAPS_MULTIPLIED + W_RELEASED, W_RELEASED + TAPS_MULTIPLIED, EARLY),
    Bug("strips are never released", "        if (speaks) barrier_arrive(x.empty());\n", "", "deadlock"),
    Bug(
        "the last weights are never released",
        "        if (speaks && item.slices > 0) barrier_arrive(w.empty_before());\n",
        "",
        "deadlock",
    ),
    Bug(
        "shares without strips release weights", "speaks && item.slices > 0", "speaks", f"more arrivals|{LATE}", SHARES
    ),
    Bug("strips of the other are not counted", "        x.skip(item.slices);\n", "", LATE),
    Bug("taps of the other are not counted", "item.slices * strips.inner_h * strips", "item.slices * strips", LATE),
    Bug(
        "parts of the other are not counted",
        "strips.inner_w * parts);\n    }",
        "strips.inner_w);\n    }",
        LATE,
        IN_PARTS,
    ),
    Bug("the rings have the same barriers", "16 * kMostStrips), strips", "0), strips", f"{LATE}|more arrivals"),
    # ---- registers
    Bug("rows 8 apart are exchanged", "(first + i) * 2 + j % 2", "(first + i) * 2 + 1 - j % 2"),
    Bug("channels 4 apart are exchanged", "k * 2 + j / 2", "k * 2 + 1 - j / 2"),
    Bug("products are all of the first rows", "first = step % kOfEight * kTogether", "first = 0"),
    Bug("weights of eight channels are too near", "large[i], b + k * 2", "large[i], b + k"),
    Bug("patches are not swizzled", "pixels[i] ^= pixels[i] >> 3 & 0x70", "pixels[i] ^= 0", trial=PATCHES),
    Bug(
        "channels of patches are added, not exchanged",
        "pixel ^ four * 16",
        "pixel + four * 16",
        f"{WRONG}|{UNWRITTEN}",
        PATCHES,
    ),
    # ---- numbers
    Bug("inputs are cut off", "add.u32 %0, %0, 4096;", "add.u32 %0, %0, 0;", trial=TIES),
    Bug("the last NaN becomes a zero", "@finite add.u32", "add.u32", trial=NANS),
    Bug(
        "small parts of inputs are forgotten",
        "if constexpr (BOTH) Arithmetic::template multiply_rows<BLOCK_M>(sums[first + i], small",
        "if constexpr (false) Arithmetic::template multiply_rows<BLOCK_M>(sums[first + i], small",
        trial=IN_PARTS,
    ),
    Bug("no rest is left for small parts", "large[i][j] & ~0x1fffu)", "large[i][j])", trial=IN_PARTS),
    Bug("small weights are multiplied by both parts", "parts == 2 && last", "parts == 2 && !last", trial=IN_PARTS),
    Bug(
        "large weights come first",
        "part = parts - 1; part >= 0; --part",
        "part = 0; part < parts; ++part",
        trial=IN_PARTS,
    ),
    # ---- where pixels stand in strips
    Bug("runs lie as far apart as pixels", "run * strips.place_run", "run * strips.place_column"),
    Bug("pixels follow each other whatever the stride", "along * strips.place_column", "along * 4", trial=STRIDED),
    Bug(
        "taps of the next row begin where those of the last end",
        "strips.shift_h - strips.inner_w * strips.shift_w",
        "strips.shift_h",
    ),
    Bug(
        "taps along W are as many as those along H", "if (++across < strips.inner_w)", "if (++across < strips.inner_h)"
    ),
    # ---- what is fetched
    Bug("pieces lie too near", "piece * strips.piece_bytes", "piece * (strips.piece_bytes / 2)", f"{WRONG}|{LATE}"),
    Bug(
        "pieces follow each other along the other axis",
        "at[1] + piece * strips.piece_h",
        "at[1] + piece * strips.piece_w",
        trial=LONG,
    ),
    Bug("axes of rows are exchanged", "x.full(), w, h, at[0], channel", "x.full(), h, w, at[0], channel"),
    Bug(
        "axes of patches are exchanged", "channel, w, h, at[0], first.n", "channel, h, w, at[0], first.n", trial=PATCHES
    ),
    Bug("strips of the stride are too near", "first.q[axis] * common.stride[axis]", "first.q[axis]", trial=STRIDED),
    Bug("all groups have the inputs of the first", "item.group * p.loading.x_group + ", "", trial=GROUPS),
    Bug("all groups have the weights of the first", "item.group * parts + part", "part", trial=GROUPS),
    Bug("weights are those of the first tap", "tap_row(taps, tap) +", "tap_row(taps, slice.tap) +"),
    Bug("taps along W do not begin anew", "                tap[2] = slice.tap[2];\n", ""),
    Bug(
        "taps begin their strips anew",
        "slice.advance(p.loading, strips.taps)",
        "slice.advance(p.loading, taps.count)",
        trial=DEEP,
    ),
    Bug(
        "shares begin at the strips of single taps",
        "slice.first(p.loading, strips.taps",
        "slice.first(p.loading, taps.count",
        trial=DEEP_SHARES,
    ),
    Bug(
        "strips of parts come three times",
        "SlicePlace<Tile::kBlockK, false>",
        "SlicePlace<Tile::kBlockK, true>",
        trial=IN_PARTS,
    ),
    Bug(
        "strips are counted for each product",
        "taps[2].divisor) * p.loading.channel_slices;",
        "taps[2].divisor) * p.loading.channel_slices * products(p.loading);",
        trial=IN_PARTS,
        path=ITEMS,
    ),
    # ---- what is written
    Bug("runs follow each other along H alone", "run * tile.strips.column_w + along", "along", PLACES, LONG),
    Bug("columns beyond W exist", LIMITS, LIMITS.split(" && ")[0], PLACES),
    Bug("filters beyond the last are written", "if (!exist[i] || channel(k) >= p.filters)", "if (!exist[i])", PLACES),
    Bug(
        "a thread's channels have the bias of the first",
        "epilogue.bias(channel(k)) : 0.f",
        "epilogue.bias(first) : 0.f",
    ),
    Bug("pairs of channels are 4 apart", "first + k / 2 * 8", "first + k / 2 * 4", PLACES),
    Bug(
        "pairs are written side by side, wherever channels lie",
        "p.y_channel == 1 && (p.filters",
        "(p.filters",
        PLACES,
        SPREAD,
    ),
    Bug(
        "odd numbers of channels are written in pairs",
        "(p.filters | distances) % 2 == 0",
        "distances % 2 == 0",
        PLACES,
        LAST,
    ),
    Bug(
        "infinities and NaN are not made again",
        "                odd = multiply_add(sums[i][k], 0.f, odd);\n",
        "",
        trial=INFINITE,
    ),
    Bug(
        "each lane makes its own again", "__any_sync(0xffffffff, chunk.odd != 0.f)", "chunk.odd != 0.f", trial=INFINITE
    ),
    Bug(
        "infinities are bounded before they are made again",
        "FINISH && is_finite(sum)",
        "FINISH",
        trial=TRIALS["a number that is rounded to infinity"],
    ),
)


@pytest.fixture(autouse=True)
def three_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four strips, of which the last one has none."""
    monkeypatch.setattr(wgmma, "_COUNTS", (3,))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TRIALS)
def test_without_a_bug_it_is_right(name: str) -> None:
    TRIALS[name](seed=4, async_order="random")


def run(bug: Bug) -> None:
    for seed, order in bug.orders:
        bug.trial(seed=seed, async_order=order)


@pytest.mark.usefixtures("cache_of_broken_kernels")
@pytest.mark.parametrize("bug", first_of_each(BUGS, report), ids=lambda bug: bug.name)
def test_a_bug_is_noticed(bug: Bug) -> None:
    text = exchanged(bug.path, bug.old, bug.new)
    with pytest.raises(AssertionError, match=bug.message), changed_kernels({bug.path: text}):
        run(bug)
