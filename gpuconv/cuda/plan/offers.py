"""What families of kernels offer for a problem, and which offer is taken: the quickest as measured, or as predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import Limits


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to solve a problem."""

    name: str  # of the kernel that makes the result, and what the plan does with it besides: ``_split``, ``_direct``
    seconds: float  # what it is predicted to take
    make: Callable[[], Plan]  # returns its plan, with the reasons that concern it alone
    # How the products of an output are added, in words: candidates for one problem that say the same make the same bits
    order: str = ""


class Refusal(NamedTuple):
    """Why a family does not solve a problem; ``plain`` where that goes without saying and nobody needs to read it."""

    why: str
    plain: bool = False


Offer = Candidate | Refusal


class Offering(Protocol):
    """What has offers for a kind of problem."""

    NAME: str  # by which explanations call it

    def offers(self, problem: Any, limits: Limits) -> Iterator[Offer]:
        """Yield a candidate for every kernel that takes the problem, or one refusal."""


class Family(Offering, Protocol):
    """Kernels for one kind of problem: a module."""

    def variants(self) -> Iterable[Variant]:
        """Yield every kernel that a candidate can launch, those that several families share being one family's."""


def in_order(family: Offering, problem: Any, limits: Limits) -> Iterable[Offer]:
    """Return a family's offers of which no order of sums depends on the batch: ``offers_in_order``, if it has them."""
    found: Iterable[Offer] = getattr(family, "offers_in_order", family.offers)(problem, limits)
    return found


def _any(family: Offering, problem: Any, limits: Limits) -> Iterable[Offer]:
    return family.offers(problem, limits)


@dataclass(eq=False, slots=True)
class Rewritten:
    """Families that solve a problem as another one of its kind; what they refuse of that goes without saying."""

    NAME: str
    families: tuple[Family, ...]
    of: Callable[[Any], Any]  # returns the other problem, None where there is none
    candidate: Callable[[Any, Candidate], Candidate]  # returns one of the other's as one of the problem's

    def offers(self, problem: Any, limits: Limits) -> Iterator[Candidate]:
        """Yield the candidates of the other problem."""
        return self._candidates(_any, problem, limits)

    def offers_in_order(self, problem: Any, limits: Limits) -> Iterator[Candidate]:
        """Yield those that families offer :func:`in_order`."""
        return self._candidates(in_order, problem, limits)

    def _candidates(
        self, ask: Callable[[Offering, Any, Limits], Iterable[Offer]], problem: Any, limits: Limits
    ) -> Iterator[Candidate]:
        other = self.of(problem)
        if other is not None:
            for family in self.families:
                for offer in ask(family, other, limits):
                    if isinstance(offer, Candidate):
                        yield self.candidate(problem, offer)


def of(families: Iterable[Offering], problem: Any, limits: Limits) -> tuple[list[Candidate], list[str]]:
    """Return all candidates in the families' order, and a line for each reason that families have for having none."""
    candidates, refusals = [], dict[str, list[str]]()
    for family in families:
        for offer in family.offers(problem, limits):
            if isinstance(offer, Candidate):
                candidates.append(offer)
            elif not offer.plain:
                refusals.setdefault(offer.why, []).append(family.NAME)
    return candidates, [f"not by {', '.join(names)}: {why}" for why, names in refusals.items()]


# ---------------------------------------------------------------- choosing


def quickest(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the least predicted time, of equal ones the first."""
    return min(candidates, key=lambda candidate: candidate.seconds)


Pick = Callable[[Sequence[Candidate]], Candidate]
_pick: ContextVar[Pick | None] = ContextVar("_pick", default=None)


@contextmanager
def picking(pick: Pick) -> Iterator[None]:
    """Let ``pick`` choose instead of measurements and predictions for what this thread plans meanwhile."""
    token = _pick.set(pick)
    try:
        yield
    finally:
        _pick.reset(token)


def picked() -> Pick | None:
    """Return what chooses for this thread, if anything was set."""
    return _pick.get()


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


def line(candidate: Candidate, best: Candidate, why: str) -> str:
    """Return what is said of a candidate: its predicted time, and why it is the best, or how that compares."""
    against = f", {why}" if candidate is best else f" ({_times(candidate.seconds / best.seconds)})"
    return f"{candidate.name}: predicted {candidate.seconds * 1e6:.1f} us{against}"


def choose(problem: Any, families: Iterable[Offering], limits: Limits) -> Plan:
    """Return the plan of the candidate that was measured to be the quickest, or else of the one predicted to be.

    Of equally quick ones the first is taken; at least one family must have one. All are among the plan's reasons, and
    why other families have none. ``problem`` is a dataclass of all that they depend on.
    """
    candidates, refusals = of(families, problem, limits)
    pick = picked()
    measured = limits.measured(problem) if limits.measured is not None and pick is None else None
    best = next((candidate for candidate in candidates if candidate.name == measured), None)
    why = "chosen" if best is None else f"chosen, as measured on {limits.name}"
    best = best or (pick or quickest)(candidates)
    lines = (line(candidate, best, why) for candidate in candidates)
    plan = best.make()
    return replace(plan, reasons=(*lines, *plan.reasons, *refusals), problem=problem, kernel=best.name)
