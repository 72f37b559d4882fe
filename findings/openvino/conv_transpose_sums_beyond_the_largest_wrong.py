"""OpenVINO 2026.4.1 CPU ACCURACY: ConvTranspose: wrong (sums beyond the largest)

Rule (ruled here): Where terms of one sign are beyond the largest value together, the sum is infinity of that sign, in any order.

Result: output 0[0, 0, 0, 3] is 3.4028234663852886e+38, expected 8.988465674311579e+307 (27 of 64 elements differ)

Test test_conv_transpose_2d_sums_beyond_the_largest_float64_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("ConvTranspose", ['X', 'W', 'B'], ['Y'], kernel_shape=[2, 2])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([2.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 2.0, 0.0, 0.0, 0.0, 2.0, 1.0, 2.0]).astype('float64').reshape((3, 2, 2, 2)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0]).astype('float64').reshape((2,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, 8.988465674311579e+307, -2.0, -5.0, -4.0, -4.0, 1.0, 8.988465674311579e+307, -5.0, -5.0, 3.0, 8.988465674311579e+307, 8.988465674311579e+307, -1.0, -6.0, 8.988465674311579e+307, -1.0, 1.0, -3.0, -7.0, -5.0, 3.0, 7.0, 3.0, 8.988465674311579e+307, 5.0, 4.0, 1.0, -8.988465674311579e+307, 4.0, 1.0, 8.0, -2.0, 2.0, -8.0, -2.0, -8.988465674311579e+307, -7.0, -3.0, -8.988465674311579e+307, 2.0, -3.0, -3.0, 8.0, -8.988465674311579e+307, 3.0, -4.0, 7.0, 6.0, -3.0, 4.0, 3.0, -8.988465674311579e+307]).astype('float64').reshape((2, 3, 3, 3)),
]
EXPECTED = [
    np.array([-14.0, -3.0, 1.7976931348623157e+308, 8.988465674311579e+307, 8.988465674311579e+307, 8.988465674311579e+307, 1.7976931348623157e+308, 8.988465674311579e+307, -11.0, inf, inf, 8.988465674311579e+307, -4.0, -4.0, inf, 8.988465674311579e+307, -7.0, -15.0, -15.0, -10.0, 8.988465674311579e+307, inf, inf, 1.7976931348623157e+308, 1.7976931348623157e+308, inf, inf, 10.0, -15.0, inf, inf, 1.7976931348623157e+308, -8.988465674311579e+307, -inf, -1.7976931348623157e+308, -8.988465674311579e+307, 24.0, -8.988465674311579e+307, -inf, -8.988465674311579e+307, 9.0, 17.0, -1.7976931348623157e+308, -1.7976931348623157e+308, 0.0, 3.0, -13.0, 4.0, -4.0, -inf, -1.7976931348623157e+308, -24.0, -8.988465674311579e+307, -inf, -inf, -1.7976931348623157e+308, 0.0, -1.7976931348623157e+308, -1.7976931348623157e+308, -1.7976931348623157e+308, -6.0, -5.0, -8.988465674311579e+307, -1.7976931348623157e+308]).astype('float64').reshape((2, 2, 4, 4)),
]
BOUNDS = [
    np.array([3.730349362740526e-14, 4.196643033083092e-14, inf, 1.3970882166743037e+293, 1.3970882166743037e+293, 1.3970882166743037e+293, inf, 1.3970882166743037e+293, 3.885780586188048e-14, 0.0, 0.0, 1.3970882166743037e+293, 1.865174681370263e-14, 2.4868995751603507e-14, 0.0, 1.3970882166743037e+293, 1.0880185641326534e-14, 2.9531932455029164e-14, 3.26405569239796e-14, 3.419486915845482e-14, 1.3970882166743037e+293, 0.0, 0.0, inf, inf, 0.0, 0.0, 5.906386491005833e-14, 3.26405569239796e-14, 0.0, 0.0, inf, 1.3970882166743037e+293, 0.0, inf, 1.3970882166743037e+293, 4.6629367034256575e-14, 1.3970882166743037e+293, 0.0, 1.3970882166743037e+293, 3.574918139293004e-14, 5.129230373768223e-14, inf, inf, 1.2434497875801753e-14, 2.020605904817785e-14, 3.885780586188048e-14, 3.108624468950438e-14, 6.217248937900877e-15, 0.0, inf, 3.730349362740526e-14, 1.3970882166743037e+293, 0.0, 0.0, inf, 3.419486915845482e-14, inf, inf, inf, 2.1760371282653068e-14, 4.8183679268731794e-14, 1.3970882166743037e+293, inf]).astype('float64').reshape((2, 2, 4, 4)),
]
inputs = [
    helper.make_tensor_value_info("X", 11, [2, 3, 3, 3]),
]
outputs = [
    helper.make_tensor_value_info("Y", 11, [None, None, None, None]),
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
