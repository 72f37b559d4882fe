"""Plans of MaxPool: every family of kernels offers its candidates, the quickest one is taken."""

from __future__ import annotations

from collections.abc import Iterator

from gpuconv._geometry import Ints, MaxPoolGeometry
from gpuconv.cuda import choice, pool_channels, pool_general, pool_patches, pool_tiles, pool_vectors
from gpuconv.cuda.offers import Family
from gpuconv.cuda.plan import Limits, Plan
from gpuconv.cuda.pool_problem import OPERATOR, Problem
from gpuconv.cuda.variant import Variant

# Of equally quick candidates the earlier family's is taken; the first accepts every problem.
FAMILIES: tuple[Family, ...] = (pool_general, pool_vectors, pool_tiles, pool_channels, pool_patches)


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
    return choice.choose(problem, FAMILIES, limits)


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan of one to four spatial axes can name."""
    for family in FAMILIES:
        yield from family.variants()
