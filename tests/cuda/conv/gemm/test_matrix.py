"""Conv with one tap, and ConvTranspose whose kernel equals its stride, as products of matrices on tensor cores."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import gpuconv
from benchmarks import sass
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv.gemm import matrix
from gpuconv.cuda.conv.gemm.matrix import MatrixTile
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import representative
from tests.cuda.conv.gemm.tensor_cores import ARITHMETIC, assert_within
from tests.emulator import emulated_cuda
from tests.harness import machine_code
from tests.harness.emulated import architecture, preferred
from tests.harness.offered import candidates
from tests.harness.plans import HOPPER, fields, problem, strides
from tests.harness.steady import steady
from tests.harness.toolchain import needs_disassembler, needs_nvrtc
from tests.oracle.operands import CONV_KINDS, operands
from tests.oracle.strategies import Problem, checked

Form = tuple[str, str, str, MatrixTile]
FORMS = list(matrix.forms())
over_forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: matrix.variant(*form).name)


def plan(
    x_shape: Any, w_shape: Any, dtype: str = "float16", precision: str = "ieee", layout: str = "NCHW", **more: Any
) -> Plan:
    x_strides = strides(x_shape, layout)
    one = problem("conv", x_shape, w_shape, dtype, precision=precision, x_strides=x_strides, **more)
    return conv_families.plan(one, HOPPER)


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


def test_channels_side_by_side_may_have_strides_and_padding() -> None:
    with preferred("conv_matrix"):
        made = plan((32, 512, 28, 28), (1024, 512, 1, 1), layout="NHWC", strides=[2, 2], pads=[1, 0, 0, 1])
    assert made.kernel == "conv_matrix_float16_3d_mma_64x128x64_channels"
    assert len(made.launches) == 1


def test_one_launch_scatters_outputs() -> None:
    made = conv_families.plan(problem("conv_transpose", (4, 512, 64, 64), (512, 256, 2, 2), strides=[2, 2]), HOPPER)
    (launch,) = made.launches
    assert launch.variant.name == "conv_transpose_matrix_float16_3d_mma_64x128x64"
    assert (made.bytes_of("workspace"), made.bytes_of("packed")) == (0, 0)
    assert dict(launch.pointers) == {"x": 0, "w": 8, "y": 24}
    struct = fields(launch)["common"]
    assert (struct["pitch"], struct["all_rows"], struct["filters"]) == (2 * 1024, 512, 1024)
    assert launch.grid == (16 * 128, 1, 1)
    assert any("1024 rows, channels and taps, on tensor cores" in reason for reason in made.reasons)
    assert any("16 bytes of pixels a copy" in reason for reason in made.reasons)


# ---------------------------------------------------------------- results


def _conv(random: Any) -> Problem:
    """Return a random problem with one tap, several tiles and slices of K, and images aligned to various copies."""
    group, m = random.choice((1, 1, 2)), random.choice((1, 8, 20, 64, 130)) * 2
    c = random.choice((8, 24, 64, 72, 136, 4, 3)) * group
    image = random.choice(((2,), (4, 9), (14, 7), (8, 8), (3, 2, 5), (5, 7), (1,)))
    ones = [1] * len(image)
    pads, strides = [0] * 2 * len(image), ones
    if random.random() < 0.3:
        pads, strides = [random.randrange(2) for _ in pads], [random.choice((1, 2)) for _ in ones]
    attributes = {"group": group, "pads": pads, "strides": strides}
    return Problem("conv", (random.choice((1, 2, 3)), c, *image), (m, c // group, *ones), (m,), attributes)


def _transposed(random: Any) -> Problem:
    """Return a random problem with kernel = stride, images aligned to various copies, cropped by pads or not."""
    group, m, c = random.choice((1, 1, 2)), random.choice((1, 2, 6, 20, 66)), random.choice((3, 8, 40, 72, 136))
    image = random.choice(((6,), (4, 9), (14, 7), (8, 8), (3, 2, 5), (5, 7)))
    kernel = [random.choice((1, 2, 3, 4)) for _ in image]
    pads = [random.randrange(k) if random.random() < 0.5 else 0 for k in (*kernel, *kernel)]
    attributes = {"group": group, "pads": pads, "strides": kernel}
    x_shape = (random.choice((1, 2, 3)), c * group, *image)
    return Problem("conv_transpose", x_shape, (c * group, m, *kernel), (m * group,), attributes)


def kernels(one: Problem, arrays: Any, dtype: str, precision: str, limits_of: str) -> list[str]:
    x, w = (tuple(step // array.itemsize for step in array.strides) for array in arrays[:2])
    steps: dict[str, Any] = {"x_strides": x, "w_strides": w, **one.attributes}
    found = problem(one.operator, one.x_shape, one.w_shape or (), dtype, precision=precision, **steps)
    return [candidate.name for candidate in candidates(matrix, found, representative(limits_of).limits)]


@pytest.mark.emulator
@pytest.mark.kernels("conv/gemm/matrix.cu", "conv/gemm/depth_to_space_matrix.cu")
@pytest.mark.parametrize("make", [_conv, _transposed])
@pytest.mark.parametrize(("dtype", "precision"), [one[:2] for one in ARITHMETIC[:4]], ids=str)
@checked(0.25)
@given(
    random=st.randoms(use_true_random=False),
    kinds=st.sampled_from(CONV_KINDS),
    seed=st.integers(0, 2**32 - 1),
    layout=st.sampled_from(("contiguous", "contiguous", "channels last", "reversed", "strided")),
)
def test_sums_of_every_kind(
    dtype: Any, precision: str, make: Any, random: Any, kinds: Any, seed: int, layout: str
) -> None:
    one = make(random)
    if kinds[0] in ("overflowing", "large") and precision != "ieee":
        kinds = ("large", "small", "normal")  # partial sums do not overflow
    arrays = operands(one, kinds, seed, dtype, layout)
    limits_of = architecture(dtype, 0)
    names = kernels(one, arrays, dtype.name, precision, limits_of)
    assume(names)
    device = emulated_cuda(limits_of=limits_of, seed=seed, late_async=random.random() < 0.7)
    kernel = random.choice(names)
    with preferred(kernel), gpuconv.precision(precision), device as emulated:
        y = getattr(gpuconv, one.operator)(*arrays, **one.attributes)
    assert emulated.launches[-1].variant.name == kernel
    assert_within(y, arrays, one, precision)


@pytest.mark.emulator
@pytest.mark.kernels("conv/gemm/depth_to_space_matrix.cu")
@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
def test_numbers_beside_infinity_stay_finite(precision: str) -> None:
    largest = np.finfo(np.float32).max
    x = np.array([largest, -largest, 1e38, np.inf, -np.inf, np.nan], np.float32).reshape(1, 1, 6)
    w = np.full((1, 1, 2), 0.5, np.float32)
    with preferred("conv_transpose_matrix"), gpuconv.precision(precision), emulated_cuda():
        y = gpuconv.conv_transpose(x, w, strides=[2])
    np.testing.assert_allclose(y[0, 0], np.repeat(x[0, 0] / 2, 2), rtol=2.0**-11)


# ---------------------------------------------------------------- machine code


def products(form: Form) -> int:
    _, precision, _, tile = form
    return tile.warp_m // 16 * (tile.warp_n // 8) * 4 * (3 if precision == "3xtf32" else 1)


def way(form: Form, copied: int, arch: str = "sm_90a") -> list[sass.Instruction]:
    """Return the instructions of one slice of K, if inputs are copied in units of ``copied`` bytes."""
    tile = form[3]
    copies = (tile.block_m // 16 + tile.block_n // copied) * 128 // tile.threads
    return steady(machine_code.code(matrix.variant(*form), arch), {"HMMA": products(form), "LDGSTS": copies})


@pytest.mark.slow
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


@pytest.mark.slow
@needs_nvrtc
@needs_disassembler
@over_forms
def test_the_plan_knows_how_many_instructions_go_with_a_multiplication(form: Form) -> None:
    _, _, inputs, tile = form
    for copied in (16,) if inputs == "channels" else (16, 8, 4):
        planned = tile.issued + tile.copies * (16 // copied - 1)
        assert planned == pytest.approx(len(way(form, copied)) / products(form), rel=0.1)
