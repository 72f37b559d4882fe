"""onnx.reference 1.23.2: MaxPool: wrong (storage_order)

Rule (disputed): storage_order=1: column-major over the spatial axes only (h + w*H, + d*H*W), the N*C offset unchanged.

Result: output 1[0, 0, 0, 0, 0, 0] is 8, expected 3 (24 of 24 elements differ)

Discussed at https://github.com/onnx/onnx/issues/1370, https://github.com/onnx/onnx/issues/2290, https://github.com/onnx/onnx/pull/4612.

7 tests of this rule have this verdict; this is the smallest.

Test test_max_pool_4d_column_minus_major_with_indices_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("MaxPool", ['X'], ['Y', 'Indices'], kernel_shape=[2, 2, 1, 2], storage_order=1)
CONSTANTS = [
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, 2.0, -1.0, -6.0, -3.0, -1.0, 1.0, -3.0, -7.0, -5.0, 3.0, 7.0, 3.0, -3.0, 5.0, 4.0, 1.0, -7.0, 4.0, 1.0, 8.0, -2.0, 2.0, -8.0, -2.0, -1.0, -7.0, -3.0, 2.0, 2.0, -3.0, -3.0, 8.0, 2.0, 3.0, -4.0, 7.0, 6.0, -3.0, 4.0, 3.0, 4.0, -6.0, -2.0, -8.0, -4.0, 6.0, -1.0, -2.0, 3.0, 7.0, -3.0, -3.0, -6.0, 5.0, 6.0, 8.0, -5.0, 8.0, -3.0, 1.0, 0.0, 8.0, 7.0, 4.0, 4.0, -6.0, 5.0, -2.0, -5.0, 1.0, -8.0, 2.0, -2.0, 7.0, -3.0, 2.0, -1.0, -4.0, -6.0, 4.0, 0.0, 6.0, 6.0]).astype('float32').reshape((1, 2, 2, 3, 2, 4)),
]
EXPECTED = [
    np.array([8.0, 5.0, 5.0, 2.0, 4.0, 4.0, 8.0, 2.0, 3.0, 8.0, 3.0, 7.0, 7.0, 8.0, 8.0, 4.0, 7.0, 7.0, 2.0, 6.0, 6.0, 8.0, 8.0, 8.0]).astype('float32').reshape((1, 2, 1, 2, 2, 3)),
    np.array([3, 25, 25, 20, 31, 31, 3, 27, 38, 11, 34, 46, 48, 73, 73, 66, 80, 80, 53, 74, 74, 58, 82, 82]).astype('int64').reshape((1, 2, 1, 2, 2, 3)),
]
BOUNDS = [
    np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((1, 2, 1, 2, 2, 3)),
    np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((1, 2, 1, 2, 2, 3)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 2, 3, 2, 4]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None, None, None, None]),
    helper.make_tensor_value_info("Indices", 7, [None, None, None, None, None, None]),
]
graph = helper.make_graph([node], "test", inputs, outputs, CONSTANTS)
MODEL = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)

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
