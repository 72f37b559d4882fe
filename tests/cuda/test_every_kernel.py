"""Every kernel runs in the emulator at least once, whatever else a run of the tests leaves out.

The small problems of `benchmarks.small_shapes` have candidates of all kernels of up to three axes, and those here of
four. Each runs with as many of its candidates as launch something that has not run before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

from benchmarks import small_shapes
from benchmarks.small_shapes import Problem
from benchmarks.smoke import Turn
from gpuconv.cuda import variants
from gpuconv.cuda.call import prepared
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.launch import Plan
from tests.emulator import emulated_cuda
from tests.harness.emulated import indices
from tests.oracle.oracle import assert_same

pytestmark = pytest.mark.emulator
Choices = list[list[frozenset[str]]]
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "complex64", "complex128")
FAMILIES = ("conv_transpose", "conv_weight_grad", "conv", "max_pool", "")  # the first with which a kernel's name begins

_STRIDED: dict[str, Any] = {"strides": [1, 2, 1, 2], "dilations": [1, 1, 2, 1]}
_POOLED: dict[str, Any] = {"strides": [1, 2, 1, 2], "kernel_shape": [2, 3, 2, 2]}
# Fewer channels than a slice of K has rows, and as many as divide it.
FOUR_AXES = (
    Problem("conv", (1, 3, 3, 4, 3, 4), (5, 3, 2, 1, 2, 2), _STRIDED, gradients=True),
    Problem("conv", (1, 16, 3, 4, 3, 4), (66, 16, 2, 1, 2, 2), _STRIDED),
    Problem("conv_transpose", (1, 3, 3, 4, 3, 4), (3, 5, 2, 1, 2, 2), _STRIDED),
    Problem("conv_transpose", (1, 16, 3, 4, 3, 4), (16, 66, 2, 1, 2, 2), _STRIDED),
    Problem("max_pool", (1, 2, 3, 4, 3, 4), (), _POOLED, gradients=True),
)
PROBLEMS = (
    *FOUR_AXES,
    *small_shapes.PROBLEMS,
    *small_shapes.DEPTHWISE,
    *small_shapes.CHANNELS,
    *small_shapes.TENSOR,
    *small_shapes.GRADIENTS,
)


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
            yield from ((problem, one) for one in small_shapes._dtypes_of(problem) if dtype in ("", one))


def planned(problem: Problem, dtype: str) -> tuple[set[str], Choices]:
    """Return what the first candidates launch, and of every choice what each candidate would."""
    names, turn = set[str](), Turn(0)

    class Noted:
        def __init__(self, _: Any, device: int, plan: Plan, inputs: Any, roles: Any, results: Any, outs: Any) -> None:
            names.update(launch.variant.name for launch in plan.launches)
            self._results = results

        def run(self, inputs: Any, outs: Any) -> list[Any]:
            return [np.zeros(result.shape, result.dtype) for result in self._results]

    with mock.patch.object(prepared, "Prepared", Noted), offers.picking(turn), emulated_cuda():
        small_shapes.compute(problem, small_shapes.operands(problem, dtype))
    return names, turn.launches


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
    names, choices = planned(problem, dtype)
    for number in range(max(map(len, choices), default=1)):
        if number > 0:
            names = set().union(*(each[number % len(each)] for each in choices))
        if names & left:
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
