"""Batch-invariant plans of Conv and ConvTranspose: an image's result has the same bits in every batch.

The bits are determined by the order in which the products of an output are summed, which every candidate names. One
order is chosen per layer, from what is the same for every batch: image and weight extents, attributes, dtype, whether
channels are innermost, and the architecture's shipped constants. Used for ``invariant="batch"``.

Each call then takes the fastest candidate with that order, which may depend on the batch, the strides and the device.
If none accepts the arrays' strides, arrays are copied first. If the batch is too large, it is halved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import exp, log
from statistics import fmean
from typing import cast

from gpuconv._errors import ArgumentError
from gpuconv.cuda.conv import families
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.passes import copy as copy_pass
from gpuconv.cuda.plan import Candidate, Limits, Plan, joined, offers
from gpuconv.cuda.plan.limits import nearest
from gpuconv.rules.geometry import Ints

BATCHES = (1, 2, 4, 8, 16, 32, 64)  # batch sizes over which an order's modelled time is averaged, with equal weights
_BEARABLE = 1.5  # slowdown against the fastest order at one batch size from which an order is penalised
_MOST_WORKSPACE = 2**28  # bytes of split-K workspace per call; larger batches are halved
_MOST_LAUNCHES = 2**16  # per call: no device has memory for arrays that would need more
_LIKE = {"sm_89": "sm_86"}  # architectures with equal arithmetic and equal shared memory share one choice


@dataclass(frozen=True)
class Layer:
    """What the order of summation is chosen by: the problem of a single image, in contiguous arrays."""

    image: Problem


def layer_of(problem: Problem) -> Layer:
    """Return the layer that a call belongs to."""
    return Layer(of_images(contiguous(problem), 1))


def of_images(problem: Problem, count: int) -> Problem:
    """Return the problem with ``count`` images and unchanged strides."""
    x, y = ((count, *shape[1:]) for shape in (problem.x_shape, problem.y_shape))
    return replace(problem, batch=count, x_shape=x, y_shape=y)


def contiguous(problem: Problem) -> Problem:
    """Return the problem with contiguous arrays.

    x and y become channels-first or channels-last, whichever they are closer to; w keeps the order of its axes; b gets
    stride 1.
    """
    x, y = (_dense(*array) for array in ((problem.x_shape, problem.x_strides), (problem.y_shape, problem.y_strides)))
    w = _in_order(_weights(problem), problem.w_strides)
    b = None if problem.b_stride is None else 1
    return replace(problem, x_strides=x, y_strides=y, w_strides=w, b_stride=b)


def _dense(shape: Ints, strides: Ints) -> Ints:
    """Return contiguous strides of an image: channels last if they have the smallest stride, else row-major."""
    pixel_strides = [abs(stride) for extent, stride in zip(shape[2:], strides[2:], strict=True) if extent > 1]
    last = shape[1] > 1 and bool(pixel_strides) and abs(strides[1]) < min(pixel_strides)
    order = (0, *range(2, len(shape)), 1) if last else range(len(shape))
    return _packed(shape, order)


def _in_order(shape: Ints, strides: Ints) -> Ints:
    """Return contiguous strides that keep the axis order of ``strides``."""
    return _packed(shape, sorted(range(len(shape)), key=lambda axis: -abs(strides[axis])))


def _packed(shape: Ints, order: Sequence[int]) -> Ints:
    """Return contiguous strides for axes in this order, outermost first."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis], step = step, step * shape[axis]
    return tuple(strides)


# ---------------------------------------------------------------- the order of a layer


@lru_cache(maxsize=1024)
def orders(layer: Layer, architecture: str) -> tuple[tuple[str, float], ...]:
    """Return (order, cost) of each possible order of summation, cheapest first.

    The cost is the geometric mean over ``BATCHES`` of the order's modelled time relative to the fastest order, with a
    penalty for a slowdown above ``_BEARABLE``. An order must have a candidate for one image. Where a larger batch has
    none, it counts as two calls of the next smaller one.
    """
    limits = nearest(_LIKE.get(architecture, architecture)).limits
    times: dict[str, list[float]] = {}
    for count in BATCHES:
        quickest: dict[str, float] = {}
        for candidate in candidates_of(of_images(layer.image, count), limits):
            quickest[candidate.order] = min(candidate.seconds, quickest.get(candidate.order, candidate.seconds))
        if count == 1:
            times = {order: [] for order in quickest}
        for order, seconds in times.items():
            seconds.append(quickest[order] if order in quickest else 2 * seconds[-1])
    least = [min(of_batch) for of_batch in zip(*times.values(), strict=True)]
    prices = ((order, _price([a / b for a, b in zip(seconds, least, strict=True)])) for order, seconds in times.items())
    return tuple(sorted(prices, key=lambda entry: entry[1]))


