"""OpenCV 5.0.0 dnn: Conv: wrong (sums beyond the largest)

Rule (ruled here): Where terms of one sign are beyond the largest value together, the sum is infinity of that sign, in any order.

Result: output 0[0, 0, 1] is 3.4028234663852886e+38, expected inf (5 of 42 elements differ)

2 tests of this rule have this verdict; this is the smallest.

Test test_conv_1d_sums_beyond_the_largest_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W', 'B'], ['Y'], kernel_shape=[3], pads=[1, 0])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([2.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 2.0]).astype('float32').reshape((3, 2, 3)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0]).astype('float32').reshape((3,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, 1.7014117331926443e+38, -2.0, -5.0, -4.0, -4.0, 1.0, 1.7014117331926443e+38, -5.0, -5.0, 3.0, 1.7014117331926443e+38, 1.7014117331926443e+38, -1.0, -6.0, -1.7014117331926443e+38, -1.0, 1.0, -3.0, -7.0, -5.0, 3.0, 7.0, 3.0, -1.7014117331926443e+38, 5.0, 4.0, 1.0, -1.7014117331926443e+38, 4.0, 1.0]).astype('float32').reshape((2, 2, 8)),
]
EXPECTED = [
    np.array([3.0, inf, 1.7014117331926443e+38, 3.4028234663852886e+38, -10.0, 1.7014117331926443e+38, 1.7014117331926443e+38, -18.0, 1.7014117331926443e+38, 3.4028234663852886e+38, 3.4028234663852886e+38, 1.7014117331926443e+38, -20.0, -19.0, 1.7014117331926443e+38, inf, 3.4028234663852886e+38, inf, inf, inf, 3.4028234663852886e+38, -1.7014117331926443e+38, -3.4028234663852886e+38, -1.7014117331926443e+38, -6.0, -15.0, -8.0, -1.7014117331926443e+38, -inf, -1.7014117331926443e+38, 0.0, -13.0, -1.7014117331926443e+38, -12.0, 7.0, -inf, -3.4028234663852886e+38, -3.4028234663852886e+38, 4.0, -3.4028234663852886e+38, -1.7014117331926443e+38, -3.4028234663852886e+38]).astype('float32').reshape((2, 3, 7)),
]
BOUNDS = [
    np.array([8.106231689453125e-06, 0.0, 8.11296335789034e+31, inf, 1.1444091796875e-05, 8.11296335789034e+31, 8.11296335789034e+31, 1.1444091796875e-05, 8.11296335789034e+31, inf, inf, 8.11296335789034e+31, 9.5367431640625e-06, 1.0013580322265625e-05, 8.11296335789034e+31, 0.0, inf, 0.0, 0.0, 0.0, inf, 8.11296335789034e+31, inf, 8.11296335789034e+31, 1.33514404296875e-05, 1.4781951904296875e-05, 1.430511474609375e-05, 8.11296335789034e+31, 0.0, 8.11296335789034e+31, 5.7220458984375e-06, 8.106231689453125e-06, 8.11296335789034e+31, 1.239776611328125e-05, 1.0013580322265625e-05, 0.0, inf, inf, 2.09808349609375e-05, inf, 8.11296335789034e+31, inf]).astype('float64').reshape((2, 3, 7)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [2, 2, 8]),
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
