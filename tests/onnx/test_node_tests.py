"""ONNX's node tests of every operator around ours, on NumPy arrays and on arrays of a device."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, numpy_helper

from gpuconv.onnx import backend, operators
from gpuconv.onnx.evaluator import Evaluator
from tests.harness.device_arrays import device_arrays
from tests.onnx.models import data_of, node_tests

OPERATORS = sorted(set(operators.TABLE) - {"Upsample", "Constant"})  # no test of their own; one without inputs
# Left to onnx's reference evaluator: training, text, sequences, cubic and antialiased Resize, floating-point numbers of
# 8 bits and fewer, and integers of fewer.
LEFT = {
    "BatchNormalization": ["training_mode"],
    "Cast": ["FLOAT8", "FLOAT4", "INT4", "INT2"],
    "CastLike": ["FLOAT8", "FLOAT4", "INT4", "INT2"],
    "Dropout": ["training"],
    "Equal": ["string"],
    "Identity": ["sequence", "opt"],
    "Resize": ["cubic", "antialias"],
}


@pytest.fixture(scope="module")
def by_operator() -> dict[str, list[Any]]:
    """The tests of a single node, by its operator."""
    found = defaultdict(list)
    for test in node_tests().values():
        graph = data_of(test)[0].graph
        if len(graph.node) == 1 and graph.node[0].domain == "":
            found[graph.node[0].op_type].append(test)
    return found


@pytest.fixture
def referred(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Operators of the nodes that go to the reference evaluator from now on."""
    names: list[str] = []
    method = Evaluator.by_reference

    def spy(self: Evaluator, node: Any, *arguments: Any) -> Any:
        names.append(node.onnx_node.op_type)
        return method(self, node, *arguments)

    monkeypatch.setattr(Evaluator, "by_reference", spy)
    return names


def is_left(op_type: str, test: Any) -> bool:
    return any(part in test.name for part in LEFT.get(op_type, ()))


def values(items: Any) -> list[Any]:
    found = [numpy_helper.to_array(item) if isinstance(item, TensorProto) else item for item in items]
    return [np.asarray(item) if isinstance(item, np.generic) else item for item in found]


def assert_expected(got: Any, expected: list[Any], test: Any) -> None:
    for actual, wanted in zip(got, expected, strict=True):
        if not isinstance(wanted, np.ndarray):
            assert repr(actual) == repr(wanted)
            continue
        assert type(actual) is np.ndarray
        assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
        if wanted.dtype.kind in "OUT":
            np.testing.assert_array_equal(actual, wanted)
        else:
            pair = actual.astype(np.float64), wanted.astype(np.float64)
            np.testing.assert_allclose(*pair, rtol=test.rtol, atol=test.atol, err_msg=test.name)


@pytest.mark.parametrize("op_type", OPERATORS)
def test_on_numpy_arrays(op_type: str, by_operator: dict[str, list[Any]], referred: list[str]) -> None:
    assert by_operator[op_type]
    for test in by_operator[op_type]:
        model, data = data_of(test)
        for inputs, outputs in data:
            referred.clear()
            assert_expected(backend.prepare(model, fold=False).run(values(inputs)), values(outputs), test)
            assert referred == [op_type] * is_left(op_type, test), test.name


@pytest.mark.parametrize("op_type", OPERATORS)
def test_on_device_arrays(op_type: str, by_operator: dict[str, list[Any]], referred: list[str]) -> None:
    for test in by_operator[op_type]:
        if is_left(op_type, test):
            continue
        model, data = data_of(test)
        for inputs, outputs in data:
            feeds = values(inputs)
            reads = on_host(model.graph.node[0], model.opset_import[0].version)
            with device_arrays() as device:
                moved = [array if at in reads else device.array(array) for at, array in enumerate(feeds)]
                got = backend.prepare(model, "CUDA", fold=False).run(moved)
                assert device.to_host == [], test.name
                assert_expected(map(device.memory, got), values(outputs), test)
    assert referred == []


def on_host(node: NodeProto, opset: int) -> set[int]:
    """Return the positions, among the inputs that are there, of those which stay on the host."""
    found = operators.find(node, opset)
    assert found is not None
    there = [at for at, name in enumerate(node.input) if name]
    return {position for position, at in enumerate(there) if at in found[0].on_host}
