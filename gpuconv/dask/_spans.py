"""Which inputs every block of outputs needs, axis by axis: integers in, integers out.

The outputs of an axis are cut where its inputs are: output ``q`` of a Conv or of pooling goes with input ``q * s``,
input ``i`` of a ConvTranspose with output ``i * s``. A block's own call gets just the inputs that its outputs meet, and
pads that put them where they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from gpuconv._errors import ArgumentError
from gpuconv.rules.geometry import AveragePoolGeometry, ConvGeometry, ConvTransposeGeometry, Windows

Chunks = Sequence[int]
_LONGEST = 2**63 - 1  # largest pad of a call


@dataclass(frozen=True, slots=True)
class Span:
    """One block along an axis.

    Attributes
    ----------
    start, stop : int
        Its outputs.
    low, high : int
        The inputs that it needs, of those that exist.
    before, after : int
        Pads of the block's own call; of a ConvTranspose what that crops.
    more : int
        The output_padding of the block's own call.
    """

    start: int
    stop: int
    low: int
    high: int
    before: int = 0
    after: int = 0
    more: int = 0


def starts(chunks: Chunks) -> list[int]:
    """Return where the chunks of an axis begin."""
    return list(accumulate(chunks[:-1], initial=0))


def alike(chunks: Chunks) -> list[Span]:
    """Return the blocks of an axis whose outputs are its inputs, one for one."""
    return [Span(start, stop, start, stop) for start, stop in _cut(starts(chunks), sum(chunks))]


def channels(geometry: ConvGeometry | ConvTransposeGeometry, chunks: Chunks) -> list[Span]:
    """Return the blocks of a convolution's channels: cut where the inputs are cut between two groups."""
    ins, outs = geometry.x_shape[1] // geometry.group, geometry.y_shape[1] // geometry.group
    cuts = [start // ins for start in starts(chunks) if start % ins == 0] if ins else []
    return [Span(first * outs, last * outs, first * ins, last * ins) for first, last in _cut(cuts, geometry.group)]


def spatial(geometry: Windows, axis: int, chunks: Chunks) -> list[Span]:
    """Return the blocks of a spatial axis whose inputs have these chunks."""
    n, count, stride = geometry.x_shape[2 + axis], geometry.y_shape[2 + axis], geometry.strides[axis]
    taps = geometry.offsets[axis]
    if not isinstance(geometry, ConvTransposeGeometry):
        cuts = [-(-start // stride) for start in starts(chunks)]
        if isinstance(geometry, AveragePoolGeometry) and geometry.count_include_pad:
            cuts.append(max(0, -((taps[0] - n) // stride)))  # the first window that begins behind x, see `cropped`
        return [_of_windows(start, stop, n, stride, taps) for start, stop in _cut(cuts, count)]
    cuts = [start * stride for start in starts(chunks)]
    reached = max(0, (n - 1) * stride + taps[-1] + 1)  # outputs from here on are bias only
    if count - reached >= stride:  # as many as an output_padding of less than the stride cannot add
        cuts.append(reached)
    spans = [_of_inputs(start, stop, n, stride, taps) for start, stop in _cut(cuts, count)]
    most = max(max(span.before, span.after) for span in spans)
    if most > _LONGEST:
        raise ArgumentError(
            f"conv_transpose: a block would crop {most} elements along spatial axis {axis}, which must fit in 64 bits; "
            "pass an array in memory"
        )
    return spans


def cropped(geometry: AveragePoolGeometry, axis: int, span: Span) -> Span:
    """Return a span whose pads leave out what ceil_mode adds to the last window beyond the pads of the whole array.

    With ``count_include_pad`` every pad of a call counts, so a block must not pad what lies beyond them. A call with
    ``ceil_mode=1`` makes up for the missing end. It makes just the windows of the span, along every axis: it would drop
    a last window that begins at or behind ``inputs + before``, but those that begin behind x have spans of their own,
    without inputs, and there ``before`` alone reaches past the beginning of the last window.
    """
    n, begin, end = geometry.x_shape[2 + axis], geometry.pads_begin[axis], geometry.pads_end[axis]
    if n == 0 and span.before + span.after > begin + end:
        return replace(span, before=begin, after=end)
    return replace(span, after=min(span.after, end)) if span.low < span.high == n else span


def _cut(cuts: Iterable[int], count: int) -> list[tuple[int, int]]:
    """Return what cuts make of the numbers below a count: at least one interval, none empty beside others."""
    return list(pairwise(sorted({0, count, *(min(cut, count) for cut in cuts)}))) or [(0, 0)]


def _of_windows(start: int, stop: int, n: int, stride: int, taps: range) -> Span:
    """Return the span of windows that meet the inputs ``q * stride + tap``; without one, what is too small for one."""
    first = start * stride + taps[0]
    last = (stop - 1) * stride + taps[-1] + 1 if stop > start else start * stride + taps[-1]
    low, high = min(max(first, 0), n), min(max(last, 0), n)
    if high <= low:  # wholly in the padding, which may exceed what one pad may be
        before = min(last - first, _LONGEST)
        return Span(start, stop, 0, 0, before, last - first - before)
    return Span(start, stop, low, high, low - first, last - high)


def _of_inputs(start: int, stop: int, n: int, stride: int, taps: range) -> Span:
    """Return the span of what inputs reach, ``i`` the outputs ``i * stride + tap``; without inputs it is bias only."""
    low = max(0, min(-((taps[-1] - start) // stride), (start - taps[0]) // stride))  # no later than where outputs begin
    high = min(n, max(0, (stop - 1 - taps[0]) // stride + 1))
    if low >= high or start > (n - 1) * stride + taps[-1]:
        return Span(start, stop, 0, 0)
    before = start - (low * stride + taps[0])
    rest = (high - low - 1) * stride + taps[-1] - taps[0] + 1 - before - (stop - start)
    return Span(start, stop, low, high, before, max(rest, 0), max(-rest, 0))
