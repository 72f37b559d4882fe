"""Plans of Conv and ConvTranspose in which the bits of an image do not depend on the images beside it.

What decides the bits is the order in which the products of an output are added, which each candidate names. It is
chosen once for a layer, from what is the same for every batch: the extents of an image and of the weights, the
attributes, the type, whether channels lie last, and the shipped constants of the architecture. Of the candidates that
add in that order, each call takes the quickest; which one that is may depend on the batch, on strides and on the
device. Where none takes the arrays as they lie, they are copied; where a batch is too large, its images come in parts.
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

BATCHES = (1, 2, 4, 8, 16, 32, 64)  # whose times are weighed alike
_BEARABLE = 1.5  # times the quickest order's time that a batch may take before this outweighs others' gain
_MOST_WORKSPACE = 2**28  # bytes of the sums of segments; larger batches come in parts
_MOST_LAUNCHES = 2**16  # of a call: no device holds arrays that take more
_LIKE = {"sm_89": "sm_86"}  # architectures that add alike and have the same room: one choice for both


@dataclass(frozen=True)
class Layer:
    """What the order of the sums depends on: the problem of one image, in arrays that leave no gaps."""

    image: Problem


def layer_of(problem: Problem) -> Layer:
    """Return the layer of a call."""
    return Layer(of_images(contiguous(problem), 1))


def of_images(problem: Problem, count: int) -> Problem:
    """Return the problem of so many images, in arrays of the same strides."""
    x, y = ((count, *shape[1:]) for shape in (problem.x_shape, problem.y_shape))
    return replace(problem, batch=count, x_shape=x, y_shape=y)


def contiguous(problem: Problem) -> Problem:
    """Return the problem in arrays without gaps: x and y with their channels second or last, w with its axes' order."""
    x, y = (_dense(*array) for array in ((problem.x_shape, problem.x_strides), (problem.y_shape, problem.y_strides)))
    w = _in_order(_weights(problem), problem.w_strides)
    b = None if problem.b_stride is None else 1
    return replace(problem, x_strides=x, y_strides=y, w_strides=w, b_stride=b)


def _dense(shape: Ints, strides: Ints) -> Ints:
    """Return the strides of an image's axes in row-major order, channels last where they lie closer than pixels do."""
    own = [abs(stride) for extent, stride in zip(shape[2:], strides[2:], strict=True) if extent > 1]
    last = shape[1] > 1 and bool(own) and abs(strides[1]) < min(own)
    order = (0, *range(2, len(shape)), 1) if last else range(len(shape))
    return _packed(shape, order)


def _in_order(shape: Ints, strides: Ints) -> Ints:
    """Return strides without gaps that put axes into the order of these."""
    return _packed(shape, sorted(range(len(shape)), key=lambda axis: -abs(strides[axis])))


