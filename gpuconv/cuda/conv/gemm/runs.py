"""Conv whose taps along W are contiguous in x, as one of more taps that each have a run of elements for channels.

The kernel of a patch embedding is as wide as its stride: from column to column it moves by whole runs, so that no
column needs elements from the middle of another column's run. In pieces of as many elements as are copied at once,
coordinates along W count pieces, and the elements of a piece are the channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuconv.cuda.conv.problem import Problem


@dataclass(frozen=True, slots=True)
class Runs:
    """One problem, seen twice: its K is in the same order in both."""

    gathered: Problem  # as x is gathered: a piece's elements are its channels
    packed: Problem  # as its weights are found: taps, channels and strides of w


def along_w(problem: Problem, piece: int) -> Runs | None:
    """Return a Conv of three spatial axes in pieces of so many elements, or None where it has no such runs.

    Elements along W are contiguous, and channels, if there are several, take the place of an outermost axis of one
    element; or channels are contiguous, and elements along W follow them.
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
    """Return a problem with its channels and its taps along W exchanged, the channels on the first axis."""
    group, filters, channel, _, *along = problem.w_strides
    return replace(
        problem,
        channels=problem.taps[-1],
        taps=(1, problem.channels, problem.taps[1]),
        w_strides=(group, filters, along[-1], 0, channel, along[0]),
    )


def _in_pieces(outer: Problem, packed: Problem, inner: int, piece: int) -> Runs | None:
    """Return a problem whose W times ``inner`` elements are neighbours in pieces, if all fall on their edges."""
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
