"""OpenCV 5.0.0 dnn: MaxPool: wrong (MaxPool, subnormals)

Rule (ruled here): Subnormals compare exactly.

Result: output 0[0, 0, 0, 0] is -0.0, expected 9.80908925027372e-45 (24 of 24 elements differ)

Test test_max_pool_2d_subnormals_with_indices_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("MaxPool", ['X'], ['Y', 'Indices'], kernel_shape=[2, 2], strides=[2, 2])
CONSTANTS = [
]
INPUTS = [
    np.array([-9.80908925027372e-45, 4.203895392974451e-45, -7.006492321624085e-45, -2.802596928649634e-45, -7.006492321624085e-45, -5.605193857299268e-45, -5.605193857299268e-45, 1.401298464324817e-45, 9.80908925027372e-45, -7.006492321624085e-45, -7.006492321624085e-45, 4.203895392974451e-45, -2.802596928649634e-45, 2.802596928649634e-45, -1.401298464324817e-45, -8.407790785948902e-45, -4.203895392974451e-45, -1.401298464324817e-45, 1.401298464324817e-45, -4.203895392974451e-45, -9.80908925027372e-45, -7.006492321624085e-45, 4.203895392974451e-45, 9.80908925027372e-45, 4.203895392974451e-45, -4.203895392974451e-45, 7.006492321624085e-45, 5.605193857299268e-45, 1.401298464324817e-45, -9.80908925027372e-45, 5.605193857299268e-45, 1.401298464324817e-45, 1.1210387714598537e-44, -2.802596928649634e-45, 2.802596928649634e-45, -1.1210387714598537e-44, -2.802596928649634e-45, -1.401298464324817e-45, -9.80908925027372e-45, -4.203895392974451e-45, 2.802596928649634e-45, 2.802596928649634e-45, -4.203895392974451e-45, -4.203895392974451e-45, 1.1210387714598537e-44, 2.802596928649634e-45, 4.203895392974451e-45, -5.605193857299268e-45, 9.80908925027372e-45, 8.407790785948902e-45, -4.203895392974451e-45, 5.605193857299268e-45, 4.203895392974451e-45, 5.605193857299268e-45, -8.407790785948902e-45, -2.802596928649634e-45, -1.1210387714598537e-44, -5.605193857299268e-45, 8.407790785948902e-45, -1.401298464324817e-45, -2.802596928649634e-45, 4.203895392974451e-45, 9.80908925027372e-45, -4.203895392974451e-45, -4.203895392974451e-45, -8.407790785948902e-45, 7.006492321624085e-45, 8.407790785948902e-45, 1.1210387714598537e-44, -7.006492321624085e-45, 1.1210387714598537e-44, -4.203895392974451e-45, 1.401298464324817e-45, 0.0, 1.1210387714598537e-44, 9.80908925027372e-45, 5.605193857299268e-45, 5.605193857299268e-45, -8.407790785948902e-45, 7.006492321624085e-45, -2.802596928649634e-45, -7.006492321624085e-45, 1.401298464324817e-45, -1.1210387714598537e-44, 2.802596928649634e-45, -2.802596928649634e-45, 9.80908925027372e-45, -4.203895392974451e-45, 2.802596928649634e-45, -1.401298464324817e-45, -5.605193857299268e-45, -8.407790785948902e-45, 5.605193857299268e-45, 0.0, 8.407790785948902e-45, 8.407790785948902e-45, -8.407790785948902e-45, 7.006492321624085e-45, 7.006492321624085e-45, 0.0, 4.203895392974451e-45, 9.80908925027372e-45, -7.006492321624085e-45, 4.203895392974451e-45, 7.006492321624085e-45, -8.407790785948902e-45, 8.407790785948902e-45, 8.407790785948902e-45, -2.802596928649634e-45, -4.203895392974451e-45, 0.0, 8.407790785948902e-45]).astype('float32').reshape((1, 2, 7, 8)),
]
EXPECTED = [
    np.array([9.80908925027372e-45, 4.203895392974451e-45, 2.802596928649634e-45, 1.401298464324817e-45, 4.203895392974451e-45, 7.006492321624085e-45, 1.401298464324817e-45, 9.80908925027372e-45, 1.1210387714598537e-44, 2.802596928649634e-45, 1.1210387714598537e-44, 4.203895392974451e-45, -4.203895392974451e-45, 8.407790785948902e-45, 1.1210387714598537e-44, 1.1210387714598537e-44, 1.401298464324817e-45, 1.1210387714598537e-44, 5.605193857299268e-45, 9.80908925027372e-45, 7.006492321624085e-45, 7.006492321624085e-45, 9.80908925027372e-45, 8.407790785948902e-45]).astype('float32').reshape((1, 2, 3, 4)),
    np.array([8, 11, 13, 7, 24, 26, 28, 23, 32, 34, 44, 46, 64, 58, 68, 70, 72, 74, 76, 86, 97, 98, 101, 94]).astype('int64').reshape((1, 2, 3, 4)),
]
BOUNDS = [
    np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((1, 2, 3, 4)),
    np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((1, 2, 3, 4)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 7, 8]),
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
