"""AveragePool of one window for each channel, as GlobalAveragePool has it: many threads for a sum.

The kernels are in ``kernels_cu/pool/planes.cu``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.plan import MOST_BLOCKS, Candidate, Launch, Limits, Offer, Plan, Refusal, Space, kept, model
from gpuconv.cuda.plan.strided import collapsed, filled
from gpuconv.cuda.pool.problem import PoolAxis, PoolProblem, blocks_of
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

NAME = "planes"
_THREADS, _LANES = 256, 32
_GROUPS = {8: 128, 32: 2048, 256: 2**31}  # threads of a sum, by the most elements of a part
_PARTS_WANTED = 4  # of a multiprocessor, for one image
_FEWEST = 16  # elements of a window: for fewer, a thread makes a sum
_LEAST = 2048  # elements of a part, of all lanes
# Instructions of a thread, and of each element of one run or of several axes; estimated.
_INSTRUCTIONS = (110, 5, 17)
_TOGETHER = (4, 8)  # elements that a thread loads at a time, of several axes or of one run


# ---------------------------------------------------------------- what it sees


@dataclass(frozen=True, slots=True)
class PlaneView:
    """A problem whose windows are each the only one of an image, a channel, and a place along ``inner``."""

    image: PoolAxis
    channel: PoolAxis
    inner: PoolAxis
    first: int  # element of a window, from that of x
    extents: Ints  # of a window, axes that lie as one made one
    strides: Ints
    counts: int
    last: bool  # channels lie closest together

    @property
    def elements(self) -> int:
        """Elements of a window."""
        return prod(self.extents)

    @property
    def outputs(self) -> int:
        """Windows."""
        return self.image.extent * self.channel.extent * self.inner.windows


def _accepted(problem: PoolProblem) -> PlaneView | str:
    image, channel, *axes = problem.all_axes
    if not problem.averages:
        return "maxima"
    inner = [axis for axis in axes if axis.windows > 1]
    if len(inner) > 1 or any(axis.taps > 1 or axis.pad or axis.counted.taps > 1 for axis in inner):
        return "several windows of a channel"
    if any(axis.reach == 0 for axis in axes):
        return "no window meets x"
    covered = [axis for axis in axes if axis.windows == 1]
    spans = [_inside(axis) for axis in covered]
    extents, strides = collapsed([count for _, count in spans], [axis.dilation * axis.x for axis in covered])
    view = PlaneView(
        image,
        channel,
        inner[0] if inner else PoolAxis(1, 1, 0, 0, 1, 1),
        sum(first * axis.x for (first, _), axis in zip(spans, covered, strict=True)),
        tuple(extents) or (1,),
        tuple(strides) or (0,),
        prod(_counts(axis) for axis in covered),
        problem.channels_last,
    )
    if len(view.extents) > 3:
        return f"{len(view.extents)} axes"
    largest = max(view.outputs, view.elements, params.span(view.extents, view.strides))
    return "64-bit indices" if params.needs_wide(problem.operator, [largest]) else view


def _inside(axis: PoolAxis) -> tuple[int, int]:
    """Return where the only window of an axis begins inside x, and how many of its taps are there."""
    before = -(min(-axis.pad, 0) // axis.dilation)  # taps before x
    first = before * axis.dilation - axis.pad
    return first, min(axis.taps - before, (axis.extent - 1 - first) // axis.dilation + 1)


def _counts(axis: PoolAxis) -> int:
    """Return how many taps of the only window of an axis count."""
    counted = axis.counted
    before = -(min(-counted.shift, 0) // counted.dilation)
    return max(0, min(counted.taps, (counted.extent - 1 + counted.shift) // counted.dilation + 1) - before)


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True, slots=True)
class PlaneTile:
    """Threads of a sum, and how it is cut: by the window and the channels, whatever the number of images."""

    group: int  # 0: a lane for each channel
    parts: int
    each: int
    items: int
    blocks: int


def _tile(view: PlaneView, limits: Limits) -> PlaneTile:
    tiles = -(-view.channel.extent // _LANES)
    of_image = view.inner.windows * (tiles if view.last else view.channel.extent)
    wanted = -(-_PARTS_WANTED * limits.multiprocessors // of_image)
    parts = max(1, min(wanted, view.elements * (_LANES if view.last else 1) // _LEAST))
    each = -(-view.elements // parts)
    parts = -(-view.elements // each)
    items = view.image.extent * of_image * parts
    if view.last:
        return PlaneTile(0, parts, each, items, items)
    group = next(group for group, most in _GROUPS.items() if each <= most)
    return PlaneTile(group, parts, each, items, -(-items // (_THREADS // group)))


# ---------------------------------------------------------------- offers


def sums_alone(problem: PoolProblem, limits: Limits) -> bool:
    """Tell whether nobody else is asked: which kernel makes a sum, and in which order, is told by the window alone."""
    view = _accepted(problem)
    return not isinstance(view, str) and view.elements >= _FEWEST and _tile(view, limits).blocks <= MOST_BLOCKS


def offers(problem: PoolProblem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel, or why it does not take the problem."""
    view = _accepted(problem)
    if isinstance(view, str):
        yield Refusal(view, plain=not problem.averages)
        return
    if view.elements < _FEWEST:
        yield Refusal("windows of few elements")
        return
    tile = _tile(view, limits)
    if tile.blocks > MOST_BLOCKS:
        yield Refusal("64-bit indices")
        return
    thread, run, several = _INSTRUCTIONS
    lanes = _LANES / min(view.channel.extent, _LANES) if view.last else 1.0  # of which some have no channel
    of_elements = view.elements * view.outputs * lanes * (run if len(view.extents) == 1 else several)
    kernel = variant(problem.dtype, tile.group)
    beside = tile.group or _THREADS // _LANES  # elements that lanes of a sum, or warps of all lanes', load side by side
    trips = -(-tile.each // (beside * _TOGETHER[len(view.extents) == 1]))
    instructions = tile.blocks * _THREADS * thread + of_elements
    blocks = blocks_of(kernel, tile.blocks * _THREADS, instructions, trips, limits)
    time = model.streaming(blocks, problem.bytes, limits)
    if tile.parts > 1:
        time += limits.rates.launch
    yield Candidate(kernel.name, time, lambda: _plan(problem, view, tile, kernel))


# ---------------------------------------------------------------- launch


def _plan(problem: PoolProblem, view: PlaneView, tile: PlaneTile, kernel: Variant) -> Plan:
    outputs = {
        "y_batch": view.image.y,
        "y_channel": view.channel.y,
        "y_inner": view.inner.y,
        "counts": view.counts,
        "outputs": view.outputs,
        "channels": view.channel.extent,
        "inner": view.inner.windows,
        "parts": tile.parts,
    }
    fields: dict[str, Any] = outputs | {
        "x_first": view.first,
        "x_batch": view.image.x,
        "x_channel": view.channel.x,
        "x_inner": max(view.inner.stride, 1) * view.inner.x,
        "items": tile.items,
        "elements": view.elements,
        "each": tile.each,
        "x_stride": filled(view.strides, 3, 0),
        "flat": len(view.extents) == 1,
        "tiles": -(-view.channel.extent // _LANES),
        "extent": filled(view.extents, 3, 1),
    }
    roles = {"x": "x", "y": "y"} | ({"sums": "workspace"} if tile.parts > 1 else {})
    launches = [Launch.of_blocks(problem.operator, kernel, tile.blocks, fields, roles)]
    if tile.parts > 1:
        launches.append(
            Launch.of_threads(
                problem.operator, parts_variant(problem.dtype), view.outputs, outputs, {"sums": "workspace", "y": "y"}
            )
        )
    how = f"{tile.group} threads a sum" if tile.group else "a lane for each channel"
    reason = f"{kernel.name}: {view.outputs} sums of {view.elements} elements, in {tile.parts} parts; {how}"
    left = tile.parts * view.outputs * dtypes.sums(problem.dtype).itemsize if tile.parts > 1 else 0
    spaces = kept(Space("workspace", "sums of parts", left))
    return Plan(problem.operator, tuple(launches), (reason,), spaces, kernel=kernel.name)


_KERNEL = Kernel("pool/planes.cu", "average_planes", "PlanePoolParams", _THREADS, name="average_pool")
_PIXELS = replace(_KERNEL, function="average_pixels")
_PARTS = Kernel("pool/planes.cu", "average_parts", "PlanePartsParams", _THREADS)


def variant(dtype: str, group: int) -> Variant:
    """Return the kernel for a dtype, with so many threads for a sum, or 0: a lane for each channel."""
    if group == 0:
        return _PIXELS.over(dtype, 3, "pixels", types=types(dtype))
    return _KERNEL.over(dtype, 3, f"planes_{group}", types=types(dtype), sizes=(group,))


def parts_variant(dtype: str) -> Variant:
    """Return the kernel that adds up parts."""
    return _PARTS.over(dtype, 3, types=types(dtype))


def variants() -> Iterator[Variant]:
    for dtype in dtypes.CONV_DTYPES:
        yield from (variant(dtype, group) for group in (*_GROUPS, 0))
        yield parts_variant(dtype)
