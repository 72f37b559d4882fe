"""Compare gpuconv on NumPy with ONNX Runtime on the CPU: each layer in float32, alternating in one process.

The ratio is ONNX Runtime's median time divided by gpuconv's: 1 or more means that gpuconv is faster. Operands of Conv
and ConvTranspose are small integers stored as float32, so sums are exact in any order and both results must be equal.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import gpuconv
from benchmarks import gpu_summary, layers, machine, peers, product, random_layers, timing
from benchmarks.layers import Layer

Row = dict[str, Any]
# By class: the required geometric mean of the ratios, and the required smallest ratio.
AIMS: dict[str, tuple[float | None, float | None]] = {
    "dense Conv": (0.8, 0.4),
    "ConvTranspose": (0.7, None),
    "MaxPool values": (0.3, None),
    "MaxPool with Indices": (1.0, None),
}
_HEAD = f"{'layer':22} {'x':>22} {'ours ms':>9} {'ORT ms':>9} {'ratio':>6} {'GFLOP/s':>8} {'extra MB':>9}"


def run(arguments: argparse.Namespace) -> int:
    """Measure the selected layers, print the tables and write the JSON; return 1 if a result was wrong."""
    known = random_layers.layers(arguments.seed, arguments.random) if arguments.random else layers.load()
    chosen = layers.select(known, arguments.layers, arguments.op)
    rows = []
    print(_HEAD)
    for number, layer in enumerate(chosen, 1):
        _progress(f"[{number}/{len(chosen)}] {layer.id}")
        rows.append(_measure(layer, arguments))
        _progress("")
        print(_line(rows[-1]), flush=True)
    classes = _summary(rows)
    machine.write(arguments.json, _record(arguments, rows, classes))
    return int(any(row.get("wrong") for row in rows))


def _measure(layer: Layer, arguments: argparse.Namespace) -> Row:
    if "fp32" not in layer.dtypes:
        return {"layer": asdict(layer), "left_out": "it has no float32 form"}
    small = layers.scaled(layer, arguments.gflop * 1e9)
    x, weights = _operands(small)
    ours = partial(_ours, small, x, weights)
    peer = partial(peers.OnnxRuntime(small, weights, arguments.threads, bool(arguments.spin)), x)
    row: Row = {"layer": asdict(layer), "class": layer.kind, "x": small.x, "y": small.y_shape, "flops": small.flops}
    # Measure the first call: it also allocates the scratch memory that later calls reuse.
    result, row["extra_bytes"] = timing.extra_memory(ours)
    row["wrong"] = _difference(result, peer())
    del result
    others = machine.Others()
    our_times, peer_times = timing.alternate(ours, peer, arguments.seconds)
    row |= {"our_seconds": our_times, "ort_seconds": peer_times, "busy_cores": others.cores()}
    row |= {"our_median": median(our_times), "ort_median": median(peer_times)}
    if layer.kind == "dense Conv":
        row["product_median"] = product.seconds(small)
    return row | {"ratio": row["ort_median"] / row["our_median"]}


def _operands(layer: Layer) -> tuple[Any, dict[str, Any]]:
    """Return x, and the weights by name (none for pools); x of MaxPool is continuous so that no two elements tie."""
    rng = np.random.default_rng(0)
    if layer.op == "MaxPool":
        return rng.standard_normal(layer.x, np.float32), {}
    shapes = {} if layer.pools else {"w": layer.w_shape, "b": (layer.k_out,)}
    weights = {name: rng.integers(-4, 5, shape).astype(np.float32) for name, shape in shapes.items()}
    return rng.integers(-4, 5, layer.x).astype(np.float32), weights


def _ours(layer: Layer, x: Any, weights: dict[str, Any]) -> list[Any]:
    if layer.op == "MaxPool":
        result = gpuconv.max_pool(x, return_indices=layer.indices, **layer.attributes())
        return list(result) if layer.indices else [result]
    if layer.op == "AveragePool":
        return [gpuconv.average_pool(x, **layer.attributes())]
    call = gpuconv.conv if layer.op == "Conv" else gpuconv.conv_transpose
    return [call(x, weights["w"], weights["b"], **layer.attributes())]


def _difference(ours: list[Any], peer: list[Any]) -> str:
    """Describe the first difference between the two results; "" if they are equal."""
    for name, a, b in zip(("y", "indices"), ours, peer, strict=False):
        if a.shape != b.shape:
            return f"{name} has shape {a.shape}, not {b.shape}"
        wrong = int(np.count_nonzero(a != b))
        if wrong:
            return f"{name} differs in {wrong} of {a.size} elements, by up to {np.abs(a - b).max():.3g}"
    return ""


def _line(row: Row) -> str:
    name = row["layer"]["id"]
    if "left_out" in row:
        return f"{name:22} left out: {row['left_out']}"
    milliseconds = f"{row['our_median'] * 1e3:9.3f} {row['ort_median'] * 1e3:9.3f}"
    rate, extra = row["flops"] / row["our_median"] / 1e9, row["extra_bytes"] / 1e6
    line = f"{name:22} {'x'.join(map(str, row['x'])):>22} {milliseconds} {row['ratio']:6.2f} {rate:8.1f} {extra:9.2f}"
    if row["busy_cores"] > 0.1:
        line += f"  disturbed: other processes kept {row['busy_cores']:.1f} cores busy"
    return f"{line}  WRONG: {row['wrong']}" if row["wrong"] else line


def _summary(rows: list[Row]) -> dict[str, Row]:
    """Print and return each class's geometric mean and minimum with its aim; a wrong result counts as ratio 0."""
    classes = {}
    print(f"\n{'class':22} {'layers':>6} {'mean':>6} {'min':>6}  {'slowest layer':22} aim")
    for name in layers.CLASSES:
        ratios = {r["layer"]["id"]: 0.0 if r["wrong"] else r["ratio"] for r in rows if r.get("class") == name}
        if ratios:
            classes[name] = _class_summary(name, ratios)
    products = [r["ort_median"] / r["product_median"] for r in rows if "product_median" in r]
    if products:
        found = gpu_summary.mean(products)
        print(f"{'np.matmul only':22} {len(products):6} {found:6.2f}  on the matrices of the dense layers")
        classes["dense Conv"]["product_mean"] = found
    return classes


def _class_summary(name: str, ratios: dict[str, float]) -> Row:
    slowest = min(ratios, key=lambda layer: ratios[layer])
    least = ratios[slowest]
    mean = gpu_summary.mean(ratios.values())
    mean_aim, least_aim = AIMS.get(name, (None, None))
    met = mean >= (mean_aim or 0) and least >= (least_aim or 0)
    texts = [f"mean >= {mean_aim}"] * (mean_aim is not None) + [f"min >= {least_aim}"] * (least_aim is not None)
    verdict = f"{', '.join(texts)}: {'met' if met else 'NOT MET'}" if texts else ""
    print(f"{name:22} {len(ratios):6} {mean:6.2f} {least:6.2f}  {slowest:22} {verdict}")
    return {"layers": len(ratios), "mean": mean, "min": least, "slowest": slowest, "aim": texts, "met": met}


def _record(arguments: argparse.Namespace, rows: list[Row], classes: dict[str, Row]) -> Row:
    return {
        "command": machine.command(),
        "machine": machine.describe(["numpy", "onnx", "onnxruntime"]),
        "blas": np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"],
        "opset": peers.newest_opset(),
        "threads": arguments.threads,
        "ort_allow_spinning": bool(arguments.spin),
        "gpuconv": gpuconv.__version__,
        "classes": classes,
        "rows": rows,
    }


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
