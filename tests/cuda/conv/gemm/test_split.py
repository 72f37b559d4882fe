"""Tiles that several blocks compute: when, how, and the same bits for any order of the blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.conv.gemm import ffma, mma
from gpuconv.cuda.conv.gemm import split as split_k
from gpuconv.cuda.conv.gemm.split import Divisible
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.launch import Plan
from tests.emulator import emulated_cuda
from tests.harness.changed_kernels import changed_kernels, exchanged
from tests.harness.emulated import indices, preferred
from tests.harness.plans import HOPPER, fields, plan, problem
from tests.oracle import oracle

SMALL = (1, 256, 7, 7), (256, 256, 3, 3)  # one tile of pixels, four of channels, 144 slices of K
KERNEL = "conv_float32_3d_64x64x16_uniform_split"
TRANSPOSED = "conv_transpose_float32_3d_64x64x16_uniform_split"


def split(x_shape: Any, w_shape: Any, operator: str = "conv", kernel: str = "_split", **more: Any) -> Plan | None:
    with preferred(kernel):
        made = plan(operator, x_shape, w_shape, **more)
    return made if kernel in made.kernel else None


# ---------------------------------------------------------------- plans


def test_the_last_block_of_a_tile_adds_up() -> None:
    made = split(*SMALL, pads=[1] * 4, bias=True, kernel=KERNEL)
    assert made is not None
    pack, gemm = made.launches
    assert fields(pack)["tickets"]["count"] == 4
    splits = fields(gemm)["splits"]
    count = splits["count"]
    assert splits == {"workspace": 0, "count": count, "whole": 0, "ticket_bytes": 16, "part": 0}
    assert gemm.grid == (4 * count, 1, 1)
    assert made.bytes_of("workspace") == 16 + 4 * count * 64 * 64 * 4
    assert [role for role, _ in pack.pointers] == ["w", "packed", "workspace"]
    assert sorted(role for role, _ in gemm.pointers) == ["b", "packed", "workspace", "x", "y"]
    assert f"each tile's K in {count} splits: 4 tiles are few for 132 multiprocessors" in made.reasons


def test_calls_that_share_packed_weights_add_up_in_a_second_launch() -> None:
    made = split(*SMALL, pads=[1] * 4, kernel=KERNEL)
    assert made is not None
    pack, sums, totals = made.sharing
    assert (pack.packs, fields(pack)["tickets"]["count"]) == (True, 0)
    assert [fields(launch)["splits"]["part"] for launch in (sums, totals)] == [1, 2]
    assert sums.grid == made.launches[-1].grid
    assert totals.grid == (4, 1, 1)
    assert sums.variant == totals.variant == made.launches[-1].variant


@pytest.mark.parametrize(
    ("operator", "channels", "kernel", "family", "label", "slices", "most"),
    [
        ("conv", 64, (3, 3), mma, "64x64x32_scalar", 18, 18),  # slices of 32 channels of a tap
        ("conv", 72, (3, 3), mma, "64x64x32_scalar", 27, 27),
        ("conv", 72, (3, 3), mma, "64x64x64_vector", 18, 18),
        ("conv_transpose", 72, (1, 3), mma, "64x64x32_scalar", 3 * 3 / 2, 2 * 3),  # phases of one tap, and of two
        ("conv_transpose", 72, (3, 3), mma, "64x64x32_scalar", 3 * 9 / 4, 4 * 3),
        ("conv", 64, (3, 3), ffma, "64x64x16_uniform", 36, 36),
        ("conv_transpose", 64, (1, 3), ffma, "64x64x16_uniform", 4 * 3 / 2, 4 * 2),
        ("conv_transpose", 64, (3, 3), ffma, "64x64x16_uniform", 4 * 9 / 4, 4 * 4),
    ],
)
def test_slices_of_a_tile_are_counted_tap_by_tap(
    operator: str,
    channels: int,
    kernel: Any,
    family: Any,
    label: str,
    slices: float,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strides = [1 if size == 1 or operator == "conv" else 2 for size in kernel]
    dtype = "float16" if family is mma else "float32"
    w = (64, channels) if operator == "conv" else (channels, 64)
    layout = "NHWC" if family is mma else "NCHW"
    one = problem(operator, (1, channels, 9, 9), (*w, *kernel), dtype, layout=layout, strides=strides)
    parted: list[Divisible] = []
    with monkeypatch.context() as patch:
        patch.setattr(split_k, "candidates", lambda divisible, limits: parted.extend(divisible) or ())
        assert list(family.offers(one, HOPPER))
    name = f"{operator}_{dtype}_3d_{'mma_' * (family is mma)}{label}"
    (found,) = (whole for whole in parted if whole.variant.name == name)
    assert (found.slices, found.most_slices) == (slices, most)


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "more"),
    [
        ((1, 16, 7, 7), (256, 16, 1, 1), {}),  # one slice
        ((8, 256, 112, 112), (256, 256, 3, 3), {}),  # tiles for many waves of blocks
        ((1, 256, 96, 88), (256, 256, 1, 1), {}),  # one tile for each multiprocessor, or four small ones
        ((1, 32, 2, 3, 2, 2), (8, 32, 2, 2, 2, 2), {}),  # four axes
        ((1, 32, 9), (8, 32, 3), {"x_strides": (2**31, 9, 1)}),  # 64-bit indices
    ],
)
def test_others_are_not_split(x_shape: Any, w_shape: Any, more: dict[str, Any]) -> None:
    if "x_strides" in more:
        x_shape = (2, *x_shape[1:])
    assert split(x_shape, w_shape, **more) is None


def test_the_fewer_the_tiles_the_more_the_splits() -> None:
    made = [split((1, 256, side, side), (256, 256, 3, 3), pads=[1] * 4, kernel=KERNEL) for side in (7, 14)]
    counts = [one and fields(one.launches[-1])["splits"]["count"] for one in made]
    assert counts == [12, 8]  # of 4 and 16 tiles for 132 multiprocessors


def test_tiles_that_fill_all_multiprocessors_stay_whole() -> None:
    """Of 200 tiles, 68 are split, so that their blocks fill whole waves again, or almost."""
    made = split((32, 512, 7, 7), (512, 512, 3, 3), pads=[1] * 4, kernel=KERNEL)
    assert made is not None
    pack, gemm = made.launches
    splits = fields(gemm)["splits"]
    blocks = 68 * splits["count"]
    assert (splits["whole"], splits["ticket_bytes"], fields(pack)["tickets"]["count"]) == (132, 68 * 4, 68)
    assert gemm.grid == (132 + blocks, 1, 1)
    assert made.bytes_of("workspace") == 68 * 4 + blocks * 64 * 64 * 4
    assert made.sharing[1].grid == gemm.grid
    assert made.sharing[2].grid == (68, 1, 1)
    assert -(-blocks // 132) * 132 - blocks < 68
    few = "68 tiles are few for 132 multiprocessors"
    assert f"K of each of the last 68 of 200 tiles in {splits['count']} splits: {few}" in made.reasons


def test_phases_have_splits_in_proportion_to_their_taps() -> None:
    """16 tiles of four phases with 4, 2, 2 and 1 taps; no split has more than its share of the four taps."""
    made = split((1, 256, 7, 7), (256, 256, 3, 3), "conv_transpose", strides=[2, 2], kernel=TRANSPOSED)
    assert made is not None
    phases, splits = (fields(made.launches[-1])[name] for name in ("phases", "splits"))
    assert phases == 4
    assert splits["whole"] == 0
    assert made.launches[-1].grid == (4 * 4 * splits["count"], 1, 1)
    assert splits["count"] <= 4 * 256 // 16


# ---------------------------------------------------------------- results


def operands() -> list[Any]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape).astype(np.float32) for shape in ((2, 64, 7, 9), (70, 64, 3, 3), (70,))]


def bits(seed: int) -> bytes:
    with preferred(KERNEL), emulated_cuda(seed=seed) as emulated:
        y = gpuconv.conv(*operands(), pads=[1] * 4)
    assert fields(emulated.launches[-1])["splits"]["count"] > 1
    oracle.assert_close(y, oracle.conv(*operands(), pads=[1] * 4), "float32")
    return bytes(y.tobytes())


@pytest.mark.emulator
@pytest.mark.kernels("conv/gemm/split.cu")
def test_sums_in_the_order_of_arrival_show() -> None:
    line, kernel = "const Acc* source = of(split);", "conv/gemm/split_k.cuh"
    text = exchanged(kernel, line, line.replace("split)", "(split + block_number()) % splits)"))
    with changed_kernels({kernel: text}):
        assert len({bits(seed) for seed in range(4)}) > 1


@pytest.mark.emulator
@pytest.mark.kernels("conv/gemm/split.cu")
def test_a_second_call_finds_its_tickets_at_zero() -> None:
    x, w, b = operands()
    with preferred(KERNEL), emulated_cuda(seed=2):
        first, second = (gpuconv.conv(x, w, b) for _ in range(2))
    assert (first == second).all()


@pytest.mark.emulator
@pytest.mark.kernels("conv/gemm/conv.cu")
def test_64_bit_problems_go_to_the_kernels_that_accept_every_problem() -> None:
    with preferred(KERNEL), indices(wide=True), emulated_cuda() as emulated:
        gpuconv.conv(*operands())
    assert emulated.launches[-1].variant.name == "conv_float32_4d_64x64x16_uniform_wide"


def test_every_candidate_is_offered_once() -> None:
    names = []
    for turn in offers.every_candidate():
        with turn:
            names.append(plan("conv", *SMALL).kernel)
    assert len(set(names)) == len(names) == 9
