"""ONNX Runtime 1.32.0 CPUExecutionProvider: MaxPool: wrong (MaxPool, the element's bits)

Rule (ruled here): With Indices, Y is the element at its index, bit for bit (sign of zero included).

Result: output 0[0, 0, 0, 0] is 3.0, expected nan (14 of 24 elements differ)

Test test_max_pool_2d_nan_of_many_payloads_and_both_signs_with_indices_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("MaxPool", ['X'], ['Y', 'Indices'], kernel_shape=[2, 3], pads=[0, 1, 0, 1], strides=[2, 2])
CONSTANTS = [
]
INPUTS = [
    np.array([3235905536, 1077936128, 3231711232, 3221225472, 4290773012, 3229614080, 3229614080, 1065353216, 4290773011, 2143289346, 4290773000, 1077936128, 2143289362, 1073741824, 3212836864, 3233808384, 3225419776, 3212836864, 1065353216, 3225419776, 3235905536, 4290773015, 4290773014, 1088421888, 4290773002, 2143289373, 2143289351, 1082130432, 2143289366, 4290773000, 4290773014, 1065353216, 2143289371, 2143289354, 1073741824, 3238002688, 3221225472, 3212836864, 3235905536, 3225419776, 2143289375, 1073741824, 3225419776, 3225419776, 4290773013, 4290773010, 1077936128, 3229614080, 1088421888, 1086324736, 3225419776, 4290772999, 1077936128, 1082130432, 3233808384, 2143289356, 4290773002, 3229614080, 1086324736, 3212836864, 3221225472, 2143289372, 2143289369, 2143289365, 3225419776, 3233808384, 4290772998, 1086324736, 1090519040, 3231711232, 1090519040, 2143289373, 1065353216, 0, 1090519040, 1088421888, 1082130432, 2143289370, 3233808384, 2143289355, 3221225472, 3231711232, 4290773012, 3238002688, 1073741824, 3221225472, 1088421888, 3225419776, 1073741824, 3212836864, 3229614080, 3233808384, 2143289346, 2143289367, 1086324736, 1086324736, 3233808384, 1084227584, 1084227584, 2143289345, 1077936128, 1088421888, 3231711232, 1077936128, 1084227584, 4290773021, 1086324736, 1086324736, 2143289373, 3225419776, 0, 4290773021], "uint32").view('float32').reshape((1, 2, 7, 8)),
]
EXPECTED = [
    np.array([4290773011, 2143289346, 4290773012, 1073741824, 4290773002, 2143289373, 4290773015, 4290773015, 2143289371, 2143289354, 4290773013, 4290773010, 4290773002, 4290772998, 2143289372, 2143289372, 1065353216, 4290773012, 2143289370, 2143289370, 1084227584, 2143289345, 2143289346, 2143289367], "uint32").view('float32').reshape((1, 2, 3, 4)),
    np.array([8, 9, 4, 13, 24, 25, 21, 21, 32, 33, 44, 45, 56, 66, 61, 61, 72, 82, 77, 77, 97, 99, 92, 93]).astype('int64').reshape((1, 2, 3, 4)),
]
BOUNDS = [
    np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((1, 2, 3, 4)),
    np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((1, 2, 3, 4)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 7, 8]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None, None]),
    helper.make_tensor_value_info("Indices", 7, [None, None, None, None]),
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
