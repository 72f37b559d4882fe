"""Run every kernel on the problems of `small_shapes`: one row per call and candidate.

    python -m benchmarks.smoke --rows FILE --each-kernel --repeats 20
    compute-sanitizer --tool racecheck python -m benchmarks.smoke --rows FILE --families mma --dtypes float16

Results must equal the NumPy backend's, and repeated runs must give the same bits. The host synchronises after every
launch, so that a kernel that hangs is known by name; it is not launched again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import gpuconv
from benchmarks import small_shapes
from benchmarks.progress import Rows, spread
from benchmarks.small_shapes import Problem
from benchmarks.supervision import LOST
from gpuconv.cuda.build import params
from gpuconv.cuda.call import device
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.offers import Candidate

Call = tuple[Problem, str, bool]
_FIRST = ("bfloat16", "float16")  # dtypes to run first


class Suspect(Exception):
    """The kernel hung or crashed its process in an earlier run, so it is not launched."""


class Turn:
    """Picks candidate number ``number`` (modulo their count) at each choice; turn 0 records what each candidate
    launches.

    Candidate names count in addition to kernel names, since one kernel may serve several candidates, such as those with
    and without split-K.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.launches: list[list[frozenset[str]]] = []  # per choice and candidate: its name and its kernels
        self.picked: set[str] = set()

    def __call__(self, candidates: Sequence[Candidate]) -> Candidate:
        """Return the picked candidate."""
        if self._number == 0:
            self.launches.append([kernels_of(one) | {one.name} for one in candidates])
        picked = candidates[self._number % len(candidates)]
        self.picked.add(picked.name)
        return picked


def kernels_of(candidate: Candidate) -> frozenset[str]:
    """Return the names of the kernels that a candidate launches."""
    return frozenset(launch.variant.name for launch in candidate.make().launches)


class Smoke:
    """Runs all calls with all candidates.

    Parameters
    ----------
    rows : Rows
    each_kernel : bool
        Skip candidates whose name and kernels have all passed already.
    families : sequence of str
        Run only candidates with one of these in their name or in a kernel's name; empty: all.
    repeats : int
        Number of runs that must give the same bits.
    """

    def __init__(self, rows: Rows, each_kernel: bool = False, families: Sequence[str] = (), repeats: int = 1) -> None:
        self._rows, self._each_kernel, self._families, self._repeats = rows, each_kernel, families, repeats
        passed = [line for line in rows.ended.values() if line["status"] == "passed"]
        self.seen = {name for line in passed for name in line["kernels"]}
        lost = [name for name, line in rows.ended.items() if line["status"] in ("hung", "died")]
        self._suspects = {rows.noted[name]["kernel"] for name in lost if name in rows.noted}
        self._row, self._turn = "", Turn(0)  # the current row and turn
        self._launched: list[str] = []

    def run(self, calls: Sequence[Call]) -> None:
        """Run the rows of these calls that have not ended."""
        for call in calls:
            self._run_call(call)

    def _run_call(self, call: Call) -> None:
        """Run all turns of a call; turn 0 finds out which candidates there are."""
        choices = self._run_turn(call, 0)
        for number in range(1, max(map(len, choices), default=0)):
            if self._is_wanted({name for each in choices for name in each[number % len(each)]}):
                self._run_turn(call, number)

    def _is_wanted(self, names: set[str]) -> bool:
        if self._families and not any(family in name for family in self._families for name in names - self.seen):
            return False
        return bool(names - self.seen) or not self._each_kernel

    def _run_turn(self, call: Call, number: int) -> list[list[frozenset[str]]]:
        """Run one row unless it has ended; return the choices of turn 0, each a list of its candidates' kernels."""
        problem, dtype, wide = call
        row = f"{title_of(problem)} {dtype}{' wide' if wide else ''} {number}"
        turn = Turn(number)
        for title in self._rows.left([row]):
            self._row, self._turn, self._launched = title, turn, []
            try:
                with _index_width(wide), offers.picking(turn), self._hooked():
                    wrong = self._differences(problem, dtype)
                self._end("failed" if wrong else "passed", "; ".join(wrong))
            except Suspect as suspect:
                self._end("skipped", f"{suspect} is not launched again")
            except Exception as error:  # record the failure and go on with the next row
                self._end("failed", f"{self._launched[-1:]} {type(error).__name__}: {error}")
                if not alive():
                    sys.exit(LOST)
        noted = self._rows.noted.get(row, {}).get("choices", ())
        return [[frozenset(names.split()) for names in each] for each in noted]

    def _end(self, status: str, detail: str) -> None:
        kernels = sorted(self._turn.picked.union(self._launched))
        self._rows.end(self._row, status, kernels=kernels, **({"detail": detail[:300]} if detail else {}))
        self.seen.update(kernels if status == "passed" else ())

    def _note(self, kernel: str) -> None:
        """Write the kernel that is launched next, and the choices seen so far."""
        choices = [[" ".join(sorted(names)) for names in each] for each in self._turn.launches]
        known = self._rows.noted.get(self._row, {}).get("choices", [])
        self._rows.note(self._row, kernel=kernel, **({"choices": choices} if len(choices) > len(known) else {}))

    def _differences(self, problem: Problem, dtype: str) -> list[str]:
        """Describe results that differ from NumPy's, or bits that differ between runs."""
        arrays = small_shapes.operands(problem, dtype)
        expected = small_shapes.compute(problem, arrays)
        given = moved(arrays)
        first = list(map(gpuconv.to_host, small_shapes.compute(problem, given)))
        which = f"{', '.join(sorted(set(self._launched)))[:150]}: result"
        wrong = [
            f"{which} {number}: {np.count_nonzero(found != e)} of {e.size} elements"
            for number, (found, e) in enumerate(zip(first, expected, strict=True))
            if not np.array_equal(found, e)
        ]
        for run in range(1, self._repeats):
            again = map(gpuconv.to_host, small_shapes.compute(problem, given))
            if any(a.tobytes() != b.tobytes() for a, b in zip(again, first, strict=True)):
                return [*wrong, f"{which}: other bits in run {run}"]
        return wrong

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        """Make each launch note its kernel and synchronise; cached launches are not used."""
        load, bind, names = device.load, device.bind, {}

        def noted_load(variant: Any, *rest: Any) -> Any:
            handle = load(variant, *rest)
            names[id(handle)] = variant.name
            return handle

        def noted_bind(handle: Any, *rest: Any) -> Callable[[], None]:
            launch, name = bind(handle, *rest), names[id(handle)]

            def run() -> None:
                if name in self._suspects:
                    raise Suspect(name)
                if name not in self._launched:
                    self._note(name)
                self._launched.append(name)
                launch()
                device.wait()

            return run

        replaced = {"load": noted_load, "bind": noted_bind, "prepared": {}}
        with mock.patch.multiple(device, **replaced):
            yield


