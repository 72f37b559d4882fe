"""Values of random problems: every operator, dtype, rank, kind of number, memory layout and amount of memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from tests.oracle import oracle
from tests.oracle.operands import CONV_DTYPES, CONV_KINDS, EXACT_KINDS, LAYOUTS, POOL_DTYPES, operands, pool_kinds
from tests.oracle.oracle import assert_close, assert_same, round_to
from tests.oracle.strategies import Problem, checked, problems

pytestmark = pytest.mark.slow

seeds = st.integers(0, 2**32 - 1)
layouts = st.sampled_from(sorted(LAYOUTS))
convolutions = pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
conv_dtypes = pytest.mark.parametrize("dtype", CONV_DTYPES, ids=str)
pool_dtypes = pytest.mark.parametrize("dtype", POOL_DTYPES, ids=str)


@pytest.fixture(params=[None, 2**14], ids=["plenty of memory", "16 KiB"], autouse=True)
def workspace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little memory makes the NumPy backend work in many small blocks."""
    if request.param is not None:
        monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", str(request.param))


def exact(problem: Problem, arrays: list[Any]) -> oracle.Exact:
    return getattr(oracle, problem.operator)(*arrays, **problem.attributes)


def computed(problem: Problem, arrays: list[Any], **more: Any) -> Any:
    return getattr(gpuconv, problem.operator)(*arrays, **problem.attributes, **more)


# ---------------------------------------------------------------- the numbers


@convolutions
@conv_dtypes
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@checked(0.5)
@given(data=st.data(), seed=seeds)
def test_random_sums_are_within_the_bound(operator: str, dtype: Any, rank: int, data: Any, seed: int) -> None:
    problem = data.draw(problems(operator, rank))
    arrays = operands(problem, ("normal", "normal", "normal"), seed, dtype)
    assert_close(computed(problem, arrays), exact(problem, arrays), dtype)


@convolutions
@conv_dtypes
@checked(2)
@given(data=st.data(), kinds=st.sampled_from(EXACT_KINDS), seed=seeds)
def test_sums_of_integers_are_exact(operator: str, dtype: Any, data: Any, kinds: Any, seed: int) -> None:
    problem = data.draw(problems(operator))
    arrays = operands(problem, kinds, seed, dtype)
    assert_same(computed(problem, arrays), round_to(exact(problem, arrays).value, dtype), bits=False)


@convolutions
@conv_dtypes
@pytest.mark.parametrize("kinds", CONV_KINDS, ids=" ".join)
@checked(0.5)
@given(data=st.data(), seed=seeds, layout=layouts)
def test_every_kind_of_number_in_every_layout(
    operator: str, dtype: Any, kinds: Any, data: Any, seed: int, layout: str
) -> None:
    problem = data.draw(problems(operator))
    arrays = operands(problem, kinds, seed, dtype, layout)
    assert_close(computed(problem, arrays), exact(problem, arrays), dtype)


@conv_dtypes
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@checked(0.5)
@given(data=st.data(), seed=seeds)
def test_a_special_weight_shows_only_where_it_meets_an_input(dtype: Any, special: float, data: Any, seed: int) -> None:
    problem = data.draw(problems("conv"))
    arrays = operands(problem, ("integers", "integers", "integers"), seed, dtype)
    if arrays[1].size:
        arrays[1].flat[seed % arrays[1].size] = special
    assert_close(computed(problem, arrays), exact(problem, arrays), dtype)


@pool_dtypes
@checked(3)
@given(data=st.data(), seed=seeds, layout=layouts)
def test_maxima_and_indices_agree_bit_for_bit(dtype: Any, data: Any, seed: int, layout: str) -> None:
    problem = data.draw(problems("max_pool"))
    arrays = operands(problem, [data.draw(st.sampled_from(pool_kinds(dtype)))], seed, dtype, layout)
    expected_y, expected_indices = oracle.max_pool(*arrays, **problem.attributes)
    y, indices = computed(problem, arrays, return_indices=True)
    assert_same(y, expected_y)
    assert_same(indices, expected_indices)


@pool_dtypes
@checked(3)
@given(data=st.data(), seed=seeds, layout=layouts)
def test_maxima_alone_are_equal_as_values(dtype: Any, data: Any, seed: int, layout: str) -> None:
    problem = data.draw(problems("max_pool"))
    arrays = operands(problem, [data.draw(st.sampled_from(pool_kinds(dtype)))], seed, dtype, layout)
    assert_same(computed(problem, arrays), oracle.max_pool(*arrays, **problem.attributes)[0], bits=False)


# ---------------------------------------------------------------- what holds for every call


def _any_call(data: Any, operator: str, layout: str = "contiguous") -> tuple[Problem, list[Any], dict[str, Any]]:
    problem, seed = data.draw(problems(operator)), data.draw(seeds)
    dtype = data.draw(st.sampled_from(POOL_DTYPES if operator == "max_pool" else CONV_DTYPES))
    kinds = (pool_kinds(dtype)[0],) if operator == "max_pool" else data.draw(st.sampled_from(CONV_KINDS))
    more = {"return_indices": data.draw(st.booleans())} if operator == "max_pool" else {}
    return problem, operands(problem, kinds, seed, dtype, layout), more


def _listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


every_operator = pytest.mark.parametrize("operator", ["conv", "conv_transpose", "max_pool"])


@every_operator
@checked(2)
@given(data=st.data(), layout=layouts)
def test_inputs_are_never_written(operator: str, data: Any, layout: str) -> None:
    problem, arrays, more = _any_call(data, operator, layout)
    before = [None if array is None else (array.tobytes(), array.strides, array.flags.writeable) for array in arrays]
    computed(problem, arrays, **more)
    assert before == [
        None if array is None else (array.tobytes(), array.strides, array.flags.writeable) for array in arrays
    ]


@every_operator
@checked(2)
@given(data=st.data())
def test_the_same_call_gives_the_same_bits(operator: str, data: Any) -> None:
    problem, arrays, more = _any_call(data, operator)
    first, second = (_listed(computed(problem, arrays, **more)) for _ in range(2))
    assert [result.tobytes() for result in first] == [result.tobytes() for result in second]


@every_operator
@checked(2)
@given(data=st.data(), layout=layouts)
def test_results_are_contiguous_writeable_and_fresh(operator: str, data: Any, layout: str) -> None:
    problem, arrays, more = _any_call(data, operator, layout)
    results = _listed(computed(problem, arrays, **more))
    for result in results:
        assert type(result) is np.ndarray
        assert (result.flags.c_contiguous, result.flags.writeable, result.flags.aligned) == (True, True, True)
        assert not any(np.shares_memory(result, array) for array in arrays if array is not None)
    assert len(results) == 1 or not np.shares_memory(*results)


@every_operator
@checked(2)
@given(data=st.data())
def test_no_warning_is_given_and_no_error_state_disturbs(operator: str, data: Any) -> None:
    problem, arrays, more = _any_call(data, operator)
    quiet = _listed(computed(problem, arrays, **more))
    with np.errstate(all="raise"):
        loud = _listed(computed(problem, arrays, **more))
    assert [result.tobytes() for result in loud] == [result.tobytes() for result in quiet]
