"""Operators of models that are computed differently on a device and on the host: the same bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import gpuconv
from gpuconv.onnx import backend
from tests.harness import cuda_device
from tests.onnx.models import floats

pytestmark = [pytest.mark.gpu, cuda_device.sampled(4)]

RNG = np.random.default_rng(0)


def drawn(kind: str, *shape: int) -> Any:
    return np.asarray(RNG.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, endpoint=True)).astype(kind)


REPEATED = RNG.integers(-4, 4, (9, 1))  # which of four slices nine updates belong to

CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("MatMulInteger", [drawn("uint8", 3, 600), drawn("int8", 600, 2), drawn("uint8"), drawn("int8", 2)], {}),
    ("ConvInteger", [drawn("uint8", 1, 300, 4), drawn("uint8", 2, 300, 2), drawn("uint8"), drawn("uint8", 2)], {}),
    ("ConvInteger", [drawn("uint8", 2, 600, 3), drawn("int8", 4, 300, 2)], {"group": 2, "pads": [1, 0]}),
    ("ConvInteger", [drawn("int8", 1, 1, 320), np.full((1, 1, 300), -128, np.int8), np.array(127, np.int8)], {}),
    ("ScatterND", [floats(4, 3), REPEATED, floats(9, 3)], {"reduction": "add"}),
    ("ScatterND", [floats(4, 3), REPEATED, floats(9, 3)], {"reduction": "mul"}),
    ("ScatterND", [floats(4, 3), REPEATED, floats(9, 3)], {}),
    ("ScatterElements", [floats(4, 3), REPEATED, floats(9, 1)], {"reduction": "max"}),
    ("ScatterElements", [floats(4, dtype=ml_dtypes.bfloat16), REPEATED[:, 0], floats(9, dtype=ml_dtypes.bfloat16)], {}),
    ("GatherElements", [floats(5, 3, dtype=ml_dtypes.bfloat16), RNG.integers(-5, 5, (7, 2))], {}),
    ("GatherND", [floats(2, 5, 3, dtype=np.float16), RNG.integers(-5, 5, (2, 7, 1))], {"batch_dims": 1}),
    ("CumSum", [np.arange(600, dtype=np.int32).reshape(2, 300), np.array(1)], {"exclusive": 1, "reverse": 1}),
    ("QuantizeLinear", [100 * floats(3, 40, dtype=ml_dtypes.bfloat16), floats(3) + 3, drawn("int8", 3)], {"axis": 0}),
    ("QuantizeLinear", [floats(3, 4), floats(3, 2) + 3], {"block_size": 2, "output_dtype": TensorProto.INT4}),
    ("DequantizeLinear", [drawn("int16", 3, 5), floats(3, 2, dtype=np.float16)], {"block_size": 3}),
    ("DynamicQuantizeLinear", [np.float32([1, np.nan, -3, 7])], {}),
    ("RoiAlign", [floats(1, 3, 7, 9), 5 + 5 * floats(4, 4), np.zeros(4, np.int64)], {"output_width": 2}),
    ("LpPool", [floats(2, 3, 9)], {"kernel_shape": [3], "p": 1}),
]


@pytest.mark.parametrize(("op_type", "inputs", "attributes"), CASES)
def test_a_device_computes_what_the_host_does(op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    names = [f"x{at}" for at in range(len(inputs))]
    outputs = ["y", "scale", "zero"] if op_type == "DynamicQuantizeLinear" else ["y"]
    node = helper.make_node(op_type, names, outputs, **attributes)
    expected = backend.run_node(node, inputs, opset_version=24)
    with gpuconv.precision("tf32"):  # does not affect integers
        got = backend.run_node(node, inputs, "CUDA", opset_version=24)
    for actual, wanted in zip(got, expected, strict=True):
        assert actual.dtype == wanted.dtype
        pair = actual.astype(np.float32), wanted.astype(np.float32)
        if op_type in ("LpPool", "RoiAlign"):
            np.testing.assert_allclose(*pair, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(*pair)
