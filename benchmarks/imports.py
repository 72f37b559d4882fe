"""Measure the time of ``import gpuconv`` minus that of ``import numpy``, in fresh processes."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median

from benchmarks import machine

_CHILD = """
import json, time
t0 = time.perf_counter()
import numpy
t1 = time.perf_counter()
import gpuconv
t2 = time.perf_counter()
print(json.dumps({"numpy": (t1 - t0) * 1e3, "gpuconv": (t2 - t1) * 1e3}))
"""


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write the medians; a first process, not counted, warms the file cache and writes bytecode."""
    samples = [_sample() for _ in range(arguments.processes + 1)][1:]
    medians = {name: median(sample[name] for sample in samples) for name in samples[0]}
    print(f"import numpy                {medians['numpy']:8.1f} ms")
    print(f"import gpuconv beyond numpy {medians['gpuconv']:8.1f} ms   (medians of {len(samples)} processes)")
    result = {"command": machine.command(), "machine": machine.describe(), "median_ms": medians, "samples_ms": samples}
    machine.write(arguments.json, result)
    return 0


def _sample() -> dict[str, float]:
    answer = subprocess.run([sys.executable, "-c", _CHILD], check=True, capture_output=True, text=True)
    sample: dict[str, float] = json.loads(answer.stdout)
    return sample
