"""The judge's own cases: AveragePool, MaxUnpool, and what the named cases leave to others."""

from __future__ import annotations

from typing import Any

from gpuconv.judge import rulings
from gpuconv.rules import cases as named
from gpuconv.rules.cases import FLOATS, Case


def _case(op: str, title: str, x: tuple[int, ...], rule: str, *, values: str = "integers", **attributes: Any) -> Case:
    return Case(f"{op}/{len(x) - 2}d/{title}", op, x, None, False, attributes, values, FLOATS, rule)


def _average(title: str, x: tuple[int, ...], kernel: list[int], rule: str, **attributes: Any) -> Case:
    return _case("average_pool", title, x, rule, kernel_shape=kernel, **attributes)


def _unpool(title: str, x: tuple[int, ...], kernel: list[int], rule: str, **attributes: Any) -> Case:
    """`x` is what MaxPool has with these attributes; its result and its Indices are unpooled."""
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
    _average("NaN", (1, 2, 7, 8), [3, 3], rulings.AVERAGE, values="nan", pads=[1, 1, 1, 1]),
    _average("infinities", (1, 2, 7, 8), [2, 3], rulings.AVERAGE, values="infinities"),
    _average("subnormals", (1, 2, 12), [4], rulings.AVERAGE, values="subnormals"),
    _average("extremes", (1, 2, 12), [2], rulings.AVERAGE, values="extremes"),
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
    _average("ceil_mode with a rest", (1, 2, 6, 8), [3, 3], rulings.AVERAGE_SIZES, ceil_mode=1, strides=[2, 2]),
    _average("ceil_mode drops a window", (1, 1, 4), [2], rulings.AVERAGE_SIZES, ceil_mode=1, strides=[2], pads=[0, 1]),
    _average("ceil_mode with VALID", (1, 2, 6), [3], named._CEIL_VALID, ceil_mode=1, strides=[2], auto_pad="VALID"),
    _average("dilations", (1, 2, 10), [3], rulings.AVERAGE_SIZES, dilations=[3]),
    _average("dilations with pads", (1, 2, 8, 9), [3, 2], rulings.AVERAGE_SIZES, dilations=[2, 3], pads=[1, 2, 2, 1]),
    _average("SAME_UPPER with an odd total", (1, 2, 7), [4], rulings.AVERAGE_SIZES, auto_pad="SAME_UPPER"),
    _average("SAME_LOWER with an odd total", (1, 2, 7), [4], rulings.AVERAGE_SIZES, auto_pad="SAME_LOWER"),
    _average("SAME_LOWER with dilation", (1, 2, 9), [2], rulings.AVERAGE_SIZES, auto_pad="SAME_LOWER", dilations=[3]),
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

# Of AveragePool those above, which say more of what others do.
_NAMED = tuple(case for case in named.CASES if case.op != "average_pool")
CASES: tuple[Case, ...] = (*_NAMED, *_MORE, *_AVERAGE, *_MAX_UNPOOL)
