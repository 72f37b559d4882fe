"""The rules that cases test: how each came about, and where it was discussed."""

from __future__ import annotations

from dataclasses import dataclass

from gpuconv.rules import cases as named

SPECIFIED = "specified"  # the specification of ONNX says so
REFERENCE = "by the reference"  # the specification is silent, onnx.reference or the node tests say so
DISPUTED = "disputed"  # sources contradict each other, or a discussion was closed without an answer
RULED = "ruled here"  # nobody else says anything, or everybody says something else

_ONNX = "https://github.com/onnx/onnx/"
_RUNTIME = "https://github.com/microsoft/onnxruntime/"


@dataclass(frozen=True, slots=True)
class Ruling:
    """One sentence that an operator must keep to.

    Attributes
    ----------
    name : str
        A few words, for tables.
    status : {"specified", "by the reference", "disputed", "ruled here"}
        Where the sentence comes from.
    discussions : tuple of str
        Addresses of public threads about it.
    """

    name: str
    status: str
    discussions: tuple[str, ...] = ()


def _onnx(*numbers: int) -> tuple[str, ...]:
    return tuple(f"{_ONNX}issues/{number}" for number in numbers)


def _runtime(*numbers: int) -> tuple[str, ...]:
    return tuple(f"{_RUNTIME}issues/{number}" for number in numbers)


# Of those that onnx/onnx#3651 and the discussions around it collected, the ones about operators of the suite.
OPEN_QUESTIONS = (553, 756, 1609, 1651, 1772, 1886, 1922, 2290, 2398, 2726, 2927, 3254, 3314)

CORRELATION = "The kernel is not turned: tap t of W meets the input at output * stride + t * dilation - pad."
KERNEL_MISSING = "kernel_shape missing: from W."
AVERAGE = "AveragePool: the sum over the taps inside x, divided by their number; summed in float32, rounded once."
COUNT_PAD = "count_include_pad=1: the divisor counts the padding too, as if x were padded with zeros."
OVERHANG = "ceil_mode: taps beyond the padding never count, with count_include_pad=1 neither."
NO_TAP = "AveragePool: a window with no tap that counts gives NaN."
AVERAGE_SIZES = "AveragePool has the sizes of MaxPool: ceil_mode, dilations, auto_pad and pads mean the same."
UNPOOLED = "MaxUnpool: each element stands where its index says, all else is 0."
UNPOOL_SHAPE = "MaxUnpool sizes: s*(Q-1) + k - pads; without output_shape that is the shape."
OVERFLOWING = (
    "Where terms of one sign are beyond the largest value together, the sum is infinity of that sign, in any order."
)
UNPOOL_LARGER = "MaxUnpool: indices number the shape that the attributes give; output_shape adds zeros at the end."
SWEPT = "All rules at once: a combination of attributes, types, opsets and values."

_OUTPUT_SHAPE = (*_onnx(1772, 4527), *_runtime(26271))
_HALVES = (*_onnx(1609, 2788), f"{_ONNX}pull/3440", *_runtime(9370, 11927), f"{_RUNTIME}pull/5368")
_SAME = _onnx(756, 3254, 3153)
_EMPTY = _onnx(1922)
_CEIL = (*_onnx(2927, 2971, 2943), f"{_ONNX}pull/5741", *_runtime(15446))
_NAN = ("https://github.com/pytorch/pytorch/issues/7645", "https://github.com/openvinotoolkit/openvino/issues/35935")
_ACCUMULATION = (*_onnx(7072), "https://github.com/webmachinelearning/webnn/issues/948")

