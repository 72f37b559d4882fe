"""The cases of the suite: gpuconv's named cases, reduced to one plane, and those of AveragePool and MaxUnpool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuconv.judge import rulings
from gpuconv.rules import cases as named
from gpuconv.rules.cases import ALL, FLOATS, Case


def _case(op: str, title: str, x: tuple[int, ...], rule: str, *, values: str = "integers", **attributes: Any) -> Case:
    return Case(f"{op}/{len(x) - 2}d/{title}", op, x, None, False, attributes, values, FLOATS, rule)


def _average(title: str, x: tuple[int, ...], kernel: list[int], rule: str, **attributes: Any) -> Case:
    return _case("average_pool", title, x, rule, kernel_shape=kernel, **attributes)


def _unpool(title: str, x: tuple[int, ...], kernel: list[int], rule: str, **attributes: Any) -> Case:
    """`x` is the input shape of a MaxPool with these attributes, whose result and Indices are unpooled."""
    return _case("max_unpool", title, x, rule, kernel_shape=kernel, **attributes)


_MORE = (
    Case("conv/1d/kernel_shape missing", "conv", (1, 2, 7), (3, 2, 3), True, {}, "integers", FLOATS,
         rulings.KERNEL_MISSING),
    Case("conv/2d/a kernel without symmetry", "conv", (1, 1, 4, 5), (1, 1, 2, 3), False, {}, "integers", FLOATS,
         rulings.CORRELATION),
    Case("conv_transpose/1d/kernel_shape missing", "conv_transpose", (1, 2, 5), (2, 3, 3), True, {"strides": [2]},
         "integers", FLOATS, rulings.KERNEL_MISSING),
    Case("conv_transpose/2d/a kernel without symmetry", "conv_transpose", (1, 1, 3, 4), (1, 1, 2, 3), False, {},
         "integers", FLOATS, rulings.CORRELATION),
    Case("conv/1d/an infinity between dilated taps", "conv", (1, 1, 9), (2, 1, 2), True, {"dilations": [3]},
         "infinities", FLOATS, named._IEEE),
    Case("conv/1d/sums beyond the largest", "conv", (2, 2, 8), (3, 2, 3), True, {"pads": [1, 0]}, "overflow", FLOATS,
         rulings.OVERFLOWING),
    Case("conv/2d/sums beyond the largest", "conv", (2, 2, 4, 5), (2, 2, 2, 2), False, {}, "overflow", FLOATS,
         rulings.OVERFLOWING),
    Case("conv_transpose/2d/sums beyond the largest", "conv_transpose", (2, 3, 3, 3), (3, 2, 2, 2), True, {},
         "overflow", FLOATS, rulings.OVERFLOWING),
    Case("conv/2d/pads far beyond the kernel", "conv", (1, 1, 3, 2), (2, 1, 2, 2), True, {"pads": [9, 0, 0, 11]},
         "integers", FLOATS, named._BIG_PADS),
    Case("max_pool/1d/windows of two channels in the padding only", "max_pool", (1, 2, 1), None, False,
         {"kernel_shape": [1], "strides": [2], "pads": [1, 1]}, "integers", ALL, named._NO_ELEMENT),
)  # fmt: skip

_AVERAGE = (
    _average("plain", (2, 3, 10), [3], rulings.AVERAGE),
    _average("plain", (2, 3, 6, 7), [3, 2], rulings.AVERAGE, strides=[2, 1]),
    _average("plain", (1, 2, 4, 5, 6), [2, 3, 2], rulings.AVERAGE, strides=[1, 2, 2]),
    _average("plain", (1, 1, 3, 4, 3, 4), [2, 2, 1, 3], rulings.AVERAGE),
    _average("plain", (1, 1, 3, 2, 3, 2, 3), [2, 1, 2, 2, 1], rulings.AVERAGE, strides=[1, 1, 1, 1, 2]),
    _average("pads", (1, 2, 7), [3], rulings.AVERAGE, pads=[1, 1], strides=[2]),
    _average("pads", (1, 2, 5, 6), [3, 3], rulings.AVERAGE, pads=[1, 1, 1, 1]),
    _average("asymmetric pads", (1, 2, 5, 6), [3, 2], rulings.AVERAGE, pads=[2, 0, 0, 1], strides=[2, 1]),
    _average("NaN", (1, 2, 7, 8), [3, 3], named._IEEE, values="nan", pads=[1, 1, 1, 1]),
    _average("infinities", (1, 2, 7, 8), [2, 3], named._IEEE, values="infinities"),
    _average("subnormals", (1, 2, 12), [4], named._SUBNORMAL, values="subnormals"),
    _average("extremes", (1, 2, 12), [2], rulings.OVERFLOWING, values="extremes"),
    _average("pads that count", (1, 2, 7), [3], rulings.COUNT_PAD, pads=[1, 1], count_include_pad=1),
    _average("pads that count", (1, 2, 5, 6), [3, 3], rulings.COUNT_PAD, pads=[1, 1, 1, 1], count_include_pad=1),
    _average("asymmetric pads that count", (1, 2, 5, 6), [3, 2], rulings.COUNT_PAD, pads=[2, 0, 0, 1],
             count_include_pad=1, strides=[2, 1]),
    _average("pads that count", (1, 1, 3, 4, 3), [2, 2, 2], rulings.COUNT_PAD, pads=[1, 0, 1, 1, 1, 0],
             count_include_pad=1),
    _average("pads that count, a window in the padding", (1, 1, 3), [2], rulings.COUNT_PAD, pads=[3, 2],
             count_include_pad=1),
    _average("SAME_UPPER that counts", (1, 2, 7), [4], rulings.COUNT_PAD, auto_pad="SAME_UPPER", count_include_pad=1),
    _average("SAME_LOWER that counts", (1, 2, 6, 7), [3, 2], rulings.COUNT_PAD, auto_pad="SAME_LOWER", strides=[2, 2],
             count_include_pad=1),
    _average("an overhang", (1, 2, 6), [3], rulings.OVERHANG, ceil_mode=1, strides=[2]),
    _average("an overhang beside pads that count", (1, 2, 6), [3], rulings.OVERHANG, ceil_mode=1, strides=[2],
             pads=[1, 0], count_include_pad=1),
    _average("an overhang of a long kernel beside pads", (1, 1, 9), [7], rulings.OVERHANG, ceil_mode=1, strides=[3],
             pads=[3, 3], count_include_pad=1),
    _average("an overhang", (1, 2, 4, 5), [3, 3], rulings.OVERHANG, ceil_mode=1, strides=[2, 3]),
    _average("an overhang that would count", (1, 2, 4, 5), [3, 3], rulings.OVERHANG, ceil_mode=1, strides=[2, 3],
             count_include_pad=1),
    _average("an overhang beside pads that count", (1, 2, 4, 5), [3, 2], rulings.OVERHANG, ceil_mode=1, strides=[3, 2],
             pads=[1, 0, 1, 1], count_include_pad=1),
    _average("pads beyond the kernel", (1, 1, 5), [2], rulings.NO_TAP, pads=[2, 3], strides=[2]),
    _average("pads beyond the kernel", (1, 2, 3, 2), [2, 2], rulings.NO_TAP, pads=[3, 0, 0, 2]),
    _average("a dilated window around the input", (1, 1, 3), [2], rulings.NO_TAP, dilations=[4], pads=[1, 1]),
    _average("ceil_mode with a rest", (1, 2, 6, 8), [3, 3], named._CEIL, ceil_mode=1, strides=[2, 2]),
    _average("ceil_mode drops a window", (1, 1, 4), [2], named._DROPPED, ceil_mode=1, strides=[2], pads=[0, 1]),
    _average("ceil_mode with VALID", (1, 2, 6), [3], named._CEIL_VALID, ceil_mode=1, strides=[2], auto_pad="VALID"),
    _average("dilations", (1, 2, 10), [3], rulings.AVERAGE_SIZES, dilations=[3]),
    _average("dilations with pads", (1, 2, 8, 9), [3, 2], rulings.AVERAGE_SIZES, dilations=[2, 3], pads=[1, 2, 2, 1]),
    _average("SAME_UPPER with an odd total", (1, 2, 7), [4], named._ODD_SAME, auto_pad="SAME_UPPER"),
    _average("SAME_LOWER with an odd total", (1, 2, 7), [4], named._ODD_SAME, auto_pad="SAME_LOWER"),
    _average("SAME_LOWER with dilation", (1, 2, 9), [2], named._SAME_DILATED, auto_pad="SAME_LOWER", dilations=[3]),
    _average("an output of size 0", (2, 3, 4, 2), [3, 3], named._EMPTY),
    _average("batch 0", (0, 3, 5, 5), [2, 2], named._NOTHING),
)  # fmt: skip

_MAX_UNPOOL = (
    _unpool("plain", (2, 2, 8), [2], rulings.UNPOOLED, strides=[2]),
    _unpool("plain", (2, 3, 6, 8), [2, 2], rulings.UNPOOLED, strides=[2, 2]),
    _unpool("plain", (1, 2, 4, 4, 6), [2, 2, 3], rulings.UNPOOLED, strides=[2, 2, 3]),
    _unpool("plain", (1, 2, 2, 4, 2, 3), [2, 2, 1, 3], rulings.UNPOOLED, strides=[2, 2, 1, 3]),
    _unpool("plain", (1, 1, 2, 2, 2, 3, 2), [1, 2, 2, 1, 2], rulings.UNPOOLED, strides=[1, 2, 2, 1, 2]),
    _unpool("NaN", (1, 2, 4, 6), [2, 2], rulings.UNPOOLED, strides=[2, 2], values="nan"),
    _unpool("a kernel above the stride", (1, 2, 7), [3], rulings.UNPOOL_SHAPE, strides=[2]),
    _unpool("pads", (1, 2, 8, 6), [2, 2], rulings.UNPOOL_SHAPE, strides=[2, 2], pads=[1, 0, 1, 0]),
    _unpool("output_shape that the attributes give, too", (1, 2, 6, 4), [2, 2], rulings.UNPOOL_SHAPE, strides=[2, 2],
            output_shape=[1, 2, 6, 4]),
    _unpool("a larger output_shape", (1, 1, 6), [2], rulings.UNPOOL_LARGER, strides=[2], output_shape=[1, 1, 7]),
    _unpool("a larger output_shape", (1, 2, 4, 4), [2, 2], rulings.UNPOOL_LARGER, strides=[2, 2],
            output_shape=[1, 2, 5, 5]),
)  # fmt: skip

# ---------------------------------------------------------------- the named cases, each about one rule

_OTHER_RULES = {
    "conv/1d/a window too long by less than the stride": rulings.TOO_LONG,
    "max_pool/1d/a window too long by less than the stride": rulings.TOO_LONG,
    "max_pool/2d/ceil_mode with a rest, negative values": named._DROPPED,  # one axis has a window to be dropped
}
# A file does not distinguish bytes from text; other cases cover the rest of these.
_LEFT_OUT = {f"{op}/2d/auto_pad in bytes" for op in ("conv", "conv_transpose", "max_pool")}

# Spatial sizes of cases whose single plane would otherwise be too small.
_SIZES = {"max_pool/1d/NaN": (24,)}

# Rules that need several images, channels and groups. All other cases have one image and one input channel, so that
# faults in batch, channel and index arithmetic do not interfere.
_OF_PLANES = {
    named._LAYOUT,
    named._T_LAYOUT,
    named._GATHER,
    named._BIAS,
    named._KERNEL,
    named._RANKS,
    named._EXACT,
    named._ONCE,
    named._NO_TF32,
    named._OVERFLOW,
    named._NOTHING,
    named._INDICES,
    named._COLUMNS,
    named._PADDING,
    rulings.KERNEL_MISSING,
    rulings.CORRELATION,
    rulings.OVERFLOWING,
    rulings.UNPOOLED,
    rulings.UNPOOL_SHAPE,
    rulings.UNPOOL_LARGER,
}


# Rules of MaxPool that padding does not affect.
_WITHOUT_PADS = {named._TIES, named._ZEROS, named._TINY, named._BITS, named._NAN, named._MINUS_INF}


def _of_one_rule(case: Case) -> Case:
    """Return a case with one image and one input channel, unless its rule needs more."""
    rule = _OTHER_RULES.get(case.name, case.rule)
    if (
        rule in _OF_PLANES
        or "two channels in" in case.name
        or case.attributes.get("group", 1) > 1
        or 0 in case.x_shape[:2]
    ):
        return replace(case, rule=rule)
    if rule in _WITHOUT_PADS and "no element" not in case.name:
        case = replace(case, attributes={name: value for name, value in case.attributes.items() if name != "pads"})
    w_shape = case.w_shape
    if w_shape is not None and case.op == "conv":
        w_shape = (w_shape[0], 1, *w_shape[2:])
    elif w_shape is not None:
        w_shape = (1, *w_shape[1:])
    # Each plane of an output of size 0 has no elements: the number of planes is its only content.
    planes = case.x_shape[:2] if rule == named._EMPTY and w_shape is None else (1, 1)
    return replace(case, rule=rule, x_shape=(*planes, *_SIZES.get(case.name, case.x_shape[2:])), w_shape=w_shape)


# AveragePool has the cases above instead.
_NAMED = tuple(case for case in named.CASES if case.op != "average_pool" and case.name not in _LEFT_OUT)
CASES: tuple[Case, ...] = tuple(map(_of_one_rule, (*_NAMED, *_MORE, *_AVERAGE, *_MAX_UNPOOL)))
