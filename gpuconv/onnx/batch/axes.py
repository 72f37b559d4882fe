"""Which axis of an operator's outputs the batch is along, given that of its inputs, and whether images meet in it.

Values are cut along their axis into as many equal parts as there are images, so that rows of images may be one axis.
Operators that add nothing up, or element by element in one order, compute all images at once. Others compute image by
image. What is not known here counts as bringing images together.
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

LOST = -1  # the axis of values that depend on the batch, but are not cut into its images along one
Axis = int | None  # None where a value does not depend on the batch
Made = Callable[[Any, int], Axis]  # of an output and its number


@dataclass(frozen=True, slots=True)
class Way:
    """How a node is computed.

    Attributes
    ----------
    made : callable
        Takes an output and its number; returns the axis of the batch.
    cuts : tuple of axis, optional
        Where the node is computed image by image: along which axis each input is cut, None for those that are whole.
    meets : bool
        Whether results of an image may depend on others.
    """

    made: Made
    cuts: tuple[Axis, ...] | None = None
    meets: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """What a rule sees: attributes with their defaults, the opset, inputs, their axes, and the number of images."""

    attributes: Mapping[str, Any]
    opset: int
    inputs: Sequence[Any]
    axes: Sequence[Axis]
    images: int

    def first(self) -> int:
        """Return the axis of the first input, which has one."""
        axis = self.axes[0]
        return LOST if axis is None else axis

    def given(self, position: int) -> Any:
        """Return an input, or None where it is not there."""
        return self.inputs[position] if position < len(self.inputs) else None

    def numbers(self, position: int) -> list[int] | None:
        """Return the integers of an input, or None where it is not there."""
        value = self.given(position)
        return None if value is None else ints(value if isinstance(value, np.ndarray) else gpuconv.to_host(value))


Rule = Callable[[Node], Way]
MEETS = Way(lambda *_: LOST, meets=True)
_MOVED = Way(lambda *_: LOST)  # no sum yet
FREE = Way(lambda *_: None)


def way(op_type: str, node: Node) -> Way:
    """Return how a node is computed that has a batch among its inputs."""
    if all(axis is None for axis in node.axes) or op_type in _SHAPES:
        return FREE
    if LOST in node.axes:
        return _MOVED if op_type in _EXACT else MEETS
    rule = _RULES.get(op_type)
    return MEETS if rule is None else rule(node)


def _at(axis: int) -> Made:
    return lambda *_: axis


def _from_right(place: int) -> Made:
    return lambda y, _: y.ndim + place


# ---------------------------------------------------------------- all images at once


def _elementwise(node: Node) -> Way:
    places = {axis - np.ndim(x) for x, axis in zip(node.inputs, node.axes, strict=True) if axis is not None}
    return Way(_from_right(places.pop())) if len(places) == 1 else _MOVED


def _of_images(node: Node) -> Way:
    """An operator whose axis 0 is that of images, each of which has its own sums in one order."""
    return Way(_at(0)) if {0, None}.issuperset(node.axes) and node.axes[0] == 0 else MEETS


def _transpose(node: Node) -> Way:
    ndim = node.inputs[0].ndim
    return Way(_at(list(node.attributes.get("perm") or range(ndim)[::-1]).index(node.first())))


def _reshape(node: Node) -> Way:
    """The batch stays where as many elements are before it, if its images are not cut."""
    before = prod(node.inputs[0].shape[: node.first()])

    def made(y: Any, _: int) -> int:
        found = (at for at in range(y.ndim) if prod(y.shape[:at]) == before and y.shape[at] % node.images == 0)
        return next(found, LOST)

    return Way(made)


def _kept(node: Node) -> Way:
    """An operator of one input, all of whose results have the axis; lost where its extent changes."""
    axis, extent = node.first(), node.inputs[0].shape[node.first()]
    return Way(lambda y, _: axis if y.ndim > axis and y.shape[axis] == extent else LOST)


def _slice(node: Node) -> Way:
    backwards = min(node.numbers(4) or [1]) < 0
    return _MOVED if backwards else _kept(node)


def _along(default: int | None) -> Rule:
    """Make the rule of an operator that moves elements along one axis, of one or more inputs of equal axes."""

    def rule(node: Node) -> Way:
        places = {axis for axis in node.axes if axis is not None}
        axis = node.attributes.get("axis", default)
        ndim = max(np.ndim(x) for x in node.inputs)
        if len(places) > 1 or axis is None or axis % ndim in places:
            return _MOVED
        return Way(_at(places.pop()))

    return rule


def _cumulated(node: Node) -> Way:
    (along,) = node.numbers(1) or [0]
    axis = along % node.inputs[0].ndim
    return MEETS if axis == node.first() else Way(_at(node.first()))


def _gather(node: Node) -> Way:
    (data, indices), (of_data, of_indices) = node.inputs, node.axes
    along = (node.attributes.get("axis") or 0) % data.ndim
    if of_data is None and of_indices is not None:
        return Way(_at(along + of_indices))
    if of_data is None or of_indices is not None or of_data == along:
        return _MOVED
    return Way(_at(of_data if of_data < along else of_data + np.ndim(indices) - 1))


def _one_hot(node: Node) -> Way:
    axis, ndim = node.first(), node.inputs[0].ndim + 1
    new = (node.attributes.get("axis", -1)) % ndim
    return Way(_at(axis + (new <= axis))) if node.axes[1:] == (None, None) else _MOVED


# ---------------------------------------------------------------- image by image


def _each(node: Node) -> Way:
    """Cut the first input, whose axis 0 is that of images."""
    rest = (None,) * (len(node.inputs) - 1)
    return Way(_at(0), (0, *rest)) if tuple(node.axes) == (0, *rest) else MEETS


def _rows(default: int) -> Rule:
    """Make the rule of an operator along one axis; before opset 13, along all from that one on."""

    def rule(node: Node) -> Way:
        axis, ndim = node.first(), node.inputs[0].ndim
        along = node.attributes.get("axis", default) % ndim
        return MEETS if axis == along or (node.opset < 13 and axis > along) else Way(_at(axis), (axis,))

    return rule


def _layer_normalization(node: Node) -> Way:
    axis = node.first()
    meets = axis >= node.attributes.get("axis", -1) % node.inputs[0].ndim or len({*node.axes[1:]} - {None}) > 0
    return MEETS if meets else Way(_at(axis), (axis, *(None,) * (len(node.inputs) - 1)))


def _reduce(node: Node) -> Way:
    axis, ndim, given = node.first(), node.inputs[0].ndim, node.numbers(1) or node.attributes.get("axes")
    over = {at % ndim for at in given or range(ndim)}
    if not given and node.attributes.get("noop_with_empty_axes"):
        return Way(_at(axis))
    if axis in over:
        return MEETS
    left = axis if node.attributes.get("keepdims", 1) else axis - sum(at < axis for at in over)
    return Way(_at(left), (axis, *(None,) * (len(node.inputs) - 1)))


def _place(node: Node) -> Way:
    axis, along = node.first(), (node.attributes.get("axis") or 0) % node.inputs[0].ndim
    kept = node.attributes.get("keepdims", 1) or along > axis
    return MEETS if along == axis else Way(_at(axis if kept else axis - 1))


def _matrices(first: int, second: int, *, exact: bool = False) -> Rule:
    """Make the rule of products of matrices that are inputs at two positions."""

    def rule(node: Node) -> Way:
        a, b = node.inputs[first], node.inputs[second]
        left, right = (
            None if axis is None else axis - x.ndim for x, axis in ((a, node.axes[first]), (b, node.axes[second]))
        )
        if left == -1 or (right == -1 and b.ndim == 1) or (right == -2):
            return MEETS  # the axis that is summed over
        if left is not None and right is not None and (left != right or left == -2):
            return MEETS
        place = left if left is not None else right
        if place is None:
            return MEETS  # a zero point or the like
        cuts: list[Axis] = [None] * len(node.inputs)
        cuts[first], cuts[second] = _cut(a, left, place), _cut(b, right, place)
        # A vector's axis is not among those of the result.
        beside = b.ndim == 1 if left is not None else a.ndim == 1 and place < -2
        return Way(_from_right(place + beside), None if exact else tuple(cuts))

    return rule


def _cut(x: Any, own: int | None, place: int) -> Axis:
    """Return where a factor is cut: along its own axis, or as it is stacked beside the other one."""
    if own is not None:
        return int(x.ndim + own)
    stacked = place < -2 and x.ndim + place >= 0 and x.shape[place] > 1
    return int(x.ndim + place) if stacked else None


def _gemm(node: Node) -> Way:
    a, b, *_ = node.inputs
    rows, columns = int(bool(node.attributes.get("transA"))), int(not node.attributes.get("transB"))
    of_a, of_b = node.axes[:2]
    if (of_a is None) == (of_b is None) or of_a not in (None, rows) or of_b not in (None, columns):
        return MEETS
    made = 0 if of_b is None else 1
    extent, c = (a.shape[rows] if of_b is None else b.shape[columns]), node.given(2)
    at = None if c is None or made - 2 + c.ndim < 0 else made - 2 + c.ndim
    if len(node.axes) > 2 and node.axes[2] not in (None, at):
        return MEETS
    of_c = at if at is not None and c.shape[at] == extent > 1 else None
    return Way(_at(made), (of_a, of_b, of_c)[: len(node.inputs)])


def _recurrent(node: Node) -> Way:
    """X, sequence_lens and the states at first have images; what they are called, and their axes, is ONNX's."""
    last = bool(node.attributes.get("layout"))
    own = {0: 0 if last else 1, 4: 0, 5: 0 if last else 1, 6: 0 if last else 1}
    if any(axis is not None and axis != own.get(at) for at, axis in enumerate(node.axes)):
        return MEETS
    cuts = tuple(own.get(at) if x is not None else None for at, x in enumerate(node.inputs))
    return Way(lambda _, number: 0 if last else (2 if number == 0 else 1), cuts)


