"""OpenVINO 2026.4.1 CPU ACCURACY: MaxPool: wrong (MaxPool, subnormals)

Rule (ruled here): Subnormals compare exactly.

Result: output 0[0, 0, 0, 0] is -0.0, expected 3.5e-323 (24 of 24 elements differ)

Test test_max_pool_2d_subnormals_with_indices_float64_opset12.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("MaxPool", ['X'], ['Y', 'Indices'], kernel_shape=[2, 2], strides=[2, 2])
CONSTANTS = [
]
INPUTS = [
    np.array([-3.5e-323, 1.5e-323, -2.5e-323, -1e-323, -2.5e-323, -2e-323, -2e-323, 5e-324, 3.5e-323, -2.5e-323, -2.5e-323, 1.5e-323, -1e-323, 1e-323, -5e-324, -3e-323, -1.5e-323, -5e-324, 5e-324, -1.5e-323, -3.5e-323, -2.5e-323, 1.5e-323, 3.5e-323, 1.5e-323, -1.5e-323, 2.5e-323, 2e-323, 5e-324, -3.5e-323, 2e-323, 5e-324, 4e-323, -1e-323, 1e-323, -4e-323, -1e-323, -5e-324, -3.5e-323, -1.5e-323, 1e-323, 1e-323, -1.5e-323, -1.5e-323, 4e-323, 1e-323, 1.5e-323, -2e-323, 3.5e-323, 3e-323, -1.5e-323, 2e-323, 1.5e-323, 2e-323, -3e-323, -1e-323, -4e-323, -2e-323, 3e-323, -5e-324, -1e-323, 1.5e-323, 3.5e-323, -1.5e-323, -1.5e-323, -3e-323, 2.5e-323, 3e-323, 4e-323, -2.5e-323, 4e-323, -1.5e-323, 5e-324, 0.0, 4e-323, 3.5e-323, 2e-323, 2e-323, -3e-323, 2.5e-323, -1e-323, -2.5e-323, 5e-324, -4e-323, 1e-323, -1e-323, 3.5e-323, -1.5e-323, 1e-323, -5e-324, -2e-323, -3e-323, 2e-323, 0.0, 3e-323, 3e-323, -3e-323, 2.5e-323, 2.5e-323, 0.0, 1.5e-323, 3.5e-323, -2.5e-323, 1.5e-323, 2.5e-323, -3e-323, 3e-323, 3e-323, -1e-323, -1.5e-323, 0.0, 3e-323]).astype('float64').reshape((1, 2, 7, 8)),
]
EXPECTED = [
    np.array([3.5e-323, 1.5e-323, 1e-323, 5e-324, 1.5e-323, 2.5e-323, 5e-324, 3.5e-323, 4e-323, 1e-323, 4e-323, 1.5e-323, -1.5e-323, 3e-323, 4e-323, 4e-323, 5e-324, 4e-323, 2e-323, 3.5e-323, 2.5e-323, 2.5e-323, 3.5e-323, 3e-323]).astype('float64').reshape((1, 2, 3, 4)),
    np.array([8, 11, 13, 7, 24, 26, 28, 23, 32, 34, 44, 46, 64, 58, 68, 70, 72, 74, 76, 86, 97, 98, 101, 94]).astype('int64').reshape((1, 2, 3, 4)),
]
BOUNDS = [
    np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((1, 2, 3, 4)),
    np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((1, 2, 3, 4)),
]
inputs = [
    helper.make_tensor_value_info("X", 11, [1, 2, 7, 8]),
]
outputs = [
    helper.make_tensor_value_info("Y", 11, [None, None, None, None]),
    helper.make_tensor_value_info("Indices", 7, [None, None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=7)

from collections.abc import Sequence
from typing import Any
import ml_dtypes
import numpy as np
import openvino


def version(option: str) -> str:
    """Name OpenVINO's version, the device and the mode."""
    return f"OpenVINO {openvino.__version__.partition('-')[0]} {' '.join(_device_and_mode(option))}"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Read, compile and run the model; its outputs keep their types."""
    core = openvino.Core()
    device, mode = _device_and_mode(option)
    compiled = core.compile_model(core.read_model(model.SerializeToString()), device, {"EXECUTION_MODE_HINT": mode})
    request = compiled.create_infer_request()
    request.infer({number: _tensor(array) for number, array in enumerate(inputs)})
    return [_array(request.get_output_tensor(number)) for number in range(len(compiled.outputs))]


def _device_and_mode(option: str) -> tuple[str, str]:
    device, _, mode = option.partition(",")
    return device or "CPU", mode or "ACCURACY"


def _tensor(array: Any) -> Any:
    if array.dtype.name != "bfloat16":
        return openvino.Tensor(np.ascontiguousarray(array))
    tensor = openvino.Tensor(openvino.Type.bf16, openvino.Shape(array.shape))
    tensor.data.view(np.uint16)[...] = array.view(np.uint16)
    return tensor


def _array(tensor: Any) -> Any:
    bits = tensor.data.copy()
    return bits.view(ml_dtypes.bfloat16) if tensor.element_type == openvino.Type.bf16 else bits

print(version(''))
got = [np.asarray(output) for output in run(MODEL, INPUTS, '')]
for ours, bound, theirs in zip(EXPECTED, BOUNDS, got, strict=True):
    print('got', theirs.dtype, theirs.shape, theirs.tolist())
    print('expected', ours.dtype, ours.shape, ours.tolist())
    assert theirs.shape == ours.shape, 'the shape is wrong'
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    right = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= bound) | np.isinf(bound)
    assert right.all(), f'{(~right).sum()} elements are wrong'