RULINGS: dict[str, Ruling] = {
    named._FORMULA: Ruling("sizes in whole numbers", SPECIFIED),
    named._SAME: Ruling("SAME sizes", SPECIFIED, _SAME),
    named._ODD_SAME: Ruling("SAME, which end", SPECIFIED, _SAME),
    named._SAME_DILATED: Ruling("SAME, dilated", SPECIFIED, ("https://github.com/microsoft/onnxscript/pull/3037",)),
    named._ZERO_PADS: Ruling("auto_pad beside pads", DISPUTED, (f"{_ONNX}pull/212",)),
    named._AUTO_PAD_TEXT: Ruling("auto_pad as text", RULED),
    named._EMPTY: Ruling("output of size 0", RULED),
    named._BIG_PADS: Ruling("pads as large as the kernel", RULED),
    named._KERNEL: Ruling("kernel_shape", SPECIFIED, _onnx(553)),
    named._BIAS: Ruling("bias", SPECIFIED),
    named._NOTHING: Ruling("empty inputs", RULED, _runtime(4559)),
    named._ONCE: Ruling("16-bit sums in float32", DISPUTED, _ACCUMULATION),
    named._NO_TF32: Ruling("float32 products", RULED),
    named._SUBNORMAL: Ruling("subnormal sums", RULED),
    named._OVERFLOW: Ruling("overflow", RULED),
    named._RANKS: Ruling("all ranks", SPECIFIED),
    named._EXACT: Ruling("many terms", SPECIFIED),
    named._IEEE: Ruling("NaN and infinity in a window", RULED),
    named._PADDING: Ruling("nothing times padding", DISPUTED, _onnx(3254)),
    named._LAYOUT: Ruling("Conv layout and groups", SPECIFIED, _onnx(553)),
    named._T_LAYOUT: Ruling("ConvTranspose layout and groups", SPECIFIED),
    named._GATHER: Ruling("ConvTranspose sums", SPECIFIED, _onnx(1886)),
    named._NATURAL: Ruling("ConvTranspose sizes", SPECIFIED, _runtime(2518)),
    named._OUTPUT_PADDING: Ruling("output_padding", SPECIFIED, _onnx(2333, 4299)),
    named._ODD: Ruling("ConvTranspose, odd padding", DISPUTED, _HALVES),
    named._OUTPUT_SHAPE: Ruling("output_shape", SPECIFIED, _OUTPUT_SHAPE),
    named._EXCESS: Ruling("output_shape beyond the inputs", DISPUTED, _OUTPUT_SHAPE),
    named._WITH_NC: Ruling("output_shape with N and C", DISPUTED, (f"{_ONNX}issues/1772",)),
    named._BELOW_INPUT: Ruling("output_shape below the input", SPECIFIED, _OUTPUT_SHAPE),
    named._T_SAME: Ruling("ConvTranspose, SAME", SPECIFIED, (*_onnx(3153, 4299), *_runtime(4086, 4698))),
    named._CLIPPED: Ruling("MaxPool padding", SPECIFIED, _onnx(1651)),
    named._NAN: Ruling("MaxPool of NaN", RULED, _NAN),
    named._TIES: Ruling("MaxPool ties", RULED),
    named._ZEROS: Ruling("MaxPool, zeros of both signs", RULED),
    named._TINY: Ruling("MaxPool, subnormals", RULED),
    named._BITS: Ruling("MaxPool, the element's bits", RULED),
    named._MINUS_INF: Ruling("MaxPool of minus infinity", RULED),
    named._NO_ELEMENT: Ruling(
        "MaxPool, empty windows", DISPUTED, (*_EMPTY, "https://github.com/webmachinelearning/webnn/issues/935")
    ),
    named._INDICES: Ruling("Indices", SPECIFIED, _onnx(2398, 1370)),
    named._COLUMNS: Ruling("storage_order", DISPUTED, (*_onnx(1370, 2290), f"{_ONNX}pull/4612")),
    named._CEIL: Ruling("ceil_mode", SPECIFIED, _CEIL),
    named._DROPPED: Ruling("ceil_mode, dropped windows", SPECIFIED, (*_CEIL, *_onnx(4958))),
    named._CEIL_VALID: Ruling("ceil_mode with VALID", DISPUTED, _runtime(10083)),
    named._CEIL_SAME: Ruling("ceil_mode with SAME", SPECIFIED),
    CORRELATION: Ruling("kernel not turned", REFERENCE, _onnx(1886)),
    KERNEL_MISSING: Ruling("kernel_shape missing", SPECIFIED, _onnx(553)),
    AVERAGE: Ruling("AveragePool", SPECIFIED, _onnx(1384)),
    COUNT_PAD: Ruling("count_include_pad", SPECIFIED, _onnx(1384)),
    OVERFLOWING: Ruling("sums beyond the largest", RULED),
    OVERHANG: Ruling("AveragePool, overhang", DISPUTED, (*_onnx(3314, 5235), *_runtime(16203, 16351))),
    NO_TAP: Ruling("AveragePool, empty windows", DISPUTED, (*_EMPTY, *_onnx(4958), *_runtime(6543))),
    AVERAGE_SIZES: Ruling("AveragePool sizes", SPECIFIED, (*_onnx(2290, 1651), *_CEIL)),
    UNPOOLED: Ruling("MaxUnpool", SPECIFIED),
    UNPOOL_SHAPE: Ruling("MaxUnpool sizes", SPECIFIED),
    UNPOOL_LARGER: Ruling("MaxUnpool, larger output_shape", DISPUTED, (*_onnx(2398, 2726), f"{_RUNTIME}pull/2193")),
    SWEPT: Ruling("combinations", RULED),
}
