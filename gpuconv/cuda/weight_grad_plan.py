"""Plans of the gradient of weights: every family of kernels offers its candidates, the quickest one is taken."""

from __future__ import annotations

from collections.abc import Iterator

from gpuconv._geometry import ConvGeometry, Ints
from gpuconv.cuda import choice, weight_grad_plain, weight_grad_tile_plan
from gpuconv.cuda.offers import Family
from gpuconv.cuda.plan import Limits, Plan
from gpuconv.cuda.variant import Variant
from gpuconv.cuda.weight_grad_problem import OPERATOR, Problem

# Of equally quick candidates the earlier family's is taken; the first accepts every problem.
FAMILIES: tuple[Family, ...] = (weight_grad_plain, weight_grad_tile_plan)


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
    """Plan the gradient of Conv's weights for arrays with these strides in elements; ``result`` is a complex dtype.

    Raises
    ------
    ArgumentError
        The problem needs more than 64-bit indices or more blocks than a grid has.
    """
    if 0 in geometry.w_shape:
        return Plan.of_nothing(OPERATOR)
    precision = precision if dtype == "float32" else "ieee"
    problem = Problem(geometry, dtype, x_strides, dy_strides, w_strides, result or dtype, precision)
    return choice.choose(problem, FAMILIES, limits)


def variants() -> Iterator[Variant]:
    """Yield the variants that are built ahead; those for more axes are compiled when first needed."""
    for family in FAMILIES:
        yield from family.variants()
