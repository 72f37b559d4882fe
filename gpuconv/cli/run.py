"""The command ``gpuconv run``: runs an ONNX model on given or random inputs; prints and writes its outputs."""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpuconv._errors import GpuconvError, printable
from gpuconv.cli import inputs
from gpuconv.cli.outputs import output_folder
from gpuconv.cli.terminal import CommandError, Progress, as_json, table, warnings_in_lines
from gpuconv.cuda.call import device

_PACKAGED = "onnx:"
_MARK = " *"  # follows the names of operators that onnx's reference evaluator computes


class Stopwatch:
    """The backend's observer: records each node's time and the shape of its first output, and shows progress."""

    def __init__(self, progress: Progress) -> None:
        self.nodes: list[tuple[Any, float]] = []
        self.shapes: list[str] = []
        self.left: set[int] = set()  # ids of nodes that onnx's reference evaluator computed
        self._progress = progress

    def __call__(self, node: Any, index: int, count: int, seconds: float) -> None:
        self.nodes.append((node, seconds))
        self._progress.show(f"{index + 1}/{count} {node.op_type}")

    def outputs(self, node: Any, values: Any) -> None:
        """Record the shape of a node's first output; "-" if it is not an array."""
        shape = getattr(next(iter(values), None), "shape", None)
        self.shapes.append("-" if shape is None else str(tuple(shape)))

    def is_left(self, node: Any) -> bool:
        """Return whether onnx's reference evaluator computed a node."""
        return id(node) in self.left

    @property
    def total(self) -> float:
        """Total seconds of all nodes."""
        return sum(seconds for _, seconds in self.nodes)


def command(arguments: argparse.Namespace) -> int:
    """Run a model; print its inputs, its outputs and, with ``--profile``, the time of each node. Return 0."""
    if importlib.util.find_spec("onnx") is None:
        raise CommandError("run: onnx is not installed; pip install 'gpuconv[onnx]'")
    with warnings_in_lines():
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    from gpuconv.onnx import backend

    files, shapes = inputs.pairs(arguments.input), inputs.shapes(arguments.shape)
    path = _path(arguments.model)
    reason = device.unavailable_reason() if arguments.device == "cuda" else None
    if reason is not None:
        raise CommandError(f"run: no CUDA device was found ({reason}); leave out --device cuda to run on the CPU")
    rep = backend.prepare(path, device=arguments.device, untrusted=arguments.untrusted)
    arrays, lines = inputs.make(rep.inputs, files, arguments.seed, shapes)
    with output_folder(arguments.output_dir) as folder:
        if not arguments.json:
            print(f"model {printable(arguments.model)} on {arguments.device}", *map(printable, lines), sep="\n")
        try:
            outputs, watch, seconds = _execute(rep, arrays)
        except GpuconvError as error:
            raise CommandError(f"{error}{inputs.hint(lines)}") from error
        written = list(map(str, folder.write(outputs))) if folder else []
        if arguments.json:
            print(as_json(_facts(arguments, arrays, outputs, watch, seconds) | {"written": written}))
            return 0
        print(_statistics(outputs))
        print(f"ran {len(watch.nodes)} nodes in {seconds * 1e3:.1f} ms")
        if arguments.profile:
            print("", _per_node(watch), "", _per_type(watch), sep="\n")
            if watch.left:
                print("", f"{_MARK.strip()} computed by onnx's reference evaluator", sep="\n")
        for file in written:
            print(f"wrote {file}")
    return 0


def _facts(arguments: argparse.Namespace, arrays: Any, outputs: Any, watch: Stopwatch, seconds: float) -> Any:
    """Return the results for JSON output."""
    nodes = [
        {
            "operator": node.op_type,
            "node": node.name or node.output[0],
            "seconds": took,
            "evaluator": watch.is_left(node),
        }
        for node, took in watch.nodes
    ]
    return {
        "model": arguments.model,
        "device": arguments.device,
        "inputs": {name: {"dtype": array.dtype.name, "shape": list(array.shape)} for name, array in arrays.items()},
        "outputs": {name: _numbers(value) for name, value in outputs.items()},
        "nodes": len(nodes),
        "seconds": seconds,
    } | ({"profile": nodes} if arguments.profile else {})


