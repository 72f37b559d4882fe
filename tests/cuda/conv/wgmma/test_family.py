"""Plans of convolution by wgmma: refusals, structs, ways to x, splits, times."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

import gpuconv
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.conv.wgmma import family as wgmma
from gpuconv.cuda.conv.wgmma import pixels as wgmma_pixels
from gpuconv.cuda.conv.wgmma import tiles as wgmma_tiles
from gpuconv.cuda.conv.wgmma.tiles import WgmmaTile
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import Limits, representative
from gpuconv.cuda.plan.offers import Candidate, Refusal
from tests.emulator.maps import encoded
from tests.harness import offered
from tests.harness.plans import fields, problem

pytestmark = pytest.mark.slow

HOPPER = representative("sm_90a").limits
Ints = tuple[int, ...]


def _products(one: Problem) -> int:
    return one.group * one.filters * one.rows * one.pixels


def candidates(one: Problem, limits: Limits = HOPPER) -> dict[str, Candidate]:
    return {candidate.name: candidate for candidate in offered.candidates(wgmma, one, limits)}


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("operator", "x", "w", "more"),
    [
        ("conv", (1, 64, 9, 9), (32, 64, 3, 3), {}),
        ("conv", (1, 64, 40, 9), (64, 64, 1, 3), {"strides": [8, 1]}),
        ("conv_transpose", (1, 64, 9, 9), (64, 64, 3, 3), {"strides": [4, 8]}),
        ("conv", (1, 64, 300, 9), (64, 64, 2, 3), {"dilations": [254, 1], "pads": [0, 0, 127, 0]}),
        ("conv", (1, 64, 9, 9), (64, 64, 3, 3), {"pads": [0, 128, 0, 0]}),
        ("conv", (1, 64, 9, 9, 9), (64, 64, 1, 1, 1), {"pads": [0] * 5 + [15]}),
        ("conv", (1, 64, 9), (64, 64, 2), {"dilations": [65534], "pads": [32768, 32767]}),
    ],
)
def test_what_is_just_within_the_limits_is_taken(operator: str, x: Ints, w: Ints, more: dict[str, Any]) -> None:
    found = candidates(problem(operator, x, w, **more))
    assert found
    for candidate in found.values():
        for tensor_map in candidate.make().launches[-1].maps:
            encoded(tensor_map, 1024)  # which raises where the driver would


def test_other_devices_have_none_and_nothing_is_said() -> None:
    ampere = representative("sm_80").limits
    assert offered.refused(wgmma, problem("conv", (1, 64, 9, 9), (64, 64, 3, 3)), ampere) == Refusal(
        "it needs sm_90a", True
    )


def test_a_device_with_little_shared_memory_has_the_tiles_that_fit() -> None:
    one = problem("conv", (1, 64, 99, 99), (64, 64, 3, 3))
    limits = Limits("sm_90a", 132, 213 * 1024, 228 * 1024)
    assert {name.removesuffix("_split").rpartition("_")[2] for name in candidates(one, limits)} == {"128x256"}
    limits = Limits("sm_90a", 132, 99 * 1024, 100 * 1024)
    assert not candidates(one, limits)
    assert "bytes of shared memory, there are 101376" in str(offered.refused(wgmma, one, limits))


# ---------------------------------------------------------------- plans


def made(one: Problem, name: str, limits: Limits = HOPPER) -> Plan:
    return candidates(one, limits)[name].make()


def roles(plan: Plan) -> list[list[str]]:
    return [sorted(role for role, _ in launch.pointers) for launch in plan.launches]


def test_the_structs_of_a_small_conv() -> None:
    """By hand: x (2, 2 * 72, 5, 7) with channels filled up to 80, w (2 * 130, 72, 2, 3), y (2, 260, 4, 3)."""
    attributes: dict[str, Any] = {"group": 2, "strides": [1, 3], "dilations": [2, 1], "pads": [1, 0, 0, 2]}
    one = problem("conv", (2, 144, 5, 7), (260, 72, 2, 3), **attributes)
    plan = made(one, "conv_float16_3d_wgmma_128x256")
    struct = fields(plan.launches[-1])
    assert struct["loading"] == {
        "axes": 2, "lower": [0, -1, 0], "channel_slices": 2, "last_steps": 1, "parts": 1, "x_group": 80, "x_part": 80,
        "w_tap": 72,
    }  # fmt: skip
    assert struct["splits"] == {"workspace": 0, "count": 1, "whole": 4, "ticket_bytes": 0, "part": 0}
    assert struct["items"] == 4
    common = struct["problem"]["common"]
    names = ("channels", "filters", "pixels", "pitch", "m_tiles", "n_tiles")
    assert [common[name] for name in names] == [72, 130, 24, 6 * 72, 2, 1]
    assert struct["problem"]["taps"]["row"] == [6 * 72, 3 * 72, 72]
    x_map, w_map = plan.launches[-1].maps
    assert (x_map.role, x_map.member, x_map.sizes, x_map.steps) == ("x_last", "x_map", (160, 7, 5, 2), (1, 3, 1, 1))
    assert x_map.strides == (320, 7 * 320, 35 * 320)
    # Columns begin at -1 .. 2 along H (4 of them, the last tap 2 further), at 0, 3, 6 along W.
    assert (x_map.lower, x_map.upper, x_map.channels, x_map.pixels) == ((0, -1), (0, -2), 64, 256)
    assert (w_map.role, w_map.member, w_map.sizes) == ("packed", "w_map", (72, 6, 130, 2))
    assert w_map.strides == (144, 6 * 144, 130 * 6 * 144)
    assert (w_map.box, w_map.steps) == ((64, 1, 128, 1), (1, 1, 1, 1))
    assert plan.launches[-1].grid == (4, 1, 1)
    assert [space[::2] for space in plan.spaces] == [("packed", 2 * 130 * 6 * 144), ("x_last", 2 * 35 * 320)]
    assert roles(plan) == [["packed", "w"], ["x", "x_last"], ["packed", "x", "y"]]
    assert (plan.alignment, plan.otherwise) == ((), None)


SINGLE: dict[str, Any] = {"dtype": "float32", "precision": "tf32"}
BARRIERS = 16  # bytes: two barriers, for each stage of a ring; other blocks' numbers take as much


@pytest.mark.parametrize(
    ("tile", "count"),
    [
        # slices of 128 bytes, and 8 pieces of 16 x 40 floats in which sums turn round
        (WgmmaTile(64, 256, 5, ping_pong=True), 5 * 320 * 128 + 20480 + BARRIERS * (5 + 1)),
        # strips of x, slices of weights; both have stages
        (wgmma_tiles.STRIPS[0], 98304 + 6 * 128 * 128 + 20480 + BARRIERS * (6 + 3 + 1)),
        (wgmma_tiles.STRIPS[1], 131072 + 9 * 64 * 128 + 20480 + BARRIERS * (9 + 4 + 1)),
        (wgmma_tiles.STRIPS[2], 110592 + 12 * 64 * 128 + 20480 + BARRIERS * (12 + 3 + 1)),
        (wgmma_tiles.STRIPS[3], 98304 + 27 * 64 * 64 + 20480 + BARRIERS * (27 + 6 + 1)),
        (wgmma_tiles.STRIPS[4], 98304 + 27 * 64 * 64 + 20480 + BARRIERS * (27 + 6 + 1)),
        # sums go to y straight from registers
        (wgmma_tiles.PIXELS[0], 131072 + 6 * 128 * 128 + BARRIERS * (6 + 8 + 1)),
        (wgmma_tiles.PIXELS[1], 131072 + 6 * 128 * 128 + BARRIERS * (6 + 8 + 1)),
        (wgmma_tiles.PIXELS[2], 131072 + 12 * 64 * 128 + BARRIERS * (12 + 4 + 1)),
        (wgmma_tiles.PIXELS[3], 131072 + 12 * 64 * 128 + BARRIERS * (12 + 4 + 1)),
    ],
    ids=str,
)
def test_shared_memory_is_what_the_kernel_lays_out(tile: WgmmaTile, count: int) -> None:
    more = SINGLE if tile in wgmma_tiles.PIXELS else {}
    assert wgmma_tiles.shared_bytes(problem("conv", (1, 64, 9, 9), (64, 64, 3, 3), **more), tile) == count <= 232448


def test_shared_memory_of_a_transposed_conv_has_the_taps_of_all_phases() -> None:
    one = problem("conv_transpose", (1, 64, 9, 9), (64, 64, 3, 3), strides=[2, 2])
    taps = 9 * 4 + 3 * 12 + 6 * 4  # start, advance, row; count; first_row, rows, limit, y_first
    others = 4 * 384 * 128 + 20480 + BARRIERS * (4 + 1)
    assert wgmma_tiles.shared_bytes(one, WgmmaTile(128, 256, 4, ping_pong=False)) == others + 4 * taps


# ---------------------------------------------------------------- strips


def strips_of(one: Problem, name: str) -> dict[str, Any]:
    found: dict[str, Any] = fields(made(one, name).launches[-1])["strips"]
    return found


def test_the_structs_of_rows() -> None:
    """By hand: x (2, 128, 9, 72), w (130, 128, 3, 2), y (2, 130, 7, 73): 2 x 2 tiles of 4 rows and of 64 columns."""
    one = problem("conv", (2, 128, 9, 72), (130, 128, 3, 2), pads=[0, 1, 2, 1], dilations=[2, 1])
    plan = made(one, "conv_float16_3d_wgmma_64x256_rows")
    struct = fields(plan.launches[-1])
    assert struct["strips"] == {
        "extent": [1, 2, 2], "rows": 4, "columns": 64, "taps": [1, 1, 2], "inner": 3, "pieces": 8, "piece_h": 1,
        "piece_w": 0, "column_h": 1, "column_w": 0, "shift": 2 * 8192, "stages": 2, "bytes": 8 * 8192,
        "resident": 0,
    }  # fmt: skip
    common = struct["problem"]["common"]
    assert (common["m_tiles"], common["n_tiles"], common["pixels"], struct["items"]) == (3, 8, 2 * 7 * 73, 24)
    assert struct["loading"]["x_group"] == 128
    x_map, w_map = plan.launches[-1].maps
    assert (x_map.role, x_map.member, x_map.sizes, x_map.box) == ("x", "x_map", (72, 9, 1, 128, 2), (64, 1, 1, 64, 1))
    assert x_map.strides == (144, 1296, 1296, 128 * 1296)
    assert (w_map.role, w_map.member, w_map.box) == ("packed", "w_map", (64, 1, 64, 1))
    assert roles(plan) == [["packed", "w"], ["packed", "x", "y"]]
    assert plan.bytes_of("x_last") == 0


def test_the_structs_of_patches() -> None:
    """By hand: x (2, 40, 9, 71), w (64, 40, 3, 2), y (2, 64, 9, 72): a tile has 16 rows of 16 columns."""
    one = problem("conv", (2, 40, 9, 71), (64, 40, 3, 2), pads=[1, 1, 1, 1])
    plan = made(one, "conv_float16_3d_wgmma_64x256_patches")
    struct = fields(plan.launches[-1])
    assert struct["strips"] == {
        "extent": [1, 1, 5], "rows": 16, "columns": 16, "taps": [1, 1, 2], "inner": 3, "pieces": 1, "piece_h": 0,
        "piece_w": 0, "column_h": 1, "column_w": 0, "shift": 2048, "stages": 3, "bytes": 18 * 2048, "resident": 1,
    }  # fmt: skip
    assert (struct["problem"]["common"]["n_tiles"], struct["items"]) == (10, 10)
    x_map = plan.launches[-1].maps[0]
    assert (x_map.role, x_map.sizes, x_map.box) == ("x_last", (40, 71, 9, 1, 2), (64, 16, 18, 1, 1))
    assert x_map.strides == (80, 71 * 80, 639 * 80, 639 * 80)
    assert roles(plan) == [["packed", "w"], ["x", "x_last"], ["packed", "x", "y"]]
    why = "since its rows are not 16 bytes, or a multiple of that, apart"
    assert f"x is copied first, channels last, {why}; 3 taps along H share patches" in plan.reasons
    assert "each block fetches its weights once: all tiles have the same, and there is room for them" in plan.reasons


def test_a_block_has_a_multiprocessor_to_itself() -> None:
    """Beside another one it would wait for registers that nobody gives back."""
    assert {one.blocks_per_sm for one in wgmma.variants() if one.least_registers} == {1}


def test_pixels_behind_each_other_are_one_row() -> None:
    one = problem("conv", (2, 64, 6, 20), (64, 64, 1, 1))
    plan = made(one, "conv_float16_3d_wgmma_128x256_rows")
    found = strips_of(one, "conv_float16_3d_wgmma_128x256_rows")
    assert (found["extent"], found["rows"], found["columns"]) == ([1, 1, 1], 1, 256)
    steps = [found[name] for name in ("pieces", "piece_h", "piece_w", "column_h", "column_w")]
    assert steps == [4, 0, 64, 0, 64]
    assert (found["inner"], found["shift"], found["stages"], found["bytes"]) == (1, 0, 3, 32768)
    assert plan.launches[-1].maps[0].sizes == (120, 1, 1, 64, 2)
    assert "x is fetched as it is: 64 pixels of its rows at once" in plan.reasons
    for more in ({"strides": [2, 1], "pads": [0, 0, 5, 0]}, {"x_strides": (64 * 6 * 32, 6 * 32, 32, 1)}):
        apart = strips_of(problem("conv", (2, 64, 6, 24), (64, 64, 1, 1), **more), "conv_float16_3d_wgmma_128x256_rows")
        assert (apart["rows"], apart["columns"]) == (4, 64)


def test_taps_have_rows_of_their_own_where_all_do_not_fit() -> None:
    for kernel, dilation, inner, stages in ((3, 1, 3, 2), (3, 2, 1, 3), (4, 1, 1, 3)):
        one = problem("conv", (1, 64, 30, 64), (64, 64, kernel, 3), dilations=[dilation, 1])
        found = strips_of(one, "conv_float16_3d_wgmma_128x256_rows")
        assert (found["inner"], found["stages"], found["taps"]) == (inner, stages, [1, kernel // inner, 3])
    far = problem("conv", (1, 64, 90, 64), (64, 64, 3, 3), dilations=[20, 1])
    assert not any("_patches" in name for name in candidates(far))


def test_columns_that_do_not_exist_count_too() -> None:
    for images, rows in ((2**22, True), (2**23, False)):  # of each tile one column exists: 2**31 of 2**23 tiles
        found = candidates(problem("conv", (images, 1, 2, 8), (64, 1, 2, 8)))
        assert ("conv_float16_3d_wgmma_64x256_rows" in found) == any("_rows" in name for name in found) == rows
        if rows:
            assert fields(found["conv_float16_3d_wgmma_64x256_rows"].make().launches[-1])["items"] == images


@pytest.mark.parametrize(
    ("x", "w", "more"),
    [
        ((2, 64, 9, 15), (64, 64, 1, 3), {}),
        ((2, 64, 9, 15), (64, 64, 3, 3), {"strides": [2, 1]}),
        ((2, 64, 9, 15), (64, 64, 3, 3), {"strides": [1, 2]}),
        ((2, 64, 90), (64, 64, 3), {}),
    ],
)
def test_patches_are_for_taps_that_share_them(x: Ints, w: Ints, more: dict[str, Any]) -> None:
    assert not any("_patches" in name for name in candidates(problem("conv", x, w, **more)))
    strided = problem("conv_transpose", x, w, strides=[2] * (len(x) - 2))
    assert not any("_patches" in name for name in candidates(strided))


@pytest.mark.parametrize(
    ("layout", "name", "more"),
    [
        ("NCHW", "64x256_rows", {}),
        ("NHWC", "64x256_patches_direct", {}),
        ("NHWC", "64x256_direct", {}),
        ("NCHW", "128x128_pixel_rows", {"dtype": "float32", "precision": "3xtf32"}),
        ("NHWC", "128x128_pixel_patches_direct", {"dtype": "float32", "precision": "3xtf32"}),
    ],
)
def test_x_at_other_addresses_is_copied(layout: str, name: str, more: dict[str, Any]) -> None:
    one = problem("conv", (2, 72, 30, 32), (128, 72, 3, 3), layout=layout, **more)
    kernels = "conv_float32_3d_tf32_wgmma" if more else "conv_float16_3d_wgmma"
    plan = made(one, f"{kernels}_{name}")
    assert plan.alignment == (("x", 16),)
    assert plan.otherwise is not None
    other = plan.otherwise()
    assert roles(other) == [["packed", "w"], ["x", "x_last"], ["packed", "x", "y"]]
    assert (other.alignment, other.otherwise, other.problem) == ((), None, one)
    assert other.kernel == other.launches[-1].variant.name == f"{kernels}_64x256"
    assert other.launches[0] == plan.launches[0]  # weights packed for one serve the other


def test_a_row_of_pixels_at_another_address_is_copied_too() -> None:
    one = problem("conv", (2, 72, 30, 32), (128, 72, 1, 1))
    flat = made(one, "conv_float16_3d_wgmma_64x256_rows").otherwise
    assert flat is not None
    assert flat().problem == one


# ---------------------------------------------------------------- strips of pixels


def pixels_of(
    one: Problem, kernel: str, run: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Plan, dict[str, Any], dict[str, Any]]:
    """The plan of a kernel with runs of so many columns, its struct and that of its strips."""
    monkeypatch.setattr(wgmma_pixels, "_RUNS", (run,))
    plan = made(one, f"conv_float32_3d_tf32_wgmma_{kernel}")
    struct = fields(plan.launches[-1])
    return plan, struct, struct["strips"]


@pytest.mark.parametrize(("precision", "parts"), [("tf32", 1), ("3xtf32", 2)])
def test_the_structs_of_rows_of_pixels(precision: str, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: x (2, 64, 9, 36), w (130, 64, 3, 2), y (2, 130, 7, 37): 1 x 2 tiles of 8 rows of 32 columns.

    A tile meets 12 rows of 33 inputs; 40 of them, 160 bytes, bring four channels of eight pixels to different banks.
    """
    attributes: dict[str, Any] = {"pads": [0, 1, 2, 1], "dilations": [2, 1]}
    one = problem("conv", (2, 64, 9, 36), (130, 64, 3, 2), "float32", precision=precision, **attributes)
    plan, struct, strips = pixels_of(one, "64x256_pixel_rows", 32, monkeypatch)
    assert strips == {
        "extent": [1, 1, 2], "rows": 8, "columns": 32, "taps": [1, 1, 1], "inner_h": 3, "inner_w": 2, "pieces": 12,
        "piece_bytes": 40 * 4 * 32, "piece_h": 1, "piece_w": 0, "run": 32, "column_h": 1, "column_w": 0,
        "place_run": 5120, "place_column": 4, "shift_h": 2 * 5120, "shift_w": 4, "pitch": 160, "stages": 2,
        "bytes": 12 * 5120,
    }  # fmt: skip
    common = struct["problem"]["common"]
    assert (common["m_tiles"], common["n_tiles"], struct["items"]) == (3, 4, 12)
    loading = struct["loading"]
    assert [loading[name] for name in ("channel_slices", "parts", "x_group")] == [2, parts, 64]
    x_map, w_map = plan.launches[-1].maps
    assert (x_map.role, x_map.member, x_map.sizes, x_map.box) == ("x", "x_map", (36, 9, 1, 64, 2), (40, 1, 1, 32, 1))
    assert (x_map.strides, x_map.swizzle) == ((144, 1296, 1296, 64 * 1296), 0)
    assert (w_map.role, w_map.member) == ("packed", "w_map")
    assert (w_map.sizes, w_map.box) == ((64, 6, 130, parts), (32, 1, 64, 1))
    assert roles(plan) == [["packed", "w"], ["packed", "x", "y"]]
    assert (plan.bytes_of("x_last"), plan.bytes_of("packed")) == (0, 384 * 130 * 4 * parts)
    assert "x is fetched as it is: 40 pixels of its rows at once; 6 taps along H and W share them" in plan.reasons


