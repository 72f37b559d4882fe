"""Dispatch for the gradient of Conv's weights: collect the candidates of every family and plan the fastest one."""

from __future__ import annotations

from gpuconv.cuda.plan import Family, Limits, Plan, offers
from gpuconv.cuda.weight_grad import exchanged, plain, rows, tiles
from gpuconv.cuda.weight_grad.problem import OPERATOR, WeightGradProblem
from gpuconv.rules.geometry import ConvGeometry, Ints

# On a tie, the family listed first wins. The first one accepts every problem.
FAMILIES: tuple[Family, ...] = (plain, tiles, rows)
_EXCHANGED = offers.Rewritten("x and dy exchanged", FAMILIES, exchanged.of, exchanged.candidate)


def for_weight_grad(
    geometry: ConvGeometry,
    dtype: str,
    x_strides: Ints,
    dy_strides: Ints,
    w_strides: Ints,
    limits: Limits,
    precision: str = "ieee",
    result: str | None = None,
) -> Plan:
    """Plan the weight gradient for arrays with these strides in elements; ``result`` is the dtype if complex."""
    if 0 in geometry.w_shape:
        return Plan.of_nothing(OPERATOR)
    precision = precision if dtype == "float32" else "ieee"
    problem = WeightGradProblem(geometry, dtype, x_strides, dy_strides, w_strides, result or dtype, precision)
    return offers.choose(problem, (*FAMILIES, _EXCHANGED), limits)
