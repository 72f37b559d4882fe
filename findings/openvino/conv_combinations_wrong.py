"""OpenVINO 2026.4.1 CPU ACCURACY: Conv: wrong (combinations)

Rule (ruled here): All rules at once: a combination of attributes, types, opsets and values.

Result: output 0[0, 2, 1] is nan, expected -56.0 (4 of 36 elements differ)

3 tests of this rule have this verdict; this is the smallest.

Test test_conv_1d_sweep_33_bfloat16_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper
from ml_dtypes import bfloat16

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W'], ['Y'], auto_pad=b'SAME_UPPER', dilations=[2], group=3, kernel_shape=[1], strides=[2])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0, 7.0, -5.0]).astype(bfloat16).reshape((6, 1, 1)), "W"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, nan, nan, -6.0, -3.0, -1.0, 1.0, -3.0, nan, -5.0, 3.0, 7.0, 3.0, -3.0, 5.0, 4.0, 1.0, nan, nan, 1.0, 8.0, nan, 2.0, -8.0]).astype(bfloat16).reshape((2, 3, 6)),
]
EXPECTED = [
    np.array([14.0, 10.0, 10.0, -42.0, -30.0, -30.0, 32.0, -56.0, 40.0, 4.0, -7.0, 5.0, -14.0, nan, -21.0, 10.0, nan, 15.0, -2.0, nan, -6.0, 6.0, nan, 18.0, -24.0, -40.0, -8.0, -3.0, -5.0, -1.0, nan, 56.0, 14.0, nan, -40.0, -10.0]).astype(bfloat16).reshape((2, 6, 3)),
]
BOUNDS = [
    np.array([0.054690003395080566, 0.03906428813934326, 0.03906428813934326, 0.1640700101852417, 0.11719286441802979, 0.11719286441802979, 0.12500572204589844, 0.21876001358032227, 0.15625715255737305, 0.015625715255737305, 0.027345001697540283, 0.01953214406967163, 0.054690003395080566, 0.0, 0.08203500509262085, 0.03906428813934326, 0.0, 0.05859643220901489, 0.007812857627868652, 0.0, 0.023438572883605957, 0.023438572883605957, 0.0, 0.07031571865081787, 0.09375429153442383, 0.15625715255737305, 0.03125143051147461, 0.011719286441802979, 0.01953214406967163, 0.003906428813934326, 0.0, 0.21876001358032227, 0.054690003395080566, 0.0, 0.15625715255737305, 0.03906428813934326]).astype('float64').reshape((2, 6, 3)),
]
inputs = [
    helper.make_tensor_value_info("X", 16, [2, 3, 6]),
]
outputs = [
    helper.make_tensor_value_info("Y", 16, [None, None, None]),
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
