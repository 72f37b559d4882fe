"""Detect CPU regressions: time this checkout against another revision of gpuconv, layer by layer.

`git archive` extracts the other revision into a temporary folder. For each layer and network, two fresh processes time
the same call alternately (this, other, other, this); one sleeps while the other measures. A row's ratio is this
checkout's time divided by the other's, the median over all pairs: 1.15 means 15 % slower. A large ratio only warns.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import select
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from benchmarks import gpu_summary, layers, machine, networks, random_layers, timing
from benchmarks.layers import Layer
from benchmarks.supervision import ROOT

Row = dict[str, Any]
SLOWER = 1.15  # ratios from here on get a warning
_MIN_PAIRS, _MAX_PAIRS = 4, 24
_SILENT = 60.0  # seconds to wait for a reply of a process
_BRIEF_LAYERS, _BRIEF_NETWORKS, _BRIEF_FLOPS = 12, ("mobilenet_v3", "squeezenet", "unet"), 4e8
_HEAD = f"{'layer or network':24} {'this ms':>9} {'other ms':>9} {'ratio':>6}  {'half of the pairs':17}"


class RevisionMissing(Exception):
    """Git cannot find the requested revision; the message is git's."""


class NoReply(Exception):
    """A timing process exited, did not reply in time, or raised; the message says which."""


def run(arguments: argparse.Namespace) -> int:
    """Compare the selected layers, print the table and write the JSON; return 0 whatever the ratios are."""
    try:
        with tempfile.TemporaryDirectory() as temporary:
            other = Path(temporary, "other")
            revision = extract(arguments.against, other)
            rows = []
            print(f"this checkout against {arguments.against} ({revision}){_busy()}\n{_HEAD}")
            for name, job in _jobs(arguments, Path(temporary)):
                rows.append(_measure(name, job, other, arguments))
                print(_line(rows[-1]), flush=True)
    except RevisionMissing as error:
        print(f"nothing to compare with: git has no revision {arguments.against} ({error}); try --against REVISION")
        return 0
    summary = _summary(rows)
    record = {"command": machine.command(), "machine": machine.describe(), "against": revision, **summary}
    machine.write(arguments.json, {**record, "rows": rows})
    return 0


def _busy() -> str:
    """Return a warning if the load average of the last minute shows that the machine is busy, else ""."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return f"; the machine is not idle, its load is {load:.1f}: do not trust the ratios" if load > 0.5 else ""


def extract(revision: str, folder: Path) -> str:
    """Extract a revision's files into a new folder; return the abbreviated commit hash."""
    commit = _git("rev-parse", "--short", f"{revision}^{{commit}}").decode().strip()
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as archive:
        archive.extractall(folder, filter="data")
    return commit


def _git(*words: str) -> bytes:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=True).stdout
    except FileNotFoundError:
        raise RevisionMissing("git is not installed") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        raise RevisionMissing(said[0] if said else "no message") from None


# ---------------------------------------------------------------- the jobs


def _jobs(arguments: argparse.Namespace, temporary: Path) -> Iterator[tuple[str, Row]]:
    """Yield (name, job) of each selected layer, then of each selected network."""
    if not arguments.models:
        for layer, small in _layers(arguments):
            yield layer.id, _job_of_layer(small)
    if arguments.models or arguments.brief:
        for network in networks.NETWORKS:
            wanted = network.name in _BRIEF_NETWORKS if arguments.brief else arguments.layers in network.name
            if wanted:
                yield network.name, _job_of_network(network, temporary)


