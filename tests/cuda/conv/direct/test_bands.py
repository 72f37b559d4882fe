"""Few output channels by bands of x: when, with which form and tile, and right results with every form of tile."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.conv.direct import bands as bands_plan
from gpuconv.cuda.conv.direct import bands_tile
from gpuconv.cuda.conv.direct.bands_tile import BandAxis, BandForm, BandTile, BandView
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import Limits
from tests.emulator import emulated_cuda
from tests.harness import banks
from tests.harness.emulated import preferred
from tests.harness.offered import candidates
from tests.harness.plans import HOPPER, fields, plan, problem
from tests.oracle import oracle
from tests.oracle.operands import LAYOUTS


def bands(x_shape: Any, w_shape: Any, operator: str = "conv", **more: Any) -> Plan | None:
    with preferred("conv_bands"):
        made = plan(operator, x_shape, w_shape, **more)
    return made if made.launches[-1].variant.name.startswith("conv_bands") else None


# ---------------------------------------------------------------- plans


def test_one_launch_reads_the_weights_as_they_are() -> None:
    made = bands((2, 6, 5, 30, 40), (6, 3, 2, 3, 3), group=2, bias=True, pads=[1, 0, 2, 1, 1, 2], strides=[2, 1, 1])
    assert made is not None
    (launch,) = made.launches
    assert (made.bytes_of("workspace"), made.bytes_of("packed"), made.sharing) == (0, 0, ())
    assert dict(launch.pointers) == {"x": 0, "w": 8, "b": 16, "y": 24}
    struct = fields(launch)
    assert {"w_group": 3 * 54, "w_filter": 54, "w_channel": 18, "groups": 2, "depths": 3}.items() <= struct.items()
    depth, height, width = struct["axes"]
    assert {"x_extent": 5, "x_stride": 1200, "y_extent": 3, "kernel": 2, "w_stride": 9}.items() <= depth.items()
    assert {"scale": 2, "shift": -1, "advance": 1, "phases": 1, "taps": 2}.items() <= depth.items()
    assert {"shift": 0, "scale": 1, "taps": 3, "w_stride": 3, "y_extent": 29, "y_stride": 42}.items() <= height.items()
    assert {"shift": -2, "scale": 1, "y_extent": 42, "y_stride": 1, "x_stride": 1}.items() <= width.items()
    assert struct["start"] == [0, -4]  # vectors of four begin at -4, two columns before the first output
    assert struct["origin"] == [0, -2]
    assert struct["vectors"] == 4


@pytest.mark.parametrize(
    ("filters", "layout", "last"), [(3, "NHWC", 1), (2, "NHWC", 1), (1, "NHWC", 0), (3, "NCHW", 0), (1, "NCHW", 0)]
)
def test_channels_of_y_are_neighbours_of_a_warp_where_there_are_several(filters: int, layout: str, last: int) -> None:
    one = problem("conv", (2, 8, 9, 9), (filters, 8, 3, 3), layout=layout)
    for candidate in candidates(bands_plan, one, HOPPER):
        assert fields(candidate.make().launches[0])["channels_last"] == last


def test_phases_of_conv_transpose_are_filters() -> None:
    made = bands((1, 8, 30, 41), (8, 1, 9, 4), "conv_transpose", strides=[4, 2], pads=[5, 3, 0, 0])
    assert made is not None
    struct = fields(made.launches[0])
    _, height, width = struct["axes"]
    assert {"kernel": 9, "taps": 3, "phases": 4, "shift": 5, "advance": -1, "scale": 1}.items() <= height.items()
    assert {"kernel": 4, "taps": 2, "phases": 2, "shift": 3, "advance": -1, "scale": 1}.items() <= width.items()
    assert struct["start"] == [1 - 2, 1 - 1]  # outputs begin at 5 = 1 * 4 + 1 and 3 = 1 * 2 + 1 of those with padding
    assert struct["origin"] == [-1, -1]
    assert struct["vectors"] == 1


@pytest.mark.parametrize(("batch", "group"), [(1, 1), (3, 1), (1, 2), (3, 2)])
def test_every_image_and_every_group_has_blocks_of_its_own(batch: int, group: int) -> None:
    made = bands((batch, 3 * group, 9, 9), (2 * group, 3, 3, 3), group=group)
    one = bands((1, 3, 9, 9), (2, 3, 3, 3))
    assert made is not None
    assert one is not None
    assert made.launches[0].grid[0] == batch * group * one.launches[0].grid[0]  # the image is one tile in both


# ---------------------------------------------------------------- results


def tiles(view: BandView, form: BandForm, limits: Limits) -> list[BandTile]:
    made = [bands_tile._tile(team, step) for team, step in bands_tile._teams(view, form)]
    return [one for one in made if one.shared_bytes <= limits.shared_bytes_per_block]


@pytest.mark.emulator
@pytest.mark.kernels("conv/direct/bands.cu")
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize(
    ("operator", "x_shape", "w_shape", "more"),
    [
        ("conv", (1, 40, 23, 44), (3, 40, 3, 3), {"pads": [1, 2, 0, 1]}),
        ("conv", (2, 9, 301), (2, 9, 6), {"pads": [3, 2]}),
        ("conv", (1, 45, 13, 24), (3, 45, 3, 3), {"pads": [1, 2, 0, 1]}),
        ("conv_transpose", (1, 16, 9, 20), (16, 3, 5, 4), {"strides": [3, 2], "pads": [1, 2, 1, 1]}),
        ("conv_transpose", (1, 12, 3, 7, 8), (12, 1, 3, 2, 9), {"strides": [2, 3, 4], "output_padding": [1, 0, 3]}),
    ],
)
def test_every_kind_of_tile_makes_the_same(
    operator: str, x_shape: Any, w_shape: Any, more: dict[str, Any], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads with one job or several, for other channels, in few rounds or many: any choice of the model."""
    random, numbers = Random(5), np.random.default_rng(0)
    x, w = (numbers.integers(-3, 4, shape).astype("float32") for shape in (x_shape, w_shape))
    b = numbers.integers(-3, 4, w_shape[0 if operator == "conv" else 1]).astype("float32")
    w[0, 0].flat[1] = np.inf
    x[0, -1].flat[3] = np.nan
    exact = getattr(oracle, operator)(x, w, b, **more)
    met = set()

    def some(view: BandView, form: BandForm, limits: Limits) -> BandTile:
        found = random.choice(tiles(view, form, limits))
        met.add((found.jobs < found.all_jobs, found.parts > 1, found.step < view.channels))
        return found

    monkeypatch.setattr(bands_tile, "best", some)
    for number in range(6):
        with preferred("conv_bands"), emulated_cuda(seed=number):
            y = getattr(gpuconv, operator)(LAYOUTS[layout](x), w, b, **more)
        oracle.assert_close(y, exact, "float32")
    assert len(met) > 1


