"""tinygrad 0.14.0 CPU: MaxUnpool: wrong (MaxUnpool, larger output_shape)

Rule (disputed): MaxUnpool: indices number the shape that the attributes give; output_shape adds zeros at the end.

Result: output 0[0, 0, 1, 2] is 1.0, expected 0.0 (12 of 50 elements differ)

Discussed at https://github.com/onnx/onnx/issues/2398, https://github.com/onnx/onnx/issues/2726, https://github.com/microsoft/onnxruntime/pull/2193.

2 tests of this rule have this verdict; this is the smallest.

Test test_max_unpool_2d_a_larger_output_shape_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("MaxUnpool", ['X', 'I', 'output_shape'], ['Y'], kernel_shape=[2, 2], strides=[2, 2])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([1, 2, 5, 5]).astype('int64').reshape((4,)), "output_shape"),
]
INPUTS = [
    np.array([3.0, 1.0, 7.0, 3.0, -1.0, 7.0, 3.0, 5.0]).astype('float32').reshape((1, 2, 2, 2)),
    np.array([1, 7, 8, 11, 17, 23, 24, 26]).astype('int64').reshape((1, 2, 2, 2)),
]
EXPECTED = [
    np.array([0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 7.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0, 0.0, 3.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float32').reshape((1, 2, 5, 5)),
]
BOUNDS = [
    np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((1, 2, 5, 5)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 2, 2]),
    helper.make_tensor_value_info("I", 7, [1, 2, 2, 2]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None, None]),
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
