"""tinygrad 0.14.0 CPU: ConvTranspose: wrong (ConvTranspose, SAME)

Rule (specified): SAME without output_shape: out = n*s always; a shortage or excess follows the rules of output_shape.

Result: output 0[0, 0, 0] is 4.0, expected -17.0 (48 of 60 elements differ, by up to 5.73e+07 times the bound)

Discussed at https://github.com/onnx/onnx/issues/3153, https://github.com/onnx/onnx/issues/4299, https://github.com/microsoft/onnxruntime/issues/4086, https://github.com/microsoft/onnxruntime/issues/4698.

6 tests of this rule have this verdict; this is the smallest.

Test test_conv_transpose_1d_same_upper_with_stride_above_the_kernel_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("ConvTranspose", ['X', 'W', 'B'], ['Y'], auto_pad=b'SAME_UPPER', kernel_shape=[2], strides=[5])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0, 7.0, -5.0, 7.0, -4.0, 3.0, 5.0, 6.0, -3.0]).astype('float32').reshape((2, 3, 2)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0]).astype('float32').reshape((3,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0]).astype('float32').reshape((1, 2, 4)),
]
EXPECTED = [
    np.array([-17.0, -18.0, 4.0, 4.0, 4.0, -30.0, 38.0, 4.0, 4.0, 4.0, -14.0, -10.0, 4.0, 4.0, 4.0, 15.0, -12.0, 4.0, 4.0, 4.0, 39.0, -20.0, -2.0, -2.0, -2.0, -38.0, -25.0, -2.0, -2.0, -2.0, 26.0, -17.0, -2.0, -2.0, -2.0, 17.0, 5.0, -2.0, -2.0, -2.0, -72.0, 57.0, 7.0, 7.0, 7.0, 4.0, 4.0, 7.0, 7.0, 7.0, -52.0, 44.0, 7.0, 7.0, 7.0, -1.0, 14.0, 7.0, 7.0, 7.0]).astype('float32').reshape((1, 3, 20)),
]
BOUNDS = [
    np.array([1.895427703857422e-05, 2.3603439331054688e-05, 1.430511474609375e-06, 1.430511474609375e-06, 1.430511474609375e-06, 1.3589859008789062e-05, 1.3589859008789062e-05, 1.430511474609375e-06, 1.430511474609375e-06, 1.430511474609375e-06, 1.5020370483398438e-05, 1.7881393432617188e-05, 1.430511474609375e-06, 1.430511474609375e-06, 1.430511474609375e-06, 5.364418029785156e-06, 7.152557373046875e-06, 1.430511474609375e-06, 1.430511474609375e-06, 1.430511474609375e-06, 2.6106834411621094e-05, 1.2159347534179688e-05, 7.152557373046875e-07, 7.152557373046875e-07, 7.152557373046875e-07, 1.3589859008789062e-05, 8.940696716308594e-06, 7.152557373046875e-07, 7.152557373046875e-07, 7.152557373046875e-07, 1.9311904907226562e-05, 9.655952453613281e-06, 7.152557373046875e-07, 7.152557373046875e-07, 7.152557373046875e-07, 7.510185241699219e-06, 3.2186508178710938e-06, 7.152557373046875e-07, 7.152557373046875e-07, 7.152557373046875e-07, 3.075599670410156e-05, 2.0384788513183594e-05, 2.5033950805664062e-06, 2.5033950805664062e-06, 2.5033950805664062e-06, 1.8596649169921875e-05, 1.2159347534179688e-05, 2.5033950805664062e-06, 2.5033950805664062e-06, 2.5033950805664062e-06, 2.3603439331054688e-05, 1.5735626220703125e-05, 2.5033950805664062e-06, 2.5033950805664062e-06, 2.5033950805664062e-06, 9.655952453613281e-06, 7.152557373046875e-06, 2.5033950805664062e-06, 2.5033950805664062e-06, 2.5033950805664062e-06]).astype('float64').reshape((1, 3, 20)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 4]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)

from collections.abc import Sequence
from importlib import metadata
from typing import Any
import ml_dtypes
import numpy as np
from tinygrad import Device, Tensor, dtypes
from tinygrad.nn.onnx import OnnxRunner


def version(option: str) -> str:
    """Name tinygrad's version and the device."""
    return f"tinygrad {metadata.version('tinygrad')} {Device.DEFAULT}"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Run the model."""
    runner = OnnxRunner(Tensor(np.frombuffer(model.SerializeToString(), np.uint8)))
    names = [value.name for value in model.graph.input]
    found = runner({name: _tensor(array) for name, array in zip(names, inputs, strict=True)})
    return [_array(found[value.name]) for value in model.graph.output]


def _tensor(array: Any) -> Any:
    if array.dtype.name == "bfloat16":
        return Tensor(array.view(np.uint16)).bitcast(dtypes.bfloat16)
    return Tensor(array)


def _array(output: Any) -> Any:
    if output.dtype == dtypes.bfloat16:
        return output.bitcast(dtypes.uint16).numpy().view(ml_dtypes.bfloat16)
    return output.numpy()

print(version(''))
got = [np.asarray(output) for output in run(MODEL, INPUTS, '')]
for ours, bound, theirs in zip(EXPECTED, BOUNDS, got, strict=True):
    print('got', theirs.dtype, theirs.shape, theirs.tolist())
    print('expected', ours.dtype, ours.shape, ours.tolist())
    assert theirs.shape == ours.shape, 'the shape is wrong'
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    right = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= bound) | np.isinf(bound)
    assert right.all(), f'{(~right).sum()} elements are wrong'
