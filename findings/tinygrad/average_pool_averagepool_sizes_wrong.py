"""tinygrad 0.14.0 CPU: AveragePool: wrong (AveragePool sizes)

Rule (specified): AveragePool has the sizes of MaxPool: ceil_mode, dilations, auto_pad and pads mean the same.

Result: output 0 has the shape (1, 2, 7), expected (1, 2, 9)

The result equals SAME that pads for the kernel without its dilation.

Discussed at https://github.com/onnx/onnx/issues/2290, https://github.com/onnx/onnx/issues/1651, https://github.com/onnx/onnx/issues/2927, https://github.com/onnx/onnx/issues/2971, https://github.com/onnx/onnx/issues/2943, https://github.com/onnx/onnx/pull/5741, https://github.com/microsoft/onnxruntime/issues/15446.

2 tests of this rule have this verdict; this is the smallest.

Test test_average_pool_1d_same_lower_with_dilation_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("AveragePool", ['X'], ['Y'], auto_pad=b'SAME_LOWER', dilations=[3], kernel_shape=[2])
CONSTANTS = [
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0, -1.0, -6.0, -3.0, -1.0]).astype('float32').reshape((1, 2, 9)),
]
EXPECTED = [
    np.array([3.0, -5.0, -4.5, -1.0, -4.5, -3.0, -2.0, 1.5, -4.0, -5.0, 3.0, -3.5, -1.5, 1.0, -4.0, -0.5, -1.0, -6.0]).astype('float32').reshape((1, 2, 9)),
]
BOUNDS = [
    np.array([7.152557373046875e-07, 1.1920928955078125e-06, 1.0728836059570312e-06, 9.5367431640625e-07, 1.0728836059570312e-06, 7.152557373046875e-07, 7.152557373046875e-07, 1.3113021850585938e-06, 9.5367431640625e-07, 1.1920928955078125e-06, 7.152557373046875e-07, 8.344650268554688e-07, 8.344650268554688e-07, 4.76837158203125e-07, 9.5367431640625e-07, 5.960464477539062e-07, 2.384185791015625e-07, 1.430511474609375e-06]).astype('float64').reshape((1, 2, 9)),
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
