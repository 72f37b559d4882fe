"""OpenCV 5.0.0 dnn: ConvTranspose: wrong (combinations)

Rule (ruled here): All rules at once: a combination of attributes, types, opsets and values.

Result: output 0 has the shape (2, 4, 2), expected (2, 4, 1)

8 tests of this rule have this verdict; this is the smallest.

Test test_conv_transpose_1d_sweep_16_float32_opset1.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("ConvTranspose", ['X', 'W'], ['Y'], group=2, kernel_shape=[1], output_padding=[0], output_shape=[1], pads=[0, 0], strides=[1])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0]).astype('float32').reshape((2, 2, 1)), "W"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0]).astype('float32').reshape((2, 2, 1)),
]
EXPECTED = [
    np.array([14.0, -42.0, -24.0, -3.0, 10.0, -30.0, 16.0, 2.0]).astype('float32').reshape((2, 4, 1)),
]
BOUNDS = [
    np.array([2.5033950805664062e-06, 7.510185241699219e-06, 4.291534423828125e-06, 5.364418029785156e-07, 1.7881393432617188e-06, 5.364418029785156e-06, 2.86102294921875e-06, 3.5762786865234375e-07]).astype('float64').reshape((2, 4, 1)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [2, 2, 1]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 1)], ir_version=4)

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
