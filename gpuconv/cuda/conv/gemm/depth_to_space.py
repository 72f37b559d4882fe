"""ConvTranspose as one GEMM that makes blocks of outputs as large as the stride (``conv/gemm/depth_to_space.cuh``).

Where the kernel is its stride, without dilation, rows are output channels and taps: outputs do not overlap, the kernel
scatters them. An axis of x with a single element has blocks of any size there. Where it is larger, rows are output
channels and phases, of which each has taps. In 32-bit indices and three spatial axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.problem import Axis, Problem, merged_stride

ROW_BYTES = 32  # of OutputRow
WRITING = 20  # instructions of a warp for 32 outputs after the main loop, which padding does not cut off; counted
_MOST_PHASES = 32  # along W, that lanes share the columns of a chunk out to


# ---------------------------------------------------------------- one tap


def unfit(problem: Problem) -> str | None:
    """Return why a ConvTranspose is not one GEMM whose outputs lie apart; None where it is."""
    if problem.rank > 3:
        return f"{problem.rank} spatial axes; it has three"
    if any(axis.dilation != 1 or (axis.x != 1 and axis.taps != axis.stride) for axis in problem.axes):
        numbers = f"{problem.taps} taps, strides {problem.strides}, dilations {problem.dilations}"
        return f"{numbers}: the outputs of neighbours overlap or lie apart"
    if any(axis.y > axis.x * axis.taps - axis.pad for axis in problem.axes):
        return "y has outputs that no tap reaches"
    if problem.taps[-1] > _MOST_PHASES:
        return f"{problem.taps[-1]} taps along W; it takes up to {_MOST_PHASES}"
    if _w_step(problem) is None:
        return "the taps of a channel are not contiguous in w"
    rows = problem.filters * prod(problem.taps) + gemm_base.pitch(problem)
    weights, pixels = problem.group * problem.channels * rows, problem.batch * prod(problem.x_shape[2:])
    blocks = [axis.x * axis.taps for axis in problem.axes]
    if problem.wide() or max(_reach(problem, blocks), weights, pixels) >= params.INDEX_LIMIT:
        return "it needs 64-bit indices"
    return None


def _w_step(problem: Problem) -> int | None:
    """Return the stride of w from one row to the next, rows being channels and taps; None where there is not one."""
    return merged_stride((problem.filters, *problem.taps), (problem.w_strides[1], *problem.w_strides[3:]))


def _reach(problem: Problem, extents: Sequence[int]) -> int:
    """Return the largest offset, also of outputs that the padding cuts off: blocks have these extents together."""
    sizes = (*problem.y_shape[:2], *extents)
    return sum(size * abs(stride) for size, stride in zip(sizes, problem.y_strides, strict=True))


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


# ---------------------------------------------------------------- several taps


def phases_of(problem: Problem) -> Problem | None:
    """Return the GEMM of a ConvTranspose as a Conv that makes blocks, with taps that run backwards; None if it is none.

    Its filters are output channels and phases, its columns the blocks that have outputs. Every phase has the same taps
    of x: there are strides, and no dilation where they are.
    """
    apart = any(axis.dilation != 1 and axis.stride != 1 for axis in problem.axes)
    if apart or all(stride == 1 for stride in problem.strides) or problem.strides[-1] > _MOST_PHASES:
        return None
    gemm = replace(
        problem.with_axes(map(_of_blocks, problem.axes)),
        operator="conv",
        filters=problem.filters * prod(problem.strides),
        phases=(),
        strides=(),
        backwards=True,
    )
    blocks = [columns * stride for columns, stride in zip(gemm.columns, problem.strides, strict=True)]
    return None if gemm.far() or _reach(problem, blocks) >= params.INDEX_LIMIT else gemm


def _of_blocks(axis: Axis) -> Axis:
    taps, skipped = -(-axis.taps // axis.stride), axis.pad // axis.stride  # blocks that the padding cuts off
    columns = -(-(axis.y + axis.pad) // axis.stride) - skipped
    return axis._replace(taps=taps, columns=columns, pad=(taps - 1) * axis.dilation - skipped)


# ---------------------------------------------------------------- launch


def fields(problem: Problem, several: bool = False) -> Mapping[str, Any]:
    """Return the fields of ``DepthToSpaceParams`` besides those of the GEMM, of blocks of one tap or of several."""
    return {"axes": [_fields(axis, several) for axis in problem.lifted.axes], "out_channels": problem.filters}


def _fields(axis: Axis, several: bool) -> Mapping[str, int]:
    phases, pad = (axis.stride, axis.pad % axis.stride) if several else (axis.taps, axis.pad)
    return {"pad": pad, "extent": axis.y, "y_stride": axis.y_stride, "kernel": axis.taps, "phases": phases}
