"""Weights packed as rows of K: both operators, every layout of w, parts, and the cost."""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest

from gpuconv.cuda.conv.wgmma import operands
from tests.kernels import passes
from tests.kernels.passes import cost, over_ways
from tests.oracle.operands import LAYOUTS, values

pytestmark = [pytest.mark.emulator, pytest.mark.kernels("passes/channels_last.cu")]

MOST_WAVEFRONTS = {
    4: 1.5,
    9: 1.2,
    27: 1.1,
    49: 1.04,
}  # ratio to the minimum, by taps: pixels of several images share banks
TAPS = [(1,), (3,), (1, 1), (2, 2), (3, 3), (5, 3), (7, 7), (3, 3, 3), (1, 1, 1), (11, 11)]


@over_ways
@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
@pytest.mark.parametrize("taps", TAPS, ids=str)
def test_weights_of_every_layout(dtype: Any, precision: str, operator: str, taps: tuple[int, ...]) -> None:
    random = Random(f"{dtype} {precision} {operator} {taps}")
    for layout in ("contiguous", "off the vectors", "channels last", random.choice(list(LAYOUTS))):
        if layout == "unaligned":
            continue
        group, filters = random.choice((1, 1, 2)), random.choice((1, 5, 17, 64))
        channels = random.choice((1, 3, 8, 20, 33, 64, 72) if prod(taps) < 50 else (3, 24))
        whole = random.random() < 0.5
        filled = passes.filled_up(channels, dtype, whole)
        shape = (filters * group, channels) if operator == "conv" else (channels * group, filters)
        w = LAYOUTS[layout](values("normal", len(layout), (*shape, *taps), dtype))
        found, _ = passes.pack(w, operator, group, filled, precision, tickets=random.choice((0, 0, 300)))
        assert passes.same(found, passes.rows(w, operator, group, filled, precision)), f"{w.shape} {layout}"


@over_ways
@pytest.mark.parametrize(
    ("operator", "shape", "most"),
    [
        ("conv", (64, 256, 1, 1), 1.0),
        ("conv", (64, 128, 3, 3), 1.06),
        ("conv", (64, 128, 2, 2), 1.0),
        ("conv", (16, 64, 7, 7), 1.06),
        ("conv", (32, 64, 3, 3, 3), 1.06),
        ("conv_transpose", (128, 64, 4, 4), 1.0),
        ("conv_transpose", (128, 64, 3, 3), 1.0),
    ],
    ids=str,
)
def test_it_moves_little_more_than_a_copy(
    dtype: Any, precision: str, operator: str, shape: tuple[int, ...], most: float
) -> None:
    """A block packs taps of several output channels at once; those of ConvTranspose are contiguous."""
    w = np.zeros(shape, dtype)
    found, emulated = passes.pack(w, operator, 1, shape[operator == "conv"], precision, counters=True)
    its = cost(emulated, w.nbytes + found.nbytes)
    assert its.sectors <= most
    assert its.wavefronts <= MOST_WAVEFRONTS.get(prod(shape[2:]), 1)


def test_a_kernel_packs_for_both_16_bit_types_and_is_named_for_it() -> None:
    names = set()
    for dtype in ("float16", "bfloat16"):
        w = np.zeros((8, 8, 3, 3), dtype)
        problem = passes.problem_of("conv", np.zeros((1, 8, 5, 5), dtype), w)
        names.add(operands.of_weights(problem, 8, 1).variant.name)
    assert names == {"pack_rows_16bit_3d"}
