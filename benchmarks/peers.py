"""The peers that gpuconv is measured against, each a one-node model of a layer."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import onnx
import onnxruntime as ort  # type: ignore[import-untyped]
from onnx import TensorProto, helper, numpy_helper

from benchmarks.layers import Layer


class OnnxRuntime:
    """ONNX Runtime's CPU provider with its default graph optimization; the weights are initializers.

    Its threads may spin (its own default): without, it took up to twice as long, and was never faster. So that its
    spinning does not disturb the other side, turns are taken only once the process is idle (see timing). Plain `run`
    was as fast as input and output binding.
    """

    def __init__(self, layer: Layer, weights: dict[str, Any], threads: int, spin: bool) -> None:
        self._session = session(model(layer, weights, newest_opset()), threads, spin)

    def __call__(self, x: Any) -> list[Any]:
        """Compute every output of the layer."""
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
    """The newest opset that both onnx and ONNX Runtime know."""
    layer = Layer("probe", "", "MaxPool", (1, 1, 2), (1,), (1,), (0, 0), (1,), ("fp32",))
    for opset in range(onnx.defs.onnx_opset_version(), 0, -1):
        try:
            session(model(layer, {}, opset), threads=1, spin=False)
        except Exception:  # ONNX Runtime refuses opsets from its future with several exception types
            continue
        return opset
    raise RuntimeError("onnx and ONNX Runtime have no opset in common")


def session(model: onnx.ModelProto | str, threads: int, spin: bool) -> Any:
    """Return what runs a model, or that of a file, with ONNX Runtime's default optimizations."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_profiling = False
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    loaded = model if isinstance(model, str) else model.SerializeToString()
    return ort.InferenceSession(loaded, options, providers=["CPUExecutionProvider"])