def _packed(shape: Ints, order: Sequence[int]) -> Ints:
    """Return the strides of an array without gaps whose axes have this order, outermost first."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis], step = step, step * shape[axis]
    return tuple(strides)


# ---------------------------------------------------------------- the order of a layer


@lru_cache(maxsize=1024)
def orders(layer: Layer, architecture: str) -> tuple[tuple[str, float], ...]:
    """Return every order of sums, by its time over that of the quickest order of each batch, the least first.

    That is the geometric mean over all batches, and more where it is far slower for one of them. An order must be
    there for one image. Where it is not for more, they count as made in halves.
    """
    limits = nearest(_LIKE.get(architecture, architecture)).limits
    times: dict[str, list[float]] = {}
    for count in BATCHES:
        quickest: dict[str, float] = {}
        for candidate in candidates_of(of_images(layer.image, count), limits):
            quickest[candidate.order] = min(candidate.seconds, quickest.get(candidate.order, candidate.seconds))
        if count == 1:
            times = {order: [] for order in quickest}
        for order, own in times.items():
            own.append(quickest[order] if order in quickest else 2 * own[-1])
    least = [min(of_batch) for of_batch in zip(*times.values(), strict=True)]
    prices = ((order, _price([a / b for a, b in zip(own, least, strict=True)])) for order, own in times.items())
    return tuple(sorted(prices, key=lambda entry: entry[1]))


def candidates_of(problem: Problem, limits: Limits) -> list[Candidate]:
    """Return the kernels of all orders; none where halves of the batch have quicker ones, with shorter indices."""
    halves = problem.batch > 1 and problem.wide() and not of_images(problem, 1).wide()
    return [] if halves else families.in_order(problem, limits)


def _price(ratios: Sequence[float]) -> float:
    return exp(fmean(map(log, ratios))) * max(1.0, max(ratios) / _BEARABLE)


# ---------------------------------------------------------------- plans


Finish = Callable[[Plan, Problem], Plan]  # adds to the plan of a problem what comes after the sums


def plan(problem: Problem, limits: Limits, finish: Finish, steps: Mapping[str, int]) -> Plan:
    """Plan a call in the order of its layer.

    ``steps`` are the elements from one image to the next of further arrays that ``finish`` lets the plan read.
    ArgumentError where the device has no room for the layer's kernels.
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
    """Plans of one layer's calls."""

    layer: Layer
    order: str
    why: str  # it was chosen
    limits: Limits
    finish: Finish
    steps: Mapping[str, int]
    parts: dict[int, Plan] = field(default_factory=dict, compare=False)  # by number of images

    def plan(self, problem: Problem) -> Plan:
        """Return the plan for the arrays as they lie, or else for copies, or in two parts of the batch."""
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
        """Return the plan of the quickest kernel for arrays as they lie; None without one, or with too many sums."""
        candidates, pick = candidates_of(problem, self.limits), offers.picked()
        own = candidates if pick else [candidate for candidate in candidates if candidate.order == self.order]
        if not own:
            return None
        best = (pick or offers.quickest)(own)
        made = best.make()
        if problem.batch > 1 and made.bytes_of("workspace") > _MOST_WORKSPACE:
            return None
        reasons = (*_reasons(best, candidates, self.why), *made.reasons)
        return replace(self, order=best.order)._finished(replace(made, reasons=reasons), problem)

    def _finished(self, made: Plan, problem: Problem) -> Plan:
        """Return a plan with what comes after the sums, and with what takes its place at other addresses."""
        otherwise = partial(self._anywhere, problem, {role for role, _ in made.alignment}) if made.alignment else None
        return replace(self.finish(made, problem), problem=self.layer, kernel=self.order, otherwise=otherwise)

    def _anywhere(self, problem: Problem, roles: Set[str]) -> Plan:
        """Return the plan of the quickest kernel that asks for no alignment, or else one on copies of these arrays."""
        own = [candidate for candidate in families.in_order(problem, self.limits) if candidate.order == self.order]
        for candidate in sorted(own, key=lambda candidate: candidate.seconds):
            made = candidate.make()
            if not made.alignment:
                return self._finished(made, problem)
        found = self._on_copies(problem, roles)
        assert found is not None, f"{self.order} is there for arrays without gaps"
        return found

    def _on_copies(self, problem: Problem, roles: Set[str]) -> Plan | None:
        """Return the plan for copies without gaps of some arrays, or None as :meth:`_quickest` does."""
        dense = contiguous(problem)
        names = {"x": "x_strides", "w": "w_strides", "y": "y_strides"}
        seen = replace(problem, **{names[role]: getattr(dense, names[role]) for role in roles})
        found = self._quickest(seen)
        if found is None:
            return None
        left = tuple(entry for entry in found.alignment if entry[0] not in roles)
        otherwise = partial(self._on_copies, problem, {*roles, *(role for role, _ in left)}) if left else None
        shapes = {"x": problem.x_shape, "w": _weights(problem), "y": problem.y_shape}
        moved = {role: (shapes[role], _strides(problem)[role], _strides(seen)[role]) for role in sorted(roles)}
        return replace(
            copy_pass.around(found, problem.dtype, moved, problem.itemsize),
            alignment=left,
            otherwise=cast("Callable[[], Plan] | None", otherwise),
        )

    def _plan_of(self, problem: Problem) -> Plan:
        """Plan a part of a batch, once for each number of images: halves of halves have two of them at most."""
        if problem.batch not in self.parts:
            self.parts[problem.batch] = self.plan(problem)
        return self.parts[problem.batch]

    def _in_halves(self, problem: Problem) -> Plan:
        """Return the plan for the first half of the images, and then for the others."""
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
    """Return the extents of w that ``w_strides`` belong to."""
    return problem.group, problem.filters, problem.channels, *problem.taps


def _strides(problem: Problem) -> Mapping[str, Ints]:
    return {"x": problem.x_strides, "w": problem.w_strides, "y": problem.y_strides}


def _reasons(best: Candidate, candidates: Sequence[Candidate], why: str) -> Iterator[str]:
    """Say which order was taken, by which kernel, and what that costs now."""
    yield f"one order of sums for every batch{why}: {best.order}"
    for candidate in candidates:
        if candidate.order == best.order:
            yield offers.line(candidate, best, "chosen")
    free, others = offers.quickest(candidates), {candidate.order for candidate in candidates} - {best.order}
    if free.order != best.order:
        yield f"left out, as the quickest of {len(others)} other orders: {offers.line(free, best, '')}: {free.order}"
    elif others:
        yield f"left out: {len(others)} other orders, all predicted to be slower for this batch"
