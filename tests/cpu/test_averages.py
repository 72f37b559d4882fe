"""Averages and their gradients on both backends, against their definition."""

from __future__ import annotations

from fractions import Fraction
from importlib import import_module
from random import Random
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from gpuconv.rules import geometry
from tests.cpu.conftest import Backend
from tests.oracle import gradients, oracle
from tests.oracle.operands import CONV_DTYPES, LAYOUTS, complex_integers, values
from tests.oracle.oracle import assert_close, assert_same
from tests.oracle.strategies import Problem, average_pool_problem, checked

pytestmark = pytest.mark.slow

average_pool = import_module("gpuconv.cpu.pool.average_pool")
seeds = st.integers(0, 2**32 - 1)
dtypes = pytest.mark.parametrize("dtype", CONV_DTYPES, ids=str)
memory = st.sampled_from(sorted(set(LAYOUTS) - {"unaligned", "broadcast"}))
kinds = st.sampled_from(["normal", "integers", "zeros", "nonfinite", "subnormal"])
any_problem = st.randoms(use_true_random=False).map(average_pool_problem)


def called(function: Any, array: Any, *arguments: Any, order: str, **attributes: Any) -> Any:
    """The result with its channels second, of an array with them second."""
    if order == "NCHW":
        return function(array, *arguments, **attributes)
    arguments = tuple((a[0], *a[2:], a[1]) for a in arguments)
    return np.moveaxis(function(np.moveaxis(array, 1, -1), *arguments, layout="NHWC", **attributes), -1, 1)


@dtypes
@checked(0.6)
@given(
    problem=any_problem,
    kind=kinds,
    seed=seeds,
    layout=memory,
    order=st.sampled_from(["NCHW", "NHWC"]),
)
def test_averages_are_what_their_definition_says(
    backend: Backend, dtype: Any, problem: Problem, kind: str, seed: int, layout: str, order: str
) -> None:
    x = LAYOUTS[layout](values(kind, seed, problem.x_shape, dtype))
    with backend(dtype, problem.rank, seed):
        y = called(gpuconv.average_pool, x, order=order, **problem.attributes)
        again = called(gpuconv.average_pool, x, order=order, **problem.attributes)
    assert_close(y, oracle.average_pool(x, **problem.attributes), dtype)
    assert_same(again, y, bits=False)


@dtypes
@checked(0.5)
@given(
    problem=any_problem,
    kind=st.sampled_from(["normal", "integers", "nonfinite"]),  # each quotient of a subnormal number is rounded
    seed=seeds,
    layout=memory,
    order=st.sampled_from(["NCHW", "NHWC"]),
)
def test_gradients_of_averages_are_what_their_definition_says(
    backend: Backend, dtype: Any, problem: Problem, kind: str, seed: int, layout: str, order: str
) -> None:
    shape = geometry.average_pool(problem.x_shape, **problem.attributes).y_shape
    dy = LAYOUTS[layout](values(kind, seed, shape, dtype))
    with backend(dtype, problem.rank, seed):
        dx = called(gpuconv.average_pool_grad, dy, problem.x_shape, order=order, **problem.attributes)
    assert_close(dx, gradients.average_pool_grad(dy, problem.x_shape, **problem.attributes), dtype)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("seed", range(6))
def test_complex_averages_are_those_of_their_parts(backend: Backend, dtype: str, seed: int) -> None:
    problem = average_pool_problem(Random(seed), 1 + seed % 3)
    x = complex_integers(seed, problem.x_shape, dtype)
    with backend(np.dtype(x.real.dtype), problem.rank + 1, seed):
        y = gpuconv.average_pool(x, **problem.attributes)
        dx = gpuconv.average_pool_grad(y, x.shape, **problem.attributes)
    with np.errstate(all="ignore"):
        parts = [gpuconv.average_pool(part, **problem.attributes) for part in (x.real, x.imag)]
        back = [gpuconv.average_pool_grad(part, x.shape, **problem.attributes) for part in parts]
    for whole, (real, imaginary) in ((y, parts), (dx, back)):
        np.testing.assert_array_almost_equal_nulp(whole.real.copy(), real, 4)
        np.testing.assert_array_almost_equal_nulp(whole.imag.copy(), imaginary, 4)
        assert whole.dtype == dtype


