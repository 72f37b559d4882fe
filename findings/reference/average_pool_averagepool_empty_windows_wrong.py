"""onnx.reference 1.23.2: AveragePool: wrong (AveragePool, empty windows)

Rule (disputed): AveragePool: a window with no tap that counts gives NaN.

Result: output 0[0, 0, 0] is 0.0, expected nan (3 of 5 elements differ)

Discussed at https://github.com/onnx/onnx/issues/1922, https://github.com/onnx/onnx/issues/4958, https://github.com/microsoft/onnxruntime/issues/6543.

Test test_average_pool_1d_pads_beyond_the_kernel_float64_opset1.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("AveragePool", ['X'], ['Y'], kernel_shape=[2], pads=[2, 3], strides=[2])
CONSTANTS = [
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0]).astype('float64').reshape((1, 1, 5)),
]
EXPECTED = [
    np.array([nan, -2.0, -3.5, -5.0, nan]).astype('float64').reshape((1, 1, 5)),
]
BOUNDS = [
    np.array([0.0, 2.220446049250313e-15, 1.5543122344752192e-15, 2.220446049250313e-15, 0.0]).astype('float64').reshape((1, 1, 5)),
]
inputs = [
    helper.make_tensor_value_info("X", 11, [1, 1, 5]),
]
outputs = [
    helper.make_tensor_value_info("Y", 11, [None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 1)], ir_version=4)

from collections.abc import Sequence
from typing import Any
import onnx
from onnx.reference import ReferenceEvaluator


def version(option: str) -> str:
    """Name onnx's version."""
    return f"onnx.reference {onnx.__version__}"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Evaluate the model."""
    names = [value.name for value in model.graph.input]
    return list(ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True))))

print(version(''))
got = [np.asarray(output) for output in run(MODEL, INPUTS, '')]
for ours, bound, theirs in zip(EXPECTED, BOUNDS, got, strict=True):
    print('got', theirs.dtype, theirs.shape, theirs.tolist())
    print('expected', ours.dtype, ours.shape, ours.tolist())
    assert theirs.shape == ours.shape, 'the shape is wrong'
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    right = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= bound) | np.isinf(bound)
    assert right.all(), f'{(~right).sum()} elements are wrong'
