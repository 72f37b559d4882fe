"""Whole networks on NumPy against ONNX Runtime on the CPU: batch 1, float32, same process, in turns.

The ratio is ONNX Runtime's time over ours (medians). Both sides have folded what they fold; ONNX Runtime has its
default optimizations. Shufflenet, nearly all of whose layers are grouped, is a class of its own.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks import gpu_summary, machine, peers, timing
from benchmarks.networks import DATA, with_random_weights

Row = dict[str, Any]
AIM = 0.6  # of the geometric mean
CLASSES = {"networks": (), "shufflenet": ("shufflenet",)}
_CLOSE = 1e-4  # of the largest output; the tests derive a bound for each network
_HEAD = f"{'network':16} {'ours ms':>9} {'ORT ms':>9} {'ratio':>6}"


def run(arguments: argparse.Namespace) -> int:
    """Measure the chosen networks, print the table, write the JSON; 1 where a result was wrong."""
    names = sorted(path.stem.removeprefix("light_") for path in (DATA / "light").glob("*.onnx"))
    print(_HEAD)
    rows = []
    for name in names:
        if arguments.layers in name:
            rows.append(_measure(name, arguments))
            print(_line(rows[-1]), flush=True)
    classes = _summary(rows)
    machine.write(arguments.json, _record(arguments, rows, classes))
    return int(any(row["wrong"] for row in rows))


def _measure(name: str, arguments: argparse.Namespace) -> Row:
    from gpuconv.onnx import backend  # late: it reads the number of threads, which the command line sets

    model = with_random_weights(DATA / "light" / f"light_{name}.onnx", seed=0)
    x = np.random.default_rng(1).standard_normal((1, 3, 224, 224), np.float32)
    session = peers.session(model, arguments.threads, bool(arguments.spin))
    weights = {tensor.name for tensor in model.graph.initializer}
    feeds = {value.name: x for value in model.graph.input if value.name not in weights}
    rep = backend.prepare(model)
    ours, peer = partial(rep.run, feeds), partial(session.run, None, feeds)
    row: Row = {"network": name, "wrong": _difference(ours()[0], peer()[0])}
    others = machine.Others()
    our_times, peer_times = timing.alternate(ours, peer, arguments.seconds)
    row |= {"our_seconds": our_times, "ort_seconds": peer_times, "busy_cores": others.cores()}
    row |= {"our_median": median(our_times), "ort_median": median(peer_times)}
    return row | {"ratio": row["ort_median"] / row["our_median"]}


def _difference(ours: Any, peer: Any) -> str:
    if ours.shape != peer.shape:
        return f"shape {ours.shape}, not {peer.shape}"
    error = float(np.abs(ours - peer).max() / np.abs(peer).max())
    return "" if error <= _CLOSE else f"off by {error:.3g} of the largest output"


def _line(row: Row) -> str:
    milliseconds = f"{row['our_median'] * 1e3:9.2f} {row['ort_median'] * 1e3:9.2f}"
    line = f"{row['network']:16} {milliseconds} {row['ratio']:6.2f}"
    if row["busy_cores"] > 0.1:
        line += f"  disturbed: other processes kept {row['busy_cores']:.1f} cores busy"
    return f"{line}  WRONG: {row['wrong']}" if row["wrong"] else line


def _summary(rows: list[Row]) -> dict[str, Row]:
    """Print and return the geometric mean and the minimum of each class; wrong results count as 0."""
    alone = {name for names in CLASSES.values() for name in names}
    classes = {}
    for kind, names in CLASSES.items():
        ratios = {
            row["network"]: 0.0 if row["wrong"] else row["ratio"]
            for row in rows
            if (row["network"] in names if names else row["network"] not in alone)
        }
        if not ratios:
            continue
        slowest = min(ratios, key=lambda name: ratios[name])
        mean = gpu_summary.mean(ratios.values())
        classes[kind] = {"networks": len(ratios), "mean": mean, "min": ratios[slowest], "slowest": slowest}
        print(f"{kind:16} geometric mean {mean:.2f} of {len(ratios)}, slowest {slowest} {ratios[slowest]:.2f}")
    if "networks" in classes:
        met = classes["networks"]["mean"] >= AIM
        print(f"{'aim':16} mean >= {AIM}: {'met' if met else 'NOT MET'}")
    return classes


def _record(arguments: argparse.Namespace, rows: list[Row], classes: dict[str, Row]) -> Row:
    return {
        "command": machine.command(),
        "machine": machine.describe(["numpy", "onnx", "onnxruntime"]),
        "threads": arguments.threads,
        "ort_allow_spinning": bool(arguments.spin),
        "classes": classes,
        "rows": rows,
    }
