"""ConvTranspose whose kernel is its stride, as a product of matrices on tensor cores: when, with what, and right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv.gemm import matrix
from gpuconv.cuda.plan.launch import Plan
from gpuconv.rules import geometry as geometries
from tests.cuda.conv.gemm.tensor_cores import ARITHMETIC, assert_within
from tests.emulator import emulated_cuda
from tests.harness import machine_code
from tests.harness.emulated import architecture, preferred
from tests.harness.offered import said
from tests.harness.plans import HOPPER, contiguous, fields
from tests.harness.steady import steady
from tests.harness.toolchain import needs_disassembler, needs_nvrtc
from tests.oracle import oracle
from tests.oracle.operands import CONV_KINDS, operands
from tests.oracle.strategies import Problem, checked

FORMS = [form for form in matrix.forms() if form[2] == "depth_to_space"]


def plan(
    x_shape: Any,
    w_shape: Any,
    strides: Any,
    dtype: str = "float16",
    precision: str = "ieee",
    y_strides: Any = None,
    **more: Any,
) -> Plan:
    geometry = geometries.conv_transpose(x_shape, w_shape, None, strides=strides, **more)
    arrays = contiguous(x_shape), contiguous(w_shape), None, y_strides or contiguous(geometry.y_shape)
    return conv_families.for_conv(geometry, dtype, *arrays, HOPPER, precision)


def test_one_launch_reads_the_weights_as_they_are() -> None:
    made = plan((4, 512, 64, 64), (512, 256, 2, 2), [2, 2])
    (launch,) = made.launches
    assert launch.variant.name == "conv_transpose_matrix_float16_3d_mma_64x128x64"
    assert (made.bytes_of("workspace"), made.bytes_of("packed")) == (0, 0)
    assert dict(launch.pointers) == {"x": 0, "w": 8, "y": 24}
    struct = fields(launch)["common"]
    assert (struct["pitch"], struct["all_rows"], struct["filters"]) == (2 * 1024, 512, 1024)
    assert launch.grid == (16 * 128, 1, 1)
    assert any("1024 rows, channels and taps, on tensor cores" in reason for reason in made.reasons)
    assert any("16 bytes of pixels a copy" in reason for reason in made.reasons)


@pytest.mark.parametrize(
    ("x", "w", "more", "why"),
    [
        ((8, 64, 8, 8), (64, 32, 3, 3), {}, "outputs of neighbours overlap"),
        ((8, 64, 7, 7), (64, 32, 2, 2), {}, "pixels of a channel of x are not contiguous"),
        ((8, 64, 8, 8), (64, 31, 2, 1), {"strides": [2, 1], "dtype": "float64"}, "it has no float64"),
        ((8, 64, 8, 8), (64, 31, 1, 3), {"strides": [1, 3]}, "are not contiguous in w, from 4 bytes on"),
        ((8, 64, 8, 8), (64, 32, 2, 2), {"y_strides": (8192, 1, 512, 32)}, "outputs along W are not contiguous"),
    ],
)
def test_others_are_left_to_other_kernels_with_the_reason(x: Any, w: Any, more: dict[str, Any], why: str) -> None:
    made = plan(x, w, **({"strides": [2, 2]} | more))
    assert not any("conv_transpose_matrix_" in reason for reason in made.reasons)
    assert why in str(said(made, matrix))


def _problem(random: Any) -> Problem:
    """A kernel that is its stride, over images of whole copies of several widths, cut off by padding or not."""
    group, m, c = random.choice((1, 1, 2)), random.choice((1, 2, 6, 20, 66)), random.choice((3, 8, 40, 72, 136))
    image = random.choice(((6,), (4, 9), (14, 7), (8, 8), (3, 2, 5), (5, 7)))
    kernel = [random.choice((1, 2, 3, 4)) for _ in image]
    pads = [random.randrange(k) if random.random() < 0.5 else 0 for k in (*kernel, *kernel)]
    attributes = {"group": group, "pads": pads, "strides": kernel}
    x_shape = (random.choice((1, 2, 3)), c * group, *image)
    return Problem("conv_transpose", x_shape, (c * group, m, *kernel), (m * group,), attributes)


@pytest.mark.emulator
@pytest.mark.parametrize(("dtype", "precision", "label"), ARITHMETIC[:4], ids=lambda value: str(value))
@checked(0.25)
@given(
    random=st.randoms(use_true_random=False),
    kinds=st.sampled_from(CONV_KINDS),
    seed=st.integers(0, 2**32 - 1),
    layout=st.sampled_from(("contiguous", "contiguous", "contiguous", "reversed")),
)
def test_sums_of_every_kind(
    dtype: Any, precision: str, label: str, random: Any, kinds: Any, seed: int, layout: str
) -> None:
    problem = _problem(random)
    if kinds[0] in ("overflowing", "large") and precision != "ieee":
        kinds = ("large", "small", "normal")  # partial sums stay inside the range
    arrays = operands(problem, kinds, seed, dtype, layout)
    device = emulated_cuda(limits_of=architecture(dtype, 0), seed=seed, late_async=random.random() < 0.7)
    with preferred(f"conv_transpose_matrix_{dtype.name}_3d{label}"), gpuconv.precision(precision), device:
        y = gpuconv.conv_transpose(*arrays, **problem.attributes)
    assert_within(y, arrays, problem, precision)


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_arrays_may_begin_anywhere(dtype: str, which: int) -> None:
    """Where x (0), w (1) or none of them begins on 16 bytes, others one element later."""
    random, made = np.random.default_rng(0), []
    for number, shape in enumerate(((2, 40, 6, 8), (40, 9, 2, 2))):
        further = int(which != number)
        memory = random.integers(-3, 4, np.prod(shape) + further).astype(dtype)[further:]
        made.append(memory.reshape(shape))
    with preferred("conv_transpose_matrix"), gpuconv.precision("tf32"), emulated_cuda(seed=1) as emulated:
        y = gpuconv.conv_transpose(*made, strides=[2, 2])
    (launch,) = emulated.launches
    assert launch.variant.name.startswith("conv_transpose_matrix")
    np.testing.assert_array_equal(y, oracle.conv_transpose(*made, strides=[2, 2]).value.astype(dtype))


@pytest.mark.emulator
@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
def test_numbers_beside_infinity_stay_finite(precision: str) -> None:
    largest = np.finfo(np.float32).max
    x = np.array([largest, -largest, 1e38, np.inf, -np.inf, np.nan], np.float32).reshape(1, 1, 6)
    w = np.full((1, 1, 2), 0.5, np.float32)
    with preferred("conv_transpose_matrix"), gpuconv.precision(precision), emulated_cuda():
        y = gpuconv.conv_transpose(x, w, strides=[2])
    np.testing.assert_allclose(y[0, 0], np.repeat(x[0, 0] / 2, 2), rtol=2.0**-11)


# ---------------------------------------------------------------- machine code


@needs_nvrtc
@needs_disassembler
@pytest.mark.parametrize("number", range(len(FORMS)), ids=lambda number: matrix.variant(*FORMS[number]).name)
def test_the_plan_knows_how_many_instructions_go_with_a_multiplication(number: int) -> None:
    _, precision, _, tile = FORMS[number]
    products = tile.warp_m // 16 * (tile.warp_n // 8) * 4 * (3 if precision == "3xtf32" else 1)
    for copied in (16, 8, 4):
        copies = (tile.block_m // 16 + tile.block_n // copied) * 128 // tile.threads
        way = steady(machine_code.code(matrix.variant(*FORMS[number])), {"HMMA": products, "LDGSTS": copies})
        assert tile.issued + tile.copies * (16 // copied - 1) == pytest.approx(len(way) / products, rel=0.1)
