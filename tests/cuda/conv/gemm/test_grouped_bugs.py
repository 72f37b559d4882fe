"""Bugs in the kernels for few channels a group: spoilt neighbours, borders, tiles and synchronisation are noticed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.conv.gemm import grouped_tile
from tests.emulator import emulated_cuda
from tests.harness.emulated import preferred
from tests.harness.mutate_kernels import changed_kernels
from tests.harness.test_planted_bugs import exchanged
from tests.harness.tiers import first_of_each, report
from tests.oracle import oracle

pytestmark = [pytest.mark.emulator, pytest.mark.usefixtures("cache_of_broken_kernels")]

GROUPED, BANDS, OUTPUTS = "conv/gemm/grouped.cu", "conv/gemm/grouped_bands.cuh", "conv/wide_outputs.cuh"
WRONG = "elements are wrong"
READY = "__syncthreads();         // the band has arrived for all threads, and the fragments"


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles with parts of two images, several for each block."""

    def best(work: Any, limits: Any, more_bytes: int) -> Any:
        return 1.0, grouped_tile.GroupedTile(work, (9, 4, 1), 2)

    monkeypatch.setattr(grouped_tile, "best", best)


@dataclass(frozen=True)
class Bug:
    """One bug: what stands in the file, what stands there instead, what is said of it, the layout that meets it."""

    name: str
    path: str
    old: str
    new: str
    message: str
    layout: str = "NCHW"


OWN = "(group * grouped.groups() + grouped.weights.filters.quotient(m)) * p.channels"
BUGS = (
    Bug("what other groups spoil is left", GROUPED, "return __any_sync(0xffffffff, spoilt != 0);", "return false;",
        WRONG),
    Bug("all filters are made again from the first group", GROUPED, OWN, "group * grouped.groups() * p.channels",
        WRONG),
    Bug("weights of other groups are what they may be", GROUPED, "    grouped.clear_fragments();\n", "",
        "uninitialised shared"),
    Bug("a band is read before all have written", GROUPED, READY, "", "shared memory race|uninitialised|in flight"),
    Bug("a band is not waited for", GROUPED, "copy_async_wait<0>();\n", "\n", "in flight", "NHWC"),
    Bug("outputs pass through the band that others still read", GROUPED,
        "        __syncthreads();         // the band's memory is free\n", "", "shared memory race"),
    Bug("channels that a block does not have are read", BANDS, "k < left ? load(from) : 0", "load(from)",
        "global memory out of bounds|elements are wrong"),
    Bug("images share their padding", BANDS, "image * int(bands.image_inputs.divisor)",
        "image * (int(bands.image_inputs.divisor) - 1)", f"{WRONG}|shared memory"),
    Bug("images that are none are written", BANDS, "result.n < bands.images &&", "",
        "global memory out of bounds|race"),
    Bug("lanes keep the same filter of both columns", OUTPUTS, "(target) = __byte_perm(word, other, odd ? 0x3276",
        "(target) = __byte_perm(word, other, odd ? 0x5410", WRONG, "NHWC"),
    Bug("pairs are written beside their columns", OUTPUTS, "y += kRowsAtOnce * y_channel;", "y += y_channel + 1;",
        f"{WRONG}|out of bounds|race|misaligned"),
)  # fmt: skip


def check(layout: str) -> None:
    """Raise AssertionError where a result is wrong or the emulator finds something; an input is infinite."""
    channels = 3 if layout == "NCHW" else 4  # of a group: no whole chunks, or two for all groups
    random = np.random.default_rng(0)
    shapes = (3, 4 * channels, 7, 10), (48, channels, 3, 3), (48,)
    x, w, b = (random.standard_normal(shape).astype("float16") for shape in shapes)
    x[0, 4, 3] = np.inf
    keywords: dict[str, Any] = {"group": 4, "pads": [1, 1, 1, 1]}
    exact = oracle.conv(x, w, b, **keywords)
    given = x if layout == "NCHW" else np.moveaxis(x, 1, -1).copy()
    with preferred("conv_grouped_float16_3d_mma_16x512"), emulated_cuda("sm_90a") as emulated:
        y = gpuconv.conv(given, w, b, **keywords, layout=layout)
    assert emulated.launches[-1].variant.source == GROUPED
    oracle.assert_close(y if layout == "NCHW" else np.moveaxis(y, -1, 1), exact, "float16", "tensor cores")


@pytest.mark.parametrize("bug", first_of_each(BUGS, report), ids=lambda bug: bug.name)
def test_a_bug_is_noticed(bug: Bug) -> None:
    text = exchanged(bug.path, bug.old, bug.new)
    with pytest.raises(AssertionError, match=bug.message), changed_kernels({bug.path: text}):
        check(bug.layout)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_without_a_bug_it_is_right(layout: str) -> None:
    check(layout)
