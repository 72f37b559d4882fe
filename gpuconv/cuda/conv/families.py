"""Plans of Conv and ConvTranspose: every family of kernels offers its candidates, the quickest one is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain

from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.direct import bands, channels, few, rows, transpose
from gpuconv.cuda.conv.gemm import ffma, grouped, interleaved, matrix, mma, pointwise, stem
from gpuconv.cuda.conv.wgmma import family as wgmma
from gpuconv.cuda.plan import Candidate, Family, Limits, Offer, Plan, offers
from gpuconv.rules.geometry import ConvGeometry, ConvTransposeGeometry, Ints

# Of equally quick candidates the earlier family's is taken; the first accepts every problem.
FAMILIES: tuple[Family, ...] = (
    *(ffma, mma, wgmma, rows, channels, few, bands),
    *(pointwise, matrix, interleaved, transpose, grouped, stem),
)
_EITHER_WAY = (ffma, mma, grouped, few)  # whose kernels of Conv take taps that run backwards


class _Backwards:
    """A ConvTranspose of stride 1 by kernels of Conv: as input gradients mostly are."""

    NAME = "Conv, backwards"

    def offers(self, problem: correlation.Problem, limits: Limits) -> Iterator[Candidate]:
        """Yield the candidates of the Conv that a problem is, if it is one."""
        return _of_conv(problem, lambda family, conv: family.offers(conv, limits))

    def offers_in_order(self, problem: correlation.Problem, limits: Limits) -> Iterator[Candidate]:
        """Yield them as families' ``offers_in_order``."""
        return _of_conv(problem, lambda family, conv: _in_order(family, conv, limits))

    def variants(self) -> Iterable[Variant]:
        """Yield no kernel: all are other families'."""
        return ()


def _of_conv(
    problem: correlation.Problem, asked: Callable[[Family, correlation.Problem], Iterable[Offer]]
) -> Iterator[Candidate]:
    conv = correlation.backwards(problem)
    if conv is not None:
        for offer in chain.from_iterable(asked(family, conv) for family in _EITHER_WAY):
            if isinstance(offer, Candidate):
                yield replace(offer, make=partial(_of_transpose, offer))


def _of_transpose(candidate: Candidate) -> Plan:
    return replace(candidate.make(), operator="conv_transpose")


def _in_order(family: Family, problem: correlation.Problem, limits: Limits) -> Iterable[Offer]:
    found: Iterable[Offer] = getattr(family, "offers_in_order", family.offers)(problem, limits)
    return found


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
    offered = (_in_order(family, problem, limits) for family in (*FAMILIES, _Backwards()))
    return [offer for those in offered for offer in those if isinstance(offer, Candidate)]


def plan(problem: correlation.Problem, limits: Limits) -> Plan:
    """Plan what both operators come down to."""
    if 0 in problem.y_shape:
        return Plan.of_nothing(problem.operator)
    return offers.choose(problem, (*FAMILIES, _Backwards()), limits)
