"""Dispatch for the gradients of pooling: collect the candidates of every family and plan the fastest one."""

from __future__ import annotations

from gpuconv.cuda.plan import Family, Limits, Plan, offers
from gpuconv.cuda.pool.grad import averages, general, scatter, walks
from gpuconv.cuda.pool.grad.problem import PoolGradProblem
from gpuconv.cuda.pool.problem import used
from gpuconv.rules.geometry import AveragePoolGeometry, Ints, MaxPoolGeometry

FAMILIES: tuple[Family, ...] = (general, walks, scatter, averages)


def for_max_pool_grad(
    geometry: MaxPoolGeometry,
    dtype: str,
    dy_strides: Ints,
    indices_strides: Ints,
    dx_strides: Ints,
    limits: Limits,
    invariant: bool = False,
) -> Plan:
    """Plan the gradient of MaxPool for arrays with these strides in elements.

    With ``invariant``, an element's windows are added in row-major order, independent of the batch.
    """
    of_dy, of_indices = used(geometry.y_shape, dy_strides), used(geometry.y_shape, indices_strides)
    return _chosen(
        PoolGradProblem(geometry, dtype, of_dy, of_indices, used(geometry.x_shape, dx_strides)), limits, invariant
    )


def for_average_pool_grad(
    geometry: AveragePoolGeometry,
    dtype: str,
    dy_strides: Ints,
    dx_strides: Ints,
    limits: Limits,
    invariant: bool = False,
) -> Plan:
    """Plan the gradient of AveragePool for arrays with these strides in elements; ``invariant`` as for MaxPool."""
    of_dy, of_dx = used(geometry.y_shape, dy_strides), used(geometry.x_shape, dx_strides)
    return _chosen(PoolGradProblem(geometry, dtype, of_dy, None, of_dx), limits, invariant)


def _chosen(problem: PoolGradProblem, limits: Limits, invariant: bool) -> Plan:
    """Plan the fastest candidate, or an empty plan if dx has no elements."""
    if 0 in problem.geometry.x_shape:
        return Plan.of_nothing(problem.operator)
    return offers.choose(problem, (general,) if invariant else FAMILIES, limits)
