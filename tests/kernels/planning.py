"""Plan calls of gpuconv without a device or a compiler, to see which kernels they would launch with which arguments.

Inside `recording` the public functions plan as on a device of the given limits, and return zeros.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from gpuconv.cuda.build import params
from gpuconv.cuda.call import device, prepared
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.launch import Launch, Plan
from gpuconv.cuda.plan.limits import Limits
from gpuconv.cuda.plan.offers import Candidate, Offering


class Planned(NamedTuple):
    """One launch of a candidate's plan.

    Attributes
    ----------
    candidate : str
        Name of the candidate, with suffixes beyond its kernel's name: ``conv_float32_3d_64x64x16_split``.
    launch : Launch
        Its ``variant``, ``grid``, ``shared_bytes``, ``roles`` and, as ``parameters``, the bytes of its struct; blocks
        have ``variant.threads`` threads.
    workspace : tuple of (str, int)
        Role and bytes of each temporary array of the call.
    """

    candidate: str
    launch: Launch
    workspace: tuple[tuple[str, int], ...]


class Choice(NamedTuple):
    """The offers of families for one problem: each candidate's family and plan, in order."""

    families: tuple[Offering, ...]
    plans: tuple[Plan, ...]


@dataclass
class Recorded:
    """Plans of recorded calls.

    Attributes
    ----------
    calls : list of Plan
        Complete plan of each call, by the picked candidate.
    choices : list of Choice
        In the order in which calls asked for them; only if `recording` has ``all_candidates``.
    """

    calls: list[Plan] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    _known: dict[Any, Choice] = field(default_factory=dict)  # choices by problem, to plan each problem once

    def choose(self, problem: Any, families: Sequence[Offering], limits: Limits) -> Plan:
        """Replaces `offers.choose`: plan all candidates and pick the first, without reasons."""
        key = problem, families, limits, params.INDEX_LIMIT
        choice = self._known.get(key) or self._known.setdefault(key, _offered(problem, families, limits))
        self.choices.append(choice)
        return choice.plans[0]

    def clear(self) -> None:
        """Forget everything recorded; later calls are planned anew."""
        for kept in (self.calls, self.choices, self._known, device.prepared):
            kept.clear()

    def launches(self) -> Iterator[Planned]:
        """Yield the launches of all candidates, then the remaining launches of calls, without duplicates."""
        plans = chain(chain.from_iterable(choice.plans for choice in self.choices), self.calls)
        seen: set[tuple[str, int]] = set()
        for plan in plans:
            workspace = tuple((space.role, space.bytes) for space in plan.spaces)
            for launch in (*plan.launches, *plan.sharing):
                key = plan.kernel, id(launch)
                if key not in seen:
                    seen.add(key)
                    yield Planned(plan.kernel, launch, workspace)


def _offered(problem: Any, families: Sequence[Offering], limits: Limits) -> Choice:
    offered = [
        (family, replace(offer.make(), kernel=offer.name))
        for family in families
        for offer in family.offers(problem, limits)
        if isinstance(offer, Candidate)
    ]
    return Choice(*zip(*offered, strict=True))


@contextmanager
def recording(limits: Limits, all_candidates: bool = False) -> Iterator[Recorded]:
    """Plan calls on NumPy arrays for a device of these limits, and launch nothing.

    Parameters
    ----------
    limits : Limits
    all_candidates : bool
        Plan every candidate of each choice, and let calls use the first. Otherwise plan only the picked one.
    """
    recorded = Recorded()

    class Noted:
        def __init__(self, number: int, plan: Plan, inputs: Any, roles: Any, results: Any, outs: Any) -> None:
            recorded.calls.append(plan)
            self._results = results

        def run(self, inputs: Any, outs: Any) -> list[Any]:
            return [np.zeros(result.shape, result.dtype) for result in self._results]

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(prepared, "Prepared", Noted))
        stack.enter_context(mock.patch.multiple(device, **_on_host(limits)))
        if all_candidates:
            stack.enter_context(mock.patch.object(offers, "choose", recorded.choose))
        yield recorded


def _on_host(limits: Limits) -> dict[str, Any]:
    """Return replacements for functions of `gpuconv.cuda.call.device`, for NumPy arrays."""
    return {
        "prepared": {},
        "array_type": lambda: np.ndarray,
        "current_device": lambda: 0,
        "device_of": lambda _: 0,
        "layout": attrgetter("shape", "strides", "dtype"),
        "limits": lambda _: limits,
        "is_capturing": lambda: False,
        "to_host": lambda array: array,
    }


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: traversing the objects of many plans would take a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
