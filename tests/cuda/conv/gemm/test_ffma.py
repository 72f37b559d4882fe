"""Launches of Conv and ConvTranspose by FFMA: structs by hand, tiles, limits of index widths, refusals."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest

from gpuconv import ArgumentError
from gpuconv.cuda.build import params, structs
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv.direct import rows
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.launch import Plan, Space
from gpuconv.cuda.plan.limits import nearest
from gpuconv.cuda.plan.offers import Candidate
from gpuconv.cuda.variants import all_variants
from tests.harness.emulated import preferred
from tests.harness.offered import family
from tests.harness.plans import HOPPER, Ints, fields, plan, wide
from tests.oracle.strategies import GENERATORS

BORDER = params.INDEX_LIMIT
EVERY_FAMILY = conv_families.FAMILIES
general = pytest.mark.usefixtures("general_kernels")


@pytest.fixture(autouse=True)
def only_gemms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exclude the direct kernels, which might be chosen for these problems."""
    monkeypatch.setattr(conv_families, "FAMILIES", tuple(one for one in EVERY_FAMILY if one is not rows))


# ---------------------------------------------------------------- structs


@general
def test_the_structs_of_a_small_conv() -> None:
    # x (2, 2·3, 5, 7), w (2·4, 3, 2, 3): y (2, 8, 4, 3)
    attributes: dict[str, Any] = {"group": 2, "strides": [1, 3], "dilations": [2, 1], "pads": [1, 0, 0, 2]}
    pack, gemm = plan("conv", (2, 6, 5, 7), (8, 3, 2, 3), bias=True, **attributes).launches
    assert fields(pack) == {
        "w": 0, "packed": 0, "filters": 4, "channels": 3, "filled": 3, "pitch": 4, "rows": 18, "w_group": 72,
        "w_filter": 18, "w_channel": 6, "w_stride": [0, 3, 1], "by_tap": 6, "taps": [1, 2, 3], "m_squares": 1,
        "row_squares": 1, "tickets": {"first": 0, "count": 0},
        "of_filter": {
            "rows": [1, 1, 1], "row_step": [1, 1, 1], "tap_step": [1, 1, 1], "kernel": [1, 2, 3],
            "tile_rows": 2**30, "tile_filters": 2**30,
        },
    }  # fmt: skip
    assert fields(gemm) == {
        "common": {
            "x": 0, "weights": 0, "b": 0, "y": 0, "channels": 3, "filters": 4, "pixels": 24, "pitch": 4,
            "all_rows": 18, "x_batch": 210, "x_channel": 35, "x_extent": [1, 5, 7], "x_stride": [0, 7, 1],
            "y_batch": 96, "y_channel": 12, "y_stride": [0, 3, 1], "b_stride": 1, "stride": [1, 1, 3],
            "extent": [1, 4, 3], "by_channel": 3, "m_tiles": 1, "n_tiles": 1,
            "finish": {"residual": 0, "slope": 0, "low": 0, "high": 0, "acts": 0},
        },
        "taps": {
            "start": [0, -1, 0], "advance": [1, 2, 1], "row": [18, 9, 3], "count": [1, 2, 3], "first_row": 0,
            "rows": 18, "limit": [1, 4, 3], "y_first": 0,
        },
    }  # fmt: skip
    assert gemm.grid == (2, 1, 1)  # one tile for each group
    assert [role for role, _ in pack.pointers] == ["w", "packed"]
    assert dict(gemm.pointers) == {"x": 0, "packed": 8, "b": 16, "y": 24}


