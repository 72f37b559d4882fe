"""Dispatch for MaxPool and AveragePool: collect the candidates of every kernel family and plan the fastest one."""

from __future__ import annotations

from gpuconv.cuda.plan import Family, Limits, Plan, offers
from gpuconv.cuda.pool import axis, channels, general, patches, planes, tiles, vectors
from gpuconv.cuda.pool.problem import Geometry, PoolProblem
from gpuconv.rules.geometry import Ints

# On a tie, the family listed first wins. The first one accepts every problem.
FAMILIES: tuple[Family, ...] = (general, vectors, tiles, channels, patches, planes, axis)


def for_pool(
    geometry: Geometry,
    dtype: str,
    x_strides: Ints,
    y_strides: Ints,
    indices_strides: Ints | None,
    limits: Limits,
    invariant: bool = False,
) -> Plan:
    """Plan pooling for arrays with these strides in elements; ``indices_strides`` is None for values only.

    With ``invariant``, averages are summed in row-major order of the window, so bits do not depend on the batch. Maxima
    have the same bits in any order.
    """
    problem = PoolProblem(geometry, dtype, x_strides, y_strides, indices_strides)
    if 0 in geometry.y_shape:
        return Plan.of_nothing(problem.operator)
    if planes.sums_alone(problem, limits):  # the planes kernel's order of summation never depends on the batch
        return offers.choose(problem, (planes,), limits)
    return offers.choose(problem, (general,) if invariant and problem.averages else FAMILIES, limits)
