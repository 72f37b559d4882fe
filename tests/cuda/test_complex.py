"""Complex numbers: every summing operator makes four real calls, on both backends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from gpuconv.cuda import complex as complex_plan
from gpuconv.cuda.plan import limits
from gpuconv.cuda.plan.launch import Plan
from gpuconv.rules import geometry as geometries
from tests.harness.emulated import any_cuda, varied_cuda
from tests.oracle import gradients
from tests.oracle.operands import LAYOUTS, complex_integers
from tests.oracle.oracle import assert_same
from tests.oracle.strategies import Problem, checked, problems

seeds = st.integers(0, 2**32 - 1)
operators = pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
dtypes = pytest.mark.parametrize("dtype", ["complex64", "complex128"])
PARTS = {"complex64": np.dtype("float32"), "complex128": np.dtype("float64")}
memory = st.sampled_from(["contiguous", "fortran", "strided", "reversed", "channels last"])
Backend = Callable[[Any, int, int], AbstractContextManager[Any]]


@pytest.fixture(params=["numpy", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> Backend:
    return varied_cuda if request.param == "cuda" else lambda dtype, rank, seed: nullcontext()


def four_calls(call: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Return a bilinear function of complex arrays by four real calls, without conjugates."""
    return call(a.real, b.real) - call(a.imag, b.imag) + 1j * (call(a.real, b.imag) + call(a.imag, b.real))


@operators
@dtypes
@checked(0.12)
@given(data=st.data(), seed=seeds, layout=memory)
def test_complex_calls_are_four_real_ones(
    backend: Backend, operator: str, dtype: str, data: Any, seed: int, layout: str
) -> None:
    """On integers, so that nothing is rounded."""
    problem: Problem = data.draw(problems(operator, data.draw(st.sampled_from([1, 2, 3, 4]))))
    at = problem.attributes
    shapes = (problem.x_shape, problem.w_shape, gradients.shape_of_result(problem))
    x, w, dy = (LAYOUTS[layout](complex_integers(seed + i, shape, dtype)) for i, shape in enumerate(shapes))
    b = None if problem.b_shape is None else complex_integers(seed + 3, problem.b_shape, dtype)

    def calls() -> tuple[Any, ...]:
        return tuple(getattr(gpuconv, f"{operator}{of}") for of in ("", "_input_grad", "_weight_grad", "_bias_grad"))

    forward, of_input, of_weight, of_bias = calls()
    expected = [
        four_calls(partial(forward, **at), x, w) + (0 if b is None else b.reshape(-1, *(1,) * problem.rank)),
        four_calls(lambda dy, w: of_input(dy, w, x.shape, **at), dy, w),
        four_calls(lambda x, dy: of_weight(x, dy, w.shape, **at), x, dy),
        of_bias(dy.real) + 1j * of_bias(dy.imag),
    ]
    with backend(PARTS[dtype], problem.rank, seed):
        forward, of_input, of_weight, of_bias = calls()
        found = [forward(x, w, b, **at), of_input(dy, w, x.shape, **at), of_weight(x, dy, w.shape, **at), of_bias(dy)]
    for actual, value in zip(found, expected, strict=True):
        assert_same(actual.real.copy(), value.real.astype(PARTS[dtype]), bits=False)
        assert_same(actual.imag.copy(), value.imag.astype(PARTS[dtype]), bits=False)
        assert actual.dtype == dtype


@operators
def test_products_are_not_conjugated(backend: Backend, operator: str) -> None:
    x, w = np.full((1, 1, 1), 1 + 2j, np.complex64), np.full((1, 1, 1), 3 + 5j, np.complex64)
    with backend(np.float32, 1, 0):
        y = getattr(gpuconv, operator)(x, w)
        dx = getattr(gpuconv, f"{operator}_input_grad")(x, w, x.shape)
        dw = getattr(gpuconv, f"{operator}_weight_grad")(x, w, w.shape)
    assert y.item() == dx.item() == dw.item() == -7 + 11j


