"""Run random nodes in gpuconv and in ONNX Runtime, and compare both with the specification."""

from __future__ import annotations

import contextlib
import warnings
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from gpuconv.onnx import backend
from tests.onnx.networks import onnxruntime_run
from tests.onnx.sweep import classical, elements, layers, sequences, tensors  # noqa: F401  # they register
from tests.onnx.sweep.drawing import CLOSE, MAKERS, Draw, Trial, is_float, span


@dataclass
class Tally:
    """Counts of the results of one operator's random nodes."""

    domain: str
    op_type: str
    opsets: tuple[int, int]
    nodes: int = 0
    asked: int = 0  # nodes that ONNX Runtime computed, too
    kinds: Counter[str] = field(default_factory=Counter)  # of differences from the specification
    others: int = 0  # nodes in which ONNX Runtime differs from the specification
    evaluator: int = 0  # nodes in which onnx's reference evaluator differs from it, or fails

    def __str__(self) -> str:
        wrong = sum(self.kinds.values())
        head = f"{self.op_type:28} opsets {self.opsets[0]}-{self.opsets[1]}: {self.nodes} nodes, {wrong} differ"
        others = f"onnx's evaluator: {self.evaluator} differ; ONNX Runtime: {self.asked} nodes, {self.others} differ"
        return f"{head}; {others}" + "".join(f"\n    {count} x {kind}" for kind, count in self.kinds.most_common())


def made(op_type: str, domain: str, seed: int) -> tuple[int, Trial]:
    """Return an opset and a random node for a seed."""
    rng = np.random.default_rng([zlib.crc32(op_type.encode()), seed])
    first, last = span(op_type, domain)
    opset = int(rng.integers(first, last + 1))
    return opset, MAKERS[domain, op_type](Draw(rng, op_type, domain, opset))


def model_of(op_type: str, domain: str, opset: int, trial: Trial) -> onnx.ModelProto:
    """Return a model of one node with the inputs of the trial."""
    names = ["" if value is None else f"x{at}" for at, value in enumerate(trial.inputs)]
    outputs = [f"y{at}" for at in range(len(trial.expected))]
    node = helper.make_node(op_type, names, outputs, domain=domain, **trial.attributes)
    inputs = [_info(name, value) for name, value in zip(names, trial.inputs, strict=True) if name]
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=name) for name in outputs])
    imports = [helper.make_opsetid("", opset if not domain else 22)]
    imports += [helper.make_opsetid(domain, opset)] if domain else []
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _info(name: str, value: Any) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        element = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value[0].dtype), None)
        return helper.make_value_info(name, helper.make_sequence_type_proto(element))
    if isinstance(value, dict):
        key, item = next(iter(value.items()))
        number = onnx.TensorProto.STRING if isinstance(key, str) else onnx.TensorProto.INT64
        kind = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(np.asarray(item).dtype), ())
        return helper.make_value_info(name, helper.make_map_type_proto(number, kind))
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def difference(got: list[Any], trial: Trial) -> str:
    """Return how results differ from what a trial expects, or ""."""
    for at, (value, expected) in enumerate(zip(got, trial.expected, strict=True)):
        found = _difference(value, expected, trial.loose)
        if found:
            return f"output {at}: {found}"
    return ""


def _difference(value: Any, expected: Any, loose: float) -> str:
    if isinstance(expected, list):
        if not isinstance(value, list) or len(value) != len(expected):
            return f"{type(value).__name__} of {len(value) if isinstance(value, list) else '?'}, not {len(expected)}"
        return next((d for d in map(_difference, value, expected, [loose] * len(value)) if d), "")
    if not hasattr(value, "dtype"):
        return f"{type(value).__name__} instead of an array"
    if "O" in (expected.dtype.char, value.dtype.char) or value.dtype.kind in "UT":
        same = value.shape == expected.shape and value.astype(object).tolist() == expected.tolist()
        kind = "" if value.dtype == object else f" (as {value.dtype})"
        return "" if same and not kind else f"text{kind}" if not same else f"type{kind}"
    if value.dtype != expected.dtype:
        return f"{value.dtype} instead of {expected.dtype}"
    if value.shape != expected.shape:
        return "another shape"
    if not is_float(expected.dtype):
        return "" if np.array_equal(value, expected) else "values"
    close = CLOSE[expected.dtype.name] * loose
    pair = value.astype(np.float64), expected.astype(np.float64)
    size = np.abs(pair[1][np.isfinite(pair[1])]).max(initial=0)
    least = close * min(1.0, float(size)) if loose > 1 else np.finfo(np.float32).tiny
    return "" if np.allclose(*pair, rtol=close, atol=float(least), equal_nan=True) else "values"


def sweep(domain: str, op_type: str, nodes: int, seed: int, verbose: bool = False, ask: bool = True) -> Tally:
    """Compare random nodes of an operator; with ask, in ONNX Runtime too."""
    tally = Tally(domain, op_type, span(op_type, domain))
    for number in range(nodes):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            opset, trial = made(op_type, domain, seed * 1_000_000 + number)
            model = model_of(op_type, domain, opset, trial)
            feeds = [value for value in trial.inputs if value is not None]
            found = _ours(model, feeds, trial)
        tally.nodes += 1
        if found:
            tally.kinds[found] += 1
            if verbose and tally.kinds[found] <= 2:
                _show(op_type, opset, trial, found, model, feeds)
        if ask:
            tally.evaluator += bool(_evaluators(model, feeds, trial))
            other = _theirs(model, feeds, trial)
            tally.asked += other is not None
            tally.others += bool(other)
            if verbose and other and tally.others <= 2:
                print("   ONNX Runtime:", other, op_type, opset, trial.attributes, [_brief(v) for v in trial.inputs])
    return tally


def _ours(model: Any, feeds: list[Any], trial: Trial) -> str:
    try:
        return difference(list(backend.run_model(model, feeds)), trial)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[-110:]}"


def _theirs(model: Any, feeds: list[Any], trial: Trial) -> str | None:
    """Return how ONNX Runtime differs, or None where it does not compute the node."""
    names = [value.name for value in model.graph.input]
    try:
        return difference(onnxruntime_run(model, dict(zip(names, feeds, strict=True))), trial)
    except Exception:
        return None


def _evaluators(model: Any, feeds: list[Any], trial: Trial) -> str:
    """Return how onnx's reference evaluator itself differs; the type of its text is ignored."""
    names = [value.name for value in model.graph.input]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = ReferenceEvaluator(model).run(None, dict(zip(names, feeds, strict=True)))
            return difference([np.asarray(v) if isinstance(v, np.generic) else _as_text(v) for v in found], trial)
        except Exception as error:
            return str(error)


def _as_text(value: Any) -> Any:
    return value.astype(object) if isinstance(value, np.ndarray) and value.dtype.kind in "UT" else value


def _brief(value: Any) -> Any:
    if isinstance(value, list):
        return [_brief(item) for item in value]
    return value if not hasattr(value, "dtype") else f"{value.dtype}{value.shape}{value.reshape(-1)[:8].tolist()}"


def _show(op_type: str, opset: int, trial: Trial, found: str, model: Any, feeds: list[Any]) -> None:
    print("  ", found, "|", op_type, opset, trial.attributes, [_brief(value) for value in trial.inputs])
    print("      expected", [_brief(value) for value in trial.expected])
    with contextlib.suppress(Exception):
        print("      got     ", [_brief(value) for value in backend.run_model(model, feeds)])
