"""Break what kernels are compiled to, one instruction at a time, and see that each break is noticed.

`python -m tests.harness.mutate_ptx --count 300 --seed 0` draws mutants of the PTX of all families, prints one line for
each and the scores by family and by kind; `--families 'conv/wgmma/*'` takes them of some, `--kinds wait barrier` some
kinds alone. Whatever is drawn has a number, and depends on the seed and that number alone: a family, one of its
problems of `specimen.sources_of_kernels`, one of its kernels that the problem launches, one of the kinds below that
the kernel has, and one of the mutants of that kind, each time with equal chances. So barriers, fences and waits, which
are few, are drawn as often as offsets and comparisons.

A mutant is noticed where, on one of its family's problems, a result is wrong or the emulator reports something. Mutants
known to be as right as the kernels themselves are listed, with reasons, in `equivalent_ptx`.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from functools import cache, partial
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import pytest

from gpuconv import GpuconvError
from gpuconv.cuda.build.variant import Variant
from tests.emulated_cuda.emulator.engine import module
from tests.emulator import EmulatorError
from tests.emulator.device import EmulatedCuda
from tests.harness import fused, many_blocks, many_gradients, many_wgmma, passes, specimen
from tests.harness.equivalent_ptx import EQUIVALENT
from tests.harness.many_blocks import ManyBlocks
from tests.harness.ptx_changes import Mutant, mutants, with_line
from tests.oracle.strategies import Problem

STEPS = tuple(3 * 10**power for power in range(3, 9))  # that one warp of a right kernel may take
MORE = 4  # times as many a mutant may take
ORDERS: tuple[dict[str, Any], ...] = (  # of warps and of asynchronous copies
    {"seed": 5},
    {"seed": 6, "async_order": "random"},
    {"seed": 7, "late_async": False},
)
TURNS = (0, 1, 2, 4)  # pairs of fused calls
GROWTHS, LIE = (1, 2, 3, 5, 7), ("contiguous", "channels last", "strided")
SURVIVED, NEVER_RUN, KNOWN, NO_PROGRAM = "NOT NOTICED", "NOT RUN", "equivalent", "no program"
_KNOWN = {name for names in EQUIVALENT.values() for name in names}


# ---------------------------------------------------------------- which there are


Trial = Callable[..., Any]  # of an architecture and the emulator's options


def _trial(one: specimen.Trial) -> Trial:
    return partial(many_blocks.run, one) if isinstance(one, ManyBlocks) else one


@cache
def _trials(family: str) -> tuple[Trial, ...]:
    return tuple(map(_trial, specimen.sources_of_kernels()[family]))


class Right(NamedTuple):
    """What right kernels do on a problem: the texts of the family's kernels, by their names, and a limit of steps."""

    texts: dict[str, str]
    steps: int


@cache
def _right(family: str, trial: Trial) -> Right:
    for steps in STEPS:
        try:
            return Right(_launched(family, trial, steps), MORE * steps)
        except EmulatorError as error:
            if "instruction limit" not in str(error):
                raise
    raise AssertionError(f"{trial} of {family} takes more than {STEPS[-1]} steps")


def _launched(family: str, trial: Trial, steps: int) -> dict[str, str]:
    """Run a problem and return the texts of the family's kernels that it launches."""
    texts: dict[str, str] = {}
    usual = EmulatedCuda.ptx

    def seen(emulated: EmulatedCuda, variant: Variant, architecture: str) -> bytes:
        text = usual(emulated, variant, architecture)
        if variant.source == family:
            texts[variant.name] = text.decode()
        return text

    with mock.patch.object(EmulatedCuda, "ptx", seen):
        trial(None, max_steps=steps, **ORDERS[0])
    return texts


def families(patterns: Iterable[str] = ("*",)) -> list[str]:
    """Return the families, by the source of their kernels, that a pattern fits."""
    return [one for one in sorted(specimen.sources_of_kernels()) if any(fnmatch(one, pattern) for pattern in patterns)]


class Drawn(NamedTuple):
    """A mutant with the family and the number of the problem that it was drawn from, and its kernel's whole text."""

    family: str
    number: int
    mutant: Mutant
    whole: str


