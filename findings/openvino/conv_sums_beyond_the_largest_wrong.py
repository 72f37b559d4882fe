"""OpenVINO 2026.4.1 CPU ACCURACY: Conv: wrong (sums beyond the largest)

Rule (ruled here): Where terms of one sign are beyond the largest value together, the sum is infinity of that sign, in any order.

Result: output 0[0, 0, 1] is 3.4028234663852886e+38, expected inf (19 of 42 elements differ)

2 tests of this rule have this verdict; this is the smallest.

Test test_conv_1d_sums_beyond_the_largest_float64_opset1.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W', 'B'], ['Y'], kernel_shape=[3], pads=[1, 0])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([2.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 2.0]).astype('float64').reshape((3, 2, 3)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0]).astype('float64').reshape((3,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, 8.988465674311579e+307, -2.0, -5.0, -4.0, -4.0, 1.0, 8.988465674311579e+307, -5.0, -5.0, 3.0, 8.988465674311579e+307, 8.988465674311579e+307, -1.0, -6.0, -8.988465674311579e+307, -1.0, 1.0, -3.0, -7.0, -5.0, 3.0, 7.0, 3.0, -8.988465674311579e+307, 5.0, 4.0, 1.0, -8.988465674311579e+307, 4.0, 1.0]).astype('float64').reshape((2, 2, 8)),
]
EXPECTED = [
    np.array([3.0, inf, 8.988465674311579e+307, 1.7976931348623157e+308, -10.0, 8.988465674311579e+307, 8.988465674311579e+307, -18.0, 8.988465674311579e+307, 1.7976931348623157e+308, 1.7976931348623157e+308, 8.988465674311579e+307, -20.0, -19.0, 8.988465674311579e+307, inf, 1.7976931348623157e+308, inf, inf, inf, 1.7976931348623157e+308, -8.988465674311579e+307, -1.7976931348623157e+308, -8.988465674311579e+307, -6.0, -15.0, -8.0, -8.988465674311579e+307, -inf, -8.988465674311579e+307, 0.0, -13.0, -8.988465674311579e+307, -12.0, 7.0, -inf, -1.7976931348623157e+308, -1.7976931348623157e+308, 4.0, -1.7976931348623157e+308, -8.988465674311579e+307, -1.7976931348623157e+308]).astype('float64').reshape((2, 3, 7)),
]
BOUNDS = [
    np.array([1.509903313490213e-14, 0.0, 7.983361238138878e+292, inf, 2.1316282072803006e-14, 7.983361238138878e+292, 7.983361238138878e+292, 2.1316282072803006e-14, 7.983361238138878e+292, inf, inf, 7.983361238138878e+292, 1.7763568394002505e-14, 1.865174681370263e-14, 7.983361238138878e+292, 0.0, inf, 0.0, 0.0, 0.0, inf, 7.983361238138878e+292, inf, 7.983361238138878e+292, 2.4868995751603507e-14, 2.7533531010703882e-14, 2.6645352591003757e-14, 7.983361238138878e+292, 0.0, 7.983361238138878e+292, 1.0658141036401503e-14, 1.509903313490213e-14, 7.983361238138878e+292, 2.3092638912203256e-14, 1.865174681370263e-14, 0.0, inf, inf, 3.907985046680551e-14, inf, 7.983361238138878e+292, inf]).astype('float64').reshape((2, 3, 7)),
]
inputs = [
    helper.make_tensor_value_info("X", 11, [2, 2, 8]),
]
outputs = [
    helper.make_tensor_value_info("Y", 11, [None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 1)], ir_version=4)

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
