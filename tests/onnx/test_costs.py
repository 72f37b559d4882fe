"""The estimated number of elements that a node of constants makes or reads, which decides whether it is folded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuconv.onnx import operators
from gpuconv.onnx.rewriting import Budget
from tests.onnx.models import node_of


def cost(op_type: str, opset: int, *inputs: Any, **attributes: Any) -> int:
    found = operators.find(node_of(op_type, inputs, **attributes)[0], opset)
    assert found is not None
    operator, form = found
    return operator.cost(form, *inputs)


def of(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


ROI = {"output_height": 2, "output_width": 5}

COSTS: list[tuple[int, str, int, tuple[Any, ...], dict[str, Any]]] = [
    # Factors: M * K * N products, or an upper bound if a third input may broadcast them.
    (3 * 4 * 5, "MatMul", 22, (of(3, 4), of(4, 5)), {}),
    (2 * 3 * 4 * 5, "MatMul", 22, (of(2, 3, 4), of(4, 5)), {}),
    (0, "MatMul", 22, (of(3, 0), of(0, 5)), {}),
    (3 * 4 * 5, "Gemm", 22, (of(3, 4), of(4, 5)), {}),
    (3 * 4 * 5, "Gemm", 22, (of(4, 3), of(4, 5)), {"transA": 1}),
    (3 * 4 * 5, "Gemm", 22, (of(4, 3), of(5, 4)), {"transA": 1, "transB": 1}),
    (3 * 4 * 5 * 5, "Gemm", 22, (of(3, 4), of(4, 5), of(5)), {}),
    (3 * 4 * 5, "Gemm", 22, (of(3, 4), of(4, 5), of()), {}),
    (3 * 4 * 5, "Gemm", 22, (of(3, 4), of(4, 5), of(0)), {}),
    (7 * 7, "Gemm", 22, (of(1, 1), of(1, 1), of(7)), {}),
    # Windows: along every axis, taps times the elements of the input or output, whichever are more.
    (2 * 3 * 10 * 4, "LpPool", 22, (of(2, 3, 10),), {"kernel_shape": [4]}),
    (2 * 3 * 11 * 10, "LpPool", 22, (of(2, 3, 10),), {"kernel_shape": [40], "pads": [20, 20]}),
    (3 * 17 * 4, "LpPool", 22, (of(1, 3, 10),), {"kernel_shape": [4], "pads": [7, 3]}),
    (3 * 6 * 8 * (2 + 3), "LpPool", 22, (of(1, 3, 6, 8),), {"kernel_shape": [2, 3]}),
    # Channels.
    (2 * 3 * 8, "BatchNormalization", 15, (of(1, 1, 6), *(of(8),) * 4), {}),
    (2 * 3 * 8, "BatchNormalization", 15, (of(1, 1, 6), of(1), of(1), of(8), of(1)), {}),
    (4 * 6 * 4, "InstanceNormalization", 22, (of(1, 4, 6), of(4), of(4)), {}),
    (6 * 5 * 3, "LRN", 22, (of(1, 6, 5),), {"size": 3}),
    (6 * 5 * 12, "LRN", 22, (of(1, 6, 5),), {"size": 100}),
    (2 * 4 * 6 * 4, "GroupNormalization", 21, (of(2, 4, 6), of(4), of(4)), {"num_groups": 2}),
    # Weighted neighbours, and the elements read for them.
    (2 * 3 * 20 + 2 * 3 * 7 * 4, "GridSample", 20, (of(2, 3, 4, 5), of(2, 7, 1, 2)), {}),
    (2 * 3 * 20 + 2 * 3 * 7 * 16, "GridSample", 20, (of(2, 3, 4, 5), of(2, 7, 1, 2)), {"mode": "cubic"}),
    (2 * 3 * 20 + 2 * 3 * 7, "GridSample", 20, (of(2, 3, 4, 5), of(2, 7, 1, 2)), {"mode": "nearest"}),
    (2 * 3 * 8 * 4, "Resize", 19, (of(2, 3, 8), None, None, ints(2, 3, 4)), {"mode": "cubic"}),
    (2 * 3 * 8 * 2, "Resize", 19, (of(2, 3, 8), None, None, ints(2, 3, 4)), {"mode": "linear", "antialias": 1}),
    (2 * 4 * 6 * 9 * (4 + 3), "DeformConv", 19, (of(2, 4, 4, 5), of(6, 2, 2, 3), of(2, 12, 3, 3)), {"group": 2}),
    # Steps with as many products as weights, and taps.
    (5 * 2 * 3 * 4 * (7 + 4), "GRU", 14, (of(5, 2, 7), of(1, 12, 7), of(1, 12, 4)), {"hidden_size": 4}),
    (5 * 2 * 2 * 16 * (7 + 4), "LSTM", 14, (of(5, 2, 7), of(2, 16, 7), of(2, 16, 4)), {"direction": "bidirectional"}),
    (2 * 3 * 10 * 4, "CausalConvWithState", 27, (of(2, 3, 10), of(3, 1, 4)), {}),
    # Shapes.
    (2 * 3 + 2 * 7, "Concat", 22, (of(2, 3), of(2, 7)), {"axis": 1}),
    (1, "Constant", 22, (), {"value_ints": [1, 2, 3]}),
    (2 * 3 * 5, "ConstantOfShape", 22, (ints(2, 3, 5),), {}),
    (1, "ConstantOfShape", 22, (ints(),), {}),
    (4 * 2 * 3, "Expand", 22, (of(2, 1), ints(4, 1, 3)), {}),
    (2 * 7 * 5 * 3, "Gather", 22, (of(2, 4, 3), np.zeros((7, 5), np.int64)), {"axis": 1}),
    (7 * 4 * 3, "Gather", 22, (of(2, 4, 3), np.zeros(7, np.int64)), {}),
    (2 * 4, "Gather", 22, (of(2, 4, 3), np.array(1)), {"axis": -1}),
    (1, "Identity", 22, (of(5),), {}),
    (1, "Shape", 22, (of(5, 6),), {}),
    (1, "Size", 22, (of(5, 6),), {}),
    (2 * 3 * 5 * 7, "Tile", 22, (of(2, 3), ints(5, 7)), {}),
    ((2 + 1 + 4) * (3 + 2 + 5), "Pad", 22, (of(2, 3), ints(1, 2, 4, 5)), {}),
    ((2 + 4) * (6 + 2), "Pad", 22, (of(2, 6), ints(-1, 2, 4, -5)), {}),
    (2 * (3 + 1 + 2), "Pad", 22, (of(2, 3), ints(1, 2), None, ints(-1)), {}),
    ((2 + 1 + 4) * (3 + 2 + 5), "Pad", 10, (of(2, 3),), {"pads": [1, 2, 4, 5]}),
    ((2 + 1 + 4) * (3 + 2 + 5), "Pad", 1, (of(2, 3),), {"paddings": [1, 2, 4, 5]}),
    # Resizing: what grows may do so before anything shrinks.
    (2 * 6 * 4, "Resize", 19, (of(2, 6), None, np.float32([1, 4])), {}),
    (2 * 6 * 4, "Resize", 19, (of(2, 6), None, None, ints(1, 24)), {}),
    (2 * 6 * 5, "Resize", 19, (of(2, 6), None, None, ints(9, 3)), {}),
    (2 * 6, "Resize", 19, (of(2, 6), None, None, ints(2, 6)), {}),
    (2 * 6 * 3, "Resize", 10, (of(2, 6), np.float32([1, 2.5])), {}),
    (2 * 6 * 3, "Upsample", 9, (of(2, 6), np.float32([3, 1])), {}),
    (2 * 6 * 3, "Upsample", 7, (of(2, 6),), {"scales": [3.0, 1.0]}),
    # Indices: elements read and written; for sums of integers, their products.
    (7 * 3, "GatherElements", 22, (of(5, 3), np.zeros((7, 3), np.int64)), {}),
    (2 * 4 * 1 + 2 * 4 * 6, "GatherND", 22, (of(5, 6), np.zeros((2, 4, 1), np.int64)), {}),
    (2 * 2 + 2 * 7, "GatherND", 22, (of(2, 5, 6, 7), np.zeros((2, 2), np.int64)), {"batch_dims": 1}),
    (5 * 3 + 7 * 3, "ScatterElements", 22, (of(5, 3), np.zeros((7, 3), np.int64), of(7, 3)), {}),
    (5 * 3 + 2 * 3, "ScatterND", 22, (of(5, 3), np.zeros((2, 1), np.int64), of(2, 3)), {}),
    (5 * 3 + 2 * 3, "Scatter", 9, (of(5, 3), np.zeros((2, 3), np.int64), of(2, 3)), {}),
    (4 * 5 * 9, "OneHot", 22, (np.zeros((4, 5), np.int64), np.array(9), of(2)), {}),
    (4 * 5, "CumSum", 22, (of(4, 5), np.array(0)), {}),
    (4 * 5, "TopK", 22, (of(4, 5), ints(2)), {}),
    (4 * 5, "QuantizeLinear", 22, (of(4, 5), of(4)), {"axis": 0}),
    (4 * 5, "DequantizeLinear", 22, (np.zeros((4, 5), np.int8), of(4)), {"axis": 0}),
    (3 * 4 * 5, "MatMulInteger", 22, (np.zeros((3, 4), np.uint8), np.zeros((4, 5), np.int8)), {}),
    (2 * 4 * 6 * 3 * 2 + 2 * 3 * 7 + 4 * 3 * 2, "ConvInteger", 22, (of(2, 3, 7), of(4, 3, 2)), {}),
    (2 * 3 * 4 * 5, "MatMulInteger", 22, (np.zeros((2, 3, 4), np.uint8), np.zeros((4, 5), np.int8)), {}),
    (3 * 4 * 5, "QLinearMatMul", 22, (of(3, 4), of(), of(), of(4, 5), of(), of(), of(), of()), {}),
    (4 * 6 * 3 * 2 + 3 * 7 + 4 * 3 * 2, "QLinearConv", 22, (of(1, 3, 7), of(), of(), of(4, 3, 2), *(of(),) * 4), {}),
    (2 * 90 * 90, "NonMaxSuppression", 22, (of(1, 90, 4), of(1, 2, 90)), {}),
    (2 * 900 * 128, "NonMaxSuppression", 22, (of(1, 900, 4), of(1, 2, 900)), {}),
    (7 * 3 * 2 * 5 * 4 + 3 * 8 * 9, "RoiAlign", 22, (of(1, 3, 8, 9), of(7, 4), ints(0)), {**ROI, "sampling_ratio": 2}),
    (7 * 3 * 2 * 5 * 81 + 3 * 8 * 9, "RoiAlign", 22, (of(1, 3, 8, 9), of(7, 4), ints(0)), ROI),
    # Everything else: what broadcasting makes of the inputs; by an axis that a node names, no more than their product.
    (4 * 5 * 6, "Add", 22, (of(4, 1, 6), of(5, 1)), {}),
    (4 * 5, "Add", 7, (of(4, 5), of(5)), {}),
    (4 * 5 * 5, "Add", 6, (of(4, 5), of(5)), {"broadcast": 1}),
    (4 * 5, "Clip", 22, (of(4, 5), of(), None), {}),
    (4 * 5, "Neg", 22, (of(4, 5),), {}),
    (1, "Neg", 22, (of(),), {}),
]


@pytest.mark.parametrize(("expected", "op_type", "opset", "inputs", "attributes"), COSTS)
def test_costs(expected: int, op_type: str, opset: int, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> None:
    assert cost(op_type, opset, *inputs, **attributes) == expected


def test_what_is_computed_ahead_has_64_mib_a_value_and_twice_that_in_all() -> None:
    budget = Budget()
    assert not budget.spend(2**23 + 1)
    assert budget.spend(2**23 + 1, largest_input=2**23 + 1)
    assert not budget.spend(2**23 + 2, largest_input=2**23 + 1)
    assert not budget.spend(2**23)
    assert budget.spend(2**23 - 1)
    assert not budget.spend(1, largest_input=2**24)
    assert budget.spend(0)
