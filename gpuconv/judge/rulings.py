"""The rules that cases test: their status, the specification's words, and public discussions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpuconv.rules import cases as named

SPECIFIED = "specified"  # the specification of ONNX says so
REFERENCE = "by the reference"  # the specification is silent, onnx.reference or the node tests say so
DISPUTED = "disputed"  # sources contradict each other, or a discussion was closed without an answer
RULED = "ruled here"  # no source says anything, or all implementations differ

_ONNX = "https://github.com/onnx/onnx/"
_RUNTIME = "https://github.com/microsoft/onnxruntime/"


@dataclass(frozen=True)
class Ruling:
    """A rule for an operator.

    Attributes
    ----------
    name : str
        A few words, for tables.
    status : {"specified", "by the reference", "disputed", "ruled here"}
        The source of the rule.
    discussions : tuple of str
        Addresses of public threads about it.
    upstream : mapping of str to tuple of str
        Addresses of known issues of implementations, by the name of the target.
    sentence : str
        The rule. As given by :func:`ruled` for one operator and opset.
    quotation : dict or None
        The specification's words, with operator, opset and link. As given by :func:`ruled` for one operator and opset.
    parts : tuple of str
        Of a combination, the names of the rules that take part in it.
    """

    name: str
    status: str
    discussions: tuple[str, ...] = ()
    upstream: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sentence: str = ""
    quotation: dict[str, Any] | None = None
    parts: tuple[str, ...] = ()


def _onnx(*numbers: int) -> tuple[str, ...]:
    return tuple(f"{_ONNX}issues/{number}" for number in numbers)


def _runtime(*numbers: int) -> tuple[str, ...]:
    return tuple(f"{_RUNTIME}issues/{number}" for number in numbers)


# The questions collected by onnx/onnx#3651 and related discussions that are about operators of the suite.
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
TOO_LONG = "A window longer than the padded input by less than the stride: floor of a negative number, so no window."
SWEPT = "A combination of attributes, types, opsets and values."

# Models that the specification forbids, by the names of cases: pads together with auto_pad, an unknown auto_pad, and
# output_shape with N and C.
INVALID = frozenset(
    {
        "conv/2d/SAME_UPPER with pads of zeros",
        "conv_transpose/2d/SAME_LOWER with pads of zeros",
        "max_pool/2d/SAME_UPPER with pads of zeros",
        "conv/2d/auto_pad of no letters",
        "conv_transpose/2d/auto_pad of no letters",
        "max_pool/2d/auto_pad of no letters",
        "conv_transpose/1d/output_shape with N and C",
        "conv_transpose/1d/output_shape with an N and C that are ignored",
        "conv_transpose/2d/output_shape with N and C",
    }
)

_OUTPUT_SHAPE = (*_onnx(1772, 4527), *_runtime(26271))
_HALVES = (*_onnx(1609, 2788), f"{_ONNX}pull/3440", *_runtime(9370, 11927), f"{_RUNTIME}pull/5368")
_SAME = _onnx(756, 3254, 3153)
_EMPTY = _onnx(1922)
_CEIL = (*_onnx(2927, 2971, 2943), f"{_ONNX}pull/5741", *_runtime(15446))
_NAN = ("https://github.com/pytorch/pytorch/issues/7645", "https://github.com/openvinotoolkit/openvino/issues/35935")
_ACCUMULATION = (*_onnx(7072), "https://github.com/webmachinelearning/webnn/issues/948")

_PYTORCH = "https://github.com/pytorch/pytorch/"
_OPENVINO = "https://github.com/openvinotoolkit/openvino/"
_TVM = "https://github.com/apache/tvm/"
_TVM_SHAPES = {"tvm": (f"{_TVM}issues/18601", f"{_TVM}pull/19450")}

RULINGS: dict[str, Ruling] = {
    TOO_LONG: Ruling("windows longer than the input", DISPUTED, upstream={"onnxruntime": _runtime(25234)}),
    named._FORMULA: Ruling("sizes", SPECIFIED),
    named._SAME: Ruling("SAME sizes", SPECIFIED, _SAME),
    named._ODD_SAME: Ruling("SAME, which end", SPECIFIED, _SAME),
    named._SAME_DILATED: Ruling(
        "SAME, dilated",
        SPECIFIED,
        ("https://github.com/microsoft/onnxscript/pull/3037",),
        {"onnxruntime": _runtime(20582)},
    ),
    named._ZERO_PADS: Ruling("auto_pad beside pads", DISPUTED, (f"{_ONNX}pull/212",)),
    named._AUTO_PAD_TEXT: Ruling("auto_pad as text", RULED),
    named._EMPTY: Ruling("output of size 0", RULED),
    named._BIG_PADS: Ruling("pads as large as the kernel", SPECIFIED),
    named._KERNEL: Ruling("kernel_shape", SPECIFIED, _onnx(553)),
    named._BIAS: Ruling("bias", SPECIFIED),
    named._NOTHING: Ruling(
        "empty inputs",
        RULED,
        _runtime(4559),
        {
            "torch": tuple(
                f"{_PYTORCH}{each}" for each in ("pull/66256", "pull/120944", "issues/101356", "issues/56998")
            )
        },
    ),
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
    named._GATHER: Ruling("ConvTranspose sums", REFERENCE, _onnx(1886)),
    named._NATURAL: Ruling("ConvTranspose sizes", SPECIFIED, _runtime(2518)),
    named._OUTPUT_PADDING: Ruling("output_padding", SPECIFIED, _onnx(2333, 4299)),
    named._ODD: Ruling("ConvTranspose, odd padding", DISPUTED, _HALVES),
    named._OUTPUT_SHAPE: Ruling("output_shape", SPECIFIED, _OUTPUT_SHAPE, _TVM_SHAPES),
    named._EXCESS: Ruling("output_shape beyond the inputs", DISPUTED, _OUTPUT_SHAPE, _TVM_SHAPES),
    named._WITH_NC: Ruling("output_shape with N and C", DISPUTED, (f"{_ONNX}issues/1772",)),
    named._BELOW_INPUT: Ruling("output_shape below the input", DISPUTED, _OUTPUT_SHAPE, _TVM_SHAPES),
    named._T_SAME: Ruling(
        "ConvTranspose, SAME",
        SPECIFIED,
        (*_onnx(3153, 4299), *_runtime(4086, 4698)),
        {"onnxruntime": _runtime(11927)},
    ),
    named._CLIPPED: Ruling("MaxPool padding", SPECIFIED, _onnx(1651)),
    named._NAN: Ruling("MaxPool of NaN", RULED, _NAN, {"openvino": (_NAN[1],)}),
    named._TIES: Ruling("MaxPool ties", RULED),
    named._ZEROS: Ruling("MaxPool, zeros of both signs", RULED),
    named._TINY: Ruling("MaxPool, subnormals", RULED),
    named._BITS: Ruling("MaxPool, the element's bits", RULED),
    named._MINUS_INF: Ruling("MaxPool of minus infinity", RULED, upstream={"torch": (f"{_PYTORCH}pull/23161",)}),
    named._NO_ELEMENT: Ruling(
        "MaxPool, empty windows", DISPUTED, (*_EMPTY, "https://github.com/webmachinelearning/webnn/issues/935")
    ),
    named._INDICES: Ruling("Indices", SPECIFIED, _onnx(2398, 1370)),
    named._COLUMNS: Ruling(
        "storage_order",
        DISPUTED,
        (*_onnx(1370, 2290), f"{_ONNX}pull/4612"),
        {"openvino": (f"{_OPENVINO}issues/20879", f"{_OPENVINO}pull/33833")},
    ),
    named._CEIL: Ruling("ceil_mode", SPECIFIED, _CEIL),
    named._DROPPED: Ruling("ceil_mode, dropped windows", SPECIFIED, (*_CEIL, *_onnx(4958))),
    named._CEIL_VALID: Ruling("ceil_mode with VALID", DISPUTED, upstream={"onnxruntime": _runtime(10083)}),
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
}

# Sentences for rules whose names in the cases are worded for an implementation.
_SENTENCES = {
    named._FORMULA: "The size of an axis is floor((n + pads - ((k - 1) * dilation + 1)) / stride) + 1.",
    named._EMPTY: "Where the size of an axis is 0, the output is empty and has that shape.",
    named._BIG_PADS: "pads may be as large as the kernel, or larger.",
    named._ZERO_PADS: "Pads of zeros beside auto_pad change nothing, where such a model is not rejected.",
    named._AUTO_PAD_TEXT: 'auto_pad="" is NOTSET, where such a model is not rejected.',
    named._WITH_NC: "output_shape with entries for N and C: these are ignored, where such a model is not rejected.",
    named._IEEE: "NaN and infinities among the inputs of a sum give what IEEE 754 says.",
    named._NOTHING: "With an axis of size 0 the formulas hold as they are; a sum over no element is the bias.",
}

_SAME_1 = "SAME_UPPER or SAME_LOWER mean pad the input so that the output spatial size match the input."
_SAME_11 = (
    "SAME_UPPER or SAME_LOWER mean pad the input so that `output_shape[i] = ceil(input_shape[i] / strides[i])` for each"
    " axis `i`."
)
_SAME_T = "SAME_UPPER or SAME_LOWER mean pad the input so that `output_shape[i] = input_shape[i] * strides[i]`"
_SAME_POOL = (
    "SAME_UPPER or SAME_LOWER: output_spatial_shape[i] = ceil(input_spatial_shape[i] / strides_spatial_shape[i])"
)
_ODD_1 = "In case of odd number add the extra padding at the end for SAME_UPPER and at the beginning for SAME_LOWER."
_ODD_11 = (
    "In case the padding is an odd number, the extra padding is added at the end for SAME_UPPER and at the beginning"
    " for SAME_LOWER."
)
_PAD_SHAPE = (
    "pad_shape[i] = (output_spatial_shape[i] - 1) * strides_spatial_shape[i] + ((kernel_spatial_shape[i] - 1) *"
    " dilations[i] + 1) - input_spatial_shape[i]"
)
_SIZES = (
    "output_spatial_shape[i] = {}((input_spatial_shape[i] + pad_shape[i] - kernel_spatial_shape[i]) /"
    " strides_spatial_shape[i] + 1)"
)
_SIZES_DILATED = (
    "output_spatial_shape[i] = {}((input_spatial_shape[i] + pad_shape[i] - ((kernel_spatial_shape[i] - 1) *"
    " dilations[i] + 1)) / strides_spatial_shape[i] + 1)"
)
_SIZES_NEW = (
    "output_spatial_shape[i] = {}((input_spatial_shape[i] + pad_shape[i] - dilation[i] * (kernel_shape[i] - 1) - 1) /"
    " strides_spatial_shape[i] + 1)"
)
_VALID_CEIL = "VALID: output_spatial_shape[i] = ceil((input_spatial_shape[i] - {} + 1) / strides_spatial_shape[i])"
_EXTENT = "((kernel_spatial_shape[i] - 1) * dilations[i] + 1)"
_CONV_SIZES = "The output dimensions are functions of the kernel size, stride size, and pad lengths."
_KERNEL = "The shape of the convolution kernel. If not present, should be inferred from input W."
_BIAS = "Optional 1D bias to be added to the convolution, has size of M."
_AXES = "the dimensions are in the form of (N x C x D1 x D2 ... Dn)"
_CONSUMES = "The convolution operator consumes an input tensor and a filter, and computes the output."
_CONSUMES_T = "The convolution transpose operator consumes an input tensor and a filter, and computes the output."
_NATURAL = (
    "output_shape[i] = stride[i] * (input_size[i] - 1) + output_padding[i] + ((kernel_shape[i] - 1) * dilations[i] + 1)"
    " - pads[start_i] - pads[end_i]"
)
_TOTAL = (
    "total_padding[i] = stride[i] * (input_size[i] - 1) + output_padding[i] + ((kernel_shape[i] - 1) * dilations[i] +"
    " 1) - output_shape[i]"
)
_ODD_T_1 = (
    "If (auto_pads != SAME_UPPER): pads[start_i] = total_padding[i]/2; pads[end_i] = total_padding[i] -"
    " (total_padding[i]/2)"
)
_NO_BOTH = "This attribute cannot be used simultaneously with auto_pad attribute."
_ANY_PADS = "it can take any value greater than or equal to 0"
_MODES = "auto_pad must be either NOTSET, SAME_UPPER, SAME_LOWER or VALID."
_DIVIDED = "The output of each pooling window is divided by the number of elements"

_Texts = tuple[tuple[int, str], ...]  # the first opset of each text


def _pool_sizes(word: str, ceil: bool = False) -> dict[str, _Texts]:
    first = () if ceil else ((1, _SIZES.format(word)),)
    return {
        "max_pool": (*first, (10, _SIZES_DILATED.format(word)), (12, _SIZES_NEW.format(word))),
        "average_pool": (
            *(((10, _SIZES.format(word)),) if ceil else first),
            (11, _SIZES_DILATED.format(word)),
            (19, _SIZES_NEW.format(word)),
        ),
    }


def _everywhere(text: str, *operators: str) -> dict[str, _Texts]:
    return dict.fromkeys(operators, ((1, text),))


_CONVS, _POOLS = ("conv", "conv_transpose"), ("max_pool", "average_pool")
_SIZES_OF_POOLS = _pool_sizes("floor")
_SIZES_OF_CEIL = _pool_sizes("ceil", ceil=True)
_DROPPED_TEXT: _Texts = ((22, "Sliding windows that would start in the right padded region are ignored."),)
_SAMES = {"conv": ((1, _SAME_1), (11, _SAME_11)), **_everywhere(_SAME_POOL, *_POOLS)}

# Quotations of the specification for each rule, by operator; no entry where it is silent.
QUOTATIONS: Mapping[str, Mapping[str, _Texts]] = {
    named._FORMULA: {**_everywhere(_CONV_SIZES, "conv"), **_SIZES_OF_POOLS},
    TOO_LONG: _SIZES_OF_POOLS,
    named._SAME: _SAMES,
    named._ODD_SAME: {
        "conv": ((1, _ODD_1), (11, _ODD_11)),
        "max_pool": ((1, _ODD_1), (12, _ODD_11)),
        "average_pool": ((1, _ODD_1), (11, _ODD_11)),
    },
    named._SAME_DILATED: {
        "conv": ((1, _SAME_1), (11, _SAME_11)),
        "max_pool": ((10, _PAD_SHAPE),),
        "average_pool": ((11, _PAD_SHAPE),),
    },
    named._ZERO_PADS: _everywhere(_NO_BOTH, *_CONVS, *_POOLS),
    named._AUTO_PAD_TEXT: _everywhere(_MODES, *_CONVS, *_POOLS),
    named._BIG_PADS: _everywhere(_ANY_PADS, *_CONVS, *_POOLS),
    named._KERNEL: _everywhere(_KERNEL, *_CONVS),
    KERNEL_MISSING: _everywhere(_KERNEL, *_CONVS),
    named._BIAS: _everywhere(_BIAS, *_CONVS),
    named._RANKS: {
        **_everywhere("Otherwise the size is (N x C x D1 x D2 ... x Dn)", *_CONVS),
        **_everywhere(_AXES, *_POOLS),
    },
    named._EXACT: {**_everywhere(_CONSUMES, "conv"), **_everywhere(_CONSUMES_T, "conv_transpose")},
    named._LAYOUT: _everywhere("has size (M x C/group x kH x kW), where C is the number of channels", "conv"),
    named._T_LAYOUT: _everywhere(
        "has size (C x M/group x kH x kW), where C is the number of channels", "conv_transpose"
    ),
    named._NATURAL: _everywhere(_NATURAL, "conv_transpose"),
    named._OUTPUT_PADDING: {
        "conv_transpose": (
            (
                11,
                'Each padding value in "output_padding" must be less than the corresponding stride/dilation dimension.',
            ),
        )
    },
    named._OUTPUT_SHAPE: _everywhere(_TOTAL, "conv_transpose"),
    named._EXCESS: _everywhere(_TOTAL, "conv_transpose"),
    named._ODD: {"conv_transpose": ((1, _ODD_T_1), (11, _ODD_T_1.replace("!=", "==")))},
    named._WITH_NC: {
        "conv_transpose": (
            (
                11,
                "Note that the output_shape attribute value should not include dimensions for batch size and channels",
            ),
        )
    },
    named._BELOW_INPUT: _everywhere(
        "The shape of the output can be explicitly set which will cause pads values to be auto generated.",
        "conv_transpose",
    ),
    named._T_SAME: {"conv_transpose": ((1, _SAME_1), (11, _SAME_T))},
    named._CLIPPED: _everywhere(
        "The output of each pooling window is maximum number of elements exclude pad.", "max_pool"
    ),
    named._INDICES: {
        "max_pool": (
            (8, "the indices do not consider padding. So the values in indices are in [0, N x C x D1 x ... x Dn)."),
        )
    },
    named._COLUMNS: {"max_pool": ((8, "The storage order of the tensor. 0 is row major, and 1 is column major."),)},
    named._CEIL: _SIZES_OF_CEIL,
    named._DROPPED: dict.fromkeys(_POOLS, _DROPPED_TEXT),
    named._CEIL_VALID: {
        "max_pool": ((10, _VALID_CEIL.format(_EXTENT)),),
        "average_pool": ((10, _VALID_CEIL.format("kernel_spatial_shape[i]")), (11, _VALID_CEIL.format(_EXTENT))),
    },
    named._CEIL_SAME: _everywhere(_SAME_POOL, *_POOLS),
    AVERAGE: _everywhere(_DIVIDED, "average_pool"),
    COUNT_PAD: _everywhere("Whether include pad pixels when calculating values for the edges.", "average_pool"),
    AVERAGE_SIZES: _SIZES_OF_POOLS,
    UNPOOLED: _everywhere(
        "all the non-maximal values from the original input to MaxPool are set to zero in the output of the"
        " MaxUnpool op.",
        "max_unpool",
    ),
    UNPOOL_SHAPE: _everywhere(
        "The attributes typically have the same values as the corresponding pooling op that the unpooling op is"
        " trying to invert.",
        "max_unpool",
    ),
    UNPOOL_LARGER: _everywhere(
        "The third (optional) input is a tensor that specifies the output size of the unpooling operation.",
        "max_unpool",
    ),
}

_NODES = {
    "conv": "Conv",
    "conv_transpose": "ConvTranspose",
    "max_pool": "MaxPool",
    "average_pool": "AveragePool",
    "max_unpool": "MaxUnpool",
}


def quotation(rule: str, operator: str, opset: int) -> dict[str, Any] | None:
    """Return the specification's words about a rule for one version of an operator; None where it is silent."""
    texts = [text for since, text in QUOTATIONS.get(rule, {}).get(operator, ()) if since <= opset]
    if not texts:
        return None
    node = _NODES[operator]
    link = f"{_ONNX}blob/main/docs/Changelog.md#{node}-{opset}"
    return {"text": texts[-1], "operator": node, "opset": opset, "link": link}


def ruled(rule: str, operator: str, opset: int) -> Ruling:
    """Return a rule for one operator at one opset: "specified" only if that opset's text states it."""
    ruling, found = RULINGS[rule], quotation(rule, operator, opset)
    status = ruling.status
    if rule == named._DROPPED and found is None:
        status = DISPUTED  # the formula of older opsets keeps the window, onnx.reference drops it
    elif status == SPECIFIED and found is None:
        status = RULED
    return replace(ruling, status=status, sentence=_SENTENCES.get(rule, rule), quotation=found)