def _einsum(node: Node) -> Way:
    """Operands are cut along the letter of the batch, if the result has it."""
    equation = str(node.attributes.get("equation", "")).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    operands = terms.split(",")
    if not arrow or "." in equation or len(operands) != len(node.inputs):
        return MEETS
    letters = {term[axis] for term, axis in zip(operands, node.axes, strict=True) if axis is not None}
    if len(letters) != 1 or not letters <= set(result):
        return MEETS
    (letter,) = letters
    return Way(_at(result.index(letter)), tuple(term.index(letter) if letter in term else None for term in operands))


# ---------------------------------------------------------------- operators of ONNX Runtime


def _fused_matmul(node: Node) -> Way:
    """Swapping the last two axes leaves a batch before them where it is."""
    swapped = [node.attributes.get("transA"), node.attributes.get("transB")]
    stacked = all(x.ndim > 2 or not is_swapped for x, is_swapped in zip(node.inputs, swapped, strict=True))
    if node.attributes.get("transBatchA") or node.attributes.get("transBatchB") or not stacked:
        return MEETS
    if any(
        axis is not None and axis > x.ndim - 3 and swap
        for x, axis, swap in zip(node.inputs, node.axes, swapped, strict=True)
    ):
        return MEETS
    return _matrices(0, 1)(node)


