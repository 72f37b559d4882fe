"""Mutation testing of gpuconv's Python modules: change one expression at a time, at random; do the tests notice it?

`python -m tools.mutation.python --count 300 --seed 0` runs 300 mutants of all modules, prints the fate of each and the
score. A mutant (`python_changes`) is written into a copy of the checkout. The tests that execute the changed lines
(`coverage_map`) run until one of them fails, for a minute at most. Mutants that compute the same, and functions that
only choose among equally right alternatives, are listed with reasons in `python_equivalent`; they do not count.

Not changed are the shared cases, which are data, and in `gpuconv/cuda` floats and the cost model (`time_model`).
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from tools.mutation import python_changes, time_model
from tools.mutation.coverage_map import CoverageMap, measured
from tools.mutation.lines import functions_of, lines_of
from tools.mutation.python_changes import Mutant
from tools.mutation.python_equivalent import CHOICES, EQUIVALENT, EXACT, FIELDS, SIZES
from tools.mutation.working_copy import (
    ROOT,
    changed,
    import_common_packages,
    kernel_cache,
    private_kernel_cache,
    start_pytest,
    wait,
    working_copy,
)

SECONDS = 60.0  # time limit of the tests of one mutant, measured without the mutant
PATIENCE = 2  # with the mutant they may take this multiple
FIRST = 25  # number of tests that run first, so that only their modules are imported
KILLED, TIMEOUT, SURVIVED, KNOWN = "noticed", "too slow, and so noticed", "not noticed", "known to be equivalent"
CHOICE = "not noticed, but only a choice"
WRONG = "noticed, though listed as equivalent"
UNJUDGED = "not judged"
NO_TESTS = 5  # pytest's exit status if no test was collected: a mutant may rename test parameters
_DATA = ("rules/cases.py",)


@dataclass(frozen=True)
class Target:
    """A mutant and its module, whose path is relative to the package."""

    module: str
    mutant: Mutant

    @property
    def name(self) -> str:
        return f"{self.module} {self.mutant.name}"


# ---------------------------------------------------------------- choosing mutants


def modules() -> list[str]:
    """Return every module that is mutated."""
    package = ROOT / "gpuconv"
    found = sorted(path.relative_to(package).as_posix() for path in package.rglob("*.py"))
    return [module for module in found if module not in _DATA]


@cache
def targets(module: str) -> list[Target]:
    """Return every mutant of a module."""
    made = python_changes.mutants(_trees()[module], _model().__contains__, floats=not module.startswith("cuda/"))
    return [Target(module, mutant) for mutant in made]


@cache
def _trees() -> dict[str, ast.Module]:
    return {module: ast.parse((ROOT / "gpuconv" / module).read_text()) for module in modules()}


@cache
def _model() -> set[ast.AST]:
    return time_model.nodes(_trees())


def chosen(count: int, seed: int, patterns: Sequence[str]) -> list[Target]:
    """Return ``count`` mutants at random, each with the same chance."""
    matching = [m for m in modules() if any(fnmatch(m, pattern.removeprefix("gpuconv/")) for pattern in patterns)]
    every = [target for module in matching for target in targets(module)]
    return Random(seed).sample(every, min(count, len(every)))


# ---------------------------------------------------------------- running tests


class Selection:
    """A pytest plugin that runs given tests in their order, and writes the names of failing ones into a file."""

    def __init__(self, tests: Sequence[str], failed: Path) -> None:
        self._order = {test: number for number, test in enumerate(tests)}
        self._failed = failed

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self._order), key=self._number)

    def _number(self, item: pytest.Item) -> int:
        return self._order[item.nodeid]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self._failed.open("a") as file:
                print(report.nodeid, file=file)


def run_tests(
    tests: Sequence[str], root: Path, *options: str, limit: float | None = None
) -> tuple[int | None, list[str]]:
    """Run tests in a process; return its exit status (None if it exceeded ``limit``) and the tests that failed."""
    failed = root.parent / "failed.txt"
    failed.unlink(missing_ok=True)
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    plugin = partial(Selection, tests, failed)
    status = wait(start_pytest(files, root.parent / "log.txt", plugin, *options), limit)
    return status, failed.read_text().splitlines() if failed.is_file() else []


def tests_of(target: Target, coverage: CoverageMap) -> list[str]:
    """Return the tests that judge a mutant, in order, which take at most `SECONDS` without any mutant.

    If no test executes its lines, these are the tests that execute any line of the module's functions.
    """
    found = coverage.tests(lines_of(target.module, target.mutant.place, _trees()))
    found = found or coverage.tests(functions_of(target.module, _trees()))
    ends = accumulate(coverage.seconds[test] for test in found)
    return [test for test, end in zip(found, ends, strict=True) if end < SECONDS] or found[:1]


class Verdict(NamedTuple):
    """The fate of a mutant, the seconds it took, and the test that noticed it."""

    name: str
    fate: str
    seconds: float
    test: str = ""


def verdict(target: Target, root: Path, kernels: Path, coverage: CoverageMap) -> Verdict:
    """Write a mutant into the copy and run its tests: a few first, of which mostly one fails, then the others."""
    start, tests = time.monotonic(), tests_of(target, coverage)
    status, failed = 0, []
    kernels_may_change = target.module.startswith("cuda/")
    own_kernels = private_kernel_cache(root, kernels) if kernels_may_change else nullcontext()
    with changed(root / "gpuconv" / target.module, target.mutant.text()), own_kernels:
        for some in (tests[:FIRST], tests[FIRST:]):
            if some and status in (0, NO_TESTS):
                status, failed = run_tests(some, root, "-x", limit=PATIENCE * SECONDS)
    return Verdict(
        target.name, _judged(target, 0 if status == NO_TESTS else status), time.monotonic() - start, *failed[:1]
    )


def _judged(target: Target, status: int | None) -> str:
    known = target.name in KNOWN_NAMES or rounds_nothing(target) or divides_as_before(target)
    if status is None:  # a time-out says nothing about a mutant that computes the same
        return KNOWN if known else TIMEOUT
    if status:
        return WRONG if known else KILLED
    choice = target.name.startswith(CHOOSING) or only_takes_time(target) or only_copies(target)
    return KNOWN if known else CHOICE if choice else SURVIVED


def rounds_nothing(target: Target) -> bool:
    """Return whether a mutant rounds up a quotient that is exact anyway."""
    old, new = target.mutant.place.node, target.mutant.new
    exact = any(ast.unparse(old) in divisions.get(target.module, ()) for divisions in EXACT.values())
    return exact and ast.dump(new) == ast.dump(python_changes.rounded_up(old))


def divides_as_before(target: Target) -> bool:
    """Return whether a mutant divides the next number by an element size of at least two bytes."""
    place, new = target.mutant.place, target.mutant.new
    if target.module.startswith("cuda/pool") or place.field != "left" or not isinstance(new, ast.Constant):
        return False
    return ast.unparse(place.parent) in EXACT[SIZES].get(target.module, ()) and new.value == place.node.value + 1


def only_takes_time(target: Target) -> bool:
    """Return whether a mutant changes a field of a table row, or an argument, that affects only the time."""
    place = target.mutant.place
    given = (node for node in ast.walk(place.statement) if isinstance(node, ast.Call))
    return any(place.node is node for call in given for value in _of_time(call) for node in ast.walk(value))


def _of_time(call: ast.Call) -> Iterator[ast.expr]:
    yield from (keyword.value for keyword in call.keywords if keyword.arg in FIELDS)
    one = ast.unparse(call.func)
    named = zip(_fields().get(one, ()), call.args, strict=False)
    yield from (value for name, value in named if name in FIELDS or f"{one}.{name}" in FIELDS)


@cache
def _fields() -> dict[str, list[str]]:
    """Return the names of the fields of every class."""
    classes = (node for tree in _trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {
        one.name: [
            line.target.id for line in one.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        ]
        for one in classes
    }


def only_copies(target: Target) -> bool:
    """Return whether a mutant only makes an additional copy."""
    parent, new = target.mutant.place.parent, target.mutant.new
    return (
        isinstance(parent, ast.keyword) and parent.arg == "copy" and isinstance(new, ast.Constant) and new.value is True
    )


KNOWN_NAMES = {name for names in EQUIVALENT.values() for name in names}
# Prefixes of the names of mutants of such functions and constants.
CHOOSING = tuple(one + (" = " if ": " in one else ": ") for names in CHOICES.values() for one in names)


# ---------------------------------------------------------------- the command


def report(picked: Sequence[Target], coverage: CoverageMap, jobs: int = 1) -> int:
    """Run mutants, print their fates, and return how many survive or were not judged."""
    verdicts: list[Verdict] = []
    for number, one in enumerate(_judged_by(picked, coverage, jobs), 1):
        verdicts.append(one)
        print(f"{number:4} {one.seconds:5.1f} s  {one.fate}: {one.name}", flush=True)
        if one.test:
            print(f"              by {one.test}", flush=True)
    broken = _fail_by_themselves(list(dict.fromkeys(one.test for one in verdicts if one.test)))
    for test in broken:
        print(f"this test failed without any mutant, so what it noticed does not count: {test}")
    fates = Counter(UNJUDGED if one.test in broken else one.fate for one in verdicts)
    judged = len(picked) - fates[KNOWN] - fates[CHOICE]
    noticed = fates[KILLED] + fates[TIMEOUT]
    print(*(f"{count} {fate}" for fate, count in fates.most_common()), sep=", ")
    print(f"score: {noticed} of {judged} that are not equivalent, {noticed / max(1, judged):.1%}")
    return len(picked) - len(verdicts) + fates[SURVIVED] + fates[WRONG] + fates[UNJUDGED]


def _fail_by_themselves(tests: Sequence[str]) -> list[str]:
    """Return the tests that fail without any mutant."""
    if not tests:
        return []
    with working_copy() as root:
        return run_tests(tests, root)[1]


def _judged_by(picked: Sequence[Target], coverage: CoverageMap, jobs: int) -> Iterator[Verdict]:
    """Yield the verdicts of all mutants as ``jobs`` processes produce them."""
    context = multiprocessing.get_context("fork")
    results: Any = context.SimpleQueue()
    workers = [context.Process(target=_judge, args=(picked[first::jobs], coverage, results)) for first in range(jobs)]
    for worker in workers:
        worker.start()
    working = jobs
    while working:
        result = results.get()
        if result is None:
            working -= 1
        else:
            yield result
    for worker in workers:
        worker.join()


def _judge(picked: Sequence[Target], coverage: CoverageMap, results: Any) -> None:
    try:
        with working_copy() as root:
            kernels = kernel_cache()
            for target in picked:
                results.put(verdict(target, root, kernels, coverage))
    finally:
        results.put(None)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="mutants to run (300)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice (0)")
    parser.add_argument("--modules", nargs="+", default=["*"], metavar="PATTERN", help="of modules, such as 'cpu/*'")
    parser.add_argument("--named", metavar="TEXT", help="only mutants in whose names this occurs")
    parser.add_argument("--list", action="store_true", help="print the names, and run nothing")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run them (1)")
    parser.add_argument(
        "--tests", nargs="+", default=["tests"], metavar="PATH", help="folders or files of the tests (tests)"
    )
    return parser.parse_args()


def main() -> int:
    options = _parsed()
    picked = chosen(sys.maxsize if options.named else options.count, options.seed, options.modules)
    if options.named:
        picked = [target for target in picked if options.named in target.name]
    if options.list:
        print(*(target.name for target in picked), sep="\n")
        return 0
    import_common_packages()
    emulated = any(target.module.startswith("cuda/") for target in picked)
    return min(1, report(picked, measured(options.tests, emulated, options.jobs), options.jobs))


if __name__ == "__main__":
    sys.exit(main())
