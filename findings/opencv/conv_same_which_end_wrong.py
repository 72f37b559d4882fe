"""OpenCV 5.0.0 dnn: Conv: wrong (SAME, which end)

Rule (specified): SAME: UPPER puts the odd element at the end, LOWER at the beginning.

Result: output 0[0, 0, 0] is 7.0, expected 36.0 (21 of 21 elements differ, by up to 1.74e+06 times the bound)

The result equals SAME_UPPER and SAME_LOWER exchanged.

Discussed at https://github.com/onnx/onnx/issues/756, https://github.com/onnx/onnx/issues/3254, https://github.com/onnx/onnx/issues/3153.

3 tests of this rule have this verdict; this is the smallest.

Test test_conv_1d_same_lower_with_an_odd_total_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W', 'B'], ['Y'], auto_pad=b'SAME_LOWER', kernel_shape=[4])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0, 7.0, -5.0, 7.0, -4.0, 3.0, 5.0, 6.0, -3.0, 7.0, -3.0, -5.0, 2.0, -3.0, -3.0, -4.0, 6.0, 3.0, -5.0, -3.0, -7.0]).astype('float32').reshape((3, 2, 4)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0]).astype('float32').reshape((3,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0]).astype('float32').reshape((1, 2, 7)),
]
EXPECTED = [
    np.array([36.0, 7.0, 35.0, 16.0, 65.0, -58.0, 67.0, -44.0, -52.0, -31.0, 80.0, -84.0, -75.0, -44.0, 1.0, -5.0, 45.0, 31.0, 39.0, -18.0, 63.0]).astype('float32').reshape((1, 3, 7)),
]
BOUNDS = [
    np.array([5.841255187988281e-05, 8.881092071533203e-05, 0.0001043081283569336, 0.00010848045349121094, 9.47713851928711e-05, 8.702278137207031e-05, 6.854534149169922e-05, 4.291534423828125e-05, 7.033348083496094e-05, 8.165836334228516e-05, 9.417533874511719e-05, 8.225440979003906e-05, 7.56978988647461e-05, 5.841255187988281e-05, 6.258487701416016e-05, 7.808208465576172e-05, 9.357929229736328e-05, 9.000301361083984e-05, 8.046627044677734e-05, 7.033348083496094e-05, 4.470348358154297e-05]).astype('float64').reshape((1, 3, 7)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 7]),
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
