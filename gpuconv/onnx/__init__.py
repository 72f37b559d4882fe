"""Run ONNX models with gpuconv: whole models, single nodes, and operators for onnx's reference evaluator.

:func:`prepare` loads, checks and optimises a model and returns a :class:`Rep`, whose ``run`` computes it on the CPU or
a CUDA device. :func:`run_node` computes one node. ``OPS`` plugs gpuconv's convolutions and pooling into
``onnx.reference.ReferenceEvaluator``.
"""

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
