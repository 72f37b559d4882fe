"""tinygrad 0.14.0 CPU: ConvTranspose: wrong (combinations)

Rule (ruled here): All rules at once: a combination of attributes, types, opsets and values.

Result: output 0[0, 0, 0] is 0.0, expected 14.0 (36 of 60 elements differ, by up to 5.71e+46 times the bound)

15 tests of this rule have this verdict; this is the smallest.

Test test_conv_transpose_1d_sweep_4_float32_opset11.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("ConvTranspose", ['X', 'W'], ['Y'], dilations=[1], group=3, kernel_shape=[1], output_shape=[5])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0, 7.0, -5.0]).astype('float32').reshape((3, 2, 1)), "W"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0]).astype('float32').reshape((2, 3, 2)),
]
EXPECTED = [
    np.array([14.0, -6.0, 0.0, 0.0, 0.0, -42.0, 18.0, 0.0, 0.0, 0.0, 40.0, 16.0, 0.0, 0.0, 0.0, 5.0, 2.0, 0.0, 0.0, 0.0, -35.0, -28.0, 0.0, 0.0, 0.0, 25.0, 20.0, 0.0, 0.0, 0.0, 8.0, -2.0, 0.0, 0.0, 0.0, -24.0, 6.0, 0.0, 0.0, 0.0, -56.0, 40.0, 0.0, 0.0, 0.0, -7.0, 5.0, 0.0, 0.0, 0.0, -35.0, 21.0, 0.0, 0.0, 0.0, 25.0, -15.0, 0.0, 0.0, 0.0]).astype('float32').reshape((2, 6, 5)),
]
BOUNDS = [
    np.array([2.5033950805664062e-06, 1.0728836059570312e-06, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.510185241699219e-06, 3.2186508178710938e-06, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.152557373046875e-06, 2.86102294921875e-06, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 8.940696716308594e-07, 3.5762786865234375e-07, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 6.258487701416016e-06, 5.0067901611328125e-06, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 4.470348358154297e-06, 3.5762786865234375e-06, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 1.430511474609375e-06, 3.5762786865234375e-07, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 4.291534423828125e-06, 1.0728836059570312e-06, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 1.0013580322265625e-05, 7.152557373046875e-06, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 1.2516975402832031e-06, 8.940696716308594e-07, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 6.258487701416016e-06, 3.7550926208496094e-06, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 4.470348358154297e-06, 2.682209014892578e-06, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46]).astype('float64').reshape((2, 6, 5)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [2, 3, 2]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)

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
