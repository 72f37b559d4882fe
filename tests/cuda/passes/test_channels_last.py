"""Launches of the pass that moves channels last: general rules for many shapes, and some by hand."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest

from gpuconv.cuda.conv.wgmma import operands
from gpuconv.cuda.passes import channels_last
from gpuconv.cuda.passes.channels_last import Planes
from gpuconv.cuda.plan.launch import Launch
from tests.harness.plans import fields
from tests.kernels import passes
from tests.oracle.operands import LAYOUTS

Ints = tuple[int, ...]
BUNDLES, TILE_VECTORS, MOST_PIXELS = 8, 968, 112  # of passes/channels_last.cu
RUNS, SINGLY, BUNDLED = range(3)


def launched(x: Any, group: int = 1, filled: int | None = None, parts: int = 1, tickets: int = 0) -> Launch:
    channels = x.shape[1] // group
    w = np.zeros((group, channels, *(1 for _ in x.shape[2:])), x.dtype)
    vector = 16 // x.itemsize
    problem = passes.problem_of("conv", x, w, "ieee" if x.itemsize == 2 else "tf32", group=group)
    return operands.of_x(problem, filled or -(-channels // vector) * vector, parts, tickets)


def struct(shape: Ints, layout: str = "contiguous", dtype: str = "float16", **more: Any) -> dict[str, Any]:
    return fields(launched(LAYOUTS[layout](np.zeros(shape, dtype)), **more))


@pytest.mark.slow
def test_what_a_block_has_fits_and_blocks_have_everything() -> None:
    random, ways = Random(0), set()
    for _ in range(250):
        dtype, group = random.choice(("float16", "float32")), random.choice((1, 2, 3))
        vector = 8 if dtype == "float16" else 4
        channels, images = random.choice((1, 3, 8, 30, 64, 65, 200)), random.choice((1, 2, 7, 40))
        pixels = [random.choice((1, 2, 3, 5, 7, 8, 14, 30)) for _ in range(random.choice((1, 2, 3)))]
        layout = random.choice(("contiguous", "channels last", "strided", "reversed", "strided rows"))
        launch = launched(LAYOUTS[layout](np.zeros((images, group * channels, *pixels), dtype)), group)
        found = fields(launch)
        ways.add(found["way"])
        own = min(found["tile_pixels"], found["pixels"])
        assert found["images"] * found["pixels"] == images * prod(pixels)
        assert 1 <= found["tile_images"] <= found["images"]
        assert found["tile_images"] * own <= MOST_PIXELS or found["way"] != BUNDLED
        assert found["pixel_tiles"] == -(-found["pixels"] // found["tile_pixels"])
        assert found["pixel_tiles"] == 1 or found["tile_pixels"] % (2 * vector) == 0  # whole sectors of 32 bytes
        assert (found["channel_tiles"], found["groups"]) == (-(-found["filled"] // (BUNDLES * vector)), group)
        tiles = -(-found["images"] // found["tile_images"]) * found["pixel_tiles"]
        assert launch.grid == (tiles * group * found["channel_tiles"], 1, 1)
        first_of_any = own + vector - 1  # pixels of all vectors, if the first pixel is the last of its vector
        for pitch, lanes, needed in zip(found["pitch"], found["lanes"], (own, first_of_any), strict=True):
            assert (pitch - 1) * vector < needed <= pitch * vector
            assert pitch <= 2**lanes <= 32
            assert 2**lanes < 2 * pitch
        if found["way"] != BUNDLED:
            at_most = found["pitch"][found["way"] == RUNS]
            assert found["tile_images"] * BUNDLES * (vector * at_most + 1) <= TILE_VECTORS
        if found["way"] == RUNS and found["tile_images"] > 1:  # all have the same offset from a vector
            assert found["x_image"] % vector == 0
        if found["pixel_tiles"] > 1:
            assert found["tile_images"] == 1
    assert ways == {RUNS, SINGLY, BUNDLED}


@pytest.mark.parametrize(
    ("shape", "dtype", "images", "pixels", "pitch", "lanes"),
    [
        ((9, 8, 112), "float16", 1, 112, [14, 15], [4, 4]),  # two rows a warp, at any alignment
        ((9, 8, 113), "float16", 1, 64, [8, 9], [3, 4]),
        ((9, 8, 7, 7), "float16", 2, 49, [7, 7], [3, 3]),  # images are whole vectors apart
        ((9, 8, 9), "float16", 7, 9, [2, 2], [1, 1]),
        ((9, 8, 10), "float16", 4, 10, [2, 3], [1, 2]),
        ((9, 3, 7, 7), "float16", 1, 49, [7, 7], [3, 3]),  # and these are not
        ((9, 8, 1), "float16", 1, 9, [2, 2], [1, 1]),  # images of one pixel become the pixels of one image
        ((9, 4, 112), "float32", 1, 112, [28, 29], [5, 5]),
    ],
)
def test_tiles_by_hand(shape: Ints, dtype: str, images: int, pixels: int, pitch: list[int], lanes: list[int]) -> None:
    found = struct(shape, dtype=dtype)
    assert (found["tile_images"], found["tile_pixels"]) == (images, pixels)
    assert (found["pitch"], found["lanes"]) == (pitch, lanes)


@pytest.mark.parametrize(
    ("shape", "group", "x_strides", "run"),
    [
        ((2, 16, 7, 7), 2, (784, 49, 7, 1), (1568, 784, 392, 49)),  # all of x is one run
        ((2, 16, 7, 7), 2, (800, 49, 7, 1), (784, 0, 392, 49)),  # an image
        ((2, 16, 7, 7), 2, (784, 50, 7, 1), (49, 0, 0, 0)),  # a plane
        ((1, 16, 7, 7), 2, (999, 49, 7, 1), (784, 0, 392, 49)),
        (
            (3, 8, 7, 7),
            1,
            (49, 147, 7, 1),
            (1176, 0, 0, 147),
        ),  # pixels of an image follow those of the one before: one image
        ((3, 1, 7, 7), 1, (49, 99, 7, 1), (147, 0, 0, 0)),
    ],
)
def test_a_run_goes_as_far_as_planes_follow_each_other(shape: Ints, group: int, x_strides: Ints, run: Ints) -> None:
    memory = np.zeros(4096, np.float16)
    x = np.lib.stride_tricks.as_strided(memory, shape, [2 * step for step in x_strides], writeable=False)
    found = fields(launched(x, group))
    assert tuple(found[name] for name in ("run", "run_image", "run_group", "run_channel")) == run


def test_where_what_is_written_goes() -> None:
    found = struct((2, 12, 5, 3), group=2, filled=8, parts=2, tickets=7)  # (2, 15, 2, 2, 8)
    assert tuple(found[f"y_{axis}"] for axis in ("image", "group", "part", "pixel")) == (15 * 32, 16, 8, 32)
    assert (found["channels"], found["filled"], found["tickets"]["count"]) == (6, 8, 7)
    assert (found["x_image"], found["x_group"], found["x_channel"], found["way"]) == (180, 90, 15, RUNS)
    assert (found["extent"], found["x_pixel"]) == ([1, 1, 15], [0, 0, 1])
    rows = struct((2, 12, 5, 3), "strided rows")
    assert (rows["extent"][1:], rows["way"]) == ([5, 3], SINGLY)
    last = struct((2, 12, 5, 3), "channels last")
    assert (last["x_channel"], last["x_pixel"], last["way"]) == (1, [0, 0, 12], BUNDLED)
    assert (last["images"], last["pixels"]) == (1, 30)  # pixels of the second image follow those of the first


def planes(images: int, pixels: Ints, x: Ints, x_pixels: Ints, y: Ints) -> Planes:
    return Planes(images, 2, 3, 8, pixels, x, x_pixels, y)


def test_images_whose_pixels_follow_each_other_are_one() -> None:
    follow = planes(4, (5, 7), (35, 420, 140), (7, 1), (35 * 16, 9, 8, 16))
    assert channels_last._together(follow) == replace(follow, images=1, pixels=(140,), x=(0, 420, 140), x_pixels=(1,))
    elsewhere = replace(follow, y=(36 * 16, 9, 8, 16))  # their copies are not
    assert channels_last._together(elsewhere) == replace(elsewhere, pixels=(35,), x_pixels=(1,))
    apart = replace(follow, x=(36, 420, 140))
    assert channels_last._together(apart) == replace(apart, pixels=(35,), x_pixels=(1,))
    rows = replace(follow, x_pixels=(8, 1))
    assert channels_last._together(rows) == rows
    single = replace(follow, images=1, groups=1, channels=1)
    assert channels_last._together(single) == replace(single, pixels=(35,), x=(0, 0, 0), x_pixels=(1,))
