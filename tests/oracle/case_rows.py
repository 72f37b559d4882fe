"""Parametrize tests by the named cases of gpuconv/rules/cases.py."""

from __future__ import annotations

import pytest

from gpuconv.rules.cases import CASES, Case

ONE_DTYPE = {case.name: case.dtypes[number % len(case.dtypes)] for number, case in enumerate(CASES)}
"""One dtype for each case, another one from case to case, so that all of them occur."""


def _of(operators: tuple[str, ...]) -> list[Case]:
    return [case for case in CASES if not operators or case.op in operators]


def every_case(*operators: str) -> pytest.MarkDecorator:
    """Parametrize ``case`` over all cases, or over those of some operators."""
    return pytest.mark.parametrize("case", _of(operators), ids=lambda case: str(case.name))


def one_dtype_a_case(*operators: str) -> pytest.MarkDecorator:
    """Parametrize ``case`` and ``dtype``: each case with its dtype in `ONE_DTYPE`."""
    rows = [(case, ONE_DTYPE[case.name]) for case in _of(operators)]
    return pytest.mark.parametrize(("case", "dtype"), rows, ids=[f"{case.name}-{dtype}" for case, dtype in rows])
