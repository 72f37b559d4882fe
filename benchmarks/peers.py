"""ONNX Runtime as the CPU peer: each layer as a one-node model."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import onnx
import onnxruntime as ort  # type: ignore[import-untyped]
from onnx import TensorProto, helper, numpy_helper

from benchmarks.layers import Layer


class OnnxRuntime:
    """ONNX Runtime's CPU provider with its default graph optimization; weights are initializers.

    Its threads may spin, as by default: without spinning it took up to twice as long and was never faster. So that
    spinning does not disturb the other side, each turn starts only when the process is idle (see benchmarks/timing.py).
    Plain ``run`` was as fast as I/O binding.
    """

    def __init__(self, layer: Layer, weights: dict[str, Any], threads: int, spin: bool) -> None:
        self._session = session(model(layer, weights, newest_opset()), threads, spin)

    def __call__(self, x: Any) -> list[Any]:
        """Compute all outputs of the layer."""
        outputs: list[Any] = self._session.run(None, {"x": x})
        return outputs


def model(layer: Layer, weights: dict[str, Any], opset: int) -> onnx.ModelProto:
    """Build the one-node model of a layer."""
    attributes: dict[str, Any] = {
        name: list(v) if isinstance(v, tuple) else v for name, v in layer.attributes().items()
    }
    outputs = ["y", "indices"] if layer.indices else ["y"]
    node = helper.make_node(layer.op, ["x", *weights], outputs, **attributes)
    types = {"y": TensorProto.FLOAT, "indices": TensorProto.INT64}
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, layer.x)],
        [helper.make_tensor_value_info(name, types[name], layer.y_shape) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets))


@lru_cache(maxsize=1)
def newest_opset() -> int:
    """Return the newest opset that both onnx and ONNX Runtime support."""
    layer = Layer("probe", "", "MaxPool", (1, 1, 2), (1,), (1,), (0, 0), (1,), ("fp32",))
    for opset in range(onnx.defs.onnx_opset_version(), 0, -1):
        try:
            session(model(layer, {}, opset), threads=1, spin=False)
        except Exception:  # ONNX Runtime rejects newer opsets with various exception types
            continue
        return opset
    raise RuntimeError("onnx and ONNX Runtime have no opset in common")


def session(model: onnx.ModelProto | str, threads: int, spin: bool) -> Any:
    """Return an inference session for a model, or for the path of one, with default optimizations."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_profiling = False
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    loaded = model if isinstance(model, str) else model.SerializeToString()
    return ort.InferenceSession(loaded, options, providers=["CPUExecutionProvider"])
