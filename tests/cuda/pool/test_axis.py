"""MaxPool with Indices axis by axis: when it is chosen, its cost, structs by hand, and the same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gpuconv
from benchmarks import sass
from gpuconv.cuda.build import params
from gpuconv.cuda.plan import offers as plan_offers
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import representative
from gpuconv.cuda.pool import axis, general
from gpuconv.cuda.pool import families as pool_families
from gpuconv.cuda.pool.axis import AxisRuns
from gpuconv.cuda.pool.problem import PoolProblem
from tests.cuda.pool.problems import made
from tests.emulator import emulated_cuda
from tests.harness import machine_code
from tests.harness.emulated import preferred
from tests.harness.offered import candidates, refused, why_not
from tests.harness.plans import fields
from tests.harness.toolchain import needs_disassembler, needs_nvrtc
from tests.oracle import oracle
from tests.oracle.operands import LAYOUTS, POOL_DTYPES, values
from tests.oracle.oracle import assert_same

DEVICE = representative("sm_90a")
HOPPER = DEVICE.limits
Ints = tuple[int, ...]


def problem(x: Ints, dtype: str, *, last: bool, **attributes: Any) -> PoolProblem:
    return replace(made(x, last, True, **attributes), dtype=dtype)


def planned(one: PoolProblem) -> Plan:
    assert one.indices_strides is not None
    return pool_families.for_pool(one.geometry, one.dtype, one.x_strides, one.y_strides, one.indices_strides, HOPPER)


def names(plan: Plan) -> list[str]:
    return [launch.variant.name for launch in plan.launches]


@pytest.fixture
def own_launches_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this family also pool rows and slices wherever it can."""
    monkeypatch.setattr(plan_offers, "quickest", lambda found: found[-1])


# ---------------------------------------------------------------- when it is taken


@pytest.mark.parametrize(
    ("x", "dtype", "last", "first", "most"),
    [
        ((1, 32, 77, 116, 58), "bfloat16", True, "bfloat16_3d_axis_numbered_indices", 9),
        ((1, 448, 46, 34, 34), "float64", False, "float64_3d_indices", 6),
    ],
)
@pytest.mark.parametrize("pad", [0, 6])
def test_large_windows_of_three_axes_take_a_few_times_what_memory_does(
    x: Ints, dtype: str, last: bool, first: str, most: int, pad: int
) -> None:
    one = problem(x, dtype, last=last, kernel_shape=13, strides=2, pads=pad)
    along = f"max_pool_{dtype}_3d_axis_indices"
    assert names(planned(one)) == [f"max_pool_{first}", along, along]
    found = {each.name: each.seconds for each in candidates(pool_families, one, HOPPER)}
    assert min(found, key=lambda name: found[name]) == along
    assert found[along] < most * one.bytes / DEVICE.bandwidth
    assert 4 * found[along] < min(seconds for name, seconds in found.items() if name != along)


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 1), (3, 2)])
@pytest.mark.parametrize("x", [(32, 64, 112, 112), (8, 64, 16, 56, 56)])
def test_small_windows_take_one_launch(x: Ints, kernel: int, stride: int, last: bool) -> None:
    one = problem(x, "float16", last=last, kernel_shape=kernel, strides=stride)
    assert len(planned(one).launches) == 1
    assert "axis" not in planned(one).kernel


def test_what_is_left_has_32_bit_indices_and_no_more_than_a_gibibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    one = made((1, 40, 2, 9, 5), indices=True, kernel_shape=[2, 1, 5], pads=[0, 0, 4, 0, 0, 4])
    left = 40 * 2 * 9 * 9
    assert axis._MOST_BYTES == 2**30
    monkeypatch.setattr(axis, "_MOST_BYTES", left * (4 + 8))
    assert refused(axis, one, HOPPER) is None
    monkeypatch.setattr(axis, "_MOST_BYTES", left * (4 + 8) - 1)
    assert why_not(axis, one, HOPPER) == "too much memory for what is left of slices"
    monkeypatch.setattr(params, "INDEX_LIMIT", left)
    assert not general.needs_wide(one)
    assert why_not(axis, one, HOPPER) == "64-bit indices"


# ---------------------------------------------------------------- launches


