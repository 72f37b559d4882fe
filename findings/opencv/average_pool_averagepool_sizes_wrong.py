"""OpenCV 5.0.0 dnn: AveragePool: wrong (AveragePool sizes)

Rule (specified): AveragePool has the sizes of MaxPool: ceil_mode, dilations, auto_pad and pads mean the same.

Result: output 0 has the shape (1, 1, 3), expected (1, 1, 2)

The result equals a window that starts beyond the input.

Discussed at https://github.com/onnx/onnx/issues/2290, https://github.com/onnx/onnx/issues/1651, https://github.com/onnx/onnx/issues/2927, https://github.com/onnx/onnx/issues/2971, https://github.com/onnx/onnx/issues/2943, https://github.com/onnx/onnx/pull/5741, https://github.com/microsoft/onnxruntime/issues/15446.

5 tests of this rule have this verdict; this is the smallest.

Test test_average_pool_1d_ceil_mode_drops_a_window_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("AveragePool", ['X'], ['Y'], ceil_mode=1, kernel_shape=[2], pads=[0, 1], strides=[2])
CONSTANTS = [
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0]).astype('float32').reshape((1, 1, 4)),
]
EXPECTED = [
    np.array([-2.0, -3.5]).astype('float32').reshape((1, 1, 2)),
]
BOUNDS = [
    np.array([1.1920928955078125e-06, 8.344650268554688e-07]).astype('float64').reshape((1, 1, 2)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 1, 4]),
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
