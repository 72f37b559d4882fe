"""TVM 0.27.0.post1 llvm: MaxPool: wrong (combinations)

Rule (ruled here): All rules at once: a combination of attributes, types, opsets and values.

Result: output 0 has the shape (2, 2, 0, 2), expected (2, 2, 1, 2)

6 tests of this rule have this verdict; this is the smallest.

Test test_max_pool_2d_sweep_52_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("MaxPool", ['X'], ['Y'], auto_pad=b'SAME_LOWER', ceil_mode=1, dilations=[3, 3], kernel_shape=[1, 3], strides=[3, 3])
CONSTANTS = [
]
INPUTS = [
    np.array([-2.0, -2.0, -8.0, -2.0, -1.0, -3.0, -4.0, -3.0, -1.0, -5.0, -5.0, -2.0, -5.0, -7.0, -2.0, -8.0, -4.0, -8.0, -2.0, -4.0, -3.0, -5.0, -1.0, -8.0]).astype('float32').reshape((2, 2, 1, 6)),
]
EXPECTED = [
    np.array([-1.0, -1.0, -3.0, -3.0, -4.0, -4.0, -1.0, -1.0]).astype('float32').reshape((2, 2, 1, 2)),
]
BOUNDS = [
    np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((2, 2, 1, 2)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [2, 2, 1, 6]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)

from collections.abc import Sequence
from typing import Any
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx


def version(option: str) -> str:
    """Name TVM's version and the target."""
    return f"TVM {tvm.__version__} {option or 'llvm'}"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Import, compile and run the model."""
    imported = from_onnx(model, keep_params_in_input=False)
    target = option or "llvm"
    compiled = tvm.compile(relax.transform.DecomposeOpsForInference()(imported), target=target)
    device = tvm.device(target if option else "cpu")
    machine = relax.VirtualMachine(compiled, device)
    found = machine["main"](*(tvm.runtime.tensor(array, device) for array in inputs))
    several = not isinstance(found, tvm.runtime.Tensor)
    return [output.numpy() for output in (found if several else [found])]

print(version(''))
got = [np.asarray(output) for output in run(MODEL, INPUTS, '')]
for ours, bound, theirs in zip(EXPECTED, BOUNDS, got, strict=True):
    print('got', theirs.dtype, theirs.shape, theirs.tolist())
    print('expected', ours.dtype, ours.shape, ours.tolist())
    assert theirs.shape == ours.shape, 'the shape is wrong'
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    right = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= bound) | np.isinf(bound)
    assert right.all(), f'{(~right).sum()} elements are wrong'
