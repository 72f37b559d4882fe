"""Every kernel runs in the emulator at least once, whatever else a run of the tests leaves out.

The small problems of `tests.harness.specimen` have candidates of all kernels. Each runs with as many of its candidates
as launch something that has not run before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks import small_shapes
from benchmarks.small_shapes import Problem
from gpuconv.cuda import variants
from gpuconv.cuda.plan import offers
from tests.emulator import emulated_cuda
from tests.harness.emulated import indices
from tests.harness.specimen import PROBLEMS, dtypes_of, planned
from tests.oracle.oracle import assert_same

pytestmark = pytest.mark.emulator
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "complex64", "complex128")
# The first with which a kernel's name begins.
FAMILIES = ("conv_transpose", "conv_weight_grad", "conv", "max_pool", "average", "")


def group_of(name: str) -> tuple[str, str, bool]:
    """Return of which test a kernel is."""
    family = next(family for family in FAMILIES if name.startswith(family))
    return family, next((dtype for dtype in DTYPES if f"_{dtype}_" in name), ""), name.endswith("_wide")


GROUPS = sorted({group_of(one.name) for one in variants.all_variants()})


def calls(family: str, dtype: str) -> Iterator[tuple[Problem, str]]:
    """Yield the problems in which kernels of a group may be met."""
    operator = family.partition("_")[0]  # a convolution's input has its gradient from the other operator
    for problem in PROBLEMS:
        if problem.operator.startswith(operator):
            yield from ((problem, one) for one in dtypes_of(problem) if dtype in ("", one))


def run(problem: Problem, dtype: str, number: int) -> set[str]:
    """Take one of the candidates of every choice; return what was launched."""
    arrays = small_shapes.operands(problem, dtype)
    expected = small_shapes.compute(problem, arrays)
    with offers.picking(lambda candidates: candidates[number % len(candidates)]), emulated_cuda() as emulated:
        found = small_shapes.compute(problem, arrays)
    for result, right in zip(found, expected, strict=True):
        assert_same(_real(result), _real(right), bits=False)
    return {launch.variant.name for launch in emulated.launches}


def _real(array: Any) -> Any:
    return np.stack([array.real, array.imag]) if array.dtype.kind == "c" else array


def turns(problem: Problem, dtype: str, left: set[str]) -> Iterator[int]:
    """Yield the turns of a call that launch something that is left, as long as there is any."""
    launches, choices, _ = planned(problem, dtype)
    for number in range(max(map(len, choices), default=1)):
        if number > 0:
            launches = [launch for each in choices for launch in each[number % len(each)]]
        if left & {launch.variant.name for launch in launches}:
            yield number


@pytest.mark.parametrize(("family", "dtype", "wide"), GROUPS)
def test_every_kernel_is_right_on_a_small_problem(family: str, dtype: str, wide: bool) -> None:
    left = {one.name for one in variants.all_variants() if group_of(one.name) == (family, dtype, wide)}
    rest = calls(family, dtype)
    with indices(wide):
        while left:
            problem, kind = next(rest, (None, ""))
            assert problem is not None, left
            for number in turns(problem, kind, left):
                left -= run(problem, kind, number)
