"""Time every candidate kernel of every layer on a GPU: ``python -m benchmarks.sweep --rows FILE [--seconds 120]``.

The layers are those of ``static_plan.cases``, ordered so that all classes, dtypes and layouts come early. For each case
the planner's pick is measured first, then the others by modelled time. A row is one kernel of one case,
``CASE | KERNEL``. Before them, ``CASE | reference`` runs the general kernel on whole numbers, whose sums are exact in
any order; a kernel whose bits differ from it has failed and is not timed. Kernels far slower than the best run once.
``python -m benchmarks.learn FILE`` evaluates the rows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from benchmarks import floors, gpu, shrink, static_plan, sweep_bench
from benchmarks.progress import Line, Rows
from benchmarks.static_plan import Case
from benchmarks.supervision import LOST, leave
from gpuconv.cuda.call import device
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import Limits, Representative, nearest
from gpuconv.cuda.plan.offers import Candidate
from gpuconv.rules import dtypes

STEP, REFERENCE = "sweep", "reference"
REPLAYS = 5
_MAX_SLOWDOWN = 3.0  # kernels slower than this multiple of the best time are not repeated
_UNCERTAIN_SECONDS = 3e-4  # seconds that host overhead or a cold instruction cache may add to a single run
_STRATUM_OFFSET = 54  # each stratum starts this many layers after the previous one, so that all families come early
_RESERVE = 2.0  # no case is started with less than this many seconds left


class Bench(Protocol):
    """A device that kernels are measured on; a process has one."""

    limits: Limits

    def load(self, case: Case, seconds: float) -> None:
        """Make the operands of a case, replacing those before; a call takes about ``seconds``."""

    def prepare(self, plan: Plan) -> Any:
        """Return a call of the case by a plan, with its kernels loaded."""

    def result(self, call: Any) -> tuple[Any, float]:
        """Return the call's result on whole numbers, computed into poisoned memory, and its approximate seconds."""

    def differing(self, result: Any, reference: Any) -> tuple[int, int]:
        """Return the number of elements in which two results differ, and the number of all elements."""

    def replay(self, call: Any, seconds: float) -> Callable[[], float]:
        """Capture calls of about ``seconds`` each into a graph; return a function that replays it and gives seconds per
        call."""

    def alive(self) -> bool:
        """Return whether the CUDA context still works."""


