"""Candidates and refusals of the kernel families, and the choice: fastest by measurement, else by the cost model."""

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
    """One way to compute a problem."""

    name: str  # the kernel's name, with suffixes for variants of the plan such as ``_split`` or ``_direct``
    seconds: float  # predicted seconds
    make: Callable[[], Plan]  # returns the plan, with the reasons that are specific to it
    # Name of the order of summation: candidates of one problem with equal names produce equal bits
    order: str = ""


class Refusal(NamedTuple):
    """Why a family does not accept a problem; ``plain`` if that is obvious and need not be reported."""

    why: str
    plain: bool = False


Offer = Candidate | Refusal


class Offering(Protocol):
    """Something that yields offers for a kind of problem."""

    NAME: str  # its name in explain

    def offers(self, problem: Any, limits: Limits) -> Iterator[Offer]:
        """Yield a candidate for each accepting kernel, or a single refusal."""


class Family(Offering, Protocol):
    """A kernel family for one kind of problem: a module."""

    def variants(self) -> Iterable[Variant]:
        """Yield every variant that a candidate can launch; shared ones belong to one family."""


def in_order(family: Offering, problem: Any, limits: Limits) -> Iterable[Offer]:
    """Return a family's batch-invariant offers: ``offers_in_order`` if it has that, else ``offers``."""
    family_offers: Iterable[Offer] = getattr(family, "offers_in_order", family.offers)(problem, limits)
    return family_offers


def _any(family: Offering, problem: Any, limits: Limits) -> Iterable[Offer]:
    """Return a family's ordinary offers."""
    return family.offers(problem, limits)


@dataclass(eq=False, slots=True)
class Rewritten:
    """Offers for an equivalent problem (such as ConvTranspose as Conv), adapted; its refusals are not reported."""

    NAME: str
    families: tuple[Family, ...]
    of: Callable[[Any], Any]  # returns the equivalent problem, or None
    candidate: Callable[[Any, Candidate], Candidate]  # adapts a candidate of the equivalent problem

    def offers(self, problem: Any, limits: Limits) -> Iterator[Candidate]:
        """Yield the adapted candidates of the equivalent problem."""
        return self._candidates(_any, problem, limits)

    def offers_in_order(self, problem: Any, limits: Limits) -> Iterator[Candidate]:
        """Yield the adapted batch-invariant candidates; see :func:`in_order`."""
        return self._candidates(in_order, problem, limits)

    def _candidates(
        self, ask: Callable[[Offering, Any, Limits], Iterable[Offer]], problem: Any, limits: Limits
    ) -> Iterator[Candidate]:
        """Yield the adapted candidates of all families, asked by ``ask``."""
        other = self.of(problem)
        if other is not None:
            for family in self.families:
                for offer in ask(family, other, limits):
                    if isinstance(offer, Candidate):
                        yield self.candidate(problem, offer)


def of(families: Iterable[Offering], problem: Any, limits: Limits) -> tuple[list[Candidate], list[str]]:
    """Return all candidates in the order of the families, and a line per distinct refusal, naming its families."""
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
    """Return the candidate with the least predicted time; on a tie, the first."""
    return min(candidates, key=lambda candidate: candidate.seconds)


Pick = Callable[[Sequence[Candidate]], Candidate]
_pick: ContextVar[Pick | None] = ContextVar("_pick", default=None)


@contextmanager
def picking(pick: Pick) -> Iterator[None]:
    """Within this context and thread, let ``pick`` choose instead of measurements and the cost model."""
    token = _pick.set(pick)
    try:
        yield
    finally:
        _pick.reset(token)


def picked() -> Pick | None:
    """Return the override set by :func:`picking` in this thread, or None."""
    return _pick.get()


def every_candidate() -> Iterator[AbstractContextManager[None]]:
    """Yield contexts that pick the first, second, … candidate, until every candidate of a problem had its turn."""
    number, most = 0, 1

    def pick(candidates: Sequence[Candidate]) -> Candidate:
        """Pick the candidate whose turn it is."""
        nonlocal most
        most = max(most, len(candidates))
        return candidates[number % len(candidates)]

    while number < most:
        yield picking(pick)
        number += 1


def _times(ratio: float) -> str:
    """Return a ratio as text."""
    return f"{ratio:.1f}x" if ratio >= 10 else f"{ratio:.2f}x"


def line(candidate: Candidate, best: Candidate, why: str) -> str:
    """Return a candidate's line for explain: its predicted time, and why it is best or how it compares to the best."""
    against = f", {why}" if candidate is best else f" ({_times(candidate.seconds / best.seconds)})"
    return f"{candidate.name}: predicted {candidate.seconds * 1e6:.1f} us{against}"


def choose(problem: Any, families: Iterable[Offering], limits: Limits) -> Plan:
    """Return the plan of the fastest candidate: by measured time if ``tune`` has run, by the cost model otherwise.

    On a tie the first wins; at least one family must offer a candidate. The plan's reasons list all candidates and
    refusals. ``problem`` must be a dataclass of everything that the candidates depend on.
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
