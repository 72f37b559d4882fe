"""ConvTranspose whose kernel is its stride, without dilation, seen as one GEMM (``conv/gemm/depth_to_space.cuh``).

Its rows are output channels and taps: outputs do not overlap, the kernel scatters them. In 32-bit indices and three
spatial axes. An axis of x with a single element has blocks of any size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.problem import Problem, merged_stride

ROW_BYTES = 32  # of OutputRow
_MOST_TAPS = 32  # along W, that lanes share the columns of a chunk out to


def unfit(problem: Problem) -> str | None:
    """Return why a ConvTranspose is not one GEMM whose outputs lie apart; None where it is."""
    if problem.rank > 3:
        return f"{problem.rank} spatial axes; it has three"
    if any(axis.dilation != 1 or (axis.x != 1 and axis.taps != axis.stride) for axis in problem.axes):
        numbers = f"{problem.taps} taps, strides {problem.strides}, dilations {problem.dilations}"
        return f"{numbers}: the outputs of neighbours overlap or lie apart"
    if any(axis.y > axis.x * axis.taps - axis.pad for axis in problem.axes):
        return "y has outputs that no tap reaches"
    if problem.taps[-1] > _MOST_TAPS:
        return f"{problem.taps[-1]} taps along W; it takes up to {_MOST_TAPS}"
    if _w_step(problem) is None:
        return "the taps of a channel are not contiguous in w"
    if problem.wide() or _reach(problem) >= params.INDEX_LIMIT:
        return "it needs 64-bit indices"
    return None


def _w_step(problem: Problem) -> int | None:
    """Return the stride of w from one row to the next, rows being channels and taps; None where there is not one."""
    return merged_stride((problem.filters, *problem.taps), (problem.w_strides[1], *problem.w_strides[3:]))


def _reach(problem: Problem) -> int:
    """Return the largest offset, or number of packed weights, also of outputs that the padding cuts off."""
    sizes = (*problem.y_shape[:2], *(axis.x * axis.taps for axis in problem.axes))
    rows = problem.filters * prod(problem.taps) + gemm_base.pitch(problem)
    offset = sum(size * abs(stride) for size, stride in zip(sizes, problem.y_strides, strict=True))
    return max(offset, problem.group * problem.channels * rows, problem.batch * prod(problem.x_shape[2:]))


def rows_of(problem: Problem) -> Problem:
    """Return the GEMM as the problem of one tap: output channels and taps are its filters, input pixels its columns."""
    w_group, _, w_channel, *_ = problem.w_strides
    return replace(
        problem.with_axes(
            axis._replace(taps=1, w_stride=1, columns=axis.x, pad=0, stride=axis.taps) for axis in problem.axes
        ),
        filters=problem.filters * prod(problem.taps),
        w_strides=(w_group, _w_step(problem) or 0, w_channel, *(1,) * problem.rank),
        phases=(),
    )


def fields(problem: Problem) -> Mapping[str, Any]:
    """Return the fields of ``DepthToSpaceParams`` besides those of the GEMM."""
    axes = problem.lifted.axes
    return {
        "axes": [{"pad": axis.pad, "extent": axis.y, "y_stride": axis.y_stride, "taps": axis.taps} for axis in axes],
        "out_channels": problem.filters,
    }
