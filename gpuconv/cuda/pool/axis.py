"""Separable MaxPool with Indices: one 1-D pass per spatial axis, innermost first (``pool/axis.cu``).

A k × k × k window costs 3k comparisons instead of k³, which pays off for large windows. Each pass but the first pools
the maxima of the pass before; the first may be another family's kernel. Intermediate maxima and Indices take device
memory.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import gcd, prod
from typing import Any

from gpuconv.cuda.build import params, structs
from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.plan import Candidate, Family, Launch, Limits, Offer, Plan, Refusal, Space, model
from gpuconv.cuda.plan import offers as all_offers
from gpuconv.cuda.pool import channels, general, patches, tiles
from gpuconv.cuda.pool.problem import MISSING, Geometry, PoolAxis, PoolProblem, blocks_of, fresh, has_empty_windows
from gpuconv.rules import dtypes

NAME = "axis by axis"
_THREADS = 256
_RUN = structs.constant("kRun", "pool/axis.cu")
_TOGETHER = 4  # taps whose loads a thread has in flight together
_MOST_SHIFT = 2  # most taps between adjacent windows of a run
_NAMES = ("width", "height", "depth")  # names of the axes, last axis first
_PARTS = ("", "rows", "slices")  # what is pooled before a pass along that axis
_MOST_BYTES = 2**30  # limit on the intermediate maxima and Indices
_INDEX = 8  # bytes per index
_SECTOR = 32  # bytes of one DRAM/L2 sector
_OTHERS: tuple[Family, ...] = (general, tiles, channels, patches)  # families that may run the first pass
_INSTRUCTIONS = (110, 20)  # per thread, and per window (counted)
_OF_ELEMENT = {1: 13, 2: 15, 4: 13, 8: 13}  # bytes per element → instructions per element loaded (counted)


# ---------------------------------------------------------------- accepted problems


@dataclass(frozen=True, slots=True)
class AxisRuns:
    """How threads share the windows of an axis: each takes a run of windows ``step`` apart, or a single one."""

    windows: int  # windows per run
    step: int
    shift: int  # taps between adjacent windows of a run; 0 if runs have one window
    count: int

    @classmethod
    def of(cls, axis: PoolAxis) -> AxisRuns:
        """Return the runs for an axis; single windows where adjacent ones share too few taps."""
        common = gcd(axis.stride, axis.dilation)
        step, shift = axis.dilation // common, axis.stride // common
        lead = (_RUN - 1) * shift
        if not 0 < shift <= _MOST_SHIFT or axis.taps <= lead or axis.windows < _RUN * step:
            return cls(1, 1, 0, axis.windows)
        return cls(_RUN, step, shift, step * -(-axis.windows // (_RUN * step)))


@dataclass(frozen=True, slots=True)
class AxisView:
    """A pass along ``axis``: the other axes, the runs, and the number of threads (``items``)."""

    axis: PoolAxis
    others: tuple[PoolAxis, ...]
    runs: AxisRuns
    items: int
    name: str


def _view(problem: PoolProblem, pooled: int) -> AxisView:
    """Return the pass along one axis."""
    axes, name = list(problem.axes), _NAMES[len(problem.axes) - 1 - pooled]
    axis = axes.pop(pooled)
    others = (*[MISSING] * (2 - len(axes)), *axes)
    runs = AxisRuns.of(axis)
    items = prod(problem.geometry.y_shape[:2]) * runs.count * prod(other.windows for other in others)
    return AxisView(axis, others, runs, items, name)


def _refusal(problem: PoolProblem) -> Refusal | None:
    """Return why this family does not accept the problem; None if it does."""
    if not problem.named:
        return Refusal("averages" if problem.averages else "values alone", plain=True)
    axes = problem.axes
    if len(axes) > 3:
        return Refusal(f"{len(axes)} spatial axes")
    if has_empty_windows(axes):
        return Refusal("some windows are empty")
    if any(axis.dilation > axis.extent for axis in axes):
        return Refusal("dilated windows")
    if all(axis.taps == 1 for axis in axes):
        return Refusal("windows of one element", plain=True)
    if general.needs_wide(problem):
        return Refusal("64-bit indices")
    return None


def _of_parts(problem: PoolProblem, pooled: int) -> PoolProblem:
    """Return the problem that pools all axes but ``pooled``; its outputs are contiguous, in y's order of axes."""
    extents = list(problem.geometry.y_shape)
    extents[2 + pooled] = problem.geometry.x_shape[2 + pooled]
    shape, rank = tuple(extents), len(extents)
    order = (0, *range(2, rank), 1) if problem.channels_last else tuple(range(rank))
    strides = tuple(prod(shape[axis] for axis in order[order.index(outer) + 1 :]) for outer in range(rank))
    geometry = replace(_singly(problem.geometry, (pooled,)), y_shape=shape)
    return replace(problem, geometry=geometry, y_strides=strides, indices_strides=strides)


