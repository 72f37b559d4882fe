"""Few channels per group on tensor cores: tiles of groups and outputs; other data in memory has no effect."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpuconv
from benchmarks import sass
from benchmarks.sass import Instruction
from gpuconv.cuda.conv.gemm import fragments, grouped_tile
from gpuconv.cuda.conv.gemm import grouped as grouped_plan
from gpuconv.cuda.plan.launch import Plan
from tests.emulator import emulated_cuda
from tests.harness import banks
from tests.harness.emulated import preferred
from tests.harness.machine_code import code
from tests.harness.plans import HOPPER, fields, plan, problem
from tests.harness.toolchain import needs_disassembler, needs_nvrtc
from tests.oracle import oracle


def grouped(x_shape: Any, w_shape: Any, kernel: str = "", *, dtype: str = "float16", **more: Any) -> Plan | None:
    operator = more.pop("operator", "conv")
    with preferred(f"{operator}_grouped_{dtype}_3d_mma_{kernel}"):
        made = plan(operator, x_shape, w_shape, dtype=dtype, **more)
    return made if f"{operator}_grouped" in made.launches[-1].variant.name else None


def test_one_launch_reads_the_weights_as_they_are() -> None:
    made = grouped((32, 128, 56, 56), (128, 4, 3, 3), group=32, bias=True, pads=[1] * 4)
    assert made is not None
    (launch,) = made.launches
    assert launch.variant.name == "conv_grouped_float16_3d_mma_16x512"
    assert (made.bytes_of("workspace"), made.bytes_of("packed"), made.sharing) == (0, 0, ())
    assert {role for role, _ in launch.pointers} == {"x", "w", "b", "y"}
    assert any(reason.startswith("4 groups of 4 channels make one; tiles of ") for reason in made.reasons)


@pytest.mark.parametrize("channels", [1, 3, 8, 16, 17, 20, 32, 33, 64])
def test_a_block_has_whole_groups_of_up_to_64_channels(channels: int) -> None:
    for group in range(2, 66):
        one = problem("conv", (1, channels * group, 9, 9), (group, channels, 3, 3), group=group)
        for work in grouped_plan.works(one, fragments.arithmetic(one)):
            assert group % work.joined_groups == 0
            assert work.joined_groups * channels <= 64


@pytest.mark.parametrize(
    ("channels", "filters", "group", "kernel", "together"),
    [
        (4, 4, 32, "16x512", 4),  # 16 channels, 16 filters
        (8, 8, 6, "16x512", 2),
        (5, 5, 9, "16x512", 3),
        (16, 16, 4, "16x512", 1),
        (32, 32, 4, "32x512", 1),
        (4, 4, 7, "16x512", 7),  # a number that divides theirs: two tiles of filters
    ],
)
def test_as_many_groups_as_fill_fragments_make_one(
    channels: int, filters: int, group: int, kernel: str, together: int
) -> None:
    made = grouped((4, channels * group, 28, 28), (filters * group, channels, 3, 3), kernel, group=group)
    assert made is not None
    (launch,) = made.launches
    struct = fields(launch)
    assert launch.variant.name.endswith(kernel)
    assert struct["bands"]["channels"] == together * channels
    assert struct["common"]["filters"] == together * filters


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_it_is_the_quickest_for_one_group_of_few_channels_and_filters(dtype: str) -> None:
    """As in the first layers of a U-Net, where other kernels would copy NCHW to channels last, and pack w."""
    made = plan("conv", (8, 16, 256, 256), (16, 16, 3, 3), dtype=dtype, pads=[1] * 4)
    (launch,) = made.launches
    assert launch.variant.name == f"conv_grouped_{dtype}_3d_mma_16x512"
    assert any(reason.startswith("all 16 channels of a pixel are read at once; tiles of ") for reason in made.reasons)


# ---------------------------------------------------------------- tiles


def _problem() -> Any:
    made = grouped((3, 8, 14, 10), (8, 4, 3, 3), group=2, pads=[1] * 4)
    assert made is not None
    return made.problem


@pytest.mark.parametrize(
    ("tile", "box"),
    [
        ((14, 10, 1), (16, 12, 1)),  # one image
        ((28, 10, 1), (32, 12, 1)),  # two of them, each with its own padding
        ((7, 5, 1), (9, 7, 1)),  # a part
        ((9, 10, 1), (13, 12, 1)),  # parts of two
    ],
)
def test_a_band_has_what_the_tile_meets(tile: tuple[int, ...], box: tuple[int, ...]) -> None:
    arithmetic = fragments.ARITHMETICS["float16", "ieee"]
    work = next(iter(grouped_plan.works(_problem(), arithmetic)))
    assert grouped_tile.GroupedTile(work, tile, 1).box == box


@pytest.mark.parametrize(
    ("channels", "pixel", "row", "chunks"),
    [(4, 8, 80, True), (4, 16, 160, True), (3, 8, 80, False), (4, 9, 90, False), (4, 8, 84, False), (8, 16, 160, True)],
)
def test_channels_come_in_chunks_of_16_bytes(channels: int, pixel: int, row: int, chunks: bool) -> None:
    """With channels last, those of two groups are eight elements of two bytes, and all steps load chunks."""
    x_strides = (14 * row, 1, row, pixel)
    made = grouped((3, 2 * channels, 14, 10), (8, channels, 3, 3), group=2, pads=[1] * 4, x_strides=x_strides)
    assert made is not None
    arithmetic = fragments.ARITHMETICS["float16", "ieee"]
    work = next(iter(grouped_plan.works(made.problem, arithmetic)))
    assert work.joined_groups == 2
    assert work.chunks is chunks


def some_tile(monkeypatch: pytest.MonkeyPatch, tile: tuple[int, ...], turns: int) -> None:
    def best(work: Any, limits: Any, more_bytes: int) -> Any:
        return 1.0, grouped_tile.GroupedTile(work, tile, turns)

    monkeypatch.setattr(grouped_tile, "best", best)


@pytest.mark.emulator
@pytest.mark.kernels("conv/gemm/grouped.cu")
@pytest.mark.parametrize(
    ("dtype", "precision"),
    [("float16", "ieee"), ("bfloat16", "ieee"), ("float32", "tf32"), ("float32", "3xtf32")],
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("tile", "turns"), [((28, 10, 1), 1), ((9, 10, 1), 2), ((6, 4, 1), 5), ((5, 5, 1), 3)])
def test_infinities_of_other_groups_and_images_take_no_part(
    monkeypatch: pytest.MonkeyPatch, dtype: str, precision: str, layout: str, tile: tuple[int, ...], turns: int
) -> None:
    some_tile(monkeypatch, tile, turns)
    random = np.random.default_rng(0)
    x, w, b = (random.standard_normal(shape).astype(dtype) for shape in ((3, 16, 14, 10), (16, 4, 3, 3), (16,)))
    x[0, 3], x[1, 9, 5], x[2, 15, :, 2] = np.inf, np.nan, -np.inf
    w[5, 1] = np.inf
    attributes: dict[str, Any] = {"group": 4, "pads": [1, 1, 1, 1]}
    exact = oracle.conv(x, w, b, **attributes)
    given = x if layout == "NCHW" else np.moveaxis(x, 1, -1).copy()
    with preferred("conv_grouped"), gpuconv.precision(precision), emulated_cuda(seed=turns) as emulated:
        y = gpuconv.conv(given, w, b, **attributes, layout=layout)
    (launch,) = emulated.launches
    assert fields(launch)["common"]["n_tiles"] == turns
    y = y if layout == "NCHW" else np.moveaxis(y, -1, 1)
    oracle.assert_close(y, exact, dtype, "tensor cores" if precision == "ieee" else precision)


def test_the_model_knows_what_keeps_a_multiprocessor_busy() -> None:
    """One tile for a whole image has a shorter modelled time than one tile per output."""
    work = next(iter(grouped_plan.works(_problem(), fragments.ARITHMETICS["float16", "ieee"])))
    small, whole = (grouped_tile.GroupedTile(work, tile, 3) for tile in ((1, 1, 1), (14, 10, 1)))
    assert whole.seconds(HOPPER) < small.seconds(HOPPER)


# ---------------------------------------------------------------- machine code


@pytest.mark.slow
@needs_nvrtc
@needs_disassembler
@pytest.mark.parametrize(("dtype", "precision", "form"), list(grouped_plan.forms()), ids=str)
def test_the_main_loop_is_what_the_model_takes_it_to_be(
    dtype: str, precision: str, form: grouped_tile.GroupedForm
) -> None:
    """Per tap and fragment along K: mma, two or four ldmatrix, loads of weights, and few other instructions."""
    arithmetic = fragments.ARITHMETICS[dtype, precision]
    body = code(grouped_plan.variant("conv", dtype, precision, form))
    tensor = [loop for loop in sass.loops(body) if sass.names(body, loop, "HMMA") and "BAR" not in _opcodes(body, loop)]
    loop = max(tensor, key=len)
    rows, columns = form.block_m // 16, form.warp_n // 8
    products = sum(sass.names(body, loop, "HMMA").values())
    assert products == rows * columns * arithmetic.products
    assert sum(sass.names(body, loop, "LDSM").values()) == columns // 2
    assert sass.names(body, loop, "LDS")["LDS.128"] == rows * arithmetic.parts
    assert not sass.names(body, loop, "LDL", "STL", "LDG", "STS")
    expected = grouped_tile._STEP + columns * grouped_tile._PREPARED[arithmetic.label]
    assert len(loop) - products == pytest.approx(expected, abs=8)


def _opcodes(body: list[Instruction], loop: range) -> set[str]:
    return {body[number].opcode for number in loop}


# ---------------------------------------------------------------- tiles of several groups by hand


def made(tile: tuple[int, int, int], **more: Any) -> Any:
    """Return a tile of y (3, 160, 4, 10, 9), where consecutive images of x are eleven rows apart."""
    of_problem = {
        "columns": (4, 10, 9), "column_strides": (2, 3, 1), "batch": 3, "phases": (2, 1, 3), "group": 6, "itemsize": 2,
        "y_strides": (360 * 32, 1, 90 * 32, 9 * 32, 32), "y_shape": (3, 32, 4, 10, 9), "strides": (),
    }  # fmt: skip
    of_problem |= {name: value for name, value in more.items() if name in of_problem}
    work = {
        "reaches": (2, 4, 6), "image_inputs": 11, "m_tiles": 2, "filters": 16, "weight_bytes": 4096, "pitch": 48,
    }  # fmt: skip
    work |= {name: value for name, value in more.items() if name in work}
    of: Any = SimpleNamespace(**of_problem)
    form, arithmetic = more.get("form", SimpleNamespace(warp_n=64, warps=8)), SimpleNamespace()
    seen = grouped_tile.GroupedWork(of, arithmetic, form, joined_groups=2)
    vars(seen).update(work)  # the values that it would compute
    return grouped_tile.GroupedTile(seen, tile, 5)


def test_a_tile_of_groups() -> None:
    """Columns have strides 2, 3 and 1 and receptive fields of 2, 4 and 6 more inputs; images of x are 11 rows apart."""
    tile = made((7, 3, 4))
    # Seven columns along the depth extend over up to three images: twice three inputs more.
    assert tile.box == (6 * 2 + 2 * 3 + 2 + 1, 2 * 3 + 4 + 1, 3 * 1 + 6 + 1)
    assert made((8, 3, 4)).box[0] == 7 * 2 + 3 + 2 + 1  # two whole images
    assert made((2, 3, 4)).box[0] == 1 * 2 + 2 + 1  # half an image
    assert made((3, 3, 4)).box[0] == 2 * 2 + 3 + 2 + 1
    for inputs in (8, 5):  # contiguous or overlapping images
        assert made((7, 3, 4), image_inputs=inputs).box[0] == 6 * 2 + 2 + 1
    assert tile.counts == (-(-4 * 3 // 7), -(-10 // 3), -(-9 // 4))
    assert tile.blocks == 2 * 6 * 3 * 5  # tiles of filters, phases, pairs of groups, blocks that share the tiles
    # Weights and the band, 21 slices of pixels of 48 bytes; or the sums of eight warps, 16 filters by 40 each.
    assert tile.shared_bytes == 4096 + 21 * tile.pitches[0] * 48
    assert made((7, 3, 4), pitch=1).shared_bytes == 4096 + 8 * 16 * 40 * 4
    wide = {"pitch": 1, "form": SimpleNamespace(warp_n=128, warps=8)}
    assert made((7, 3, 4), **wide).shared_bytes == 4096 + 8 * 16 * (128 + 8) * 2  # or of wide outputs with a gap
    assert made((7, 3, 4), **wide, itemsize=4).shared_bytes == 4096 + 8 * 128 * (16 * 4 + 16)


@pytest.mark.parametrize(("width", "together"), [(4, 7), (5, 1)])
def test_eight_columns_that_are_loaded_together_lie_in_other_banks(width: int, together: int) -> None:
    """``ldmatrix`` reads 16 bytes of each of eight pixels, which are 48 bytes apart, or in other rows and slices.

    Fifteen columns of a slice are followed by an odd bank, which no pitch reaches twice, so slices are handled
    separately.
    """
    tile = made((7, 3, width))
    depth, row, column = tile.pitches
    for first in range(0, 7, together):
        counts = range(first, first + together), range(3), range(width)
        at = [48 * (d * 2 * depth + h * 3 * row + w * column) for d, h, w in product(*counts)]
        assert banks.steps(at, 16) == 1
    _, rows, columns = tile.box
    assert 0 <= row - columns < 8
    assert 0 <= depth - ((rows - 1) * row + columns) < (8 if together > 1 else 1)


@pytest.mark.parametrize(
    ("more", "way"),
    [
        ({}, "chunks"),
        ({"filters": 24}, "single"),
        ({"y_strides": (360 * 32, 1, 90 * 32, 9 * 32, 33)}, "single"),
        ({"y_strides": (360 * 32 + 4, 1, 90 * 32, 9 * 32, 32)}, "single"),
        ({"y_strides": (360 * 32, 2, 90 * 32, 9 * 32, 32)}, "single"),
        ({"y_strides": (12800, 400, 100, 10, 1), "columns": (4, 10, 8)}, "pairs"),
        ({"y_strides": (12800, 400, 100, 10, 1)}, "single"),  # nine columns
        ({"y_strides": (12800, 400, 100, 11, 1), "columns": (4, 10, 8)}, "single"),
        ({"y_strides": (12800, 401, 100, 10, 1), "columns": (4, 10, 8)}, "single"),
        ({"y_strides": (12801, 400, 100, 10, 1), "columns": (4, 10, 8)}, "single"),
        ({"y_strides": (12800, 400, 100, 10, 2), "columns": (4, 10, 8)}, "single"),
        ({"y_strides": (12800, 400, 100, 10, 1), "columns": (4, 10, 8), "strides": (1, 1, 2)}, "single"),
        ({"y_strides": (12800, 400, 100, 10, 1), "columns": (4, 10, 8), "strides": (1, 1, 1)}, "pairs"),
    ],
)
def test_how_a_warp_of_groups_writes(more: dict[str, Any], way: str) -> None:
    assert made((7, 3, 4), **more).outputs == way
