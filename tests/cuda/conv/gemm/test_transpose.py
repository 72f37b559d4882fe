"""ConvTranspose kernels that write whole rows: accepted problems, launches, and reasons for refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv.gemm import ffma, filter_rows, interleaved, pointwise
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import model, offers
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import Limits, representative
from tests.emulator import emulated_cuda
from tests.harness import plans
from tests.harness.emulated import preferred
from tests.harness.offered import candidates, said, why_not
from tests.harness.sources_of_kernels import CONV_TRANSPOSE
from tests.oracle import oracle
from tests.oracle.operands import values

HOPPER, ADA = representative("sm_90").limits, representative("sm_89").limits
Ints = tuple[int, ...]


def problem(x: Ints, w: Ints, dtype: str = "float32", **attributes: Any) -> Problem:
    return plans.problem("conv_transpose", x, w, dtype, **attributes)


def plan(one: Problem, kernel: str = "", limits: Limits = HOPPER) -> Plan:
    if not kernel:
        return conv_families.plan(one, limits)
    with preferred(kernel):
        return conv_families.plan(one, limits)


def names(one: Problem, limits: Limits = HOPPER) -> set[str]:
    return {candidate.name.partition("_3d_")[0] for candidate in candidates(conv_families, one, limits)}


def fields(made: Plan) -> Any:
    launch = made.launches[-1]
    return np.frombuffer(launch.parameters, launch.variant.layout)[0]


# ---------------------------------------------------------------- kernels that are their stride


def test_weights_in_memory_are_the_rows_of_the_gemm() -> None:
    # Two groups of 20 channels; 3 filters of 2 x 5 taps are 30 rows, 2 x 9 x 30 inputs 540 columns.
    made = plan(problem((2, 40, 9, 30), (40, 3, 2, 5), strides=[2, 5], group=2), "depth_to_space_float32_3d_16x128x16")
    (launch,) = made.launches
    assert made.bytes_of("packed") == made.bytes_of("workspace") == 0
    assert launch.grid == (2 * 2 * 5, 1, 1)
    assert {role for role, _ in launch.pointers} == {"x", "w", "y"}
    struct = fields(made)
    common = struct["common"]
    assert [common[name] for name in ("filters", "pitch", "channels", "pixels")] == [30, 30, 20, 540]
    assert common["extent"]["divisor"].tolist() == [1, 9, 30]
    assert struct["axes"]["phases"]["divisor"].tolist() == [1, 2, 5]
    assert struct["axes"]["extent"].tolist() == [1, 18, 150]
    assert struct["out_channels"] == 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_weights_of_16_bits_are_packed(dtype: str) -> None:
    made = plan(problem((1, 20, 9, 8), (20, 6, 2, 2), dtype, strides=[2, 2]), "depth_to_space")
    packed = 4 * 20 * 24 if dtype.endswith("16") else 0  # bytes of float32, 24 rows being whole vectors
    assert (len(made.launches), made.bytes_of("packed")) == ((2, packed) if packed else (1, 0))


def test_weights_in_another_order_are_packed_or_not_taken() -> None:
    one = problem((1, 20, 9, 8), (20, 6, 2, 2), strides=[2, 2])
    group, filters, channels, height, width = one.w_strides
    turned = replace(one, w_strides=(-group, -filters, -channels, -height, -width))
    assert [len(plan(each, "depth_to_space").launches) for each in (one, turned)] == [1, 2]
    apart = replace(one, w_strides=(group, filters, channels, width, height))
    assert said(plan(apart), pointwise) == "the taps of a channel are not contiguous in w"


def test_a_single_input_makes_a_block_of_any_size() -> None:
    made = plan(problem((64, 100, 1, 1), (100, 512, 4, 4)))
    assert [launch.variant.name.partition("_3d_")[0] for launch in made.launches] == [
        "conv_transpose_depth_to_space_float32"
    ]


def test_outputs_cut_off_far_away_need_room_in_their_offsets() -> None:
    one = problem((1, 1, 2**24), (1, 1, 32), strides=[32], pads=[2**29 - 32, 0])
    assert why_not(pointwise, one, HOPPER) is None
    apart = replace(one, y_strides=(*one.y_strides[:2], 8))
    assert why_not(pointwise, apart, HOPPER) == "it needs 64-bit indices"


# ---------------------------------------------------------------- all phases as rows of one GEMM


def test_phases_are_rows_of_blocks() -> None:
    """3 filters with strides of 2 and 3 are 18 rows of M; phases of 5 x 7 taps have up to 3 x 3 taps."""
    made = plan(problem((2, 16, 9, 10), (16, 3, 5, 7), "bfloat16", strides=[2, 3], pads=[3, 4, 0, 2]), "phase_rows")
    packing, last = made.launches[0], fields(made)
    pack = np.frombuffer(packing.parameters, packing.variant.layout)[0]
    assert (pack["filters"], pack["taps"], list(pack["of_filter"]["kernel"])) == (3, 9, [1, 5, 7])
    assert list(pack["of_filter"]["rows"]["divisor"]) == list(pack["of_filter"]["tap_step"]) == [1, 2, 3]
    assert list(pack["of_filter"]["row_step"]) == [1, 1, 1]
    assert list(pack["extent"]["divisor"]) == [1, 3, 3]
    assert (last["common"]["filters"], last["out_channels"]) == (18, 3)
    # Padding crops 3 rows and 4 columns, among them a whole block of 2 and one of 3: the first computed blocks start
    # at the inputs 1 and 1, and extend 1 beyond the edge. Blocks of 2 x 3 cover the 18 x 28 outputs.
    assert list(last["axes"]["pad"]) == [0, 1, 1]
    assert list(last["taps"]["start"]) == [0, 1, 1]
    assert list(last["taps"]["advance"][1:]) == [-1, -1]
    assert list(last["axes"]["extent"]) == [1, 18, 28]
    assert list(last["common"]["extent"]["divisor"]) == [1, 10, 10]


@pytest.mark.parametrize(
    ("x", "w", "dtype", "attributes"),
    [
        ((1, 16, 9), (16, 3, 5), "bfloat16", {}),
        ((1, 16, 9), (16, 3, 5), "bfloat16", {"strides": [2], "dilations": [2]}),
        ((1, 16, 9), (16, 3, 35), "bfloat16", {"strides": [33]}),
        ((1, 16, 9, *[2] * 3), (16, 3, *[2] * 4), "bfloat16", {"strides": [2] * 4}),
    ],
    ids=["no strides", "dilated", "33 phases along W", "four axes"],
)
def test_other_phases_are_not_rows(x: Ints, w: Ints, dtype: str, attributes: dict[str, Any]) -> None:
    assert not any("phase_rows" in name for name in names(problem(x, w, dtype, **attributes)))


@pytest.mark.parametrize(
    ("x", "w", "strides", "pads"),
    [((64, 64, 112, 112), (64, 3, 7, 7), 2, 3), ((1, 56, 270, 480), (56, 1, 9, 9), 4, 4)],
    ids=["the first layer of ResNet, backwards", "the last layer of FSRCNN"],
)
def test_few_filters_of_strided_kernels_have_their_phases_as_rows(x: Ints, w: Ints, strides: int, pads: int) -> None:
    one = problem(x, w, "float16", strides=[strides] * 2, pads=[pads] * 4)
    made = plan(one)
    assert made.kernel.startswith("conv_transpose_phase_rows_float16_3d_mma_")
    rows = w[1] * strides**2
    assert any(reason.startswith(f"{rows} rows of one GEMM are") for reason in made.reasons)


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((1, 1, 2, 2, 2), (1, 2**21, 4, 4, 8), {"strides": [46000, 46000, 32], "output_shape": [2, 2, 2]}),
        ((1, 4096, 2, 2), (4096, 8, 1, 1), {"strides": [8192, 8]}),
        ((1, 8192, 2, 2), (8192, 8, 1, 1), {"strides": [8192, 8]}),
    ],
    ids=["rows", "packed weights", "more packed weights"],
)
def test_rows_of_phases_are_left_out_where_they_need_64_bit_indices(x: Ints, w: Ints, attributes: Any) -> None:
    assert not any("phase_rows" in name for name in names(problem(x, w, **attributes)))


# ---------------------------------------------------------------- all phases along W in one block


def test_a_block_has_all_phases_along_w() -> None:
    one = problem((2, 16, 9, 30), (16, 40, 5, 4), strides=[3, 2])
    made = plan(one, "interleaved_float32_3d_64x64x16_uniform")
    struct = fields(made)
    assert made.launches[-1].grid == (3 * -(-2 * 10 * 31 // 64), 1, 1)  # y is 29 x 62; a phase has 10 x 31 columns
    assert struct["phases"]["divisor"] == 3
    assert struct["axes"]["phases"]["divisor"].tolist() == [1, 3, 2]
    assert "all 2 phases along W in one block, which writes neighbours of a row" in made.reasons


def test_a_small_shared_memory_leaves_room_for_fewer_tiles() -> None:
    one = problem((1, 16, 9, 9), (16, 64, 3, 3), "float64", strides=[2, 2])
    tiles = [{c.name for c in candidates(interleaved, one, limits)} for limits in (HOPPER, ADA)]
    assert tiles[1] == {"conv_transpose_interleaved_float64_3d_16x128x8_uniform"}
    assert tiles[1] < tiles[0]


# ---------------------------------------------------------------- choosing


@pytest.mark.parametrize(("stride", "sectors"), [(1, 1), (2, 2), (3, 3), (16, 8)])
def test_a_phase_alone_writes_parts_of_sectors(stride: int, sectors: int) -> None:
    """A sector of 8 float32 elements has at least one element of each phase."""
    one = problem((64, 1, 2**16), (1, 1, 1), strides=[stride])
    general = min(candidate.seconds for candidate in candidates(ffma, one, HOPPER))
    written = sectors * 4 * 64 * (stride * (2**16 - 1) + 1)
    traffic = model.memory(written + 4 * 64 * 2**16 + 4, HOPPER)
    assert traffic < general < 1.3 * traffic + HOPPER.rates.launch


def test_three_axes_are_the_same_problem() -> None:
    one = problem((2, 6, 4, 5, 7), (6, 4, 2, 1, 3), strides=[2, 1, 3])
    assert one.lifted == one
    flat = problem((2, 6, 7), (6, 4, 3), strides=[2], dilations=[3], pads=[1, 0]).lifted
    assert (flat.x_shape, flat.taps, flat.strides) == ((2, 6, 1, 1, 7), (1, 1, 3), (1, 1, 2))
    assert (flat.dilations, flat.pads, flat.phases) == ((1, 1, 3), (0, 0, 1), (1, 1, 2))
    assert (flat.x_strides, flat.w_strides) == ((42, 7, 0, 0, 1), (72, 3, 12, 0, 0, 1))


@pytest.mark.emulator
@pytest.mark.kernels(*CONV_TRANSPOSE, "conv/gemm/interleaved.cu", "conv/gemm/depth_to_space.cu")
def test_every_candidate_is_right_where_all_families_have_some() -> None:
    x, w = values("integers", 1, (2, 16, 5, 9), "float32"), values("nonfinite", 2, (16, 20, 2, 2), "float32")
    exact, seen = oracle.conv_transpose(x, w, strides=[2, 2]), set()
    for turn in offers.every_candidate():
        with turn, emulated_cuda() as emulated:
            y = gpuconv.conv_transpose(x, w, strides=[2, 2])
        oracle.assert_close(y, exact, "float32")
        seen.add(emulated.launches[-1].variant.name.partition("_float32_")[0])
    assert seen >= {"conv_transpose", "conv_transpose_interleaved", "conv_transpose_depth_to_space"}


def test_a_transposed_conv_of_its_stride_is_a_product_of_pixels() -> None:
    one = problem((2, 6, 5, 7, 9), (6, 4, 2, 3, 4), group=2, strides=[2, 3, 4])
    assert filter_rows.rows_of(one) == replace(
        one,
        filters=4 * 24,
        taps=(1, 1, 1),
        w_strides=(3 * 96, 1, 96, 1, 1, 1),  # a group has three channels of 96 filters and taps
        columns=(5, 7, 9),
        pads=(0, 0, 0),
        phases=(),
        strides=(2, 3, 4),
    )
