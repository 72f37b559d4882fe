"""The form of a refusal, and the refusals that all operators, or both convolutions, share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tests.oracle.strategies import Problem


@dataclass(frozen=True)
class Refusal:
    """A problem that must raise; `kind` is "value" or "type"."""

    name: str
    problem: Problem
    kind: str
    message: str


X, W = (1, 4, 5, 6), (4, 4, 3, 2)
ONE_PER_AXIS = "one per spatial axis"
TWO_PER_AXIS = "two per spatial axis: all beginnings, then all ends"
NAMES = "NOTSET, SAME_UPPER, SAME_LOWER, VALID"
SAME = (
    "auto_pad must be SAME_UPPER, which puts the odd padding element at the end, or SAME_LOWER, which puts it at the "
    "beginning"
)
INTEGERS = "must be an integer or a sequence of integers such as [1, 1]"
SET, MAPPING = "a set, whose entries have no order", "a mapping, whose keys are no entries"
CROP = "crop x before the call, by slicing it or by a Pad with negative pads"
INSTEAD = {
    "conv": CROP,
    "max_pool": CROP,
    "conv_transpose": "pass output_padding or output_shape for a larger result",
}
PAIRS = "pads must be [begin axis 1, begin axis 2, …, end axis 1, …], not a pair for each axis"


def _problem(operator: str, x: Any = X, w: Any = W, b: Any = None, **attributes: Any) -> Problem:
    if operator == "max_pool":
        return Problem(operator, x, attributes={"kernel_shape": [3, 2], **attributes})
    return Problem(operator, x, w, b, attributes)


def row(name: str, operator: str, message: str, kind: str = "value", **problem: Any) -> Refusal:
    return Refusal(f"{operator}: {name}", _problem(operator, **problem), kind, f"{operator}: {message}")


def too_large(shape: tuple[int, ...], what: str = "the output shape") -> str:
    """Return the message about a result whose bytes, at up to 16 an element, 63 bits cannot count."""
    counted = ", an extent of 0 counted as 1" if 0 in shape else ""
    return (
        f"{what} {shape} has {math.prod(size or 1 for size in shape)} elements{counted}, more than the "
        "576460752303423487 that 64-bit byte offsets can address in every dtype"
    )


def of_every_operator(operator: str) -> list[Refusal]:
    """Return the refusals that the three operators share."""
    negative = f"no entry of pads may be negative, but pads={{}}; {INSTEAD[operator]}"
    rows = [
        ("a stride of 0", "strides", [0, 1], "every entry of strides must be at least 1, but strides=(0, 1)"),
        ("a negative stride", "strides", [1, -1], "every entry of strides must be at least 1, but strides=(1, -1)"),
        ("a dilation of 0", "dilations", [1, 0], "every entry of dilations must be at least 1, but dilations=(1, 0)"),
        ("a negative pad before", "pads", [-1, 0, 1, 1], negative.format((-1, 0, 1, 1))),
        ("a negative pad after", "pads", [1, 1, 1, -1], negative.format((1, 1, 1, -1))),
        ("a kernel of 0", "kernel_shape", [3, 0],
            "every entry of kernel_shape must be at least 1, but kernel_shape=(3, 0)"),
        ("too few strides", "strides", [1], f"strides must have 2 entries ({ONE_PER_AXIS}), not 1: (1,)"),
        ("too many strides", "strides", (1, 1, 1), f"strides must have 2 entries ({ONE_PER_AXIS}), not 3: (1, 1, 1)"),
        ("no strides", "strides", [], f"strides must have 2 entries ({ONE_PER_AXIS}), not 0: ()"),
        ("no dilations", "dilations", [], f"dilations must have 2 entries ({ONE_PER_AXIS}), not 0: ()"),
        ("no kernel", "kernel_shape", [], f"kernel_shape must have 2 entries ({ONE_PER_AXIS}), not 0: ()"),
        ("one pad an axis", "pads", [1, 1], f"pads must have 4 entries ({TWO_PER_AXIS}), not 2: (1, 1)"),
        ("no pads", "pads", [], f"pads must have 4 entries ({TWO_PER_AXIS}), not 0: ()"),
        ("a stride past 64 bits", "strides", [1, 2**63], f"strides must fit in 64 bits, but holds {2**63}"),
        ("a pad below 64 bits", "pads", [-(2**63), 0, 0, 0], f"pads must fit in 64 bits, but holds {-(2**63)}"),
        ("an unknown auto_pad", "auto_pad", "UPPER", f"auto_pad must be one of {NAMES}, not 'UPPER'"),
        ("half an auto_pad", "auto_pad", "SAME", f"{SAME}, not 'SAME'"),
        ("half an auto_pad in small letters", "auto_pad", b"same", f"{SAME}, not 'same'"),
        ("a bare stride of 0", "strides", 0, "every entry of strides must be at least 1, but strides=0"),
        ("a bare negative dilation", "dilations", -2, "every entry of dilations must be at least 1, but dilations=-2"),
        ("a bare kernel of 0", "kernel_shape", 0, "every entry of kernel_shape must be at least 1, but kernel_shape=0"),
        ("a bare negative pad", "pads", -1, negative.format(-1)),
        ("a bare pad past 64 bits", "pads", 2**63, f"pads must fit in 64 bits, but holds {2**63}"),
        ("an auto_pad in small letters", "auto_pad", b"valid", f"auto_pad must be one of {NAMES}, not 'valid'"),
        ("an unknown layout", "layout", "NCWH", "layout must be one of NCHW, NHWC, not 'NCWH'"),
        ("a layout in small letters", "layout", "nhwc", "layout must be one of NCHW, NHWC, not 'nhwc'"),
        ("an auto_pad beyond ASCII", "auto_pad", b"\xff", f"auto_pad must be one of {NAMES}, not '\ufffd'"),
    ]  # fmt: skip
    types = [
        ("a float stride", "strides", [1.0, 1], f"strides {INTEGERS}, not [1.0, 1]"),
        ("a bare float stride", "strides", 2.0, f"strides {INTEGERS}, not 2.0"),
        ("a text of dilations", "dilations", "11", f"dilations {INTEGERS}, not '11'"),
        ("a None among pads", "pads", [None] * 4, f"pads {INTEGERS}, not {[None] * 4}"),
        ("a float kernel", "kernel_shape", (3.0, 2), f"kernel_shape {INTEGERS}, not (3.0, 2)"),
        ("pairs of strides", "strides", [(1, 1), (1, 1)], f"strides {INTEGERS}, not [(1, 1), (1, 1)]"),
        ("a set", "strides", {2}, f"strides {INTEGERS}, not {{2}}, {SET}"),
        ("a frozen set", "pads", frozenset([1]), f"pads {INTEGERS}, not frozenset({{1}}), {SET}"),
        ("a mapping", "dilations", {2: 1, 1: 2}, f"dilations {INTEGERS}, not {{2: 1, 1: 2}}, {MAPPING}"),
        ("bytes", "strides", b"\x01\x01", f"strides {INTEGERS}, not b'\\x01\\x01', which are bytes"),
        ("an array of bytes", "pads", bytearray(4), f"pads {INTEGERS}, not {bytearray(4)}, which are bytes"),
        ("a set of pairs of pads", "pads", {(1, 2)}, f"pads {INTEGERS}, not {{(1, 2)}}, {SET}"),
        ("threes of pads", "pads", [(1, 1, 1), (1, 1, 1)], f"pads {INTEGERS}, not [(1, 1, 1), (1, 1, 1)]"),
        ("a two and a three of pads", "pads", [(1, 1), (1, 1, 1)], f"pads {INTEGERS}, not [(1, 1), (1, 1, 1)]"),
        ("a pair of pads for each axis", "pads", ((1, 2), (3, 4)), f"{PAIRS}; for ((1, 2), (3, 4)) pass [1, 3, 2, 4]"),
        ("lists of pads for each axis", "pads", [[0, 1], [0, 1]], f"{PAIRS}; for [[0, 1], [0, 1]] pass [0, 0, 1, 1]"),
        ("auto_pad None", "auto_pad", None, "auto_pad must be a string, not NoneType"),
        ("a number for auto_pad", "auto_pad", 1, "auto_pad must be a string, not int"),
        ("layout None", "layout", None, "layout must be a string, not NoneType"),
        ("bytes for layout", "layout", b"NHWC", "layout must be a string, not bytes"),
        ("a list for layout", "layout", ["NHWC"], "layout must be a string, not list"),
    ]  # fmt: skip
    return [
        *(row(name, operator, message, **{key: value}) for name, key, value, message in rows),
        *(row(name, operator, message, "type", **{key: value}) for name, key, value, message in types),
        *_contradictions(operator),
        *_too_few_axes(operator),
    ]


def _contradictions(operator: str) -> list[Refusal]:
    pads = [0, 0, 0, 1]
    return [
        row(
            f"pads with {mode}",
            operator,
            f"pads=(0, 0, 0, 1) cannot be combined with auto_pad={mode!r}; give one of them, or pads of zeros",
            auto_pad=mode,
            pads=pads,
        )
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ]


def _too_few_axes(operator: str) -> list[Refusal]:
    needed = {
        "NCHW": "a batch, a channel and at least one spatial axis (N, C, D1, …)",
        "NHWC": "a batch, at least one spatial axis and a channel (N, D1, …, C)",
    }
    return [
        row(
            f"x with {len(shape)} axes, {layout}",
            operator,
            f"x must have {axes}, but x.shape={shape}",
            x=shape,
            w=shape,
            kernel_shape=[1],
            layout=layout,
        )
        for layout, axes in needed.items()
        for shape in ((), (4,), (1, 4))
    ]


def of_both_convolutions(operator: str) -> list[Refusal]:
    return [
        row("w with fewer axes than x", operator,
            "w must have as many axes as x, but w.shape=(4, 4, 3) has 3 and x.shape=(1, 4, 5, 6) has 4", w=(4, 4, 3)),
        row("w with fewer axes than x, which is NHWC", operator,
            "w must have as many axes as x, but w.shape=(4, 4, 3) has 3 and x.shape=(1, 5, 6, 4) has 4", x=(1, 5, 6, 4),
            w=(4, 4, 3), layout="NHWC"),
        row("w with more axes than x", operator,
            "w must have as many axes as x, but w.shape=(4, 4, 3, 2, 1) has 5 and x.shape=(1, 4, 5, 6) has 4",
            w=(4, 4, 3, 2, 1)),
        row("another kernel than w's", operator,
            "kernel_shape=(2, 3) differs from the weight's (3, 2) (w.shape=(4, 4, 3, 2))", kernel_shape=[2, 3]),
        row("a square kernel for another one of w's", operator,
            "kernel_shape=(3, 3) differs from the weight's (3, 2) (w.shape=(4, 4, 3, 2))", kernel_shape=3),
        row("an empty kernel in w", operator, "every kernel extent must be at least 1, but w.shape=(4, 4, 3, 0)",
            w=(4, 4, 3, 0)),
        row("group 0", operator, "group must be at least 1, not 0", group=0),
        row("a negative group", operator, "group must be at least 1, not -2", group=-2),
        row("a group past 64 bits", operator, f"group must fit in 64 bits, but holds {2**64}", group=2**64),
        row("a float group", operator, "group must be an integer, not 2.0", "type", group=2.0),
        row("group None", operator, "group must be an integer, not None", "type", group=None),
        *(
            row(
                f"b of shape {b}",
                operator,
                f"b must have shape (4,), one value per output channel, not {b}",
                b=b,
            )
            for b in ((1,), (5,), (), (4, 1), (1, 4), (0,))
        ),
    ]  # fmt: skip