@dtypes
@pytest.mark.parametrize("shape", [(2, 3, 7, 7), (1, 2, 300), (2, 5, 3, 4, 5), (3, 16, 40, 30), (1, 1, 90, 110)])
@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
def test_a_global_average_is_that_of_one_window(
    backend: Backend, dtype: Any, shape: tuple[int, ...], order: str
) -> None:
    x = LAYOUTS["channels last" if order == "NHWC" else "contiguous"](values("integers", 1, shape, dtype))
    dy = values("integers", 2, (*shape[:2], *(1,) * (len(shape) - 2)), dtype)
    with backend(dtype, len(shape) - 2, len(shape)):
        y = called(gpuconv.global_average_pool, x, order=order)
        dx = called(gpuconv.global_average_pool_grad, dy, shape, order=order)
    sums = x.astype(np.float64).sum(axis=tuple(range(2, len(shape))), keepdims=True)
    count = np.prod(shape[2:])
    assert_same(y, oracle.round_to(sums / count, dtype), bits=False)  # integers: the sums are exact
    assert_same(dx, np.broadcast_to(oracle.round_to(dy.astype(np.float64) / count, dtype), shape), bits=False)


def test_a_global_average_of_nothing_is_no_number_and_gives_nothing_back(backend: Backend) -> None:
    x = np.ones((2, 3, 0, 4), np.float32)
    with backend(x.dtype, 2, 0), np.errstate(all="raise"):
        assert np.isnan(gpuconv.global_average_pool(x)).tolist() == [[[[True]]] * 3] * 2
        assert gpuconv.global_average_pool_grad(np.ones((2, 3, 1, 1), np.float32), x.shape).shape == x.shape


def test_windows_in_which_nothing_counts_give_no_number_and_take_no_gradient(backend: Backend) -> None:
    x, attributes = np.arange(1.0, 5).reshape(1, 1, 4), {"kernel_shape": 2, "pads": [3, 0]}
    with backend(x.dtype, 1, 0), np.errstate(all="raise"):
        assert gpuconv.average_pool(x, **attributes)[0, 0].astype(str).tolist() == [
            *("nan", "nan", "1.0", "1.5", "2.5", "3.5")
        ]
        dy = np.array([[[np.nan, np.inf, 1.0, 2.0, 4.0, 8.0]]])
        assert gpuconv.average_pool_grad(dy, x.shape, **attributes).tolist() == [[[2.0, 3.0, 6.0, 4.0]]]


