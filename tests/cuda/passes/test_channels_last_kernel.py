"""The pass that moves channels last: every method of reading, every layout, and its memory traffic."""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest

from benchmarks import sass
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.conv.wgmma import operands
from gpuconv.cuda.passes import channels_last
from gpuconv.cuda.plan.limits import nearest
from tests.harness.machine_code import code
from tests.harness.toolchain import needs_disassembler, needs_nvrtc
from tests.kernels import passes
from tests.kernels.passes import cost, over_copies
from tests.oracle.operands import LAYOUTS, values

pytestmark = [pytest.mark.emulator, pytest.mark.kernels("passes/channels_last.cu")]

PLANES = [(1,), (5,), (7, 7), (14, 14), (8, 8), (9, 30), (5, 5, 5), (3, 1, 11), (16, 16), (13, 31), (2, 300)]


@over_copies
@pytest.mark.parametrize("pixels", PLANES, ids=str)
def test_planes_of_every_size_at_every_address(dtype: Any, precision: str, pixels: tuple[int, ...]) -> None:
    random = Random(f"{dtype} {precision} {pixels}")
    for layout in ("contiguous", "off the vectors", "channels last", "strided rows", random.choice(list(LAYOUTS))):
        if layout == "unaligned":
            continue
        batch, group = random.choice((1, 2, 3, 20 if prod(pixels) < 50 else 4)), random.choice((1, 1, 2))
        channels = random.choice((1, 3, 8, 16, 33, 64, 72, 100))
        filled = passes.filled_up(channels, dtype, whole=group > 1 or precision == "3xtf32")
        x = LAYOUTS[layout](values("normal", len(layout), (batch, group * channels, *pixels), dtype))
        tickets, seed = random.choice((0, 0, 700)), random.randrange(99)
        found, _ = passes.copy(x, group, filled, precision, tickets, seed=seed)
        assert passes.same(found, passes.x_last(x, group, filled, precision)), f"{x.shape} {layout}"


@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
def test_what_is_finite_stays_so_and_nothing_else_becomes_it(precision: str) -> None:
    """Sums that are not finite are recomputed from x, so the parts must show which they are."""
    largest = np.finfo(np.float32).max
    odd = [np.nan, np.inf, -np.inf, largest, -largest, 3.4e38, 2.0**-149, 0.0, -0.0]
    x = np.tile(np.array(odd, np.float32), 40).reshape(1, 4, 9, 10)
    found, _ = passes.copy(x, 1, 32, precision)
    parts = found.reshape(90, -1, 32)[:, :, :4]
    exact = x.reshape(4, 90).T.astype(np.float64)
    finite = np.isfinite(exact)
    assert np.array_equal(np.isfinite(parts).all(1), finite)
    together = parts.astype(np.float64).sum(1)
    near = np.abs(together[finite] - exact[finite]) <= np.abs(exact[finite]) * 2.0 ** (
        -11 if precision == "tf32" else -21
    )
    assert (near | (np.abs(exact[finite]) < 2.0**-126)).all()


# ---------------------------------------------------------------- what it costs

# Layers of networks: ratio of sectors read and written to those of a copy.
LAYERS = [
    ((1, 64, 56, 56), 1.0),
    ((2, 128, 28, 28), 1.0),
    ((1, 64, 112, 112), 1.0),
    ((1, 128, 9, 32), 1.0),
    ((2, 320, 16, 16), 1.0),
    ((1, 64, 1500), 1.07),  # rows of 16-bit elements begin at 8 bytes after a multiple of 16
    ((2, 256, 14, 14), 1.07),
    ((4, 512, 7, 7), 1.04),
    ((2, 64, 55, 55), 1.08),
    ((2, 64, 27, 27), 1.08),
    ((2, 256, 13, 13), 1.1),
    ((1, 64, 5, 7, 7), 1.1),
]
SINGLE = {16: "LDG.E.U16", 64: "LDG.E.64"}  # loads of single elements, by their bits
WAVEFRONTS = 1.08  # ratio to the minimum; exactly 1 if a block has one image
SLOTS = 0.8  # fraction of the instructions that can be issued during a plain copy, counted in PTX


@over_copies
@pytest.mark.parametrize(("shape", "most"), LAYERS, ids=str)
def test_it_moves_little_more_than_a_copy(dtype: Any, precision: str, shape: tuple[int, ...], most: float) -> None:
    """To reach at least 1 / 1.1 = 0.91 of a copy's bandwidth."""
    x = np.zeros(shape, dtype)
    filled = passes.filled_up(shape[1], dtype, precision == "3xtf32")
    found, emulated = passes.copy(x, 1, filled, precision, counters=True)
    its = cost(emulated, x.nbytes + found.nbytes)
    assert 1 - 1e-9 <= its.sectors <= most
    assert its.wavefronts <= (WAVEFRONTS if prod(shape[2:]) <= 56 else 1)
    assert its.slots <= SLOTS
    assert its.cycles <= 0.5


@over_copies
def test_images_with_channels_last_are_read_and_written_in_whole_vectors(dtype: Any, precision: str) -> None:
    x = LAYOUTS["channels last"](np.zeros((2, 96, 8, 9), dtype))
    found, emulated = passes.copy(x, 1, 96, precision, counters=True)
    its = cost(emulated, x.nbytes + found.nbytes)
    assert its.sectors == 1
    assert "shared" not in emulated.launches[-1].counters.traffic()
    assert its.slots <= SLOTS


def test_a_multiprocessor_has_enough_on_its_way() -> None:
    """All resident blocks read their bytes at once: more than the memory delivers in a microsecond."""
    device = nearest("sm_90a")
    (variant, *_) = channels_last.variants()
    block = 64 * channels_last._PIXELS * 2
    resident = min(variant.blocks_per_sm, device.limits.shared_bytes_per_multiprocessor // (16 * 968 + 1024))
    assert resident == variant.blocks_per_sm
    assert resident * block >= 1e-6 * device.bandwidth / device.limits.multiprocessors


@needs_nvrtc
@needs_disassembler
@pytest.mark.parametrize("variant", [*channels_last.variants(), *operands.variants()], ids=lambda one: one.name)
def test_instructions_are_as_wide_as_memory(variant: Variant) -> None:
    body = code(variant)
    everywhere = range(len(body))
    assert set(sass.names(body, everywhere, "LDGSTS")) == {"LDGSTS.E.BYPASS.128"}
    single = next((name for size, name in SINGLE.items() if f"{size}bit" in variant.name), "LDG.E")
    loads = sass.names(body, everywhere, "LDG")
    assert (
        loads.pop("LDG.E.128") == 4
    )  # for adjacent channels; loads of single elements are for other layouts and for ends
    assert set(loads) == {single}
    stores = sass.names(body, everywhere, "STG")
    assert stores.pop("STG.E") == 1  # tickets
    assert set(stores) == {"STG.E.128"}
    assert not sass.names(body, everywhere, "LDL", "STL")
    copying = min((loop for loop in sass.loops(body) if sass.names(body, loop, "LDGSTS")), key=len)
    assert len(copying) <= 20
