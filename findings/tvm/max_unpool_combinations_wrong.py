"""TVM 0.27.0.post1 llvm: MaxUnpool: wrong (combinations)

Rule (ruled here): All rules at once: a combination of attributes, types, opsets and values.

Result: output 0 has the shape (1, 1, 4, 3, 5), expected (1, 1, 4, 4, 4)

Test test_max_unpool_3d_sweep_27_float16_opset9.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("MaxUnpool", ['X', 'I'], ['Y'], kernel_shape=[1, 1, 3], pads=[0, 0, 1, 0, 0, 1])
CONSTANTS = [
]
INPUTS = [
    np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]).astype('float16').reshape((1, 1, 4, 4, 4)),
    np.array([0, 0, 1, 3, 4, 4, 7, 7, 9, 10, 10, 10, 12, 14, 14, 14, 17, 17, 17, 18, 20, 22, 22, 22, 24, 24, 26, 26, 28, 28, 31, 31, 32, 32, 33, 34, 36, 36, 38, 38, 41, 41, 43, 43, 44, 44, 46, 46, 48, 50, 50, 50, 52, 52, 54, 54, 57, 57, 57, 58, 61, 61, 61, 62]).astype('int64').reshape((1, 1, 4, 4, 4)),
]
EXPECTED = [
    np.array([1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float16').reshape((1, 1, 4, 4, 4)),
]
BOUNDS = [
    np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((1, 1, 4, 4, 4)),
]
inputs = [
    helper.make_tensor_value_info("X", 10, [1, 1, 4, 4, 4]),
    helper.make_tensor_value_info("I", 7, [1, 1, 4, 4, 4]),
]
outputs = [
    helper.make_tensor_value_info("Y", 10, [None, None, None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4)

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
