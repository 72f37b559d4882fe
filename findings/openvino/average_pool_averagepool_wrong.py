"""OpenVINO 2026.4.1 CPU ACCURACY: AveragePool: wrong (AveragePool)

Rule (specified): AveragePool: the sum over the taps inside x, divided by their number; summed in float32, rounded once.

Result: output 0[0, 0, 1, 0] is -1.1666666269302368, expected -1.1666666666666667 (17 of 36 elements differ, by up to 4.13e+07 times the bound; as sums in float32 are)

Discussed at https://github.com/onnx/onnx/issues/1384.

7 tests of this rule have this verdict; this is the smallest.

Test test_average_pool_2d_asymmetric_pads_float64_opset1.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("AveragePool", ['X'], ['Y'], kernel_shape=[3, 2], pads=[2, 0, 0, 1], strides=[2, 1])
CONSTANTS = [
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0, -1.0, -6.0, -3.0, -1.0, 1.0, -3.0, -7.0, -5.0, 3.0, 7.0, 3.0, -3.0, 5.0, 4.0, 1.0, -7.0, 4.0, 1.0, 8.0, -2.0, 2.0, -8.0, -2.0, -1.0, -7.0, -3.0, 2.0, 2.0, -3.0, -3.0, 8.0, 2.0, 3.0, -4.0, 7.0, 6.0, -3.0, 4.0, 3.0, 4.0, -6.0, -2.0, -8.0, -4.0, 6.0, -1.0]).astype('float64').reshape((1, 2, 5, 6)),
]
EXPECTED = [
    np.array([-2.0, -1.0, -3.5, -3.5, -4.5, -4.0, -1.1666666666666667, 1.1666666666666667, -2.0, -4.333333333333333, -2.5, -0.6666666666666666, -0.3333333333333333, -1.1666666666666667, -1.6666666666666667, -1.0, 0.0, -0.3333333333333333, 2.5, 4.5, 3.0, 0.0, -3.0, -8.0, -0.6666666666666666, 1.0, 1.0, 0.6666666666666666, -0.5, -3.3333333333333335, -0.16666666666666666, -0.3333333333333333, -0.16666666666666666, 2.3333333333333335, 1.8333333333333333, -0.3333333333333333]).astype('float64').reshape((1, 2, 3, 6)),
]
BOUNDS = [
    np.array([4.440892098500626e-15, 3.552713678800501e-15, 3.1086244689504383e-15, 3.1086244689504383e-15, 3.9968028886505635e-15, 3.552713678800501e-15, 2.812564995717063e-15, 2.812564995717063e-15, 3.848773152033876e-15, 3.848773152033876e-15, 3.1086244689504383e-15, 2.3684757858670005e-15, 2.0724163126336257e-15, 3.1086244689504383e-15, 4.144832625267251e-15, 3.2566542055671257e-15, 3.2566542055671257e-15, 4.440892098500626e-15, 2.220446049250313e-15, 3.9968028886505635e-15, 4.440892098500626e-15, 1.7763568394002505e-15, 4.440892098500626e-15, 7.105427357601002e-15, 2.0724163126336257e-15, 4.144832625267251e-15, 4.440892098500626e-15, 2.0724163126336257e-15, 3.1086244689504383e-15, 4.144832625267251e-15, 3.9968028886505635e-15, 4.440892098500626e-15, 4.292862361883938e-15, 3.2566542055671257e-15, 3.1086244689504383e-15, 2.6645352591003757e-15]).astype('float64').reshape((1, 2, 3, 6)),
]
inputs = [
    helper.make_tensor_value_info("X", 11, [1, 2, 5, 6]),
]
outputs = [
    helper.make_tensor_value_info("Y", 11, [None, None, None, None]),
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
