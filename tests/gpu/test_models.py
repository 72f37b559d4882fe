"""Whole models on a GPU, compared with the CPU: operators made of CuPy's functions, and networks of PyTorch."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.onnx import backend
from tests.harness import cuda_device
from tests.onnx.models import CONTROL_TESTS, OPERATORS, assert_expected, data_of, is_left, node_tests, on_host, values
from tests.onnx.networks import NAMES, limit, load

SORTED = ("TopK",)  # by Thrust, which the emulated device lacks: onnx/test_detecting.py tests it with a fake of CuPy
SLOW, MANY = ("AffineGrid", "Attention", "BitShift"), 5  # many kernels to compile: every fifth test is emulated
EVERY_RUN = "superresolution"  # the smallest network; the emulator takes seconds for larger ones
SEQUENCES = re.compile("seq|opt")  # in the names of tests whose values are not arrays
pytestmark = [pytest.mark.gpu, cuda_device.sampled(4)]


@pytest.mark.parametrize("op_type", OPERATORS)
def test_node_tests(op_type: str) -> None:
    if op_type in SORTED and cuda_device.emulated():
        pytest.skip("the emulated device cannot sort")
    found = [(test, *data_of(test)) for test in node_tests().values() if not is_left(op_type, test)]
    found = [one for one in found if [node.op_type for node in one[1].graph.node] == [op_type]]
    for test, model, data in found[:: MANY if op_type in SLOW and cuda_device.emulated() else 1]:
        for inputs, outputs in data:
            feeds = values(inputs)
            reads = on_host(model.graph.node[0], model.opset_import[0].version, feeds)
            got = backend.prepare(model, "CUDA", fold=False).run(
                [value if at in reads else to_device(value) for at, value in enumerate(feeds)]
            )
            assert_expected(map(to_host, got), values(outputs), test)


def moved(move: Callable[[Any], Any], value: Any) -> Any:
    """Move an array, those of a sequence, or that of an optional, which may be empty."""
    if isinstance(value, list):
        return [moved(move, item) for item in value]
    return None if value is None else move(value)


to_device, to_host = partial(moved, gpuconv.to_device), partial(moved, gpuconv.to_host)


@pytest.mark.parametrize("name", [name for name in CONTROL_TESTS if not SEQUENCES.search(name)])
def test_graphs_inside_of_nodes(name: str) -> None:
    test = node_tests()[name]
    model, data = data_of(test)
    for inputs, outputs in data:
        got = backend.prepare(model, "CUDA").run([to_device(value) for value in values(inputs)])
        assert_expected(map(to_host, got), values(outputs), test)


@pytest.mark.parametrize(
    "name",
    [name if name == EVERY_RUN else pytest.param(name, marks=cuda_device.thorough_if_emulated()) for name in NAMES],
)
def test_network(name: str) -> None:
    model, x = load(name)
    (expected,) = backend.prepare(model).run([x])
    rep = backend.prepare(model, "CUDA")
    (got,) = rep.run([x])
    assert np.abs(got - expected).max() <= 2 * limit(model) * np.abs(expected).max()
    (again,) = rep.run([gpuconv.to_device(x)])
    np.testing.assert_array_equal(gpuconv.to_host(again), got)
