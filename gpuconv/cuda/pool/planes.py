"""Pooling with one window per channel, as GlobalAveragePool and GlobalMaxPool have it (``pool/planes.cu``).

A tree reduction: many threads share each window, or with channels last each lane has a channel. Long windows are split
into parts that a second launch reduces in a fixed order. Averages of 16 or more elements always use it: the order of
summation depends on the window and the channels only, not on the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.plan import MOST_BLOCKS, Candidate, Launch, Limits, Offer, Plan, Refusal, Space, model
from gpuconv.cuda.plan.strided import collapsed_together, filled
from gpuconv.cuda.pool.problem import PoolAxis, PoolProblem, blocks_of, has_empty_windows
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

NAME = "planes"
_THREADS, _LANES = 256, 32
_GROUPS = {8: 128, 32: 2048, 256: 2**31}  # threads per window → most elements per part
_PARTS_WANTED = 4  # parts per SM, counted for one image
_FEWEST = 16  # elements per window; below, one thread per output is faster
_LEAST = 2048  # elements per part, over all lanes
# Instructions by Indices: per thread, per element of contiguous windows, per element of strided ones (estimated).
_INSTRUCTIONS = {False: (110, 5, 17), True: (140, 9, 21)}
_PLACE, _PLACES = 4, "places of parts"  # bytes per place; name of the buffer for the parts' places
_TOGETHER = (4, 8)  # loads in flight per thread, for strided and for contiguous windows


# ---------------------------------------------------------------- accepted problems


@dataclass(frozen=True, slots=True)
class PlaneView:
    """A problem with one window per image, channel and position along ``inner``, an axis of one-element windows."""

    image: PoolAxis
    channel: PoolAxis
    inner: PoolAxis
    first: int  # offset of a window's first element from x's, in elements of memory
    extents: Ints  # extents of a window, contiguous axes merged
    strides: Ints
    place_first: int  # number of a window's first element as Indices count, relative to x's first
    places: Ints  # difference of Indices between adjacent elements, per axis
    counts: int
    last: bool  # channels have the smallest stride

    @property
    def elements(self) -> int:
        """Elements per window."""
        return prod(self.extents)

    @property
    def outputs(self) -> int:
        """Number of windows."""
        return self.image.extent * self.channel.extent * self.inner.windows


def _accepted(problem: PoolProblem) -> PlaneView | str:
    """Return the view of the problem that the kernel takes, or why it does not accept the problem."""
    image, channel, *axes = problem.all_axes
    inner = [axis for axis in axes if axis.windows > 1]
    if len(inner) > 1 or any(axis.taps > 1 or axis.pad or axis.counted.taps > 1 for axis in inner):
        return "several windows of a channel"
    if any(axis.reach == 0 for axis in axes):
        return "no window meets x"
    if has_empty_windows(inner):
        return "some windows are empty"
    covered = [axis for axis in axes if axis.windows == 1]
    spans = [_inside(axis) for axis in covered]
    steps = [[axis.dilation * getattr(axis, array) for axis in covered] for array in ("x", "place")]
    extents, (strides, places) = collapsed_together([count for _, count in spans], *steps)
    view = PlaneView(
        image,
        channel,
        inner[0] if inner else PoolAxis(1, 1, 0, 0, 1, 1),
        sum(first * axis.x for (first, _), axis in zip(spans, covered, strict=True)),
        tuple(extents) or (1,),
        tuple(strides) or (0,),
        sum(first * axis.place for (first, _), axis in zip(spans, covered, strict=True)),
        tuple(places) or (0,),
        prod(_counts(axis) for axis in covered),
        problem.channels_last,
    )
    if len(view.extents) > 3:
        return f"{len(view.extents)} axes"
    spanned = [params.span(view.extents, steps) for steps in (view.strides, view.places)]
    largest = max(view.outputs, view.elements, *spanned)
    return "64-bit indices" if params.needs_wide(problem.operator, [largest]) else view


def _inside(axis: PoolAxis) -> tuple[int, int]:
    """Return the first in-bounds coordinate of an axis's only window, and the number of its in-bounds taps."""
    before = -(min(-axis.pad, 0) // axis.dilation)  # taps before the start of x
    first = before * axis.dilation - axis.pad
    return first, min(axis.taps - before, (axis.extent - 1 - first) // axis.dilation + 1)


def _counts(axis: PoolAxis) -> int:
    """Return the number of taps of an axis's only window that the average is divided by."""
    counted = axis.counted
    before = -(min(-counted.shift, 0) // counted.dilation)
    return max(0, min(counted.taps, (counted.extent - 1 + counted.shift) // counted.dilation + 1) - before)


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True, slots=True)
class PlaneTile:
    """How a window is divided among threads; independent of the number of images."""

    group: int  # threads per window; 0: one lane per channel
    parts: int
    each: int
    items: int
    blocks: int


def _tiles(problem: PoolProblem, view: PlaneView, limits: Limits) -> list[PlaneTile]:
    """Return the possible divisions: one for averages; whole or split for maxima, in which order is irrelevant."""
    division = _tile(view, -(-_PARTS_WANTED * limits.multiprocessors // _of_image(view)))
    return [division] if problem.averages or division.parts == 1 else [_tile(view, 1), division]


def _of_image(view: PlaneView) -> int:
    """Return the windows per image; with channels last, counted in tiles of 32 channels."""
    return view.inner.windows * (-(-view.channel.extent // _LANES) if view.last else view.channel.extent)


def _tile(view: PlaneView, wanted: int) -> PlaneTile:
    """Return a division into ``wanted`` parts, or fewer if they would be too short."""
    parts = max(1, min(wanted, view.elements * (_LANES if view.last else 1) // _LEAST))
    each = -(-view.elements // parts)
    parts = -(-view.elements // each)
    items = view.image.extent * _of_image(view) * parts
    if view.last:
        return PlaneTile(0, parts, each, items, items)
    group = next(group for group, most in _GROUPS.items() if each <= most)
    return PlaneTile(group, parts, each, items, -(-items // (_THREADS // group)))


# ---------------------------------------------------------------- offers


def sums_alone(problem: PoolProblem, limits: Limits) -> bool:
    """Return whether this family must be used.

    True for averages of windows with ``_FEWEST`` or more elements: kernel and order then depend on the window only.
    """
    view = _accepted(problem) if problem.averages else ""
    if isinstance(view, str) or view.elements < _FEWEST:
        return False
    return _tiles(problem, view, limits)[0].blocks <= MOST_BLOCKS


def offers(problem: PoolProblem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel's possible divisions, or why it does not accept the problem."""
    view = _accepted(problem)
    if isinstance(view, str):
        yield Refusal(view, plain=not problem.averages)
        return
    if view.elements < _FEWEST:
        yield Refusal("windows of few elements")
        return
    tiles = [tile for tile in _tiles(problem, view, limits) if tile.blocks <= MOST_BLOCKS]
    if not tiles:
        yield Refusal("64-bit indices")
        return
    for tile in tiles:
        kernel = variant(problem.dtype, tile.group, _form(problem))
        name = kernel.name if tile is tiles[0] else f"{kernel.name}_split"
        time = _seconds(problem, view, tile, limits)
        yield Candidate(name, time, partial(_plan, problem, view, tile, kernel))


def _seconds(problem: PoolProblem, view: PlaneView, tile: PlaneTile, limits: Limits) -> float:
    """Model the seconds of all launches of this candidate."""
    thread, run, several = _INSTRUCTIONS[problem.named]
    lanes = _LANES / min(view.channel.extent, _LANES) if view.last else 1.0  # some lanes have no channel
    of_elements = view.elements * view.outputs * lanes * (run if len(view.extents) == 1 else several)
    kernel = variant(problem.dtype, tile.group, _form(problem))
    # elements that the lanes of a window, or the warps of a block, load side by side
    beside = tile.group or _THREADS // _LANES
    trips = -(-tile.each // (beside * _TOGETHER[len(view.extents) == 1]))
    instructions = tile.blocks * _THREADS * thread + of_elements
    blocks = blocks_of(kernel, tile.blocks * _THREADS, instructions, trips, limits)
    time = model.streaming(blocks, problem.bytes, limits)
    return time + limits.rates.launch if tile.parts > 1 else time


# ---------------------------------------------------------------- launch


def _plan(problem: PoolProblem, view: PlaneView, tile: PlaneTile, kernel: Variant) -> Plan:
    """Return the plan of this candidate."""
    fields = {
        "y_batch": view.image.y,
        "y_channel": view.channel.y,
        "y_inner": view.inner.y,
        "counts": view.counts,
        "outputs": view.outputs,
        "channels": view.channel.extent,
        "inner": view.inner.windows,
        "parts": tile.parts,
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
        **(_numbers(view) if problem.named else {}),
    }
    results = {name: name for name in problem.arrays[1:]}
    sums = {"sums": "workspace"} | ({"places": _PLACES} if problem.named else {})
    first, launches = {"x": "x", **results, **(sums if tile.parts > 1 else {})}, []
    launches.append(Launch.of_blocks(problem.operator, kernel, tile.blocks, fields, first))
    if tile.parts > 1:
        parts = parts_variant(problem.dtype, _form(problem))
        own = {name: value for name, value in fields.items() if name in (parts.layout.names or ())}
        launches.append(Launch.of_threads(problem.operator, parts, view.outputs, own, {**results, **sums}))
    what = "sum" if problem.averages else "maximum"
    how = f"{tile.group} threads a {what}" if tile.group else "a lane for each channel"
    reason = f"{kernel.name}: {view.outputs} windows of {view.elements} elements, in {tile.parts} parts; {how}"
    spaces = _spaces(problem, tile.parts * view.outputs) if tile.parts > 1 else ()
    return Plan(problem.operator, tuple(launches), (reason,), spaces, kernel=kernel.name)


def _numbers(view: PlaneView) -> dict[str, Any]:
    """Return the struct's fields for Indices."""
    return {
        "place_first": view.place_first,
        "place_batch": view.image.place,
        "place_channel": view.channel.place,
        "place_inner": max(view.inner.stride, 1) * view.inner.place,
        "place_stride": filled(view.places, 3, 0),
        "indices_batch": view.image.indices,
        "indices_channel": view.channel.indices,
        "indices_inner": view.inner.indices,
    }


def _spaces(problem: PoolProblem, parts: int) -> tuple[Space, ...]:
    """Return the buffers for the results of ``parts`` parts."""
    if problem.averages:
        return (Space("workspace", "sums of parts", parts * dtypes.sums(problem.dtype).itemsize),)
    maxima = Space("workspace", "maxima of parts", parts * problem.itemsize)
    return (maxima, Space(_PLACES, _PLACES, parts * _PLACE)) if problem.named else (maxima,)


# ---------------------------------------------------------------- variants


def _form(problem: PoolProblem) -> str:
    """Return the kernel form: "averages", "indices" or "maxima"."""
    return "averages" if problem.averages else "indices" if problem.named else "maxima"


def _kernels(what: str, ending: str, parameter: str, of_parts: str) -> tuple[Kernel, Kernel, Kernel]:
    """Return the kernels for planes (threads per window), pixels (lane per channel), and the reduction of parts."""
    planes = Kernel("pool/planes.cu", f"{what}_planes{ending}", parameter, _THREADS, name=f"{what}_pool")
    parts = Kernel("pool/planes.cu", f"{what}_parts{ending}", of_parts, _THREADS, name=f"{what}_parts")
    return planes, replace(planes, function=f"{what}_pixels{ending}"), parts


_KERNELS = {
    "averages": _kernels("average", "", "PlanePoolParams", "PlanePartsParams"),
    "maxima": _kernels("max", "", "PlanePoolParams", "PlanePartsParams"),
    "indices": _kernels("max", "_indices", "NumberedPlaneParams", "NumberedPlaneParams"),
}


def variant(dtype: str, group: int, form: str = "averages") -> Variant:
    """Return the variant with ``group`` threads per window; 0 means one lane per channel."""
    planes, pixels, _ = _KERNELS[form]
    ending = form if form == "indices" else ""
    if group == 0:
        return pixels.over(dtype, 3, "pixels", ending, types=_types(dtype, form))
    return planes.over(dtype, 3, f"planes_{group}", ending, types=_types(dtype, form), sizes=(group,))


def parts_variant(dtype: str, form: str = "averages") -> Variant:
    """Return the variant that reduces the parts of split windows."""
    *_, parts = _KERNELS[form]
    return parts.over(dtype, 3, form if form == "indices" else "", types=_types(dtype, form))


def _types(dtype: str, form: str) -> tuple[str, ...]:
    """Return the C++ types that a form is instantiated with."""
    return types(dtype) if form == "averages" else (dtypes.entry(dtype).cuda,)


def variants() -> Iterator[Variant]:
    """Yield every kernel variant of this family."""
    for form in _KERNELS:
        for dtype in dtypes.CONV_DTYPES if form == "averages" else dtypes.MAX_POOL_DTYPES:
            yield from (variant(dtype, group, form) for group in (*_GROUPS, 0))
            yield parts_variant(dtype, form)
