"""One problem, several kernels that solve it: the one with the least modelled time is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from gpuconv.cuda.plan import Plan


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to solve a problem.

    Attributes
    ----------
    name : str
        Of the kernel that makes the result.
    seconds : float
        What it takes, by the model.
    make : callable
        Returns its plan, with the reasons that concern it alone.
    """

    name: str
    seconds: float
    make: Callable[[], Plan]


Pick = Callable[[Sequence[Candidate]], Candidate]


def _quickest(candidates: Sequence[Candidate]) -> Candidate:
    return min(candidates, key=lambda candidate: candidate.seconds)


_pick: Pick = _quickest


@contextmanager
def picking(pick: Pick) -> Iterator[None]:
    """Let ``pick`` choose instead of the model, in all threads, for what is planned meanwhile."""
    global _pick
    before, _pick = _pick, pick
    try:
        yield
    finally:
        _pick = before


def every_candidate() -> Iterator[AbstractContextManager[None]]:
    """Yield contexts in which the first, the second ... candidate is picked, until each of a problem's had its turn."""
    number, most = 0, 1

    def pick(candidates: Sequence[Candidate]) -> Candidate:
        nonlocal most
        most = max(most, len(candidates))
        return candidates[number % len(candidates)]

    while number < most:
        yield picking(pick)
        number += 1


def choose(candidates: Iterable[Candidate]) -> Plan:
    """Return the plan of the quickest candidate, of equally quick ones the first's; all are among its reasons."""
    found = list(candidates)
    best = _pick(found)
    lines = (
        f"{one.name}: modelled {one.seconds * 1e6:.1f} us, "
        + ("chosen" if one is best else f"{one.seconds / best.seconds:.2f} of the chosen one's")
        for one in found
    )
    plan = best.make()
    return replace(plan, reasons=(*lines, *plan.reasons))
