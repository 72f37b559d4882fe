"""Faults of kernels, such as races and reads of unwritten memory: each is reported, and a correct kernel is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulated_cuda.emulator.engine import EmulatorError, module
from emulated_cuda.emulator.memory import Array, empty
from own_kernels import compile_ptx

pytestmark = pytest.mark.emulator


def kernel(name: str, *defines: str) -> Any:
    return module(compile_ptx("faults", "sm_80", defines))[name]


def zeros(count: int, dtype: Any = np.float32) -> Array:
    return Array(np.zeros(count, dtype), "y")


@pytest.mark.parametrize(
    ("name", "blocks", "threads", "dtype", "message"),
    [
        ("reads_unwritten_shared", 1, 64, "f4", "uninitialised shared memory read"),
        ("stores_misaligned", 1, 2, "f4", "misaligned 16-byte access .* thread 1"),
        ("waits_in_divergent_code", 1, 32, "f4", "reached by only some lanes"),
        ("exchanges_in_a_warp", 1, 32, "i4", "shared memory race: read after write"),
        ("exchanges_in_a_block", 1, 64, "i4", "shared memory race: (write after read|read after write)"),
        ("overruns_a_variable", 1, 16, "f4", "outside every variable"),
        ("blocks_write_the_same", 2, 32, "f4", "race between blocks on y"),
        ("exchanges_in_global_memory", 1, 32, "i4", "race within a block on y"),
        ("shuffles_with_absent_lanes", 1, 32, "i4", "reached by only some lanes"),
        ("shuffles_from_an_absent_lane", 1, 32, "i4", "reads lane 20, which does not take part"),
        ("waits_for_nobody", 1, 64, "i4", "deadlock in block .*\n  warp 0 waits at barrier 1"),
        ("traps", 1, 32, "i4", "trap or device-side assert.* thread 5"),
    ],
)
def test_a_fault_is_reported(name: str, blocks: int, threads: int, dtype: str, message: str) -> None:
    y = zeros(64, dtype)
    y.data[5] = 3
    with pytest.raises(EmulatorError, match=f"(?s){name}: .*{message}"):
        kernel(name)(blocks, threads, [y])


def test_lanes_see_in_global_memory_what_others_wrote_before_a_barrier() -> None:
    y = zeros(64, np.int32)
    kernel("exchanges_in_global_memory", "SYNCHRONISED")(1, 32, [y])
    np.testing.assert_array_equal(y.data[32:], np.arange(31, -1, -1))


MEETS_BACK = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry meets_back(.param .u64 y)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [y];
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 8;
    @%p1 bra $far;
$meet:
    bar.sync 0;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r1;
    ret;
$far:
    bra.uni $meet;
}
"""


def test_lanes_that_come_to_a_barrier_from_behind_it_are_waited_for() -> None:
    y = zeros(32, np.int32)
    module(MEETS_BACK)["meets_back"](1, 32, [y])
    assert y.data.tolist() == list(range(32))


def test_a_report_names_the_source_line_the_block_and_the_thread() -> None:
    with pytest.raises(
        EmulatorError, match=r"at faults\.cu:12 .*\[st\.global\.v4.*\n  block \(0,0,0\) warp 0 thread 1"
    ):
        kernel("stores_misaligned")(1, 2, [zeros(64)])


@pytest.mark.parametrize("size", [31, 1, 0])
def test_one_element_too_far_is_out_of_bounds(size: int) -> None:
    x, y = Array(np.zeros(32, np.float32), "x"), zeros(size)
    with pytest.raises(
        EmulatorError,
        match=f"write of 4 bytes at byte {4 * size} of y, which has {4 * size}|write of 4 bytes at address",
    ):
        kernel("copies")(1, 32, [x, y])
    kernel("copies")(1, 32, [x, zeros(32)])


def test_inputs_cannot_be_written() -> None:
    with pytest.raises(EmulatorError, match="write to read-only array x"):
        kernel("writes_its_input")(1, 32, [Array(np.zeros(32, np.float32), "x", writable=False)])


def test_memory_without_a_value_cannot_be_read() -> None:
    workspace = empty(32, np.float32, "workspace")
    with pytest.raises(EmulatorError, match="uninitialised global read of workspace"):
        kernel("copies")(1, 32, [workspace, zeros(32)])
    kernel("copies")(1, 32, [Array(np.ones(32, np.float32), "x"), workspace])
    y = zeros(32)
    kernel("copies")(1, 32, [workspace, y])  # now it has one
    assert (y.data == 1).all()


def test_dynamic_shared_memory_ends_where_the_launch_says() -> None:
    with pytest.raises(EmulatorError, match="shared memory out of bounds: 4 bytes at offset 128, block has 128"):
        kernel("uses_dynamic_shared")(1, 64, [zeros(64)], shared_bytes=128)
    kernel("uses_dynamic_shared")(1, 64, [zeros(64)], shared_bytes=256)


