"""Kernels are right in every schedule: all orders of a small TMA ring, and schedules that favour or starve one warp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from emulated_cuda.emulator.engine import Explored
from tests.emulator import Array, EmulatorError, TensorMap, compile_ptx, empty, module
from tests.harness.changed_kernels import changed_kernels, exchanged
from tests.kernels import convolutions, wgmma
from tests.kernels.registry import sources_of

pytestmark = pytest.mark.emulator

# ---------------------------------------------------------------- every order of a ring


def explore(stages: int, *defines: str, items: int | None = None, **options: Any) -> Explored:
    """Run the ring with two consumer warps in all orders of its events; check its sums."""
    items = items or 2 * stages + 1
    rows = np.random.default_rng(0).integers(-9, 10, (items, 32)).astype(np.float32)
    x, y = Array(rows.reshape(1, 1, items, 32), "x", writable=False), empty(64, np.float32, "y")
    text = compile_ptx("ring", "sm_90a", (f"RING_STAGES={stages}", f"RING_ITEMS={items}", *defines))
    found = module(text)["passes_rows"].explore(96, [TensorMap(x, (1, 1, 1, 32), swizzle=0), y], **options)
    lanes = np.arange(64) % 32
    if found.complete:
        assert (y.data == sum(rows[item][lanes ^ item] for item in range(items))).all()
    return found


@pytest.mark.parametrize("stages", [2, 3])
def test_a_ring_is_right_in_every_order(stages: int) -> None:
    found = explore(stages)
    assert found.complete
    assert found.states > 1000
    assert found.steps > 2 * found.states, "mostly several warps and copies can go on"


def test_orders_are_those_of_two_warps_that_pass_nothing_on() -> None:
    source = """
    extern "C" __global__ void counts(int* y)
    {
        for (int i = 0; i < 3; ++i) asm volatile("bar.arrive %0, 64;" ::"r"(1 + threadIdx.x / 32 * 8 + i) : "memory");
        y[threadIdx.x] = threadIdx.x;
    }
    """
    program = module(compile_ptx("counts", "sm_80", (), source))["counts"]
    found = program.explore(64, [empty(64, np.int32, "y")])
    # Each warp is in one of five states: before each of its three events, before its exit, and after it.
    assert (found.states, found.steps, found.ends, found.complete) == (24, 40, 2, 1)


def test_a_search_ends_where_it_is_told() -> None:
    found = explore(3, limit=100)
    assert not found.complete
    assert found.states <= 200


RELEASE = "barrier_arrive(ring.empty());"


@pytest.mark.parametrize(
    ("defines", "message"),
    [
        (("WAIT_EMPTY=",), "more arrivals at mbarrier|in flight|write after read"),
        (("WAIT_FULL=",), "in flight|uninitialised|more arrivals"),
        (("RING_READERS=1",), "more arrivals|in flight|write after read|deadlock"),
        (("RING_BYTES=64",), "in flight|deadlock|more arrivals|bytes outstanding"),
        (("RING_BYTES=256",), "deadlock"),
        (("WAIT_FULL=barrier_wait(ring.full(), ring.parity ^ 1)",), "in flight|uninitialised|deadlock"),
        (("WAIT_FULL=barrier_wait(ring.barriers, ring.parity)",), "in flight|read after write|uninitialised"),
        (("READS=", "RELEASES="), "deadlock"),
        ((f"RELEASES=proxy_fence(); if (lane == 0) {RELEASE}",), "write after read"),
        ((f"RELEASES=__syncwarp(); if (lane == 0) {RELEASE}",), r"without fence\.proxy\.async"),
        ((f"RELEASES=__syncwarp(); if (lane == 0) {{ proxy_fence(); {RELEASE} }}",), ""),
        ((f"RELEASES=__syncwarp(); if (lane == 0) {{ {RELEASE} proxy_fence(); }}",), r"without fence\.proxy\.async"),
        ((f'RELEASES=asm volatile("fence.proxy.alias;" ::: "memory"); __syncwarp(); if (lane == 0) {RELEASE}',),
         r"without fence\.proxy\.async"),
        ((f"READS=proxy_fence(); __syncwarp(); if (lane == 0) {RELEASE} sum += row[lane ^ item];", "RELEASES="),
         "write after read|in flight"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)  # fmt: skip
def test_what_a_ring_forgets_is_found(defines: tuple[str, ...], message: str) -> None:
    if not message:
        assert explore(2, *defines).complete
        return
    with pytest.raises(EmulatorError, match=message):
        explore(2, *defines)


# ---------------------------------------------------------------- gpuconv's kernels, with one warp favoured or starved

WARPS = 12  # of a block of a wgmma kernel
SCHEDULES = (
    *(("first", warp) for warp in range(WARPS)),
    *(("last", warp) for warp in range(WARPS)),
    ("backwards", 0),
    *(("changing", seed) for seed in range(1, 9)),
)
FEWER = (("first", 0), ("last", 0), ("backwards", 0), ("changing", 1), ("changing", 2))
SMALL = (*convolutions.TENSOR, *convolutions.GROUPED, *convolutions.STEMS, *convolutions.BANDS)
ROWS: list[Any] = [
    pytest.param(one, *row, marks=pytest.mark.kernels(*sources_of(one)), id=f"{one.kernel} {row}")
    for those, rows in ((wgmma.WGMMA, SCHEDULES), (SMALL, FEWER))
    for one in those
    for row in rows
]


@pytest.mark.sampled(200)
@pytest.mark.parametrize(("call", "schedule", "seed"), ROWS)
def test_kernels_are_right_whichever_warp_goes_first(call: Callable[..., Any], schedule: str, seed: int) -> None:
    call(None, schedule=schedule, seed=seed)


BEFORE_ROLES = "    __syncthreads();\n    if (threadIdx.x / 128 == 2)"


@pytest.mark.usefixtures("cache_of_broken_kernels")
def test_some_faults_need_an_order() -> None:
    path = "conv/wgmma/run.cuh"
    text = exchanged(path, BEFORE_ROLES, BEFORE_ROLES.removeprefix("    __syncthreads();\n"))
    with changed_kernels({path: text}):
        wgmma.WIDE(schedule="first", seed=0)  # warp 0 initialises the mbarriers
        with pytest.raises(EmulatorError, match=r"mbarrier used before mbarrier\.init"):
            wgmma.WIDE(schedule="backwards")
