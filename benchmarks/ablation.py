"""Ablation of the kernels by the planner's cost model: what removing each family, source or form would cost.

For layers of known networks and for random problems, every decision of the planner is collected: all its candidates,
with their modelled seconds and the kernel variants that they launch. Then each family, each ``.cu`` file and each form
of a kernel is removed in turn, and every decision takes the fastest remaining candidate. The loss of a decision is its
time without the removed kernels over its time with them. Nothing is measured.

The rule for keeping a kernel: it stays if it earns 2 % of the geometric mean of a class of known layers, or saves a
realistic case from a factor of 2. A case, known or random, is realistic if it takes at least 5 µs; launches dominate
shorter ones. The static table has no float64; here its layers come in float64 too, as classes of their own. Kernels
that some decision has no alternative to stay as well.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from random import Random
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from benchmarks import cliffs, machine, static_plan
from benchmarks.static_plan import Case
from gpuconv._errors import ArgumentError
from gpuconv.cuda import variants
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import Limits, Representative, representative

Row = dict[str, Any]
Floats = NDArray[np.float64]
COUNT = 1500  # random problems, unless another number is asked for
LEAST_EARNED = 1.02  # geometric mean of a class's losses from which a kernel stays
LEAST_SAVED = 2.0  # loss of one realistic case from which a kernel stays
REALISTIC_SECONDS = 5e-6  # shortest time of a realistic case
STEPS = (1.5, 2.0)  # losses above which cases are counted
KINDS = ("family", "source", "form")
_DTYPE = re.compile(r"_(b?float\d+|u?int\d+|complex\d+|3xtf32|tf32|\d+bit)(?=_)")
_AUXILIARY = ("passes/", "conv/gemm/pack_")  # sources that pack, copy or add; other kernels cannot work without them


@dataclass(frozen=True, slots=True)
class Option:
    """A candidate of a decision."""

    seconds: float  # modelled
    parts: frozenset[str]  # what it needs: families, sources and forms, each as ``"kind name"``


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice of the planner between candidates."""

    problem: str  # in words
    kind: str  # class of the problem
    known: bool  # whether it is a layer of a known network, not a random problem
    options: tuple[Option, ...]  # at least one


def run(arguments: argparse.Namespace) -> int:
    """Collect decisions, remove everything in turn and print the losses."""
    try:
        device = representative(arguments.arch)
    except ArgumentError as reason:
        print(f"python -m benchmarks ablation: {reason}", file=sys.stderr)
        return 2
    table = Table(collected([*known_cases(), *random_cases(arguments.random, arguments.seed)], device))
    rows = [table.removed(f"{kind} {name}", [f"{kind} {name}"]) for kind in KINDS for name in table.names(kind)]
    if arguments.without:
        together = [part for part in table.parts if any(fnmatchcase(part, pattern) for pattern in arguments.without)]
        print(f"{len(together)} parts together: {', '.join(together)}")
        rows = [table.removed("together", together)]
    print("\n".join(lines(rows, table)))
    head = {"architecture": device.limits.architecture, "device": device.name, "command": machine.command()}
    machine.write(arguments.json, head | {"decisions": len(table.decisions), "rows": rows})
    return 0


# ---------------------------------------------------------------- collecting decisions


def known_cases() -> list[Case]:
    """Return the static table's cases, and those of its layers in float32 that multiply in float64 too."""
    cases = static_plan.cases()
    single = [case for case in cases if (case.dtype, case.precision) == ("float32", "ieee") and case.layer.multiplies]
    return [*cases, *(replace(case, dtype="float64") for case in single)]


def random_cases(count: int, seed: int) -> Iterator[Case]:
    """Yield random problems of a network's size."""
    random = Random(seed)
    while count:
        case = cliffs.drawn(random)
        if case is not None:
            yield case
            count -= 1


