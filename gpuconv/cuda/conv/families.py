"""Dispatch for Conv and ConvTranspose: collect the candidates of every kernel family and plan the fastest one.

A family is a module with a ``NAME`` and an ``offers(problem, limits)`` generator. Adding a kernel family means listing
its module in ``FAMILIES``.
"""

from __future__ import annotations

from dataclasses import replace

from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.direct import bands, channels, few, rows, transpose
from gpuconv.cuda.conv.gemm import ffma, grouped, interleaved, matrix, mma, pointwise, stem
from gpuconv.cuda.conv.wgmma import family as wgmma
from gpuconv.cuda.plan import Candidate, Family, Limits, Plan, offers
from gpuconv.rules.geometry import ConvGeometry, ConvTransposeGeometry, Ints

# On a tie, the family listed first wins. The first one, FFMA, accepts every problem, so there is always a plan.
FAMILIES: tuple[Family, ...] = (
    *(ffma, mma, wgmma, rows, channels, few, bands),
    *(pointwise, matrix, interleaved, transpose, grouped, stem),
)


def _of_transpose(problem: correlation.Problem, candidate: Candidate) -> Candidate:
    """Return a Conv candidate whose plan carries the operator's own name."""
    return replace(candidate, make=lambda: replace(candidate.make(), operator=problem.operator))


# ConvTranspose of stride 1, the usual input gradient, is a Conv with reversed taps. These Conv kernels can walk the
# taps in reverse.
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
    """Plan Conv or ConvTranspose for arrays with these strides, in elements; see :func:`conv.problem.of`."""
    return plan(correlation.of(geometry, dtype, x_strides, w_strides, b_stride, y_strides, precision), limits)


def in_order(problem: correlation.Problem, limits: Limits) -> list[Candidate]:
    """Return candidates whose order of summation does not depend on the batch size, in all such orders.

    Used for batch-invariant plans. Families that normally choose the order by batch, as split-K does, define
    ``offers_in_order`` for this.
    """
    offered = (offers.in_order(family, problem, limits) for family in (*FAMILIES, _BACKWARDS))
    return [offer for those in offered for offer in those if isinstance(offer, Candidate)]


def plan(problem: correlation.Problem, limits: Limits) -> Plan:
    """Plan a normalised problem, whichever of the two operators it came from; an empty output needs no launch."""
    if 0 in problem.y_shape:
        return Plan.of_nothing(problem.operator)
    return offers.choose(problem, (*FAMILIES, _BACKWARDS), limits)
