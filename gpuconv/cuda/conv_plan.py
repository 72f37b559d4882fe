"""Plans of Conv and ConvTranspose: every family of kernels offers its candidates, the quickest one is taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
from gpuconv.cuda.choice import Candidate
from gpuconv.cuda.correlation import Problem
from gpuconv.cuda.plan import Limits, Plan
from gpuconv.cuda.variant import Variant

# Of equally quick candidates the earlier family's is taken; the first accepts every problem.
FAMILIES = (
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
_OF_CONV_TRANSPOSE = (interleaved_plan, depth_to_space_plan, depth_to_space_matrix_plan)


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
    found = choice.choose(problem, candidates(problem, limits), limits)
    return replace(found, reasons=(*found.reasons, *_refusals(problem, limits)))


def _refusals(problem: Problem, limits: Limits) -> Iterator[str]:
    """Yield why families have no candidate, where that is not plain."""
    direct, channels = direct_plan.refusal(problem), channels_plan.refusal(problem)
    if direct is not None and channels is not None:
        yield f"no direct sum: {direct}"
        if problem.group > 1 and problem.x_strides[1] == 1:
            yield f"no direct sum over channels: {channels}"
    bands = bands_plan.refusal(problem)
    if bands is not None and problem.filters <= bands_plan.MOST_FILTERS:
        yield f"no bands: {bands}"
    tensor = mma_plan.refusal(problem)
    if tensor is not None:
        yield tensor
    hopper = wgmma_plan.explained(problem, limits)
    if hopper is not None:
        yield f"no wgmma: {hopper}"
    product = matrix_plan.refusal(problem)
    if product is not None:
        yield f"no product of matrices on tensor cores: {product}"
    grouped = grouped_plan.refusal(problem)
    if grouped is not None and tensor is None and problem.group > 1:
        yield f"not by {grouped_plan.NAME}: {grouped}"
    stem = stem_plan.refusal(problem)
    if problem.operator == "conv" and problem.channels in stem_plan.CHANNELS and stem is not None:
        yield f"no {stem_plan.NAME}: {stem}"
    families = (*_OF_CONV_TRANSPOSE, depthwise_transpose_plan) if problem.group > 1 else _OF_CONV_TRANSPOSE
    for family in families if problem.phases else ():
        why = family.refusal(problem, limits)
        if why is not None:
            yield f"not by {family.NAME}: {why}"


def candidates(problem: Problem, limits: Limits) -> Iterator[Candidate]:
    """Yield every way to solve a problem whose result has elements."""
    for family in FAMILIES:
        yield from family.candidates(problem, limits)


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan of one to four spatial axes can name."""
    for family in FAMILIES:
        yield from family.variants()
