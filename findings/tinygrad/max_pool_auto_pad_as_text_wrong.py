"""tinygrad 0.14.0 CPU: MaxPool: wrong (auto_pad as text)

Rule (ruled here): auto_pad: "" and bytes are accepted as their plain meaning.

Result: output 0[0, 0, 0, 0] is -7.0, expected 3.0 (33 of 60 elements differ)

2 tests of this rule have this verdict; this is the smallest.

Test test_max_pool_2d_auto_pad_of_no_letters_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("MaxPool", ['X'], ['Y'], auto_pad=b'', kernel_shape=[2, 2], pads=[1, 0, 0, 1])
CONSTANTS = [
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0, -1.0, -6.0, -3.0, -1.0, 1.0, -3.0, -7.0, -5.0, 3.0, 7.0, 3.0, -3.0, 5.0, 4.0, 1.0, -7.0, 4.0, 1.0, 8.0, -2.0, 2.0, -8.0, -2.0, -1.0, -7.0, -3.0, 2.0, 2.0, -3.0, -3.0, 8.0, 2.0, 3.0, -4.0, 7.0, 6.0, -3.0, 4.0, 3.0, 4.0, -6.0, -2.0, -8.0, -4.0, 6.0, -1.0]).astype('float32').reshape((1, 2, 5, 6)),
]
EXPECTED = [
    np.array([3.0, 3.0, -2.0, -2.0, -4.0, -4.0, 3.0, 7.0, 7.0, -2.0, 3.0, 3.0, 2.0, 7.0, 7.0, -3.0, 3.0, 3.0, 2.0, 2.0, -1.0, 3.0, 7.0, 7.0, 3.0, 5.0, 5.0, 4.0, 7.0, 7.0, 4.0, 8.0, 8.0, 2.0, 2.0, -8.0, 4.0, 8.0, 8.0, 2.0, 2.0, 2.0, -1.0, 8.0, 8.0, 3.0, 3.0, 2.0, 7.0, 8.0, 8.0, 4.0, 4.0, 4.0, 7.0, 6.0, 4.0, 6.0, 6.0, 4.0]).astype('float32').reshape((1, 2, 5, 6)),
]
BOUNDS = [
    np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((1, 2, 5, 6)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 5, 6]),
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
