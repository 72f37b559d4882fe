"""What families of kernels answer to a problem, for tests that look at single ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import Limits
from gpuconv.cuda.plan.offers import Candidate, Refusal


def candidates(module: Any, problem: Any, limits: Limits) -> list[Candidate]:
    """Return those of a family, or of all families that a module lists."""
    return offers.of(getattr(module, "FAMILIES", (module,)), problem, limits)[0]


def refused(family: Any, problem: Any, limits: Limits) -> Refusal | None:
    """Return why a family does not take a problem, plain or not; None where it does."""
    found = list(family.offers(problem, limits))
    refusals = [one for one in found if isinstance(one, Refusal)]
    assert len(refusals) <= 1, refusals
    assert not (refusals and len(found) > 1), found
    return refusals[0] if refusals else None


def why_not(family: Any, problem: Any, limits: Limits) -> str | None:
    """Return the reason alone."""
    refusal = refused(family, problem, limits)
    return refusal and refusal.why


def said(plan: Plan, family: Any) -> str | None:
    """Return why a family has no candidate as a plan's reasons say it, to which several families may have the same."""
    for line in plan.reasons:
        names, _, why = line.removeprefix("not by ").partition(": ")
        if line.startswith("not by ") and family.NAME in names.split(", "):
            return why
    return None


def family(found: list[Candidate]) -> Any:
    """Return a family that always offers these."""
    return SimpleNamespace(NAME="given", offers=lambda problem, limits: iter(found))
