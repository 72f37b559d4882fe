"""On a device: random problems, in every layout, against exact arithmetic.

GPUCONV_GPU_PROBLEMS is the number of problems of each operator and dtype (100 by default); they are always the same.
"""

from __future__ import annotations

from typing import Any

import pytest

import gpuconv
from tests.gpu.on_device import ON_DEVICE, computed, drawn, laid_out, seeds
from tests.harness import cuda_device
from tests.harness.fused import ACTIVATIONS, assert_equal, finished
from tests.oracle import oracle
from tests.oracle.operands import CONV_DTYPES, CONV_KINDS, POOL_DTYPES, operands, pool_kinds, values
from tests.oracle.oracle import assert_close, assert_same
from tests.oracle.strategies import Problem

pytestmark = [pytest.mark.gpu, cuda_device.sampled(40)]


def on_both_sides(problem: Problem, kinds: Any, seed: int, dtype: Any, layout: str) -> tuple[list[Any], list[Any]]:
    pairs = [
        (None, None) if array is None else laid_out(array, layout) for array in operands(problem, kinds, seed, dtype)
    ]
    return [there for there, _ in pairs], [here for _, here in pairs]


@seeds
@pytest.mark.parametrize("dtype", CONV_DTYPES, ids=str)
@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
def test_random_sums_are_within_the_bound(operator: str, dtype: Any, seed: int) -> None:
    problem, random, layout = drawn(operator, dtype, seed)
    there, here = on_both_sides(problem, random.choice(CONV_KINDS), seed, dtype, layout)
    (y,) = computed(problem, there, seed)
    arithmetic = "tensor cores" if dtype.itemsize == 2 else "ieee"  # which make sums of 16-bit elements alone
    assert_close(y, getattr(oracle, operator)(*here, **problem.attributes), dtype, arithmetic)


@seeds
@pytest.mark.parametrize("dtype", CONV_DTYPES[2:], ids=str)
@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
def test_fused_calls_give_every_bit_of_the_steps_one_after_the_other(operator: str, dtype: Any, seed: int) -> None:
    problem, random, layout = drawn(operator, dtype, seed)
    there, _ = on_both_sides(problem, random.choice(CONV_KINDS), seed, dtype, layout)
    (plain,) = computed(problem, there, seed)
    residual, added = laid_out(values("normal", seed, plain.shape, dtype), random.choice(ON_DEVICE))
    activation = random.choice(list(ACTIVATIONS))
    (y,) = computed(problem, there, seed, activation=activation, residual=residual)
    assert_equal(y, finished(plain, added, activation))


@seeds
@pytest.mark.parametrize("dtype", CONV_DTYPES[:2], ids=str)
@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
def test_fused_calls_are_those_of_the_cpu(operator: str, dtype: Any, seed: int) -> None:
    """Of whole numbers, whose sums are exact on both."""
    problem, random, layout = drawn(operator, dtype, seed)
    there, here = on_both_sides(problem, ("integers", "integers", "integers"), seed, dtype, layout)
    shape = getattr(gpuconv, operator)(*here, **problem.attributes).shape
    residual, added = laid_out(values("nonfinite", seed, shape, dtype), random.choice(ON_DEVICE))
    activation = random.choice(list(ACTIVATIONS))
    (y,) = computed(problem, there, seed, activation=activation, residual=residual)
    expected = getattr(gpuconv, operator)(*here, **problem.attributes, activation=activation, residual=added)
    assert_same(y, expected, bits=False)


@seeds
@pytest.mark.parametrize("dtype", POOL_DTYPES, ids=str)
def test_random_maxima_agree_bit_for_bit(dtype: Any, seed: int) -> None:
    problem, random, layout = drawn("max_pool", dtype, seed)
    there, here = on_both_sides(problem, [random.choice(pool_kinds(dtype))], seed, dtype, layout)
    expected_y, expected_indices = oracle.max_pool(*here, **problem.attributes)
    y, indices = computed(problem, there, seed, return_indices=True)
    assert_same(y, expected_y)
    assert_same(indices, expected_indices)
    (alone,) = computed(problem, there, seed)
    assert_same(alone, expected_y, bits=False)
