"""Bugs in the kernels of what is done by Indices: wrong borders, numbers and rows are noticed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from many_gradients import WALKS, Trial
from mutate_kernels import changed_kernels
from test_planted_bugs import exchanged

pytestmark = pytest.mark.emulator

WALK = "max_pool_grad_walks.cu"
WRONG, OUT_OF_BOUNDS = "differ", "global memory out of bounds"


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Broken kernels stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUCONV_CACHE_DIR", str(tmp_path_factory.mktemp("broken")))
        yield


@dataclass(frozen=True)
class Bug:
    """One bug: what stands in the file, what stands there instead, what meets it, what is said of it."""

    name: str
    path: str
    old: str
    new: str
    trial: Trial
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
    Bug("windows beside the last one are read", WALK, "inside(walk.left + i, walk.across)", "walk.left + i >= 0",
        WALKS[4], f"{OUT_OF_BOUNDS}|{WRONG}"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_noticed(bug: Bug) -> None:
    text = exchanged(bug.path, bug.old, bug.new)
    with pytest.raises(AssertionError, match=bug.message), changed_kernels({bug.path: text}):
        bug.trial("sm_90a", seed=4)
