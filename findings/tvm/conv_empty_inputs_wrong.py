"""TVM 0.27.0.post1 llvm: Conv: wrong (empty inputs)

Rule (ruled here): Batch 0, channel 0, M 0, an empty spatial axis: the formulas as they are; a sum over nothing is the bias.

Result: output 0[0, 0, 1, 0] is 4.0, expected 0.0 (33 of 36 elements differ, by up to 1.02e+46 times the bound)

Discussed at https://github.com/microsoft/onnxruntime/issues/4559.

4 tests of this rule have this verdict; this is the smallest.

Test test_conv_2d_channel_0_without_a_bias_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("Conv", ['X', 'W'], ['Y'], kernel_shape=[3, 3])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([]).astype('float32').reshape((3, 0, 3, 3)), "W"),
]
INPUTS = [
    np.array([]).astype('float32').reshape((2, 0, 5, 4)),
]
EXPECTED = [
    np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float32').reshape((2, 3, 3, 2)),
]
BOUNDS = [
    np.array([7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46, 7.006492321624085e-46]).astype('float64').reshape((2, 3, 3, 2)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [2, 0, 5, 4]),
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