def moved(arrays: list[Any]) -> list[Any]:
    """Return the arrays on the device."""
    return [gpuconv.to_device(array) for array in arrays]


@contextmanager
def _index_width(wide: bool) -> Iterator[None]:
    with mock.patch.object(params, "INDEX_LIMIT", 1 if wide else params.INDEX_LIMIT):
        yield


def title_of(problem: Problem) -> str:
    """Return a problem in one short line."""
    shapes = " ".join("x".join(map(str, shape)) for shape in (problem.x, problem.w) if shape)
    attributes = " ".join(f"{name}={value}".replace(" ", "") for name, value in problem.attributes.items())
    return " ".join(part for part in (problem.operator, shapes, attributes, "gradients" * problem.gradients) if part)


def alive() -> bool:
    """Return whether the CUDA context still works."""
    try:
        device.wait()
    except Exception:
        return False
    return True


def ordered(dtypes: Sequence[str] = ()) -> list[Call]:
    """Return all calls, or those in ``dtypes``: 32-bit indices first, then tensor-core problems, then 16-bit floats."""
    found = [call for call in small_shapes.calls() if not dtypes or call[1] in dtypes]
    return sorted(found, key=lambda call: (call[2], call[0] not in small_shapes.TENSOR, call[1] not in _FIRST))


def main() -> int:
    """Run the missing rows; return 1 if one failed, 2 without a device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.smoke", description=__doc__)
    parser.add_argument("--rows", type=Path, required=True, metavar="FILE", help="append rows to FILE (JSON lines)")
    parser.add_argument("--step", default="smoke", help="name of the step in these rows (%(default)s)")
    parser.add_argument("--each-kernel", action="store_true", help="skip candidates whose kernels have all passed")
    parser.add_argument(
        "--families", nargs="+", default=[], metavar="NAME", help="run only kernels with a NAME in their names"
    )
    parser.add_argument("--dtypes", nargs="+", default=[], metavar="DTYPE", help="run only calls in these dtypes")
    parser.add_argument("--most", type=int, metavar="N", help="run only N calls, evenly spaced over all")
    parser.add_argument("--repeats", type=int, default=1, help="runs that must give the same bits (default 1)")
    arguments = parser.parse_args()
    reason = device.unavailable_reason()
    if reason is not None:
        print(f"smoke: no GPU to run on: {reason}", file=sys.stderr)
        return 2
    import cupy  # type: ignore[import-not-found]

    cupy.cuda.set_allocator(None)  # a separate allocation per array, so that memcheck sees out-of-bounds accesses
    rows = Rows(arguments.rows, arguments.step)
    smoke = Smoke(rows, arguments.each_kernel, arguments.families, arguments.repeats)
    smoke.run(spread(ordered(arguments.dtypes), arguments.most))
    wrong = sum(line["status"] != "passed" for line in rows.ended.values())
    print(f"{len(rows.ended)} calls of {len(smoke.seen)} kernels, {wrong} rows not right")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
