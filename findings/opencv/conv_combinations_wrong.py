"""OpenCV 5.0.0 dnn: Conv: wrong (combinations)

Rule (ruled here): All rules at once: a combination of attributes, types, opsets and values.

Result: output 0[0, 0, 0, 0] is 1.0, expected -17.0 (16 of 16 elements differ, by up to 4.01e+06 times the bound)

8 tests of this rule have this verdict; this is the smallest.

Test test_conv_2d_sweep_20_float32_opset1.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W'], ['Y'], auto_pad=b'SAME_LOWER', dilations=[1, 2], kernel_shape=[1, 3], strides=[1, 1])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0, 7.0, -5.0, 7.0, -4.0, 3.0, 5.0, 6.0, -3.0]).astype('float32').reshape((2, 2, 1, 3)), "W"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0, -1.0, -6.0]).astype('float32').reshape((2, 2, 1, 4)),
]
EXPECTED = [
    np.array([-17.0, 1.0, -39.0, -7.0, -5.0, -45.0, -78.0, 15.0, 73.0, -10.0, -49.0, -16.0, -52.0, 59.0, 53.0, -73.0]).astype('float32').reshape((2, 2, 1, 4)),
]
BOUNDS = [
    np.array([6.532669067382812e-05, 3.1948089599609375e-05, 3.6716461181640625e-05, 1.3828277587890625e-05, 4.0531158447265625e-05, 2.1457672119140625e-05, 5.626678466796875e-05, 2.6226043701171875e-05, 4.8160552978515625e-05, 4.673004150390625e-05, 2.5272369384765625e-05, 3.4332275390625e-05, 2.765655517578125e-05, 2.8133392333984375e-05, 4.0531158447265625e-05, 4.4345855712890625e-05]).astype('float64').reshape((2, 2, 1, 4)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [2, 2, 1, 4]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None, None]),
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
