"""onnx.reference 1.23.2: ConvTranspose: wrong (combinations)

Rule (ruled here): All rules at once: a combination of attributes, types, opsets and values.

Result: output 0[0, 0, 0] is 4.0, expected 18.0 (64 of 64 elements differ, by up to 2.1e+06 times the bound)

7 tests of this rule have this verdict; this is the smallest.

Test test_conv_transpose_1d_sweep_6_bfloat16_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper
from ml_dtypes import bfloat16

nan, inf = np.nan, np.inf

node = helper.make_node("ConvTranspose", ['X', 'W', 'B'], ['Y'], auto_pad=b'SAME_UPPER', dilations=[2], kernel_shape=[2], output_shape=[16], strides=[3])
CONSTANTS = [
    onnx.numpy_helper.from_array(np.array([-2.0, 6.0, -8.0, -1.0]).astype(bfloat16).reshape((1, 2, 2)), "W"),
    onnx.numpy_helper.from_array(np.array([4.0, -2.0]).astype(bfloat16).reshape((2,)), "B"),
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0]).astype(bfloat16).reshape((2, 1, 5)),
]
EXPECTED = [
    np.array([18.0, 4.0, -38.0, -2.0, 4.0, 22.0, 14.0, 4.0, -26.0, 8.0, 4.0, -8.0, 14.0, 4.0, -26.0, 4.0, 54.0, -2.0, 5.0, -26.0, -2.0, -5.0, 38.0, -2.0, 3.0, 14.0, -2.0, 0.0, 38.0, -2.0, 3.0, -2.0, 12.0, 4.0, -20.0, 12.0, 4.0, -20.0, 2.0, 4.0, 10.0, -10.0, 4.0, 46.0, 14.0, 4.0, -26.0, 4.0, 30.0, -2.0, 2.0, 30.0, -2.0, 2.0, -10.0, -2.0, -3.0, -58.0, -2.0, -9.0, 38.0, -2.0, 3.0, -2.0]).astype(bfloat16).reshape((2, 2, 16)),
]
BOUNDS = [
    np.array([0.07031679153442383, 0.015625953674316406, 0.14844846725463867, 0.007814884185791016, 0.015625953674316406, 0.08594274520874023, 0.05469083786010742, 0.015625953674316406, 0.10157060623168945, 0.03125190734863281, 0.015625953674316406, 0.031253814697265625, 0.05469083786010742, 0.015625953674316406, 0.10157060623168945, 0.015625953674316406, 0.2109513282775879, 0.007812976837158203, 0.019533395767211914, 0.10156869888305664, 0.007812976837158203, 0.019532442092895508, 0.14844751358032227, 0.007812976837158203, 0.011720418930053711, 0.05469179153442383, 0.007812976837158203, 9.5367431640625e-07, 0.14844751358032227, 0.007812976837158203, 0.011720418930053711, 0.007812976837158203, 0.04687786102294922, 0.015625953674316406, 0.07813167572021484, 0.04687786102294922, 0.015625953674316406, 0.07813167572021484, 0.00781393051147461, 0.015625953674316406, 0.039064884185791016, 0.03906679153442383, 0.015625953674316406, 0.17969846725463867, 0.05469083786010742, 0.015625953674316406, 0.10157060623168945, 0.015625953674316406, 0.11719560623168945, 0.007812976837158203, 0.00781393051147461, 0.11719560623168945, 0.007812976837158203, 0.00781393051147461, 0.039064884185791016, 0.007812976837158203, 0.011719465255737305, 0.2265763282775879, 0.007812976837158203, 0.035158395767211914, 0.14844751358032227, 0.007812976837158203, 0.011720418930053711, 0.007812976837158203]).astype('float64').reshape((2, 2, 16)),
]
inputs = [
    helper.make_tensor_value_info("X", 16, [2, 1, 5]),
]
outputs = [
    helper.make_tensor_value_info("Y", 16, [None, None, None]),
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
