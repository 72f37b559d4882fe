"""Every geometry that must be refused, with the kind of the error and its whole message.

The rows hold shapes and attributes only: the error tests turn the shapes into arrays for the public functions, and the
mutation engine passes them to the geometry functions of its mutants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strategies import Problem


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
INT64 = 2**63 - 1


def _problem(operator: str, x: Any = X, w: Any = W, b: Any = None, **attributes: Any) -> Problem:
    if operator == "max_pool":
        return Problem(operator, x, attributes={"kernel_shape": [3, 2], **attributes})
    return Problem(operator, x, w, b, attributes)


def _row(name: str, operator: str, message: str, kind: str = "value", **problem: Any) -> Refusal:
    return Refusal(f"{operator}: {name}", _problem(operator, **problem), kind, f"{operator}: {message}")


def _of_every_operator(operator: str) -> list[Refusal]:
    """What the three operators refuse alike."""
    rows = [
        ("a stride of 0", "strides", [0, 1], "every entry of strides must be at least 1, but strides=(0, 1)"),
        ("a negative stride", "strides", [1, -1], "every entry of strides must be at least 1, but strides=(1, -1)"),
        ("a dilation of 0", "dilations", [1, 0], "every entry of dilations must be at least 1, but dilations=(1, 0)"),
        ("a negative pad before", "pads", [-1, 0, 1, 1], "no entry of pads may be negative, but pads=(-1, 0, 1, 1)"),
        ("a negative pad after", "pads", [1, 1, 1, -1], "no entry of pads may be negative, but pads=(1, 1, 1, -1)"),
        (
            "a kernel of 0",
            "kernel_shape",
            [3, 0],
            "every entry of kernel_shape must be at least 1, but kernel_shape=(3, 0)",
        ),
        ("too few strides", "strides", [1], f"strides must have 2 entries ({ONE_PER_AXIS}), not 1: (1,)"),
        ("too many strides", "strides", (1, 1, 1), f"strides must have 2 entries ({ONE_PER_AXIS}), not 3: (1, 1, 1)"),
        ("no strides", "strides", [], f"strides must have 2 entries ({ONE_PER_AXIS}), not 0: ()"),
        ("no dilations", "dilations", [], f"dilations must have 2 entries ({ONE_PER_AXIS}), not 0: ()"),
        ("no kernel", "kernel_shape", [], f"kernel_shape must have 2 entries ({ONE_PER_AXIS}), not 0: ()"),
        ("one pad an axis", "pads", [1, 1], f"pads must have 4 entries ({TWO_PER_AXIS}), not 2: (1, 1)"),
        ("no pads", "pads", [], f"pads must have 4 entries ({TWO_PER_AXIS}), not 0: ()"),
        ("a stride past 64 bits", "strides", [1, 2**63], f"strides must fit in 64 bits, but holds {2**63}"),
        ("a pad hardly within 64 bits", "pads", [-INT64, 0, 0, 0], f"no entry of pads may be negative, but pads={(-INT64, 0, 0, 0)}"),
        ("a pad below 64 bits", "pads", [-(2**63), 0, 0, 0], f"pads must fit in 64 bits, but holds {-(2**63)}"),
        ("an unknown auto_pad", "auto_pad", "SAME", f"auto_pad must be one of {NAMES}, not 'SAME'"),
        ("an auto_pad in small letters", "auto_pad", b"valid", f"auto_pad must be one of {NAMES}, not 'valid'"),
        ("an auto_pad beyond ASCII", "auto_pad", b"\xff", f"auto_pad must be one of {NAMES}, not '\ufffd'"),
    ]
    types = [
        ("a float stride", "strides", [1.0, 1], "strides must be a sequence of integers such as [1, 1], not [1.0, 1]"),
        ("a bare stride", "strides", 2, "strides must be a sequence of integers such as [1, 1], not 2"),
        ("a text of dilations", "dilations", "11", "dilations must be a sequence of integers such as [1, 1], not '11'"),
        (
            "a None among pads",
            "pads",
            [None] * 4,
            f"pads must be a sequence of integers such as [1, 1], not {[None] * 4}",
        ),
        (
            "a float kernel",
            "kernel_shape",
            (3.0, 2),
            "kernel_shape must be a sequence of integers such as [1, 1], not (3.0, 2)",
        ),
        ("auto_pad None", "auto_pad", None, "auto_pad must be a string, not NoneType"),
        ("a number for auto_pad", "auto_pad", 1, "auto_pad must be a string, not int"),
    ]
    return [
        *(_row(name, operator, message, **{key: value}) for name, key, value, message in rows),
        *(_row(name, operator, message, "type", **{key: value}) for name, key, value, message in types),
        *_contradictions(operator),
        *_too_few_axes(operator),
    ]


def _contradictions(operator: str) -> list[Refusal]:
    pads = [0, 0, 0, 1]
    return [
        _row(
            f"pads with {mode}",
            operator,
            f"pads=(0, 0, 0, 1) cannot be combined with auto_pad={mode!r}; give one of them, or pads of zeros",
            auto_pad=mode,
            pads=pads,
        )
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ]


def _too_few_axes(operator: str) -> list[Refusal]:
    sentence = "x must have a batch, a channel and at least one spatial axis (N, C, D1, …), but x.shape="
    return [
        _row(f"x with {len(shape)} axes", operator, f"{sentence}{shape}", x=shape, w=shape, kernel_shape=[1])
        for shape in ((), (4,), (1, 4))
    ]


def _of_both_convolutions(operator: str) -> list[Refusal]:
    return [
        _row(
            "w with fewer axes than x",
            operator,
            "w must have as many axes as x, but w.shape=(4, 4, 3) has 3 and x.shape=(1, 4, 5, 6) has 4",
            w=(4, 4, 3),
        ),
        _row(
            "w with more axes than x",
            operator,
            "w must have as many axes as x, but w.shape=(4, 4, 3, 2, 1) has 5 and x.shape=(1, 4, 5, 6) has 4",
            w=(4, 4, 3, 2, 1),
        ),
        _row(
            "another kernel than w's",
            operator,
            "kernel_shape=(2, 3) differs from the weight's (3, 2) (w.shape=(4, 4, 3, 2))",
            kernel_shape=[2, 3],
        ),
        _row(
            "an empty kernel in w",
            operator,
            "every kernel extent must be at least 1, but w.shape=(4, 4, 3, 0)",
            w=(4, 4, 3, 0),
        ),
        _row("group 0", operator, "group must be at least 1, not 0", group=0),
        _row("a negative group", operator, "group must be at least 1, not -2", group=-2),
        _row("a group past 64 bits", operator, f"group must fit in 64 bits, but holds {2**64}", group=2**64),
        _row("a float group", operator, "group must be an integer, not 2.0", "type", group=2.0),
        _row("group None", operator, "group must be an integer, not None", "type", group=None),
        *(
            _row(
                f"b of shape {b}",
                operator,
                f"b must have shape (4,), one value per output channel, not {b}",
                b=b,
            )
            for b in ((1,), (5,), (), (4, 1), (1, 4), (0,))
        ),
    ]


def _negative(operator: str, situation: str, **problem: Any) -> Refusal:
    size, rest = situation.split(" for ")
    sentence = f"the output would have the negative size {size} for {rest}; pad more or shrink the kernel"
    return _row(f"a negative size, {situation}", operator, sentence, **problem)


_CONV = [
    _row(
        "too few channels",
        "conv",
        "x has 3 channels, but w expects 4 per group x group 2 = 8 (x.shape=(1, 3, 32, 32), w.shape=(16, 4, 3, 3))",
        x=(1, 3, 32, 32),
        w=(16, 4, 3, 3),
        group=2,
    ),
    _row(
        "channels of x for a w without",
        "conv",
        "x has 4 channels, but w expects 0 per group x group 1 = 0 (x.shape=(1, 4, 5, 6), w.shape=(4, 0, 3, 2))",
        w=(4, 0, 3, 2),
    ),
    _row(
        "a group that does not divide M",
        "conv",
        "w has 3 output channels, which group 2 does not divide (w.shape=(3, 2, 3, 2))",
        w=(3, 2, 3, 2),
        group=2,
    ),
    _negative(
        "conv",
        "(-1,) for input (2,), kernel (4,), strides (1,), dilations (1,) and pads (0,) before, (0,) after",
        x=(1, 1, 2),
        w=(1, 1, 4),
    ),
    _negative(
        "conv",
        "(1, -1) for input (3, 2), kernel (3, 3), strides (1, 2), dilations (1, 3) and pads (0, 1) before, (0, 0) after",
        x=(0, 0, 3, 2),
        w=(0, 0, 3, 3),
        dilations=[1, 3],
        pads=[0, 1, 0, 0],
        strides=[1, 2],
    ),
    _row(
        "an output past 64-bit byte offsets",
        "conv",
        f"the output shape (1, 2, {2**59}) has more elements than 64-bit byte offsets can address",
        x=(1, 1, 2**59),
        w=(2, 1, 1),
    ),
]

_CONV_TRANSPOSE = [
    _row(
        "too few channels",
        "conv_transpose",
        "x has 3 channels, but w expects 4 (x.shape=(1, 3, 5, 6), w.shape=(4, 4, 3, 2))",
        x=(1, 3, 5, 6),
    ),
    _row(
        "a group that does not divide C",
        "conv_transpose",
        "x has 4 channels, which group 3 does not divide (x.shape=(1, 4, 5, 6))",
        group=3,
    ),
    *(
        _row(
            f"output_padding {more} for stride 2 and dilation {dilation}",
            "conv_transpose",
            "output_padding must be 0 or less than the larger of stride and dilation, but on spatial axis 1 "
            f"it is {more} with stride 2 and dilation {dilation}",
            output_padding=[0, more],
            strides=[1, 2],
            dilations=[1, dilation],
        )
        for more, dilation in ((2, 1), (3, 3), (9, 2))
    ),
    _row(
        "an output_padding of 1 for stride 1",
        "conv_transpose",
        "output_padding must be 0 or less than the larger of stride and dilation, but on spatial axis 0 "
        "it is 1 with stride 1 and dilation 1",
        output_padding=[1, 0],
    ),
    _row(
        "a negative output_padding",
        "conv_transpose",
        "no entry of output_padding may be negative, but output_padding=(0, -1)",
        output_padding=[0, -1],
    ),
    _row(
        "no output_padding",
        "conv_transpose",
        f"output_padding must have 2 entries ({ONE_PER_AXIS}), not 0: ()",
        output_padding=[],
    ),
    _row(
        "a float output_padding",
        "conv_transpose",
        "output_padding must be a sequence of integers such as [1, 1], not [0.5, 0]",
        "type",
        output_padding=[0.5, 0],
    ),
    *(
        _row(
            f"an output_shape of {len(shape)} entries",
            "conv_transpose",
            "output_shape must have one entry per spatial axis (2), or N and C in front of them (4), "
            f"not {len(shape)}: {shape}",
            output_shape=shape,
        )
        for shape in ((), (7,), (1, 7, 7), (1, 1, 1, 7, 7))
    ),
    _row(
        "a negative output_shape",
        "conv_transpose",
        "no entry of output_shape may be negative, but output_shape=(7, -1)",
        output_shape=[1, 4, 7, -1],
    ),
    _row(
        "a bare output_shape",
        "conv_transpose",
        "output_shape must be a sequence of integers such as [1, 1], not 7",
        "type",
        output_shape=7,
    ),
    _negative(
        "conv_transpose",
        "(-1,) for input (2,), kernel (2,), strides (1,), dilations (1,) and pads (1,) before, (3,) after",
        x=(1, 1, 2),
        w=(1, 1, 2),
        pads=[1, 3],
    ),
    _negative(
        "conv_transpose",
        "(-1,) for input (0,), kernel (1,), strides (2,), dilations (1,) and pads (0,) before, (0,) after",
        x=(1, 1, 0),
        w=(1, 1, 1),
        strides=[2],
    ),
    _row(
        "an output past 64-bit byte offsets",
        "conv_transpose",
        f"the output shape (1, 1, {2**60}) has more elements than 64-bit byte offsets can address",
        x=(1, 1, 1),
        w=(1, 1, 1),
        output_shape=[2**60],
    ),
]

_MAX_POOL = [
    _row("ceil_mode 2", "max_pool", "ceil_mode must be 0 or 1, not 2", ceil_mode=2),
    _row("ceil_mode -1", "max_pool", "ceil_mode must be 0 or 1, not -1", ceil_mode=-1),
    _row("storage_order 2", "max_pool", "storage_order must be 0 or 1, not 2", storage_order=2),
    _row("storage_order -1", "max_pool", "storage_order must be 0 or 1, not -1", storage_order=-1),
    _row("a float ceil_mode", "max_pool", "ceil_mode must be an integer, not 1.0", "type", ceil_mode=1.0),
    _row(
        "a text for storage_order", "max_pool", "storage_order must be an integer, not '1'", "type", storage_order="1"
    ),
    _row(
        "kernel_shape None",
        "max_pool",
        "kernel_shape is required, a sequence of one integer per spatial axis",
        "type",
        kernel_shape=None,
    ),
    _negative(
        "max_pool",
        "(-1,) for input (2,), kernel (4,), strides (1,), dilations (1,) and pads (0,) before, (0,) after",
        x=(1, 1, 2),
        kernel_shape=[4],
    ),
    _negative(
        "max_pool",
        "(-1,) for input (2,), kernel (7,), strides (2,), dilations (1,) and pads (0,) before, (1,) after",
        x=(1, 1, 2),
        kernel_shape=[7],
        pads=[0, 1],
        strides=[2],
        ceil_mode=1,
    ),
    _row(
        "an output past 64-bit byte offsets",
        "max_pool",
        f"the output shape (2, 1, {2**59}) has more elements than 64-bit byte offsets can address",
        x=(2, 1, 2**59),
        kernel_shape=[1],
    ),
]

REFUSALS = [
    *(row for operator in ("conv", "conv_transpose", "max_pool") for row in _of_every_operator(operator)),
    *(row for operator in ("conv", "conv_transpose") for row in _of_both_convolutions(operator)),
    *_CONV,
    *_CONV_TRANSPOSE,
    *_MAX_POOL,
]
