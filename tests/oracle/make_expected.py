"""Write gpuconv/rules/expected.npz from the oracle; run it after a change of gpuconv/rules/cases.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpuconv.rules import cases
from tests.oracle import oracle

PATH = Path(cases.__file__).with_name("expected.npz")


def exact(case: cases.Case, dtype: str) -> oracle.Exact:
    """Return the oracle's exact result of a case's inputs in ``dtype``; not for MaxPool."""
    function: Callable[..., oracle.Exact] = getattr(oracle, case.op)
    return function(**cases.inputs(case, dtype), **case.attributes)


def compute(case: cases.Case, dtype: str) -> oracle.Array:
    """Return what the file stores for a case: exact sums or averages in units of the case, or the indices."""
    if case.op == "max_pool":
        return oracle.max_pool(cases.inputs(case, dtype)["x"], **case.attributes)[1]
    return np.asarray(exact(case, dtype).value / cases.unit(case, dtype))


def compact(values: oracle.Array) -> oracle.Array:
    """Return the same numbers in the smallest integer dtype that holds them, if there is one."""
    with np.errstate(invalid="ignore"):
        for kind in (np.int8, np.int16, np.int32):
            if np.array_equal(values.astype(kind), values):
                return values.astype(kind)
    return values


def main() -> None:
    """Write the file."""
    arrays: dict[str, Any] = {case.name: compact(compute(case, case.dtypes[-1])) for case in cases.CASES}
    np.savez_compressed(PATH, **arrays)


if __name__ == "__main__":
    main()
