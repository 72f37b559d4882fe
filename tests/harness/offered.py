"""Offers of kernel families for a problem, for tests of single families."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import Limits
from gpuconv.cuda.plan.offers import Candidate, Refusal


def candidates(module: Any, problem: Any, limits: Limits) -> list[Candidate]:
    """Return the candidates of a family, or of all families that a module lists."""
    return offers.of(getattr(module, "FAMILIES", (module,)), problem, limits)[0]


def refused(family: Any, problem: Any, limits: Limits) -> Refusal | None:
    """Return why a family refuses a problem, or None if it accepts it."""
    found = list(family.offers(problem, limits))
    refusals = [one for one in found if isinstance(one, Refusal)]
    assert len(refusals) <= 1, refusals
    assert not (refusals and len(found) > 1), found
    return refusals[0] if refusals else None


def why_not(family: Any, problem: Any, limits: Limits) -> str | None:
    """Return only the reason of the refusal."""
    refusal = refused(family, problem, limits)
    return refusal and refusal.why


def said(plan: Plan, family: Any) -> str | None:
    """Return the reason of a family's refusal from a plan's ``reasons``, where several families may share one."""
    for line in plan.reasons:
        names, _, why = line.removeprefix("not by ").partition(": ")
        if line.startswith("not by ") and family.NAME in names.split(", "):
            return why
    return None


def family(found: list[Candidate]) -> Any:
    """Return a family that always offers these candidates."""
    return SimpleNamespace(NAME="given", offers=lambda problem, limits: iter(found))
