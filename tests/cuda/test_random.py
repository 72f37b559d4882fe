"""Random problems on the CUDA backend in the emulator: many tiles, every layout, every architecture.

A default run takes about 100 problems per operator; GPUCONV_EXAMPLES=5000 takes thousands, new ones each time.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from gpuconv.cuda.plan import offers
from tests.harness.emulated import any_cuda, architecture, varied_cuda
from tests.oracle import oracle
from tests.oracle.operands import CONV_DTYPES, CONV_KINDS, LAYOUTS, POOL_DTYPES, operands, pool_kinds
from tests.oracle.oracle import assert_close, assert_same
from tests.oracle.strategies import GENERATORS, Problem, channels_pool_problem, checked, problems, rows_pool_problem

pytestmark = [pytest.mark.gpu, pytest.mark.every_run]

seeds = st.integers(0, 2**32 - 1)
layouts = st.sampled_from(sorted(set(LAYOUTS) - {"unaligned"}))  # CUDA arrays cannot be unaligned
row_layouts = st.sampled_from(("contiguous", "contiguous", "strided rows", "off the vectors", "broadcast", "reversed"))
pixel_layouts = st.sampled_from(("channels last", "strided pixels", "pixels off the vectors"))
row_outs = st.sampled_from((None, None, "strided rows", "off the vectors", "strided"))
outs = st.sampled_from((None, None, "fortran", "strided", "reversed", "channels last"))
convolutions = pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
conv_dtypes = pytest.mark.parametrize("dtype", CONV_DTYPES, ids=str)
pool_dtypes = pytest.mark.parametrize("dtype", POOL_DTYPES, ids=str)


def computed(problem: Problem, arrays: list[Any], seed: int, **more: Any) -> Any:
    with varied_cuda(arrays[0].dtype, problem.rank, seed):
        return getattr(gpuconv, problem.operator)(*arrays, **problem.attributes, **more)


def new(layout: str | None, like: Any, dtype: Any) -> Any:
    """Return an array for a result, or None for the backend's own."""
    return None if layout is None else LAYOUTS[layout](np.zeros(like.shape, dtype))


def exact(problem: Problem, arrays: list[Any]) -> oracle.Exact:
    return getattr(oracle, problem.operator)(*arrays, **problem.attributes)


@convolutions
@conv_dtypes
@checked(1.3)
@given(data=st.data(), kinds=st.sampled_from(CONV_KINDS), seed=seeds, layout=layouts, out=outs)
def test_sums_of_every_kind_in_every_layout(
    operator: str, dtype: Any, data: Any, kinds: Any, seed: int, layout: str, out: str | None
) -> None:
    problem = data.draw(problems(operator))
    arrays = operands(problem, kinds, seed, dtype, layout)
    expected = exact(problem, arrays)
    assert_close(computed(problem, arrays, seed, out=new(out, expected.value, dtype)), expected, dtype)


def _many_channels(operator: str) -> Callable[[Random], Problem]:
    """Return problems with several tiles in M, and channels that may fill the slices of K or not."""

    def problem(random: Random) -> Problem:
        found = GENERATORS[operator](random, random.choice((1, 2, 2, 3)))
        group = random.choice((1, 1, 2))
        c = random.choice((16, 32, 48, 5, 17, 20))
        m = random.choice((1, 3, 20, 40, 64, 70, 130, 200, 300)) // group or 1
        x_shape = (min(found.x_shape[0], 2), c * group, *found.x_shape[2:])
        w_shape = (m * group, c) if operator == "conv" else (c * group, m)
        attributes = {**found.attributes, "group": group}
        b_shape = random.choice((None, (m * group,)))
        w_shape = (*w_shape, *found.w_shape[2:]) if found.w_shape else None
        return Problem(operator, x_shape, w_shape, b_shape, attributes)

    return problem


@convolutions
@conv_dtypes
@checked(1.3)
@given(data=st.data(), seed=seeds)
def test_sums_over_many_channels_into_many(operator: str, dtype: Any, data: Any, seed: int) -> None:
    problem = data.draw(st.randoms(use_true_random=False).map(_many_channels(operator)))
    arrays = operands(problem, data.draw(st.sampled_from(CONV_KINDS[:5])), seed, dtype)
    assert_close(computed(problem, arrays, seed), exact(problem, arrays), dtype)


@pool_dtypes
@checked(1.7)
@given(data=st.data(), seed=seeds, layout=layouts, out=outs, places=outs)
def test_maxima_and_indices_agree_bit_for_bit(
    dtype: Any, data: Any, seed: int, layout: str, out: str | None, places: str | None
) -> None:
    problem = data.draw(problems("max_pool"))
    arrays = operands(problem, [data.draw(st.sampled_from(pool_kinds(dtype)))], seed, dtype, layout)
    expected_y, expected_indices = oracle.max_pool(*arrays, **problem.attributes)
    pair = (new(out, expected_y, dtype), new(places or "contiguous", expected_indices, np.int64)) if out else None
    y, indices = computed(problem, arrays, seed, return_indices=True, out=pair)
    assert_same(y, expected_y)
    assert_same(indices, expected_indices)
    assert_same(computed(problem, arrays, seed), expected_y, bits=False)


@pool_dtypes
@checked(0.4)
@given(random=st.randoms(use_true_random=False), seed=seeds, layout=row_layouts, out=row_outs)
def test_maxima_of_rows_agree_bit_for_bit_whatever_the_kernel(
    dtype: Any, random: Any, seed: int, layout: str, out: str | None
) -> None:
    check_every_candidate(rows_pool_problem(random), dtype, random, seed, layout, out)


@pool_dtypes
@checked(1.0)
@given(random=st.randoms(use_true_random=False), seed=seeds, layout=pixel_layouts, out=pixel_layouts)
def test_maxima_of_channels_agree_bit_for_bit_whatever_the_kernel(
    dtype: Any, random: Any, seed: int, layout: str, out: str
) -> None:
    check_every_candidate(channels_pool_problem(random), dtype, random, seed, layout, out)


def check_every_candidate(problem: Problem, dtype: Any, random: Any, seed: int, layout: str, out: str | None) -> None:
    arrays = operands(problem, [random.choice(pool_kinds(dtype))], seed, dtype, layout)
    expected_y, expected_indices = oracle.max_pool(*arrays, **problem.attributes)
    for turn in offers.every_candidate():
        pair = (new(out, expected_y, dtype), new(out, expected_indices, np.int64)) if out else None
        with turn, any_cuda(limits_of=architecture(dtype, problem.rank), seed=seed % 2**32):
            y, indices = gpuconv.max_pool(*arrays, **problem.attributes, return_indices=True, out=pair)
            values = gpuconv.max_pool(*arrays, **problem.attributes, out=new(out, expected_y, dtype))
        assert_same(y, expected_y)
        assert_same(indices, expected_indices)
        assert_same(values, expected_y, bits=False)
