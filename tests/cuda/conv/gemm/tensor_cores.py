"""Operands for tensor-core kernels, and the error bound of their results."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.oracle import oracle
from tests.oracle.operands import BFLOAT16
from tests.oracle.oracle import assert_close
from tests.oracle.strategies import Problem

LOST = 2.0**-136  # largest truncation of a small factor: TF32 has no smaller number


# dtype, precision, and the label in names of kernels
ARITHMETIC = [
    (np.dtype("float16"), "ieee", "_mma_"),
    (BFLOAT16, "ieee", "_mma_"),
    (np.dtype("float32"), "tf32", "_tf32_"),
    (np.dtype("float32"), "3xtf32", "_3xtf32_"),
    (np.dtype("float64"), "ieee", "_mma_"),
]


def assert_within(y: Any, arrays: list[Any], problem: Problem, precision: str) -> None:
    """Compare with the bound of semantics.md; TF32 has a further error, of truncated small numbers."""
    function = getattr(oracle, problem.operator)
    exact = function(*arrays, **problem.attributes)
    arithmetic = precision if precision != "ieee" or y.dtype.itemsize == 8 else "tensor cores"
    if precision == "ieee" or not np.isfinite(exact.magnitude).all():
        assert_close(y, exact, y.dtype, arithmetic)
        return
    x, w, _ = ([np.ones_like(array), np.abs(array)] for array in (*arrays[:2], np.zeros(1, y.dtype)))
    lost = sum(function(x[k], w[1 - k], None, **problem.attributes).value for k in (0, 1)) * LOST
    off = np.abs(y.astype(np.float64) - exact.value) - lost
    assert (off <= oracle.bound(exact, y.dtype, arithmetic)).all()