def drawn(seed: int, number: int, patterns: Sequence[str] = ("*",), kinds: Sequence[str] = ()) -> Drawn | None:
    """Draw a mutant; None where the kernel that was drawn has none of these kinds."""
    random = Random(f"{seed} {number}")
    family = random.choice(families(patterns))
    problem = random.randrange(len(_trials(family)))
    texts = _right(family, _trials(family)[problem]).texts
    if not texts:
        return None
    kernel = random.choice(sorted(texts))
    by_kind: dict[str, list[Mutant]] = defaultdict(list)
    for one in mutants(kernel, texts[kernel]):
        by_kind[one.change.kind].append(one)
    wanted = [kind for kind in sorted(by_kind) if not kinds or kind in kinds]
    if not wanted:
        return None
    return Drawn(family, problem, random.choice(by_kind[random.choice(wanted)]), texts[kernel])


# ---------------------------------------------------------------- noticing


def noticed(one: Drawn, text: str, trial: Trial, steps: int, **options: Any) -> str | None:
    """Say what notices another text of a kernel on a problem, None where nothing does."""
    usual = EmulatedCuda.ptx

    def changed(emulated: EmulatedCuda, variant: Variant, architecture: str) -> bytes:
        right = usual(emulated, variant, architecture)  # which makes the kernel known, too
        return text.encode() if right == one.whole.encode() else right

    with mock.patch.object(EmulatedCuda, "ptx", changed):
        return outcome(partial(trial, None, max_steps=steps, **options))


def outcome(trial: Callable[[], Any]) -> str | None:
    """Say how a trial fails, None where it does not."""
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
    """A report's first words, without names and numbers."""
    if "were never written" in message:
        return "never written"
    first = re.sub(r"^\S+: | at address.*", "", message.split("\n")[0])
    return re.sub(r"[0-9]+", "N", first).split(":")[0][:40]


def verdict(one: Drawn, with_others: bool = True) -> str:
    """How a mutant is noticed, in words, or one of the constants above; quicker without the family's other problems."""
    if module.cache_info().currsize > 256:
        module.cache_clear()
    text, own = one.mutant.text(one.whole), _trials(one.family)[one.number]
    steps = _right(one.family, own).steps
    orders = (noticed(one, text, own, steps, **order) for order in ORDERS)
    found = next(filter(None, orders), None)
    if found is None and one.mutant.name in _KNOWN:
        return KNOWN
    if found is None and with_others:
        others = (noticed(one, text, trial, limit, **ORDERS[0]) for trial, limit in _others(one))
        found = next(filter(None, others), None)
    return found or (SURVIVED if _runs(one, own, steps, with_others) else NEVER_RUN)


def _runs(one: Drawn, own: Trial, steps: int, with_others: bool) -> bool:
    """Tell whether a problem runs the instruction: `trap` in its place is noticed."""
    trap = with_line(one.whole, one.mutant.line, "\ttrap;")
    trials = ((own, steps), *(_others(one) if with_others else ()))
    return any(noticed(one, trap, trial, limit, **ORDERS[0]) for trial, limit in trials)


def _others(one: Drawn) -> Iterator[tuple[Trial, int]]:
    """Yield further problems on which the same kernel is right, and their limits of steps.

    First the family's others that launch it, then some that are made of them: fused calls, larger extents, and
    problems that other kernels of the family are there for.
    """
    for number, trial in enumerate(_trials(one.family)):
        if number != one.number and _may_launch(one.family, number, one.mutant.kernel):
            right = _right(one.family, trial)
            if one.whole in right.texts.values():
                yield trial, right.steps
    for trial in _further(one.family, one.number):
        texts = _tried(one.family, trial)
        if one.whole in texts.values():
            yield trial, STEPS[-1]


def _may_launch(family: str, number: int, kernel: str) -> bool:
    """Tell whether a problem may launch a kernel: what it says, before it is run, of the one that makes its result."""
    main = getattr(specimen.sources_of_kernels()[family][number], "kernel", None)
    return main is None or family in specimen.PASSES or main.removesuffix("_split") in kernel


@cache
def _tried(family: str, trial: Trial) -> dict[str, str]:
    """Return what a problem launches, nothing where planners have no such candidate for it, or fewer blocks."""
    try:
        return _launched(family, trial, STEPS[-1])
    except (AssertionError, StopIteration, GpuconvError, ValueError):
        return {}


