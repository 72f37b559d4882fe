"""Plans of Conv and ConvTranspose: every family of kernels offers its candidates, the quickest one is taken."""

from __future__ import annotations

from dataclasses import replace

from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.direct import bands, channels, few, rows, transpose
from gpuconv.cuda.conv.gemm import ffma, grouped, interleaved, matrix, mma, pointwise, stem
from gpuconv.cuda.conv.wgmma import family as wgmma
from gpuconv.cuda.plan import Candidate, Family, Limits, Plan, offers
from gpuconv.rules.geometry import ConvGeometry, ConvTransposeGeometry, Ints

# Of equally quick candidates the earlier family's is taken; the first accepts every problem.
FAMILIES: tuple[Family, ...] = (
    *(ffma, mma, wgmma, rows, channels, few, bands),
    *(pointwise, matrix, interleaved, transpose, grouped, stem),
)


def _of_transpose(problem: correlation.Problem, candidate: Candidate) -> Candidate:
    return replace(candidate, make=lambda: replace(candidate.make(), operator=problem.operator))


# ConvTranspose of stride 1, as input gradients mostly are, by those kernels of Conv whose taps may run backwards.
_BACKWARDS: offers.Offering = offers.Rewritten(
    "Conv, backwards", (ffma, mma, grouped, few), correlation.backwards, _of_transpose
)


def for_conv(
    geometry: ConvGeometry | ConvTransposeGeometry,
    dtype: str,
    x_strides: Ints,
    w_strides: Ints,
    b_stride: int | None,
    y_strides: Ints,
    limits: Limits,
    precision: str = "ieee",
) -> Plan:
    """Plan Conv or ConvTranspose for arrays of these strides, as :func:`conv.problem.of` takes them."""
    return plan(correlation.of(geometry, dtype, x_strides, w_strides, b_stride, y_strides, precision), limits)


def in_order(problem: correlation.Problem, limits: Limits) -> list[Candidate]:
    """Return the candidates of all orders of sums, none of which depends on how many images there are.

    Families that otherwise choose an order by the batch have ``offers_in_order`` besides.
    """
    offered = (offers.in_order(family, problem, limits) for family in (*FAMILIES, _BACKWARDS))
    return [offer for those in offered for offer in those if isinstance(offer, Candidate)]


def plan(problem: correlation.Problem, limits: Limits) -> Plan:
    """Plan what both operators come down to."""
    if 0 in problem.y_shape:
        return Plan.of_nothing(problem.operator)
    return offers.choose(problem, (*FAMILIES, _BACKWARDS), limits)
