"""OpenVINO 2026.4.1 CPU ACCURACY: AveragePool: wrong (AveragePool sizes)

Rule (specified): AveragePool has the sizes of MaxPool: ceil_mode, dilations, auto_pad and pads mean the same.

Result: output 0[0, 0, 0] is -4.333333492279053, expected -4.333333333333333 (7 of 8 elements differ, by up to 6.61e+07 times the bound; as sums in float32 are)

Discussed at https://github.com/onnx/onnx/issues/2290, https://github.com/onnx/onnx/issues/1651, https://github.com/onnx/onnx/issues/2927, https://github.com/onnx/onnx/issues/2971, https://github.com/onnx/onnx/issues/2943, https://github.com/onnx/onnx/pull/5741, https://github.com/microsoft/onnxruntime/issues/15446.

3 tests of this rule have this verdict; this is the smallest.

Test test_average_pool_1d_dilations_float64_opset19.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("AveragePool", ['X'], ['Y'], dilations=[3], kernel_shape=[3])
CONSTANTS = [
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0, -1.0, -6.0, -3.0, -1.0, 1.0, -3.0]).astype('float64').reshape((1, 2, 10)),
]
EXPECTED = [
    np.array([-4.333333333333333, -0.3333333333333333, -0.6666666666666666, -3.6666666666666665, -2.0, 0.3333333333333333, -2.3333333333333335, -1.3333333333333333]).astype('float64').reshape((1, 2, 4)),
]
BOUNDS = [
    np.array([2.4054832200211722e-15, 1.6653345369377348e-15, 2.9605947323337505e-15, 2.0354088784794535e-15, 1.8503717077085944e-15, 9.251858538542972e-16, 1.6653345369377348e-15, 1.4802973661668753e-15]).astype('float64').reshape((1, 2, 4)),
]
inputs = [
    helper.make_tensor_value_info("X", 11, [1, 2, 10]),
]
outputs = [
    helper.make_tensor_value_info("Y", 11, [None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)

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
