"""tinygrad 0.14.0 CPU: MaxPool: wrong (MaxPool, empty windows)

Rule (disputed): A window with no element: the dtype's lowest finite value (0 for uint8, -128 for int8), index -1.

Result: output 0[0, 0, 0] is -inf, expected -3.4028234663852886e+38 (4 of 4 elements differ)

Discussed at https://github.com/onnx/onnx/issues/1922, https://github.com/webmachinelearning/webnn/issues/935.

42 tests of this rule have this verdict; this is the smallest.

Test test_max_pool_1d_an_empty_axis_with_pads_with_indices_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("MaxPool", ['X'], ['Y', 'Indices'], kernel_shape=[2], pads=[1, 1])
CONSTANTS = [
]
INPUTS = [
    np.array([]).astype('float32').reshape((2, 2, 0)),
]
EXPECTED = [
    np.array([-3.4028234663852886e+38, -3.4028234663852886e+38, -3.4028234663852886e+38, -3.4028234663852886e+38]).astype('float32').reshape((2, 2, 1)),
    np.array([-1, -1, -1, -1]).astype('int64').reshape((2, 2, 1)),
]
BOUNDS = [
    np.array([0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((2, 2, 1)),
    np.array([0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((2, 2, 1)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [2, 2, 0]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None]),
    helper.make_tensor_value_info("Indices", 7, [None, None, None]),
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
