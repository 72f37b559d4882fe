"""OpenCV 5.0.0 dnn: MaxPool: wrong (Indices)

Rule (specified): Indices: int64, over the whole tensor, (n*C + c)*prod(spatial) + offset in the plane; padding not counted.

Result: output 1[1, 0, 0, 0] is 8, expected 68 (3 of 6 elements differ)

Discussed at https://github.com/onnx/onnx/issues/2398, https://github.com/onnx/onnx/issues/1370.

14 tests of this rule have this verdict; this is the smallest.

Test test_max_pool_2d_kernel_equal_to_the_input_with_indices_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("MaxPool", ['X'], ['Y', 'Indices'], kernel_shape=[5, 4])
CONSTANTS = [
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0, -1.0, -6.0, -3.0, -1.0, 1.0, -3.0, -7.0, -5.0, 3.0, 7.0, 3.0, -3.0, 5.0, 4.0, 1.0, -7.0, 4.0, 1.0, 8.0, -2.0, 2.0, -8.0, -2.0, -1.0, -7.0, -3.0, 2.0, 2.0, -3.0, -3.0, 8.0, 2.0, 3.0, -4.0, 7.0, 6.0, -3.0, 4.0, 3.0, 4.0, -6.0, -2.0, -8.0, -4.0, 6.0, -1.0, -2.0, 3.0, 7.0, -3.0, -3.0, -6.0, 5.0, 6.0, 8.0, -5.0, 8.0, -3.0, 1.0, 0.0, 8.0, 7.0, 4.0, 4.0, -6.0, 5.0, -2.0, -5.0, 1.0, -8.0, 2.0, -2.0, 7.0, -3.0, 2.0, -1.0, -4.0, -6.0, 4.0, 0.0, 6.0, 6.0, -6.0, 5.0, 5.0, 0.0, 3.0, 7.0, -5.0, 3.0, 5.0, -6.0, 6.0, 6.0, -2.0, -3.0, 0.0, 6.0, -4.0, -5.0, 2.0, 7.0, 1.0, 7.0, 4.0, 6.0]).astype('float32').reshape((2, 3, 5, 4)),
]
EXPECTED = [
    np.array([7.0, 8.0, 8.0, 8.0, 7.0, 7.0]).astype('float32').reshape((2, 3, 1, 1)),
    np.array([8, 32, 44, 68, 86, 101]).astype('int64').reshape((2, 3, 1, 1)),
]
BOUNDS = [
    np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((2, 3, 1, 1)),
    np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((2, 3, 1, 1)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [2, 3, 5, 4]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None, None]),
    helper.make_tensor_value_info("Indices", 7, [None, None, None, None]),
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
