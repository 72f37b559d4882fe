"""Nodes and models of ONNX Runtime's domain com.microsoft, and their results in ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper

from gpuconv.onnx import backend
from tests.harness.device_arrays import device_arrays

DOMAIN = "com.microsoft"
UNTYPED = pytest.mark.filterwarnings("ignore:.* does not say of what type and shape:UserWarning")  # outputs of one node
LEVEL = onnxruntime.GraphOptimizationLevel


def one_node(
    op_type: str,
    inputs: Sequence[Any],
    outputs: int = 1,
    free: Iterable[int] = (0,),
    domain: str = DOMAIN,
    opset: int = 13,
    **attributes: Any,
) -> tuple[ModelProto, dict[str, Any]]:
    """Return a model of one node and its feeds: inputs at positions that are not free are initializers, None absent."""
    names = ["" if value is None else f"x{at}" for at, value in enumerate(inputs)]
    opset_attribute = attributes.pop("of_opset", None)  # QLinearSoftmax has an attribute of make_node's own name
    node = helper.make_node(op_type, names, [f"y{at}" for at in range(outputs)], "one", domain=domain, **attributes)
    if opset_attribute is not None:
        node.attribute.append(helper.make_attribute("opset", opset_attribute))
    given = {name: np.asarray(value) for name, value in zip(names, inputs, strict=True) if value is not None}
    feeds = {names[at]: given[names[at]] for at in free}
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    fixed = [numpy_helper.from_array(value, name) for name, value in given.items() if name not in feeds]
    results = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "graph", declared, results, fixed)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8), feeds


def options(level: Any) -> Any:
    """Return options of a session on one thread that optimizes a graph up to a level."""
    made = onnxruntime.SessionOptions()
    made.graph_optimization_level, made.log_severity_level, made.intra_op_num_threads = level, 4, 1
    return made


def by_onnxruntime(model: ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Run a model in ONNX Runtime, without optimizing it."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options(LEVEL.ORT_DISABLE_ALL), providers=["CPUExecutionProvider"]
    )
    results: list[Any] = session.run(None, dict(feeds))
    return results


def saved(model: ModelProto, level: Any) -> ModelProto:
    """Return a model saved by ONNX Runtime at a level of its optimizations."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved.onnx"
        made = options(level)
        made.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(model.SerializeToString(), made, providers=["CPUExecutionProvider"])
        return onnx.load(path)


def own_operators(model: ModelProto) -> set[str]:
    """Return the operators of a model that ONNX does not have."""
    return {node.op_type for node in model.graph.node if node.domain.startswith(DOMAIN)}


def agrees(op_type: str, inputs: list[Any], outputs: int = 1, tolerance: float = 4e-6, **attributes: Any) -> list[Any]:
    """Compare with ONNX Runtime, and with what stand-ins for device arrays make of it; return the results."""
    free = [at for at, value in enumerate(inputs) if value is not None]
    proto, feeds = one_node(op_type, inputs, outputs, free, **attributes)
    results, expected = on_host_and_device(proto, feeds), by_onnxruntime(proto, feeds)
    for got, wanted in zip(results, expected, strict=True):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        limit = 2e-3 if wanted.dtype == np.float16 else tolerance
        np.testing.assert_allclose(got, wanted, rtol=0, atol=limit * float(np.abs(wanted).max(initial=1e-3)))
    return results


def on_host_and_device(model: ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Run a model on the host and on fake device arrays, where integers must have the same values."""
    results: list[Any] = list(backend.prepare(model).run(dict(feeds)))
    with device_arrays() as device:
        moved = backend.prepare(model, "CUDA").run({name: device.array(value) for name, value in feeds.items()})
        for there, here in zip(moved, results, strict=True):
            found = device.memory(there)
            assert (found.dtype, found.shape) == (here.dtype, here.shape)
            if here.dtype.kind == "f":
                scale = float(np.abs(here).max(initial=1))
                np.testing.assert_allclose(found, here, rtol=0, atol=(1e-5 if here.itemsize > 2 else 2e-3) * scale)
            else:
                np.testing.assert_array_equal(found, here)
    return results
