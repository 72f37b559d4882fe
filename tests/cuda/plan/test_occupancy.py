"""The tensor-core model with few warps per scheduler; professional cards; tcgen05."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from gpuconv.cuda.conv.gemm import fragments, mma_tile
from gpuconv.cuda.plan import limits, model

A100 = limits.representative("sm_80").limits


def seconds(blocks: int, residence: model.Residence | None, others: int = 0) -> float:
    """Return the seconds of blocks of 2^20 multiply-adds each, in 16 bits on an A100."""
    return model.tensor(blocks, 2**20, 0, 0.0, A100, residence, others)


def test_products_take_longer_where_a_scheduler_has_one_warp() -> None:
    """108 multiprocessors; a block takes 2^20 / (0.6 x 1024) cycles at 1.41 GHz, 1.4 times as long if it is the only
    one."""
    block = 2**20 / (0.6 * 1024) / 1.41e9
    two = model.Residence(warps=4, blocks=2)
    for blocks, others, expected in (
        (108, 0, 1.4),  # one block each
        (109, 0, 2.0),  # two at a time
        (216, 0, 2.0),
        (217, 0, 2.0 + 1.4),  # and one without another on its multiprocessor
        (108, 108, 1.0),  # with other blocks
        (108, 216, (2.0 + 1.4) / 3),
    ):
        assert seconds(blocks, two, others) == pytest.approx(expected * block), (blocks, others)
    assert seconds(216, model.Residence(warps=4, blocks=1)) == pytest.approx(2 * 1.4 * block)
    assert seconds(108, model.Residence(warps=8, blocks=1)) == seconds(108, None) == pytest.approx(block)
    assert seconds(108, model.Residence(warps=2, blocks=1)) == pytest.approx(2 * 1.4 * block)  # half of the schedulers


@pytest.mark.parametrize("architecture", ["sm_86", "sm_89", "sm_120"])
def test_blocks_of_single_elements_come_in_pairs_on_cards_of_100_kilobytes(architecture: str) -> None:
    """Three stages of (128 + 128) x 32 elements of 2 bytes, and the system's 1024 bytes: twice that is 100 KiB."""
    tile, form = next(
        found for found in mma_tile.kernels(fragments.ARITHMETICS["float16", "ieee"]) if found[1].gather == "scalar"
    )
    assert (tile.block_m, tile.block_n, form.block_k, form.stages) == (128, 128, 32, 3)
    device = limits.representative(architecture).limits
    assert tile.residence(3 * 256 * 32 * 2, device) == (4, 2)
    assert tile.residence(3 * 256 * 32 * 2 + 16 * 128, device) == (4, 1)  # with a table of pixels


# TFLOP/s of 16-bit factors with sums in float32, by the datasheets; multiprocessors and boost clock, in GHz
@pytest.mark.parametrize(
    ("architecture", "name", "multiprocessors", "clock", "expected"),
    [
        ("sm_86", "NVIDIA RTX A6000", 84, 1.8, 154.8),
        ("sm_86", "NVIDIA A10", 72, 1.695, 125),
        ("sm_86", "NVIDIA GeForce RTX 3090", 82, 1.695, 71.2),
        ("sm_89", "NVIDIA L40S", 142, 2.52, 366),
        ("sm_89", "NVIDIA GeForce RTX 4090", 128, 2.52, 165.2),
        ("sm_120a", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 188, 2.617, 503.8),
        ("sm_120a", "NVIDIA GeForce RTX 5090", 170, 2.407, 209.5),
    ],
)
def test_professional_cards_add_up_in_float32_at_the_whole_rate(
    architecture: str, name: str, multiprocessors: int, clock: float, expected: float
) -> None:
    device = limits.described(replace(limits.nearest(architecture).limits, name=name))
    flops = prod((2, device.tensor_lanes[0], multiprocessors, clock * 1e9))
    assert flops == pytest.approx(expected * 1e12, 0.015)
    assert device.tensor_lanes[0] == 2 * device.tensor_lanes[1]


def test_mma_is_as_fast_on_a_multiprocessor_of_a_b200_as_on_one_of_an_h200() -> None:
    """mma.sync runs at the same rate per multiprocessor; the peak of a B200, more than twice as high, needs tcgen05."""
    cycles = {}
    for architecture in ("sm_80", "sm_90a", "sm_100a", "sm_103a"):
        device = limits.nearest(architecture)
        there = replace(device.limits, architecture=architecture, rates=limits.rates_of("", architecture))
        cycles[architecture] = model.tensor(1, 2**20, 0, 0.0, there) * device.clock
    assert cycles["sm_100a"] == cycles["sm_103a"] == pytest.approx(cycles["sm_90a"], 0.01)
    assert cycles["sm_80"] == pytest.approx(2**20 / (0.6 * 1024))
