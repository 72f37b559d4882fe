"""OpenVINO 2026.4.1 CPU ACCURACY: Conv: wrong (NaN and infinity in a window)

Rule (ruled here): Where a NaN or inf enters a window: NaN or inf as IEEE arithmetic over the taps inside the input gives.

Result: output 0[0, 0, 3] is -3.4028234663852886e+38, expected -inf (2 of 12 elements differ)

2 tests of this rule have this verdict; this is the smallest.

Test test_conv_1d_an_infinity_between_dilated_taps_float64_opset1.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W', 'B'], ['Y'], dilations=[3], kernel_shape=[2])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0]).astype('float64').reshape((2, 1, 2)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0]).astype('float64').reshape((2,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -inf, 1.0, 7.0]).astype('float64').reshape((1, 1, 9)),
]
EXPECTED = [
    np.array([6.0, -32.0, -10.0, -inf, 20.0, 54.0, 56.0, -21.0, 42.0, inf, 37.0, 23.0]).astype('float64').reshape((1, 2, 6)),
]
BOUNDS = [
    np.array([1.3322676295501878e-14, 1.7763568394002505e-14, 1.687538997430238e-14, 0.0, 8.881784197001252e-15, 2.398081733190338e-14, 2.6645352591003757e-14, 1.3766765505351941e-14, 2.042810365310288e-14, 0.0, 1.9095836023552692e-14, 1.8207657603852567e-14]).astype('float64').reshape((1, 2, 6)),
]
inputs = [
    helper.make_tensor_value_info("X", 11, [1, 1, 9]),
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