@cache
def _further(family: str, number: int) -> tuple[Trial, ...]:
    mine = specimen.sources_of_kernels()[family][number]
    rest = [] if family in specimen.PASSES and isinstance(mine, ManyBlocks) else specimen.sources_of_kernels()[family]
    theirs: list[Any] = [one for one in rest if one is not mine and type(one) is type(mine)]
    if isinstance(mine, ManyBlocks):
        finishes = [partial(fused.check_problem, mine, turn) for turn in TURNS if mine in fused.KERNELS]
        grown = [replace(mine, problem=_grown(mine.problem, more)) for more in GROWTHS]
        others = [
            *(replace(mine, out=lies) for lies in LIE),
            *grown,
            *(replace(one, kernel=mine.kernel) for one in theirs),
        ]
        return (*finishes, *map(_trial, others))
    if isinstance(mine, many_wgmma.Trial):
        same = {"candidate": mine.candidate, "dtype": mine.dtype, "precision": mine.precision, "kinds": mine.kinds}
        finishes = [replace(mine, out=lies, finished=True) for lies in LIE]
        return (*finishes, *(replace(one, **same, finished=end) for one in theirs for end in (False, True)))
    if isinstance(mine, passes.Moved):
        return tuple(replace(mine, shape=(*mine.shape[:-1], mine.shape[-1] + more)) for more in GROWTHS)
    if isinstance(mine, partial) and mine.func is many_gradients._tile:
        shape, problem, dtype, layout, precision = mine.args
        pairs = [(_grown(problem, more), layout) for more in GROWTHS] + [one.args[1:4:2] for one in theirs]
        return tuple(partial(mine.func, shape, other, dtype, lies, precision) for other, lies in pairs)
    if isinstance(mine, partial) and mine.func is many_gradients._weights:
        kernel, problem, dtype, layout = mine.args
        problems = [_grown(problem, more) for more in GROWTHS] + [one.args[1] for one in many_gradients.LARGE_WEIGHTS]
        return tuple(partial(mine.func, kernel, other, dtype, layout, **mine.keywords) for other in problems)
    if isinstance(mine, partial) and mine.func is many_gradients._walk:
        kernel, _, _, dtype, _ = mine.args
        return tuple(partial(mine.func, kernel, *one.args[1:3], dtype, one.args[4]) for one in theirs)
    return ()


def _grown(problem: Problem, more: int) -> Problem:
    """The same with so many more output channels in each group, and pixels along the last axis."""
    x_shape = (*problem.x_shape[:-1], problem.x_shape[-1] + more)
    if problem.w_shape is None:
        return replace(problem, x_shape=x_shape)
    group, (first, second, *taps) = problem.attributes.get("group", 1), problem.w_shape
    if problem.operator == "conv":
        channels = first = first + more * group
    else:
        second += more
        channels = second * group
    b_shape = None if problem.b_shape is None else (channels,)
    return replace(problem, x_shape=x_shape, w_shape=(first, second, *taps), b_shape=b_shape)


# ---------------------------------------------------------------- the command


def report(count: int, seed: int, patterns: Sequence[str], kinds: Sequence[str], first: int = 0) -> int:
    """Run mutants, print what becomes of them and the scores; return how many nothing notices."""
    scores: dict[str, Counter[str]] = defaultdict(Counter)
    for number in range(first, first + count):
        began = time.process_time()
        one = drawn(seed, number, patterns, kinds)
        if one is None:
            continue
        found = verdict(one)
        for key in ("all", one.family, one.mutant.change.kind):
            scores[key][found] += 1
        print(f"{number:4} {time.process_time() - began:5.1f} s  {found}: {one.mutant}", flush=True)
    for key in sorted(scores, key=lambda key: (key == "all", key)):
        print(f"{key:32} {_score(scores[key])}")
    print(*(f"{number} {found}" for found, number in scores["all"].most_common()), sep=", ")
    return scores["all"][SURVIVED] + scores["all"][NEVER_RUN]


def _score(verdicts: Counter[str]) -> str:
    judged = verdicts.total() - verdicts[KNOWN] - verdicts[NO_PROGRAM]
    right = judged - verdicts[SURVIVED] - verdicts[NEVER_RUN]
    beside = ", ".join(
        f"{verdicts[word]} {word}" for word in (SURVIVED, NEVER_RUN, KNOWN, NO_PROGRAM) if verdicts[word]
    )
    ran = max(1, judged - verdicts[NEVER_RUN])
    shares = f"{right:4} of {judged:4} noticed, {right / max(1, judged):6.1%}, of those that run {right / ran:6.1%}"
    return shares + (f" ({beside})" if beside else "")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="mutants to draw (300)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice (0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one (0)")
    parser.add_argument("--families", nargs="+", default=["*"], metavar="PATTERN", help="such as 'conv/wgmma/*'")
    parser.add_argument("--kinds", nargs="+", default=[], metavar="KIND", help="such as barrier, wait or predicate")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = _parsed()
    sys.exit(min(1, report(chosen.count, chosen.seed, chosen.families, chosen.kinds, chosen.first)))