@pytest.mark.parametrize("width", [300, 5000, 70_001])
def test_a_line_is_cut_into_rows_that_cover_it(width: int) -> None:
    made = bands((1, 16, width), (2, 16, 7), pads=[3, 3])
    assert made is not None
    (launch,) = made.launches
    struct = fields(launch)
    each = struct["height"] * struct["width"]  # outputs of a block: rows of the line, cut into as many columns
    assert struct["fold"] == struct["width"]
    assert max(launch.grid) in (-(-width // each), 2 * -(-width // each))  # both filters together, or one per block


# ---------------------------------------------------------------- banks of a tile by hand

BAND = BandTile(
    BandView(
        dtype="float32", copies=2, channels=20, filters=3, depths=5, planes=1,
        height=BandAxis(phases=2, taps=3, kernel=6, positions=31, start=-1, origin=-2),
        width=BandAxis(phases=3, taps=5, kernel=13, positions=44, start=-3, origin=-4),
        line=False, vectors=4, lines=4,
    ),
    BandForm(3, 3, 3, 4, registers=112, efficiency=0.9),
    threads=(3, 5),
    jobs=2,
    parts=2,
    step=16,
)  # fmt: skip


@pytest.mark.parametrize("jobs", [1, 2])
def test_threads_of_bands_read_from_other_banks(jobs: int) -> None:
    """Where the threads of a row are no whole row of banks, the next row begins in the bank after its last.

    So does the next channel, which other threads of the warp have. No pitch is longer than that needs.
    """
    tile = replace(BAND, jobs=jobs)
    row, channel = tile.row_pitch, tile.channel_pitch
    at = [4 * (part * channel + r * 3 * row + 4 * c) for part, r, c in product(range(2), range(3), range(5))]
    assert max(banks.steps(at[:15], 16), banks.steps(at[15:], 16)) == 1
    assert jobs == 2 or banks.steps(at, 16) == 1
    assert row == 4 * banks.next_in_bank(28 // 4, 5, 8, times=3)  # the rows of a thread
    assert channel == 4 * banks.next_in_bank(11 * row // 4, 3 * 5 * jobs, 8)


def test_channels_that_are_copied_together_begin_in_banks_far_apart() -> None:
    """By an odd number of vectors; so too where a whole warp has one channel."""
    last = replace(BAND, view=replace(BAND.view, vectors=-4))
    assert [tile.channel_pitch for tile in (last, replace(last, jobs=4), replace(BAND, jobs=4))] == [11 * 28] * 3
    even = replace(last, view=replace(last.view, height=replace(BAND.view.height, taps=4)))
    assert even.channel_pitch == 12 * 28 + 4  # 84 vectors, and one more
    assert replace(BAND, threads=(3, 8)).row_pitch == (8 + 2) * 4  # whole rows of banks: no padding


@pytest.mark.parametrize(("phases", "bank"), [(3, 8 // 3), (1, 0)])
def test_sums_of_neighbouring_phases_begin_in_other_banks(phases: int, bank: int) -> None:
    tile = replace(BAND, view=replace(BAND.view, width=replace(BAND.view.width, phases=phases)))
    assert tile.plane == 4 * banks.next_in_bank(9 * 20 // 4, bank, 8)
    written = [4 * (phase * tile.plane) for phase in range(phases)]
    assert banks.steps(written, 16) == 1


# ---------------------------------------------------------------- problems by hand


def lifted(operator: str, x: tuple[int, ...], w: tuple[int, ...], **more: Any) -> Problem:
    return problem(operator, x, w, "float32", **more).lifted


def test_an_axis_alone_is_a_line() -> None:
    strided = lifted("conv_transpose", (2, 6, 21), (6, 2, 5), strides=[3])
    assert bands_plan._view(strided).line is True
    assert bands_plan._view(lifted("conv", (2, 6, 21), (2, 6, 5))).line is True
    assert bands_plan._view(lifted("conv", (2, 6, 1, 21), (2, 6, 1, 5))).line is True
    assert bands_plan._view(lifted("conv", (2, 6, 2, 21), (2, 6, 1, 5))).line is False
    assert bands_plan._view(lifted("conv", (2, 6, 2, 21), (2, 6, 2, 5))).line is False
    assert bands_plan._view(lifted("conv", (2, 6, 1, 21), (2, 6, 2, 5), pads=[1, 0, 0, 0])).line is False
    assert bands_plan._view(lifted("conv_transpose", (2, 6, 1, 21), (6, 2, 1, 5), strides=[2, 3])).line is True


@pytest.mark.parametrize(
    ("x", "x_strides", "dtype", "vectors"),
    [
        ((2, 8, 3, 5, 12), (1440, 180, 60, 12, 1), "float32", 4),
        ((2, 8, 3, 5, 12), (1440, 180, 60, 12, 1), "float16", 4),  # of sums
        ((2, 8, 3, 5, 12), (1440, 180, 60, 12, 1), "float64", 2),
        ((2, 8, 3, 5, 14), (1680, 210, 70, 14, 1), "float32", 1),
        ((2, 8, 3, 5, 12), (1442, 180, 60, 12, 1), "float32", 1),
        ((1, 8, 3, 5, 12), (1442, 180, 60, 12, 1), "float32", 4),
        ((2, 8, 3, 5, 12), (1440, 182, 60, 12, 1), "float32", 1),
        ((2, 8, 3, 5, 12), (1440, 180, 62, 12, 1), "float32", 1),
        ((2, 8, 3, 5, 12), (1440, 180, 60, 14, 1), "float32", 1),
        ((2, 8, 3, 5, 12), (1440, 1, 480, 96, 8), "float32", -4),
        ((2, 8, 3, 5, 12), (1440, 1, 480, 96, 8), "float16", -8),
        ((2, 8, 3, 1, 12), (288, 1, 96, 96, 8), "float32", -4),
        ((2, 8, 3, 5, 1), (120, 1, 40, 8, 8), "float32", 1),  # a column is a row of one element
        ((2, 6, 3, 5, 12), (1080, 1, 360, 72, 6), "float32", 1),
        ((1, 12, 1, 9, 11), (1188, 1, 1188, 132, 12), "float16", -1),  # enough threads to copy one each
        ((1, 7, 1, 9, 11), (693, 1, 693, 77, 7), "float16", 1),
        ((1, 1, 1, 9, 11), (99, 1, 99, 11, 1), "float16", 1),
        ((2, 8, 3, 5, 12), (1440, 1, 480, 96, 9), "float32", -1),
        ((2, 8, 3, 5, 12), (1440, 1, 480, 98, 8), "float32", -1),
        ((2, 8, 3, 5, 12), (1440, 1, 482, 96, 8), "float32", -1),
        ((2, 8, 3, 5, 12), (1442, 1, 480, 96, 8), "float32", -1),
        ((2, 8, 3, 5, 12), (2880, 2, 960, 192, 16), "float32", 1),  # channels are not adjacent
    ],
)
def test_what_bands_copy_at_once(x: tuple[int, ...], x_strides: tuple[int, ...], dtype: str, vectors: int) -> None:
    one = problem("conv", x, (1, x[1], 1, 1, 1), dtype, x_strides=x_strides)
    assert bands_plan._vectors(one) == vectors
