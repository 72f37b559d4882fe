"""Weights of a model on a device: they are packed by prepare if the shapes of values are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import gpuconv
from gpuconv.onnx import backend
from tests.emulator import emulated_cuda
from tests.oracle.operands import values
from tests.oracle.oracle import assert_same

pytestmark = pytest.mark.emulator
X = (1, 16, 9, 8)


def network(shape: Any = X) -> onnx.ModelProto:
    """Return two layers with the first one's result as residual, and a third layer."""
    weights = {
        "w": values("integers", 1, (20, 16, 3, 3), np.float32),
        "b": values("integers", 2, (20,), np.float32),
        "v": values("integers", 3, (20, 20, 3, 3), np.float32),
        "u": values("integers", 4, (20, 12, 2, 2), np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["d"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["d", "r"], ["s"]),
        helper.make_node("ConvTranspose", ["s", "u"], ["y"], strides=[1, 1]),
    ]
    graph = helper.make_graph(
        nodes,
        "three_layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 12, "h", "w"])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


def packing(launches: list[Any]) -> list[bool]:
    """Return for each launch whether it packs weights."""
    return [record.variant.name.startswith("pack") for record in launches]


def test_weights_are_packed_when_a_model_is_prepared() -> None:
    x = values("integers", 5, X, np.float32)
    (expected,) = backend.prepare(network()).run([x])
    with emulated_cuda("sm_90a") as emulated:
        model = backend.prepare(network(), "CUDA")
        packed = len(emulated.launches)
        assert packing(emulated.launches) == packed * [True]
        assert packed >= 2
        for _ in range(2):
            assert_same(np.asarray(model.run([x])[0]), expected)
        ran = packing(emulated.launches[packed:])
        assert not any(ran)
        assert len(ran) == 2 * 3


def test_weights_for_inputs_of_any_extent_are_packed_in_the_first_run() -> None:
    x = values("integers", 5, X, np.float32)
    (expected,) = backend.prepare(network()).run([x])
    with emulated_cuda("sm_90a") as emulated:
        model = backend.prepare(network(("n", 16, "h", "w")), "CUDA")
        assert emulated.launches == []
        assert_same(np.asarray(model.run([x])[0]), expected)
        first = len(emulated.launches)
        assert sum(packing(emulated.launches)) >= 2
        model.run([x])
        assert not any(packing(emulated.launches[first:]))


def test_what_cannot_be_planned_is_told_whoever_runs_the_model() -> None:
    proto = network()
    proto.graph.node[0].attribute.append(helper.make_attribute("group", 2))
    with emulated_cuda("sm_90a"):
        model = backend.prepare(proto, "CUDA")
        with pytest.raises(gpuconv.ArgumentError, match="Conv node with output 'r': x has 16 channels, but w expects"):
            model.run([values("integers", 5, X, np.float32)])
