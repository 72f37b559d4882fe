"""One problem, several kernels that solve it: the quickest is taken, as measured or else as modelled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from gpuconv.cuda.plan import offers, tuned
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.plan.offers import Candidate, Family

Pick = Callable[[Sequence[Candidate]], Candidate]


def quickest(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the least modelled time, of equal ones the first."""
    return min(candidates, key=lambda candidate: candidate.seconds)


_pick: ContextVar[Pick | None] = ContextVar("_pick", default=None)


@contextmanager
def picking(pick: Pick) -> Iterator[None]:
    """Let ``pick`` choose instead of measurements and the model for what this thread plans meanwhile."""
    token = _pick.set(pick)
    try:
        yield
    finally:
        _pick.reset(token)


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


def _times(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio >= 10 else f"{ratio:.2f}x"


def choose(problem: Any, families: Iterable[Family], limits: Limits) -> Plan:
    """Return the plan of the candidate that was measured to be the quickest, or else of the one modelled to be.

    Of equally quick ones the first is taken; all are among the plan's reasons, and why other families have none.

    Parameters
    ----------
    problem : dataclass
        All that the candidates depend on.
    families : iterable of Family
        Of which at least one has a candidate.
    limits : Limits
    """
    found, refusals = offers.of(families, problem, limits)
    pick = _pick.get()
    measured = tuned.find(limits.name, problem) if pick is None else None
    best = next((one for one in found if one.name == measured), None)
    why = "chosen" if best is None else f"chosen, as measured on {limits.name}"
    best = best or (pick or quickest)(found)
    lines = (
        f"{one.name}: modelled {one.seconds * 1e6:.1f} us"
        + (f", {why}" if one is best else f" ({_times(one.seconds / best.seconds)})")
        for one in found
    )
    plan = best.make()
    return replace(plan, reasons=(*lines, *plan.reasons, *refusals), problem=problem, kernel=best.name)
