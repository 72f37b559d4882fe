"""Measure the cost of a problem's first plan: Python function calls, the same on every machine, and milliseconds.

All cases are planned once before, which fills the per-process caches (struct layouts, device tables). The caches of
problems are cleared before each counted plan.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import _lru_cache_wrapper
from statistics import median
from types import FrameType
from typing import Any

from benchmarks import floors, machine, static_plan
from benchmarks.static_plan import Case
from gpuconv._errors import ArgumentError
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import Representative, representative

MOST_CALLS = 25_000
_MEDIAN_MS, _MOST_MS = 5.0, 15.0  # limits: median of a class, and any case
_SAMPLES = 5
_MANY = 256  # caches of at least this many entries are keyed by problems
_Class = tuple[str, str, str]  # operator, layout and dtype


def run(arguments: argparse.Namespace) -> int:
    """Count, time and print; return 1 if a plan exceeds its limits, 2 for an unknown device."""
    try:
        device = representative(arguments.arch)
    except ArgumentError as reason:
        print(f"python -m benchmarks planning: {reason}", file=sys.stderr)
        return 2
    cases = static_plan.cases(arguments.layers)
    others = machine.Others()
    rows = measured(cases, device)
    busy = others.cores()
    _print(rows, device, busy)
    result = {
        "command": machine.command(),
        "machine": machine.describe(),
        "other_processes_cores": round(busy, 2),
        "device": device.name,
        "rows": rows,
    }
    machine.write(arguments.json, result)
    return int(too_much(rows))


def measured(cases: Iterable[Case], device: Representative) -> list[dict[str, Any]]:
    """Return one row per case."""
    cases = list(cases)
    for case in cases:
        static_plan.planner_of(case, device)()
    return [
        {
            "case": str(case),
            "operator": case.layer.operator,
            "layout": case.layout,
            "dtype": floors.label(case.dtype, case.precision),
            "calls": count(case, device),
            "ms": round(median(_samples(case, device)), 3),
        }
        for case in cases
    ]


def count(case: Case, device: Representative) -> int:
    """Return the number of Python function calls in the first plan of a case; resuming a generator counts as a call."""
    return calls_of(_first(case, device))


def calls_of(function: Callable[[], Any]) -> int:
    """Return the number of Python function calls made by ``function``, its own included."""
    found = 0

    def see(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal found
        found += event == "call"

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found


def _first(case: Case, device: Representative) -> Callable[[], Plan]:
    """Return a function that plans a case with empty problem caches."""
    forget_problems()
    return static_plan.planner_of(case, device)


def forget_problems() -> None:
    """Clear gpuconv's caches that are keyed by problems."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "gpuconv":
            for cached in vars(module).values():
                if isinstance(cached, _lru_cache_wrapper) and (cached.cache_parameters()["maxsize"] or 0) >= _MANY:
                    cached.cache_clear()


def _samples(case: Case, device: Representative) -> Iterator[float]:
    """Yield milliseconds of thread time of the first plan."""
    gc.disable()
    try:
        for _ in range(_SAMPLES):
            plan = _first(case, device)
            start = time.thread_time()
            plan()
            yield (time.thread_time() - start) * 1e3
    finally:
        gc.enable()


def too_much(rows: Iterable[dict[str, Any]]) -> bool:
    """Return whether any case, or the median of any class, exceeds its limit."""
    return any(
        max(row["calls"] for row in of_class) > MOST_CALLS
        or max(row["ms"] for row in of_class) > _MOST_MS
        or median(row["ms"] for row in of_class) > _MEDIAN_MS
        for of_class in _classes(rows).values()
    )


def _classes(rows: Iterable[dict[str, Any]]) -> dict[_Class, list[dict[str, Any]]]:
    found: dict[_Class, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["operator"], row["layout"], row["dtype"]), []).append(row)
    return found


def _print(rows: list[dict[str, Any]], device: Representative, busy: float) -> None:
    print(f"first plans for {device.name}; others kept {busy:.1f} cores busy")
    print(f"{'':44}{'cases':>6}{'calls':>8}{'worst':>8}{'ms':>8}{'worst':>8}  most calls")
    for name, of_class in _classes(rows).items():
        _line(" ".join(name), of_class)
    _line("all", rows)


def _line(name: str, rows: list[dict[str, Any]]) -> None:
    calls, times = ([row[key] for row in rows] for key in ("calls", "ms"))
    worst = max(rows, key=lambda row: row["calls"])["case"]
    print(f"{name:44}{len(rows):6}{median(calls):8.0f}{max(calls):8}{median(times):8.2f}{max(times):8.2f}  {worst}")