def collected(cases: Iterable[Case], device: Representative) -> list[Decision]:
    """Return every decision that planning these cases takes."""
    decisions: list[Decision] = []
    for case in cases:
        known = case.layer.id != ""
        problem = str(case) if known else cliffs.described(case)
        kind = f"{case.layer.kind}, float64" if case.dtype == "float64" else case.layer.kind
        decisions += (Decision(problem, kind, known, options) for options in _choices(case, device))
    return decisions


def _choices(case: Case, device: Representative) -> list[tuple[Option, ...]]:
    """Return the options of every decision that planning a case takes; none if the planner does not take the case."""
    found: list[tuple[Option, ...]] = []

    def of(families: Iterable[offers.Offering], problem: Any, limits: Limits) -> Any:
        """Stand for :func:`offers.of`, and record the candidates with the names of their families."""
        labelled = [
            (labels, candidate)
            for labels, offering in _single(families)
            for candidate in offering.offers(problem, limits)
            if isinstance(candidate, offers.Candidate)
        ]
        found.append(tuple(option for pair in labelled if (option := _option(*pair)) is not None))
        return [candidate for _, candidate in labelled], []

    try:
        with mock.patch.object(offers, "of", of):
            static_plan.planner_of(case, device)()
    except ArgumentError:
        return []
    return [options for options in found if options]


def _single(families: Iterable[offers.Offering]) -> Iterator[tuple[tuple[str, ...], offers.Offering]]:
    """Yield single families with their names; one that rewrites problems for others yields one for each of these."""
    for family in families:
        if isinstance(family, offers.Rewritten):
            for inner in family.families:
                yield (family.NAME, inner.NAME), replace(family, families=(inner,))
        else:
            yield (family.NAME,), family


def _option(labels: Sequence[str], candidate: offers.Candidate) -> Option | None:
    """Return a candidate with all that it needs, or None if its grid would be too large to launch."""
    try:
        plan: Plan = candidate.make()
    except ArgumentError:
        return None
    parts = {f"family {label}" for label in labels}
    for launch in plan.launches:
        if not launch.variant.source.startswith(_AUXILIARY):
            parts |= {f"source {launch.variant.source}", f"form {form_of(launch.variant.name)}"}
    return Option(candidate.seconds, frozenset(parts))


def form_of(name: str) -> str:
    """Return a variant's name without its dtype: what its form is called in all dtypes."""
    return _DTYPE.sub("", name)


# ---------------------------------------------------------------- removing


