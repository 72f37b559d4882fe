"""tinygrad 0.14.0 CPU: ConvTranspose: wrong (nothing times padding)

Rule (disputed): Padding is never multiplied: an infinite or NaN weight on padding gives nothing.

Result: output 0[0, 0, 0] is nan, expected 18.0 (39 of 85 elements differ)

Discussed at https://github.com/onnx/onnx/issues/3254.

2 tests of this rule have this verdict; this is the smallest.

Test test_conv_transpose_1d_nan_weights_between_the_inputs_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("ConvTranspose", ['X', 'W', 'B'], ['Y'], kernel_shape=[3], output_padding=[2], strides=[4])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, nan, -8.0, nan, 7.0, -5.0, 7.0, -4.0, 3.0, 5.0, 6.0, -3.0, 7.0, nan, -5.0]).astype('float32').reshape((1, 5, 3)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0, -3.0, 7.0]).astype('float32').reshape((5,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0]).astype('float32').reshape((1, 1, 4)),
]
EXPECTED = [
    np.array([18.0, nan, 60.0, 4.0, -2.0, nan, -20.0, 4.0, 14.0, nan, 44.0, 4.0, 8.0, nan, 20.0, 4.0, 4.0, nan, -51.0, 33.0, -2.0, nan, 19.0, -17.0, -2.0, nan, -37.0, 23.0, -2.0, nan, -16.0, 8.0, -2.0, -2.0, -42.0, 35.0, -14.0, 7.0, 28.0, -5.0, 16.0, 7.0, -28.0, 27.0, -8.0, 7.0, -7.0, 15.0, 1.0, 7.0, 7.0, -38.0, -45.0, 18.0, -3.0, 12.0, 15.0, -12.0, -3.0, -28.0, -33.0, 12.0, -3.0, -13.0, -15.0, 3.0, -3.0, -3.0, -42.0, nan, 42.0, 7.0, 28.0, nan, -8.0, 7.0, -28.0, nan, 32.0, 7.0, -7.0, nan, 17.0, 7.0, 7.0]).astype('float32').reshape((1, 5, 17)),
]
BOUNDS = [
    np.array([5.364418029785156e-06, 0.0, 1.7881393432617188e-05, 1.1920928955078125e-06, 2.9802322387695312e-06, 0.0, 8.344650268554688e-06, 1.1920928955078125e-06, 4.172325134277344e-06, 0.0, 1.3113021850585938e-05, 1.1920928955078125e-06, 2.384185791015625e-06, 0.0, 5.9604644775390625e-06, 1.1920928955078125e-06, 1.1920928955078125e-06, 0.0, 1.519918441772461e-05, 1.1026859283447266e-05, 5.960464477539062e-07, 0.0, 6.854534149169922e-06, 5.066394805908203e-06, 5.960464477539062e-07, 0.0, 1.1026859283447266e-05, 8.046627044677734e-06, 5.960464477539062e-07, 0.0, 4.76837158203125e-06, 3.5762786865234375e-06, 5.960464477539062e-07, 5.960464477539062e-07, 1.6689300537109375e-05, 1.043081283569336e-05, 8.344650268554688e-06, 2.086162567138672e-06, 8.344650268554688e-06, 5.662441253662109e-06, 4.76837158203125e-06, 2.086162567138672e-06, 1.2516975402832031e-05, 8.046627044677734e-06, 6.556510925292969e-06, 2.086162567138672e-06, 6.258487701416016e-06, 4.470348358154297e-06, 3.874301910400391e-06, 2.086162567138672e-06, 2.086162567138672e-06, 1.1324882507324219e-05, 1.341104507446289e-05, 7.152557373046875e-06, 8.940696716308594e-07, 5.364418029785156e-06, 6.258487701416016e-06, 3.5762786865234375e-06, 8.940696716308594e-07, 8.344650268554688e-06, 9.834766387939453e-06, 5.364418029785156e-06, 8.940696716308594e-07, 3.874301910400391e-06, 4.470348358154297e-06, 2.682209014892578e-06, 8.940696716308594e-07, 8.940696716308594e-07, 1.6689300537109375e-05, 0.0, 1.2516975402832031e-05, 2.086162567138672e-06, 8.344650268554688e-06, 0.0, 6.556510925292969e-06, 2.086162567138672e-06, 1.2516975402832031e-05, 0.0, 9.5367431640625e-06, 2.086162567138672e-06, 6.258487701416016e-06, 0.0, 5.066394805908203e-06, 2.086162567138672e-06, 2.086162567138672e-06]).astype('float64').reshape((1, 5, 17)),
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