def test_the_axes_of_a_small_conv_transpose() -> None:
    # Along the first axis 6 and 4 have the divisor 2: outputs have 6 phases, every second one without taps.
    attributes: dict[str, Any] = {"strides": [6, 2], "dilations": [4, 3], "pads": [1, 0, 0, 2]}
    _, gemm = plan("conv_transpose", (2, 3, 5, 7), (3, 4, 2, 3), **attributes).launches  # y (2, 4, 28, 17)
    struct = fields(gemm)
    names = ("stride", "pad", "dilation", "kernel", "common", "inverse", "extent", "row", "y_stride", "phases")
    assert struct["axes"] == [
        dict(zip(names, row, strict=True))
        for row in (
            (1, 0, 1, 1, 1, 0, 1, 18, 0, 1),
            (6, 1, 4, 2, 2, 2, 28, 9, 17, 6),  # inverse: 2 · (4 / 2) = 1 modulo 6 / 2
            (2, 0, 3, 3, 1, 1, 17, 3, 1, 2),
        )
    ]
    assert struct["phases"] == 12
    assert struct["common"]["extent"] == [1, 5, 9]  # of the largest phase: 28 / 6 and 17 / 2, rounded up
    assert struct["common"]["y_stride"] == [0, 6 * 17, 2]
    assert gemm.grid == (24, 1, 1)  # two tiles of 64 pixels for each phase


@general
def test_strides_of_views_reach_the_kernel() -> None:
    backwards = (-210, 35, -7, 1)
    _, gemm = plan("conv", (2, 6, 5, 7), (8, 6, 2, 3), x_strides=backwards).launches
    common = fields(gemm)["common"]
    assert (common["x_batch"], common["x_channel"], common["x_stride"]) == (-210, 35, [0, -7, 1])


@general
def test_what_has_no_effect_is_made_small() -> None:
    huge = 2**62
    _, gemm = plan("conv", (1, 1, 8), (1, 1, 1), dilations=[huge], strides=[huge]).launches
    assert not wide(gemm)
    *_, gemm = plan("conv_transpose", (1, 1, 1), (1, 1, 2), strides=[huge]).launches
    assert not wide(gemm)


# ---------------------------------------------------------------- launches


def test_an_empty_result_launches_nothing() -> None:
    for x_shape, w_shape in [((0, 3, 8), (4, 3, 3)), ((1, 3, 2), (4, 3, 3)), ((1, 3, 8), (0, 3, 3))]:
        assert plan("conv", x_shape, w_shape).launches == ()


def test_a_sum_over_no_channels_packs_nothing() -> None:
    made = plan("conv", (1, 0, 8), (4, 0, 3), bias=True)
    (gemm,) = made.launches
    assert made.bytes_of("packed") == made.bytes_of("workspace") == 0
    assert [role for role, _ in gemm.pointers] == ["x", "y", "b"]


@general
@pytest.mark.parametrize(
    ("dtype", "filters", "pitch", "size"), [("float16", 5, 8, 4), ("float32", 6, 8, 4), ("float64", 5, 6, 8)]
)
def test_the_packed_weights_have_rows_of_whole_vectors(dtype: str, filters: int, pitch: int, size: int) -> None:
    with preferred(f"conv_{dtype}_3d_"):
        made = plan("conv", (1, 6, 9), (2 * filters, 3, 5), group=2, dtype=dtype)
    assert (made.bytes_of("packed"), made.bytes_of("workspace")) == (2 * (3 * 5) * pitch * size, 0)


# ---------------------------------------------------------------- index widths


def test_pads_beyond_32_bits_widen_the_coordinates() -> None:
    made = plan("conv", (1, 1, 4), (1, 1, 2), dilations=[2**33], pads=[2**33, 0])
    assert wide(made.launches[-1])


@general
@pytest.mark.parametrize("taps", [2, 4])
def test_coordinates_of_a_transposed_conv_count_the_reach_of_its_taps_twice(taps: int) -> None:
    """Once from the start of a phase to its first tap, and once from the first tap to the last."""
    most = BORDER // (2 * (taps - 1))
    for dilation, expected in ((most - 99, False), (most + 1, True)):
        more = {"dilations": [dilation], "strides": [2], "pads": [0, (taps - 1) * dilation]}
        assert wide(plan("conv_transpose", (1, 1, 4), (1, 1, taps), **more).launches[-1]) is expected


def test_coordinates_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"^conv: coordinates up to \d+ do not fit into the 64-bit indices"):
        plan("conv", (1, 1, 4), (1, 1, 2), dilations=[2**62], pads=[2**62, 2**63 - 1], strides=[2**62])


