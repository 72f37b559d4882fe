"""OpenVINO 2026.4.1 CPU ACCURACY: AveragePool: wrong (combinations)

Rule (ruled here): All rules at once: a combination of attributes, types, opsets and values.

Result: output 0[0, 0, 0] is -1.1342744887950962e+38, expected -inf (7 of 8 elements differ)

5 tests of this rule have this verdict; this is the smallest.

Test test_average_pool_1d_sweep_27_float64_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("AveragePool", ['X'], ['Y'], auto_pad=b'VALID', ceil_mode=1, count_include_pad=1, dilations=[3], kernel_shape=[3], strides=[3])
CONSTANTS = [
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -inf, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, inf, inf, -6.0, -3.0, -inf, 1.0, -3.0, inf, -inf, 3.0, 7.0, 3.0, -inf, -inf, 4.0, 1.0, inf, inf, 1.0, -inf, inf, 2.0, -8.0]).astype('float64').reshape((2, 2, 9)),
]
EXPECTED = [
    np.array([-inf, -inf, -4.333333333333333, -4.0, -inf, -inf, inf, inf]).astype('float64').reshape((2, 2, 2)),
]
BOUNDS = [
    np.array([0.0, 0.0, 2.4054832200211722e-15, 2.220446049250313e-15, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((2, 2, 2)),
]
inputs = [
    helper.make_tensor_value_info("X", 11, [2, 2, 9]),
]
outputs = [
    helper.make_tensor_value_info("Y", 11, [None, None, None]),
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
