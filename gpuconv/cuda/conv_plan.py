"""Plans of Conv and ConvTranspose: every family of kernels offers its candidates, the quickest one is taken."""

from __future__ import annotations

from collections.abc import Iterator

from gpuconv._geometry import ConvGeometry, ConvTransposeGeometry, Ints
from gpuconv.cuda import (
    bands_plan,
    channels_plan,
    choice,
    correlation,
    depth_to_space_matrix_plan,
    depth_to_space_plan,
    depthwise_transpose_plan,
    direct_plan,
    few_plan,
    gemm_plan,
    grouped_plan,
    interleaved_plan,
    matrix_plan,
    mma_plan,
    pointwise_plan,
    split_plan,
    stem_plan,
    wgmma_plan,
)
from gpuconv.cuda.correlation import Problem
from gpuconv.cuda.offers import Family
from gpuconv.cuda.plan import Limits, Plan
from gpuconv.cuda.variant import Variant

# Of equally quick candidates the earlier family's is taken; the first accepts every problem.
FAMILIES: tuple[Family, ...] = (
    gemm_plan,
    mma_plan,
    wgmma_plan,
    split_plan,
    direct_plan,
    channels_plan,
    few_plan,
    bands_plan,
    pointwise_plan,
    matrix_plan,
    interleaved_plan,
    depth_to_space_plan,
    depthwise_transpose_plan,
    depth_to_space_matrix_plan,
    grouped_plan,
    stem_plan,
)


def for_conv(
    geometry: ConvGeometry,
    dtype: str,
    x_strides: Ints,
    w_strides: Ints,
    b_stride: int | None,
    y_strides: Ints,
    limits: Limits,
    precision: str = "ieee",
) -> Plan:
    """Plan Conv for arrays with these strides in elements (``b_stride`` None without a bias).

    Raises
    ------
    ArgumentError
        The problem needs more than 64-bit indices or more blocks than a grid has.
    """
    problem = correlation.of_conv(geometry, dtype, x_strides, w_strides, b_stride, y_strides, precision)
    return plan(problem, limits)


def for_conv_transpose(
    geometry: ConvTransposeGeometry,
    dtype: str,
    x_strides: Ints,
    w_strides: Ints,
    b_stride: int | None,
    y_strides: Ints,
    limits: Limits,
    precision: str = "ieee",
) -> Plan:
    """Plan ConvTranspose; parameters and errors as in :func:`for_conv`."""
    problem = correlation.of_conv_transpose(geometry, dtype, x_strides, w_strides, b_stride, y_strides, precision)
    return plan(problem, limits)


def plan(problem: Problem, limits: Limits) -> Plan:
    """Plan what both operators come down to."""
    if 0 in problem.y_shape:
        return Plan.of_nothing(problem.operator)
    return choice.choose(problem, FAMILIES, limits)


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan of one to four spatial axes can name."""
    for family in FAMILIES:
        yield from family.variants()
