"""ONNX Runtime, with any of its execution providers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime


def version(option: str) -> str:
    """Name ONNX Runtime's version and the provider; raise ValueError where this ONNX Runtime has no such provider."""
    known = onnxruntime.get_available_providers()
    if option and option not in known:
        raise ValueError(f"it has no provider {option!r}, only {', '.join(known)}")
    return f"ONNX Runtime {onnxruntime.__version__} {option or 'CPUExecutionProvider'}"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Make a session of the model and run it, on one thread."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    settings.log_severity_level = 4
    providers = [option or "CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=providers)
    if session.get_providers()[0] != providers[0]:  # it falls back to the CPU without an error
        raise RuntimeError(f"{providers[0]} could not be used")
    names = [value.name for value in session.get_inputs()]
    if all(array.dtype.name != "bfloat16" for array in inputs):
        return list(session.run(None, dict(zip(names, inputs, strict=True))))
    # NumPy has no bfloat16 of its own, so ONNX Runtime is told what the bits are.
    words = [array.view(np.uint16) if array.dtype.name == "bfloat16" else array for array in inputs]
    kinds = [value.type.tensor_type.elem_type for value in model.graph.input]
    pairs = zip(words, kinds, strict=True)
    values = [onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(word, kind) for word, kind in pairs]
    return [output.numpy() for output in session.run_with_ort_values(None, dict(zip(names, values, strict=True)))]
