"""OpenCV 5.0.0 dnn: Conv: wrong (NaN and infinity in a window)

Rule (ruled here): Where a NaN or inf enters a window: NaN or inf as IEEE arithmetic over the taps inside the input gives.

Result: output 0[0, 8, 0, 0] is 3.4028234663852886e+38, expected inf (8 of 48 elements differ)

4 tests of this rule have this verdict; this is the smallest.

Test test_conv_2d_infinities_and_nan_in_the_bias_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W', 'B'], ['Y'], kernel_shape=[2, 2])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0, 7.0, -5.0, 7.0, -4.0, 3.0, 5.0, 6.0, -3.0, 7.0, -3.0, -5.0, 2.0, -3.0, -3.0, -4.0, 6.0, 3.0, -5.0, -3.0, -7.0, -2.0, 2.0, -3.0, 5.0, -5.0, 5.0, -8.0, -7.0, -1.0, 3.0, 2.0, 5.0, 6.0, 2.0, -4.0, 2.0, 0.0, -5.0, -5.0, -1.0, -3.0, 1.0, -4.0, -8.0, 7.0, -6.0, 5.0, 6.0, -4.0, -1.0, 6.0, 1.0, 7.0, 8.0, -7.0, 3.0, -6.0, 2.0, 1.0, 6.0, -6.0, 8.0, -3.0, -7.0, 7.0, -1.0, -4.0, -5.0, -3.0, -1.0, -8.0, 5.0, -4.0, 0.0, -3.0, 3.0, 6.0, 2.0, -1.0, 0.0, -1.0, 2.0, 7.0, 8.0, 2.0, 5.0, 7.0, -1.0, 7.0, 2.0, -7.0, 0.0]).astype('float32').reshape((12, 2, 2, 2)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0, -inf, 7.0, -inf, 4.0, 7.0, inf, 5.0, nan, 5.0]).astype('float32').reshape((12,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0, -1.0, -6.0, -3.0, -1.0]).astype('float32').reshape((1, 2, 3, 3)),
]
EXPECTED = [
    np.array([25.0, -20.0, -45.0, -23.0, -11.0, -92.0, -56.0, -22.0, -1.0, -20.0, 73.0, 99.0, -inf, -inf, -inf, -inf, -34.0, -75.0, 1.0, 57.0, -inf, -inf, -inf, -inf, -88.0, 34.0, -27.0, 14.0, 11.0, 43.0, -24.0, -69.0, inf, inf, inf, inf, 46.0, 32.0, 70.0, 49.0, nan, nan, nan, nan, -34.0, -88.0, -21.0, 8.0]).astype('float32').reshape((1, 12, 2, 2)),
]
BOUNDS = [
    np.array([8.285045623779297e-05, 9.059906005859375e-05, 8.881092071533203e-05, 5.7816505432128906e-05, 7.68899917602539e-05, 7.987022399902344e-05, 6.914138793945312e-05, 5.841255187988281e-05, 8.046627044677734e-05, 7.033348083496094e-05, 6.258487701416016e-05, 6.377696990966797e-05, 0.0, 0.0, 0.0, 0.0, 6.198883056640625e-05, 6.020069122314453e-05, 4.947185516357422e-05, 5.3048133850097656e-05, 0.0, 0.0, 0.0, 0.0, 8.940696716308594e-05, 8.344650268554688e-05, 7.331371307373047e-05, 8.225440979003906e-05, 9.715557098388672e-05, 9.47713851928711e-05, 7.867813110351562e-05, 7.450580596923828e-05, 0.0, 0.0, 0.0, 0.0, 6.079673767089844e-05, 6.437301635742188e-05, 5.245208740234375e-05, 5.1856040954589844e-05, 0.0, 0.0, 0.0, 0.0, 6.67572021484375e-05, 7.748603820800781e-05, 7.331371307373047e-05, 5.125999450683594e-05]).astype('float64').reshape((1, 12, 2, 2)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 3, 3]),
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
