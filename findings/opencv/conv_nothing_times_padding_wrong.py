"""OpenCV 5.0.0 dnn: Conv: wrong (nothing times padding)

Rule (disputed): Padding is never multiplied: an infinite or NaN weight on padding gives nothing.

Result: output 0[0, 0, 2] is 3.4028234663852886e+38, expected inf (2 of 35 elements differ)

Discussed at https://github.com/onnx/onnx/issues/3254.

10 tests of this rule have this verdict; this is the smallest.

Test test_conv_1d_infinite_weights_on_padding_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W', 'B'], ['Y'], kernel_shape=[2], pads=[2, 2])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, inf, -8.0, inf, 7.0, -5.0, 7.0, -4.0, 3.0, 5.0]).astype('float32').reshape((5, 1, 2)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0, -3.0, 7.0]).astype('float32').reshape((5,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0]).astype('float32').reshape((1, 1, 4)),
]
EXPECTED = [
    np.array([4.0, -inf, inf, -inf, -inf, 8.0, 4.0, -2.0, -inf, inf, -inf, -inf, 14.0, -2.0, 7.0, 42.0, -57.0, 53.0, -18.0, -7.0, 7.0, -3.0, 25.0, -64.0, 38.0, -30.0, -17.0, -3.0, 7.0, -28.0, 1.0, -9.0, -18.0, 1.0, 7.0]).astype('float32').reshape((1, 5, 7)),
]
BOUNDS = [
    np.array([9.5367431640625e-07, 0.0, 0.0, 0.0, 0.0, 1.9073486328125e-06, 9.5367431640625e-07, 4.76837158203125e-07, 0.0, 0.0, 0.0, 0.0, 4.291534423828125e-06, 4.76837158203125e-07, 1.6689300537109375e-06, 1.0013580322265625e-05, 1.6927719116210938e-05, 1.2636184692382812e-05, 1.239776611328125e-05, 5.0067901611328125e-06, 1.6689300537109375e-06, 7.152557373046875e-07, 7.3909759521484375e-06, 1.52587890625e-05, 1.049041748046875e-05, 1.0967254638671875e-05, 4.0531158447265625e-06, 7.152557373046875e-07, 1.6689300537109375e-06, 1.0013580322265625e-05, 1.0251998901367188e-05, 9.775161743164062e-06, 7.62939453125e-06, 3.0994415283203125e-06, 1.6689300537109375e-06]).astype('float64').reshape((1, 5, 7)),
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
