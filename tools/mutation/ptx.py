"""Mutation testing of compiled kernels: change one instruction of PTX at a time, and run it in the emulator.

`python -m tools.mutation.ptx --count 300 --seed 0` draws mutants of the PTX of all families, and prints one line each
and the scores by family and kind. `--families 'conv/wgmma/*'` restricts the families, `--kinds wait barrier` the kinds.
Each draw has a number and depends only on it and the seed: a family, one of its problems in `registry.by_source`, one
of the kernels that the problem launches, one of the kinds below that the kernel has, and one mutant of that kind, each
with equal chances. Barriers, fences and waits, which are few, are thus drawn as often as offsets and comparisons. Some
problems with several launches run with overlapping launches, whose kernels wait for those before. `--each` does not
draw: it takes each change of each source line once.

A mutant is noticed if, on one of its family's problems or on one derived from them, a result is wrong, the emulator
reports a violation, or memory traffic exceeds that of the right kernel. Mutants known to be as right as the original
are listed, with reasons, in `ptx_equivalent`.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from functools import partial
from itertools import islice, product
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import pytest

from emulated_cuda import control
from emulated_cuda.emulator.engine import module
from gpuconv import GpuconvError
from gpuconv.cuda.build.variant import Variant
from tests.emulator import EmulatorError
from tests.emulator.device import EmulatedCuda
from tests.kernels import registry
from tools.mutation.ptx_changes import FOLLOWS, Mutant, mutants
from tools.mutation.ptx_equivalent import is_equivalent
from tools.mutation.ptx_problems import ORDERS, Right, Trial, chained, others, right, traffic, trials, tried

SURVIVED, NEVER_RUN, KNOWN, NO_PROGRAM = "NOT NOTICED", "NOT RUN", "equivalent", "no program"
TRAFFIC = "by traffic alone"
OVERLAPPING = 1 / 4  # share of problems with several launches that run with overlapping launches


# ---------------------------------------------------------------- drawing mutants


def families(patterns: Iterable[str] = ("*",)) -> list[str]:
    """Return the families (kernel sources) that match a pattern."""
    return [one for one in sorted(registry.by_source()) if any(fnmatch(one, pattern) for pattern in patterns)]


class Drawn(NamedTuple):
    """A mutant with its family, the number of the problem that it was drawn from, and its kernel's whole text.

    ``overlaps`` means that the problem runs with overlapping launches.
    """

    family: str
    number: int
    mutant: Mutant
    whole: str
    overlaps: bool = False

    def trial(self) -> Trial:
        return problem(self.family, self.number, self.overlaps)


def problem(family: str, number: int, overlaps: bool) -> Trial:
    """Return a problem of a family, with overlapping launches or without."""
    plain = trials(family)[number]
    return chained(plain) if overlaps else plain


def candidates(family: str, trial: Trial, kernel: str) -> Iterator[Mutant]:
    """Yield the mutants of a kernel that a problem launches.

    Launch waits count only if the launch overlaps the kernel before it; a call's first launch follows everything
    before.
    """
    found = right(family, trial)
    for one in mutants(kernel, found.texts[kernel]):
        if one.change.kind != FOLLOWS or kernel in found.followers:
            yield one


def drawn(seed: int, number: int, patterns: Sequence[str] = ("*",), kinds: Sequence[str] = ()) -> Drawn | None:
    """Draw a mutant; None if the drawn kernel has none of these kinds."""
    random = Random(f"{seed} {number}")
    family = random.choice(families(patterns))
    at = random.randrange(len(trials(family)))
    overlaps = random.random() < OVERLAPPING and bool(tried(family, problem(family, at, True)).followers)
    trial = problem(family, at, overlaps)
    texts = right(family, trial).texts
    if not texts:
        return None
    kernel = random.choice(sorted(texts))
    by_kind: dict[str, list[Mutant]] = defaultdict(list)
    for one in candidates(family, trial, kernel):
        by_kind[one.change.kind].append(one)
    wanted = [kind for kind in sorted(by_kind) if not kinds or kind in kinds]
    if not wanted:
        return None
    return Drawn(family, at, random.choice(by_kind[random.choice(wanted)]), texts[kernel], overlaps)


def each(seed: int, patterns: Sequence[str] = ("*",), kinds: Sequence[str] = ()) -> Iterator[Drawn]:
    """Yield each change of each source line of the families' kernels once.

    A line has many copies: in kernels of other dtypes and sizes, and in unrolled loops. One of those that a problem of
    the family executes is drawn, or any one if none is executed.
    """
    for family in families(patterns):
        running: dict[tuple[str, str], list[Drawn]] = defaultdict(list)
        idle: dict[tuple[str, str], list[Drawn]] = defaultdict(list)
        for one, runs in _copies(family):
            if not kinds or one.mutant.change.kind in kinds:
                (running if runs else idle)[one.mutant.source, one.mutant.change.words].append(one)
        for site in sorted({*running, *idle}):
            yield Random(f"{seed} {site}").choice(running.get(site) or idle[site])


def _copies(family: str) -> Iterator[tuple[Drawn, bool]]:
    """Yield each mutant of the kernels that each problem of a family launches, and whether the problem executes it."""
    for at, overlaps in product(range(len(trials(family))), (False, True)):
        trial = problem(family, at, overlaps)
        found = tried(family, trial) if overlaps else right(family, trial)
        for kernel, text in sorted(found.texts.items()):
            for one in candidates(family, trial, kernel):
                if not overlaps or one.change.kind == FOLLOWS:
                    yield Drawn(family, at, one, text, overlaps), found.runs(text, one.line)


# ---------------------------------------------------------------- running mutants


def noticed(one: Drawn, text: str, trial: Trial, expected: Right, **options: Any) -> str | None:
    """Return what notices the changed text of a kernel on a problem, or None."""
    usual, usual_see = EmulatedCuda.ptx, EmulatedCuda.see
    launches: list[control.Launch] = []

    def changed(emulated: EmulatedCuda, variant: Variant, architecture: str) -> bytes:
        right = usual(emulated, variant, architecture)  # also registers the kernel
        return text.encode() if right == one.whole.encode() else right

    def see(emulated: EmulatedCuda, launch: control.Launch) -> None:
        usual_see(emulated, launch)
        if launch.name in expected.texts:
            launches.append(launch)

    with mock.patch.multiple(EmulatedCuda, ptx=changed, see=see):
        found = outcome(partial(trial, None, max_steps=expected.steps, **options))
    more = any(its > 1.01 * right for its, right in zip(traffic(launches), expected.traffic, strict=False))
    return found or (TRAFFIC if more else None)


def outcome(trial: Callable[[], Any]) -> str | None:
    """Return how a trial fails, or None."""
    try:
        trial()
    except EmulatorError as error:
        return "report: " + _kind(str(error))
    except (AssertionError, pytest.fail.Exception):
        return "wrong result"
    except (GpuconvError, RuntimeError) as error:
        return NO_PROGRAM if "does not know this PTX" in str(error) else "error: " + type(error).__name__
    return None


def _kind(message: str) -> str:
    """Return the first words of a report, without names and numbers."""
    if "were never written" in message:
        return "never written"
    first = re.sub(r"^\S+: | at address.*", "", message.split("\n")[0])
    return re.sub(r"[0-9]+", "N", first).split(":")[0][:40]


def verdict(one: Drawn, with_others: bool = True) -> str:
    """Return how a mutant is noticed, or one of the constants above; without ``with_others`` by its own problem."""
    if module.cache_info().currsize > 256:
        module.cache_clear()
    text, known, runs = one.mutant.text(one.whole), is_equivalent(one.mutant, one.whole), False
    costs = None
    for trial, expected, options in _tries(one, with_others and not known):
        runs = True
        found = noticed(one, text, trial, expected, **options)
        if found not in (None, TRAFFIC):
            return found
        costs = costs or found
    return costs or (KNOWN if known else SURVIVED if runs else NEVER_RUN)


def _tries(one: Drawn, with_others: bool) -> Iterator[tuple[Trial, Right, dict[str, Any]]]:
    """Yield problems that execute the changed instruction, with options: its own in every order, then others."""
    own = one.trial()
    expected = right(one.family, own)
    if expected.runs(one.whole, one.mutant.line):
        yield own, expected, {"counters": True, **ORDERS[0]}
        yield from ((own, expected, order) for order in ORDERS[1:])
    if with_others:
        further = others(one.family, one.number, one.mutant.kernel, one.whole, one.mutant.line, one.overlaps)
        for trial, its in further:
            yield trial, its, {"counters": True, **ORDERS[0]}


# ---------------------------------------------------------------- the command


def report(found: Iterable[tuple[int, Drawn]]) -> int:
    """Run numbered mutants, print their fates and the scores; return the number of survivors."""
    scores: dict[str, Counter[str]] = defaultdict(Counter)
    start = time.monotonic()
    for number, one in found:
        began = time.process_time()
        fate = verdict(one)
        for key in ("all", one.family, one.mutant.change.kind):
            scores[key][fate] += 1
        print(f"{number:4} {time.process_time() - began:5.1f} s  {fate}: {one.mutant}", flush=True)
    for key in sorted(scores, key=lambda key: (key == "all", key)):
        print(f"{key:32} {_score(scores[key])}")
    print(*(f"{number} {fate}" for fate, number in scores["all"].most_common()), sep=", ")
    print(f"{time.monotonic() - start:.0f} seconds")
    return scores["all"][SURVIVED] + scores["all"][NEVER_RUN]


def _chosen(given: argparse.Namespace) -> Iterator[tuple[int, Drawn]]:
    """Yield the mutants that the command line selects, with their numbers."""
    if given.each:
        yield from islice(enumerate(each(given.seed, given.families, given.kinds)), given.first, None)
        return
    for number in range(given.first, given.first + given.count):
        one = drawn(given.seed, number, given.families, given.kinds)
        if one is not None:
            yield number, one


def _score(verdicts: Counter[str]) -> str:
    judged = verdicts.total() - verdicts[KNOWN] - verdicts[NO_PROGRAM]
    right = judged - verdicts[SURVIVED] - verdicts[NEVER_RUN]
    beside = ", ".join(
        f"{verdicts[word]} {word}" for word in (SURVIVED, NEVER_RUN, KNOWN, NO_PROGRAM, TRAFFIC) if verdicts[word]
    )
    ran = max(1, judged - verdicts[NEVER_RUN])
    shares = f"{right:4} of {judged:4} noticed, {right / max(1, judged):6.1%}, of those that run {right / ran:6.1%}"
    return shares + (f" ({beside})" if beside else "")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="number of mutants to draw (300)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice (0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant (0)")
    parser.add_argument("--families", nargs="+", default=["*"], metavar="PATTERN", help="only these, as 'conv/wgmma/*'")
    parser.add_argument("--kinds", nargs="+", default=[], metavar="KIND", help="only these, as barrier wait predicate")
    parser.add_argument("--each", action="store_true", help="run each change of each source line once")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(min(1, report(_chosen(_parsed()))))