def main(argv: list[str] | None = None) -> int:
    """Return 0 if all rows are right or time is up, 1 if one is wrong, 2 without a device, 3 if the device was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--rows", type=Path, required=True, help="append rows to this file of JSON lines")
    parser.add_argument("--step", default=STEP, help="name of the step in these rows (%(default)s)")
    parser.add_argument("--seconds", type=float, default=120.0, help="start no case after this time (%(default)s)")
    parser.add_argument("--layers", default="", metavar="SUB", help="measure only layers whose name contains SUB")
    parser.add_argument("--most", type=int, metavar="N", help="measure only the first N cases")
    parser.add_argument("--work", type=float, metavar="N", help="shrink layers to N operations, marked in their names")
    arguments = parser.parse_args(argv)
    deadline = time.monotonic() + arguments.seconds
    rows = Rows(arguments.rows, arguments.step)
    cases = chosen(arguments.layers, arguments.most, arguments.work)
    reason = device.unavailable_reason()
    if reason is not None:
        print(f"python -m benchmarks.sweep: no GPU to measure on: {reason}", file=sys.stderr)
        return 2
    try:
        return _swept(cases, rows, deadline)
    except gpu.DeviceLost as error:
        lost = str(error)
    print(f"sweep: the device is lost: {lost}", flush=True)  # printed last, after messages of failing destructors
    return LOST


def _swept(cases: Sequence[Case], rows: Rows, deadline: float) -> int:
    with sweep_bench.opened() as bench:
        print(f"sweep on {bench.limits.name}", flush=True)
        return run(bench, cases, rows, deadline)


def chosen(pattern: str, most: int | None, work: float | None) -> list[Case]:
    """Return the cases; ``work`` shrinks their layers, which ``benchmarks.learn`` then does not know."""
    cases = stratified(static_plan.cases(pattern))[:most]
    return cases if work is None else [_shrunk(case, work) for case in cases]


def _shrunk(case: Case, work: float) -> Case:
    layer = shrink.shrunk(case.layer, work, lambda layer: True, case.layout)
    return replace(case, layer=replace(layer, id=f"{case.layer.id} shrunk"))


def run(
    bench: Bench, cases: Sequence[Case], rows: Rows, deadline: float, clock: Callable[[], float] = time.monotonic
) -> int:
    """Measure until all is done or the deadline is near; raises DeviceLost and leaves the row open that lost the
    device."""
    done = Counter(_case_of(row) for row in rows.ended)
    order = stratified(cases)
    for number, case in enumerate(order):
        if clock() > deadline - _RESERVE:
            print(f"sweep: time is up: {len(order) - number} of {len(order)} cases are left out", flush=True)
            break
        known = rows.ended.get(row_name(case, REFERENCE), {}).get("candidates")
        if known is None or done[str(case)] <= known:
            walk = _Walk(bench, case, rows, deadline, clock)
            walk.run()
            print(f"sweep: {number + 1}/{len(order)} {case}: {_summary(walk.ended)}", flush=True)
    return int(any(line["status"] != "passed" for line in rows.ended.values()))


def row_name(case: Case, kernel: str) -> str:
    """Return the name of a row."""
    return f"{case} | {kernel}"


def _case_of(row: str) -> str:
    return row.split(" | ")[0]


def _summary(lines: list[Line]) -> str:
    times = sorted(line["seconds"] for line in lines if "seconds" in line)
    wrong = sum(line["status"] != "passed" for line in lines)
    best = f", the best {times[0] * 1e6:.1f} us" if times else ""
    return f"{len(times)} kernels{best}{f', {wrong} FAILED' if wrong else ''}"


def stratified(cases: Sequence[Case]) -> list[Case]:
    """Interleave cases by class, dtype, precision and layout; each of these groups starts at another layer."""
    groups: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.layer.kind, case.dtype, case.precision, case.layout), []).append(case)
    starts = [(_STRATUM_OFFSET * number % len(found), found) for number, found in enumerate(groups.values())]
    turned = [found[start:] + found[:start] for start, found in starts]
    return [case for turn in zip_longest(*turned) for case in turn if case is not None]


# ---------------------------------------------------------------- candidates


def device_of(limits: Limits) -> Representative:
    """Return the representative device of the architecture, with the actual device's limits."""
    return replace(nearest(limits.architecture), limits=limits)


def candidates(case: Case, device: Representative) -> list[Candidate]:
    """Return all candidates of a case, the general kernel first; empty if there is no choice."""
    found: list[Candidate] = []

    def pick(given: Sequence[Candidate]) -> Candidate:
        found.extend(given)
        return offers.quickest(given)

    static_plan.plan(case, device, pick)
    return found


def plan(case: Case, device: Representative, candidate: Candidate) -> Plan:
    """Return the plan of the whole call by this candidate; complex dtypes add launches to the candidate's own plan."""
    if dtypes.entry(case.dtype).real:
        return static_plan.plan(case, device, static_plan.Chooser(candidate.name))
    return replace(candidate.make(), kernel=candidate.name)


