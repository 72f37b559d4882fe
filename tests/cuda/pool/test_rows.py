"""Which MaxPool kernel a problem gets, and the launches of the kernels of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from gpuconv.cuda.call.prepared import contiguous_strides
from gpuconv.cuda.plan.launch import Launch, Plan
from gpuconv.cuda.plan.limits import representative
from gpuconv.cuda.plan.offers import Candidate
from gpuconv.cuda.pool import channels, patches
from gpuconv.cuda.pool import families as pool_families
from gpuconv.cuda.pool.problem import PoolProblem
from gpuconv.rules import dtypes
from gpuconv.rules import geometry as geometries
from tests.cuda.pool.problems import made
from tests.harness.emulated import preferred
from tests.harness.offered import why_not
from tests.harness.plans import channels_last, fields

pytestmark = pytest.mark.slow

HOPPER = representative("sm_90a").limits
Ints = tuple[int, ...]


def planned(
    x: Ints,
    *,
    dtype: str = "float32",
    indices: bool = False,
    x_strides: Ints | None = None,
    order: Callable[[Ints], Ints] = contiguous_strides,
    **attributes: Any,
) -> Plan:
    """Plan for arrays in this order, except for the given strides of x."""
    geometry = geometries.max_pool(x, **attributes)
    dense, given = order(geometry.y_shape), x_strides or order(x)
    return pool_families.for_pool(geometry, dtype, given, dense, dense if indices else None, HOPPER)


planned_last = partial(planned, order=channels_last)


def launched(kernel: str, x: Ints, plan: Callable[..., Plan] = planned, **more: Any) -> tuple[Launch, dict[str, Any]]:
    """Return the launch of the kernel with this part of its name, and its struct with dividers as their divisors."""
    with preferred(kernel):
        (launch,) = plan(x, **more).launches
    assert kernel in launch.variant.name
    return launch, fields(launch)


# ---------------------------------------------------------------- which kernel


@pytest.mark.parametrize(
    ("x", "dtype", "indices", "attributes", "kernel"),
    [
        ((32, 64, 112, 112), "bfloat16", False, ([3, 3], [2, 2], [1, 1, 1, 1]), "3d_vectors_3x2"),
        ((32, 64, 112, 112), "int8", False, ([3, 3], [2, 2], [1, 1, 1, 1]), "3d_vectors_3x2"),
        ((32, 64, 112, 112), "bfloat16", True, ([3, 3], [2, 2], [1, 1, 1, 1]), "3d_vectors_3x2_indices"),
        ((8, 64, 360, 480), "float32", True, ([2, 2], [2, 2], [0] * 4), "3d_vectors_2x2_indices"),
        ((32, 480, 14, 14), "bfloat16", False, ([3, 3], [1, 1], [1] * 4), "3d_tiles"),
        ((64, 64, 55, 55), "float16", False, ([3, 3], [2, 2], [0] * 4), "3d_tiles"),
        ((8, 512, 20, 20), "float32", False, ([13, 13], [1, 1], [6] * 4), "3d_tiles"),
        ((1, 64, 128, 128, 128), "bfloat16", False, ([2] * 3, [2] * 3, [0] * 6), "3d_vectors_2x2"),
        ((32, 80, 16000), "float32", False, ([3], [3], [0, 0]), "3d_tiles"),
        ((8, 64, 112, 112), "float32", False, ([7, 7], [3, 3], [0] * 4), "3d_tiles"),
        ((8, 64, 112, 112), "float64", False, ([4, 4], [4, 4], [0] * 4), "3d"),
        ((32, 64, 512, 512), "float32", False, ([4, 4], [1, 1], [0] * 4), "3d_tiles"),
        ((64, 192, 65536), "float32", False, ([8], [1], [0, 0], [3]), "3d_tiles"),
    ],
)
def test_usual_layers_get_the_kernel_that_is_for_them(
    x: Ints, dtype: str, indices: bool, attributes: tuple[Any, ...], kernel: str
) -> None:
    names = dict(zip(("kernel_shape", "strides", "pads", "dilations"), attributes, strict=False))
    (launch,) = planned(x, dtype=dtype, indices=indices, **names).launches
    assert launch.variant.name == f"max_pool_{dtype}_{kernel}"


@pytest.mark.parametrize("dtype", dtypes.MAX_POOL_DTYPES)
@pytest.mark.parametrize("indices", [False, True], ids=["values", "indices"])
def test_usual_layers_with_channels_last_get_the_kernel_of_channels(dtype: str, indices: bool) -> None:
    for x, kernel, stride, pad, name in (
        ((32, 64, 112, 112), 3, 2, 1, "channels"),
        ((32, 480, 14, 14), 2, 2, 0, "channels"),
        ((8, 512, 20, 20), 13, 1, 6, "patches"),
        ((1, 64, 64, 64, 64), 2, 2, 0, "channels"),
        ((32, 65, 112, 112), 3, 2, 1, "channels"),
        ((8, 513, 20, 20), 13, 1, 6, "patches"),
    ):
        if indices and kernel == 13:  # axis by axis may be faster then
            continue
        if (dtype, indices, x) == ("float64", True, (32, 480, 14, 14)):  # one output a thread is as fast
            continue
        rank = len(x) - 2
        plan = planned_last(
            x,
            dtype=dtype,
            indices=indices,
            kernel_shape=[kernel] * rank,
            strides=[stride] * rank,
            pads=[pad] * 2 * rank,
        )
        (launch,) = plan.launches
        assert launch.variant.name == f"max_pool_{dtype}_3d_{name}" + "_indices" * indices
        assert any("channels last: " in reason for reason in plan.reasons)
        assert any("channels last: neighbours of a row lie" in reason for reason in plan.reasons)


def test_other_problems_with_channels_last_get_the_general_kernel_along_the_channels() -> None:
    plan = planned_last((2, 16, 9, 16), kernel_shape=[2, 2], dilations=[1, 2])
    (launch,) = plan.launches
    (struct,) = np.frombuffer(launch.parameters, launch.variant.layout)
    assert (launch.variant.source, struct["channels_last"]) == ("pool/general.cu", 1)
    assert any("channels last: one output a thread" in reason for reason in plan.reasons)


@pytest.mark.parametrize("dense", ["x", "y", "indices"])
def test_channels_must_be_neighbours_in_every_array(dense: str) -> None:
    x: Ints = (2, 16, 12, 12)
    geometry = geometries.max_pool(x, kernel_shape=[3, 3])
    shapes = {"x": x, "y": geometry.y_shape, "indices": geometry.y_shape}
    lying = {
        name: contiguous_strides(shape) if name == dense else channels_last(shape) for name, shape in shapes.items()
    }
    problem = PoolProblem(geometry, "float32", lying["x"], lying["y"], lying["indices"])
    alone = PoolProblem(geometry, "float32", lying["x"], lying["y"], None)
    for family in (channels, patches):
        assert why_not(family, problem, HOPPER) == "channels are not neighbours"
        assert (why_not(family, alone, HOPPER) is None) == (dense == "indices")


@pytest.mark.parametrize(
    ("x", "x_strides", "y_strides", "channels_last"),
    [
        ((2, 3, 4, 5), (60, 1, 15, 3), (24, 1, 8, 2), True),
        ((2, 3, 4, 5), (60, -1, -15, 3), (24, 1, 8, 2), True),  # turned round
        ((2, 3, 4, 5), (60, 2, 30, 6), (48, 2, 16, 4), True),  # every other channel
        ((2, 3, 4, 5), (60, 1, 15, 3), (36, 12, 4, 1), False),  # y has its rows last
        ((2, 3, 4, 5), (60, 20, 5, 1), (36, 1, 12, 3), False),  # x has
        ((2, 1, 4, 5), (20, 1, 5, 1), (12, 1, 4, 1), False),  # there is only one channel
        ((2, 3, 4, 5), (0, 0, 0, 0), (36, 12, 4, 1), False),  # broadcast
        ((2, 3, 1, 5), (15, 1, 0, 3), (12, 1, 99, 3), True),  # the stride of an axis of one element does not matter
    ],
)
def test_channels_are_last_where_they_lie_closest_together(
    x: Ints, x_strides: Ints, y_strides: Ints, channels_last: bool
) -> None:
    geometry = geometries.max_pool(x, kernel_shape=[1, 2])
    assert PoolProblem(geometry, "float32", x_strides, y_strides, None).channels_last is channels_last


def test_column_major_numbers_do_not_matter_without_indices_or_with_one_axis() -> None:
    plane = planned((2, 3, 16, 16), kernel_shape=[2, 2], strides=[2, 2], storage_order=1)
    line = planned((64, 30, 6000), kernel_shape=[7], strides=[1], storage_order=1, indices=True)
    assert [plan.launches[0].variant.source for plan in (plane, line)] == ["pool/vectors.cu", "pool/tiles.cu"]


# ---------------------------------------------------------------- structs


def test_the_struct_of_rows_of_vectors() -> None:
    attributes: dict[str, Any] = {"kernel_shape": [2, 3, 3], "strides": [3, 2, 2], "pads": [1, 1, 1, 0, 0, 0]}
    launch, struct = launched("vectors_3x2", (2, 5, 7, 11, 48), indices=True, **attributes)  # y: (2, 5, 3, 5, 24)
    assert struct == {
        "x": 0, "y": 0, "indices": 0, "plane": 7 * 11 * 48,
        "items": 2 * 5 * 3 * 2 * 12,  # strips of four rows, vectors of the columns of two outputs
        "x_extent": [7, 11, 48], "y_extent": [3, 5, 24], "kernel": 2, "stride": 3, "pad": [1, 1, 1],
        "x_batch": 5 * 7 * 11 * 48, "x_channel": 7 * 11 * 48, "x_stride": [11 * 48, 48],
        "y_batch": 5 * 3 * 5 * 24, "y_channel": 3 * 5 * 24, "y_stride": [5 * 24, 24],
        "indices_batch": 5 * 3 * 5 * 24, "indices_channel": 3 * 5 * 24, "indices_stride": [5 * 24, 24],
        "vectors": 12, "strips": 2, "depths": 3, "channels": 5,
    }  # fmt: skip
    assert launch.grid == (-(-720 // 31 // 4), 1, 1)  # one lane of each warp overlaps its neighbours' vector
    assert launch.pointers == (("x", 0), ("y", 8), ("indices", 16))


@pytest.mark.parametrize(
    ("kernel", "stride", "pads", "lanes"),
    [
        (2, 2, [0, 0, 0, 0], 32),
        (3, 2, [0, 1, 0, 0], 31),  # a lane on the vector before, for the padding
        (3, 2, [1, 0, 0, 0], 31),  # or on the one after, for the last windows
        (3, 2, [0, 0, 0, 0], 31),
        (3, 1, [0, 0, 0, 0], 31),
        (3, 1, [0, 1, 0, 0], 30),  # or both
        (3, 1, [2, 1, 0, 0], 30),
        (3, 1, [1, 2, 0, 0], 31),
        (3, 1, [2, 0, 0, 0], 31),
    ],
)
def test_lanes_of_a_warp_help_their_neighbours(kernel: int, stride: int, pads: list[int], lanes: int) -> None:
    attributes: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": pads}
    launch, struct = launched(f"vectors_{kernel}x{stride}", (64, 5, 9, 64), **attributes)
    warps = -(-struct["items"] // lanes)
    assert launch.grid == (-(-warps // 4), 1, 1)


def test_values_alone_have_no_address_of_indices() -> None:
    for kernel in ("vectors_2x2", "tiles"):
        launch, struct = launched(kernel, (2, 3, 8, 16), kernel_shape=[2, 2], strides=[2, 2])
        assert launch.pointers == (("x", 0), ("y", 8))
        assert struct["indices_stride"] == [0, 0]


def test_the_struct_of_vectors_of_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_WALKS", (4,))
    attributes: dict[str, Any] = {"kernel_shape": [5, 3], "strides": [3, 2], "pads": [1, 1, 2, 0]}
    launch, struct = launched(
        "channels", (2, 48, 11, 30), planned_last, indices=True, **attributes
    )  # y: (2, 48, 4, 15)
    assert struct == {
        "x": 0, "y": 0, "indices": 0, "plane": 11 * 30,
        "items": 2 * 4 * 4 * 24,  # walks of four outputs, vectors of two channels
        "x_extent": [1, 11, 30], "y_extent": [1, 4, 15], "kernel": [1, 5, 3], "stride": [1, 3, 2], "pad": [0, 1, 1],
        "x_batch": 11 * 30 * 48, "x_stride": [0, 30 * 48, 48],
        "y_batch": 4 * 15 * 48, "y_stride": [0, 15 * 48, 48],
        "indices_batch": 4 * 15 * 48, "indices_stride": [0, 15 * 48, 48],
        "channels": 48, "walk": 4, "whole": 1, "rows_first": 1, "vectors": 24, "walks": 4, "heights": 4, "depths": 1,
    }  # fmt: skip
    assert launch.grid == (3, 1, 1)
    assert launch.pointers == (("x", 0), ("y", 8), ("indices", 16))


def test_the_struct_of_patches_of_pixels() -> None:
    attributes: dict[str, Any] = {"kernel_shape": [7, 5], "strides": [1, 3], "pads": [3, 1, 2, 0]}
    launch, struct = launched(
        "patches", (64, 48, 11, 30), planned_last, indices=True, **attributes
    )  # y: (64, 48, 10, 9)
    assert struct == {
        "x": 0, "y": 0, "indices": 0, "plane": 11 * 30,
        "x_extent": [1, 11, 30], "y_extent": [1, 10, 9], "kernel": [1, 7, 5], "stride": [1, 1, 3],
        "dilation": [1, 1, 1], "pad": [0, 3, 1],
        "x_batch": 11 * 30 * 48, "x_stride": [0, 30 * 48, 48],
        "y_batch": 10 * 9 * 48, "y_stride": [0, 9 * 48, 48],
        "indices_batch": 10 * 9 * 48, "indices_stride": [0, 9 * 48, 48],
        "channels": 48, "tile_rows": 10, "tile_columns": 5, "x_rows": 11, "whole": 1,
        "lines_at": 11 * 17 * 32, "places_at": 11 * 17 * 32 + 10 * 17 * 32,
        "step": [1, 0],  # down, windows share all taps but one; along they are three apart
        "channel_tiles": 6, "column_tiles": 2, "row_tiles": 1, "depths": 1, "depth_dilation": 1, "steps": [1, 1],
        "vectors": 4, "x_columns": 4 * 3 + 5, "line": 4 * 3 + 5, "down": 2, "along": 1,
    }  # fmt: skip
    assert launch.grid == (64 * 2 * 6, 1, 1)
    assert launch.shared_bytes == struct["places_at"] + 10 * 17 * 4 * 8
    assert launch.pointers == (("x", 0), ("y", 8), ("indices", 16))


@pytest.mark.parametrize(
    ("kernel", "channels", "dtype", "indices", "vectors", "tiles"),
    [
        ("channels", 12, "float16", False, 2, 0),
        ("channels", 17, "int8", False, 2, 0),
        ("channels", 33, "float32", False, 9, 0),
        ("channels", 33, "float32", True, 17, 0),
        ("channels", 3, "float64", False, 2, 0),
        ("patches", 33, "float32", False, 2, 5),  # vectors of a block, and blocks along the channels
        ("patches", 33, "float32", True, 4, 5),
    ],
)
def test_channels_that_are_no_whole_vectors_are_taken_one_by_one(
    kernel: str, channels: int, dtype: str, indices: bool, vectors: int, tiles: int
) -> None:
    attributes = {"kernel_shape": [3, 3], "pads": [1] * 4, "dtype": dtype, "indices": indices}
    launch, struct = launched(kernel, (64, channels, 12, 12), planned_last, **attributes)
    assert (struct["whole"], struct["channels"], struct["vectors"]) == (0, channels, vectors)
    assert struct.get("channel_tiles", 0) == tiles
    if kernel == "channels":
        walks = -(-12 // struct["walk"])
        assert struct["items"] == 64 * 12 * walks * vectors
        assert launch.grid == (-(-struct["items"] // 256), 1, 1)


@pytest.mark.parametrize(
    ("count", "more", "indices", "whole"),
    [(32, 0, False, True), (33, 0, False, False), (34, 0, True, True), (32, 2, False, False), (32, 1, True, False)],
)
def test_a_plan_says_why_it_takes_channels_one_by_one(count: int, more: int, indices: bool, whole: bool) -> None:
    """Pixels may be further apart than their channels need."""
    problem = made((2, count, 12, 12), last=True, indices=indices, kernel_shape=[3, 3])
    step = count + more
    problem = replace(problem, x_strides=(144 * step, 1, 12 * step, step))
    said = f"one by one: pixels are not made of whole vectors of {2 if indices else 4} channels"
    for family in (channels, patches):
        (offer,) = family.offers(problem, HOPPER)
        assert isinstance(offer, Candidate)
        (reason,) = offer.make().reasons
        assert (said in reason) is not whole
        (launch,) = offer.make().launches
        (struct,) = np.frombuffer(launch.parameters, launch.variant.layout)
        assert struct["whole"] == whole


def test_patches_take_dilated_windows_and_say_why_they_refuse_others() -> None:
    plan = planned_last((8, 64, 40, 40), kernel_shape=[3, 3], dilations=[2, 2])
    assert plan.launches[0].variant.name == "max_pool_float32_3d_patches"
    plan = planned_last((1, 64, 40, 3000, 40), kernel_shape=[40, 3000, 40])
    assert "not by patches: shared memory does not hold the pixels of a window" in plan.reasons


@pytest.mark.parametrize(
    ("x", "kernel", "stride", "walk"),
    [
        ((1, 64, 9, 30), 3, 1, 1),  # few threads: every block is needed
        ((256, 64, 112, 112), 3, 1, 8),
        ((8192, 64, 9, 5), 3, 2, 2),  # not longer than the row
        ((256, 64, 112, 112), 2, 2, 1),  # no column is shared
        ((256, 64, 20, 20), 5, 1, 1),  # more columns than a thread keeps
    ],
)
def test_a_walk_is_long_where_outputs_share_columns(x: Ints, kernel: int, stride: int, walk: int) -> None:
    _, struct = launched("channels", x, planned_last, kernel_shape=[kernel] * 2, strides=[stride] * 2)
    assert (struct["walk"], struct["rows_first"]) == (walk, kernel > stride)


def test_the_struct_of_tiles() -> None:
    attributes: dict[str, Any] = {"kernel_shape": [2, 6, 5], "strides": [3, 2, 3], "dilations": [2, 2, 1]}
    attributes["pads"] = [1, 4, 2, 1, 5, 0]
    launch, struct = launched("tiles", (2, 500, 7, 21, 43), indices=True, **attributes)  # y: (2, 500, 3, 10, 14)
    assert struct == {
        "x": 0, "y": 0, "indices": 0, "plane": 7 * 21 * 43, "planes": 1000,
        "x_extent": [7, 21, 43], "y_extent": [3, 10, 14], "kernel": [2, 6, 5], "stride": [3, 2, 3],
        "dilation": [2, 2, 1], "pad": [1, 4, 2],
        "x_batch": 500 * 7 * 21 * 43, "x_channel": 7 * 21 * 43, "x_stride": [21 * 43, 43],
        "y_batch": 500 * 3 * 10 * 14, "y_channel": 3 * 10 * 14, "y_stride": [10 * 14, 14],
        "indices_batch": 500 * 3 * 10 * 14, "indices_channel": 3 * 10 * 14, "indices_stride": [10 * 14, 14],
        "tile_planes": 1, "tile_rows": 10, "x_rows": 21, "vectors": 0, "merged": 1, "results_merged": 1,
        "slice_pitch": 906, "row_pitch": 43,  # 21 rows and part of a vector, with the alignment of 2 x 21 x 43
        "pitch": 79, "place_pitch": 79, "part": 16,  # at least 48 columns, and 15 more than a multiple of the 32 banks
        "result_pitch": 14, "result_place_pitch": 14,
        "step": [1, 0],  # the next window down shares all taps but one; along they are three apart
        "lines_at": 7264, "places_at": 7264 + 3168, "result_places_at": 7264 + 2 * 3168,
        "channels": 500, "depths": 3, "row_tiles": 1, "column_tiles": 1, "tile_columns": 14, "outputs": 140,
        "depth_dilation": 2, "column_stride": 3, "steps": [1, 1],
        "line": 14 * 3 + 5, "line_vectors": 13, "down": 2, "along": 3,
    }  # fmt: skip
    assert launch.grid == (1000 * 3, 1, 1)
    assert launch.shared_bytes == 7264 + 2 * 3168 + 10 * 14 * 4
    assert launch.pointers == (("x", 0), ("y", 8), ("indices", 16))


def test_rows_of_one_line_each_are_tiles_together() -> None:
    _, struct = launched("tiles", (4, 6, 90), kernel_shape=[5], strides=[2])
    assert (struct["planes"], struct["x_extent"], struct["y_extent"]) == (1, [1, 24, 90], [1, 24, 43])
    assert (struct["channels"], struct["x_stride"], struct["y_stride"]) == (1, [0, 90], [0, 43])
    _, struct = launched("tiles", (4, 6, 90), x_strides=(600, 90, 1), kernel_shape=[5], strides=[2])
    assert (struct["planes"], struct["x_extent"], struct["x_batch"]) == (4, [1, 6, 90], 600)


def test_tiles_of_long_rows_are_cut_where_that_reads_less() -> None:
    _, struct = launched("tiles", (32, 64, 512, 512), kernel_shape=[9, 9])
    assert struct["tile_columns"] < 504
    assert (struct["merged"], struct["vectors"], struct["row_pitch"] % 4) == (0, 1, 0)
    assert struct["tile_rows"] % 5 == 0  # whole runs of windows


def test_planes_that_are_neighbours_share_a_tile() -> None:
    launch, struct = launched("tiles", (64, 100, 13, 13), kernel_shape=[3, 3], strides=[2, 2])
    assert (struct["merged"], struct["tile_rows"], struct["tile_columns"]) == (1, 6, 6)
    assert struct["tile_planes"] > 1
    assert launch.grid == (-(-6400 // struct["tile_planes"]), 1, 1)
    apart: Ints = (17100, 171, 13, 1)
    launch, struct = launched("tiles", (64, 100, 13, 13), x_strides=apart, kernel_shape=[3, 3], strides=[2, 2])
    assert (struct["tile_planes"], struct["merged"]) == (1, 1)  # rows are adjacent nevertheless
    assert launch.grid == (6400, 1, 1)
