"""tinygrad 0.14.0 CPU: Conv: wrong (SAME, dilated)

Rule (specified): SAME: the dilated kernel counts.

Result: output 0 has the shape (1, 3, 7), expected (1, 3, 9)

The result equals SAME that pads for the kernel without its dilation.

Discussed at https://github.com/microsoft/onnxscript/pull/3037.

8 tests of this rule have this verdict; this is the smallest.

Test test_conv_1d_same_upper_with_an_odd_total_and_dilation_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W', 'B'], ['Y'], auto_pad=b'SAME_UPPER', dilations=[3], kernel_shape=[2])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0, 7.0, -5.0, 7.0, -4.0, 3.0, 5.0, 6.0, -3.0]).astype('float32').reshape((3, 2, 2)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0]).astype('float32').reshape((3,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0, -1.0, -6.0, -3.0, -1.0]).astype('float32').reshape((1, 2, 9)),
]
EXPECTED = [
    np.array([-29.0, 48.0, 6.0, -33.0, 6.0, 7.0, 63.0, 60.0, 26.0, 11.0, -68.0, 1.0, 8.0, 14.0, -16.0, -68.0, -72.0, -16.0, -27.0, -48.0, -45.0, -7.0, -13.0, 18.0, 27.0, -41.0, -8.0]).astype('float32').reshape((1, 3, 9)),
]
BOUNDS = [
    np.array([1.3232231140136719e-05, 2.574920654296875e-05, 2.9325485229492188e-05, 2.2530555725097656e-05, 1.9311904907226562e-05, 1.3947486877441406e-05, 2.2530555725097656e-05, 2.1457672119140625e-05, 1.0728836059570312e-05, 1.3947486877441406e-05, 3.719329833984375e-05, 3.254413604736328e-05, 2.9325485229492188e-05, 2.6464462280273438e-05, 2.4318695068359375e-05, 2.7179718017578125e-05, 2.574920654296875e-05, 1.0728836059570312e-05, 1.4662742614746094e-05, 2.6464462280273438e-05, 2.753734588623047e-05, 2.2530555725097656e-05, 2.2530555725097656e-05, 1.71661376953125e-05, 2.2530555725097656e-05, 1.9669532775878906e-05, 1.0013580322265625e-05]).astype('float64').reshape((1, 3, 9)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 9]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)

from collections.abc import Sequence
from importlib import metadata
from typing import Any
import ml_dtypes
import numpy as np
from tinygrad import Device, Tensor, dtypes
from tinygrad.nn.onnx import OnnxRunner


def version(option: str) -> str:
    """Name tinygrad's version and the device."""
    return f"tinygrad {metadata.version('tinygrad')} {Device.DEFAULT}"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Run the model."""
    runner = OnnxRunner(Tensor(np.frombuffer(model.SerializeToString(), np.uint8)))
    names = [value.name for value in model.graph.input]
    found = runner({name: _tensor(array) for name, array in zip(names, inputs, strict=True)})
    return [_array(found[value.name]) for value in model.graph.output]


def _tensor(array: Any) -> Any:
    if array.dtype.name == "bfloat16":
        return Tensor(array.view(np.uint16)).bitcast(dtypes.bfloat16)
    return Tensor(array)


def _array(output: Any) -> Any:
    if output.dtype == dtypes.bfloat16:
        return output.bitcast(dtypes.uint16).numpy().view(ml_dtypes.bfloat16)
    return output.numpy()

print(version(''))
got = [np.asarray(output) for output in run(MODEL, INPUTS, '')]
for ours, bound, theirs in zip(EXPECTED, BOUNDS, got, strict=True):
    print('got', theirs.dtype, theirs.shape, theirs.tolist())
    print('expected', ours.dtype, ours.shape, ours.tolist())
    assert theirs.shape == ours.shape, 'the shape is wrong'
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    right = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= bound) | np.isinf(bound)
    assert right.all(), f'{(~right).sum()} elements are wrong'
