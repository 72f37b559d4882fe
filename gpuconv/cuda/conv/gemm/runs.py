"""Conv whose kernel rows are contiguous in x, regrouped into wider "channels" so that loads can be vectorised.

Typical for patch embeddings, where the kernel is as wide as the stride. A row of taps is divided into pieces of as many
elements as one vectorised load. A piece becomes a tap, and its elements become channels. Every column must start at a
piece's boundary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuconv.cuda.conv.problem import Problem


@dataclass(frozen=True, slots=True)
class Runs:
    """One problem in two views that enumerate K in the same order."""

    gathered: Problem  # for loading x: channels are the elements of a piece
    packed: Problem  # for packing weights: taps, channels and strides of w


def along_w(problem: Problem, piece: int) -> Runs | None:
    """Return both views of a Conv with three spatial axes in pieces of ``piece`` elements; None if it has no such runs.

    Either x is contiguous along W, and channels, if several, can take the place of an outer axis of one element. Or
    channels are contiguous and W follows them.
    """
    if problem.operator != "conv" or problem.backwards or problem.group != 1 or problem.channels == 0:
        return None
    single = problem.channels == 1 or problem.x_strides[1] == 1
    if single and problem.x_strides[-1] == problem.channels:
        return _in_pieces(problem, problem, problem.channels, piece)
    free = (problem.taps[0], problem.x_shape[2], problem.columns[0], problem.pads[0]) == (1, 1, 1, 0)
    if problem.x_strides[-1] == 1 and free:
        outer, *inner = problem.axes
        channels = outer._replace(taps=problem.channels, x=problem.channels, x_stride=problem.x_strides[1])
        return _in_pieces(problem.with_axes((channels, *inner)), _taps_inside(problem), 1, piece)
    return None


def _taps_inside(problem: Problem) -> Problem:
    """Return the problem with channels and taps along W exchanged; channels move to the first tap axis."""
    group, filters, channel, _, *along = problem.w_strides
    return replace(
        problem,
        channels=problem.taps[-1],
        taps=(1, problem.channels, problem.taps[1]),
        w_strides=(group, filters, along[-1], 0, channel, along[0]),
    )


def _in_pieces(outer: Problem, packed: Problem, inner: int, piece: int) -> Runs | None:
    """Return both views, where W × ``inner`` elements are contiguous in x.

    None unless taps, stride and padding all fall on boundaries of pieces.
    """
    *axes, width = outer.axes
    taps, extent, pad = (size * inner for size in (width.taps, width.x, width.pad))
    step = width.column_stride * inner if width.columns > 1 else piece
    last = (width.columns - 1) * step - pad + taps
    apart = width.dilation > 1 or any(size % piece for size in (taps, step, pad))
    if apart or last > extent // piece * piece < extent:
        return None
    pieces = width._replace(
        taps=taps // piece, x=extent // piece, x_stride=piece, column_stride=step // piece, pad=pad // piece
    )
    seen = outer.with_axes((*axes, pieces))
    (batch, _, *extents), (image, _, *strides) = seen.x_shape, seen.x_strides
    gathered = replace(seen, channels=piece, x_shape=(batch, piece, *extents), x_strides=(image, 1, *strides))
    return Runs(gathered, packed)
