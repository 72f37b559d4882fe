"""Bugs in convolution by wgmma from strips of x: whatever is forgotten, exchanged or off by one is noticed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from gpuconv.cuda.conv.wgmma import family as wgmma
from tests.harness.many_wgmma import Trial
from tests.harness.mutate_kernels import changed_kernels
from tests.harness.test_planted_bugs import exchanged
from tests.harness.tiers import first_of_each, report
from tests.oracle.operands import BFLOAT16

pytestmark = pytest.mark.emulator

STRIPS, RING, HOPPER = "conv/wgmma/strips.cuh", "conv/wgmma/ring.cuh", "base/hopper.cuh"
TILE, ITEMS = "conv/wgmma/tiles.cuh", "conv/wgmma/items.cuh"
HALF, SINGLE = np.dtype("float16"), np.dtype("float32")
WRONG = "elements are wrong"

# More strips an item than there is room for, and, in one block, several items.
_FAR = {"pads": [1, 0, 2, 1], "dilations": [2, 1]}
IN_TURNS = Trial("conv", "64x256_rows", BFLOAT16, ((1, 72, 4, 72), (70, 72, 3, 2)), _FAR, 1)
ODD = Trial("conv", "64x256_rows", BFLOAT16, ((1, 40, 4, 72), (70, 40, 3, 3)), {**_FAR, "pads": [1, 1, 2, 1]}, 1)
TOGETHER = Trial("conv", "128x256_rows", BFLOAT16, ((1, 72, 6, 72), (70, 72, 3, 2)), {"pads": [1, 0, 1, 1]}, 1)
NARROW = Trial("conv", "128x256_rows", BFLOAT16, ((1, 200, 4, 72), (70, 200, 2, 2)), {"pads": [0, 0, 1, 1]}, 1)
LONG = Trial("conv", "128x256_rows", BFLOAT16, ((1, 136, 12, 20), (70, 136, 1, 1)), {}, 1)
STRIDED = Trial("conv", "64x256_rows", HALF, ((1, 40, 11, 72), (70, 40, 3, 2)), {"strides": [2, 1]}, 1)
DEEP = Trial("conv", "64x256_rows", HALF, ((2, 40, 3, 5, 72), (70, 40, 2, 2, 2)), {"strides": [2, 1, 1]}, 1)
PATCHES = Trial(
    "conv", "64x256_patches_direct", HALF, ((1, 72, 19, 20), (70, 72, 3, 2)), _FAR, 1, layout="channels last"
)
IN_PARTS = Trial(
    *("conv", "64x256_patches", SINGLE, ((1, 34, 9, 20), (140, 17, 2, 2)), {"group": 2}, 1),
    kinds=("normal", "normal", "normal"),
    precision="3xtf32",
)
GROUPS = Trial("conv", "64x256_rows", HALF, ((1, 128, 6, 64), (140, 64, 2, 1)), {"group": 2}, 1)
# Weights that stay in shared memory: as many slices as there is room for, and less of them, in two blocks.
STAYING = Trial("conv", "64x256_rows", HALF, ((1, 40, 12, 72), (64, 40, 3, 3)), {"pads": [1, 1, 1, 1]}, 1)
BLOCKS = Trial("conv", "64x256_rows", BFLOAT16, ((1, 40, 16, 72), (64, 40, 2, 2)), {"pads": [0, 1, 1, 0]}, 2)
HALVED = Trial(
    "conv", "64x256x32_patches_direct", HALF, ((1, 32, 31, 20), (64, 32, 3, 2)), {}, 1, layout="channels last"
)
SHARES = Trial("conv", "64x256_rows_split", HALF, ((1, 72, 9, 72), (70, 72, 3, 2)), _FAR, 5)
DEEP_SHARES = Trial(
    "conv", "64x256_rows_split", HALF, ((2, 40, 3, 5, 72), (70, 40, 2, 2, 2)), {"strides": [2, 1, 1]}, 5
)
TRIALS = {
    "in turns": IN_TURNS,
    "an odd number of strips": ODD,
    "together": TOGETHER,
    "more taps in strips than stages": NARROW,
    "one row after the other": LONG,
    "a stride along H": STRIDED,
    "three axes": DEEP,
    "patches": PATCHES,
    "patches of numbers in parts": IN_PARTS,
    "groups": GROUPS,
    "weights that stay": STAYING,
    "weights that stay in two blocks": BLOCKS,
    "slices of 64 bytes": HALVED,
    "shares": SHARES,
    "shares on three axes": DEEP_SHARES,
}


@dataclass(frozen=True)
class Bug:
    """One bug: what stands in the file, what stands there instead, what is said of it, the problem that meets it."""

    name: str
    old: str
    new: str
    message: str
    trial: Trial = IN_TURNS
    path: str = STRIPS
    orders: Sequence[tuple[int, str]] = ((0, "late"),)


EARLY = "shared memory race|more arrivals|in flight"
RANDOM = [(seed, "random") for seed in range(9)]
UNWRITTEN = "uninitialised|fence.proxy|outside shared|in flight|race"
LATE = "in flight|uninitialised|deadlock|race"
WAIT = "                products_wait<1>();\n"
W_RELEASED = "                if (speaks && !resident && done + tap > 0) barrier_arrive(w.empty_before());\n"
X_RELEASED = "                if (speaks && done > 0 && tap == 0) barrier_arrive(x.empty_before());\n"
NEXT_LINE = "\n                             "
MISSING = "resident && number >= int(gridDim.x) ? 0 : inner"
TAP_ROW = "tap_row(taps, tap)"
BUGS = (
    # ---- the rings
    Bug("strips are not waited for", "            x.wait_full();\n", "", f"{LATE}|fence.proxy", orders=RANDOM),
    Bug("weights are not waited for", "                w.wait_full();\n", "", LATE),
    Bug("strips are filled while they are read", "            x.wait_empty();\n", "", EARLY),
    Bug("weights are filled while they are read", "                w.wait_empty();\n", "", EARLY, NARROW),
    Bug("products are not waited for", WAIT, "", EARLY),
    Bug("weights are released one tap too early", WAIT + W_RELEASED, W_RELEASED + WAIT, EARLY, NARROW),
    Bug(
        "strips are released one tap too early",
        WAIT + W_RELEASED + X_RELEASED,
        X_RELEASED + WAIT + W_RELEASED,
        EARLY,
        TOGETHER,
    ),
    Bug(
        "a strip is released with every tap", "done > 0 && tap == 0", "done > 0", "more arrivals|deadlock|race", NARROW
    ),
    Bug("the last strip is never released", "        barrier_arrive(x.empty_before());\n", "", "deadlock"),
    Bug(
        "the last weights are never released",
        "        if (!resident) barrier_arrive(w.empty_before());\n",
        "",
        "deadlock",
    ),
    Bug(
        "shares without strips release one",
        "if (!speaks || item.slices == 0) return;",
        "if (!speaks) return;",
        "more arrivals|deadlock|race|in flight",
        SHARES,
    ),
    Bug("rounds of the other are not counted", "        parity ^= passed / count() & 1;\n", "", LATE, ODD, RING),
    Bug(
        "the rings have the same barriers",
        "Stages::kBytes + 16 * kMostStrips), inner",
        "Stages::kBytes), inner",
        f"{LATE}|more arrivals",
    ),
    # ---- weights that stay
    Bug("weights that stay are fetched for every item", MISSING, "inner", "deadlock", STAYING),
    Bug(
        "weights that stay are fetched by the first block alone", "number >= int(gridDim.x)", "number > 0", LATE, BLOCKS
    ),
    Bug(
        "weights that stay are not read from the first one on", "        if (resident) w.rewind();\n", "", LATE, STAYING
    ),
    Bug("weights of several tiles stay", "resident(strips.resident)", "resident(true)", f"{WRONG}|deadlock", GROUPS),
    # ---- what is multiplied
    Bug("all taps read the first one's pixels", "x.address() + tap * shift", "x.address()", WRONG),
    Bug(
        "rows of eight channels are too near",
        "NEXT / 16) << 16 | 64ull",
        "NEXT / 16) << 16 | 32ull",
        f"{WRONG}|{UNWRITTEN}",
        path=HOPPER,
    ),
    Bug("steps along K are too short", "32 / int(sizeof(T)) * 128", "16 / int(sizeof(T)) * 128", WRONG, path=TILE),
    Bug(
        "slices of 64 bytes are swizzled as longer ones",
        "(BYTES == 128 ? 1ull : 2ull)",
        "1ull",
        f"{WRONG}|{UNWRITTEN}",
        HALVED,
        HOPPER,
    ),
    # ---- what is fetched
    Bug("pieces lie too near", "kPieceOfStrip = 64 * SLICE", "kPieceOfStrip = 32 * SLICE", f"{WRONG}|{LATE}"),
    Bug(
        "pieces follow each other along the other axis",
        f"at[2] + piece * strips.piece_w,{NEXT_LINE}at[1] + piece * strips.piece_h",
        f"at[2] + piece * strips.piece_h,{NEXT_LINE}at[1] + piece * strips.piece_w",
        WRONG,
    ),
    Bug("the inner taps are those along W", "++each, ++tap[1]", "++each, ++tap[2]", WRONG),
    Bug(
        "taps along H begin their strips anew",
        "slice.advance(loading, strips.taps)",
        "slice.advance(loading, taps.count)",
        WRONG,
        DEEP,
    ),
    Bug(
        "shares begin at the strips of single taps",
        "slice.first(loading, strips.taps",
        "slice.first(loading, taps.count",
        WRONG,
        DEEP_SHARES,
    ),
    Bug("strips of the stride are too near", "* common.stride[axis] + taps", "+ taps", WRONG, STRIDED),
    Bug(
        "all strips are of the first image",
        "strips.piece_h, at[0], channel, first.n",
        "strips.piece_h, at[0], channel, 0",
        WRONG,
        DEEP,
    ),
    Bug(
        "axes of patches are exchanged", "channel, at[2], at[1], at[0]", "channel, at[1], at[2], at[0]", WRONG, PATCHES
    ),
    Bug("all groups have the inputs of the first", "item.group * loading.x_group +", "", WRONG, GROUPS),
    Bug(
        "strips are not counted for each product",
        "divisor * taps[2].divisor) * p.loading.channel_slices * products(p.loading)",
        "divisor * taps[2].divisor) * p.loading.channel_slices",
        WRONG,
        IN_PARTS,
        ITEMS,
    ),
    # ---- where tiles stand
    Bug(
        "rows and columns of tiles are exchanged",
        "found.q[1] *= strips.rows;\n    found.q[2] *= strips.columns;",
        "found.q[1] *= strips.columns;\n    found.q[2] *= strips.rows;",
        f"{WRONG}|never written|race|misaligned",
        path=ITEMS,
    ),
    Bug(
        "columns of rows are as many as those of patches",
        "kRow = StripTile<Arithmetic, BLOCK_M, BLOCK_N, TURNS, SLICE, ROWS>::kRow;",
        "kRow = 16;",
        f"{WRONG}|never written|race|out of bounds",
    ),
    Bug(
        "columns beyond W exist",
        " && found.q[2] < int(p.extent[2].divisor)",
        "",
        f"{WRONG}|out of bounds|never written|race",
    ),
    Bug(
        "neighbours follow each other beyond rows",
        "kAxesInOrder = 1",
        "kAxesInOrder = 3",
        f"{WRONG}|never written|race|out of bounds|misaligned",
        PATCHES,
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
