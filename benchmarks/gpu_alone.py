"""Measure the layers without PyTorch: gpuconv's results checked against float64 samples, and timed by graph replay.

`benchmarks.gpu` uses this where PyTorch is not installed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import Any

from benchmarks import calls, floors, gpu_arrays, gpu_check, gpu_layer, gpu_summary, sweep_bench
from benchmarks.gpu_layer import Case, Row
from benchmarks.progress import Rows
from benchmarks.supervision import LOST
from gpuconv.rules.operators import OPERATORS

_REPLAYS = 5
_RESERVE = 5.0  # no row is started with less than this many seconds left


def run(todo: Mapping[str, Case], kept: Rows, most: int | None, deadline: float) -> int:
    """Measure the missing rows; return 1 if a result was wrong, 3 if the device was lost."""
    with sweep_bench.opened() as bench:
        for name in kept.left(list(todo)[:most]):
            try:
                row = _measured(bench, todo[name])
            except Exception as error:  # a failure is a result; go on with the next row
                text = (str(error).strip().splitlines() or [""])[0]
                row = gpu_layer.describe(todo[name], floors.COPY) | {"wrong": f"{type(error).__name__}: {text[:300]}"}
            kept.end(name, "failed" if row["wrong"] else "passed", found=row, detail=row["wrong"])
            print(gpu_summary.line(row), flush=True)
            if not bench.alive():
                return LOST
            if deadline - time.monotonic() < _RESERVE:
                break
    return int(any(line["status"] != "passed" for line in kept.ended.values()))


def _measured(bench: sweep_bench.DeviceBench, case: Case) -> Row:
    layout = gpu_layer.layout_of(case)
    operands = gpu_arrays.operands(bench.cupy, case.layer, case.dtype, layout)
    called = OPERATORS[calls.of(case.layer, layout).operator]

    def in_order(name: str, array: Any) -> Any:
        return array if called.order(name, layout) == "NCHW" else bench.cupy.moveaxis(array, -1, 1)

    call = partial(gpu_layer.ours(case), *operands.values())
    gpu_layer.poison(bench.cupy, case.layer, case.dtype)
    results = [in_order("out", array) for array in call()]
    given = {name: in_order(name, array) for name, array in operands.items()}
    verdict = gpu_check.compare(None, case.layer, case.dtype, given, results, None, case.precision)
    seconds = _seconds(bench, call)
    found = {name: value for name, value in asdict(verdict).items() if value not in (None, "")}
    about = gpu_layer.describe(case, floors.COPY) | {"peer_error": "PyTorch is not here"}
    return about | found | {"wrong": verdict.wrong, "our_seconds": seconds, "our_median": median(seconds)}


def _seconds(bench: sweep_bench.DeviceBench, call: Any) -> list[float]:
    kept: list[Any] = []
    graph = sweep_bench.captured(bench.cupy, lambda: kept.extend(call()))
    graph.launch()  # the first launch also uploads the graph
    return [bench.seconds(graph.launch) for _ in range(_REPLAYS)]
