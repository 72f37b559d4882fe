"""ONNX models: nodes, a backend that runs whole models, and operators for onnx's reference evaluator."""

try:
    import onnx  # noqa: F401
except ImportError as error:
    raise ImportError(f"gpuconv.onnx needs the onnx package ({error}); pip install gpuconv[onnx]") from error

from gpuconv.onnx.backend import Backend, Rep, is_compatible, prepare, run_model, run_node, supports_device
from gpuconv.onnx.reference import OPS

__all__ = [
    "OPS",
    "Backend",
    "Rep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]
