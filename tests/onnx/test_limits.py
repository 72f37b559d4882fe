"""Sizes, counts and axes that ONNX does not allow: each is refused, although Python's slices and NumPy accept many.

:func:`test_onnx_runtime_refuses_it_too` checks ONNX Runtime, except for a form that ends its process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuconv
from tests.onnx.models import node_of, run
from tests.onnx.networks import both, onnxruntime_outputs

X = np.arange(4, dtype=np.float32)
M = np.arange(6, dtype=np.float32).reshape(2, 3)
IMAGE = np.arange(16, dtype=np.float32).reshape(1, 4, 2, 2)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def of(*values: float) -> Any:
    return np.array(values, np.float32)


REFUSED: list[tuple[str, int, list[Any], int, dict[str, Any], str]] = [
    ("Split", 13, [X, ints(-4, 8)], 2, {}, r"the sizes \[-4, 8\] must be 2, one per output, none negative"),
    ("Split", 18, [X, ints(6, -2)], 2, {}, r"the sizes \[6, -2\] must be 2"),
    ("Split", 11, [X], 2, {"split": [-4, 8]}, r"the sizes \[-4, 8\] must be 2"),
    ("Split", 13, [X, ints(1, 1, 2)], 2, {}, r"the sizes \[1, 1, 2\] must be 2"),
    ("Split", 13, [X, ints(4)], 2, {}, r"the sizes \[4\] must be 2"),
    ("Split", 13, [X, ints(1, 2)], 2, {}, "add up to the 4 elements of axis 0"),
    ("Split", 13, [X[:3]], 2, {}, "axis 0 has 3 elements, which are no 2 equal parts"),
    ("Tile", 13, [X, ints(-1)], 1, {}, r"repeats is \[-1\], but must have 1 numbers"),
    ("Tile", 13, [M, ints(-2, -2)], 1, {}, r"repeats is \[-2, -2\]"),
    ("Tile", 13, [M, ints(2)], 1, {}, r"repeats is \[2\], but must have 2 numbers"),
    ("Tile", 13, [X, ints(2, 2)], 1, {}, r"repeats is \[2, 2\], but must have 1 numbers"),
    ("Expand", 13, [X[:1], ints(-3)], 1, {}, r"the shape \[-3\] has a negative extent"),
    ("Expand", 13, [X, ints(2, -1)], 1, {}, r"the shape \[2, -1\] has a negative extent"),
    ("Reshape", 14, [M, ints(-2, -3)], 1, {}, r"the shape \[-2, -3\] has an extent below -1"),
    ("Reshape", 14, [M, ints(-1, -1)], 1, {}, r"cannot have the shape \[-1, -1\]"),
    ("Reshape", 14, [M, ints(0, -1)], 1, {"allowzero": 1}, r"has both 0 and -1"),
    ("Reshape", 14, [M[:0], ints(0, -1)], 1, {}, r"cannot have the shape \[0, -1\]"),
    ("ConstantOfShape", 20, [ints(-2, -2)], 1, {}, r"the shape \[-2, -2\] has a negative extent"),
    ("Resize", 19, [X, None, None, ints(-4)], 1, {}, r"the sizes \[-4\] must be at least 1"),
    ("Resize", 19, [M, None, None, ints(0, 3)], 1, {}, r"the sizes \[0, 3\] must be at least 1"),
    ("Resize", 19, [X, None, of(-2)], 1, {}, r"the scales \[-2.0\] must be finite and greater than 0"),
    ("Resize", 10, [X, of(0)], 1, {}, r"the scales \[0.0\] must be"),
    ("Resize", 19, [X, None, of(np.nan)], 1, {}, r"the scales \[nan\] must be"),
    ("Resize", 19, [X, None, of(np.inf)], 1, {}, r"the scales \[inf\] must be"),
    ("Resize", 19, [X, None, of(2), ints(8)], 1, {}, "either scales or sizes must be given, not both"),
    ("Upsample", 9, [X, of(0.5)], 1, {}, r"the scales \[0.5\] must be at least 1"),
    ("Upsample", 7, [X], 1, {"scales": [-1.0]}, r"the scales \[-1.0\] must be at least 1"),
    ("Pad", 19, [M, ints(1, 1)], 1, {}, "pads has 2 numbers, but must have two for each of 2 axes"),
    ("TopK", 11, [X, ints(-1)], 2, {}, "k is -1"),
    ("TopK", 10, [X, ints(5)], 2, {}, "k is 5"),
    ("TopK", 1, [X], 2, {"k": 9}, "k is 9"),
    ("TopK", 11, [X, ints(1, 2)], 2, {}, r"k must have one element, not the shape \(2,\)"),
    ("OneHot", 11, [ints(0, 1), ints(-1), of(0, 1)], 1, {}, "depth is -1"),
    ("OneHot", 11, [ints(0, 1), ints(3, 4), of(0, 1)], 1, {}, "depth must have one element"),
    ("OneHot", 11, [ints(0, 1), ints(3), of(0, 1, 2)], 1, {}, r"values must have the shape \(2,\), not \(3,\)"),
    ("Range", 11, [np.float32(0), np.float32(3), np.float32(0)], 1, {}, "delta is 0"),
    ("Range", 11, [np.float32(0), np.float32(np.nan), np.float32(1)], 1, {}, "there are nan steps"),
    ("Slice", 13, [X, ints(0), ints(4), ints(0), ints(0)], 1, {}, "step cannot be zero"),
    ("Slice", 13, [M, ints(0, 1), ints(1, 2), ints(0, -2)], 1, {}, r"axes is \[0, -2\], which names one axis twice"),
    ("Slice", 13, [X, ints(0), ints(4), ints(1)], 1, {}, "axis 1 is out of range"),
    ("Gather", 13, [X, ints(4)], 1, {}, "index 4 is out of bounds"),
    ("Gather", 13, [X, ints(0)], 1, {"axis": 1}, "axis 1 is out of range"),
    ("GatherND", 12, [M, ints(0, 0).reshape(2, 1)], 1, {"batch_dims": -2}, "its attribute batch_dims is -2"),
    ("Unsqueeze", 13, [X, ints(0, -3)], 1, {}, "name one axis twice"),
    ("Squeeze", 13, [X[None], ints(1)], 1, {}, "must have extent 1"),
    ("CumSum", 14, [X, ints(1)], 1, {}, "axis 1 is out of range"),
    ("CumSum", 14, [M, ints(0, 1)], 1, {}, r"axis must have one element, not the shape \(2,\)"),
    ("DepthToSpace", 13, [IMAGE], 1, {"blocksize": 0}, "its attribute blocksize is 0"),
    ("DepthToSpace", 13, [IMAGE], 1, {"blocksize": -2}, "its attribute blocksize is -2"),
    ("DepthToSpace", 13, [IMAGE[:, :2]], 1, {"blocksize": 2}, "the 2 channels are no multiple of blocksize=2"),
    ("DepthToSpace", 13, [IMAGE], 1, {"blocksize": 2, "mode": "XYZ"}, "mode must be DCR or CRD, not 'XYZ'"),
    ("SpaceToDepth", 13, [IMAGE], 1, {"blocksize": -1}, "its attribute blocksize is -1"),
    ("SpaceToDepth", 13, [IMAGE], 1, {"blocksize": 3}, "the extents 2 and 2 are no multiples of blocksize=3"),
    ("Concat", 13, [M, M], 1, {"axis": 2}, "axis 2 is out of range"),
    ("Concat", 13, [M, M[:1]], 1, {"axis": 1}, "must match"),
    ("Transpose", 13, [M], 1, {"perm": [-1, 0]}, r"perm is \[-1, 0\], which is no order of the axes 0 to 1"),
    ("Transpose", 13, [M], 1, {"perm": [0]}, r"perm is \[0\], which is no order"),
    ("Flatten", 13, [M], 1, {"axis": 3}, "axis 3 is out of range"),
    ("LRN", 13, [IMAGE], 1, {"size": -3}, "size must be at least 1, not -3"),
    ("Trilu", 14, [X], 1, {}, r"x must have at least 2 axes, not the shape \(4,\)"),
    ("EyeLike", 9, [X], 1, {}, r"x must have 2 axes, not the shape \(4,\)"),
    ("BlackmanWindow", 17, [np.array(-2)], 1, {}, "size is -2"),
    ("SplitToSequence", 11, [X, ints(-4, 8)], 1, {}, r"the sizes \[-4, 8\] must not be negative"),
    ("SplitToSequence", 11, [X, ints(1, 2)], 1, {}, "add up to the 4 of axis 0"),
    ("SplitToSequence", 11, [X, np.array(-1)], 1, {}, "split is -1"),
    ("ReverseSequence", 10, [M, ints(5, 1, 1)], 1, {}, "sequence_lens has 1 to 5, but must have 0 to 2"),
    ("ReverseSequence", 10, [M, ints(-1, 1, 1)], 1, {}, "sequence_lens has -1 to 1"),
    ("ReverseSequence", 10, [M, ints(2, 1)], 1, {}, r"not the shape \(2,\)"),
    ("LpNormalization", 1, [M], 1, {"p": 3}, "p must be 1 or 2, not 3"),
    ("BitShift", 11, [np.uint8([1]), np.uint8([1])], 1, {"direction": "UP"}, "direction must be LEFT or RIGHT"),
    ("InstanceNormalization", 22, [IMAGE, of(1), of(1)], 1, {}, r"must have the shape \(4,\), one number per channel"),
]
# Not computed by ONNX Runtime, since it ends its process.
ENDS_IT = [at for at, (op_type, *_) in enumerate(REFUSED) if op_type == "GatherND"]


@pytest.mark.parametrize(("op_type", "opset", "inputs", "outputs", "attributes", "message"), REFUSED)
def test_what_onnx_does_not_allow_is_refused(
    op_type: str, opset: int, inputs: list[Any], outputs: int, attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(gpuconv.GpuconvError, match=rf"^{op_type} node with output 'y0': .*{message}"):
        run(op_type, inputs, opset, outputs, **attributes)


@pytest.mark.parametrize("at", [at for at in range(len(REFUSED)) if at not in ENDS_IT])
def test_onnx_runtime_refuses_it_too(at: int) -> None:
    op_type, opset, inputs, outputs, attributes, _ = REFUSED[at]
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        onnxruntime_outputs(*node_of(op_type, inputs, outputs, **attributes), opset)


ALLOWED: list[tuple[str, int, list[Any], int, dict[str, Any], list[Any]]] = [
    ("Split", 18, [X, ints(4, 0)], 2, {}, [[0, 1, 2, 3], []]),
    ("Split", 18, [X[:3]], 2, {"num_outputs": 2}, [[0, 1], [2]]),
    ("Tile", 13, [X, ints(0)], 1, {}, [[]]),
    ("Expand", 13, [X[:1], ints(0)], 1, {}, [[]]),
    ("Reshape", 14, [M[:0], ints(3, 0)], 1, {"allowzero": 1}, [[[], [], []]]),
    ("Slice", 13, [X, ints(3), ints(-9), ints(0), ints(-2)], 1, {}, [[3, 1]]),
    ("TopK", 11, [X, ints(0)], 2, {}, [[], []]),
    ("OneHot", 11, [ints(0, 7, -4, -1), ints(2), of(0, 1)], 1, {}, [[[1, 0], [0, 0], [0, 0], [0, 1]]]),
    ("Pad", 19, [X, ints(-3, -1)], 1, {}, [[]]),
    ("Resize", 19, [X[:0], None, None, ints(0)], 1, {}, [[]]),
    ("Resize", 19, [X, None, of(0.1)], 1, {}, [[]]),
]


@pytest.mark.parametrize(("op_type", "opset", "inputs", "outputs", "attributes", "expected"), ALLOWED)
def test_what_lies_next_to_it_is_computed(
    op_type: str, opset: int, inputs: list[Any], outputs: int, attributes: dict[str, Any], expected: list[Any]
) -> None:
    got = run(op_type, inputs, opset, outputs, **attributes)
    assert [array.tolist() for array in (got if outputs > 1 else [got])] == expected


# ---------------------------------------------------------------- reductions over no axes


@pytest.mark.parametrize("axes", [None, ints()])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
@pytest.mark.parametrize(("op_type", "of_each"), [("ReduceL1", abs), ("ReduceL2", abs), ("ReduceSumSquare", np.square)])
def test_a_reduction_over_no_axes_computes_its_other_steps(op_type: str, of_each: Any, dtype: Any, axes: Any) -> None:
    """The schema says since opset 18: "Composite-reduction operators will still perform the non-reduction steps"."""
    x = np.array([[-1, 3, 0], [2, -7, 5]], dtype)
    for opset in (18, 20, 28):
        y = run(op_type, [x, axes], opset, noop_with_empty_axes=1)
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, of_each(x))
    if dtype != np.float16:
        (got,), (expected,) = both(op_type, 18, [x, axes], noop_with_empty_axes=1)
        np.testing.assert_array_equal(got, expected)
