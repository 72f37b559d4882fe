"""What families of kernels answer to a problem: how they would solve it, or why they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.plan.launch import Limits, Plan


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to solve a problem.

    Attributes
    ----------
    name : str
        Of the kernel that makes the result, and what the plan does with it besides: ``_split``, ``_direct``.
    seconds : float
        What it takes, by the model.
    make : callable
        Returns its plan, with the reasons that concern it alone.
    """

    name: str
    seconds: float
    make: Callable[[], Plan]


class Refusal(NamedTuple):
    """Why a family does not solve a problem; ``plain`` where that goes without saying and nobody needs to read it."""

    why: str
    plain: bool = False


Offer = Candidate | Refusal


class Family(Protocol):
    """Kernels for one kind of problem: a module.

    Attributes
    ----------
    NAME : str
        By which explanations call it.
    """

    NAME: str

    def offers(self, problem: Any, limits: Limits) -> Iterator[Offer]:
        """Yield a candidate for every kernel that takes the problem, or one refusal."""

    def variants(self) -> Iterable[Variant]:
        """Yield every kernel that a candidate can launch, those that several families share being one family's."""


def of(families: Iterable[Family], problem: Any, limits: Limits) -> tuple[list[Candidate], list[str]]:
    """Return all candidates in the families' order, and a line for each reason that families have for having none."""
    candidates, refusals = [], dict[str, list[str]]()
    for family in families:
        for offer in family.offers(problem, limits):
            if isinstance(offer, Candidate):
                candidates.append(offer)
            elif not offer.plain:
                refusals.setdefault(offer.why, []).append(family.NAME)
    return candidates, [f"not by {', '.join(names)}: {why}" for why, names in refusals.items()]
