"""Every named case in every dtype it is for, through the public functions."""

from __future__ import annotations

from typing import Any

import pytest

import gpuconv
from gpuconv.rules import cases
from gpuconv.rules.cases import CASES, Case
from tests.oracle.case_rows import every_case
from tests.oracle.every_row import every_row
from tests.oracle.oracle import assert_same


def call(case: Case, dtype: str, **more: Any) -> Any:
    """Return the result of a case's call; its inputs must not change."""
    arrays = cases.inputs(case, dtype)
    before = {name: array.tobytes() for name, array in arrays.items()}
    result = getattr(gpuconv, case.op)(**arrays, **case.attributes, **more)
    assert {name: array.tobytes() for name, array in arrays.items()} == before, "an input was changed"
    return result


@every_case("conv", "conv_transpose", "average_pool")
def test_sums_are_exact_up_to_their_one_rounding(case: Case) -> None:
    with every_row(case) as row:
        for dtype in case.dtypes:
            with row(dtype):
                (expected,) = cases.expected(case, dtype)
                assert_same(call(case, dtype), expected, bits=False)


@every_case("max_pool")
def test_maxima_and_their_indices_agree_bit_for_bit(case: Case) -> None:
    with every_row(case) as row:
        for dtype in case.dtypes:
            with row(dtype):
                expected_y, expected_indices = cases.expected(case, dtype)
                y, indices = call(case, dtype, return_indices=True)
                assert_same(y, expected_y)
                assert_same(indices, expected_indices)


@every_case("max_pool")
def test_maxima_alone_are_equal_as_values(case: Case) -> None:
    with every_row(case) as row:
        for dtype in case.dtypes:
            with row(dtype):
                expected_y, _ = cases.expected(case, dtype)
                assert_same(call(case, dtype), expected_y, bits=False)


def test_the_names_of_the_cases_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("operator", ["conv", "conv_transpose", "max_pool", "average_pool"])
def test_some_case_of_every_operator_has_each_dtype(operator: str) -> None:
    dtypes = {dtype for case in CASES if case.op == operator for dtype in case.dtypes}
    assert dtypes == set(cases.ALL if operator == "max_pool" else cases.FLOATS)
