"""The named cases as rows of a parametrised test: one for each dtype that a case is for."""

from __future__ import annotations

from typing import Any

import pytest

from gpuconv.rules.cases import CASES


def case_rows(*operators: str) -> list[Any]:
    return [
        pytest.param(case, dtype, id=f"{case.name}-{dtype}")
        for case in CASES
        if case.op in operators
        for dtype in case.dtypes
    ]


def one_row_a_case(*operators: str) -> list[Any]:
    """One dtype for each case, another one from case to case: all of them come up."""
    rows = []
    for number, case in enumerate(case for case in CASES if not operators or case.op in operators):
        dtype = case.dtypes[number % len(case.dtypes)]
        rows.append(pytest.param(case, dtype, id=f"{case.name}-{dtype}"))
    return rows
