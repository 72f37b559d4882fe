"""OpenCV 5.0.0 dnn: AveragePool: wrong (count_include_pad)

Rule (specified): count_include_pad=1: the divisor counts the padding too, as if x were padded with zeros.

Result: output 0[0, 0, 0, 0] is 0.6666666865348816, expected -1.0 (23 of 24 elements differ, by up to 2.62e+06 times the bound)

Discussed at https://github.com/onnx/onnx/issues/1384.

Test test_average_pool_2d_same_lower_that_counts_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("AveragePool", ['X'], ['Y'], auto_pad=b'SAME_LOWER', count_include_pad=1, kernel_shape=[3, 2], strides=[2, 2])
CONSTANTS = [
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0, -1.0, -6.0, -3.0, -1.0, 1.0, -3.0, -7.0, -5.0, 3.0, 7.0, 3.0, -3.0, 5.0, 4.0, 1.0, -7.0, 4.0, 1.0, 8.0, -2.0, 2.0, -8.0, -2.0, -1.0, -7.0, -3.0, 2.0, 2.0, -3.0, -3.0, 8.0, 2.0, 3.0, -4.0, 7.0, 6.0, -3.0, 4.0, 3.0, 4.0, -6.0, -2.0, -8.0, -4.0, 6.0, -1.0, -2.0, 3.0, 7.0, -3.0, -3.0, -6.0, 5.0, 6.0, 8.0, -5.0, 8.0, -3.0, 1.0, 0.0, 8.0, 7.0, 4.0, 4.0, -6.0, 5.0, -2.0, -5.0, 1.0, -8.0]).astype('float32').reshape((1, 2, 6, 7)),
]
EXPECTED = [
    np.array([-1.0, 0.0, -1.5, -1.3333333730697632, -0.8333333134651184, 0.5, -0.3333333432674408, -0.1666666716337204, -2.0, 0.6666666865348816, -0.1666666716337204, 2.1666667461395264, 0.5, 1.0, 2.0, -0.8333333134651184, -0.8333333134651184, -1.0, 2.5, 0.8333333134651184, 1.5, -2.0, 2.0, 1.1666666269302368]).astype('float32').reshape((1, 2, 3, 4)),
]
BOUNDS = [
    np.array([6.357828776041666e-07, 1.5894571940104167e-06, 1.1920928955078125e-06, 9.934107463305253e-07, 5.761782328657835e-07, 2.463658650716146e-06, 1.281499862689402e-06, 1.8328428268525136e-06, 1.1126200358072917e-06, 1.9272168477746376e-06, 1.9917885462535554e-06, 1.4305114747574048e-06, 7.152557373046875e-07, 1.430511474609375e-06, 9.5367431640625e-07, 1.5298525492720334e-06, 1.3709068298709919e-06, 2.0662943522135415e-06, 1.6689300537109375e-06, 2.4835268656782836e-06, 1.1920928955078125e-06, 1.9073486328125e-06, 2.0662943522135415e-06, 2.6623408000414628e-06]).astype('float64').reshape((1, 2, 3, 4)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 6, 7]),
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