@pytest.mark.parametrize(
    ("windows", "attributes", "expected"),
    [
        (7, {"kernel_shape": 5}, AxisRuns(5, 1, 1, 2)),
        (5, {"kernel_shape": 5}, AxisRuns(5, 1, 1, 1)),
        (4, {"kernel_shape": 5}, AxisRuns(1, 1, 0, 4)),
        (7, {"kernel_shape": 4}, AxisRuns(1, 1, 0, 7)),
        (11, {"kernel_shape": 9, "strides": 2}, AxisRuns(5, 1, 2, 3)),
        (11, {"kernel_shape": 8, "strides": 2}, AxisRuns(1, 1, 0, 11)),
        (21, {"kernel_shape": 13, "strides": 3}, AxisRuns(1, 1, 0, 21)),
        (21, {"kernel_shape": 6, "strides": 3, "dilations": 3}, AxisRuns(5, 1, 1, 5)),
        (21, {"kernel_shape": 5, "dilations": 2}, AxisRuns(5, 2, 1, 6)),
        (16, {"kernel_shape": 9, "strides": 2, "dilations": 3}, AxisRuns(5, 3, 2, 6)),
        (14, {"kernel_shape": 9, "strides": 2, "dilations": 3}, AxisRuns(1, 1, 0, 14)),
        (1, {"kernel_shape": 9}, AxisRuns(1, 1, 0, 1)),
    ],
)
def test_windows_of_a_thread_share_taps_where_they_overlap_enough(
    windows: int, attributes: dict[str, Any], expected: AxisRuns
) -> None:
    stride, dilation = attributes.get("strides", 1), attributes.get("dilations", 1)
    extent = (windows - 1) * stride + (attributes["kernel_shape"] - 1) * dilation + 1
    (found,) = made((1, 1, extent), **attributes).axes
    assert found.windows == windows
    assert AxisRuns.of(found) == expected


def test_the_structs_of_both_launches(own_launches_alone: None) -> None:
    attributes: dict[str, Any] = {"kernel_shape": [5, 9], "strides": [1, 3], "dilations": [2, 1], "pads": [3, 4, 2, 6]}
    one = problem((2, 5, 20, 40), "int8", last=True, **attributes)  # y: (2, 5, 17, 14)
    with preferred("axis"):
        plan = planned(one)
    assert names(plan) == ["max_pool_int8_3d_axis_numbered_indices", "max_pool_int8_3d_axis_indices"]
    left = 2 * 5 * 20 * 14
    first, last = plan.launches
    assert [space[:3] for space in plan.spaces] == [
        ("maxima of rows", "maxima of rows", left),
        ("Indices of rows", "Indices of rows", 8 * left),
    ]
    assert first.roles == {"x": "x", "y": "maxima of rows", "indices": "Indices of rows"}
    assert last.roles == {"x": "maxima of rows", "places": "Indices of rows", "y": "y", "indices": "indices"}
    assert fields(first) == {
        "x": 0, "places": 0, "y": 0, "indices": 0, "plane": 800, "items": left, "channels_last": 1, "extent": 40,
        "windows": 14, "stride": 3, "pad": 4, "taps": 9, "shift": 0, "x_first": 0, "x_along": 5, "place_first": 0,
        "place_along": 1, "x_batch": 4000, "x_channel": 1, "x_stride": [5, 0, 200], "place_stride": [1, 0, 40],
        "y_batch": 1400, "y_channel": 1, "y_stride": [5, 0, 70], "indices_batch": 1400, "indices_channel": 1,
        "indices_stride": [5, 0, 70], "dilation": 1, "step": 1, "channels": 5, "runs": [14, 1, 20],
    }  # fmt: skip
    struct = fields(last)
    unused = ("plane", "place_first", "place_along", "place_stride")  # Indices come from the first launch
    assert {name: value for name, value in struct.items() if name not in unused} == {
        "x": 0, "places": 0, "y": 0, "indices": 0, "items": 10 * 4 * 14, "channels_last": 1, "extent": 20,
        "windows": 17, "stride": 1, "pad": 3, "taps": 5, "shift": 1, "x_first": 0, "x_along": 140, "x_batch": 1400,
        "x_channel": 1, "x_stride": [70, 0, 5], "y_batch": 1190, "y_channel": 1, "y_stride": [70, 0, 5],
        "indices_batch": 1190, "indices_channel": 1, "indices_stride": [70, 0, 5], "dilation": 2, "step": 2,
        "channels": 5, "runs": [4, 1, 14],
    }  # fmt: skip
    assert [launch.grid for launch in plan.launches] == [(11, 1, 1), (3, 1, 1)]
    assert tuple(reason for reason in plan.reasons if "blocks of" in reason) == (
        "max_pool_int8_3d_axis_numbered_indices: channels last: along the width, 9 taps, one window a thread; "
        "11 blocks of 256 threads",
        "max_pool_int8_3d_axis_indices: channels last: along the height, over the maxima of rows, which come first, "
        "5 taps, 5 windows that share taps a thread; 3 blocks of 256 threads",
    )


def test_windows_that_begin_inside_x_and_other_strides() -> None:
    """Windows have one element along two axes, where the first of them is after the start of x."""
    attributes: dict[str, Any] = {"kernel_shape": [5, 2, 1], "strides": [1, 2, 3], "dilations": [1, 9, 1]}
    one = problem((1, 3, 9, 8, 10), "float32", last=False, pads=[0, 8, 0, 0, 0, 0], **attributes)
    assert [(each.taps, each.pad) for each in one.axes] == [(5, 0), (1, -1), (1, 0)]
    with preferred("axis"):
        (launch,) = planned(one).launches
    struct = fields(launch)
    assert (struct["x_first"], struct["place_first"]) == (10, 10)
    assert (struct["x_stride"], struct["place_stride"]) == ([80, 20, 3], [80, 20, 3])


