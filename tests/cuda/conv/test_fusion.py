"""Residuals and activations: right by definition, and bit for bit equal to separate steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from gpuconv.cuda.plan import offers
from tests.emulator import emulated_cuda
from tests.harness.emulated import varied_cuda
from tests.harness.sources_of_kernels import CONV, DIRECT
from tests.kernels.fused import BEYOND_TF32, BeyondTf32
from tests.oracle import oracle
from tests.oracle.finish import ACTIVATIONS, accumulator, assert_equal, finished, with_finish
from tests.oracle.operands import CONV_DTYPES, CONV_KINDS, EXACT_KINDS, LAYOUTS, operands, values
from tests.oracle.oracle import assert_close
from tests.oracle.strategies import Problem, checked, problems

pytestmark = pytest.mark.slow

seeds = st.integers(0, 2**32 - 1)
layouts = st.sampled_from(sorted(LAYOUTS))
on_device = st.sampled_from(sorted(set(LAYOUTS) - {"unaligned"}))
outs = st.sampled_from((None, None, "fortran", "strided", "reversed", "channels last"))
activations = st.sampled_from(list(ACTIVATIONS))
kinds_of_residuals = st.sampled_from((None, "normal", "integers", "zeros", "nonfinite"))
convolutions = pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
conv_dtypes = pytest.mark.parametrize("dtype", CONV_DTYPES, ids=str)
whole_dtypes = pytest.mark.parametrize("dtype", [np.dtype("float32"), np.dtype("float64")], ids=str)  # never rounded
half_dtypes = pytest.mark.parametrize("dtype", CONV_DTYPES[:2], ids=str)


@pytest.fixture(params=[None, 2**14], ids=["plenty of memory", "16 KiB"])
def workspace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little memory makes the NumPy backend work in many small blocks."""
    if request.param is not None:
        monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", str(request.param))


def computed(problem: Problem, arrays: list[Any], **more: Any) -> Any:
    return getattr(gpuconv, problem.operator)(*arrays, **problem.attributes, **more)


def exact(problem: Problem, arrays: list[Any]) -> oracle.Exact:
    return getattr(oracle, problem.operator)(*arrays, **problem.attributes)


def residual_of(kind: str | None, seed: int, shape: tuple[int, ...], dtype: Any, layout: str) -> Any:
    return None if kind is None else LAYOUTS[layout](values(kind, seed, shape, dtype))


def new(layout: str | None, shape: tuple[int, ...], dtype: Any) -> Any:
    return None if layout is None else LAYOUTS[layout](np.zeros(shape, dtype))


# ---------------------------------------------------------------- on the CPU


@convolutions
@conv_dtypes
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@checked(0.3)
@given(data=st.data(), seed=seeds, activation=activations, layout=layouts)
def test_they_are_within_the_bound_of_the_definition(
    operator: str, dtype: Any, rank: int, data: Any, seed: int, activation: Any, layout: str, workspace: None
) -> None:
    problem = data.draw(problems(operator, rank))
    arrays = operands(problem, ("normal", "normal", "normal"), seed, dtype)
    plain = exact(problem, arrays)
    residual = residual_of("normal", seed + 3, plain.value.shape, dtype, layout)
    y = computed(problem, arrays, activation=activation, residual=residual)
    assert_close(y, with_finish(plain, residual, activation, dtype), dtype)


@convolutions
@whole_dtypes
@checked(2)
@given(data=st.data(), kinds=st.sampled_from(CONV_KINDS), seed=seeds, layout=layouts, out=outs, kind=kinds_of_residuals)
def test_every_bit_is_that_of_the_steps_one_after_the_other(
    operator: str, dtype: Any, data: Any, kinds: Any, seed: int, layout: str, out: str | None, kind: str | None,
    workspace: None,
) -> None:  # fmt: skip
    problem, activation = data.draw(problems(operator)), data.draw(activations)
    arrays = operands(problem, kinds, seed, dtype)
    shape = computed(problem, arrays).shape
    plain = computed(
        problem, arrays, out=new(out, shape, dtype)
    )  # the memory for sums depends on the arrays that they are written to
    residual = residual_of(kind, seed + 3, shape, dtype, layout)
    given = {"residual": residual, "activation": activation, "out": new(out, shape, dtype)}
    assert_equal(computed(problem, arrays, **given), finished(plain, residual, activation))


@convolutions
@half_dtypes
@checked(1)
@given(data=st.data(), kinds=st.sampled_from(EXACT_KINDS), seed=seeds, layout=layouts, kind=kinds_of_residuals)
def test_short_numbers_are_rounded_once_at_the_end(
    operator: str, dtype: Any, data: Any, kinds: Any, seed: int, layout: str, kind: str | None, workspace: None
) -> None:
    problem, activation = data.draw(problems(operator)), data.draw(activations)
    arrays = operands(problem, kinds, seed, dtype)
    sums = exact(problem, arrays).value.astype(accumulator(dtype))  # integers, which are exact in this type
    residual = residual_of(kind, seed + 3, sums.shape, dtype, layout)
    with np.errstate(all="ignore"):
        expected = finished(sums, residual, activation).astype(dtype)
    y = computed(problem, arrays, residual=residual, activation=activation)
    assert_equal(y + 0, expected + 0)  # a sum of zeros may have any sign


