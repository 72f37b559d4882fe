"""Weights of a model on a device: they are packed by prepare if the shapes of values are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import gpuconv
from gpuconv.onnx import backend
from tests.emulator import emulated_cuda
from tests.onnx.models import model, value
from tests.oracle.operands import values
from tests.oracle.oracle import assert_same

pytestmark = pytest.mark.emulator
X = (1, 16, 9, 8)


def network(shape: Any = X) -> onnx.ModelProto:
    """Two layers with a residual that is the first one's result, and a third one."""
    shapes = {"w": (20, 16, 3, 3), "b": (20,), "v": (20, 20, 3, 3), "u": (20, 12, 2, 2)}
    numbered = enumerate(shapes.items(), 1)
    weights = {name: values("integers", seed, extents, np.float32) for seed, (name, extents) in numbered}
    nodes = """c = Conv <pads = [1, 1, 1, 1]> (x, w, b)  r = Relu (c)
               d = Conv <pads = [1, 1, 1, 1]> (r, v)  s = Add (d, r)
               y = ConvTranspose <strides = [1, 1]> (s, u)"""
    return model(nodes, [value("x", shape=shape)], [value("y", shape=("n", 12, "h", "w"))], 22, weights)


def packing(launches: list[Any]) -> list[bool]:
    """Return for each launch whether it packs weights."""
    return [record.variant.name.startswith("pack") for record in launches]


def test_weights_are_packed_when_a_model_is_prepared() -> None:
    x = values("integers", 5, X, np.float32)
    (expected,) = backend.prepare(network()).run([x])
    with emulated_cuda("sm_90a") as emulated:
        rep = backend.prepare(network(), "CUDA")
        packed = len(emulated.launches)
        assert packing(emulated.launches) == packed * [True]
        assert packed >= 2
        for _ in range(2):
            assert_same(np.asarray(rep.run([x])[0]), expected)
        ran = packing(emulated.launches[packed:])
        assert not any(ran)
        assert len(ran) == 2 * 3


def test_weights_for_inputs_of_any_extent_are_packed_in_the_first_run() -> None:
    x = values("integers", 5, X, np.float32)
    (expected,) = backend.prepare(network()).run([x])
    with emulated_cuda("sm_90a") as emulated:
        rep = backend.prepare(network(("n", 16, "h", "w")), "CUDA")
        assert emulated.launches == []
        assert_same(np.asarray(rep.run([x])[0]), expected)
        first = len(emulated.launches)
        assert sum(packing(emulated.launches)) >= 2
        rep.run([x])
        assert not any(packing(emulated.launches[first:]))


def test_what_cannot_be_planned_is_told_whoever_runs_the_model() -> None:
    proto = network()
    proto.graph.node[0].attribute.append(helper.make_attribute("group", 2))
    with emulated_cuda("sm_90a"):
        rep = backend.prepare(proto, "CUDA")
        with pytest.raises(gpuconv.ArgumentError, match="Conv node with output 'r': x has 16 channels, but w expects"):
            rep.run([values("integers", 5, X, np.float32)])
