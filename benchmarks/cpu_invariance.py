"""Measure the cost of ``invariant="batch"`` on the CPU: the same call with and without it, alternating, per batch size.

Times are processor time of this process over all threads, so other work on the machine disturbs them less. The ratio is
the invariant call's median time divided by the other's: 1.1 means 10 % slower.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

import gpuconv
from benchmarks import cpu, gpu_summary, layers, machine
from benchmarks.layers import Layer

SIZES = (1, 8, 32)
_MOST = 6e9  # operations per call; larger calls are skipped
_LEAST_ROUNDS = 5


def run(arguments: argparse.Namespace) -> int:
    """Measure the selected layers at all batch sizes, print the table and write the JSON."""
    chosen = [layer for layer in layers.select(layers.load(), arguments.layers, arguments.op) if _is_measured(layer)]
    rows = []
    print(f"{'layer':22} " + " ".join(f"{f'N = {size}':>8}" for size in SIZES))
    for layer in chosen:
        rows.append({"layer": layer.id, "ratios": _ratios(layer, arguments.seconds)})
        texts = (f"{ratio:8.2f}" if ratio else f"{'-':>8}" for ratio in rows[-1]["ratios"])
        print(f"{layer.id:22} {' '.join(texts)}", flush=True)
    found = [[row["ratios"][at] for row in rows if row["ratios"][at]] for at in range(len(SIZES))]
    means = [gpu_summary.mean(ratios) if ratios else None for ratios in found]
    print(f"{'geometric mean':22} " + " ".join(f"{mean:8.2f}" if mean else f"{'-':>8}" for mean in means))
    record = {"command": machine.command(), "machine": machine.describe(), "sizes": SIZES, "means": means, "rows": rows}
    machine.write(arguments.json, record)
    return 0


def _is_measured(layer: Layer) -> bool:
    return layer.multiplies and not layer.call and "fp32" in layer.dtypes


def _ratios(layer: Layer, seconds: float) -> list[float | None]:
    of_sizes = [replace(layer, x=(size, *layer.x[1:])) for size in SIZES]
    return [_ratio(sized, seconds) if sized.flops <= _MOST else None for sized in of_sizes]


def _ratio(layer: Layer, seconds: float) -> float:
    x, weights = cpu._operands(layer)
    function = gpuconv.conv if layer.op == "Conv" else gpuconv.conv_transpose

    def call(word: Any) -> Any:
        return function(x, weights["w"], weights["b"], invariant=word, **layer.attributes())

    if not np.array_equal(call("batch"), call(None)):  # small integers: exact in every order
        raise SystemExit(f"{layer.id}: the invariant call is wrong")
    samples: dict[Any, list[float]] = {None: [], "batch": []}
    while sum(map(sum, samples.values())) < seconds or len(samples[None]) < _LEAST_ROUNDS:
        for word, times in samples.items():
            times.append(_used(lambda word=word: call(word)))
    return median(samples["batch"]) / median(samples[None])


def _used(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start