def _along(problem: PoolProblem, parts: PoolProblem, pooled: int) -> PoolProblem:
    """Return the 1-D problem along ``pooled`` whose input is the outputs of ``parts``."""
    others = [axis for axis in range(len(problem.axes)) if axis != pooled]
    geometry = replace(_singly(problem.geometry, others), x_shape=parts.geometry.y_shape)
    return replace(problem, geometry=geometry, x_strides=parts.y_strides)


def _singly(geometry: Geometry, axes: Container[int]) -> Geometry:
    """Return the geometry with windows of one element, and as many windows as elements, along these spatial axes."""
    single = {"kernel_shape": 1, "strides": 1, "dilations": 1, "pads_begin": 0, "pads_end": 0}
    changes: dict[str, Any] = {
        name: tuple(number if axis in axes else own for axis, own in enumerate(getattr(geometry, name)))
        for name, number in single.items()
    }
    return replace(geometry, **changes)


# ---------------------------------------------------------------- offers


def offers(problem: PoolProblem, limits: Limits) -> Iterator[Offer]:
    """Yield the chain of passes, with the fastest candidate for all but the last, or a refusal."""
    refusal = _refusal(problem)
    if refusal is not None:
        yield refusal
        return
    pooled, *inner = [number for number, axis in enumerate(problem.axes) if axis.taps > 1]
    yield _after_parts(problem, pooled, limits) if inner else _alone(problem, pooled, limits)


def _alone(problem: PoolProblem, pooled: int, limits: Limits) -> Offer:
    """Return the single pass of a problem with one axis of several taps."""
    view = _view(problem, pooled)
    if not problem.channels_last and pooled == len(problem.axes) - 1:
        return Refusal("windows along rows of neighbours")
    kernel = variant(problem.dtype, numbered=True)
    time = _seconds(problem, view, 0, limits)
    return Candidate(kernel.name, time, lambda: _plan(problem, kernel, view))


def _after_parts(problem: PoolProblem, pooled: int, limits: Limits) -> Offer:
    """Return a pass along the outermost axis, after the fastest candidate for the inner axes."""
    parts = _of_parts(problem, pooled)
    if general.needs_wide(parts):
        return Refusal("64-bit indices")
    elements, name = prod(parts.geometry.y_shape), _PARTS[len(problem.axes) - 1 - pooled]
    if elements * (problem.itemsize + _INDEX) > _MOST_BYTES:
        return Refusal(f"too much memory for what is left of {name}")
    inner_offers = [*(offer for family in _OTHERS for offer in family.offers(parts, limits)), *offers(parts, limits)]
    first = all_offers.quickest([offer for offer in inner_offers if isinstance(offer, Candidate)])
    along = _along(problem, parts, pooled)
    view = _view(along, pooled)
    kernel = variant(problem.dtype, numbered=False)
    outputs = prod(problem.geometry.y_shape)
    time = _seconds(along, view, min(elements * _INDEX, outputs * _SECTOR), limits)
    make = partial(_plan, along, kernel, view, first, name)
    return Candidate(kernel.name, first.seconds + limits.rates.launch + time, make)


