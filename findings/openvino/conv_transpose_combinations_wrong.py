"""OpenVINO 2026.4.1 CPU ACCURACY: ConvTranspose: wrong (combinations)

Rule (ruled here): All rules at once: a combination of attributes, types, opsets and values.

Result: output 0[0, 0, 0, 0, 0] is 18.0, expected 32.0 (8 of 8 elements differ, by up to 1.33e+03 times the bound)

5 tests of this rule have this verdict; this is the smallest.

Test test_conv_transpose_3d_sweep_52_bfloat16_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper
from ml_dtypes import bfloat16

nan, inf = np.nan, np.inf

node = helper.make_node("ConvTranspose", ['X', 'W', 'B'], ['Y'], auto_pad=b'VALID', group=2, kernel_shape=[2, 1, 1], output_padding=[0, 0, 0], output_shape=[2, 1, 1], strides=[1, 1, 1])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0, 7.0, -5.0, 7.0, -4.0]).astype(bfloat16).reshape((2, 2, 2, 1, 1)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0, -3.0]).astype(bfloat16).reshape((4,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0, -1.0, -6.0, -3.0, -1.0]).astype(bfloat16).reshape((1, 2, 3, 3, 1)),
]
EXPECTED = [
    np.array([32.0, -28.0, 35.0, -5.0, 46.0, -24.0, 31.0, -32.0]).astype(bfloat16).reshape((1, 4, 2, 1, 1)),
]
BOUNDS = [
    np.array([0.12500762939453125, 0.10938358306884766, 0.13672947883605957, 0.019534826278686523, 0.17969846725463867, 0.09375905990600586, 0.12110257148742676, 0.12500762939453125]).astype('float64').reshape((1, 4, 2, 1, 1)),
]
inputs = [
    helper.make_tensor_value_info("X", 16, [1, 2, 3, 3, 1]),
]
outputs = [
    helper.make_tensor_value_info("Y", 16, [None, None, None, None, None]),
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