def test_column_major_numbers_and_names_of_all_parts(own_launches_alone: None) -> None:
    one = problem((1, 4, 9, 10, 11), "float32", last=True, kernel_shape=[2, 3, 4], storage_order=1)
    with preferred("axis"):
        plan = planned(one)
    assert fields(plan.launches[0])["place_stride"] == [90, 1, 9]  # for the width, the depth and the height
    assert [space.role for space in plan.spaces] == [
        f"{what} of {parts}" for parts in ("rows", "slices") for what in ("maxima", "Indices")
    ]
    assert [space.bytes for space in plan.spaces] == [
        size * elements for elements in (4 * 9 * 10 * 8, 4 * 9 * 8 * 8) for size in (4, 8)
    ]


# ---------------------------------------------------------------- what it costs


@pytest.mark.slow
@needs_nvrtc
@needs_disassembler
def test_elements_take_as_many_instructions_as_the_plan_takes_them_to() -> None:
    body = machine_code.code(axis.variant("float32", numbered=False))
    loads = [loop for loop in sass.loops(body) if sass.names(body, loop, "LDG").total() == 4]
    assert len(loads) == 3  # for single windows, and windows one and two taps apart
    for loop in loads:
        assert len(loop) == pytest.approx(4 * axis._OF_ELEMENT[4], rel=0.1)


# ---------------------------------------------------------------- bits

# Windows that share taps along every axis, and single ones; dilated ones, whose first taps are before x.
_SHARED: dict[str, Any] = {"kernel_shape": [5, 9, 6], "strides": [1, 2, 1], "pads": [2, 5, 3, 4, 6, 5]}
_SINGLE: dict[str, Any] = {"kernel_shape": [3, 2, 4], "strides": [2, 1, 3], "pads": [1, 1, 2, 2, 0, 3]}
_DILATED: dict[str, Any] = {
    "kernel_shape": [5, 2, 5], "strides": [1, 3, 2], "dilations": [2, 3, 2], "pads": [7, 2, 5, 4, 1, 3],
}  # fmt: skip
_KINDS = {"f": ("nonfinite", "lowest", "zeros", "ties"), "i": ("the ends", "any integer")}


@pytest.mark.emulator
@pytest.mark.kernels("pool/axis.cu")
@pytest.mark.parametrize("dtype", POOL_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("layout", "y_layout", "count"),
    [
        ("contiguous", "contiguous", 2),
        ("channels last", "channels last", 3),
        ("strided pixels", "channels last", 3),
        ("reversed", "fortran", 2),
        ("channels last", "strided", 2),
    ],
)
@pytest.mark.parametrize("attributes", [_SHARED, _SINGLE, _DILATED], ids=["shared", "single", "dilated"])
def test_all_axes_give_the_bits_of_the_definition(
    own_launches_alone: None, attributes: dict[str, Any], layout: str, y_layout: str, count: int, dtype: Any
) -> None:
    for order, kind in enumerate(_KINDS["i" if dtype.kind in "iu" else "f"]):
        x = LAYOUTS[layout](values(kind, order, (2, 3, 10, 11, 9), dtype))
        given = {**attributes, "storage_order": order % 2}
        expected = oracle.max_pool(x, **given)
        out = [LAYOUTS[y_layout](np.zeros(right.shape, right.dtype)) for right in expected]
        with preferred("_axis_"), emulated_cuda() as emulated:
            gpuconv.max_pool(x, return_indices=True, **given, out=tuple(out))
        for found, right in zip(out, expected, strict=True):
            assert_same(found, right)
        launched = [launch.variant.name for launch in emulated.launches]
        assert sum("_axis_" in name for name in launched) == count


@pytest.mark.emulator
@pytest.mark.kernels("pool/axis.cu")
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_the_first_of_equal_elements_has_the_index_wherever_they_are(own_launches_alone: None, dtype: str) -> None:
    """Two equal maxima in each place of a window, the second after the first along each axis."""
    for first, second in (
        ((0, 1, 1), (1, 0, 0)),
        ((1, 0, 1), (1, 1, 0)),
        ((1, 1, 0), (1, 1, 1)),
        ((0, 0, 1), (0, 1, 0)),
    ):
        x = np.zeros((1, 2, 2, 2, 2), dtype)
        x[(..., *first)] = x[(..., *second)] = 7
        with preferred("_axis_"), emulated_cuda():
            _, indices = gpuconv.max_pool(x, 2, layout="NCHW", return_indices=True)
        number = int(np.ravel_multi_index(first, (2, 2, 2)))
        assert indices.ravel().tolist() == [number, 8 + number]
