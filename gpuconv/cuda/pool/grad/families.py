"""Plans of the gradient of MaxPool: every family of kernels offers its candidates, the quickest one is taken."""

from __future__ import annotations

from gpuconv.cuda.plan import Family, Limits, Plan, offers
from gpuconv.cuda.pool.grad import general, walks
from gpuconv.cuda.pool.grad.problem import OPERATOR, PoolGradProblem
from gpuconv.cuda.pool.problem import used
from gpuconv.rules.geometry import Ints, MaxPoolGeometry

FAMILIES: tuple[Family, ...] = (general, walks)


def for_max_pool_grad(
    geometry: MaxPoolGeometry, dtype: str, dy_strides: Ints, indices_strides: Ints, dx_strides: Ints, limits: Limits
) -> Plan:
    """Plan the gradient of MaxPool for arrays with these strides in elements."""
    if 0 in geometry.x_shape:
        return Plan.of_nothing(OPERATOR)
    of_dy, of_indices = used(geometry.y_shape, dy_strides), used(geometry.y_shape, indices_strides)
    problem = PoolGradProblem(geometry, dtype, of_dy, of_indices, used(geometry.x_shape, dx_strides))
    return offers.choose(problem, FAMILIES, limits)
