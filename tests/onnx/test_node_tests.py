"""ONNX's node tests of every operator other than convolutions, on NumPy arrays and on arrays of a device."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from gpuconv.onnx import backend
from tests.harness.device_arrays import device_arrays
from tests.onnx.models import (
    BY_EVALUATOR,
    OPERATORS,
    assert_expected,
    data_of,
    is_left,
    is_narrow,
    node_tests,
    on_host,
    referred,
    values,
)

__all__ = ["referred"]  # a fixture
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def by_operator() -> dict[str, list[Any]]:
    """Return the tests of a single node, by its operator."""
    found = defaultdict(list)
    for test in node_tests().values():
        graph = data_of(test)[0].graph
        if len(graph.node) == 1 and graph.node[0].domain == "":
            found[graph.node[0].op_type].append(test)
    return found


@pytest.mark.parametrize("op_type", OPERATORS)
@BY_EVALUATOR
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
            reads = on_host(model.graph.node[0], model.opset_import[0].version, feeds)
            with device_arrays() as device:
                moved = [
                    device.array(feed) if isinstance(feed, np.ndarray) and at not in reads else feed
                    for at, feed in enumerate(feeds)
                ]
                got = backend.prepare(model, "CUDA", fold=False).run(moved)
                assert device.to_host == [] or any(map(is_narrow, values(outputs))), test.name
                assert_expected(map(device.memory, got), values(outputs), test)
    assert referred == []