class Table:
    """All candidates of all decisions as arrays, one element per candidate; those of a decision are adjacent."""

    def __init__(self, decisions: Sequence[Decision]) -> None:
        self.decisions = decisions
        options = [option for decision in decisions for option in decision.options]
        lengths = [len(decision.options) for decision in decisions]
        self._starts = np.cumsum([0, *lengths[:-1]])
        self._seconds: Floats = np.array([option.seconds for option in options])
        self._best: Floats = np.minimum.reduceat(self._seconds, self._starts)
        self._places: dict[str, list[int]] = {}  # numbers of the candidates that need a part
        for place, option in enumerate(options):
            for part in option.parts:
                self._places.setdefault(part, []).append(place)
        self._realistic = self._best >= REALISTIC_SECONDS
        kinds = [decision.kind for decision in decisions]
        self._classes = {kind: np.array([each == kind for each in kinds]) for kind in sorted(set(kinds))}
        self._known = np.array([decision.known for decision in decisions])

    @property
    def parts(self) -> list[str]:
        """All families, sources and forms that some candidate needs, each as ``"kind name"``."""
        return sorted(self._places)

    def names(self, kind: str) -> list[str]:
        """Return the names of all parts of a kind."""
        return [part.removeprefix(f"{kind} ") for part in self.parts if part.startswith(f"{kind} ")]

    def losses(self, parts: Iterable[str]) -> Floats:
        """Return every decision's time without these parts over its time with them; infinite if nothing is left."""
        seconds = self._seconds.copy()
        for part in parts:
            seconds[self._places[part]] = np.inf
        left: Floats = np.minimum.reduceat(seconds, self._starts)
        return left / self._best

    def removed(self, name: str, parts: Sequence[str]) -> Row:
        """Return what removing these parts together costs, and whether the rule keeps them.

        Classes are of known layers. Decisions that would have no candidate left are counted as ``needed``, and left
        out of all other numbers.
        """
        losses = self.losses(parts)
        solved = np.isfinite(losses)
        counted = np.where(solved & self._realistic, losses, 1.0)
        worst = int(np.argmax(counted))
        known = solved & self._known
        classes = {kind: _mean(losses[mask & known]) for kind, mask in self._classes.items()}
        needed = int(np.count_nonzero(~solved))
        return {
            "remove": name,
            "variants": len(set().union(*(self._variants.get(part, ()) for part in parts))),
            "all": _short(_mean(losses[solved])),
            "known": _short(_mean(losses[known])),
            "classes": {kind: _short(mean) for kind, mean in classes.items() if mean > 1},
            "worst": _short(counted[worst]),
            "worst_case": self.decisions[worst].problem if counted[worst] > 1 else "",
            **{f"above_{step:g}": int(np.count_nonzero(counted > step)) for step in STEPS},
            "chosen": int(np.count_nonzero(losses > 1)),
            "needed": needed,
            "stays": needed > 0 or max(classes.values()) >= LEAST_EARNED or bool(counted[worst] >= LEAST_SAVED),
        }

    @cached_property
    def _variants(self) -> dict[str, set[str]]:
        """Names of the compiled variants of each family, source and form."""
        found: dict[str, set[str]] = {}
        for owner in variants.owners():
            family = f"family {getattr(owner, 'NAME', 'auxiliary passes')}"
            for one in owner.variants():
                for part in (family, f"source {one.source}", f"form {form_of(one.name)}"):
                    found.setdefault(part, set()).add(one.name)
        return found


def _mean(losses: Floats) -> float:
    """Return the geometric mean; 1 of nothing."""
    return float(np.exp(np.log(losses).mean())) if losses.size else 1.0


def _short(value: float) -> float:
    return float(f"{value:.7g}")


# ---------------------------------------------------------------- printing


def lines(rows: Iterable[Row], table: Table) -> list[str]:
    """Return the table of losses in percent, what the rule deletes last."""
    head = f"{len(table.decisions)} decisions; losses in %; known: layers of networks; worst: of at least 5 us"
    names = ("remove", "variants", "all", "known", "worst", "> 1.5", "> 2", "needed", "rule")
    found = [head, _line(*names, "worst on; losses of classes of known layers")]
    return found + [line for row in sorted(rows, key=_order) for line in _lines(row)]


def _order(row: Row) -> tuple[int, bool, float]:
    """Sort by kind, then what stays first, then by loss."""
    kind = row["remove"].partition(" ")[0]
    return (KINDS.index(kind) if kind in KINDS else 0, not row["stays"], -row["all"])


def _lines(row: Row) -> Iterator[str]:
    classes = sorted(row["classes"].items(), key=lambda pair: -pair[1])
    shown = ", ".join(f"{kind} {_percent(mean)}" for kind, mean in classes if mean >= 1.0001)
    yield _line(
        *(row["remove"], row["variants"], _percent(row["all"]), _percent(row["known"]), f"{row['worst']:.2f}"),
        *(row["above_1.5"], row["above_2"], row["needed"], "stays" if row["stays"] else "goes"),
        "; ".join(filter(None, (row["worst_case"], shown))),
    )


def _line(*cells: object) -> str:
    name, *numbers, rule, text = map(str, cells)
    return f"{name:52}" + "".join(f"{number:>9}" for number in numbers) + f"  {rule:6} {text}".rstrip()


def _percent(mean: float) -> str:
    return f"{100 * (mean - 1):.3f}"
