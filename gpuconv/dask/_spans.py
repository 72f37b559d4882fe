"""Block geometry along one axis: which inputs, halo included, each block of outputs needs. Only integers are involved.

Output chunks follow input chunks: output ``q`` of Conv or pooling belongs to input ``q * s``, and input ``i`` of
ConvTranspose to output ``i * s``. The call for a block gets exactly the inputs that contribute to its outputs, and pads
that replace the rest::

    inputs   |<-before->|  low ... high  |<-after->|
    outputs             | start ... stop |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from gpuconv._errors import ArgumentError
from gpuconv.rules.geometry import AveragePoolGeometry, ConvGeometry, ConvTransposeGeometry, Windows

Chunks = Sequence[int]
_LONGEST = 2**63 - 1  # largest pad that a call accepts


@dataclass(frozen=True, slots=True)
class Span:
    """One block of the result along an axis, and the input that it needs.

    Attributes
    ----------
    start, stop : int
        Range of outputs.
    low, high : int
        Range of existing inputs that contribute to them.
    before, after : int
        Pads for the block's call; for ConvTranspose, the outputs that it crops.
    more : int
        output_padding for the block's call.
    """

    start: int
    stop: int
    low: int
    high: int
    before: int = 0
    after: int = 0
    more: int = 0


def starts(chunks: Chunks) -> list[int]:
    """Return the index at which each chunk of an axis begins."""
    return list(accumulate(chunks[:-1], initial=0))


def alike(chunks: Chunks) -> list[Span]:
    """Return the blocks of an axis whose outputs correspond one-to-one to its inputs, such as N."""
    return [Span(start, stop, start, stop) for start, stop in _cut(starts(chunks), sum(chunks))]


def channels(geometry: ConvGeometry | ConvTransposeGeometry, chunks: Chunks) -> list[Span]:
    """Return the blocks of a convolution's channels; chunks are kept where their boundary is between two groups."""
    ins, outs = geometry.x_shape[1] // geometry.group, geometry.y_shape[1] // geometry.group
    cuts = [start // ins for start in starts(chunks) if start % ins == 0] if ins else []
    return [Span(first * outs, last * outs, first * ins, last * ins) for first, last in _cut(cuts, geometry.group)]


def spatial(geometry: Windows, axis: int, chunks: Chunks) -> list[Span]:
    """Return the blocks of a spatial axis, given the chunks of its inputs."""
    n, count, stride = geometry.x_shape[2 + axis], geometry.y_shape[2 + axis], geometry.strides[axis]
    taps = geometry.offsets[axis]
    if not isinstance(geometry, ConvTransposeGeometry):
        cuts = [-(-start // stride) for start in starts(chunks)]
        if isinstance(geometry, AveragePoolGeometry) and geometry.count_include_pad:
            # first window that begins after the end of x, see `cropped`
            cuts.append(max(0, -((taps[0] - n) // stride)))
        return [_of_windows(start, stop, n, stride, taps) for start, stop in _cut(cuts, count)]
    cuts = [start * stride for start in starts(chunks)]
    reached = max(0, (n - 1) * stride + taps[-1] + 1)  # later outputs are bias only
    if count - reached >= stride:  # more than an output_padding, which must be less than the stride, could add
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
    """Return a span whose end pad excludes the part of the last window that ceil_mode adds beyond the array's pads.

    With ``count_include_pad`` every pad of a call counts, so a block must not pad beyond the pads of the whole array.
    Its call therefore has ``ceil_mode=1`` and a shorter pad, and still yields exactly the windows of the span. A call
    would drop a last window that begins at or after ``inputs + before``. But windows that begin after the end of x have
    spans of their own, without inputs, and for those ``before`` alone reaches past the begin of the last window.
    """
    n, begin, end = geometry.x_shape[2 + axis], geometry.pads_begin[axis], geometry.pads_end[axis]
    if n == 0 and span.before + span.after > begin + end:
        return replace(span, before=begin, after=end)
    return replace(span, after=min(span.after, end)) if span.low < span.high == n else span


def _cut(cuts: Iterable[int], count: int) -> list[tuple[int, int]]:
    """Return the intervals into which cuts divide the range 0 to count: at least one, none empty among several."""
    return list(pairwise(sorted({0, count, *(min(cut, count) for cut in cuts)}))) or [(0, 0)]


def _of_windows(start: int, stop: int, n: int, stride: int, taps: range) -> Span:
    """Return the span of windows that read the inputs ``q * stride + tap``.

    Without an output, it is an input range too small for a window.
    """
    first = start * stride + taps[0]
    last = (stop - 1) * stride + taps[-1] + 1 if stop > start else start * stride + taps[-1]
    low, high = min(max(first, 0), n), min(max(last, 0), n)
    if high <= low:  # entirely in the padding, whose length may exceed what one pad can express
        before = min(last - first, _LONGEST)
        return Span(start, stop, 0, 0, before, last - first - before)
    return Span(start, stop, low, high, low - first, last - high)


def _of_inputs(start: int, stop: int, n: int, stride: int, taps: range) -> Span:
    """Return the span of outputs to which input ``i`` contributes at ``i * stride + tap``; bias only if there is no
    input.
    """
    low = max(0, min(-((taps[-1] - start) // stride), (start - taps[0]) // stride))  # not after the first output
    high = min(n, max(0, (stop - 1 - taps[0]) // stride + 1))
    if low >= high or start > (n - 1) * stride + taps[-1]:
        return Span(start, stop, 0, 0)
    before = start - (low * stride + taps[0])
    rest = (high - low - 1) * stride + taps[-1] - taps[0] + 1 - before - (stop - start)
    return Span(start, stop, low, high, before, max(rest, 0), max(-rest, 0))
