"""OpenVINO 2026.4.1 CPU ACCURACY: AveragePool: wrong (count_include_pad)

Rule (specified): count_include_pad=1: the divisor counts the padding too, as if x were padded with zeros.

Result: output 0[0, 0, 0, 0] is -0.7777777910232544, expected -0.7777777777777778 (53 of 60 elements differ, by up to 2.17e+07 times the bound; as sums in float32 are)

Discussed at https://github.com/onnx/onnx/issues/1384.

Test test_average_pool_2d_pads_that_count_float64_opset11.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("AveragePool", ['X'], ['Y'], count_include_pad=1, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
CONSTANTS = [
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0, -1.0, -6.0, -3.0, -1.0, 1.0, -3.0, -7.0, -5.0, 3.0, 7.0, 3.0, -3.0, 5.0, 4.0, 1.0, -7.0, 4.0, 1.0, 8.0, -2.0, 2.0, -8.0, -2.0, -1.0, -7.0, -3.0, 2.0, 2.0, -3.0, -3.0, 8.0, 2.0, 3.0, -4.0, 7.0, 6.0, -3.0, 4.0, 3.0, 4.0, -6.0, -2.0, -8.0, -4.0, 6.0, -1.0]).astype('float64').reshape((1, 2, 5, 6)),
]
EXPECTED = [
    np.array([-0.7777777777777778, -0.5555555555555556, -0.1111111111111111, -1.6666666666666667, -2.0, -1.2222222222222223, -0.7777777777777778, -0.6666666666666666, -0.6666666666666666, -2.7777777777777777, -3.111111111111111, -1.6666666666666667, -0.5555555555555556, -0.6666666666666666, -1.8888888888888888, -2.4444444444444446, -1.3333333333333333, 0.4444444444444444, -0.2222222222222222, -0.5555555555555556, -1.5555555555555556, -1.0, -0.7777777777777778, 0.0, -0.2222222222222222, -0.4444444444444444, -1.0, 0.1111111111111111, 0.3333333333333333, 0.4444444444444444, 0.2222222222222222, 0.3333333333333333, -0.4444444444444444, 0.0, -0.7777777777777778, -0.2222222222222222, -0.4444444444444444, 0.5555555555555556, 0.3333333333333333, 1.4444444444444444, -0.6666666666666666, -0.3333333333333333, 0.4444444444444444, 0.2222222222222222, 0.3333333333333333, 1.0, 1.4444444444444444, 1.1111111111111112, -0.1111111111111111, -0.4444444444444444, 0.0, 1.2222222222222223, 1.4444444444444444, 1.2222222222222223, 0.5555555555555556, -0.6666666666666666, -0.7777777777777778, -0.2222222222222222, 1.3333333333333333, 1.3333333333333333]).astype('float64').reshape((1, 2, 5, 6)),
]
BOUNDS = [
    np.array([2.035408878479454e-15, 3.6637359812630166e-15, 3.120960280335162e-15, 3.9351238317269436e-15, 3.2566542055671257e-15, 2.306796728943381e-15, 2.578184579407308e-15, 4.342205607422834e-15, 4.342205607422834e-15, 5.292063084046579e-15, 4.613593457886762e-15, 2.8495724298712353e-15, 1.7640210280155265e-15, 3.79942990649498e-15, 5.0206752335826515e-15, 5.6991448597424705e-15, 5.156369158814616e-15, 2.985266355103199e-15, 1.89971495324749e-15, 3.6637359812630166e-15, 4.884981308350689e-15, 4.749287383118725e-15, 5.0206752335826515e-15, 2.985266355103199e-15, 1.3569392523196359e-15, 2.985266355103199e-15, 3.6637359812630166e-15, 3.3923481307990892e-15, 3.6637359812630166e-15, 2.4424906541753444e-15, 1.0855514018557085e-15, 3.120960280335162e-15, 2.985266355103199e-15, 3.2566542055671257e-15, 2.578184579407308e-15, 1.89971495324749e-15, 1.89971495324749e-15, 5.0206752335826515e-15, 4.749287383118725e-15, 5.0206752335826515e-15, 3.79942990649498e-15, 2.8495724298712353e-15, 2.985266355103199e-15, 5.4277570092785435e-15, 5.0206752335826515e-15, 4.749287383118725e-15, 3.6637359812630166e-15, 2.4424906541753444e-15, 3.6637359812630166e-15, 6.241920560670324e-15, 5.4277570092785435e-15, 5.563450934510506e-15, 4.206511682190871e-15, 2.8495724298712353e-15, 2.8495724298712353e-15, 4.342205607422834e-15, 3.6637359812630166e-15, 3.79942990649498e-15, 2.985266355103199e-15, 1.89971495324749e-15]).astype('float64').reshape((1, 2, 5, 6)),
]
inputs = [
    helper.make_tensor_value_info("X", 11, [1, 2, 5, 6]),
]
outputs = [
    helper.make_tensor_value_info("Y", 11, [None, None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)

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
