"""Plans of MaxPool: every family of kernels offers its candidates, the quickest one is taken."""

from __future__ import annotations

from gpuconv.cuda.plan import Family, Limits, Plan, offers
from gpuconv.cuda.pool import channels, general, patches, tiles, vectors
from gpuconv.cuda.pool.problem import OPERATOR, PoolProblem
from gpuconv.rules.geometry import Ints, MaxPoolGeometry

# Of equally quick candidates the earlier family's is taken; the first accepts every problem.
FAMILIES: tuple[Family, ...] = (general, vectors, tiles, channels, patches)


def for_max_pool(
    geometry: MaxPoolGeometry,
    dtype: str,
    x_strides: Ints,
    y_strides: Ints,
    indices_strides: Ints | None,
    limits: Limits,
) -> Plan:
    """Plan MaxPool for arrays with these strides in elements (``indices_strides`` None for the values alone)."""
    if 0 in geometry.y_shape:
        return Plan.of_nothing(OPERATOR)
    problem = PoolProblem(geometry, dtype, x_strides, y_strides, indices_strides)
    return offers.choose(problem, FAMILIES, limits)
