"""Loads, stores, copies, matrix and warp instructions give NumPy's results; counters match values computed by hand."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from emulated_cuda.emulator.engine import Options, module
from emulated_cuda.emulator.memory import Array, empty
from own_kernels import compile_ptx

pytestmark = pytest.mark.emulator
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def bytes_of(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def test_a_struct_is_read_in_pieces_and_by_index(architecture: str) -> None:
    struct = np.zeros(
        (),
        np.dtype(
            [
                ("bytes", "<u8"),
                ("y", "<u8"),
                ("size", "<i4", 3),
                ("divider", "<u4", (2, 3)),
                ("scale", "<f8"),
                ("tail", "<i2", 3),
            ],
            align=True,
        ),
    )
    index, y = Array(np.array([2, 0, 1, 1], np.int8), "bytes"), empty(4, np.int64, "y")
    struct["bytes"], struct["y"], struct["scale"] = index.address, y.address, 1e6
    struct["size"], struct["divider"], struct["tail"] = [10, 20, 30], [[1, 100, 2], [3, 4000, 4]], [-1, -2, -3]
    program = module(compile_ptx("memory", architecture))["reads_a_struct"]
    assert program.kernel.parameter_bytes == struct.nbytes
    program.launch((1, 1, 1), (4, 1, 1), 0, struct.tobytes(), [index, y], Options())
    assert y.data.tolist() == [1_000_127, 1_000_109, 1_004_018, 1_004_018]


def test_an_array_of_one_thread_lives_in_local_memory(architecture: str) -> None:
    program = module(compile_ptx("memory", architecture))["uses_local_memory"]
    assert program.kernel.local_bytes >= 64
    y = empty(32, np.int32, "y")
    program(1, 32, [Array(np.array([3], np.int32), "x"), y])
    expected = np.zeros(16, np.int32)
    for i in range(16):
        expected[(5 * i + 3) % 16] = i * i
    assert (y.data == np.tile(expected, 2)).all()


@pytest.mark.parametrize(
    ("name", "size"),
    [("by_1", 1), ("by_2", 2), ("by_4", 4), ("by_8", 8), ("by_2x4", 8), ("by_4x4", 16), ("by_2x8", 16)],
)
def test_bytes_pass_through_registers_of_every_width(architecture: str, name: str, size: int) -> None:
    x, y = bytes_of(480), empty(480, np.uint8, "y")
    module(compile_ptx("memory", architecture))[name](1, 32, [Array(x, "x"), y, 480], shared_bytes=480)
    assert (y.data.reshape(-1, size) == x.reshape(-1, size)[::-1]).all()


def test_narrow_loads_spread_the_sign_of_signed_types_only(architecture: str) -> None:
    a, b, c, d = (
        bytes_of(64, seed)[: 32 * size].view(f"{kind}{size}")
        for seed, kind, size in ((1, "i", 1), (2, "u", 1), (3, "i", 2), (4, "u", 2))
    )
    y = empty(32, np.int64, "y")
    module(compile_ptx("memory", architecture))["widens"](1, 32, [*(Array(x, "x") for x in (a, b, c, d)), y])
    a, b, c, d = (x.astype(np.int64) for x in (a, b, c, d))
    assert (y.data == a + 1000 * b + 10**6 * c + 10**12 * d).all()


@pytest.mark.parametrize("late_async", [True, False])
@pytest.mark.parametrize("size", [4, 8, 16])
def test_asynchronous_copies_fill_up_with_zeros_and_read_nothing_for_0_bytes(size: int, late_async: bool) -> None:
    x = bytes_of(32 * size)
    given = np.where(np.arange(32) % 3 == 0, 0, np.arange(32) % (size + 1)).astype(np.int32)
    y = empty(32 * size, np.uint8, "y")
    module(compile_ptx("memory", "sm_80"))[f"copy_{size}"](
        1, 32, [Array(x, "x"), Array(given, "given"), y], late_async=late_async
    )
    kept = np.arange(size) < given[:, None]
    assert (y.data.reshape(32, size) == np.where(kept, x.reshape(32, size), 0)).all()


def test_variables_of_a_module_have_their_values(architecture: str) -> None:
    y = empty(4, np.float32, "y")
    module(compile_ptx("memory", architecture))["reads_variables"](1, 4, [y])
    assert y.data.tolist() == [7, 14, 21, 28]


def test_ldmatrix_deals_out_rows_or_columns(architecture: str) -> None:
    x = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    y = empty((2, 4, 8, 8), np.uint16, "y")
    module(compile_ptx("memory", architecture))["matrices"](1, 32, [Array(x, "x"), y])
    assert (y.data[0] == x).all()
    assert (y.data[1] == x.transpose(0, 2, 1)).all()


def test_a_matrix_product_of_bfloat16_is_exact_for_small_integers(architecture: str) -> None:
    generator = np.random.default_rng(0)
    a, b = generator.integers(-9, 10, (16, 16)), generator.integers(-9, 10, (16, 8))
    d = empty((16, 8), np.float32, "d")
    arguments = [Array(a.astype(ml_dtypes.bfloat16), "a"), Array(b.T.astype(ml_dtypes.bfloat16, order="C"), "b"), d]
    module(compile_ptx("memory", architecture))["multiplies"](1, 32, arguments)
    assert (d.data == a @ b).all()


@pytest.mark.parametrize("seed", [0, 3])
def test_lanes_and_threads_talk(architecture: str, seed: int) -> None:
    y, sums = empty((15, 64), np.int32, "y"), empty(64, np.float32, "sums")
    module(compile_ptx("warps", architecture))["talks"](1, 64, [y, sums], seed=seed)
    t = np.arange(64)
    lane, warp = t % 32, t // 32
    expected = [
        np.array([*(sum(range(r, 64, 8)) for r in range(8)), 63])[t % 9],
        np.full(64, np.array(0xAAAAAAAA, np.uint32).view(np.int32)),
        warp == 0,
        warp == 0,
        np.where(lane < 31, t + 1, t),
        np.where(lane >= 2, t - 2, t),
        t ^ 5,
        t // 8 * 8 + 3,
        np.where(warp == 0, sum(range(32)), sum(range(32, 64))),
        np.full(64, 31),
        np.full(64, 22),
        np.zeros(64),
        np.ones(64),
        np.array([0, 0, 1, 3, 6])[t % 5] + np.array([100, 300, 700, 1500])[t % 4],
        np.where(lane < 7, 32 * warp + 6, 1),
    ]
    wrong = [
        row
        for row, values in enumerate(expected)
        if not (np.where(row in (2, 3, 11, 12), y.data[row] != 0, y.data[row]) == values).all()
    ]
    assert wrong == []
    assert (sums.data == 32).all()


# ---------------------------------------------------------------- counters


def counted(name: str, *arrays: Array) -> Any:
    return module(compile_ptx("counters"))[name](1, 32, arrays, counters=True)


def test_a_column_in_one_bank_takes_32_wavefronts() -> None:
    counters = counted("column_of_32", empty(32, np.float32, "y"))
    assert set(counters.conflicts().values()) == {(32, 1)}
    assert [line.split(".cu:")[1] for line in counters.conflicts()] == ["5", "7"]
    assert counters.total["shared_requests"] == 2


def test_padding_by_one_word_frees_the_banks() -> None:
    counters = counted("column_of_33", empty(32, np.float32, "y"))
    assert counters.conflicts() == {}
    assert counters.total["shared_wavefronts"] == 2


def test_vectors_of_16_bytes_take_four_wavefronts_without_conflicts() -> None:
    counters = counted("vectors", empty((32, 4), np.float32, "y"))
    assert counters.conflicts() == {}
    assert counters.total["shared_wavefronts"] == 8
    assert (counters.total["global_sectors"], counters.total["global_ideal"]) == (16, 16)


def test_a_stride_of_a_sector_reads_eight_times_too_much() -> None:
    counters = counted("strided", Array(np.zeros(256, np.float32), "x"), empty(32, np.float32, "y"))
    assert list(counters.scattered().values()) == [(32, 4)]
    assert counters.total["global_sectors"] == 32 + 4
