"""Compare whole networks on NumPy with ONNX Runtime on the CPU: batch 1, one process, alternating.

The ratio is ONNX Runtime's median time divided by gpuconv's. Both have applied their graph optimizations, ONNX Runtime
its default ones. The quantized network is a class of its own. Peak memory is measured in separate processes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks import gpu_summary, machine, memory, networks, peers, timing
from benchmarks.networks import Network

Row = dict[str, Any]
AIM, AIM_OF_EACH, AIM_OF_MEMORY = 0.6, 0.34, 1.3  # least geometric mean, least ratio, largest ratio of peak bytes
CLASSES = {
    "shipped": ("shipped",),
    "built": ("built",),
    "all": ("shipped", "built"),
    "quantized": ("quantized",),
}
_JUDGED_CLASSES = ("built", "all")
_HEAD = f"{'network':18} {'ours ms':>9} {'ORT ms':>9} {'ratio':>6} {'ours MB':>8} {'ORT MB':>8}"


def run(arguments: argparse.Namespace) -> int:
    """Measure the selected networks, print the table and write the JSON; return 1 if a result was wrong."""
    print(_HEAD)
    rows = []
    for network in networks.NETWORKS:
        if arguments.layers in network.name:
            rows.append(_measure(network, arguments))
            print(_line(rows[-1]), flush=True)
    classes = _summary(rows)
    machine.write(arguments.json, _record(arguments, rows, classes))
    return int(any(row["wrong"] for row in rows))


def _measure(network: Network, arguments: argparse.Namespace) -> Row:
    from gpuconv.onnx import backend  # late: it reads the number of threads, which the command line sets

    model = network.build()
    feeds = networks.feeds(model)
    session = peers.session(model, arguments.threads, bool(arguments.spin))
    rep = backend.prepare(model)
    ours, peer = partial(rep.run, feeds), partial(session.run, None, feeds)
    row: Row = {"network": network.name, "kind": network.kind, "wrong": _difference(ours(), peer(), network.close)}
    others = machine.Others()
    our_times, peer_times = timing.alternate(ours, peer, arguments.seconds)
    row |= {"our_seconds": our_times, "ort_seconds": peer_times, "busy_cores": others.cores()}
    row |= {"our_median": median(our_times), "ort_median": median(peer_times)}
    del rep, session, ours, peer
    peaks = memory.peaks(model, feeds, arguments.threads)
    row |= {"our_peak_bytes": peaks["gpuconv"], "ort_peak_bytes": peaks["onnxruntime"]}
    return row | {"ratio": row["ort_median"] / row["our_median"]}


def _difference(ours: Sequence[Any], peer: Sequence[Any], close: float) -> str:
    """Describe the first wrong output, or return ""; integer outputs such as indices must be equal."""
    for mine, theirs in zip(ours, peer, strict=True):
        if mine.shape != theirs.shape:
            return f"shape {mine.shape}, not {theirs.shape}"
        if theirs.dtype.kind != "f":
            different = int(np.count_nonzero(mine != theirs))
            if different:
                return f"{different} of {theirs.size} indices differ"
            continue
        error = float(np.abs(mine - theirs).max() / np.abs(theirs).max())
        if not error <= close:
            return f"off by {error:.3g} of the largest output"
    return ""


def _line(row: Row) -> str:
    milliseconds = f"{row['our_median'] * 1e3:9.2f} {row['ort_median'] * 1e3:9.2f}"
    megabytes = " ".join(_megabytes(row[f"{side}_peak_bytes"]) for side in ("our", "ort"))
    line = f"{row['network']:18} {milliseconds} {row['ratio']:6.2f} {megabytes}"
    if row["busy_cores"] > 0.1:
        line += f"  disturbed: other processes kept {row['busy_cores']:.1f} cores busy"
    return f"{line}  WRONG: {row['wrong']}" if row["wrong"] else line


def _megabytes(number: int | None) -> str:
    return f"{'?' if number is None else f'{number / 1e6:.1f}':>8}"


def _summary(rows: list[Row]) -> dict[str, Row]:
    """Print and return the geometric mean and the minimum of each class; a wrong result counts as ratio 0."""
    classes = {}
    for name, kinds in CLASSES.items():
        ratios = {row["network"]: 0.0 if row["wrong"] else row["ratio"] for row in rows if row["kind"] in kinds}
        if ratios:
            classes[name] = _class_summary(name, ratios)
    memory_ratios = {
        row["network"]: row["our_peak_bytes"] / row["ort_peak_bytes"] for row in rows if row["ort_peak_bytes"]
    }
    if memory_ratios:
        most = max(memory_ratios, key=lambda name: memory_ratios[name])
        verdict = f"at most {AIM_OF_MEMORY} times: {'met' if memory_ratios[most] <= AIM_OF_MEMORY else 'NOT MET'}"
        print(f"{'memory':18} most {most} {memory_ratios[most]:.2f}  {verdict}")
    return classes


def _class_summary(name: str, ratios: dict[str, float]) -> Row:
    slowest = min(ratios, key=lambda network: ratios[network])
    mean, least = gpu_summary.mean(ratios.values()), ratios[slowest]
    line = f"{name:18} geometric mean {mean:.2f} of {len(ratios)}, slowest {slowest} {least:.2f}"
    if name in _JUDGED_CLASSES:
        met = mean >= AIM and least >= AIM_OF_EACH
        line += f"  mean >= {AIM}, each >= {AIM_OF_EACH}: {'met' if met else 'NOT MET'}"
    print(line)
    return {"networks": len(ratios), "mean": mean, "min": least, "slowest": slowest}


def _record(arguments: argparse.Namespace, rows: list[Row], classes: dict[str, Row]) -> Row:
    return {
        "command": machine.command(),
        "machine": machine.describe(["numpy", "onnx", "onnxruntime"]),
        "threads": arguments.threads,
        "ort_allow_spinning": bool(arguments.spin),
        "classes": classes,
        "rows": rows,
    }
