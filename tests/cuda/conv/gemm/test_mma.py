"""Conv and ConvTranspose on tensor cores: every tile and form on random problems, special values, errors, choices."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv.gemm import mma_tile
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.limits import representative
from gpuconv.cuda.plan.offers import Candidate
from gpuconv.rules import cases
from gpuconv.rules.cases import Case
from tests.cuda.conv.gemm.tensor_cores import ARITHMETIC, assert_within
from tests.emulator import emulated_cuda
from tests.harness.emulated import architecture, preferred
from tests.harness.plans import problem
from tests.harness.sources_of_kernels import CONV, CONV_TRANSPOSE
from tests.oracle import oracle
from tests.oracle.operands import CONV_KINDS, operands
from tests.oracle.strategies import Problem, checked, problems

pytestmark = [pytest.mark.emulator, pytest.mark.kernels(*CONV, *CONV_TRANSPOSE)]

seeds = st.integers(0, 2**32 - 1)
layouts = st.sampled_from(("contiguous", "channels last", "channels last", "reversed", "strided", "fortran"))
operators = pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
over_arithmetic = pytest.mark.parametrize(("dtype", "precision", "label"), ARITHMETIC, ids=lambda value: str(value))


@contextmanager
def tensor_cores(dtype: Any, precision: str, label: str, seed: int) -> Iterator[Any]:
    """The emulated device; kernel, schedule and the time of asynchronous copies follow the seed."""
    random = Random(seed)
    number = random.randrange(60)

    def pick(candidates: Sequence[Candidate]) -> Candidate:
        found = [one for one in candidates if label in one.name] or candidates
        return found[number % len(found)]

    device = emulated_cuda(limits_of=architecture(dtype, 0), seed=seed, late_async=random.random() < 0.7)
    with offers.picking(pick), gpuconv.precision(precision), device as emulated:
        yield emulated


@operators
@over_arithmetic
@checked(0.25)
@given(data=st.data(), kinds=st.sampled_from(CONV_KINDS), seed=seeds, layout=layouts)
def test_sums_of_every_kind_in_every_layout(
    operator: str, dtype: Any, precision: str, label: str, data: Any, kinds: Any, seed: int, layout: str
) -> None:
    problem = data.draw(problems(operator))
    if kinds[0] in ("overflowing", "large") and precision != "ieee":
        kinds = ("large", "small", "normal")  # partial sums do not overflow
    arrays = operands(problem, kinds, seed, dtype, layout)
    with tensor_cores(dtype, precision, label, seed):
        y = getattr(gpuconv, operator)(*arrays, **problem.attributes)
    assert_within(y, arrays, problem, precision)


def _wide(random: Random, operator: str) -> Problem:
    """Several tiles of output channels, and channels that do and do not fill slices and chunks."""
    group, c = random.choice((1, 1, 2)), random.choice((8, 16, 24, 40, 64, 72, 3, 12, 17, 33))
    m = random.choice((1, 8, 16, 20, 64, 70, 130, 200)) // group or 1
    spatial, kernel = random.choice(((13,), (7, 9), (3, 4, 6))), random.choice((1, 2, 3))
    taps = [kernel] * len(spatial)
    pads = [random.randrange(kernel) for _ in 2 * spatial]
    attributes = {"group": group, "pads": pads, "strides": [random.choice((1, 2)) for _ in spatial]}
    w_shape = (m * group, c, *taps) if operator == "conv" else (c * group, m, *taps)
    return Problem(operator, (random.choice((1, 2)), c * group, *spatial), w_shape, (m * group,), attributes)


@operators
@over_arithmetic
@checked(0.25)
@given(random=st.randoms(use_true_random=False), seed=seeds, layout=layouts)
def test_integers_over_many_channels_are_exact(
    operator: str, dtype: Any, precision: str, label: str, random: Random, seed: int, layout: str
) -> None:
    problem = _wide(random, operator)
    arrays = operands(problem, ("integers", "integers", "integers"), seed, dtype, layout)
    with tensor_cores(dtype, precision, label, seed) as emulated:
        y = getattr(gpuconv, operator)(*arrays, **problem.attributes)
    names = [launch.variant.name for launch in emulated.launches]
    assert all(label in name or name.startswith(("pack", "channels_last")) for name in names)
    exact = getattr(oracle, operator)(*arrays, **problem.attributes)
    assert np.array_equal(y, exact.value.astype(dtype))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", [case for case in cases.CASES if "pool" not in case.op], ids=lambda case: case.name)
def test_every_named_case(case: Case) -> None:
    """In float64, and alternately in one of the 16-bit dtypes and in one precision of float32."""
    seed = zlib.crc32(case.name.encode())
    for dtype, precision, label in (ARITHMETIC[seed % 2], ARITHMETIC[2 + seed % 2], ARITHMETIC[4]):
        if dtype.name not in case.dtypes:
            continue
        arrays = cases.inputs(case, dtype.name)
        with tensor_cores(dtype, precision, label, seed):
            y = getattr(gpuconv, case.op)(**arrays, **case.attributes)
        problem = Problem(case.op, case.x_shape, case.w_shape, None, dict(case.attributes))
        assert_within(y, [arrays.get(name) for name in ("x", "w", "b")], problem, precision)


# ---------------------------------------------------------------- special values


def tf32(precision: str, x: Any, w: Any, kernel: str = "64x64", **attributes: Any) -> Any:
    label = f"_{precision}_{kernel}"
    with emulated_cuda() as emulated, preferred(label), gpuconv.precision(precision):
        y = gpuconv.conv(np.asarray(x, np.float32), np.asarray(w, np.float32), **attributes)
    assert label in emulated.launches[-1].variant.name
    return y


NANS = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF800001, 0x7FC00000, 0x7F801000], np.uint32).view(np.float32)


@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
def test_every_nan_stays_one(precision: str) -> None:
    ones = np.ones((1, 1, 6), np.float32)
    assert np.isnan(tf32(precision, NANS.reshape(1, 1, 6), ones[..., :1])).all()
    assert np.isnan(tf32(precision, ones[..., :1], NANS.reshape(6, 1, 1))).all()


@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
def test_numbers_beside_infinity_stay_finite(precision: str) -> None:
    largest = np.finfo(np.float32).max
    x = np.array([largest, -largest, 1e38, 3.4e38, np.inf, -np.inf], np.float32)
    for left, right in ((x.reshape(1, 1, 6), np.full((1, 1, 1), 0.5)), (np.full((1, 1, 1), 0.5), x.reshape(6, 1, 1))):
        y = tf32(precision, left, right).reshape(-1)
        assert np.array_equal(y[4:], x[4:])
        assert np.abs(y[:4] / (x[:4] / 2) - 1).max() <= (2.0**-11 if precision == "tf32" else 2.0**-21)


@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
def test_infinities_meet_zeros_inside_alone(precision: str) -> None:
    x, w = np.ones((1, 3, 4), np.float32), np.zeros((2, 3, 3), np.float32)
    w[0, 1, 0] = np.inf
    y = tf32(precision, x, w, pads=[1, 1])
    assert np.array_equal(y, [[[0, np.inf, np.inf, np.inf], [0, 0, 0, 0]]])
    x[0, 1, 3] = np.inf
    assert np.isnan(tf32(precision, x, w, pads=[1, 1])[0, 1, 2:]).all()  # 0 x inf


def test_small_results_are_not_flushed() -> None:
    x, w = np.full((1, 1, 1), 2.0**-75), np.full((1, 1, 1), 1.5 * 2.0**-70)
    for precision in ("tf32", "3xtf32"):
        assert tf32(precision, x, w) == np.float32(1.5 * 2.0**-145)


def test_bits_tell_how_products_are_made() -> None:
    x, w = np.full((1, 16, 5), 1 + 2.0**-12), np.ones((16, 16, 1))
    assert (tf32("tf32", x, w) == 16).all()
    assert (tf32("3xtf32", x, w) == 16 + 2.0**-8).all()


def _errors(precision: str, kernel: str, size: int) -> Any:
    """Return errors of sums of ``size`` normal products, in units of 2**-24 of the sum of their magnitudes."""
    random = np.random.default_rng(0)
    x, w = random.standard_normal((1, size, 500)), random.standard_normal((64, size, 1))
    x, w = x.astype(np.float32), w.astype(np.float32)
    exact = oracle.conv(x, w)
    return np.abs(tf32(precision, x, w, kernel).astype(np.float64) - exact.value) / exact.magnitude * 2.0**24


def test_the_error_of_3xtf32_is_what_the_readme_says() -> None:
    """With the sums of the emulator: float32 in the order of K; tensor cores truncate sums instead of rounding them."""
    single, many = _errors("3xtf32", "64x64", 1), _errors("3xtf32", "64x64", 512)
    assert max(single.max(), many.max()) < 8  # 2**-21
    assert max(single.mean(), many.mean()) < 1.2
    assert _errors("tf32", "64x64", 1).max() < 2**14  # 2**-10


# ---------------------------------------------------------------- choices


def reasons(x: Any, w: Any, dtype: str, precision: str = "ieee", operator: str = "conv") -> str:
    plan = conv_families.plan(problem(operator, x, w, dtype, precision=precision), representative("sm_90a").limits)
    return "\n".join([plan.launches[-1].variant.name, *plan.reasons])


def test_every_form_says_what_it_takes() -> None:
    lifted = {form.gather for tiles in mma_tile.TILES.values() for tile in tiles for form in tile.forms}
    assert lifted == {"vector", "scalar", "rowwise", "chunks", "halves"}
    text = reasons((2, 20, 9, 9), (8, 20, 3, 3), "float16")
    assert "20 channels" in text
    assert "rowwise" in text
    for form in ("vector", "chunks", "halves"):
        assert not re.search(rf"_{form}(_split)?: ", text)  # channels are adjacent only in a copy


@pytest.mark.parametrize(("operator", "w_shape"), [("conv", (1, 4, 5)), ("conv_transpose", (4, 1, 5))])
def test_taps_beside_a_single_element_are_as_well_aligned_as_it_is(operator: str, w_shape: tuple[int, ...]) -> None:
    """Channels of a row of one element are contiguous; its stride along the row is irrelevant."""
    x, w = np.arange(8, dtype=np.float32).reshape(2, 4, 1), np.arange(20, dtype=np.float32).reshape(w_shape)
    attributes: dict[str, Any] = {"dilations": [2], "auto_pad": "SAME_LOWER"}
    with preferred("tf32_64x64x32_vector"), emulated_cuda() as emulated:
        y = getattr(gpuconv, operator)(x, w, precision="tf32", **attributes)
    assert emulated.launches[-1].variant.name.endswith("tf32_64x64x32_vector")
    np.testing.assert_array_equal(y, getattr(gpuconv, operator)(x, w, **attributes))


# ---------------------------------------------------------------- all taps along W as rows


def tap_rows(x: Any, w: Any, operator: str = "conv", kernel: str = "tap_rows", **attributes: Any) -> Any:
    """Return the struct of a plan whose M enumerates taps along W, or None if there is no such plan."""
    with preferred(kernel):
        launch = conv_families.plan(
            problem(operator, x, w, "bfloat16", layout="NHWC", **attributes), representative("sm_90a").limits
        ).launches[-1]
    if "tap_rows" not in launch.variant.name:
        return None
    return np.frombuffer(launch.parameters, launch.variant.layout)[0]


def test_taps_along_w_are_rows_of_whole_filters() -> None:
    """Six filters of 5 taps fill 32 rows of M; outputs read 8 pixels beyond their own, so tiles of 256 compute 248."""
    struct = tap_rows((2, 64, 9, 40), (7, 64, 3, 5), dilations=[1, 2], pads=[1, 4, 1, 4])
    names = ("filters", "of_tile", "along", "first", "step", "outputs", "width")
    assert [int(struct[name]) for name in names] == [7, 6, 5, 0, 2, 248, 40]
    assert struct["common"]["extent"]["divisor"].tolist() == [1, 9, 48]
    assert [int(struct["common"][name]) for name in ("filters", "pixels")] == [64, 2 * 9 * 48]
    assert struct["taps"]["count"]["divisor"].tolist() == [1, 3, 1]
    assert struct["taps"]["start"].tolist() == [0, -1, -4]


def test_with_a_stride_runs_of_taps_are_rows() -> None:
    """Five taps in runs of two are three rows of M, the last with one tap; outputs read two runs beyond their own."""
    attributes: dict[str, Any] = {"strides": [1, 2], "pads": [1, 1, 1, 2]}
    struct = tap_rows(
        (2, 64, 9, 41), (7, 64, 3, 5), kernel="conv_tap_rows_bfloat16_3d_mma_32x256x64_vector", **attributes
    )
    names = ("filters", "of_tile", "along", "run", "kernel", "first", "step", "outputs", "width")
    assert [int(struct[name]) for name in names] == [7, 10, 3, 2, 5, 0, 1, 254, 20]
    assert struct["common"]["extent"]["divisor"].tolist() == [1, 9, 22]
    assert struct["common"]["stride"].tolist() == [1, 1, 2]
    assert [int(struct["common"][name]) for name in ("filters", "pixels")] == [32, 2 * 9 * 22]
    assert struct["taps"]["count"]["divisor"].tolist() == [1, 3, 2]
    assert struct["taps"]["start"].tolist() == [0, -1, -1]


def test_taps_of_conv_transpose_run_backwards() -> None:
    """The first tap reads the last pixel."""
    struct = tap_rows((2, 64, 9, 40), (64, 7, 3, 5), "conv_transpose", dilations=[1, 2], pads=[1, 1, 1, 2])
    assert [int(struct[name]) for name in ("first", "step", "width")] == [8, -2, 45]
    assert struct["taps"]["start"].tolist() == [0, 1, -7]


@pytest.mark.parametrize(
    ("w", "attributes"),
    [
        ((7, 64, 3, 1), {}),
        ((7, 64, 3, 5), {"strides": [1, 5]}),
        ((7, 64, 3, 5), {"strides": [1, 2], "dilations": [1, 3]}),
        ((7, 64, 1, 129), {}),
        ((7, 64, 1, 5), {"dilations": [1, 33]}),
    ],
    ids=[
        "one tap",
        "one run of taps",
        "strides and dilations",
        "more taps than rows",
        "outputs reach over half a tile",
    ],
)
def test_other_taps_along_w_are_no_rows(w: Any, attributes: dict[str, Any]) -> None:
    assert tap_rows((2, 64, 9, 200), w, **attributes) is None


@pytest.mark.parametrize(
    ("x", "w", "dtype"),
    [((1, 304, 256, 384), (8, 304, 5, 5), "bfloat16"), ((8, 480, 63, 63), (10, 480, 7, 7), "float16")],
)
def test_few_filters_have_their_taps_along_w_as_rows(x: Any, w: Any, dtype: str) -> None:
    plan = conv_families.plan(problem("conv", x, w, dtype, layout="NHWC"), representative("sm_90a").limits)
    assert plan.kernel.startswith("conv_tap_rows_")
    assert f"{w[-1]} taps along W are rows of" in "\n".join(plan.reasons)
