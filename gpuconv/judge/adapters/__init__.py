"""Targets of the judge: a module for each kind, imported only when it is used.

Each has ``version(option)``, which names the implementation and its version, and ``run(model, inputs, option)``, which
returns the outputs as NumPy arrays and propagates exceptions. `option` is the text after the colon of the target.
"""

from __future__ import annotations

TARGETS = {
    "backend": "backend:MODULE, any module that follows onnx.backend.base.Backend",
    "command": "command:'PROGRAM ARGS', called with a test's folder and one for outputs, output_N.pb",
    "command-stream": "command-stream:'PROGRAM ARGS', started once, reads both folders from a line of its input",
    "gpuconv": "gpuconv's own backend; gpuconv:cuda on a device",
    "jax": "jax.lax, direct calls",
    "onnxruntime": "ONNX Runtime; onnxruntime:CUDAExecutionProvider for another provider",
    "opencv": "OpenCV's dnn module",
    "openvino": "OpenVINO; openvino:GPU for another device",
    "reference": "onnx.reference.ReferenceEvaluator",
    "scipy": "scipy.signal and scipy.ndimage, direct calls; scipy:cupyx for those of CuPy",
    "tinygrad": "tinygrad's ONNX frontend",
    "torch": "PyTorch, direct calls; torch:cuda on a device",
    "tvm": "TVM's Relax frontend for ONNX; tvm:cuda for another target",
}
# Libraries that promise nothing about ONNX: other results differ, but are not wrong.
FOR_COMPARISON = ("jax", "scipy", "torch")
ALIASES = {"onnx.reference": "reference", "ort": "onnxruntime", "pytorch": "torch", "cv2": "opencv"}

# Arguments of `pip install`, by the name of the missing module.
PACKAGES = {
    "cupy": "cupy-cuda13x",
    "cv2": "opencv-python-headless",
    "jax": "jax",
    "onnxruntime": "'gpuconv[judge]'",
    "openvino": "openvino",
    "scipy": "scipy",
    "tinygrad": "tinygrad",
    "torch": "torch",
    "tvm": "apache-tvm",
}


def module_of(kind: str) -> str:
    """Return the full name of the module that runs a kind of target."""
    return f"gpuconv.judge.adapters.{kind.replace('-', '_')}"
