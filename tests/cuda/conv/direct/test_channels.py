"""Depthwise Conv with channels last as a direct sum: when, with what tiles, and right in every form and layout."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.direct import base as direct_base
from gpuconv.cuda.conv.direct import channels as channels_plan
from gpuconv.cuda.conv.direct.channels import FORMS, ChannelTile
from gpuconv.cuda.plan.limits import representative
from gpuconv.rules import geometry as geometries
from tests.emulator import emulated_cuda
from tests.harness import direct_forms
from tests.harness.emulated import preferred
from tests.harness.offered import candidates
from tests.harness.plans import conv_of, fields, problem
from tests.oracle import oracle
from tests.oracle.operands import CONV_DTYPES, values, with_channels_last
from tests.oracle.oracle import assert_close

HOPPER = representative("sm_90a").limits
Ints = tuple[int, ...]


def made(operator: str, x: Ints, w: Ints, dtype: str = "float32", **attributes: Any) -> correlation.Problem:
    return problem(operator, x, w, dtype, layout="NHWC", **attributes)


def forms(*arguments: Any, **attributes: Any) -> set[str]:
    found = candidates(channels_plan, made(*arguments, **attributes), HOPPER)
    return {one.name.rpartition("channels_")[2] for one in found}


@pytest.mark.parametrize(
    ("w", "attributes", "found"),
    [
        ((6, 1, 3, 3), {}, {"7s1", "taps"}),
        ((12, 1, 3, 3), {"strides": [1, 2]}, {"4s2", "taps"}),
        ((6, 1, 3, 3), {"strides": [2, 3]}, {"taps"}),
        ((6, 1, 3, 3), {"strides": [2, 3], "dilations": [1, 3]}, {"7s1", "taps"}),  # strides equal to dilations
        ((6, 1, 3, 3), {"strides": [1, 4], "dilations": [1, 2]}, {"4s2", "taps"}),
    ],
)
def test_forms_follow_how_windows_share_inputs(w: Ints, attributes: dict[str, Any], found: set[str]) -> None:
    assert forms("conv", (2, 6, 20, 30), w, group=6, **attributes) == found


def test_a_depthwise_layer_with_channels_last_is_one_launch() -> None:
    plan = conv_families.plan(made("conv", (64, 144, 56, 56), (144, 1, 3, 3), group=144, pads=[1] * 4), HOPPER)
    (launch,) = plan.launches
    assert "_channels_" in launch.variant.name
    assert (plan.bytes_of("workspace"), plan.bytes_of("packed")) == (0, 0)
    assert [role for role, _ in launch.pointers] == ["x", "w", "y"]
    assert not any(reason.startswith("no direct sum") for reason in plan.reasons)


@pytest.mark.parametrize(
    ("x_shape", "x_strides", "whole"),
    [
        ((2, 8, 5, 6), (240, 1, 48, 8), True),
        ((2, 8, 5, 6), (242, 1, 48, 8), False),
        ((1, 8, 5, 6), (242, 1, 48, 8), True),  # with a single image, its stride does not matter
        ((2, 8, 5, 6), (300, 1, 60, 10), False),
        ((2, 6, 5, 6), (240, 1, 48, 8), False),
    ],
)
def test_vectors_are_whole_where_pixels_are_made_of_them(x_shape: Ints, x_strides: Ints, whole: bool) -> None:
    channels = x_shape[1]
    problem = made("conv", x_shape, (channels, 1, 3, 3), x_strides=x_strides, group=channels)
    for one in candidates(channels_plan, problem, HOPPER):
        assert fields(one.make().launches[0])["in_vectors"] == whole


# ---------------------------------------------------------------- tiles


def tiles() -> list[tuple[correlation.Problem, ChannelTile]]:
    random, found = Random(0), []
    for form, dtype, _ in product(FORMS, ("float16", "float32", "float64"), range(6)):
        problem = direct_forms.some_channels(form, random)
        assert problem.w_shape is not None
        of = made("conv", problem.x_shape, problem.w_shape, dtype, **problem.attributes)
        view = direct_base.view_of(of)
        tile = channels_plan.best(view, form, channels_plan.in_vectors(of), HOPPER)
        assert tile is not None
        found.append((view, tile))
    return found


def test_blocks_cover_all_outputs_once_and_hold_no_more_threads_than_there_are() -> None:
    for view, tile in tiles():
        assert tile.vectors * tile.rows * tile.columns <= direct_base.THREADS
        channels, columns, rows = tile.blocks_by_axis
        share = tile.vectors * tile.view.vector
        assert (channels - 1) * share < view.group * view.filters <= channels * share
        counts = ((rows, tile.rows * tile.walk), (columns, tile.columns))
        for extent, each, apart, (blocks, threads) in zip(
            view.columns[1:], tile.per_thread, tile.apart, counts, strict=True
        ):
            number = np.arange(blocks * threads)
            first = number // apart * (each * apart) + number % apart
            outputs = (first[:, None] + np.arange(each) * apart).ravel()
            assert set(range(extent)) <= set(outputs.tolist())
            assert len(set(outputs.tolist())) == len(outputs)


def test_shared_memory_has_room_for_the_weights_that_are_staged() -> None:
    for view, tile in tiles():
        assert tile.pitch >= tile.vectors * tile.view.vector
        assert tile.pitch % tile.view.vector == 0
        assert tile.shared_bytes == tile.view.word * tile.pitch * tile.step * view.taps[2]
        assert (tile.parts - 1) * tile.step < view.taps[1] <= tile.parts * tile.step


def test_outputs_of_a_thread_share_the_inputs_of_dilated_taps() -> None:
    """Row r and tap kh read the same input as row 0 and tap kh + r * advance."""
    for view, tile in tiles():
        assert tile.apart[0] * view.column_strides[1] == tile.advance * view.dilations[1]
        if tile.form[0]:
            assert tile.apart[1] * view.column_strides[2] == tile.form[0] * view.dilations[2]


# ---------------------------------------------------------------- in the emulator


@pytest.mark.emulator
@pytest.mark.kernels("conv/direct/channels.cu")
@pytest.mark.parametrize("dtype", CONV_DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_channels_one_by_one_have_the_bits_of_whole_vectors(form: tuple[int, int, int], dtype: Any) -> None:
    """24 channels in pixels of 24 and of 25 elements, and the first 21 channels."""
    x, w = values("nonfinite", 0, (2, 24, 9, 21), dtype), values("normal", 1, (24, 1, 3, 4), dtype)
    attributes = {"strides": [1, form[0] or 3], "pads": [1, 2, 0, 1]}
    results = []
    for channels, more in ((24, 0), (24, 1), (21, 0)):
        share, of_w = with_channels_last(x[:, :channels], more=more), w[:channels]
        y_shape = geometries.conv(share.shape, of_w.shape, None, group=channels, **attributes).y_shape
        out = with_channels_last(np.zeros(y_shape, dtype), more=more)
        with preferred(channels_plan.variant(str(dtype), form).name), emulated_cuda() as emulated:
            results.append(gpuconv.conv(share, of_w, group=channels, **attributes, activation="relu", out=out))
        (launch,) = emulated.launches
        assert fields(launch)["in_vectors"] == (channels == 24 and more == 0)
    whole, apart, fewer = (np.ascontiguousarray(y).view(np.uint8) for y in results)
    assert np.array_equal(whole, apart)
    assert np.array_equal(np.ascontiguousarray(results[0][:, :21]).view(np.uint8), fewer)


@pytest.mark.emulator
@pytest.mark.kernels("conv/direct/channels.cu")
def test_conv_transpose_of_stride_1() -> None:
    x, w = values("integers", 0, (2, 8, 9, 21), "float32"), values("integers", 1, (8, 1, 4, 6), "float32")
    attributes = {"group": 8, "pads": [1, 0, 2, 3], "dilations": [2, 1]}
    expected = oracle.conv_transpose(x, w, **attributes)
    out = with_channels_last(np.zeros(expected.value.shape, np.float32))
    with preferred("channels_7s1"), emulated_cuda() as emulated:
        y = gpuconv.conv_transpose(with_channels_last(x), w, **attributes, out=out)
    assert [launch.variant.name for launch in emulated.launches] == ["depthwise_float32_3d_channels_7s1"]
    assert_close(y, expected, "float32")


def test_a_tile_by_hand() -> None:
    work = conv_of(
        "float32", batch=2, group=33, channels=1, filters=2,
        x_extent=(9, 140, 150), y_extent=(3, 31, 23), taps=(2, 5, 3), column_strides=(3, 4, 6), dilations=(1, 6, 4),
        pads=(1, 2, 3),
    )  # fmt: skip
    tile = ChannelTile(work, (2, 4, 4), True, vectors=7, rows=2, columns=3, walk=2)
    rows = channels_plan._OUTPUTS // 4
    assert tile.per_thread == (rows, 4)
    # Rows 3 * 4 = 2 * 6 apart share every second tap, columns 2 * 6 = 3 * 4 apart every third.
    assert (tile.apart, tile.advance) == ((3, 2), 2)
    assert replace(tile, form=(0, 1, 4)).apart == (3, 1)
    assert tile.tiles == (-(-31 // (3 * rows)) * 3, -(-23 // (2 * 4)) * 2)
    assert tile.filters == 33 * 2
    assert tile.blocks_by_axis == (-(-66 // (7 * 4)), 2, -(-tile.tiles[0] // (2 * 2)))
    assert tile.blocks == prod(tile.blocks_by_axis) * 3 * 2
    # Seven vectors of four channels, and one more, so that the next tap begins in another bank. All five rows fit.
    assert (tile.pitch, tile.step, tile.parts) == ((7 + 1) * 4, 5, 1)
    assert tile.shared_bytes == 4 * 32 * 5 * 3
    large = replace(tile, view=replace(work, taps=(2, 65, 70)))
    row = 4 * 32 * 70  # bytes of the weights of a row of taps
    assert large.step == channels_plan._WEIGHT_BYTES // row
    assert large.parts == -(-65 // large.step)
    assert large.shared_bytes == row * large.step