# ---------------------------------------------------------------- variants


@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
def test_every_plan_up_to_four_axes_is_in_the_list(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_families, "FAMILIES", EVERY_FAMILY)
    known, random = set(all_variants()), Random(0)
    for number in range(300):
        monkeypatch.setattr(params, "INDEX_LIMIT", BORDER if number % 3 else 0)
        problem = GENERATORS[operator](random, random.randint(1, 4))
        dtype = random.choice(("float16", "bfloat16", "float32", "float64"))
        assert problem.w_shape is not None
        made = plan(operator, problem.x_shape, problem.w_shape, dtype=dtype, **problem.attributes)
        assert {launch.variant for launch in made.launches} <= known


# ---------------------------------------------------------------- dividers


@pytest.mark.parametrize("divisor", [1, 2, 3, 5, 7, 10, 127, 128, 641, 2**16 - 1, 2**16 + 1, 2**30 + 1, 2**31 - 1])
def test_the_multiplier_divides_every_32_bit_number(divisor: int) -> None:
    numbers = np.unique(np.concatenate([np.arange(1000), 2**31 - 1 - np.arange(1000), divisor * np.arange(9) - 1]))
    numbers = numbers[(numbers >= 0) & (numbers < 2**31)]
    stored, multiplier, shift = params.division(divisor, wide=False)
    assert (stored, max(multiplier, stored) < 2**32) == (divisor, True)
    quotients = [((n * multiplier >> 32) + n) >> shift for n in numbers.tolist()]
    assert quotients == (numbers // divisor).tolist()


def test_a_struct_is_packed_only_whole() -> None:
    layout = structs.layout("AddUpParams<int, 2>", "passes/add_up.cu")
    fields = {"parts": 1, "elements": 2, "extent": (2, 3), "y_stride": (3, 1)}
    assert len(params.pack(layout, fields)) == layout.itemsize
    with pytest.raises(KeyError, match=r"fields missing: \['elements'\]"):
        params.pack(layout, {name: value for name, value in fields.items() if name != "elements"})
    with pytest.raises(KeyError, match=r"fields unknown: \['m'\]"):
        params.pack(layout, {**fields, "m": 1})


# ---------------------------------------------------------------- choosing


def test_every_candidate_gets_its_turn() -> None:
    problem: tuple[Ints, Ints] = (8, 16, 9, 9), (20, 16, 3, 3)
    names = []
    for turn in offers.every_candidate():
        with turn:
            names.append(plan("conv", *problem).kernel)
    large, middle = "float32_3d_128x128x16_uniform", "float32_3d_64x64x16_uniform"
    whole = [f"conv_{large}", f"conv_{middle}", "conv_float32_3d_16x128x16"]
    rows = [f"conv_tap_rows_{large}", f"conv_tap_rows_{middle}"]
    assert names == [*whole, *rows, *(f"{one}_split" for one in (*whole[:2], *rows))]
    assert plan("conv", *problem).kernel == rows[1]


def test_an_architecture_without_a_known_device_is_modelled_as_the_one_below() -> None:
    known = {"sm_103a": "sm_100a", "sm_70": "sm_80", "compute_130": "sm_120a"}
    assert {name: nearest(name).limits.architecture for name in known} == known


def test_of_equally_quick_candidates_the_first_is_taken() -> None:
    made = [Plan("conv", (), ("own reason",), (Space("workspace", "", number),)) for number in range(3)]
    candidates = [
        Candidate(f"kernel {n}", seconds, partial(made.__getitem__, n))
        for n, seconds in enumerate((3.06e-5, 1e-6, 1e-6))
    ]
    chosen = offers.choose(None, [family(candidates)], HOPPER)
    assert chosen.bytes_of("workspace") == 1
    assert chosen.reasons == (
        "kernel 0: predicted 30.6 us (30.6x)",
        "kernel 1: predicted 1.0 us, chosen",
        "kernel 2: predicted 1.0 us (1.00x)",
        "own reason",
    )