def test_sums_are_made_in_float32_and_rounded_once(backend: Backend) -> None:
    for dtype in CONV_DTYPES[:2]:
        steps = {"float16": 2048, "bfloat16": 256}[dtype.name]
        x = np.array([steps, *[1] * 7], dtype).reshape(1, 1, 8)
        with backend(dtype, 1, 0):
            y = gpuconv.average_pool(x, kernel_shape=8)
            whole = gpuconv.global_average_pool(x)
        assert y.item() == whole.item() == dtype.type(float(Fraction(steps + 7, 8)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_is_taken_off_a_sum_again(backend: Backend, dtype: str) -> None:
    """Windows after a large number are exact sums of small ones: differences of prefix sums would not be."""
    x = np.array([2.0**60, *[1.0] * 40], dtype).reshape(1, 1, -1)
    for kernel, stride in ((3, 1), (9, 1), (9, 2), (20, 1)):
        with backend(np.dtype(dtype), 1, 0):
            y = gpuconv.average_pool(x, kernel_shape=kernel, strides=stride)
        assert (y[0, 0, 1:] == 1).all()


@pytest.mark.parametrize("limit", [2**14, 2**18])
def test_windows_larger_than_the_workspace_are_added_up(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", str(limit))
    x = values("integers", 3, (2, 2, 90, 110), np.float32)
    y = gpuconv.average_pool(x, kernel_shape=[80, 100], strides=[10, 5], pads=[3, 0, 0, 4])
    expected = oracle.average_pool(x, kernel_shape=[80, 100], strides=[10, 5], pads=[3, 0, 0, 4])
    assert_same(y, oracle.round_to(expected.value, np.float32), bits=False)
    assert gpuconv.global_average_pool(x).tolist() == (x.sum((2, 3), keepdims=True) / np.float32(9900)).tolist()


def test_the_average_of_one_element_is_that_element_for_every_float16() -> None:
    x = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(1, -1, 1)
    assert_same(gpuconv.global_average_pool(x), x, bits=False)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("extents", [(1,), (19,), (7, 7), (32, 33), (5, 6, 7)])
def test_whole_images_have_the_bits_of_blocks_of_them(extents: tuple[int, ...], dtype: Any) -> None:
    x = np.random.default_rng(0).standard_normal((3, 17, *extents)).astype(dtype)
    y = gpuconv.global_average_pool(x)
    assert gpuconv.average_pool(x, kernel_shape=extents).tobytes() == y.tobytes()
    with mock.patch.object(average_pool, "_is_whole", return_value=False):
        assert gpuconv.global_average_pool(x).tobytes() == y.tobytes()


def _summed_in_turn(x: Any, g: geometry.AveragePoolGeometry) -> Any:
    """Sums of windows, axis after axis, each from its first tap inside to its last; and how many taps those are."""
    counts = np.ones((), x.dtype)
    columns = zip(g.y_shape[2:], g.strides, g.offsets, strict=True)
    for axis, (windows, stride, offsets) in enumerate(columns, 2):
        lines = np.moveaxis(x, axis, 0)
        total, count = np.zeros((windows, *lines.shape[1:]), x.dtype), np.zeros(windows, x.dtype)
        for q in range(windows):
            for tap in offsets:
                if 0 <= q * stride + tap < len(lines):
                    total[q] += lines[q * stride + tap]
                    count[q] += 1
        x, counts = np.moveaxis(total, 0, axis), np.multiply.outer(counts, count)
    return x, counts


WINDOWS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 9, 7, 7), {"kernel_shape": [3, 3], "pads": [1] * 4}),
    ((3, 40, 17, 17), {"kernel_shape": [45, 45], "strides": [11, 2], "pads": [44, 22, 44, 22]}),
    ((1, 90, 9, 9), {"kernel_shape": [4, 4], "strides": [4, 3], "pads": [3, 2, 3, 2]}),
    ((2, 2, 61, 50), {"kernel_shape": [14, 24], "strides": [1, 13], "dilations": [4, 1], "pads": [13, 0, 13, 0]}),
    ((3, 11, 130), {"kernel_shape": [3], "strides": [2]}),
    ((4, 9, 400), {"kernel_shape": [12], "strides": [54], "dilations": [12], "pads": [11, 11]}),
    ((2, 30, 76), {"kernel_shape": [33], "strides": [33], "pads": [16, 16]}),
    ((1, 2, 70, 60), {"kernel_shape": [61, 53]}),
    ((1, 1, 900), {"kernel_shape": [880], "pads": [3, 9]}),
    ((1, 3, 5), {"kernel_shape": [90], "strides": [2], "pads": [89, 89]}),
    ((1, 20, 5, 6, 4), {"kernel_shape": [3, 2, 4], "strides": [2, 1, 1], "pads": [1, 1, 3, 1, 1, 3]}),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("shape", "attributes"), WINDOWS, ids=str)
def test_windows_are_summed_tap_by_tap_whatever_the_workspace_threads_and_memory_layout(
    shape: tuple[int, ...], attributes: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(3).standard_normal(shape).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    totals, counts = _summed_in_turn(wide, geometry.average_pool(shape, **attributes))
    with np.errstate(all="ignore"):
        expected = (totals / counts).astype(x.dtype)
    orders = [np.arange(x.ndim), [0, *range(2, x.ndim), 1], np.arange(x.ndim)[::-1]]
    for bytes_, threads in (("16384", 1), ("131072", 3), ("", 2)):
        monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", bytes_)
        monkeypatch.setenv("GPUCONV_NUM_THREADS", str(threads))
        for order in orders:
            lying = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
            assert_same(gpuconv.average_pool(lying, **attributes), expected, bits=False)
