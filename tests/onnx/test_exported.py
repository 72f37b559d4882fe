"""Networks exported by both exporters of PyTorch, compared with ONNX Runtime and the same graph in float64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from gpuconv.onnx import backend
from tests.emulator import emulated_cuda
from tests.harness.device_arrays import device_arrays
from tests.onnx.networks import FOLDER, NAMES, limit, load, onnxruntime_run

pytestmark = pytest.mark.slow

_SCALES = {"Resize": (1, 2)}  # inputs that are float32 in every model


def test_these_are_all() -> None:
    kinds = ("convnext", "resnet", "superresolution", "unet")
    assert sorted(f"{kind}{exporter}" for kind in kinds for exporter in ("", "_torchscript")) == NAMES
    assert all((FOLDER / f"{name}.onnx").stat().st_size < 100_000 for name in NAMES)


def in_float64(model: ModelProto) -> ModelProto:
    """Return the same graph with all float32 numbers in float64, except scales of Resize."""
    wide = ModelProto()
    wide.CopyFrom(model)
    graph = wide.graph
    kept = {node.input[at] for node in graph.node for at in _SCALES.get(node.op_type, ()) if at < len(node.input)}
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and tensor.name not in kept:
            tensor.CopyFrom(numpy_helper.from_array(np.float64(numpy_helper.to_array(tensor)), tensor.name))
    for node in graph.node:
        _widen(node, kept)
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    graph.ClearField("value_info")
    return wide


def _widen(node: NodeProto, kept: set[str]) -> None:
    for attribute in node.attribute:
        tensor = attribute.t
        if attribute.name == "value" and tensor.data_type == TensorProto.FLOAT and node.output[0] not in kept:
            tensor.CopyFrom(numpy_helper.from_array(np.float64(numpy_helper.to_array(tensor))))
        if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.DOUBLE


@pytest.mark.parametrize("name", NAMES)
def test_beside_onnx_runtime_and_float64(name: str) -> None:
    model, x = load(name)
    (exact,) = backend.prepare(in_float64(model), fold=False).run([np.float64(x)])
    assert exact.dtype == np.float64
    assert exact.std() > 0.05 * np.abs(exact).max()
    (theirs,) = onnxruntime_run(model, {model.graph.input[0].name: x})
    (ours,) = backend.prepare(model).run([x])
    (unfolded,) = backend.prepare(model, fold=False).run([x])
    with device_arrays() as device:
        (moved,) = backend.prepare(model, "CUDA").run([x])
        assert device.to_host == [moved.shape]
    for result in (theirs, ours, unfolded, moved):
        assert (result.dtype, result.shape) == (np.float32, exact.shape)
        error = np.abs(result - exact).max() / np.abs(exact).max()
        assert error <= limit(model)


@pytest.mark.parametrize("name", NAMES)
def test_no_node_is_left_to_the_reference_evaluator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuconv.onnx.evaluator.Evaluator.by_reference", lambda *_: pytest.fail("it was"))
    model, x = load(name)
    seen: list[str] = []
    backend.prepare(model).run([x], observer=lambda node, *_: seen.append(node.op_type))
    assert "BatchNormalization" not in seen
    convolutions = sum(node.op_type in ("Conv", "ConvTranspose") for node in model.graph.node)
    assert sum("Conv" in op_type for op_type in seen) == convolutions
    if name.startswith("resnet"):
        assert seen.count("FusedConv") == 17  # all but the three that change the number of channels
        assert not {"Add", "Relu"} & set(seen)


def test_the_float64_graph_is_in_float64() -> None:
    model = in_float64(load("unet_torchscript")[0])
    types = {onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in model.graph.initializer}
    assert types <= {"DOUBLE", "INT64"}


@pytest.mark.thorough
@pytest.mark.kernels("conv/*", "pool/*", "passes/*")
@pytest.mark.emulator
@pytest.mark.parametrize("name", NAMES)
def test_the_kernels_compute_the_network(name: str) -> None:
    """In the emulator, every Conv, ConvTranspose, MaxPool and product of the network is a launch."""
    model, x = load(name)
    (expected,) = backend.prepare(model).run([x])
    with emulated_cuda() as emulated:
        (got,) = backend.prepare(model, "CUDA").run([x])
    kernels = ("Conv", "ConvTranspose", "MaxPool", "Gemm", "MatMul")
    assert len(emulated.launches) >= sum(node.op_type in kernels for node in model.graph.node)
    assert np.abs(got - expected).max() <= 2 * limit(model) * np.abs(expected).max()