def candidates_of(problem: Problem, limits: Limits) -> list[Candidate]:
    """Return the batch-invariant candidates.

    None if the batch needs 64-bit indices and its halves do not: two calls with 32-bit indices are faster.
    """
    halves = problem.batch > 1 and problem.wide() and not of_images(problem, 1).wide()
    return [] if halves else families.in_order(problem, limits)


def _price(ratios: Sequence[float]) -> float:
    """Return the cost of an order from its slowdowns per batch size."""
    return exp(fmean(map(log, ratios))) * max(1.0, max(ratios) / _BEARABLE)


# ---------------------------------------------------------------- plans


Finish = Callable[[Plan, Problem], Plan]  # adds the epilogue (residual, activation) to a plan


def plan(problem: Problem, limits: Limits, finish: Finish, steps: Mapping[str, int]) -> Plan:
    """Plan a batch-invariant call.

    ``finish`` adds the epilogue to a plan. ``steps`` maps each further array that it reads, such as a residual, to its
    stride between images in elements. Raises ArgumentError if the layer's kernels do not fit the device's shared
    memory.
    """
    if 0 in problem.y_shape:
        return Plan.of_nothing(problem.operator)
    layer = layer_of(problem)
    known = [order for order, _ in orders(layer, limits.architecture)]
    measured = limits.measured(layer) if limits.measured is not None else None
    if measured in known:
        return _Planner(layer, measured, f", as measured on {limits.name}", limits, finish, steps).plan(problem)
    return _Planner(layer, known[0], "", limits, finish, steps).plan(problem)


