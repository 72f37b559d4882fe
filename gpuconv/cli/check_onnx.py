"""ONNX's own tests of Conv, ConvTranspose and MaxPool: node tests, and models exported from PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test import loader

from gpuconv.cli.compare import Mismatch, exactly, same_kind, worst_element
from gpuconv.onnx import backend as onnx_backend

_OPERATORS = ("Conv", "ConvTranspose", "MaxPool")
_TINY = 2.0**-150  # half the smallest subnormal of float32
_GROUPS = {
    "node": "ONNX node tests",
    "pytorch-converted": "PyTorch models",
    "pytorch-operator": "PyTorch models",
}


@dataclass(frozen=True, slots=True)
class Model:
    """One of ONNX's tests: a model of one node, its inputs and its expected outputs."""

    group: str
    name: str
    model: Any
    inputs: Sequence[Any]
    outputs: Sequence[Any]


def models() -> tuple[list[Model], list[str]]:
    """Return the tests of the three operators, and one line per kind of tests that the onnx package lacks."""
    tests: list[Model] = []
    missing = []
    for kind, group in _GROUPS.items():
        try:
            tests += _read(kind, group)
        except (OSError, ValueError) as error:  # some distributions of onnx omit the test data
            missing.append(f"{group}: the onnx package does not have them ({error})")
    return sorted(tests, key=lambda model: (model.group, model.name)), missing


def _read(kind: str, group: str) -> Iterator[Model]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from tests of other operators, which are loaded too
        tests = loader.load_model_tests(kind=kind)
    for test in tests:
        model = test.model or onnx.load(Path(str(test.model_dir)) / "model.onnx")
        if len(model.graph.node) != 1 or model.graph.node[0].op_type not in _OPERATORS:
            continue
        data = test.data_sets or _data_sets(Path(str(test.model_dir)))
        for inputs, outputs in data:
            yield Model(group, test.name.removeprefix("test_"), model, inputs, outputs)


def _data_sets(folder: Path) -> Iterator[tuple[list[Any], list[Any]]]:
    for data in sorted(folder.glob("test_data_set_*")):
        yield _tensors(data, "input"), _tensors(data, "output")


def _tensors(folder: Path, kind: str) -> list[Any]:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    return [numpy_helper.to_array(onnx.load_tensor(folder / f"{kind}_{n}.pb")) for n in range(count)]


def compare(test: Model, backend: str) -> float:
    """Return the largest error of a test's outputs in units of its bound; raise Mismatch if it exceeds 1."""
    got = _run(test.model, test.inputs, backend)
    if test.model.graph.node[0].op_type == "MaxPool":
        for number, (actual, expected) in enumerate(zip(got, test.outputs, strict=True)):
            exactly(f"output {number}", actual, expected)
        return 0.0
    bound = _bound(test)
    worst = _within("y", got[0], test.outputs[0], bound)
    if backend != "cpu":
        worst = max(worst, _within("y (against the cpu's)", got[0], _run(test.model, test.inputs, "cpu")[0], bound))
    return worst


def _run(model: Any, inputs: Sequence[Any], backend: str) -> Sequence[Any]:
    return tuple(onnx_backend.prepare(model, device=backend.upper()).run(list(inputs)))


def _bound(test: Model) -> Any:
    """Bound the difference of two float32 results, each within (K + 1) u S of the exact one.

    K is the number of terms of a sum, and S the sum of their magnitudes. S is computed by the operator itself, from the
    magnitudes of inputs and weights.
    """
    magnitudes = onnx.ModelProto()
    magnitudes.CopyFrom(test.model)
    for weight in magnitudes.graph.initializer:
        weight.CopyFrom(numpy_helper.from_array(np.abs(numpy_helper.to_array(weight)), weight.name))
    sums = _run(magnitudes, [np.abs(a) for a in test.inputs], "cpu")[0]
    terms = _terms(test) + 1
    return 2 * ((terms + 1) * 2.0**-24 * sums.astype(np.float64) + _TINY)


def _terms(test: Model) -> int:
    """Return the number of products per output: C/group times the taps."""
    graph = test.model.graph
    node = graph.node[0]
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    free = [value.name for value in graph.input if value.name not in weights]
    shapes = weights | {name: array.shape for name, array in zip(free, test.inputs, strict=True)}
    w_shape: tuple[int, ...] = shapes[node.input[1]]
    if node.op_type == "Conv":
        return prod(w_shape[1:])
    group = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
    return w_shape[0] // group * prod(w_shape[2:])


def _within(what: str, got: Any, expected: Any, bound: Any) -> float:
    same_kind(what, got, expected)
    ratio = np.abs(got.astype(np.float64) - expected.astype(np.float64)) / bound
    if not (ratio <= 1).all():
        text = worst_element(what, got, expected, ~(ratio <= 1), ratio)
        raise Mismatch(f"{text}, {ratio.max():.3g} times the bound")
    return float(ratio.max(initial=0.0))