def test_rounded_sums_are_within_the_bound_of_each_part(backend: Backend) -> None:
    generator = np.random.default_rng(3)
    x, w = (
        (generator.normal(size=s) + 1j * generator.normal(size=s)).astype(np.complex64)
        for s in ((2, 20, 9, 8), (5, 20, 3, 3))
    )
    with backend(np.float32, 2, 3):
        y = gpuconv.conv(x, w, pads=[1, 1, 1, 1])
    exact = gpuconv.conv(x.astype(np.complex128), w.astype(np.complex128), pads=[1, 1, 1, 1])
    absolute = partial(gpuconv.conv, pads=[1, 1, 1, 1])
    s = absolute(np.abs(x.real), np.abs(w.real)) + absolute(np.abs(x.imag), np.abs(w.imag))
    s_imag = absolute(np.abs(x.real), np.abs(w.imag)) + absolute(np.abs(x.imag), np.abs(w.real))
    terms = 2 * 20 * 9 + 2
    assert (np.abs((y - exact).real) <= terms * 2.0**-24 * s).all()
    assert (np.abs((y - exact).imag) <= terms * 2.0**-24 * s_imag).all()


@pytest.mark.gpu
def test_packed_weights_may_be_complex() -> None:
    x, w = complex_integers(0, (1, 3, 6, 5), "complex64"), complex_integers(1, (4, 3, 2, 2), "complex64")
    expected = gpuconv.conv(x, w)
    with any_cuda():
        weights = gpuconv.pack(w)
        assert (gpuconv.conv(x, weights) == expected).all()
        assert (gpuconv.conv(x, weights) == expected).all()


@pytest.mark.gpu
def test_nothing_is_launched_without_weights_but_what_adds_the_bias() -> None:
    """Without channels, the result is the bias."""
    b = np.array([1 + 2j, 3], np.complex64)
    with any_cuda():
        y = gpuconv.conv(np.ones((1, 0, 3), np.complex64), np.ones((2, 0, 2), np.complex64), b)
    assert y.tolist() == [[[1 + 2j] * 2, [3] * 2]]


def test_max_pool_takes_no_complex_numbers() -> None:
    with pytest.raises(gpuconv.ArgumentTypeError, match="max_pool: x has dtype complex64"):
        gpuconv.max_pool(np.ones((1, 1, 3), np.complex64), kernel_shape=[2])


def test_explain_plans_complex_calls(capsys: pytest.CaptureFixture[str]) -> None:
    plan = gpuconv.explain("conv", (1, 8, 16, 16), (8, 8, 3, 3), dtype="complex64", bias=True)
    assert plan.launches[0].variant.name == "expand_complex_complex64_1d"
    assert plan.launches[-1].variant.name == "add_to_complex_complex64_3d"
    assert "bytes for the weights' parts" in capsys.readouterr().out


def test_what_is_added_to_complex_results_takes_one_launch_more() -> None:
    geometry = geometries.conv(
        (2, 6, 9, 8), (8, 3, 2, 5), None, group=2, strides=[2, 1], dilations=[1, 2], pads=[1, 2, 0, 1]
    )
    strides = {"x": (432, 72, 8, 1), "w": (30, 10, 5, 1), "y": (160, 20, 5, 1)}
    hopper = limits.representative("sm_90a").limits

    def planned(**more: tuple[int, ...]) -> Plan:
        return complex_plan.plan("conv", geometry, "complex64", {**strides, **more}, hopper, "ieee")

    alone, added = planned(), [planned(b=(1,)), planned(residual=strides["y"]), planned(b=(1,), residual=strides["y"])]
    assert [len(one.launches) - len(alone.launches) for one in added] == [1, 1, 1]
    assert {role for launch in alone.launches for role, _ in launch.pointers} >= {"w", "expanded", "x", "y"}
    assert alone.bytes_of("expanded") == 8 * 3 * 2 * 5 * 3 * 4  # three real taps for each weight
    for one, roles in zip(added, ({"y", "b"}, {"y", "residual"}, {"y", "b", "residual"}), strict=True):
        assert {role for role, _ in one.launches[-1].pointers} == roles
    lifted = complex_plan._lifted(geometry, kernel=3, stride=1, pad=1)
    assert (lifted.x_shape, lifted.y_shape, lifted.w_shape) == ((2, 6, 9, 8, 2), (2, 8, 5, 3, 2), (8, 3, 2, 5, 3))
    assert (lifted.kernel_shape, lifted.strides, lifted.dilations) == ((2, 5, 3), (2, 1, 1), (1, 2, 1))
    assert (lifted.pads_begin, lifted.pads_end) == ((1, 2, 1), (0, 1, 1))
