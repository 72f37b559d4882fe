"""OpenCV 5.0.0 dnn: Conv: wrong (NaN and infinity in a window)

Rule (ruled here): Where a NaN or inf enters a window: NaN or inf as IEEE arithmetic over the taps inside the input gives.

Result: output 0[0, 1, 3] is 3.4028234663852886e+38, expected inf (1 of 12 elements differ)

6 tests of this rule have this verdict; this is the smallest.

Test test_conv_1d_an_infinity_between_dilated_taps_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W', 'B'], ['Y'], dilations=[3], kernel_shape=[2])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0]).astype('float32').reshape((2, 1, 2)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0]).astype('float32').reshape((2,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -inf, 1.0, 7.0]).astype('float32').reshape((1, 1, 9)),
]
EXPECTED = [
    np.array([6.0, -32.0, -10.0, -inf, 20.0, 54.0, 56.0, -21.0, 42.0, inf, 37.0, 23.0]).astype('float32').reshape((1, 2, 6)),
]
BOUNDS = [
    np.array([7.152557373046875e-06, 9.5367431640625e-06, 9.059906005859375e-06, 0.0, 4.76837158203125e-06, 1.2874603271484375e-05, 1.430511474609375e-05, 7.3909759521484375e-06, 1.0967254638671875e-05, 0.0, 1.0251998901367188e-05, 9.775161743164062e-06]).astype('float64').reshape((1, 2, 6)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 1, 9]),
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
