"""OpenCV 5.0.0 dnn: ConvTranspose: wrong (ConvTranspose, SAME)

Rule (specified): SAME without output_shape: out = n*s always; a shortage or excess follows the rules of output_shape.

Result: output 0 has the shape (1, 3, 9), expected (1, 3, 10)

Discussed at https://github.com/onnx/onnx/issues/3153, https://github.com/onnx/onnx/issues/4299, https://github.com/microsoft/onnxruntime/issues/4086, https://github.com/microsoft/onnxruntime/issues/4698.

9 tests of this rule have this verdict; this is the smallest.

Test test_conv_transpose_1d_same_lower_with_dilation_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("ConvTranspose", ['X', 'W', 'B'], ['Y'], auto_pad=b'SAME_LOWER', dilations=[3], kernel_shape=[2], strides=[2])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0, 7.0, -5.0, 7.0, -4.0, 3.0, 5.0, 6.0, -3.0]).astype('float32').reshape((2, 3, 2)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0]).astype('float32').reshape((3,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0]).astype('float32').reshape((1, 2, 5)),
]
EXPECTED = [
    np.array([4.0, -30.0, -22.0, 21.0, 38.0, 57.0, -30.0, -21.0, -36.0, 4.0, -2.0, -38.0, -15.0, 41.0, -25.0, 35.0, 8.0, 23.0, 35.0, -2.0, 7.0, 4.0, 54.0, -22.0, 4.0, 35.0, 29.0, -58.0, -4.0, 7.0]).astype('float32').reshape((1, 3, 10)),
]
BOUNDS = [
    np.array([1.430511474609375e-06, 1.3589859008789062e-05, 2.2172927856445312e-05, 7.510185241699219e-06, 1.3589859008789062e-05, 2.0384788513183594e-05, 1.3589859008789062e-05, 1.7523765563964844e-05, 1.5735626220703125e-05, 1.430511474609375e-06, 7.152557373046875e-07, 1.3589859008789062e-05, 1.0371208190917969e-05, 1.609325408935547e-05, 8.940696716308594e-06, 1.3947486877441406e-05, 4.291534423828125e-06, 2.0384788513183594e-05, 1.3947486877441406e-05, 7.152557373046875e-07, 2.5033950805664062e-06, 1.8596649169921875e-05, 1.9311904907226562e-05, 1.71661376953125e-05, 1.2159347534179688e-05, 2.2530555725097656e-05, 1.2516975402832031e-05, 2.574920654296875e-05, 1.3589859008789062e-05, 2.5033950805664062e-06]).astype('float64').reshape((1, 3, 10)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 5]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)

from collections.abc import Sequence
from typing import Any
import cv2
import numpy as np


def version(option: str) -> str:
    """Name OpenCV's version."""
    return f"OpenCV {cv2.__version__} dnn"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Read the model, set its inputs, and ask for all outputs."""
    net = cv2.dnn.readNetFromONNX(np.frombuffer(model.SerializeToString(), np.uint8))
    for value, array in zip(model.graph.input, inputs, strict=True):
        net.setInput(array, value.name)
    return list(net.forward([value.name for value in model.graph.output]))

print(version(''))
got = [np.asarray(output) for output in run(MODEL, INPUTS, '')]
for ours, bound, theirs in zip(EXPECTED, BOUNDS, got, strict=True):
    print('got', theirs.dtype, theirs.shape, theirs.tolist())
    print('expected', ours.dtype, ours.shape, ours.tolist())
    assert theirs.shape == ours.shape, 'the shape is wrong'
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    right = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= bound) | np.isinf(bound)
    assert right.all(), f'{(~right).sum()} elements are wrong'
