"""The copy of x with channels last: every way to read, every layout, what it costs, planted bugs."""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import passes
import pytest
from operands import LAYOUTS, values

from gpuconv.cuda import channels_last_plan

pytestmark = pytest.mark.emulator

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
WAYS = [
    (np.dtype("float16"), "ieee"),
    (BFLOAT16, "ieee"),
    (np.dtype("float32"), "tf32"),
    (np.dtype("float32"), "3xtf32"),
]
over_ways = pytest.mark.parametrize(("dtype", "precision"), WAYS, ids=str)
PLANES = [(1,), (5,), (7, 7), (14, 14), (8, 8), (9, 30), (5, 5, 5), (3, 1, 11), (16, 16), (13, 31), (2, 300)]


def copy(x: Any, group: int, filled: int, precision: str, tickets: int = 0, **options: Any) -> tuple[Any, Any]:
    """What the pass makes of x, and the launch's counters."""
    w = np.zeros((group, x.shape[1] // group, *(1 for _ in x.shape[2:])), x.dtype)
    problem = passes.problem_of("conv", x, w, precision, group=group)
    parts = 2 if precision == "3xtf32" else 1
    launch = channels_last_plan.launch(problem, filled, parts, tickets)
    result = np.empty((x.shape[0], prod(x.shape[2:]), group, parts, filled), x.dtype)
    assert channels_last_plan.bytes_of(problem, filled, parts) == result.nbytes
    results = {"x_last": result}
    if tickets:
        results["workspace"] = np.full(tickets, -1, np.int32)
    counters = passes.run(launch, {"x": x}, results, **options)
    if tickets:
        assert not results["workspace"].any()
    return result, counters


def same(found: Any, expected: Any) -> bool:
    """Bit for bit, but for the bits of NaN."""
    return np.array_equal(found.astype(np.float64), expected.astype(np.float64), equal_nan=True)


def filled_up(channels: int, dtype: Any, whole: bool) -> int:
    """Channels in whole vectors, or in whole slices of K."""
    unit = (128 if whole else 16) // dtype.itemsize
    return -(-channels // unit) * unit


@over_ways
@pytest.mark.parametrize("pixels", PLANES, ids=str)
def test_planes_of_every_size_at_every_address(dtype: Any, precision: str, pixels: tuple[int, ...]) -> None:
    random = Random(f"{dtype} {precision} {pixels}")
    for layout in ("contiguous", "off the vectors", "channels last", "strided rows", random.choice(list(LAYOUTS))):
        if layout == "unaligned":
            continue
        batch, group = random.choice((1, 2, 3, 20 if prod(pixels) < 50 else 4)), random.choice((1, 1, 2))
        channels = random.choice((1, 3, 8, 16, 33, 64, 72, 100))
        filled = filled_up(channels, dtype, whole=group > 1 or precision == "3xtf32")
        x = LAYOUTS[layout](values("normal", len(layout), (batch, group * channels, *pixels), dtype))
        found, _ = copy(x, group, filled, precision, tickets=random.choice((0, 0, 700)), seed=random.randrange(99))
        assert same(found, passes.x_last(x, group, filled, precision)), f"{x.shape} {layout}"