def test_an_endless_loop_ends() -> None:
    with pytest.raises(EmulatorError, match="instruction limit reached"):
        kernel("never_ends")(1, 1, [zeros(1, np.int32)], max_steps=50_000)


def test_copies_must_be_waited_for() -> None:
    x = Array(np.arange(64, dtype=np.float32), "x")
    with pytest.raises(EmulatorError, match="an asynchronous copy is in flight"):
        kernel("copies_asynchronously")(1, 16, [x, zeros(64)])
    with pytest.raises(EmulatorError, match=r"exits with cp\.async still in flight"):
        kernel("leaves_copies_in_flight")(1, 16, [x])


@pytest.mark.parametrize("late_async", [True, False])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_same_kernels_without_their_faults_are_right(seed: int, late_async: bool) -> None:
    options = {"seed": seed, "late_async": late_async}
    y = zeros(64, np.int32)
    kernel("exchanges_in_a_warp", "SYNCHRONISED")(1, 32, [y], **options)
    assert (y.data[:32] == np.arange(32) ^ 1).all()
    kernel("exchanges_in_a_block", "SYNCHRONISED")(1, 64, [y], **options)
    assert (y.data == 64 - np.arange(64)).all()
    total = zeros(32)
    kernel("blocks_add_atomically")(3, 32, [total], **options)
    assert (total.data == 3).all()
    x, copied = Array(np.arange(64, dtype=np.float32), "x"), zeros(64)
    kernel("copies_asynchronously", "SYNCHRONISED")(1, 16, [x, copied], **options)
    assert (copied.data == (np.arange(64) + 32) % 64).all()


# ---------------------------------------------------------------- blocks that wait for no one, but know who is last

RACE = "global memory race between blocks on parts"


def add_parts(name: str, *defines: str, width: int = 64, **options: Any) -> Any:
    ticket, parts, y = zeros(1, np.int32), zeros(5 * width, np.int32), zeros(width, np.int32)
    parts.name = "parts"
    kernel(name, *defines)(5, width, [ticket, parts, y], **options)
    return y.data


@pytest.mark.parametrize(
    "defines",
    [
        ("PUBLISHES=",),
        ("LEARNS=",),
        ("ALL_WROTE=",),
        ("PUBLISHES=__threadfence_block()",),
        ("LEARNS=__threadfence_block()",),
        ("ARRIVES(T)=(atomicAdd(T,0),4)",),  # it does not know whether it is the last one
    ],
    ids=str,
)
def test_parts_of_other_blocks_are_not_known_yet(defines: tuple[str, ...]) -> None:
    with pytest.raises(EmulatorError, match=RACE):
        add_parts("last_block_adds", *defines, seed=1)


@pytest.mark.parametrize("options", [{"seed": seed} for seed in range(5)] + [{"threads": 3}], ids=str)
def test_the_last_block_knows_all_parts(options: dict[str, int]) -> None:
    expected = 1000 + 5 * ((np.arange(64) + 1) % 64)
    assert (add_parts("last_block_adds", **options) == expected).all()
    assert (add_parts("last_warp_adds", "SYNCHRONISED", width=32, **options) == 5).all()


def test_a_fence_is_of_the_thread_that_makes_it() -> None:
    with pytest.raises(EmulatorError, match=RACE):
        add_parts("last_warp_adds", width=32)


def test_blocks_run_in_the_order_of_the_seed() -> None:
    orders = set()
    for seed in range(4):
        y = zeros(8, np.int32)
        kernel("notes_its_turn")(8, 1, [zeros(1, np.int32), y], seed=seed)
        assert sorted(y.data) == list(range(8))
        orders.add(tuple(y.data.tolist()))
    assert tuple(range(8)) in orders  # without a seed
    assert len(orders) == 4


@pytest.mark.parametrize("threads", [2, 3])
def test_several_host_threads_give_the_same(threads: int) -> None:
    total = zeros(32)
    kernel("blocks_add_atomically")(500, 32, [total], threads=threads)
    assert (total.data == 500).all()
    with pytest.raises(EmulatorError, match="race between blocks on y"):
        kernel("blocks_write_the_same")(64, 32, [zeros(32)], threads=threads)


def test_without_the_checks_faults_show_in_results_only() -> None:
    y = zeros(64, np.int32)
    kernel("exchanges_in_a_block")(1, 64, [y], check_shared=False)
    kernel("blocks_write_the_same")(2, 32, [zeros(64)], check_global=False)
    with pytest.raises(EmulatorError, match="out of bounds"):
        kernel("copies")(1, 32, [zeros(32), zeros(31)], check_shared=False, check_global=False)
