"""OpenVINO 2026.4.1 CPU ACCURACY: Conv: wrong (empty inputs)

Rule (ruled here): Batch 0, channel 0, M 0, an empty spatial axis: the formulas as they are; a sum over nothing is the bias.

Result: output 0[0, 0, 0] is -1.654424333978473e-24, expected 4.0 (6 of 6 elements differ, by up to 2.1e+06 times the bound)

The result equals no bias.

Discussed at https://github.com/microsoft/onnxruntime/issues/4559.

4 tests of this rule have this verdict; this is the smallest.

Test test_conv_1d_an_empty_axis_with_pads_is_bias_only_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W', 'B'], ['Y'], kernel_shape=[3], pads=[2, 2])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0, 7.0, -5.0, 7.0, -4.0, 3.0, 5.0, 6.0, -3.0, 7.0, -3.0, -5.0, 2.0, -3.0, -3.0]).astype('float32').reshape((3, 2, 3)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0]).astype('float32').reshape((3,)), "B"),
]
INPUTS = [
    np.array([]).astype('float32').reshape((1, 2, 0)),
]
EXPECTED = [
    np.array([4.0, 4.0, -2.0, -2.0, 7.0, 7.0]).astype('float32').reshape((1, 3, 2)),
]
BOUNDS = [
    np.array([1.9073486328125e-06, 1.9073486328125e-06, 9.5367431640625e-07, 9.5367431640625e-07, 3.337860107421875e-06, 3.337860107421875e-06]).astype('float64').reshape((1, 3, 2)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 0]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)

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
