"""Every variant of every kernel runs in the emulator at least once, on a small problem, and has the right result.

The small problems of `tests.kernels.small` have candidates of all kernels. For each source those run that launch one of
its kernels which has not run before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks import small_shapes
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.plan import offers
from gpuconv.cuda.pool import families as pool_families
from gpuconv.cuda.pool.grad import families as pool_grad_families
from gpuconv.cuda.variants import all_variants
from gpuconv.cuda.weight_grad import families as weight_grad_families
from tests.emulator import emulated_cuda
from tests.harness.emulated import indices
from tests.kernels.small import Try, survey
from tests.oracle.oracle import assert_same

FAMILIES = tuple(
    family
    for operator in (conv_families, pool_families, weight_grad_families, pool_grad_families)
    for family in operator.FAMILIES
)
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "complex64", "complex128")


@cache
def groups() -> dict[tuple[str, str], set[str]]:
    """Return the names of all kernels by their source and dtype; some have none."""
    found: dict[tuple[str, str], set[str]] = {}
    for one in all_variants():
        dtype = next((dtype for dtype in DTYPES if f"_{dtype}_" in one.name), "any")
        found.setdefault((one.source, dtype), set()).add(one.name)
    return found


def run(one: Try) -> set[str]:
    """Make the calls of a problem by one candidate of every choice; return what was launched."""
    arrays = small_shapes.operands(one.problem, one.dtype)
    expected = small_shapes.compute(one.problem, arrays)
    picking = offers.picking(lambda candidates: candidates[one.number % len(candidates)])
    with indices(one.wide), picking, emulated_cuda() as emulated:
        found = small_shapes.compute(one.problem, arrays)
    for result, right in zip(found, expected, strict=True):
        assert_same(_real(result), _real(right), bits=False)
    return {launch.variant.name for launch in emulated.launches}


def _real(array: Any) -> Any:
    return np.stack([array.real, array.imag]) if array.dtype.kind == "c" else array


@pytest.mark.emulator
@pytest.mark.parametrize(("source", "dtype"), sorted(groups()))
def test_every_variant_is_right_on_a_small_problem(source: str, dtype: str, is_due: Callable[[str, str], bool]) -> None:
    """Of a file that has not changed, one variant of each dtype in every run, and besides it those whose turn it is."""
    kernels = sorted(groups()[source, dtype])
    left = {name for name in kernels if is_due(source, name)} or {kernels[0]}
    for one in survey().tries:
        if left & one.kernels:
            left -= run(one)
    assert not left, "no small problem launches these"


# ---------------------------------------------------------------- without a compiler


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__.removeprefix("gpuconv.cuda."))
def test_small_problems_reach_every_variant_of_a_family(family: Any) -> None:
    assert family in survey().families
    assert {variant.name for variant in family.variants()} <= survey().shared_bytes.keys()


def test_plans_name_every_kernel_that_is_built_ahead_and_no_other() -> None:
    assert sorted(survey().shared_bytes) == sorted({variant.name for variant in all_variants()})
