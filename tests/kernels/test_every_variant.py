"""Every variant of every kernel runs in the emulator at least once, on a small problem, and has the right result.

The small problems of `tests.kernels.small` have candidates of all kernels. For each source, a problem runs if it
launches a kernel of that source that no earlier problem has launched.
"""

from __future__ import annotations

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
from tests.selection import TURNS

FAMILIES = tuple(
    family
    for operator in (conv_families, pool_families, weight_grad_families, pool_grad_families)
    for family in operator.FAMILIES
)
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "complex64", "complex128")


@cache
def groups() -> dict[tuple[str, str], set[str]]:
    """Return the names of all kernels by their source and dtype; "any" is for kernels without one."""
    found: dict[tuple[str, str], set[str]] = {}
    for one in all_variants():
        dtype = next((dtype for dtype in DTYPES if f"_{dtype}_" in one.name), "any")
        found.setdefault((one.source, dtype), set()).add(one.name)
    return found


def run(one: Try) -> set[str]:
    """Make the calls of a problem by one candidate at every choice; return the launched kernels."""
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


def run_all(kernels: set[str]) -> None:
    """Run small problems until each of these kernels was launched, first those that launch the fewest others."""
    left = set(kernels)
    for one in sorted(survey().tries, key=lambda one: len(one.kernels - kernels)):
        if left & one.kernels:
            left -= run(one)
    assert not left, "no small problem launches these"


GROUPS = [
    pytest.param(source, dtype, marks=pytest.mark.kernels(source), id=f"{source.removesuffix('.cu')}-{dtype}")
    for source, dtype in sorted(groups())
]
SOURCES = sorted({source for source, _ in groups()})


@pytest.mark.emulator
@pytest.mark.parametrize(("source", "dtype"), GROUPS)
def test_every_variant_is_right_on_a_small_problem(source: str, dtype: str) -> None:
    run_all(groups()[source, dtype])


def of_every_run(turn: int) -> list[tuple[str, str]]:
    """Return groups of kernels with every file, and every dtype of every operator; the turn selects which."""
    known, found, seen = sorted(groups()), [], set[object]()
    first = turn * len(known) // TURNS
    for source, dtype in known[first:] + known[:first]:
        shown = {source, (operator_of(source), dtype)}
        if not shown <= seen:
            seen |= shown
            found.append((source, dtype))
    return found


def operator_of(source: str) -> str:
    return source.partition("/")[0]


@pytest.mark.every_run
@pytest.mark.emulator
@pytest.mark.parametrize("source", SOURCES)
def test_a_variant_of_every_file_is_right_in_every_run(source: str, turn: int) -> None:
    """Even if it has not changed; with further dtypes if no other file of the operator has them."""
    for group in of_every_run(turn):
        if group[0] == source:
            kernels = sorted(groups()[group])
            run_all({kernels[turn % len(kernels)]})


# ---------------------------------------------------------------- without a compiler


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__.removeprefix("gpuconv.cuda."))
def test_small_problems_reach_every_variant_of_a_family(family: Any) -> None:
    assert family in survey().families
    assert {variant.name for variant in family.variants()} <= survey().shared_bytes.keys()


def test_plans_name_every_kernel_that_is_built_ahead_and_no_other() -> None:
    assert sorted(survey().shared_bytes) == sorted({variant.name for variant in all_variants()})


@pytest.mark.parametrize("turn", range(TURNS))
def test_every_run_has_every_file_and_every_dtype_of_every_operator(turn: int) -> None:
    shown = of_every_run(turn)
    assert {source for source, _ in shown} == set(SOURCES)
    assert {(operator_of(one), dtype) for one, dtype in shown} == {(operator_of(one), dtype) for one, dtype in groups()}
    assert len(shown) < len(groups()) / 2