def _layers(arguments: argparse.Namespace) -> list[tuple[Layer, Layer]]:
    """Return the selected layers that have a float32 form, as (layer, layer scaled down for a CPU)."""
    if arguments.random:
        return [(layer, layer) for layer in random_layers.layers(arguments.seed, arguments.random)]
    flops = _BRIEF_FLOPS if arguments.brief else arguments.gflop * 1e9
    chosen = [one for one in layers.select(layers.load(), arguments.layers, arguments.op) if "fp32" in one.dtypes]
    if arguments.brief:
        chosen = chosen[:: max(1, len(chosen) // _BRIEF_LAYERS)][:_BRIEF_LAYERS]
    return [(layer, layers.scaled(layer, flops)) for layer in chosen]


def _job_of_layer(layer: Layer) -> Row:
    shapes = [layer.x] if layer.pools else [layer.x, layer.w_shape, (layer.k_out,)]
    keywords = layer.attributes() | ({"return_indices": True} if layer.indices else {})
    return {"kind": "layer", "function": layer.operator, "shapes": shapes, "keywords": keywords}


def _job_of_network(network: networks.Network, temporary: Path) -> Row:
    import onnx

    model, feeds = temporary / f"{network.name}.onnx", temporary / f"{network.name}.npz"
    if not model.exists():
        built = network.build()
        onnx.save(built, model)
        np.savez(feeds, **networks.feeds(built))
    return {"kind": "network", "model": str(model), "feeds": str(feeds)}


# ---------------------------------------------------------------- the two processes


class _Process:
    """A process that times one call with the gpuconv of one checkout, controlled by lines of JSON."""

    def __init__(self, checkout: Path, job: Row, threads: int) -> None:
        limits = {name: str(threads) for name in ("GPUCONV_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | limits
        self._process = subprocess.Popen(
            [sys.executable, "-c", Path(__file__).with_name("turns.py").read_text(encoding="utf-8"), timing.__file__],
            cwd=checkout,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            self.first = self._ask(json.dumps(job))
            if Path(self.first["from"]).resolve() != checkout.resolve():
                raise NoReply(f"gpuconv was imported from {self.first['from']}")
        except BaseException:
            self.end()
            raise

    def turn(self, calls: int) -> float:
        """Return the mean seconds per call over ``calls`` calls, after one untimed call."""
        return float(self._ask(str(calls))["seconds"])

    def _ask(self, line: str) -> Row:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
            ready = select.select([self._process.stdout], [], [], _SILENT)[0]
        except BrokenPipeError:
            ready = [True]
        text = self._process.stdout.readline() if ready else b""
        if not text:
            raise NoReply("its process has died" if ready else f"there was no reply within {_SILENT:.0f} s")
        reply: Row = json.loads(text)
        if "error" in reply:
            raise NoReply(reply["error"])
        return reply

    def end(self) -> None:
        """Kill the process and wait until it has exited."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def _process(checkout: Path, job: Row, threads: int) -> Iterator[_Process]:
    process = _Process(checkout, job, threads)
    try:
        yield process
    finally:
        process.end()


def _measure(name: str, job: Row, other: Path, arguments: argparse.Namespace) -> Row:
    row: Row = {"name": name}
    with ExitStack() as stack:
        sides = []
        for side, checkout in (("this", ROOT), ("other", other)):
            try:
                sides.append(stack.enter_context(_process(checkout, job, arguments.threads)))
            except NoReply as error:
                return row | {"left_out": f"{side} revision: {error}"}
        try:
            times = _pairs(*sides, arguments.seconds)
        except NoReply as error:
            return row | {"left_out": str(error)}
        row |= {"this_seconds": [a for a, _ in times], "other_seconds": [b for _, b in times]}
        row["same_bits"] = sides[0].first["bits"] == sides[1].first["bits"]
    return row | spread([a / b for a, b in times])


def _pairs(this: _Process, other: _Process, seconds: float) -> list[tuple[float, float]]:
    """Return pairs of (this, other) seconds per call; every second pair is measured in reverse order."""
    start = time.perf_counter()
    once = max(this.turn(1), other.turn(1))
    calls, times = max(1, math.ceil(timing.MIN_TURN / once)), list[tuple[float, float]]()
    while len(times) < _MAX_PAIRS and (len(times) < _MIN_PAIRS or time.perf_counter() - start < seconds):
        if len(times) % 2:
            b = other.turn(calls)
            times.append((this.turn(calls), b))
        else:
            a = this.turn(calls)
            times.append((a, other.turn(calls)))
    return times


# ---------------------------------------------------------------- the table


def spread(ratios: Sequence[float]) -> Row:
    """Return the median of the pairs' ratios and their quartiles."""
    low, _, high = quantiles(ratios, n=4, method="inclusive")
    return {"ratio": median(ratios), "low": low, "high": high}


def _line(row: Row) -> str:
    if "left_out" in row:
        return f"{row['name']:24} left out: {row['left_out']}"
    this, other = (median(row[f"{side}_seconds"]) * 1e3 for side in ("this", "other"))
    line = f"{row['name']:24} {this:9.3f} {other:9.3f} {row['ratio']:6.2f}  {row['low']:.2f} to {row['high']:.2f}"
    line += "" if row["same_bits"] else "      other bits"
    return line + (f"      WARNING: slower by {(row['ratio'] - 1) * 100:.0f} %" if row["ratio"] >= SLOWER else "")


def _summary(rows: Sequence[Row]) -> Row:
    """Print and return the geometric mean, and warn about the rows that got slower."""
    ratios = {row["name"]: row["ratio"] for row in rows if "ratio" in row}
    if not ratios:
        print("nothing was compared")
        return {}
    slower = [name for name, ratio in ratios.items() if ratio >= SLOWER]
    mean = gpu_summary.mean(ratios.values())
    extremes = f"of {len(ratios)}, {min(ratios.values()):.2f} to {max(ratios.values()):.2f}"
    print(f"{'geometric mean':24} {'':9} {'':9} {mean:6.2f}  {extremes}")
    if slower or mean >= SLOWER:
        print(f"WARNING: {len(slower)} of {len(ratios)} at {SLOWER} or worse: {', '.join(slower) or 'the mean'}")
    return {"mean": mean, "slower": slower}
