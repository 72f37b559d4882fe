"""Weight gradient with the roles of x and dy exchanged, for layers with few filters and many channels.

With strides of 1, the sum over outputs q, ``dw[m, c, t] = sum of dy[m, q] x[c, q + t d - p]``, equals one over pixels u
of x: ``sum of x[c, u] dy[m, u + p - t d]``. That is the gradient of a Conv from M channels to C filters with padding
``(k - 1) d - p`` and reversed taps.

Tiles whose filter axis would be nearly empty are then filled with channels, and the array that is re-read for each tap
is the smaller one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpuconv.cuda.plan import Candidate, Plan
from gpuconv.cuda.weight_grad.problem import WeightGradProblem
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import ConvGeometry

_LAST_TAP = "y from its last tap"


def of(problem: WeightGradProblem) -> WeightGradProblem | None:
    """Return the same sums as another Conv's weight gradient; None if strides, groups or padding do not allow it."""
    g = problem.geometry
    pads = tuple((k - 1) * d - pad for k, d, pad in zip(g.kernel_shape, g.dilations, g.pads_begin, strict=True))
    moves = any(s != 1 and q != 1 for s, q in zip(g.strides, g.y_shape[2:], strict=True))
    if g.group != 1 or moves or min(pads) < 0 or problem.result != problem.dtype or 0 in (*g.x_shape, *g.y_shape):
        return None
    ones, (filters, channels, *taps) = (1,) * len(pads), g.w_shape
    w_shape = (channels, filters, *taps)
    geometry = ConvGeometry(g.y_shape, g.x_shape, g.kernel_shape, ones, g.dilations, pads, pads, w_shape, 1)
    of_filter, of_channel, *of_taps = problem.w_strides
    return replace(
        problem,
        geometry=geometry,
        x_strides=problem.dy_strides,
        dy_strides=problem.x_strides,
        w_strides=(of_channel, of_filter, *(-step for step in of_taps)),
        exchanged=True,
    )


def candidate(problem: WeightGradProblem, other: Candidate) -> Candidate:
    """Return a candidate of the exchanged problem as a candidate of ``problem``."""
    return Candidate(f"{other.name}_exchanged", other.seconds, partial(_plan, problem, other), other.order)


def _plan(problem: WeightGradProblem, candidate: Candidate) -> Plan:
    """Return the exchanged candidate's plan, with y written from its last tap backwards."""
    plan, taps = candidate.make(), problem.geometry.kernel_shape
    size = dtypes.entry(problem.result).itemsize
    start = sum((k - 1) * step for k, step in zip(taps, problem.w_strides[2:], strict=True)) * size
    reason = "x and dy are exchanged: channels are what filters are elsewhere, and taps come in reverse order"
    return replace(plan.renamed({"y": _LAST_TAP}), views=((_LAST_TAP, "y", start),), reasons=(reason, *plan.reasons))
