"""Rules per operator for batch-invariant runs: the batch axis of the outputs, and whether images stay independent.

The batch axis is divided into as many equal slices as there are images, so images may have several rows each. Operators
that compute each element in a fixed order, independent of the batch size, run on all images at once. Others run once
per image. Operators without a rule are assumed to mix images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

import gpuconv
from gpuconv.onnx.operators import elementwise, special
from gpuconv.onnx.operators.form import ints

LOST = -1  # marks values that depend on the batch, but cannot be divided into images along one axis
Axis = int | None  # None for values that do not depend on the batch
OutputAxis = Callable[[Any, int], Axis]  # (output, its position) -> its batch axis


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How to compute a node in a batch-invariant run.

    Attributes
    ----------
    output_axis : callable
        Takes an output and its position; returns the output's batch axis.
    slice_axes : tuple of axis, optional
        If given, the node is computed once per image: the axis along which to slice each input, None to pass it whole.
    mixes_images : bool
        Whether one image may influence another's results.
    """

    output_axis: OutputAxis
    slice_axes: tuple[Axis, ...] | None = None
    mixes_images: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the rules see it.

    Attributes
    ----------
    attributes : mapping
        With their defaults.
    opset : int
    inputs : sequence of arrays
    axes : sequence of axis
        Batch axis of each input.
    images : int
        Number of images.
    """

    attributes: Mapping[str, Any]
    opset: int
    inputs: Sequence[Any]
    axes: Sequence[Axis]
    images: int

    def first_axis(self) -> int:
        """Return the batch axis of the first input; LOST if it does not depend on the batch."""
        axis = self.axes[0]
        return LOST if axis is None else axis

    def optional_input(self, position: int) -> Any:
        """Return the input at a position, or None if it is absent."""
        return self.inputs[position] if position < len(self.inputs) else None

    def integers(self, position: int) -> list[int] | None:
        """Return an integer input as a list, copied to the host if necessary; None if it is absent."""
        value = self.optional_input(position)
        return None if value is None else ints(value if isinstance(value, np.ndarray) else gpuconv.to_host(value))


Rule = Callable[[Node], BatchPlan]
MIXES_IMAGES = BatchPlan(lambda *_: LOST, mixes_images=True)
_AXIS_LOST = BatchPlan(lambda *_: LOST)  # elements were moved, but not combined: images are still independent
INDEPENDENT = BatchPlan(lambda *_: None)


def plan(op_type: str, node: Node) -> BatchPlan:
    """Return how to compute a node, at least one of whose inputs may depend on the batch."""
    if all(axis is None for axis in node.axes) or op_type in _SHAPES:
        return INDEPENDENT
    if LOST in node.axes:
        return _AXIS_LOST if op_type in _EXACT else MIXES_IMAGES
    rule = _RULES.get(op_type)
    return MIXES_IMAGES if rule is None else rule(node)


def _fixed_axis(axis: int) -> OutputAxis:
    """Return an ``output_axis``: the batch axis is always this one."""
    return lambda *_: axis


def _axis_from_right(place: int) -> OutputAxis:
    """Return an ``output_axis`` that counts from the right, so ``place`` is negative."""
    return lambda y, _: y.ndim + place


# ---------------------------------------------------------------- all images at once


def _elementwise(node: Node) -> BatchPlan:
    """Element-wise with broadcasting: the batch axis must be the same in all inputs, counted from the right."""
    places = {axis - np.ndim(x) for x, axis in zip(node.inputs, node.axes, strict=True) if axis is not None}
    return BatchPlan(_axis_from_right(places.pop())) if len(places) == 1 else _AXIS_LOST


def _batch_first(node: Node) -> BatchPlan:
    """Operators with N as axis 0 that compute each image in a fixed order, such as Conv and pooling."""
    return BatchPlan(_fixed_axis(0)) if {0, None}.issuperset(node.axes) and node.axes[0] == 0 else MIXES_IMAGES


def _transpose(node: Node) -> BatchPlan:
    ndim = node.inputs[0].ndim
    return BatchPlan(_fixed_axis(list(node.attributes.get("perm") or range(ndim)[::-1]).index(node.first_axis())))


def _reshape(node: Node) -> BatchPlan:
    """The batch axis of a reshaped value is the axis preceded by as many elements, if images divide it evenly."""
    before = prod(node.inputs[0].shape[: node.first_axis()])

    def output_axis(y: Any, _: int) -> int:
        found = (at for at in range(y.ndim) if prod(y.shape[:at]) == before and y.shape[at] % node.images == 0)
        return next(found, LOST)

    return BatchPlan(output_axis)


def _same_axis(node: Node) -> BatchPlan:
    """Operators that keep the positions of axes, such as Pad and Resize; the batch is lost if its extent changes."""
    axis, extent = node.first_axis(), node.inputs[0].shape[node.first_axis()]
    return BatchPlan(lambda y, _: axis if y.ndim > axis and y.shape[axis] == extent else LOST)


def _slice(node: Node) -> BatchPlan:
    """Slice: as _same_axis, but the batch is lost if a step is negative."""
    backwards = min(node.integers(4) or [1]) < 0
    return _AXIS_LOST if backwards else _same_axis(node)


def _along(default: int | None) -> Rule:
    """Return the rule for moving elements along one axis (Concat, Split, TopK); the batch is lost if it is that
    axis.
    """

    def rule(node: Node) -> BatchPlan:
        places = {axis for axis in node.axes if axis is not None}
        axis = node.attributes.get("axis", default)
        ndim = max(np.ndim(x) for x in node.inputs)
        if len(places) > 1 or axis is None or axis % ndim in places:
            return _AXIS_LOST
        return BatchPlan(_fixed_axis(places.pop()))

    return rule


def _cum_sum(node: Node) -> BatchPlan:
    """CumSum: sums along the batch axis mix images."""
    (along,) = node.integers(1) or [0]
    axis = along % node.inputs[0].ndim
    return MIXES_IMAGES if axis == node.first_axis() else BatchPlan(_fixed_axis(node.first_axis()))


def _gather(node: Node) -> BatchPlan:
    """Gather: the batch axis comes from the data or from the indices; gathering along the batch axis loses it."""
    (data, indices), (of_data, of_indices) = node.inputs, node.axes
    along = (node.attributes.get("axis") or 0) % data.ndim
    if of_data is None and of_indices is not None:
        return BatchPlan(_fixed_axis(along + of_indices))
    if of_data is None or of_indices is not None or of_data == along:
        return _AXIS_LOST
    return BatchPlan(_fixed_axis(of_data if of_data < along else of_data + np.ndim(indices) - 1))


def _one_hot(node: Node) -> BatchPlan:
    """OneHot inserts an axis, which may shift the batch axis."""
    axis, ndim = node.first_axis(), node.inputs[0].ndim + 1
    new = (node.attributes.get("axis", -1)) % ndim
    return BatchPlan(_fixed_axis(axis + (new <= axis))) if node.axes[1:] == (None, None) else _AXIS_LOST


# ---------------------------------------------------------------- image by image


def _each_image(node: Node) -> BatchPlan:
    """Compute one image at a time; the first input is sliced along axis 0, and others must not depend on the batch."""
    rest = (None,) * (len(node.inputs) - 1)
    return BatchPlan(_fixed_axis(0), (0, *rest)) if tuple(node.axes) == (0, *rest) else MIXES_IMAGES


def _softmax_like(default: int) -> Rule:
    """Return the rule for Softmax-like operators: one image at a time, unless the batch is normalised over.

    Before opset 13 these operators flatten the input to 2-D at ``axis``, and so normalise over all later axes too.
    """

    def rule(node: Node) -> BatchPlan:
        axis, ndim = node.first_axis(), node.inputs[0].ndim
        along = node.attributes.get("axis", default) % ndim
        return (
            MIXES_IMAGES
            if axis == along or (node.opset < 13 and axis > along)
            else BatchPlan(_fixed_axis(axis), (axis,))
        )

    return rule


def _layer_normalization(node: Node) -> BatchPlan:
    """LayerNormalization: one image at a time, unless the batch axis is among the normalised ones."""
    axis = node.first_axis()
    mixes = axis >= node.attributes.get("axis", -1) % node.inputs[0].ndim or len({*node.axes[1:]} - {None}) > 0
    return MIXES_IMAGES if mixes else BatchPlan(_fixed_axis(axis), (axis, *(None,) * (len(node.inputs) - 1)))


def _reduce(node: Node) -> BatchPlan:
    """Reductions: one image at a time, unless the batch axis is reduced."""
    axis, ndim, reduced = node.first_axis(), node.inputs[0].ndim, node.integers(1) or node.attributes.get("axes")
    over = {at % ndim for at in reduced or range(ndim)}
    if not reduced and node.attributes.get("noop_with_empty_axes"):
        return BatchPlan(_fixed_axis(axis))
    if axis in over:
        return MIXES_IMAGES
    output_axis = axis if node.attributes.get("keepdims", 1) else axis - sum(at < axis for at in over)
    return BatchPlan(_fixed_axis(output_axis), (axis, *(None,) * (len(node.inputs) - 1)))


def _arg_extreme(node: Node) -> BatchPlan:
    """ArgMax and ArgMin: all images at once, because no rounding is involved, unless the batch axis is reduced."""
    axis, along = node.first_axis(), (node.attributes.get("axis") or 0) % node.inputs[0].ndim
    keeps_place = node.attributes.get("keepdims", 1) or along > axis
    return MIXES_IMAGES if along == axis else BatchPlan(_fixed_axis(axis if keeps_place else axis - 1))


def _matrix_product(first: int, second: int, *, exact: bool = False) -> Rule:
    """Return the rule for a matrix product of the inputs at two positions.

    With ``exact`` (integer products), all images are computed at once; otherwise one at a time.
    """

    def rule(node: Node) -> BatchPlan:
        a, b = node.inputs[first], node.inputs[second]
        left, right = (
            None if axis is None else axis - x.ndim for x, axis in ((a, node.axes[first]), (b, node.axes[second]))
        )
        if left == -1 or (right == -1 and b.ndim == 1) or (right == -2):
            return MIXES_IMAGES  # the batch axis is summed over
        if left is not None and right is not None and (left != right or left == -2):
            return MIXES_IMAGES
        place = left if left is not None else right
        if place is None:
            return MIXES_IMAGES  # only another input, such as a zero point, depends on the batch
        slice_axes: list[Axis] = [None] * len(node.inputs)
        slice_axes[first], slice_axes[second] = _slice_axis(a, left, place), _slice_axis(b, right, place)
        # A 1-D factor has no axis of its own in the result, which shifts the axes of the other factor.
        beside = b.ndim == 1 if left is not None else a.ndim == 1 and place < -2
        return BatchPlan(_axis_from_right(place + beside), None if exact else tuple(slice_axes))

    return rule


def _slice_axis(x: Any, own: int | None, place: int) -> Axis:
    """Return the axis along which to slice a factor of a product; None to pass it whole.

    ``own`` is the factor's batch axis, counted from the right. Without one, a factor that is stacked along the other's
    batch axis ``place`` is sliced there.
    """
    if own is not None:
        return int(x.ndim + own)
    stacked = place < -2 and x.ndim + place >= 0 and x.shape[place] > 1
    return int(x.ndim + place) if stacked else None


def _gemm(node: Node) -> BatchPlan:
    """Gemm: the batch is the rows of op(A) or the columns of op(B); C is sliced if it extends along that axis."""
    a, b, *_ = node.inputs
    rows, columns = int(bool(node.attributes.get("transA"))), int(not node.attributes.get("transB"))
    of_a, of_b = node.axes[:2]
    if (of_a is None) == (of_b is None) or of_a not in (None, rows) or of_b not in (None, columns):
        return MIXES_IMAGES
    output_axis = 0 if of_b is None else 1
    extent, c = (a.shape[rows] if of_b is None else b.shape[columns]), node.optional_input(2)
    c_axis = None if c is None or output_axis - 2 + c.ndim < 0 else output_axis - 2 + c.ndim
    if len(node.axes) > 2 and node.axes[2] not in (None, c_axis):
        return MIXES_IMAGES
    of_c = c_axis if c_axis is not None and c.shape[c_axis] == extent > 1 else None
    return BatchPlan(_fixed_axis(output_axis), (of_a, of_b, of_c)[: len(node.inputs)])


def _recurrent(node: Node) -> BatchPlan:
    """RNN, GRU and LSTM, one image at a time: X, sequence_lens and initial states are sliced along their batch axes."""
    last = bool(node.attributes.get("layout"))
    own = {0: 0 if last else 1, 4: 0, 5: 0 if last else 1, 6: 0 if last else 1}
    if any(axis is not None and axis != own.get(at) for at, axis in enumerate(node.axes)):
        return MIXES_IMAGES
    slice_axes = tuple(own.get(at) if x is not None else None for at, x in enumerate(node.inputs))
    return BatchPlan(lambda _, number: 0 if last else (2 if number == 0 else 1), slice_axes)


def _einsum(node: Node) -> BatchPlan:
    """Einsum: operands are sliced along the subscript of the batch axis, which must also be in the result."""
    equation = str(node.attributes.get("equation", "")).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    operands = terms.split(",")
    if not arrow or "." in equation or len(operands) != len(node.inputs):
        return MIXES_IMAGES
    letters = {term[axis] for term, axis in zip(operands, node.axes, strict=True) if axis is not None}
    if len(letters) != 1 or not letters <= set(result):
        return MIXES_IMAGES
    (letter,) = letters
    return BatchPlan(
        _fixed_axis(result.index(letter)), tuple(term.index(letter) if letter in term else None for term in operands)
    )


# ---------------------------------------------------------------- operators of ONNX Runtime


def _fused_matmul(node: Node) -> BatchPlan:
    """FusedMatMul: as MatMul, if transposing the last two axes leaves the batch axis in place."""
    swapped = [node.attributes.get("transA"), node.attributes.get("transB")]
    stacked = all(x.ndim > 2 or not is_swapped for x, is_swapped in zip(node.inputs, swapped, strict=True))
    if node.attributes.get("transBatchA") or node.attributes.get("transBatchB") or not stacked:
        return MIXES_IMAGES
    if any(
        axis is not None and axis > x.ndim - 3 and swap
        for x, axis, swap in zip(node.inputs, node.axes, swapped, strict=True)
    ):
        return MIXES_IMAGES
    return _matrix_product(0, 1)(node)


def _qgemm(node: Node) -> BatchPlan:
    """QGemm: exact integer sums, so all images at once; the batch must be the rows of A."""
    rows = int(bool(node.attributes.get("transA")))
    return BatchPlan(_fixed_axis(0)) if tuple(node.axes) == (rows, *(None,) * (len(node.axes) - 1)) else MIXES_IMAGES


def _qlinear_softmax(node: Node) -> BatchPlan:
    """QLinearSoftmax: as Softmax, at the opset that its attribute names."""
    return _softmax_like(-1)(replace(node, opset=node.attributes["opset"]))


def _skip_layer_normalization(node: Node) -> BatchPlan:
    """SkipLayerNormalization: one image at a time, if x and skip have the same batch axis before the last axis."""
    axis, allowed = node.first_axis(), {None, node.first_axis()}
    same_axes = axis < node.inputs[0].ndim - 1 and node.axes[1] in allowed and set(node.axes[2:]) == {None}
    same_shapes = node.axes[1] is None or node.inputs[1].shape == node.inputs[0].shape
    return BatchPlan(_fixed_axis(axis), tuple(node.axes)) if same_axes and same_shapes else MIXES_IMAGES


# ---------------------------------------------------------------- the table

_SHAPES = {"Constant", "ConstantOfShape", "Range", "Shape", "Size"}  # read at most a shape
_ELEMENTWISE = {
    *(*elementwise.OPERATORS, *special.OPERATORS),
    *("Affine", "BatchNormalization", "Chain", "DequantizeLinear", "Dropout", "Expand", "Identity", "QuantizeLinear"),
    *("BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "IsInf", "IsNaN", "Mod", "Round", "Shrink"),
    *("Sign", "Softsign", "ThresholdedRelu", "Xor"),
    *(
        "BiasGelu",
        "FastGelu",
        "QLinearAdd",
        "QLinearLeakyRelu",
        "QLinearMul",
        "QLinearSigmoid",
        "QLinearWhere",
        "QuickGelu",
    ),
}
# NumPy rounds some of these differently for non-contiguous arrays, for example in float16.
_BY_PLACE = {"Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Sin", "Sinh", "Tan"}
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_BY_PLACE, lambda node: BatchPlan(_fixed_axis(node.first_axis()), (node.first_axis(),))),
    **dict.fromkeys(
        ("AveragePool", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "DepthToSpace"), _batch_first
    ),
    **dict.fromkeys(("FusedConv", "FusedConvTranspose", "GridSample", "LRN", "LpPool", "MaxPool"), _batch_first),
    **dict.fromkeys(("CausalConvWithState", "MaxUnpool", "QLinearConv", "SpaceToDepth"), _batch_first),
    **dict.fromkeys(("NhwcMaxPool", "QLinearAveragePool", "QLinearGlobalAveragePool"), _batch_first),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _skip_layer_normalization),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshape),
    **dict.fromkeys(("Pad", "Resize", "Tile", "Upsample"), _same_axis),
    **dict.fromkeys(("Concat", "GatherElements", "Scatter", "ScatterElements", "Split"), _along(0)),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "GroupNormalization"), _each_image),
    **dict.fromkeys(("InstanceNormalization", "STFT"), _each_image),
    **dict.fromkeys(("LogSoftmax", "Softmax"), _softmax_like(-1)),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"), _reduce),
    **dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp", "ReduceSum", "ReduceSumSquare"), _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg_extreme),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    "CumSum": _cum_sum,
    "Einsum": _einsum,
    "Gather": _gather,
    "FusedMatMul": _fused_matmul,
    "GatherND": lambda _: _AXIS_LOST,
    "Gemm": _gemm,
    "Hardmax": _softmax_like(-1),
    "LayerNormalization": _layer_normalization,
    "MatMul": _matrix_product(0, 1),
    "MatMulInteger": _matrix_product(0, 1, exact=True),
    "MatMulIntegerToFloat": _matrix_product(0, 1, exact=True),
    "OneHot": _one_hot,
    "QGemm": _qgemm,
    "QLinearConcat": _along(None),
    "QLinearMatMul": _matrix_product(0, 3, exact=True),
    "QLinearSoftmax": _qlinear_softmax,
    "SimplifiedLayerNormalization": _layer_normalization,
    "ScatterND": lambda _: _AXIS_LOST,
    "Slice": _slice,
    "TopK": _along(-1),
    "Transpose": _transpose,
}
_MOVING = ("Concat", "DepthToSpace", "Flatten", "Gather", "GatherElements", "GatherND", "Pad", "Reshape", "Slice")
_EXACT = {*_ELEMENTWISE, *_MOVING, "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
