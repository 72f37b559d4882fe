"""OpenCV 5.0.0 dnn: AveragePool: wrong (combinations)

Rule (ruled here): All rules at once: a combination of attributes, types, opsets and values.

Result: output 0 has the shape (1, 2, 6, 4), expected (1, 2, 6, 3)

The result equals a window that starts beyond the input.

4 tests of this rule have this verdict; this is the smallest.

Test test_average_pool_2d_sweep_7_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("AveragePool", ['X'], ['Y'], auto_pad=b'NOTSET', ceil_mode=1, count_include_pad=1, dilations=[3, 3], kernel_shape=[3, 1], pads=[0, 2, 1, 2], strides=[1, 3])
CONSTANTS = [
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -inf, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, inf, inf, -6.0, -3.0, -inf, 1.0, -3.0, inf, -inf, 3.0, 7.0, 3.0, -inf, -inf, 4.0, 1.0, inf, inf, 1.0, -inf, inf, 2.0, -8.0, -2.0, -1.0, -inf, -3.0, 2.0, 2.0, -3.0, -3.0, -inf, 2.0, 3.0, -4.0, 7.0, -inf, -3.0, 4.0, 3.0, 4.0, -6.0, -2.0, -8.0, -4.0, 6.0, -1.0, -inf, -inf, inf, -3.0, -3.0, -6.0, 5.0, 6.0, 8.0, -inf, 8.0, inf, 1.0, inf, 8.0, inf, -inf, inf, -6.0, 5.0, -inf, -5.0, 1.0, -inf, 2.0, -2.0, 7.0, -3.0]).astype('float32').reshape((1, 2, 11, 4)),
]
EXPECTED = [
    np.array([0.0, nan, 0.0, 0.0, nan, 0.0, 0.0, nan, 0.0, 0.0, nan, 0.0, 0.0, nan, 0.0, 0.0, nan, 0.0, 0.0, -inf, 0.0, 0.0, nan, 0.0, 0.0, inf, 0.0, 0.0, -inf, 0.0, 0.0, nan, 0.0, 0.0, inf, 0.0]).astype('float32').reshape((1, 2, 6, 3)),
]
BOUNDS = [
    np.array([7.006492321624085e-46, 0.0, 7.006492321624085e-46, 7.006492321624085e-46, 0.0, 7.006492321624085e-46, 7.006492321624085e-46, 0.0, 7.006492321624085e-46, 7.006492321624085e-46, 0.0, 7.006492321624085e-46, 7.006492321624085e-46, 0.0, 7.006492321624085e-46, 7.006492321624085e-46, 0.0, 7.006492321624085e-46, 7.006492321624085e-46, 0.0, 7.006492321624085e-46, 7.006492321624085e-46, 0.0, 7.006492321624085e-46, 7.006492321624085e-46, 0.0, 7.006492321624085e-46, 7.006492321624085e-46, 0.0, 7.006492321624085e-46, 7.006492321624085e-46, 0.0, 7.006492321624085e-46, 7.006492321624085e-46, 0.0, 7.006492321624085e-46]).astype('float64').reshape((1, 2, 6, 3)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 11, 4]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None, None]),
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
