"""onnx.reference 1.23.2: AveragePool: wrong (AveragePool)

Rule (specified): AveragePool: the sum over the taps inside x, divided by their number; summed in float32, rounded once.

Result: output 0[0, 0, 0, 4] is -2.0, expected nan (74 of 112 elements differ)

Discussed at https://github.com/onnx/onnx/issues/1384.

3 tests of this rule have this verdict; this is the smallest.

Test test_average_pool_2d_nan_float32_opset22.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

nan, inf = np.nan, np.inf

node = helper.make_node("AveragePool", ['X'], ['Y'], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
CONSTANTS = [
]
INPUTS = [
    np.array([-7.0, 3.0, -5.0, -2.0, -5.0, -4.0, -4.0, 1.0, 7.0, -5.0, -5.0, 3.0, -2.0, nan, nan, -6.0, -3.0, -1.0, 1.0, -3.0, nan, -5.0, 3.0, 7.0, 3.0, -3.0, 5.0, 4.0, 1.0, nan, nan, 1.0, 8.0, nan, 2.0, -8.0, -2.0, -1.0, -7.0, -3.0, 2.0, 2.0, -3.0, -3.0, 8.0, 2.0, 3.0, -4.0, 7.0, 6.0, -3.0, 4.0, 3.0, 4.0, -6.0, -2.0, -8.0, -4.0, 6.0, -1.0, -2.0, 3.0, nan, -3.0, -3.0, -6.0, 5.0, 6.0, 8.0, -5.0, 8.0, nan, 1.0, nan, 8.0, nan, 4.0, nan, -6.0, 5.0, -2.0, -5.0, 1.0, -8.0, 2.0, -2.0, 7.0, -3.0, 2.0, -1.0, -4.0, -6.0, 4.0, 0.0, 6.0, nan, -6.0, 5.0, 5.0, 0.0, 3.0, 7.0, nan, 3.0, 5.0, -6.0, 6.0, nan, -2.0, -3.0, 0.0, 6.0]).astype('float32').reshape((1, 2, 7, 8)),
]
EXPECTED = [
    np.array([-0.5, -2.0, -1.8333333730697632, -2.6666667461395264, nan, nan, nan, nan, -1.0, -1.6666666269302368, -1.5555555820465088, nan, nan, nan, nan, nan, -0.3333333432674408, -0.1111111119389534, -0.4444444477558136, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, 0.4444444477558136, nan, nan, nan, nan, nan, nan, nan, -0.2222222238779068, 0.7777777910232544, 0.4444444477558136, -1.5555555820465088, -3.1666667461395264, 4.25, 1.8333333730697632, 0.5, 1.0, 3.0, 2.3333332538604736, -0.5, -2.25, -5.25, -1.6666666269302368, 1.0, 3.6666667461395264, 1.5, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, -1.1666666269302368, -0.5555555820465088, -1.4444444179534912, -0.3333333432674408, 0.0, nan, nan, nan, -0.1666666716337204, 0.6666666865348816, nan, nan, nan, nan, nan, nan, -0.5, 1.5, nan, nan, nan, nan, nan, nan]).astype('float32').reshape((1, 2, 7, 8)),
]
BOUNDS = [
    np.array([3.606081008911133e-06, 3.4968058268229165e-06, 2.553065617953247e-06, 2.4835268657893055e-06, 0.0, 0.0, 0.0, 0.0, 2.8411547342936197e-06, 2.7351909214336064e-06, 2.06629435218887e-06, 0.0, 0.0, 0.0, 0.0, 0.0, 2.4139881134218237e-06, 2.40488184823547e-06, 2.188815010943183e-06, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.6259157392960475e-06, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.6242600547066175e-06, 2.562999725329461e-06, 2.6259157392960475e-06, 2.357694837757446e-06, 2.8113524120539544e-06, 2.7865171432495117e-06, 2.553065617953247e-06, 2.294778823852539e-06, 2.6226043701171875e-06, 2.6226043701171875e-06, 2.9206275941421702e-06, 2.294778823852539e-06, 2.4586915969848633e-06, 3.4421682357788086e-06, 3.536542256747192e-06, 3.0597050984700522e-06, 3.139177958318603e-06, 2.7318795522054038e-06, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.3345152537768143e-06, 2.2848447163653026e-06, 2.5762452019338788e-06, 2.4139881134218237e-06, 2.331203884548611e-06, 0.0, 0.0, 0.0, 2.736846605945938e-06, 2.9338730706479018e-06, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.606081008911133e-06, 3.606081008911133e-06, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).astype('float64').reshape((1, 2, 7, 8)),
]
inputs = [
    helper.make_tensor_value_info("X", 1, [1, 2, 7, 8]),
]
outputs = [
    helper.make_tensor_value_info("Y", 1, [None, None, None, None]),
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