def _path(model: str) -> Path:
    """Return the model's path; "onnx:NAME" names a network in the onnx package's test data."""
    if not model.startswith(_PACKAGED):
        return Path(model)
    import onnx.backend.test

    data = Path(onnx.backend.test.__file__).parent / "data"
    networks = {path.stem: path for path in data.glob("light/*.onnx")}
    name = model.removeprefix(_PACKAGED)
    if name not in networks:
        there = ", ".join(sorted(networks)) or "none"
        raise CommandError(f"{model}: the onnx package has no such network; it has {there}")
    return networks[name]


def _execute(rep: Any, arrays: Mapping[str, Any]) -> tuple[dict[str, Any], Stopwatch, float]:
    with Progress() as progress, np.errstate(all="ignore"):  # an overflow in a model needs no warning
        watch = Stopwatch(progress)
        start = time.perf_counter()
        outputs = rep.run(dict(arrays), observer=watch)
        seconds = time.perf_counter() - start
        watch.left = {id(node) for node in rep.report().left} & {id(node) for node, _ in watch.nodes}
    return dict(zip(rep.output_names, outputs, strict=True)), watch, seconds


def _statistics(outputs: Mapping[str, Any]) -> str:
    rows = [[printable(name), *_cells(value)] for name, value in outputs.items()]
    return table(["output", "dtype", "shape", "min", "mean", "max"], rows, left=3)


def _cells(value: Any) -> list[str]:
    facts = _numbers(value)
    shape = str(tuple(facts["shape"])) if "shape" in facts else "-"
    return [facts["dtype"], shape, *(f"{facts[name]:.6g}" if name in facts else "-" for name in ("min", "mean", "max"))]


def _numbers(value: Any) -> dict[str, Any]:
    """Return an output's dtype, shape and statistics; for an output that is not an array, only its type."""
    if not isinstance(value, np.ndarray):
        return {"dtype": type(value).__name__}
    kind = {"dtype": value.dtype.name, "shape": list(value.shape)}
    small = value.dtype.type.__module__.startswith("ml_dtypes")  # such as bfloat16
    if value.size == 0 or not (small or value.dtype.kind in "biuf"):
        return kind
    numbers = value.astype(np.float32) if small else value
    with np.errstate(all="ignore"):
        statistics = numbers.min(), numbers.mean(dtype=np.float64), numbers.max()
    return kind | dict(zip(("min", "mean", "max"), map(float, statistics), strict=True))


def _per_node(watch: Stopwatch) -> str:
    rows = [
        [_operator(watch, node), printable(node.name or node.output[0]), shape, *_times(seconds, watch.total)]
        for (node, seconds), shape in zip(watch.nodes, watch.shapes, strict=True)
    ]
    return table(["operator", "node", "output shape", "ms", "share"], rows, left=3)


def _per_type(watch: Stopwatch) -> str:
    groups: dict[str, list[float]] = {}
    for node, seconds in watch.nodes:
        groups.setdefault(_operator(watch, node), []).append(seconds)
    slowest_first = sorted(groups.items(), key=lambda item: -sum(item[1]))
    rows = [[op_type, str(len(times)), *_times(sum(times), watch.total)] for op_type, times in slowest_first]
    rows.append(["all", str(len(watch.nodes)), *_times(watch.total, watch.total)])
    return table(["operator", "nodes", "ms", "share"], rows)


def _operator(watch: Stopwatch, node: Any) -> str:
    return f"{node.op_type}{_MARK if watch.is_left(node) else ''}"


def _times(seconds: float, total: float) -> list[str]:
    return [f"{seconds * 1e3:.3f}", f"{seconds / total if total else 0:.1%}"]
