"""Bugs in the kernels of what is done by Indices, and of gradients of weights: wrong numbers and borders show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.harness.many_gradients import LARGE_WEIGHTS, WALKS
from tests.harness.mutate_kernels import changed_kernels
from tests.harness.test_planted_bugs import exchanged
from tests.harness.tiers import first_of_each, report

pytestmark = [pytest.mark.emulator, pytest.mark.usefixtures("cache_of_broken_kernels")]

WALK = "pool/grad/walks.cu"
TILE, SLICES, TILE_MMA = "weight_grad/tiles.cu", "weight_grad/tiles_slices.cuh", "weight_grad/tiles_mma.cuh"
WRONG, OUT_OF_BOUNDS = "differ", "global memory out of bounds"
WRONG_SUMS = "elements are wrong"
CHANNELS, PIXELS, CHUNKS = LARGE_WEIGHTS[1], LARGE_WEIGHTS[4], LARGE_WEIGHTS[5]


@dataclass(frozen=True)
class Bug:
    """One bug: what stands in the file, what stands there instead, what meets it, what is said of it."""

    name: str
    path: str
    old: str
    new: str
    trial: Any
    message: str


BUGS = (
    Bug("indices are told by their low words alone", WALK, "index.y == 0 && ", "", WALKS[0], WRONG),
    Bug("windows that begin above a walk are left out", WALK, "walk.out_row = begin - p.halo;",
        "walk.out_row = begin;", WALKS[2], WRONG),
    Bug("rows above a walk are written", WALK, "if (inside(walk.row + i, walk.end))", "if (walk.row + i < walk.end)",
        WALKS[2], f"race|{OUT_OF_BOUNDS}"),
    Bug("columns that are none are written", WALK, "if (COLUMNS == 1 || column < walk.columns)", "if (true)",
        WALKS[3], f"race|{OUT_OF_BOUNDS}"),
    Bug("rows are written as vectors wherever x begins", WALK, "% (COLUMNS * sizeof(T)) == 0)", "% 1 == 0)", WALKS[5],
        "misaligned"),
    Bug("windows beside the last one are read", WALK, "inside(left + i, across)", "left + i >= 0",
        WALKS[4], f"{OUT_OF_BOUNDS}|{WRONG}"),
    Bug("of slices in which windows overlap the first one counts alone", WALK, "? walk.slices : 0;", "? 1 : 0;",
        next(trial for trial in WALKS if trial.args[1] == (2, 3, 38, 9, 15)), WRONG),
    Bug("sums that padding spoils stay", TILE, "if (leave()) repair();", "leave();", PIXELS, WRONG_SUMS),
    Bug("slices of a part lie apart", SLICES, "found += BLOCK_K;", "found += BLOCK_K + 1;", CHANNELS, WRONG_SUMS),
    Bug("odd columns are even ones", SLICES, "i ^ stripe() % 2;", "i;", PIXELS, f"{OUT_OF_BOUNDS}|{WRONG_SUMS}"),
    Bug("halves of words are exchanged", SLICES, "0x7632 : 0x5410", "0x5410 : 0x7632", CHUNKS, WRONG_SUMS),
    Bug("fragments have their first rows twice", TILE_MMA, "(m + half) / 8)", "m / 8)", CHANNELS, WRONG_SUMS),
    Bug("filters beyond the last are read", SLICES, "filter < this->p().filters ? this", "true ? this", CHANNELS,
        f"{OUT_OF_BOUNDS}|{WRONG_SUMS}"),
    Bug("pixels outside of x are read", SLICES, "exists = this->meets(pixel, away);", "exists = true;", PIXELS,
        OUT_OF_BOUNDS),
    Bug("pixels are found where others are read", TILE_MMA, "slices.find(stage); ", "slices.find(0); ", PIXELS, "race"),
)  # fmt: skip


@pytest.mark.parametrize("bug", first_of_each(BUGS, report), ids=lambda bug: bug.name)
def test_a_bug_is_noticed(bug: Bug) -> None:
    text = exchanged(bug.path, bug.old, bug.new)
    with pytest.raises(AssertionError, match=bug.message), changed_kernels({bug.path: text}):
        bug.trial("sm_90a", seed=4)
