"""Compare gpuconv.onnx.OPS with onnx.reference's own operators: one node run by ReferenceEvaluator, alternating.

The ratio is onnx.reference's median time divided by gpuconv's: 10 is ten times as fast. Each row has more than 10^6
products (taps of windows for pools, elements for MaxUnpool). ``loops`` names what onnx.reference iterates over in
Python: groups, windows or elements.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import Any

import numpy as np
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from benchmarks import machine, timing
from gpuconv.onnx import OPS

_ROUNDS, _FEW = 15, 3  # rounds per row, and per row with calls longer than _LONG
_LONG = 0.2  # seconds
_OPSET = 22


@dataclass(frozen=True)
class Row:
    """One node: its operator, the shapes of x and of the weights or window, and its attributes."""

    op: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    loops: str = ""
    dtype: str = "float32"
    attributes: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The row's shapes, dtype and attributes as text."""
        words = ["×".join(map(str, self.x)) + (" by " + "×".join(map(str, self.w)) if self.w else ""), self.dtype]
        words += [f"{name} {value}" for name, value in (self.attributes or {}).items()]
        return ", ".join(words)


def _conv(x: tuple[int, ...], w: tuple[int, ...], dtype: str = "float32", **attributes: Any) -> Row:
    return Row("Conv", x, w, "", dtype, attributes)


def _transposed(x: tuple[int, ...], w: tuple[int, ...], dtype: str = "float32", **attributes: Any) -> Row:
    return Row("ConvTranspose", x, w, "groups" if attributes.get("group", 1) > 1 else "", dtype, attributes)


def _pool(op: str, x: tuple[int, ...], window: tuple[int, ...], dtype: str = "float32", **attributes: Any) -> Row:
    return Row(op, x, window, "windows", dtype, attributes)


PADDED: dict[str, Any] = {"pads": [1, 1, 1, 1]}
ROWS = (
    _conv((1, 16, 24, 24), (16, 16, 3, 3)),
    _conv((1, 64, 28, 28), (64, 64, 3, 3), **PADDED),
    _conv((8, 32, 28, 28), (32, 32, 3, 3), **PADDED),
    _conv((1, 128, 28, 28), (128, 128, 1, 1)),
    _conv((1, 3, 112, 112), (32, 3, 7, 7), pads=[3, 3, 3, 3], strides=[2, 2]),
    _conv((1, 32, 28, 28), (32, 32, 3, 3), dilations=[2, 2]),
    _conv((2, 16, 2000), (16, 16, 5)),
    _conv((1, 8, 12, 12, 12), (8, 8, 3, 3, 3)),
    _conv((1, 32, 28, 28), (32, 32, 3, 3), "float64", **PADDED),
    _conv((1, 32, 28, 28), (32, 32, 3, 3), "float16", **PADDED),
    _conv((1, 32, 24, 24), (32, 16, 3, 3), group=2, **PADDED),
    _conv((1, 64, 24, 24), (64, 8, 3, 3), group=8, **PADDED),
    _conv((1, 128, 16, 16), (128, 4, 3, 3), group=32, **PADDED),
    _conv((1, 128, 56, 56), (128, 1, 3, 3), group=128, **PADDED),
    _transposed((1, 16, 24, 24), (16, 16, 3, 3)),
    _transposed((1, 64, 14, 14), (64, 64, 2, 2), strides=[2, 2]),
    _transposed((1, 32, 14, 14), (32, 32, 4, 4), strides=[2, 2], **PADDED),
    _transposed((2, 16, 500), (16, 16, 4), strides=[2]),
    _transposed((1, 32, 14, 14), (32, 32, 3, 3), "float16"),
    _transposed((4, 2, 80, 80), (2, 1, 5, 5), group=2),  # onnx.reference needs one group per channel
    _transposed((1, 8, 80, 80), (8, 1, 5, 5), group=8),
    _transposed((1, 64, 32, 32), (64, 1, 4, 4), group=64, strides=[2, 2], **PADDED),
    _pool("MaxPool", (1, 32, 64, 64), (3, 3), **PADDED),
    _pool("MaxPool", (1, 160, 56, 56), (3, 3), strides=[2, 2], **PADDED),
    _pool("MaxPool", (1, 32, 64, 64), (3, 3), "float16", **PADDED),
    _pool("MaxPool", (2, 8, 20, 20, 20), (3, 3, 3)),
    _pool("AveragePool", (1, 32, 64, 64), (3, 3), **PADDED),
    _pool("AveragePool", (1, 64, 64, 64), (2, 2), "float16"),
    Row("GlobalAveragePool", (8, 64, 56, 56), ()),
    Row("GlobalAveragePool", (1, 1280, 28, 28), (), dtype="float16"),
    Row("MaxUnpool", (1, 64, 64, 64), (2, 2), "elements", attributes={"strides": [2, 2]}),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure all rows, print the table and write the JSON."""
    rows = []
    others = machine.Others()
    for row in (row for row in ROWS if arguments.op in (None, row.op)):
        ours, theirs = _seconds(row)
        rows.append({"op": row.op, "row": row.name, "loops": row.loops, "ours": ours, "reference": theirs})
        print(f"{row.op:18} {row.name:70} {ours * 1e3:9.3f} {theirs * 1e3:9.3f} {theirs / ours:8.2f}", flush=True)
    record = {
        "command": machine.command(),
        "machine": machine.describe(("numpy", "onnx")),
        "threads": arguments.threads,
        "busy_cores": round(others.cores(), 2),
        "rows": rows,
    }
    machine.write(arguments.json, record)
    return 0


def _seconds(row: Row) -> tuple[float, float]:
    """Return the median seconds of gpuconv's operators and of onnx.reference's."""
    model, inputs = _model(row)
    ours, theirs = (ReferenceEvaluator(model, new_ops=ops) for ops in (OPS, None))
    calls: tuple[Callable[[], Any], ...] = (lambda: ours.run(None, inputs), lambda: theirs.run(None, inputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        long = [timing.once(call) > _LONG for call in calls]
        turns = [timing.once if each else timing.warm for each in long]
        rounds = [
            [turn(call) for turn, call in zip(turns, calls, strict=True)] for _ in range(_FEW if any(long) else _ROUNDS)
        ]
    ours_of, theirs_of = zip(*rounds, strict=True)
    return median(ours_of), median(theirs_of)


def _model(row: Row) -> tuple[Any, dict[str, Any]]:
    """Return a one-node model with constant weights, and its inputs; all values are small integers."""
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 9, row.x).astype(row.dtype)
    given = dict(row.attributes or {})
    inputs, constants = {"x": x}, []
    if row.op.startswith("Conv"):
        w = rng.integers(-8, 9, row.w).astype(row.dtype)
        constants = [numpy_helper.from_array(w, "w")]
    elif row.w:
        given["kernel_shape"] = list(row.w)
    if row.op == "MaxUnpool":
        inputs["i"] = np.arange(x.size).reshape(x.shape) * prod(given["strides"])
    node = helper.make_node(row.op, [*inputs, *(tensor.name for tensor in constants)], ["y"], **given)
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    y = helper.make_tensor_value_info("y", values[0].type.tensor_type.elem_type, [None] * x.ndim)
    graph = helper.make_graph([node], "row", values, [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10), inputs
