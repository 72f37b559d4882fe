"""Bugs in convolution by wgmma: whatever is forgotten, exchanged or off by one is noticed in the emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuconv.cuda.conv.wgmma.tiles import WgmmaTile
from tests.cuda.conv.wgmma import wgmma_launch
from tests.cuda.conv.wgmma.wgmma_launch import Call
from tests.emulator import Array
from tests.emulator.memory import UNWRITTEN
from tests.harness.mutate_kernels import changed_kernels
from tests.harness.test_planted_bugs import exchanged
from tests.harness.tiers import first_of_each, report
from tests.oracle import oracle
from tests.oracle.strategies import Problem

pytestmark = [pytest.mark.emulator, pytest.mark.usefixtures("cache_of_broken_kernels")]

RUN, SLICES = "conv/wgmma/run.cuh", "conv/wgmma/slices.cuh"
RING, LOAD = "conv/wgmma/ring.cuh", "conv/wgmma/load.cuh"
TILE, ITEMS, SPLIT = "conv/wgmma/tiles.cuh", "conv/wgmma/items.cuh", "conv/wgmma/split.cuh"
HOPPER, PARTS = "base/hopper.cuh", "conv/gemm/split_k.cuh"
WRONG = "elements are wrong"
TURNS, TOGETHER = WgmmaTile(64, 128, 5, turns=True), WgmmaTile(128, 128, 3, turns=False)
BY_TURNS = Call(TURNS, blocks=1)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Trial:
    """A problem of several tiles each way, with more slices of K than there are stages, on one block."""

    operator: str = "conv"
    dtype: Any = BFLOAT16
    group: int = 1
    attributes: Mapping[str, Any] = field(default_factory=lambda: {"pads": [1, 0, 2, 1], "strides": [1, 2]})
    call: Call = BY_TURNS
    seeds: Sequence[int] = (0,)
    integers: bool = True

    def run(self, call: Call | None = None) -> Any:
        """Return y; AssertionError where it is wrong or the emulator finds something."""
        channels, filters = 72, 70
        w_shape = (filters * self.group, channels, 3, 2)
        if self.operator == "conv_transpose":
            w_shape = (channels * self.group, filters, 3, 2)
        x_shape = (3, channels * self.group, 9, 11)
        random = np.random.default_rng(0)
        draw = partial(random.integers, -3, 4) if self.integers else lambda size: random.standard_normal(size)
        x, w, b = (draw(size=size).astype(self.dtype) for size in (x_shape, w_shape, filters * self.group))
        attributes = {"group": self.group, **self.attributes}
        problem = Problem(self.operator, x_shape, w_shape, b.shape, attributes)
        for seed in self.seeds:
            y = wgmma_launch.run(problem, (x, w, b), call or self.call, seed=seed)
        exact = getattr(oracle, self.operator)(x, w, b, **attributes)
        ieee = self.call.precision == "ieee"
        oracle.assert_close(y, exact, self.dtype, "tensor cores" if ieee else self.call.precision)
        return y


ONE = Trial()
BOTH = Trial(call=Call(TOGETHER, blocks=1))
PHASES = Trial("conv_transpose", attributes={"strides": [2, 3], "pads": [1, 0, 0, 1]})
GROUPS = Trial("conv", np.dtype("float32"), 2, {"pads": [1, 1, 1, 1]}, Call(TURNS, "tf32", blocks=1), integers=False)
IN_PARTS = Trial("conv", np.dtype("float32"), 2, {"strides": [2, 2]}, Call(TURNS, "3xtf32", blocks=1), integers=False)
SPLITS = Trial(call=Call(TURNS, blocks=2, whole=1, splits=3))
SPLITS_OF_BOTH = Trial(call=Call(TOGETHER, blocks=2, whole=1, splits=3))
SPLIT_PHASES = Trial("conv_transpose", attributes={"strides": [2, 3]}, call=Call(TURNS, blocks=3, whole=2, splits=4))
TWO_LAUNCHES = Trial(call=Call(TURNS, blocks=2, whole=1, splits=3, tickets=False))
TRIALS = {
    "in turns": ONE,
    "together": BOTH,
    "phases": PHASES,
    "groups in TF32": GROUPS,
    "groups in 3xTF32": IN_PARTS,
    "splits": SPLITS,
    "splits of two warpgroups": SPLITS_OF_BOTH,
    "splits of phases": SPLIT_PHASES,
    "splits of two launches": TWO_LAUNCHES,
}


@dataclass(frozen=True)
class Bug:
    """One bug: what stands in the file, what stands there instead, what is said of it, the problem that meets it."""

    name: str
    path: str
    old: str
    new: str
    message: str
    trial: Trial = ONE


RELEASE = "            products_wait<1>();\n"
FETCHED = "barrier_expect(ring.full(), Tile::kWeightBytes + Tile::kPixelBytes);"
OFFSETS = """"h"(static_cast<unsigned short>(offset[0])),
                 "h"(static_cast<unsigned short>(offset[1]))