# ---------------------------------------------------------------- on CUDA devices


@pytest.mark.gpu
@convolutions
@whole_dtypes
@checked(0.3)
@given(
    data=st.data(), kinds=st.sampled_from(CONV_KINDS), seed=seeds, layout=on_device, out=outs, kind=kinds_of_residuals
)
def test_kernels_give_every_bit_of_the_steps_one_after_the_other(
    operator: str, dtype: Any, data: Any, kinds: Any, seed: int, layout: str, out: str | None, kind: str | None
) -> None:
    problem, activation = data.draw(problems(operator)), data.draw(activations)
    arrays = operands(problem, kinds, seed, dtype)
    with varied_cuda(dtype, problem.rank, seed):
        shape = computed(problem, arrays).shape
        plain = computed(problem, arrays, out=new(out, shape, dtype))
        residual = residual_of(kind, seed + 3, plain.shape, dtype, layout)
        given = {"residual": residual, "activation": activation, "out": new(out, shape, dtype)}
        y = computed(problem, arrays, **given)
    assert_equal(y, finished(plain, residual, activation))


@pytest.mark.gpu
@convolutions
@half_dtypes
@checked(0.3)
@given(data=st.data(), kinds=st.sampled_from(EXACT_KINDS), seed=seeds, layout=on_device, out=outs)
def test_kernels_round_short_numbers_once_at_the_end(
    operator: str, dtype: Any, data: Any, kinds: Any, seed: int, layout: str, out: str | None
) -> None:
    problem, activation = data.draw(problems(operator)), data.draw(activations)
    arrays = operands(problem, kinds, seed, dtype)
    sums = exact(problem, arrays).value.astype(accumulator(dtype))
    residual = residual_of(data.draw(kinds_of_residuals), seed + 3, sums.shape, dtype, layout)
    with np.errstate(all="ignore"):
        expected = finished(sums, residual, activation).astype(dtype)
    with varied_cuda(dtype, problem.rank, seed):
        given = {"residual": residual, "activation": activation, "out": new(out, sums.shape, dtype)}
        y = computed(problem, arrays, **given)
    assert_equal(y + 0, expected + 0)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
@pytest.mark.parametrize("call", BEYOND_TF32, ids=[call.kernel for call in BEYOND_TF32])
def test_no_relu_hides_a_sum_that_rounded_inputs_made_infinite(call: BeyondTf32, precision: str) -> None:
    call.check(precision)


@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
def test_a_residual_and_an_activation_alone_or_together(operator: str) -> None:
    x, w, r = np.float32([[[1, -2, 3]]]), np.float32([[[2]]]), np.float32([[[-5, 1, 1]]])
    call = getattr(gpuconv, operator)
    assert call(x, w, activation="relu").tolist() == [[[2, 0, 6]]]
    assert call(x, w, residual=r).tolist() == [[[-3, -3, 7]]]
    assert call(x, w, residual=r, activation="relu").tolist() == [[[0, 0, 7]]]


@pytest.mark.gpu
@convolutions
@conv_dtypes
@pytest.mark.parametrize("activation", ["relu", ("leaky_relu", -2), ("clip", -0.0, -0.0)], ids=str)
def test_sums_of_zero_keep_their_bits_at_bounds_of_either_zero(operator: str, dtype: Any, activation: Any) -> None:
    """+0 and -0 compare equal, so a zero sum must be neither scaled by -2 nor replaced by the other zero."""
    x, w = np.zeros((1, 2, 5, 5), dtype), np.ones((2, 2, 3, 3), dtype)
    with varied_cuda(dtype, 2, 0):
        plain = getattr(gpuconv, operator)(x, w)
        y = getattr(gpuconv, operator)(x, w, activation=activation)
    assert not plain.view(f"u{dtype.itemsize}").any()
    assert not y.view(f"u{dtype.itemsize}").any()


@pytest.mark.emulator
@pytest.mark.kernels(*CONV, *DIRECT, "conv/gemm/pointwise.cu", "conv/gemm/stem.cu")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_relu_keeps_negative_zero_in_every_kernel_that_makes_one(dtype: str) -> None:
    """The product underflows to -0.0, to which a bias of -0.0 is added; kernels that begin with +0.0 lose the sign."""
    tiny = np.sqrt(np.finfo(dtype).tiny) * 1e-9
    x, w = np.full((1, 1, 6, 6), -tiny, dtype), np.full((2, 1, 1, 1), tiny, dtype)
    b = np.full(2, -0.0, dtype)
    negative = 0
    for picked in offers.every_candidate():
        with emulated_cuda(), picked:
            arrays = [gpuconv.to_device(array) for array in (x, w, b)]
            plain = gpuconv.to_host(gpuconv.conv(*arrays))
            rectified = gpuconv.to_host(gpuconv.conv(*arrays, activation="relu"))
        assert not plain.any()
        assert rectified.tobytes() == plain.tobytes()
        negative += bool(np.signbit(plain).all())
    assert negative >= 2
