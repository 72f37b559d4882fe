"""Measure whole networks on NumPy while other processes keep every core busy, relative to an idle machine.

With one spinning process per core, a fair scheduler leaves half of each core: a factor of 2 is unavoidable. Threads
that wait for each other by spinning would take many times as long.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

from benchmarks import machine, networks, timing
from benchmarks.networks import Network

Row = dict[str, Any]
AIM = 2.5  # largest allowed ratio of loaded to idle time
_SHARE = 0.5  # share of a network's seconds for each of the two measurements
_HEAD = f"{'network':18} {'quiet ms':>9} {'loaded ms':>9} {'times':>6}"


def run(arguments: argparse.Namespace) -> int:
    """Measure the selected networks, print the table and write the JSON."""
    print(_HEAD)
    rows = []
    for network in networks.NETWORKS:
        if arguments.layers in network.name:
            rows.append(_measure(network, arguments.seconds))
            print(_line(rows[-1]), flush=True)
    worst = max((row["times"] for row in rows), default=0.0)
    print(f"at most {AIM} times: {'met' if worst <= AIM else 'NOT MET'}, {worst:.2f}")
    described = machine.describe(["numpy", "onnx"])
    machine.write(arguments.json, {"command": machine.command(), "machine": described, "aim": AIM, "rows": rows})
    return 0


def _measure(network: Network, seconds: float) -> Row:
    from gpuconv.onnx import backend  # late: it reads the number of threads, which the command line sets

    model = network.build()
    call = partial(backend.prepare(model).run, networks.feeds(model))
    call()
    others = machine.Others()
    quiet = timing.repeated(call, seconds * _SHARE)
    row: Row = {"network": network.name, "quiet_seconds": quiet, "busy_cores": others.cores()}
    with _busy():
        row["loaded_seconds"] = timing.repeated(call, seconds * _SHARE)
    return row | {"times": median(row["loaded_seconds"]) / median(quiet)}


@contextmanager
def _busy() -> Iterator[None]:
    """Run one spinning process for each core that this process may use."""
    cores = machine.describe()["cores"]
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        time.sleep(0.2)  # until they have started
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def _line(row: Row) -> str:
    quiet, loaded = (median(row[f"{kind}_seconds"]) * 1e3 for kind in ("quiet", "loaded"))
    line = f"{row['network']:18} {quiet:9.2f} {loaded:9.2f} {row['times']:6.2f}"
    if row["busy_cores"] > 0.1:
        line += f"  disturbed: other processes kept {row['busy_cores']:.1f} cores busy"
    return line