@dataclass(frozen=True)
class _Planner:
    """Plans the calls of one layer in one order of summation."""

    layer: Layer
    order: str
    why: str  # suffix for the reasons: why this order was chosen
    limits: Limits
    finish: Finish
    steps: Mapping[str, int]
    parts: dict[int, Plan] = field(default_factory=dict, compare=False)  # plans of sub-batches, by number of images

    def plan(self, problem: Problem) -> Plan:
        """Return a plan for the arrays as given; failing that, for contiguous copies; failing that, for two halves."""
        dense = replace(contiguous(problem), b_stride=problem.b_stride)
        gaps = {role for role, strides in _strides(dense).items() if strides != _strides(problem)[role]}
        found = self._quickest(problem) or (self._on_copies(problem, gaps) if gaps else None)
        if found is None and problem.batch == 1:
            raise ArgumentError(
                f'{problem.operator}: with invariant="batch" the order of sums is {self.order}, for which this device '
                f"has no room: {self.limits.shared_bytes_per_block} bytes of shared memory for a block"
            )
        return found or self._in_halves(problem)

    def _quickest(self, problem: Problem) -> Plan | None:
        """Return the plan of the fastest kernel with the layer's order for these strides.

        None if there is none, or if its split-K workspace exceeds the limit.
        """
        candidates, pick = candidates_of(problem, self.limits), offers.picked()
        same_order = candidates if pick else [candidate for candidate in candidates if candidate.order == self.order]
        if not same_order:
            return None
        best = (pick or offers.quickest)(same_order)
        fastest_plan = best.make()
        if problem.batch > 1 and fastest_plan.bytes_of("workspace") > _MOST_WORKSPACE:
            return None
        reasons = (*_reasons(best, candidates, self.why), *fastest_plan.reasons)
        return replace(self, order=best.order)._finished(replace(fastest_plan, reasons=reasons), problem)

    def _finished(self, plan: Plan, problem: Problem) -> Plan:
        """Return the plan with its epilogue, and with the fallback plan for pointers that are not aligned."""
        otherwise = partial(self._anywhere, problem, {role for role, _ in plan.alignment}) if plan.alignment else None
        return replace(self.finish(plan, problem), problem=self.layer, kernel=self.order, otherwise=otherwise)

    def _anywhere(self, problem: Problem, roles: Set[str]) -> Plan:
        """Return the fastest plan without alignment requirements, or one on copies of the arrays in ``roles``."""
        same_order = [
            candidate for candidate in families.in_order(problem, self.limits) if candidate.order == self.order
        ]
        for candidate in sorted(same_order, key=lambda candidate: candidate.seconds):
            candidate_plan = candidate.make()
            if not candidate_plan.alignment:
                return self._finished(candidate_plan, problem)
        on_copies = self._on_copies(problem, roles)
        assert on_copies is not None, f"{self.order} is there for arrays without gaps"
        return on_copies

    def _on_copies(self, problem: Problem, roles: Set[str]) -> Plan | None:
        """Return a plan that first copies the arrays in ``roles`` to contiguous ones; None as in :meth:`_quickest`."""
        dense = contiguous(problem)
        names = {"x": "x_strides", "w": "w_strides", "y": "y_strides"}
        seen = replace(problem, **{names[role]: getattr(dense, names[role]) for role in roles})
        copied_plan = self._quickest(seen)
        if copied_plan is None:
            return None
        remaining = tuple(entry for entry in copied_plan.alignment if entry[0] not in roles)
        otherwise = partial(self._on_copies, problem, {*roles, *(role for role, _ in remaining)}) if remaining else None
        shapes = {"x": problem.x_shape, "w": _weights(problem), "y": problem.y_shape}
        moved = {role: (shapes[role], _strides(problem)[role], _strides(seen)[role]) for role in sorted(roles)}
        return replace(
            copy_pass.around(copied_plan, problem.dtype, moved, problem.itemsize),
            alignment=remaining,
            otherwise=cast("Callable[[], Plan] | None", otherwise),
        )

    def _plan_of(self, problem: Problem) -> Plan:
        """Plan a sub-batch, once per number of images: repeated halving produces at most two sizes per level."""
        if problem.batch not in self.parts:
            self.parts[problem.batch] = self.plan(problem)
        return self.parts[problem.batch]

    def _in_halves(self, problem: Problem) -> Plan:
        """Return a plan of two sub-plans: the first half of the images, then the rest."""
        counts = -(-problem.batch // 2), problem.batch // 2
        first, second = (self._plan_of(of_images(problem, count)) for count in counts)
        if len(first.launches) + len(second.launches) > _MOST_LAUNCHES:
            raise ArgumentError(
                f'{problem.operator}: with invariant="batch" a batch of {problem.batch} images takes more than '
                f"{_MOST_LAUNCHES} launches; pass fewer images at a time"
            )
        steps = {"x": problem.x_strides[0], "y": problem.y_strides[0], **self.steps}
        return joined.joined(first, second, {role: counts[0] * step * problem.itemsize for role, step in steps.items()})


def _weights(problem: Problem) -> Ints:
    """Return the extents that belong to ``w_strides``: group, filter, channel, taps."""
    return problem.group, problem.filters, problem.channels, *problem.taps


def _strides(problem: Problem) -> Mapping[str, Ints]:
    """Return the strides of x, w and y by role."""
    return {"x": problem.x_strides, "w": problem.w_strides, "y": problem.y_strides}


def _reasons(best: Candidate, candidates: Sequence[Candidate], why: str) -> Iterator[str]:
    """Yield the reasons for ``explain``: the order taken, its kernels, and what the fastest other order would cost."""
    yield f"one order of sums for every batch{why}: {best.order}"
    for candidate in candidates:
        if candidate.order == best.order:
            yield offers.line(candidate, best, "chosen")
    free, others = offers.quickest(candidates), {candidate.order for candidate in candidates} - {best.order}
    if free.order != best.order:
        yield f"left out, as the quickest of {len(others)} other orders: {offers.line(free, best, '')}: {free.order}"
    elif others:
        yield f"left out: {len(others)} other orders, all predicted to be slower for this batch"
