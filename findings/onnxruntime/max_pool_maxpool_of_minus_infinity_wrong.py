"""ONNX Runtime 1.32.0 CPUExecutionProvider: MaxPool: wrong (MaxPool of minus infinity)

Rule (ruled here): A window of -inf only gives -inf.

Result: output 0[0, 0, 0] is -3.4028234663852886e+38, expected -inf (10 of 10 elements differ)

The result equals minus infinity as the lowest finite value.

2 tests of this rule have this verdict; this is the smallest.

Test test_max_pool_1d_minus_infinity_only_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("MaxPool", ['X'], ['Y'], kernel_shape=[3], pads=[1, 1])
CONSTANTS = [
]
INPUTS = [
    np.array([-inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf]).astype('float32').reshape((1, 2, 5)),
]
EXPECTED = [
    np.array([-inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf]).astype('float32').reshape((1, 2, 5)),
]
BOUNDS = [
    np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((1, 2, 5)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 5]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)

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

print(version(''))
got = [np.asarray(output) for output in run(MODEL, INPUTS, '')]
for ours, bound, theirs in zip(EXPECTED, BOUNDS, got, strict=True):
    print('got', theirs.dtype, theirs.shape, theirs.tolist())
    print('expected', ours.dtype, ours.shape, ours.tolist())
    assert theirs.shape == ours.shape, 'the shape is wrong'
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    right = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= bound) | np.isinf(bound)
    assert right.all(), f'{(~right).sum()} elements are wrong'