def test_the_structs_of_patches_of_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: x (2, 40, 9, 20), w (64, 40, 3, 2), y (2, 64, 5, 21): 1 x 2 tiles of 8 rows of 16 columns.

    A tile meets 17 rows of 17 inputs; with 24 a patch is of whole patterns of eight pixels.
    """
    attributes: dict[str, Any] = {"pads": [1, 1, 1, 1], "strides": [2, 1]}
    one = problem("conv", (2, 40, 9, 20), (64, 40, 3, 2), "float32", precision="tf32", layout="NHWC", **attributes)
    plan, struct, strips = pixels_of(one, "128x128_pixel_patches_direct", 16, monkeypatch)
    assert strips == {
        "extent": [1, 1, 2], "rows": 8, "columns": 16, "taps": [1, 1, 1], "inner_h": 3, "inner_w": 2, "pieces": 1,
        "piece_bytes": 17 * 24 * 128, "piece_h": 0, "piece_w": 0, "run": 16, "column_h": 1, "column_w": 0,
        "place_run": 2 * 24 * 128, "place_column": 128, "shift_h": 24 * 128, "shift_w": 128, "pitch": 0,
        "stages": 2, "bytes": 17 * 24 * 128,
    }  # fmt: skip
    assert (struct["problem"]["common"]["n_tiles"], struct["items"]) == (4, 4)
    x_map = plan.launches[-1].maps[0]
    assert (x_map.role, x_map.sizes, x_map.box) == ("x", (40, 20, 9, 1, 2), (32, 24, 17, 1, 1))
    assert (x_map.strides, x_map.swizzle) == ((160, 3200, 28800, 28800), 128)
    assert "x is fetched as it is: its channels are contiguous; 6 taps along H and W share patches" in plan.reasons


def test_patches_have_no_more_pixels_than_taps_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight rows of 16 outputs meet 10 rows of 24 inputs, which are whole patterns of eight pixels as they are."""
    more: dict[str, Any] = {"layout": "NHWC", "dilations": [1, 4]}
    one = problem("conv", (2, 40, 30, 40), (64, 40, 3, 3), "float32", precision="tf32", **more)
    plan, _, strips = pixels_of(one, "128x128_pixel_patches_direct", 16, monkeypatch)
    assert (plan.launches[-1].maps[0].box, strips["bytes"]) == ((32, 24, 10, 1, 1), 10 * 24 * 128)