class _Walk:
    """Measures one case; ``ended`` has its rows, including those of earlier processes."""

    def __init__(self, bench: Bench, case: Case, rows: Rows, deadline: float, clock: Callable[[], float]) -> None:
        self._bench, self._case, self._rows = bench, case, rows
        self._deadline, self._clock = deadline, clock
        self._device = device_of(bench.limits)
        self._reference: Any = None
        self._loaded = False
        self.ended = [line for row, line in rows.ended.items() if row.startswith(f"{case} | ")]

    def run(self) -> None:
        found = candidates(self._case, self._device)
        if not found:
            return
        order = sorted(found, key=lambda one: one.seconds)  # stable, so the planner's pick is first
        self._refer(found[0], order)
        for candidate in self._left(order) if self._loaded else ():
            self._attempt(candidate.name, partial(self._measure, candidate))

    def _refer(self, general: Candidate, order: list[Candidate]) -> None:
        """Make operands and the reference result; if the reference was lost before, kernels are timed unchecked."""
        name = row_name(self._case, REFERENCE)
        for _ in self._rows.left([name]):
            self._attempt(REFERENCE, lambda: self._description(order) | self._refer_to(general, order))
            return
        try:  # an earlier process computed the reference, or was lost in it
            self._load(order)
            if self._rows.ended[name]["status"] == "passed":
                self._refer_to(general, order)
        except Exception as error:
            self._check_alive(error)
            print(f"sweep: {self._case} is left out: {_first_line(error)}", flush=True)
            self._loaded = False

    def _load(self, order: list[Candidate]) -> None:
        self._bench.load(self._case, order[0].seconds)
        self._loaded = True

    def _refer_to(self, general: Candidate, order: list[Candidate]) -> Line:
        if not self._loaded:
            self._load(order)
        self._reference = self._bench.result(self._bench.prepare(plan(self._case, self._device, general)))[0]
        return {"general": general.name}

    def _description(self, order: list[Candidate]) -> Line:
        case = self._case
        return {
            "class": case.layer.kind,
            "dtype": floors.label(case.dtype, case.precision),
            "layout": case.layout,
            "device": self._bench.limits.name,
            "architecture": self._bench.limits.architecture,
            "multiprocessors": self._bench.limits.multiprocessors,
            "picked": order[0].name,
            "candidates": len(order),
        }

    def _left(self, order: list[Candidate]) -> Iterator[Candidate]:
        by_name = {row_name(self._case, one.name): one for one in order}
        for name in self._rows.left(self._until_late(by_name)):
            yield by_name[name]

    def _until_late(self, names: dict[str, Candidate]) -> Iterator[str]:
        for name in names:
            if self._clock() > self._deadline:
                return
            yield name

    def _attempt(self, name: str, measure: Callable[[], Line]) -> None:
        """Measure and end a row; if the device is lost, the row stays open for the supervisor to end."""
        row = row_name(self._case, name)
        try:
            found = measure()
            status = "failed" if "differing" in found else "passed"
        except Exception as error:  # record the failure and go on with the next kernel
            self._check_alive(error)
            status, found = "failed", {"error": _first_line(error)}
        self._rows.end(row, status, **found)
        self.ended.append(self._rows.ended[row])

    def _check_alive(self, error: Exception) -> None:
        if not self._bench.alive():
            raise gpu.DeviceLost(_first_line(error)) from error

    def _measure(self, candidate: Candidate) -> Line:
        made = plan(self._case, self._device, candidate)
        call = self._bench.prepare(made)
        row: Line = {
            "modelled": _rounded(candidate.seconds),
            "launches": [one.variant.name for one in made.launches],
        }
        result, once = self._bench.result(call)
        if self._reference is None:
            row["checked"] = False
        else:
            wrong, elements = self._bench.differing(result, self._reference)
            if wrong:
                return row | {"differing": wrong, "elements": elements}
        del result
        return row | self._timed(call, once, candidate.seconds)

    def _timed(self, call: Any, once: float, modelled: float) -> Line:
        best = min((line["seconds"] for line in self.ended if "seconds" in line), default=float("inf"))
        if once > _MAX_SLOWDOWN * best + _UNCERTAIN_SECONDS:
            return {"seconds": _rounded(once), "replays": 0}
        replay = self._bench.replay(call, min(once, 2 * modelled))
        samples = [replay()]
        while len(samples) < REPLAYS and samples[0] <= _MAX_SLOWDOWN * best:
            samples.append(replay())
        return {"seconds": _rounded(median(samples)), "replays": len(samples)}


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


if __name__ == "__main__":
    leave(main())
