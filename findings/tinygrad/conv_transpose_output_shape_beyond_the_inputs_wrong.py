"""tinygrad 0.14.0 CPU: ConvTranspose: wrong (output_shape beyond the inputs)

Rule (disputed): Where output_shape is larger than natural, the excess (bias only) stands at the end.

Result: output 0[0, 0, 0] is 4.0, expected -10.0 (39 of 45 elements differ, by up to 1.2e+07 times the bound)

Discussed at https://github.com/onnx/onnx/issues/1772, https://github.com/onnx/onnx/issues/4527, https://github.com/microsoft/onnxruntime/issues/26271.

4 tests of this rule have this verdict; this is the smallest.

Test test_conv_transpose_1d_output_shape_above_natural_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("ConvTranspose", ['X', 'W', 'B'], ['Y'], kernel_shape=[4], output_shape=[15], strides=[2])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0, 7.0, -5.0, 7.0, -4.0, 3.0, 5.0, 6.0, -3.0, 7.0, -3.0, -5.0, 2.0, -3.0, -3.0, -4.0, 6.0, 3.0, -5.0, -3.0, -7.0]).astype('float32').reshape((2, 3, 4)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0, 7.0]).astype('float32').reshape((3,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0]).astype('float32').reshape((1, 2, 5)),
]
EXPECTED = [
    np.array([-10.0, -26.0, 46.0, 33.0, 17.0, -40.0, 92.0, -22.0, -40.0, 5.0, 69.0, -1.0, 4.0, 4.0, 4.0, -39.0, 45.0, -2.0, -1.0, -3.0, -16.0, -76.0, 13.0, -64.0, 88.0, -17.0, -12.0, -2.0, -2.0, -2.0, -26.0, -8.0, -26.0, 91.0, 25.0, -4.0, -11.0, -30.0, -56.0, -36.0, -8.0, 57.0, 7.0, 7.0, 7.0]).astype('float32').reshape((1, 3, 15)),
]
BOUNDS = [
    np.array([2.7418136596679688e-05, 3.457069396972656e-05, 6.794929504394531e-05, 2.9206275939941406e-05, 3.8743019104003906e-05, 2.86102294921875e-05, 6.079673767089844e-05, 2.6226043701171875e-05, 5.9604644775390625e-05, 3.8743019104003906e-05, 4.112720489501953e-05, 1.1324882507324219e-05, 2.384185791015625e-06, 2.384185791015625e-06, 2.384185791015625e-06, 3.7550926208496094e-05, 2.9206275939941406e-05, 5.9604644775390625e-05, 4.8279762268066406e-05, 4.589557647705078e-05, 3.933906555175781e-05, 4.5299530029296875e-05, 3.516674041748047e-05, 5.602836608886719e-05, 5.4836273193359375e-05, 3.3974647521972656e-05, 3.0994415283203125e-05, 1.1920928955078125e-06, 1.1920928955078125e-06, 1.1920928955078125e-06, 2.384185791015625e-05, 3.695487976074219e-05, 4.887580871582031e-05, 5.424022674560547e-05, 3.2782554626464844e-05, 4.410743713378906e-05, 3.993511199951172e-05, 4.410743713378906e-05, 4.172325134277344e-05, 6.67572021484375e-05, 3.0994415283203125e-05, 3.3974647521972656e-05, 4.172325134277344e-06, 4.172325134277344e-06, 4.172325134277344e-06]).astype('float64').reshape((1, 3, 15)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 5]),
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