def _qgemm(node: Node) -> Way:
    rows = int(bool(node.attributes.get("transA")))
    return Way(_at(0)) if tuple(node.axes) == (rows, *(None,) * (len(node.axes) - 1)) else MEETS


def _qlinear_softmax(node: Node) -> Way:
    return _rows(-1)(replace(node, opset=node.attributes["opset"]))


def _normalized_sum(node: Node) -> Way:
    axis, others = node.first(), {None, node.first()}
    kept = axis < node.inputs[0].ndim - 1 and node.axes[1] in others and set(node.axes[2:]) == {None}
    alike = node.axes[1] is None or node.inputs[1].shape == node.inputs[0].shape
    return Way(_at(axis), tuple(node.axes)) if kept and alike else MEETS


# ---------------------------------------------------------------- the table

_SHAPES = {"Constant", "ConstantOfShape", "Range", "Shape", "Size"}  # which see no elements
_BY_ELEMENT = {
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
# NumPy computes some of these otherwise where elements do not follow each other, in float16 for instance.
_BY_PLACE = {"Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Sin", "Sinh", "Tan"}
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_BY_ELEMENT, _elementwise),
    **dict.fromkeys(_BY_PLACE, lambda node: Way(_at(node.first()), (node.first(),))),
    **dict.fromkeys(("AveragePool", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "DepthToSpace"), _of_images),
    **dict.fromkeys(("FusedConv", "FusedConvTranspose", "GridSample", "LRN", "LpPool", "MaxPool"), _of_images),
    **dict.fromkeys(("CausalConvWithState", "MaxUnpool", "QLinearConv", "SpaceToDepth"), _of_images),
    **dict.fromkeys(("NhwcMaxPool", "QLinearAveragePool", "QLinearGlobalAveragePool"), _of_images),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _normalized_sum),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshape),
    **dict.fromkeys(("Pad", "Resize", "Tile", "Upsample"), _kept),
    **dict.fromkeys(("Concat", "GatherElements", "Scatter", "ScatterElements", "Split"), _along(0)),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "GroupNormalization"), _each),
    **dict.fromkeys(("InstanceNormalization", "STFT"), _each),
    **dict.fromkeys(("LogSoftmax", "Softmax"), _rows(-1)),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"), _reduce),
    **dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp", "ReduceSum", "ReduceSumSquare"), _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), _place),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    "CumSum": _cumulated,
    "Einsum": _einsum,
    "Gather": _gather,
    "FusedMatMul": _fused_matmul,
    "GatherND": lambda _: _MOVED,
    "Gemm": _gemm,
    "Hardmax": _rows(-1),
    "LayerNormalization": _layer_normalization,
    "MatMul": _matrices(0, 1),
    "MatMulInteger": _matrices(0, 1, exact=True),
    "MatMulIntegerToFloat": _matrices(0, 1, exact=True),
    "OneHot": _one_hot,
    "QGemm": _qgemm,
    "QLinearConcat": _along(None),
    "QLinearMatMul": _matrices(0, 3, exact=True),
    "QLinearSoftmax": _qlinear_softmax,
    "SimplifiedLayerNormalization": _layer_normalization,
    "ScatterND": lambda _: _MOVED,
    "Slice": _slice,
    "TopK": _along(-1),
    "Transpose": _transpose,
}
_MOVING = ("Concat", "DepthToSpace", "Flatten", "Gather", "GatherElements", "GatherND", "Pad", "Reshape", "Slice")
_EXACT = {*_BY_ELEMENT, *_MOVING, "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
