"""What can be judged: a file for each kind of target, imported only if it is asked for.

Each has ``version()``, which names what is judged, and ``run(model, inputs, option)``, which returns the outputs as
NumPy arrays and raises what the target raises. `option` is what follows the colon in the target's name.
"""

from __future__ import annotations

TARGETS = {
    "backend": "backend:MODULE, any module that follows onnx.backend.base.Backend",
    "command": "command:'PROGRAM ARGS', called with a test's folder and one for outputs, output_N.pb",
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
