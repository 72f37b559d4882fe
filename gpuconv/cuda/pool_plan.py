"""Plans of MaxPool: every family of kernels offers its candidates, the quickest one is taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuconv._geometry import Ints, MaxPoolGeometry
from gpuconv.cuda import choice, pool_channels, pool_general, pool_patches, pool_tiles, pool_vectors
from gpuconv.cuda.choice import Candidate
from gpuconv.cuda.plan import Limits, Plan, Variant
from gpuconv.cuda.pool_problem import OPERATOR, Problem

# Which say why they do not accept a problem.
_FASTER = (pool_vectors, pool_tiles, pool_channels, pool_patches)
# Of equally quick candidates the earlier family's is taken; the first accepts every problem.
FAMILIES = (pool_general, *_FASTER)


def for_max_pool(
    geometry: MaxPoolGeometry,
    dtype: str,
    x_strides: Ints,
    y_strides: Ints,
    indices_strides: Ints | None,
    limits: Limits,
) -> Plan:
    """Plan MaxPool for arrays with these strides in elements (``indices_strides`` None for the values alone).

    Raises
    ------
    ArgumentError
        The problem needs more than 64-bit indices.
    """
    if 0 in geometry.y_shape:
        return Plan.of_nothing(OPERATOR)
    problem = Problem(geometry, dtype, x_strides, y_strides, indices_strides)
    plan = choice.choose(problem, candidates(problem, limits), limits)
    return replace(plan, reasons=(*plan.reasons, *_refusals(problem, limits)))


def candidates(problem: Problem, limits: Limits) -> Iterator[Candidate]:
    """Yield every way to solve a problem whose result has elements."""
    for family in FAMILIES:
        yield from family.candidates(problem, limits)


def _refusals(problem: Problem, limits: Limits) -> Iterator[str]:
    """Yield why families have no candidate; what several say is said once."""
    said: dict[str, list[str]] = {}
    for family in _FASTER:
        why = family.refusal(problem, limits)
        if why is not None:
            said.setdefault(why, []).append(family.NAME)
    for why, names in said.items():
        yield f"not by {', '.join(names)}: {why}"


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan of one to four spatial axes can name."""
    for family in FAMILIES:
        yield from family.variants()