def _seconds(problem: PoolProblem, view: AxisView, indices: int, limits: Limits) -> float:
    """Model the seconds of a pass that reads ``indices`` bytes of Indices; shared elements hit the L2 cache."""
    runs, (thread, window) = view.runs, _INSTRUCTIONS
    elements = view.axis.taps + (runs.windows - 1) * runs.shift
    executed = thread + window * runs.windows + _OF_ELEMENT[problem.itemsize] * elements
    trips = max(-(-elements // _TOGETHER) * fresh(view.axis), 1) + (indices > 0)
    blocks = blocks_of(variant(problem.dtype, indices == 0), view.items, view.items * executed, trips, limits)
    return max(
        model.streaming(blocks, problem.bytes + indices, limits),
        model.cached(blocks.number, _THREADS * elements * problem.itemsize, limits),
    )


# ---------------------------------------------------------------- launch


def _plan(
    problem: PoolProblem, kernel: Variant, view: AxisView, first: Candidate | None = None, parts: str = ""
) -> Plan:
    """Return the plan of a pass, preceded by the plan of ``first`` whose outputs are its input, if given."""
    roles = {name: name for name in problem.arrays}
    last = Launch.of_threads(problem.operator, kernel, view.items, _fields(problem, view), roles)
    how = f"{view.runs.windows} windows that share taps a thread" if view.runs.shift else "one window a thread"
    reason = (
        f"{kernel.name}: {'channels last: ' * problem.channels_last}along the {view.name}, "
        f"{f'over the maxima of {parts}, which come first, ' if parts else ''}"
        f"{view.axis.taps} taps, {how}; {last.grid[0]} blocks of {_THREADS} threads"
    )
    if first is None:
        return Plan(problem.operator, (last,), (reason,))
    buffers = {"y": f"maxima of {parts}", "indices": f"Indices of {parts}"}
    plan = first.make().renamed(buffers)
    elements = prod(problem.geometry.x_shape)
    last = replace(last, roles={**roles, "x": buffers["y"], "places": buffers["indices"]})
    sizes = zip(buffers.values(), (elements * problem.itemsize, elements * _INDEX), strict=True)
    return replace(
        plan,
        launches=(*plan.launches, last),
        reasons=(*plan.reasons, reason),
        spaces=(*plan.spaces, *(Space(role, role, nbytes) for role, nbytes in sizes)),
    )


def _fields(problem: PoolProblem, view: AxisView) -> dict[str, Any]:
    """Return the fields of the kernel's parameter struct."""
    axis, others, (image, channel, *_) = view.axis, view.others, problem.all_axes
    y_extent = [view.runs.count, *(other.windows for other in others)]
    fields: dict[str, Any] = {
        "plane": problem.plane_step,
        "items": view.items,
        "channels_last": problem.channels_last,
        **params.members(axis, "extent", "windows", "stride", "pad", "taps", "dilation"),
        "shift": view.runs.shift,
        "step": view.runs.step,
        "x_first": -sum(other.pad * other.x for other in others),
        "x_along": axis.step * axis.x,
        "place_first": -sum(other.pad * other.place for other in others),
        "place_along": axis.step * axis.place,
        "place_stride": [axis.place, *(other.stride * other.place for other in others)],
        "channels": channel.extent,
        "runs": y_extent,
    }
    x = [image.x, channel.x, axis.x, *(other.stride * other.x for other in others)]
    fields |= params.array_fields("x", x)
    for array in ("y", "indices"):
        fields |= params.array_fields(array, [getattr(each, array) for each in (image, channel, axis, *others)])
    return fields


_KERNEL = Kernel("pool/axis.cu", "max_pool_axis", "AxisPoolParams", _THREADS, name="max_pool")


def variant(dtype: str, numbered: bool) -> Variant:
    """Return the kernel variant; ``numbered`` if it numbers x's elements itself, else it reads a pass's Indices."""
    forms = ("axis", "numbered" * numbered, "indices")
    return _KERNEL.over(dtype, 3, *forms, types=(dtypes.entry(dtype).cuda,), sizes=(numbered,), blocks_per_sm=4)


def variants() -> list[Variant]:
    """Yield every kernel variant of this family."""
    return [variant(*row) for row in product(dtypes.MAX_POOL_DTYPES, (False, True))]
