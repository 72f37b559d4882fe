"""Conv of one tap as a product of matrices on tensor cores: when, with what, and right wherever x and w begin."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from benchmarks import sass
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv.gemm import matrix
from gpuconv.cuda.conv.gemm.matrix import MatrixTile
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

Form = tuple[str, str, str, MatrixTile]
FORMS = [form for form in matrix.forms() if form[2] != "depth_to_space"]
over_forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: matrix.variant(*form).name)


def plan(
    x_shape: Any, w_shape: Any, dtype: str = "float16", precision: str = "ieee", layout: str = "NCHW", **more: Any
) -> Plan:
    geometry = geometries.conv(x_shape, w_shape, None, **more)
    strides = contiguous(x_shape)
    if layout == "NHWC":
        batch, *spatial, channel = contiguous((x_shape[0], *x_shape[2:], x_shape[1]))
        strides = batch, channel, *spatial
    return conv_families.for_conv(
        geometry, dtype, strides, contiguous(w_shape), None, contiguous(geometry.y_shape), HOPPER, precision
    )


# ---------------------------------------------------------------- choices


def test_one_launch_reads_the_weights_as_they_are() -> None:
    made = plan((32, 64, 56, 56), (256, 64, 1, 1))
    (launch,) = made.launches
    assert launch.variant.name == "conv_matrix_float16_3d_mma_64x128x64_pixels"
    assert (made.bytes_of("workspace"), made.bytes_of("packed")) == (0, 0)
    assert dict(launch.pointers) == {"x": 0, "w": 8, "y": 24}
    struct = fields(launch)["common"]
    assert (struct["pitch"], struct["all_rows"], struct["channels"]) == (128, 256, 64)
    assert launch.grid == (4 * 784, 1, 1)
    assert any("weights as they are; 16 bytes of pixels a copy" in reason for reason in made.reasons)


@pytest.mark.parametrize(
    ("image", "dtype", "copied"),
    [((14, 14), "float16", 8), ((14, 7), "float16", 4), ((7, 7), "float32", 4), ((7, 8), "bfloat16", 16)],
)
def test_copies_are_as_wide_as_images_begin(image: Any, dtype: str, copied: int) -> None:
    made = plan((8, 64, *image), (256, 64, 1, 1), dtype, "tf32" if dtype == "float32" else "ieee")
    assert made.kernel.endswith("_pixels")
    assert any(f"{copied} bytes of pixels a copy" in reason for reason in made.reasons)


@pytest.mark.parametrize(
    ("x", "w", "more", "why"),
    [
        ((8, 64, 7, 7), (256, 64, 1, 1), {}, "pixels of a channel of x are not contiguous"),
        ((8, 64, 8, 8), (256, 64, 1, 1), {"strides": [2, 2]}, "pixels of a channel of x are not contiguous"),
        ((8, 64, 8, 8), (256, 64, 1, 1), {"pads": [0, 0, 1, 0]}, "pixels of a channel of x are not contiguous"),
        (
            (8, 64, 2, 2),
            (256, 64, 1, 1),
            {"strides": [2, 2], "pads": [0, 0, 1, 1]},
            "pixels of a channel of x are not contiguous",
        ),
        ((8, 12, 8, 8), (256, 12, 1, 1), {}, "12 channels of a filter are not whole 16 bytes"),
    ],
)
def test_others_are_left_to_other_kernels_with_the_reason(x: Any, w: Any, more: dict[str, Any], why: str) -> None:
    made = plan(x, w, **more)
    assert not any("conv_matrix" in reason for reason in made.reasons)
    assert str(said(made, matrix)).startswith(why)


def test_where_there_are_several_taps_or_no_tensor_cores_nothing_is_said() -> None:
    for made in (
        plan((8, 64, 8, 8), (256, 64, 1, 3)),
        plan((8, 64, 8, 8), (256, 64, 1, 1), "float32"),
        plan((8, 64, 8, 8), (256, 64, 1, 1), "float64"),
    ):
        assert not any("conv_matrix" in reason or matrix.NAME in reason for reason in made.reasons)


def test_channels_side_by_side_may_have_strides_and_padding() -> None:
    with preferred("conv_matrix"):
        made = plan((32, 512, 28, 28), (1024, 512, 1, 1), layout="NHWC", strides=[2, 2], pads=[1, 0, 0, 1])
    assert made.kernel == "conv_matrix_float16_3d_mma_64x128x64_channels"
    assert len(made.launches) == 1


# ---------------------------------------------------------------- results


def _problem(random: Any) -> Problem:
    """One tap, several tiles and slices; images of whole copies of several widths."""
    group, m = random.choice((1, 1, 2)), random.choice((1, 8, 20, 64, 130)) * 2
    c = random.choice((8, 24, 64, 72, 136, 4, 3)) * group
    image = random.choice(((2,), (4, 9), (14, 7), (8, 8), (3, 2, 5), (5, 7), (1,)))
    ones = [1] * len(image)
    pads, strides = [0] * 2 * len(image), ones
    if random.random() < 0.3:
        pads, strides = [random.randrange(2) for _ in pads], [random.choice((1, 2)) for _ in ones]
    attributes = {"group": group, "pads": pads, "strides": strides}
    return Problem("conv", (random.choice((1, 2, 3)), c, *image), (m, c // group, *ones), (m,), attributes)


@pytest.mark.emulator
@pytest.mark.parametrize(("dtype", "precision", "label"), ARITHMETIC[:4], ids=lambda value: str(value))
@checked(0.25)
@given(
    random=st.randoms(use_true_random=False),
    kinds=st.sampled_from(CONV_KINDS),
    seed=st.integers(0, 2**32 - 1),
    layout=st.sampled_from(("contiguous", "contiguous", "channels last", "reversed", "strided")),
)
def test_sums_of_every_kind(
    dtype: Any, precision: str, label: str, random: Any, kinds: Any, seed: int, layout: str
) -> None:
    problem = _problem(random)
    if kinds[0] in ("overflowing", "large") and precision != "ieee":
        kinds = ("large", "small", "normal")  # partial sums stay inside the range
    arrays = operands(problem, kinds, seed, dtype, layout)
    tile = random.choice(("64x128", "64x64"))
    device = emulated_cuda(limits_of=architecture(dtype, 0), seed=seed, late_async=random.random() < 0.7)
    with preferred(f"conv_matrix_{dtype.name}_3d{label}{tile}"), gpuconv.precision(precision), device:
        y = gpuconv.conv(*arrays, **problem.attributes)
    assert_within(y, arrays, problem, precision)


@pytest.mark.emulator
@pytest.mark.parametrize(("inputs", "dtype"), [("pixels", "float16"), ("pixels", "float32"), ("channels", "bfloat16")])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_arrays_may_begin_anywhere(inputs: str, dtype: str, which: int) -> None:
    """Where x (0), w (1) or none of them begins on 16 bytes, others one element later."""
    random, made = np.random.default_rng(0), []
    for number, shape in enumerate(((2, 40, 6, 8), (70, 40, 1, 1))):
        further = int(which != number)
        memory = random.integers(-3, 4, np.prod(shape) + further).astype(numpy_dtype(dtype))[further:]
        made.append(memory.reshape(shape))
    x, w = made
    if inputs == "channels":
        x = np.moveaxis(x.reshape(2, 6, 8, 40), -1, 1)
    with preferred(f"_{inputs}"), gpuconv.precision("tf32"), emulated_cuda(seed=1) as emulated:
        y = gpuconv.conv(x, w)
    (launch,) = emulated.launches
    assert launch.variant.name.endswith(f"_{inputs}")
    np.testing.assert_array_equal(y, oracle.conv(x, w).value.astype(y.dtype))


def numpy_dtype(name: str) -> Any:
    return next(dtype for dtype, *_ in ARITHMETIC if dtype.name == name)


# ---------------------------------------------------------------- machine code


def products(form: Form) -> int:
    _, precision, _, tile = form
    return tile.warp_m // 16 * (tile.warp_n // 8) * 4 * (3 if precision == "3xtf32" else 1)


def way(form: Form, copied: int, arch: str = "sm_90a") -> list[sass.Instruction]:
    """What a warp executes for a slice of K, with so many bytes of inputs a copy."""
    tile = form[3]
    copies = (tile.block_m // 16 + tile.block_n // copied) * 128 // tile.threads
    return steady(machine_code.code(matrix.variant(*form), arch), {"HMMA": products(form), "LDGSTS": copies})


@needs_nvrtc
@needs_disassembler
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("form", [one for one in FORMS if str(one[3]) == "64x128"][:2], ids=lambda form: form[2])
def test_little_but_products_and_copies(form: Form, arch: str) -> None:
    found = way(form, 16, arch)
    opcodes = Counter(one.opcode for one in found)
    comparisons = opcodes["ISETP"] + opcodes["UISETP"] + opcodes["PLOP3"]
    assert Counter(one.kind for one in found)["integer"] - comparisons < 0.24 * len(found), opcodes
    assert opcodes["HMMA"] > 0.4 * len(found)
    assert opcodes["LDSM"] == 24
    assert not {"LDS", "LDG", "STS"} & set(opcodes)


@needs_nvrtc
@needs_disassembler
@over_forms
def test_the_plan_knows_how_many_instructions_go_with_a_multiplication(form: Form) -> None:
    _, _, inputs, tile = form
    for copied in (16, 8, 4) if inputs == "pixels" else (16,):
        planned = tile.issued + tile.copies * (16 // copied - 1)
        assert planned == pytest.approx(len(way(form, copied)) / products(form), rel=0.1)
