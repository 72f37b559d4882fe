"""Measure programmatic dependent launch: overlapping launches of one call against the same launches in sequence.

    python -m benchmarks.chained --rows FILE

Each row is a case whose plan, chosen by the model, has several launches. Both forms run on the same operands: their
results must have the same bits, and the median times of a graph replay are recorded.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from benchmarks import gpu, static_plan, sweep, sweep_bench
from benchmarks.progress import Rows
from benchmarks.static_plan import Case
from benchmarks.supervision import LOST, leave
from gpuconv import CompileError
from gpuconv.cuda.call import device

STEP = "chained"
_REPLAYS = 5


def main(argv: list[str] | None = None) -> int:
    """Return 0 if all bits agree or time is up, 1 if some differ, 2 without a device, 3 if the device is lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chained", description=__doc__)
    parser.add_argument("--rows", type=Path, required=True, help="append rows to this file of JSON lines")
    parser.add_argument("--step", default=STEP, help="name of the step in these rows (%(default)s)")
    parser.add_argument("--seconds", type=float, default=40.0, help="start no case after this time (%(default)s)")
    parser.add_argument("--layers", default="", metavar="SUB", help="measure only layers whose name contains SUB")
    parser.add_argument("--most", type=int, metavar="N", help="measure only the first N cases")
    parser.add_argument("--work", type=float, metavar="N", help="shrink layers to N operations, marked in their names")
    arguments = parser.parse_args(argv)
    deadline = time.monotonic() + arguments.seconds
    reason = device.unavailable_reason()
    if reason is not None:
        print(f"python -m benchmarks.chained: no GPU to measure on: {reason}", file=sys.stderr)
        return 2
    rows = Rows(arguments.rows, arguments.step)
    with sweep_bench.opened() as bench:
        if not _can_chain():
            print("chained: launches do not overlap on this device, or NVIDIA's binding of the driver is absent")
            return 0
        cases = sweep.chosen(arguments.layers, None, arguments.work)
        return _run(bench, _with_several_launches(bench, cases, arguments.most), rows, deadline)


def _run(bench: Any, cases: Sequence[tuple[Case, Any]], rows: Rows, deadline: float) -> int:
    by_name = {str(case): (case, plan) for case, plan in cases}
    for name in rows.left(by_name):
        if time.monotonic() > deadline:
            rows.end(name, "skipped", detail="no time was left")
            continue
        try:
            found = _compared(bench, *by_name[name])
        except CompileError as error:  # a pack of precompiled kernels may lack the overlapping ones
            rows.end(name, "skipped", detail=str(error).splitlines()[0][:200])
        except Exception as error:
            if not bench.alive():
                raise gpu.DeviceLost(str(error)) from error
            rows.end(name, "failed", detail=f"{type(error).__name__}: {error}"[:200])
        else:
            rows.end(name, "failed" if "detail" in found else "passed", **found)
    return int(any(line["status"] == "failed" for line in rows.ended.values()))


def _with_several_launches(bench: Any, cases: Sequence[Case], most: int | None) -> list[tuple[Case, Any]]:
    """Return up to ``most`` cases whose plans have several launches, with their plans."""
    found: list[tuple[Case, Any]] = []
    for case in cases:
        plan = static_plan.plan(case, sweep.device_of(bench.limits), static_plan.Chooser())
        if len(plan.launches) > 1:
            found.append((case, plan))
        if len(found) == most:
            break
    return found


def _compared(bench: Any, case: Case, plan: Any) -> dict[str, Any]:
    """Return the fields of a case's row: times and launches, or only ``detail`` if bits differ."""
    bench.load(case, 1e-5)
    calls = {}
    for form in ("plain", "overlapping"):
        with _chained_launches(form == "overlapping"):
            calls[form] = bench.prepare(plan)
    results = {form: bench.result(call) for form, call in calls.items()}
    wrong, elements = bench.differing(results["overlapping"][0], results["plain"][0])
    if wrong:
        return {"detail": f"{wrong} of {elements} elements differ where launches overlap"}
    replays = {form: bench.replay(call, results[form][1]) for form, call in calls.items()}
    samples: dict[str, list[float]] = {form: [] for form in calls}
    for _ in range(_REPLAYS):
        for form, replay in replays.items():
            samples[form].append(replay())
    plain, overlapping = (median(samples[form]) * 1e6 for form in samples)
    names = " ".join(launch.variant.name for launch in plan.launches)
    return {"value": f"plain {plain:.2f} us, overlapping {overlapping:.2f} us", "launches": names}


def _can_chain() -> bool:
    with _chained_launches(True):
        return device.chains(device.current_device())


@contextmanager
def _chained_launches(on: bool) -> Iterator[None]:
    with mock.patch.dict(os.environ, GPUCONV_CHAINED_LAUNCHES=str(int(on))):
        yield


if __name__ == "__main__":
    try:
        leave(main())
    except gpu.DeviceLost as error:
        print(f"chained: the device is lost: {error}", flush=True)
        leave(LOST)