"""
BUGS = (
    # ---- the ring
    Bug("slices are not waited for", SLICES, "            ring.wait_full();\n", "", "in flight|uninitialised"),
    Bug(
        "a slice of the round before is taken",
        RING,
        "barrier_wait(full(), parity)",
        "barrier_wait(full(), parity ^ 1)",
        "in flight|uninitialised|deadlock",
    ),
    Bug(
        "a stage is awaited for ever",
        RING,
        "barrier_wait(empty(), parity ^ 1)",
        "barrier_wait(empty(), parity)",
        "deadlock",
    ),
    Bug(
        "a stage is filled while it is read",
        LOAD,
        "            ring.wait_empty();\n            barrier_expect",
        "            barrier_expect",
        "more arrivals|in flight|shared memory race",
    ),
    Bug(
        "a stage is released before it was read",
        SLICES,
        RELEASE,
        "            products_wait<2>();\n",
        "shared memory race: write after read",
    ),
    Bug(
        "the last stage is never released",
        SLICES,
        "if (speaks && item.slices > 0) barrier_arrive",
        "if (false) barrier_arrive",
        "deadlock",
    ),
    Bug(
        "all threads release a stage",
        SLICES,
        "if (speaks && done > 0)",
        "if (done > 0)",
        "more arrivals|deadlock",
    ),
    Bug(
        "one of two warpgroups releases a stage",
        RUN,
        "feed.init(Tile::kTurns ? 4 : 8)",
        "feed.init(4)",
        "more arrivals|shared memory race|deadlock",
        BOTH,
    ),
    Bug(
        "one of four warps releases a stage",
        RUN,
        "feed.init(Tile::kTurns ? 4 : 8)",
        "feed.init(Tile::kTurns ? 1 : 2)",
        "more arrivals|shared memory race|deadlock",
    ),
    Bug(
        "one warp of four speaks",
        RUN,
        "speaks = threadIdx.x % 32 == 0",
        "speaks = threadIdx.x % 128 == 0",
        "deadlock",
    ),
    Bug(
        "the round does not change",
        RING,
        "        parity ^= 1;\n",
        "",
        "in flight|deadlock|uninitialised|more arrivals",
    ),
    Bug("barriers are not fenced", RING, "        barrier_fence();\n", "", "initialisation was not fenced"),
    Bug(
        "barriers are used before they are there",
        RUN,
        "    __syncthreads();\n    if (threadIdx.x / 128 == 2)",
        "    if (threadIdx.x / 128 == 2)",
        "mbarrier used before|not fenced|race",
        Trial(seeds=range(9)),
    ),
    Bug(
        "stages do not begin at a multiple of 1024 bytes",
        "conv/wgmma/slices.cu",
        "run_wgmma<Tile, false>(p, &p.problem.taps, Feed(shared), shared",
        "run_wgmma<Tile, false>(p, &p.problem.taps, Feed(shared + 512), shared + 512",
        "trap",
    ),
    Bug("too many bytes are expected", LOAD, FETCHED, FETCHED.replace("Bytes)", "Bytes + 128)"), "deadlock"),
    Bug(
        "too few bytes are expected",
        LOAD,
        FETCHED,
        FETCHED.replace("Bytes)", "Bytes - 128)"),
        "more arrivals|in flight|deadlock|uninitialised",
    ),
    # ---- warpgroups in turns
    Bug(
        "too few slices of the other are left out",
        SLICES,
        "ring.skip(item.slices);",
        "ring.skip(item.slices - 1);",
        f"deadlock|{WRONG}|more arrivals|race|in flight",
    ),
    Bug(
        "warpgroups do not wait for their turn",
        RUN,
        "if (TURNS && item > 0) synchronise",
        "if (false) synchronise",
        f"deadlock|{WRONG}|more arrivals|race|in flight",
    ),
    Bug(
        "a warpgroup never says that it is the other's turn",
        RUN,
        "if (TURNS && more) arrive_at",
        "if (false) arrive_at",
        "deadlock",
    ),
    # ---- products
    Bug("products begin unfenced", SLICES, "            products_begin();\n", "", r"without wgmma\.fence"),
    Bug("rows of eight are too near", HOPPER, "(BYTES / 2) << 32", "(BYTES / 4) << 32", WRONG),
    Bug("steps along K are too long", TILE, "k * 32", "k * 64", f"{WRONG}|outside shared|uninitialised"),
    Bug(
        "both warpgroups multiply the same rows",
        TILE,
        "weights + warpgroup() * (kRowsOfGroup * SLICE)",
        "weights",
        WRONG,
        BOTH,
    ),
    Bug("sums of the tile before stay", RUN, "        tile.clear();\n", "", f"{WRONG}|uninitialised"),
    Bug(
        "sums are read while products run",
        RUN,
        "        products_wait<0>();\n",
        "",
        "sums of a wgmma that is not waited for",
    ),
    Bug("more registers are taken than there are", RUN, "take_registers<232>", "take_registers<240>", "deadlock"),
    # ---- where slices come from
    Bug(
        "what is no map is prefetched",
        RUN,
        "prefetch_map(p.w_map)",
        "prefetch_map(reinterpret_cast<const CUtensorMap*>(&p)[2])",
        "not a tensor map",
    ),
    Bug(
        "windows begin at the padding's end",
        LOAD,
        "common.stride[2 - axis] + loading.lower[2 - axis];",
        "common.stride[2 - axis];",
        WRONG,
    ),
    Bug(
        "offsets of H and W are exchanged",
        HOPPER,
        OFFSETS,
        OFFSETS.replace("[0]", "[2]").replace("[1]", "[0]").replace("[2]", "[1]"),
        WRONG,
    ),
    Bug(
        "taps are not counted from the corner",
        LOAD,
        "* taps.advance[2 - axis] - loading.lower[2 - axis];",
        "* taps.advance[2 - axis];",
        f"{WRONG}|offset .* out of range",
    ),
    Bug(
        "all taps have the weights of the first",
        LOAD,
        "tap_row(taps, slice.tap) + slice.channel",
        "slice.channel",
        WRONG,
    ),
    Bug("all groups have the weights of the first", LOAD, "item.group * loading.parts +", "0 *", WRONG, GROUPS),
    Bug("all groups have the inputs of the first", LOAD, "item.group * loading.x_group +", "", WRONG, GROUPS),
    Bug(
        "the small part of weights is left out",
        ITEMS,
        "return loading.parts == 2 && product == 0;",
        "return 0;",
        WRONG,
        IN_PARTS,
    ),
    Bug("the small part of inputs is left out", ITEMS, "return product == 1;", "return 0;", WRONG, IN_PARTS),
    Bug(
        "two products of three are made",
        ITEMS,
        "loading.parts == 2 ? 3 : 1",
        "loading.parts == 2 ? 2 : 1",
        WRONG,
        IN_PARTS,
    ),
    Bug(
        "the next tap begins at the second slice",
        ITEMS,
        "        channel = 0;\n        bool carry",
        "        bool carry",
        WRONG,
    ),
    Bug("taps of all phases are those of the first", LOAD, "phases[item.phase]", "phases[0]", WRONG, PHASES),
    Bug(
        "taps of phases are read before they are there",
        RUN,
        "    __syncthreads();\n    if (threadIdx.x / 128 == 2)",
        "    if (threadIdx.x == 0) __threadfence_block();\n    if (threadIdx.x / 128 == 2)",
        "race|uninitialised|mbarrier used",
        PHASES,
    ),
    # ---- splits
    Bug(
        "splits begin at the first slice",
        ITEMS,
        "item.first_slice = each * item.split;",
        "item.first_slice = 0;",
        WRONG,
        SPLITS,
    ),
    Bug(
        "the last split is as long as the others",
        ITEMS,
        "max(0, min(each, all - item.first_slice))",
        "each",
        f"{WRONG}|out of bounds",
        SPLIT_PHASES,
    ),
    Bug(
        "a share arrives before all have left their sums",
        SPLIT,
        "    These::wait();               // all have written, and have read the last answer\n",
        "",
        f"race|{WRONG}|uninitialised",
        SPLITS_OF_BOTH,
    ),
    Bug(
        "an answer is read before it is there",
        SPLIT,
        "    These::wait();\n    return *answer",
        "    return *answer",
        "race|uninitialised",
        SPLITS,
    ),
    Bug(
        "sums are not published",
        SPLIT,
        "        __threadfence();\n        *answer",
        "        *answer",
        "race between blocks",
        SPLITS,
    ),
    Bug(
        "the last does not look at memory anew",
        SPLIT,
        "== all - 1;\n        __threadfence();\n",
        "== all - 1;\n",
        "race between blocks",
        SPLITS,
    ),
    Bug("the last but one adds up", SPLIT, "== all - 1", "== all - 2", f"{WRONG}|race|uninitialised", SPLITS),
    Bug(
        "both warpgroups leave their sums in one place",
        SPLIT,
        "kThreads = TURNS ? 128 : 256;",
        "kThreads = 128;",
        f"{WRONG}|deadlock|race|out of bounds|uninitialised|different thread counts",
        SPLITS_OF_BOTH,
    ),
    Bug(
        "a split too many is added up",
        PARTS,
        "split < splits;",
        "split <= splits;",
        f"{WRONG}|uninitialised|out of bounds",
        TWO_LAUNCHES,
    ),
)


@pytest.mark.parametrize("bug", first_of_each(BUGS, report), ids=lambda bug: bug.name)
def test_a_bug_is_noticed(bug: Bug) -> None:
    text = exchanged(bug.path, bug.old, bug.new)
    with pytest.raises(AssertionError, match=bug.message), changed_kernels({bug.path: text}):
        bug.trial.run()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TRIALS)
def test_without_a_bug_it_is_right(name: str) -> None:
    TRIALS[name].run()


# ---------------------------------------------------------------- bits


def bits_by_blocks() -> list[bytes]:
    """The same problem's bits with tiles' shares arriving in other orders: those of one block, and of others."""
    trial = Trial(call=SPLITS.call, integers=False, dtype=np.dtype("float16"))
    calls = (Call(TURNS, blocks=blocks, whole=0, splits=4) for blocks in (1, 2, 3, 5))
    return [trial.run(call).tobytes() for call in calls]


def test_sums_do_not_depend_on_who_arrives_last() -> None:
    assert len(set(bits_by_blocks())) == 1


def test_sums_in_the_order_of_arrival_are_noticed() -> None:
    """Of sums that each block adds up beginning with its own."""
    old, new = "const Acc* source = of(split);", "const Acc* source = of((split + block_number()) % splits);"
    with changed_kernels({PARTS: exchanged(PARTS, old, new)}):
        assert len(set(bits_by_blocks())) > 1


# ---------------------------------------------------------------- what other kernels and the host prepare


def _filled_without_padding(make: Callable[..., Any], array: Any, name: str, *more: Any, **keywords: Any) -> Any:
    made = make(array, name, *more, **keywords)
    if name == "x_last":
        made.states = np.full(made.size, 2, np.uint8)
        made.element_states()[..., 72:, :] = UNWRITTEN
    return made


def test_channels_that_the_copy_of_x_leaves_out_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wgmma_launch, "Array", partial(_filled_without_padding, Array))
    trial = Trial("conv", np.dtype("float32"), 2, call=GROUPS.call)
    with pytest.raises(AssertionError, match="uninitialised global read of x_last"):
        trial.run()


def test_a_corner_that_is_one_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = wgmma_launch._reach
    monkeypatch.setattr(wgmma_launch, "_reach", lambda found, axis: right(found, axis) + (axis == 0))
    with pytest.raises(AssertionError, match=f"{WRONG}|offset .* out of range"):
        ONE.run()