def test_the_structs_of_one_row_of_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: x (2, 64, 600), w (64, 64, 3), y (2, 64, 300): 3 tiles of 128 columns, two runs each.

    A run meets 129 inputs; 136 of them are 544 bytes, 32 more than a multiple of 128.
    """
    one = problem("conv", (2, 64, 600), (64, 64, 3), "float32", precision="tf32", strides=[2], pads=[1, 0])
    _, _, strips = pixels_of(one, "128x128_pixel_rows", 64, monkeypatch)
    assert [strips[name] for name in ("extent", "rows", "columns", "taps")] == [[1, 1, 3], 1, 128, [1, 1, 1]]
    assert [strips[name] for name in ("inner_h", "inner_w", "run", "column_h", "column_w")] == [1, 3, 64, 0, 64]
    pieces = ("pieces", "piece_bytes", "piece_h", "piece_w", "pitch", "stages", "bytes")
    assert [strips[name] for name in pieces] == [2, 544 * 32, 0, 128, 544, 3, 2 * 544 * 32]
    assert [strips[name] for name in ("place_run", "place_column", "shift_w")] == [544 * 32, 8, 4]


@pytest.mark.parametrize(
    ("dilations", "inner", "taps"),
    [
        ([1, 1], (3, 3), [1, 1, 1]),
        ([40, 1], (1, 3), [1, 3, 1]),  # too many rows from the first tap to the last
        ([40, 100], (1, 1), [1, 3, 3]),  # more inputs of a row than a box can have
    ],
)
@pytest.mark.parametrize("form", ["pixel_rows", "pixel_patches_direct"])
def test_taps_share_strips_as_far_as_there_is_room(
    form: str, dilations: list[int], inner: tuple[int, int], taps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wgmma_pixels, "_RUNS", (32,))
    layout = "NHWC" if "patches" in form else "NCHW"
    more: dict[str, Any] = {"layout": layout, "dilations": dilations, "pads": [0, 100, 0, 100]}
    one = problem("conv", (1, 64, 90, 304), (64, 64, 3, 3), "float32", precision="tf32", **more)
    found = [each for name, each in candidates(one).items() if name.endswith(form)]
    assert len(found) == 2
    for candidate in found:
        strips = fields(candidate.make().launches[-1])["strips"]
        assert ((strips["inner_h"], strips["inner_w"]), strips["taps"]) == (inner, taps)


@pytest.mark.parametrize(
    ("x", "w", "more", "form"),
    [
        ((2, 64, 9, 15), (64, 64, 3, 3), {}, ""),  # rows of 60 bytes
        ((2, 64, 9, 16), (64, 64, 3, 3), {"strides": [1, 2]}, "rows"),
        ((2, 64, 9, 16), (64, 64, 3, 3), {"x_strides": (64 * 9 * 20, 9 * 20, 20, 1)}, "rows"),
        ((2, 72, 9, 16), (128, 36, 3, 3), {"group": 2}, ""),  # a step would meet two groups
        ((2, 80, 9, 16), (128, 40, 3, 3), {"group": 2}, "rows"),  # a slice too, but its last steps are left out
        ((2, 64, 9, 16), (64, 32, 3, 3), {"group": 2}, "rows"),
        ((2, 64, 9, 16), (64, 64, 3, 3), {"x_strides": (0, 144, 16, 1)}, ""),
        ((2, 64, 9, 16), (64, 64, 3, 3), {"x_strides": (64 * 144, 144, -16, 1)}, ""),
        ((2, 42, 9, 15), (64, 42, 3, 3), {"layout": "NHWC"}, ""),  # pixels of 168 bytes
        ((2, 44, 9, 15), (64, 44, 3, 3), {"layout": "NHWC", "strides": [1, 3]}, "patches"),
        ((2, 72, 9, 15), (128, 36, 3, 3), {"layout": "NHWC", "group": 2}, ""),
        ((2, 80, 9, 15), (128, 40, 3, 3), {"layout": "NHWC", "group": 2}, "patches"),
    ],
)
def test_which_inputs_come_to_registers_as_they_are(x: Ints, w: Ints, more: dict[str, Any], form: str) -> None:
    one = problem("conv", x, w, "float32", precision="3xtf32", **more)
    found = candidates(one)
    assert found
    assert {name.split("_pixel_")[1].split("_")[0] for name in found if "_pixel_" in name} == (
        {form} if form else set()
    )
    copied = next(name for name in found if "_pixel_" not in name and "_split" not in name)
    assert found[copied].make().bytes_of("x_last") > 0


def test_a_transposed_conv_with_a_stride_has_none() -> None:
    one = problem("conv_transpose", (2, 64, 9, 16), (64, 64, 3, 3), "float32", precision="tf32", strides=[1, 2])
    assert candidates(one)
    assert not any("_pixel_" in name for name in candidates(one))


def test_weights_stay_where_all_tiles_have_the_same() -> None:
    """Rows of 64 x 256 have room for 9 slices of weights."""
    name = "conv_float16_3d_wgmma_64x256_rows"
    for w, group, resident in (
        ((64, 64, 3, 3), 1, 1),
        ((65, 64, 3, 3), 1, 0),  # two tiles of output channels
        ((64, 64, 5, 2), 1, 0),  # ten slices
        ((64, 65, 3, 2), 1, 0),  # twelve
        ((128, 64, 3, 3), 2, 0),
    ):
        one = problem("conv", (2, w[1] * group, 30, 64), w, group=group)
        assert strips_of(one, name)["resident"] == resident
    deep = problem("conv", (1, 64, 30, 64), (64, 64, 3, 3))  # shares of K have other weights each
    assert strips_of(deep, f"{name}_split")["resident"] == 0


@pytest.mark.parametrize(
    ("names", "taps", "more"),
    [
        (("128x256_rows", "64x256_patches"), 3, {}),  # those along H share strips
        (("tf32_wgmma_128x128_pixel_rows",), 1, {"dtype": "float32", "precision": "tf32"}),  # all share them
        (("tf32_wgmma_128x128_pixel_rows",), 1, {"dtype": "float32", "precision": "3xtf32"}),
    ],
)
def test_splits_divide_strips(names: tuple[str, ...], taps: int, more: dict[str, Any]) -> None:
    """A strip for each slice of 384 channels, and for each tap that shares it with none: at most as many splits."""
    one = problem("conv", (1, 384, 16, 16), (128, 384, 3, 3), pads=[1] * 4, **more)
    strips = taps * 384 // (32 if more else 64)
    for name in names:
        (found,) = (each for each in candidates(one) if each.endswith(f"{name}_split"))
        struct = fields(made(one, found).launches[-1])
        assert 1 < struct["splits"]["count"] <= strips
        assert prod(struct["strips"]["taps"]) * struct["loading"]["channel_slices"] == strips
        if name.endswith("rows"):
            assert roles(made(one, found))[0] == ["packed", "w", "workspace"]
    few = problem("conv", (1, 32, 16, 16), (128, 32, 3, 1), pads=[1, 0, 1, 0], **more)
    assert not any("rows_split" in name for name in candidates(few))


def test_channels_that_lie_last_are_not_copied() -> None:
    one = problem("conv", (8, 72, 30, 30), (128, 72, 3, 3), layout="NHWC")
    plan = made(one, "conv_float16_3d_wgmma_64x256_direct")
    assert roles(plan) == [["packed", "w"], ["packed", "x", "y"]]
    x_map, _ = plan.launches[-1].maps
    assert (x_map.role, x_map.sizes, x_map.strides) == ("x", (72, 30, 30, 8), (144, 30 * 144, 900 * 144))
    assert (x_map.channels, x_map.swizzle) == (64, 128)  # rows of a slice: 128 bytes
    assert "x is fetched as it is: its channels are contiguous" in plan.reasons


def test_tf32_is_rounded_first_by_the_copy_or_on_the_way() -> None:
    for precision, parts in (("tf32", 1), ("3xtf32", 2)):
        one = problem("conv", (2, 64, 6, 8), (64, 64, 1, 1), "float32", precision=precision, layout="NHWC")
        found = candidates(one)
        sizes = {f"{tile.block_m}x{tile.block_n}" for tile in wgmma_tiles.PIXELS}
        assert {name.removesuffix("_split") for name in found} == {
            *(f"conv_float32_3d_tf32_wgmma_{tile.block_m}x{tile.block_n}" for tile in wgmma_tiles.TILES),
            *(f"conv_float32_3d_tf32_wgmma_{size}_pixel_patches_direct" for size in sizes),
        }
        plan = made(one, "conv_float32_3d_tf32_wgmma_64x256")
        assert (plan.bytes_of("x_last"), plan.bytes_of("packed")) == (2 * 48 * 64 * 4 * parts, 64 * 64 * 4 * parts)
        assert fields(plan.launches[-1])["loading"]["parts"] == parts
        plan = made(one, "conv_float32_3d_tf32_wgmma_64x256_pixel_patches_direct")
        assert (plan.bytes_of("x_last"), plan.bytes_of("packed")) == (0, 64 * 64 * 4 * parts)
        assert fields(plan.launches[-1])["loading"]["parts"] == parts


def test_weights_of_one_tap_are_fetched_as_they_are() -> None:
    one = problem("conv", (2, 72, 30, 30), (128, 72, 1, 1), layout="NHWC")
    plan = made(one, "conv_float16_3d_wgmma_128x256_direct")
    assert roles(plan) == [["w", "x", "y"]]
    assert plan.alignment == (("x", 16), ("w", 16))
    assert plan.launches[-1].maps[1].sizes == (72, 1, 128, 1)
    assert fields(plan.launches[-1])["problem"]["common"]["pitch"] == 72
    assert (plan.bytes_of("packed"), plan.bytes_of("x_last")) == (0, 0)
    several = problem("conv", (2, 72, 30, 30), (128, 72, 1, 1), w_strides=(80, 1, 1, 1))
    assert made(several, "conv_float16_3d_wgmma_128x256").launches[-1].maps[1].strides == (160, 160, 160 * 128)
    last = problem("conv", (2, 64, 30, 30), (128, 64, 3, 2), w_strides=(6 * 64, 1, 2 * 64, 64))
    plan = made(last, "conv_float16_3d_wgmma_128x256")
    assert (plan.bytes_of("packed"), plan.launches[-1].maps[1].sizes) == (0, (64, 6, 128, 1))
    assert fields(plan.launches[-1])["problem"]["taps"]["row"][1:] == [128, 64]


# ---------------------------------------------------------------- splits


def test_few_tiles_are_divided_and_the_copy_sets_the_tickets_to_zero() -> None:
    one = problem("conv", (1, 512, 14, 14), (512, 512, 3, 3), pads=[1] * 4)
    plan = made(one, "conv_float16_3d_wgmma_128x256_split")  # 4 tiles
    struct = fields(plan.launches[-1])
    count = struct["splits"]["count"]
    assert struct["splits"] == {"workspace": 0, "count": count, "whole": 0, "ticket_bytes": 16, "part": 0}
    assert count > 4
    assert struct["items"] == plan.launches[-1].grid[0] == 4 * count
    assert plan.bytes_of("workspace") == 16 + 4 * count * 128 * 256 * 4
    assert roles(plan) == [["packed", "w"], ["workspace", "x", "x_last"], ["packed", "workspace", "x", "y"]]
    assert plan.sharing == ()
    assert f"each tile's K in {count} splits: 4 tiles are few for 132 multiprocessors" in plan.reasons


def test_without_a_copy_the_packing_sets_the_tickets_to_zero() -> None:
    one = problem("conv", (1, 512, 14, 14), (512, 512, 3, 3), pads=[1] * 4, layout="NHWC")
    plan = made(one, "conv_float16_3d_wgmma_128x256_direct_split")
    assert roles(plan) == [["packed", "w", "workspace"], ["packed", "workspace", "x", "y"]]
    pack, sums, totals = plan.sharing
    assert pack.packs
    assert [fields(launch)["splits"]["part"] for launch in (sums, totals)] == [1, 2]
    assert (sums.grid, totals.grid) == (plan.launches[-1].grid, (4, 1, 1))
    assert fields(totals)["items"] == 4


def test_with_neither_a_second_launch_adds_up() -> None:
    one = problem("conv", (1, 512, 14, 14), (512, 512, 1, 1), layout="NHWC")
    plan = made(one, "conv_float16_3d_wgmma_128x256_direct_split")
    assert roles(plan) == [["w", "workspace", "x", "y"]] * 2
    assert [fields(launch)["splits"]["part"] for launch in plan.launches] == [1, 2]
    assert plan.sharing == ()


def test_whole_rounds_of_tiles_stay_whole() -> None:
    one = problem("conv", (32, 256, 28, 28), (256, 256, 3, 3), pads=[1] * 4)  # 2 * 98 tiles
    plan = made(one, "conv_float16_3d_wgmma_128x256_split")
    splits = fields(plan.launches[-1])["splits"]
    assert splits["whole"] == 132
    assert fields(plan.launches[-1])["items"] == 132 + 64 * splits["count"]
    assert plan.launches[-1].grid == (132, 1, 1)
    many = problem("conv", (256, 256, 28, 28), (256, 256, 3, 3), pads=[1] * 4)
    assert not any(name.endswith("_split") for name in candidates(many))


# ---------------------------------------------------------------- variants


def test_every_kernel_is_named_once_and_is_for_hopper_alone() -> None:
    found = [each for each in wgmma.variants() if "wgmma" in each.name]
    assert len({each.name for each in found}) == len(found)
    assert {each.architectures for each in found} == {("sm_90a",)}
    assert all(
        each.layout.itemsize % 64 == 0 for each in found if each.parameter.startswith(("WgmmaStrips", "WgmmaPix"))
    )


# ---------------------------------------------------------------- choices

LARGE = [  # of 20 GFLOP or more, with 128 channels or more on either side
    ((1, 256, 512, 512), (256, 256, 3, 3), {"pads": [1] * 4}),
    ((8, 512, 64, 64), (512, 512, 3, 3), {"pads": [1] * 4}),
    ((16, 256, 56, 56), (256, 256, 3, 3), {"pads": [1] * 4}),
    ((8, 1280, 3000), (1280, 1280, 3), {"pads": [1, 1], "strides": [2]}),
    ((1, 128, 32, 64, 64), (256, 128, 3, 3, 3), {"pads": [1] * 6}),
]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("x", "w", "more"), LARGE)
def test_large_layers_are_made_by_wgmma(x: Ints, w: Ints, more: dict[str, Any], layout: str) -> None:
    one = problem("conv", x, w, "bfloat16", layout=layout, **more)
    found = offered.candidates(conv_families, one, HOPPER)
    best = offers.quickest(found)
    others = min(each.seconds for each in found if "wgmma" not in each.name)
    assert "wgmma" in best.name
    assert best.seconds <= 0.9 * others
    floor = 2 * _products(one) / 790e12  # as matrix products were measured on an H200
    assert best.seconds <= (1.7 if layout == "NCHW" else 1.45) * floor


def test_tiles_in_turns_are_for_short_sums() -> None:
    """A tile of 128 x 256 needs fewer bytes a product; while one of 64 x 256 is written, another one is made."""
    names = []
    for taps in (1, 3):
        one = problem("conv", (32, 128, 56, 57), (256, 128, taps, taps), layout="NHWC")
        names.append(min(candidates(one).values(), key=lambda each: each.seconds).name)
    assert names == ["conv_float16_3d_wgmma_64x256_direct", "conv_float16_3d_wgmma_128x256_direct"]


@pytest.mark.parametrize(
    ("x", "w", "more", "said"),
    [
        (
            *((8, 512, 64, 64), (512, 512, 3, 3), {"dtype": "bfloat16", "pads": [1] * 4}),
            "one tap per slice of K: 512 channels of a group in 8 slices of 64; two warpgroups make a tile",
        ),
        *(
            (
                *((8, 512, 64, 64), (512, 512, 3, 3), {"dtype": "float32", "precision": precision, "pads": [1] * 4}),
                "one tap per slice of K: 512 channels of a group in 16 slices of 32; two warpgroups make",
            )
            for precision in ("tf32", "3xtf32")
        ),
        (
            *((8, 1280, 3000), (1280, 1280, 3), {"pads": [1, 1], "strides": [2]}),
            "x is copied first, channels last, since the stride along its rows is 2",
        ),
    ],
)
def test_plans_say_how_they_multiply_and_why_they_copy(x: Ints, w: Ints, more: dict[str, Any], said: str) -> None:
    found = offers.quickest(list(candidates(problem("conv", x, w, **more)).values()))
    assert said in "\n".join(found.make().reasons)


def test_explain_says_why_there_is_no_wgmma(capsys: pytest.CaptureFixture[str]) -> None:
    gpuconv.explain("conv", (8, 512, 64, 64), (31, 512, 3, 3), dtype="bfloat16")
    assert "not by wgmma: a group has 31 output channels, less than the 32 of half a tile" in capsys.readouterr().out
    gpuconv.explain("conv", (8, 512, 64, 64), (512, 512, 3, 3), dtype="bfloat16", pads=[1] * 4, arch="sm_100")
    assert "wgmma" not in capsys.readouterr().out


def test_kernels_name_the_registers_that_their_warps_share() -> None:
    chosen = [one for one in wgmma.variants() if one.source == "conv/wgmma/slices.cu"]
    assert {one.least_registers for one in chosen} == {168}
    assert 65536 // wgmma_tiles.THREADS // 8 * 8 == 168  # that a launch has


@pytest.mark.parametrize(("layout", "pixels"), [("NHWC", 5 * 10), ("NCHW", 9 * 30)])
def test_pixels_that_no_output_meets_are_not_copied(layout: str, pixels: int) -> None:
    one = problem("conv", (2, 18, 9, 30), (130, 18, 1, 1), strides=[2, 3], layout=layout)
    plan = made(one, "conv_float16_3d_wgmma_128x256")
    assert plan.bytes_of("x_last") == 2 * pixels * 24 * 2
    steps = (1, 3, 2, 1) if layout == "NCHW" else (1, 1, 1, 1)
    assert plan.launches[-1].maps[0].steps[-4:] == steps
