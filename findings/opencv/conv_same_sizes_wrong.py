"""OpenCV 5.0.0 dnn: Conv: wrong (SAME sizes)

Rule (specified): SAME_UPPER/SAME_LOWER: out = ceil(n/s), total = max(0, (out-1)*s + ek - n).

Result: output 0[0, 0, 0] is -66.0, expected 59.0 (3 of 3 elements differ, by up to 1.47e+06 times the bound)

The result equals SAME_UPPER and SAME_LOWER exchanged.

Discussed at https://github.com/onnx/onnx/issues/756, https://github.com/onnx/onnx/issues/3254, https://github.com/onnx/onnx/issues/3153.

2 tests of this rule have this verdict; this is the smallest.

Test test_conv_1d_same_upper_with_stride_above_the_input_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W', 'B'], ['Y'], auto_pad=b'SAME_UPPER', kernel_shape=[4], strides=[5])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0, 7.0, -5.0, 7.0, -4.0, 3.0, 5.0, 6.0, -3.0, 7.0, -3.0, -5.0, 2.0, -3.0, -3.0, -4.0, 6.0, 3.0, -5.0, -3.0, -7.0]).astype('float32').reshape((3, 2, 4)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0]).astype('float32').reshape((3,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0]).astype('float32').reshape((1, 2, 3)),
]
EXPECTED = [
    np.array([59.0, -17.0, 70.0]).astype('float32').reshape((1, 3, 1)),
]
BOUNDS = [
    np.array([8.52346420288086e-05, 6.973743438720703e-05, 5.9604644775390625e-05]).astype('float64').reshape((1, 3, 1)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 3]),
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
