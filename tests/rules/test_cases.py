"""Every named case in every dtype it is for, through the public functions."""

from __future__ import annotations

import numpy as np
import pytest

import gpuconv
from gpuconv.rules import cases
from gpuconv.rules.cases import CASES, Case
from tests.oracle.case_rows import case_rows
from tests.oracle.oracle import assert_same


@pytest.mark.parametrize(("case", "dtype"), case_rows("conv", "conv_transpose", "average_pool"))
def test_sums_are_exact_up_to_their_one_rounding(case: Case, dtype: str) -> None:
    (expected,) = cases.expected(case, dtype)
    actual = getattr(gpuconv, case.op)(**cases.inputs(case, dtype), **case.attributes)
    assert_same(actual, expected, bits=False)


@pytest.mark.parametrize(("case", "dtype"), case_rows("max_pool"))
def test_maxima_and_their_indices_agree_bit_for_bit(case: Case, dtype: str) -> None:
    expected_y, expected_indices = cases.expected(case, dtype)
    y, indices = gpuconv.max_pool(**cases.inputs(case, dtype), **case.attributes, return_indices=True)
    assert_same(y, expected_y)
    assert_same(indices, expected_indices)


@pytest.mark.parametrize(("case", "dtype"), case_rows("max_pool"))
def test_maxima_alone_are_equal_as_values(case: Case, dtype: str) -> None:
    expected_y, _ = cases.expected(case, dtype)
    assert_same(gpuconv.max_pool(**cases.inputs(case, dtype), **case.attributes), expected_y, bits=False)


def test_the_names_of_the_cases_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("operator", ["conv", "conv_transpose", "max_pool", "average_pool"])
def test_some_case_of_every_operator_has_each_dtype(operator: str) -> None:
    dtypes = {dtype for case in CASES if case.op == operator for dtype in case.dtypes}
    assert dtypes == set(cases.ALL if operator == "max_pool" else cases.FLOATS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_does_not_change_its_inputs(case: Case) -> None:
    arrays = cases.inputs(case, case.dtypes[0])
    before = {name: array.tobytes() for name, array in arrays.items()}
    np.asarray(getattr(gpuconv, case.op)(**arrays, **case.attributes))
    assert {name: array.tobytes() for name, array in arrays.items()} == before
