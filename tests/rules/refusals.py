"""Every geometry that must be refused, with the kind of the error and its whole message.

The rows hold only shapes and attributes: the error tests turn the shapes into arrays for the public functions, and the
mutation engine passes them to the geometry functions of its mutants.
"""

from __future__ import annotations

from typing import Any

from tests.rules.refusal_rows import (
    CROP,
    ONE_PER_AXIS,
    Refusal,
    of_both_convolutions,
    of_every_operator,
    row,
    too_large,
)


def _negative(operator: str, situation: str, **problem: Any) -> Refusal:
    size, rest = situation.split(" for ")
    sentence = f"the output would have the negative size {size} for {rest}; pad more or shrink the kernel"
    return row(f"a negative size, {situation}", operator, sentence, **problem)


_LOWEST = -(2**63 - 1)  # the lowest number whose negative also fits 64 bits

_CONV = [
    row("a pad hardly within 64 bits", "conv",
        f"no entry of pads may be negative, but pads=({_LOWEST}, 0, 0, 0); {CROP}", pads=[_LOWEST, 0, 0, 0]),
    row("too few channels", "conv",
        "x has 3 channels, but w expects 4 per group x group 2 = 8 (x.shape=(1, 3, 32, 32), w.shape=(16, 4, 3, 3))",
        x=(1, 3, 32, 32), w=(16, 4, 3, 3), group=2),
    row("too few channels, NHWC", "conv",
        "x has 3 channels, but w expects 4 per group x group 2 = 8 (x.shape=(1, 30, 32, 3), w.shape=(16, 4, 3, 3))",
        x=(1, 30, 32, 3), w=(16, 4, 3, 3), group=2, layout="NHWC"),
    row("channels that are last", "conv",
        "x has 32 channels, but w expects 3 per group x group 1 = 3 (x.shape=(1, 32, 30, 3), w.shape=(16, 3, 3, 3)); "
        'pass layout="NHWC" if the channels of x are last', x=(1, 32, 30, 3), w=(16, 3, 3, 3)),
    row("channels that are second, NHWC", "conv",
        "x has 30 channels, but w expects 2 per group x group 2 = 4 (x.shape=(1, 4, 30), w.shape=(16, 2, 3)); "
        'pass layout="NCHW" if the channels of x are second', x=(1, 4, 30), w=(16, 2, 3), group=2, layout="NHWC"),
    row("channels of x for a w without", "conv",
        "x has 4 channels, but w expects 0 per group x group 1 = 0 (x.shape=(1, 4, 5, 6), w.shape=(4, 0, 3, 2))",
        w=(4, 0, 3, 2)),
    row("a group that does not divide M", "conv",
        "w has 3 output channels, which group 2 does not divide (w.shape=(3, 2, 3, 2))", w=(3, 2, 3, 2), group=2),
    _negative("conv",
        "(-1,) for input (2,), kernel (4,), strides (1,), dilations (1,) and pads (0,) before, (0,) after",
        x=(1, 1, 2), w=(1, 1, 4)),
    _negative("conv", "(1, -1) for input (3, 2), kernel (3, 3), strides (1, 2), dilations (1, 3) "
        "and pads (0, 1) before, (0, 0) after", x=(0, 0, 3, 2), w=(0, 0, 3, 3), dilations=[1, 3], pads=[0, 1, 0, 0],
        strides=[1, 2]),
    row("an output past 64-bit byte offsets", "conv", too_large((1, 2, 2**59)), x=(1, 1, 2**59), w=(2, 1, 1)),
    row("an output past 64-bit byte offsets, NHWC", "conv", too_large((1, 2**59, 2)), x=(1, 2**59, 1), w=(2, 1, 1),
        layout="NHWC"),
    row("an empty output past 64-bit byte offsets", "conv", too_large((0, 2, 2**59)), x=(0, 1, 1), w=(2, 1, 1),
        pads=[2**58, 2**58 - 1]),
    row("no filters past 64-bit byte offsets", "conv", too_large((1, 0, 2**63)), x=(1, 1, 1), w=(0, 1, 1),
        pads=[2**62, 2**62 - 1]),
]  # fmt: skip

_CONV_TRANSPOSE = [
    row("too few channels, NHWC", "conv_transpose",
        "x has 3 channels, but w expects 4 (x.shape=(1, 5, 6, 3), w.shape=(4, 4, 3, 2))", x=(1, 5, 6, 3),
        layout="NHWC"),
    row("a group that does not divide C, NHWC", "conv_transpose",
        "x has 4 channels, which group 3 does not divide (x.shape=(1, 5, 6, 4))", x=(1, 5, 6, 4), group=3,
        layout="NHWC"),
    row("too few channels", "conv_transpose",
        "x has 3 channels, but w expects 4 (x.shape=(1, 3, 5, 6), w.shape=(4, 4, 3, 2))", x=(1, 3, 5, 6)),
    row("channels that are last", "conv_transpose",
        "x has 5 channels, but w expects 4 (x.shape=(1, 5, 6, 4), w.shape=(4, 4, 3, 2)); "
        'pass layout="NHWC" if the channels of x are last', x=(1, 5, 6, 4)),
    row("a group that does not divide C", "conv_transpose",
        "x has 4 channels, which group 3 does not divide (x.shape=(1, 4, 5, 6))", group=3),
    *(
        row(
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
    row("an output_padding of 1 for stride 1", "conv_transpose",
        "output_padding must be 0 or less than the larger of stride and dilation, but on spatial axis 0 "
        "it is 1 with stride 1 and dilation 1", output_padding=[1, 0]),
    row("a negative output_padding", "conv_transpose",
        "no entry of output_padding may be negative, but output_padding=(0, -1)", output_padding=[0, -1]),
    row("a bare output_padding of the stride", "conv_transpose",
        "output_padding must be 0 or less than the larger of stride and dilation, but on spatial axis 0 "
        "it is 2 with stride 2 and dilation 1", output_padding=2, strides=2),
    row("no output_padding", "conv_transpose", f"output_padding must have 2 entries ({ONE_PER_AXIS}), not 0: ()",
        output_padding=[]),
    row("a float output_padding", "conv_transpose",
        "output_padding must be an integer or a sequence of integers such as [1, 1], not [0.5, 0]", "type",
        output_padding=[0.5, 0]),
    *(
        row(
            f"an output_shape of {len(shape)} entries",
            "conv_transpose",
            "output_shape must have one entry per spatial axis (2), or N and C in front of them (4), "
            f"not {len(shape)}: {shape}",
            output_shape=shape,
        )
        for shape in ((), (7,), (1, 7, 7), (1, 1, 1, 7, 7))
    ),
    row("a negative output_shape", "conv_transpose",
        "no entry of output_shape may be negative, but output_shape=(7, -1)", output_shape=[1, 4, 7, -1]),
    row("a bare output_shape", "conv_transpose", "output_shape must be a sequence of integers such as [1, 1], not 7",
        "type", output_shape=7),
    _negative("conv_transpose",
        "(-1,) for input (2,), kernel (2,), strides (1,), dilations (1,) and pads (1,) before, (3,) after",
        x=(1, 1, 2), w=(1, 1, 2), pads=[1, 3]),
    _negative("conv_transpose",
        "(-1,) for input (0,), kernel (1,), strides (2,), dilations (1,) and pads (0,) before, (0,) after",
        x=(1, 1, 0), w=(1, 1, 1), strides=[2]),
    row("an output past 64-bit byte offsets", "conv_transpose", too_large((1, 1, 2**60)), x=(1, 1, 1), w=(1, 1, 1),
        output_shape=[2**60]),
    row("an output past 64-bit byte offsets, NHWC", "conv_transpose", too_large((1, 2**59, 2)), x=(1, 1, 1),
        w=(1, 2, 1), output_shape=[2**59], layout="NHWC"),
]  # fmt: skip

_MAX_POOL = [
    row("ceil_mode 2", "max_pool", "ceil_mode must be 0 or 1, not 2", ceil_mode=2),
    row("ceil_mode -1", "max_pool", "ceil_mode must be 0 or 1, not -1", ceil_mode=-1),
    row("storage_order 2", "max_pool", "storage_order must be 0 or 1, not 2", storage_order=2),
    row("storage_order -1", "max_pool", "storage_order must be 0 or 1, not -1", storage_order=-1),
    row("a float ceil_mode", "max_pool", "ceil_mode must be an integer, not 1.0", "type", ceil_mode=1.0),
    row("an unknown numbering", "max_pool", "indices_in must be one of tensor, plane, not 'all'", indices_in="all"),
    row("a number for a numbering", "max_pool", "indices_in must be a string, not 1", "type", indices_in=1),
    row("a text for storage_order", "max_pool", "storage_order must be an integer, not '1'", "type", storage_order="1"),
    row("kernel_shape None", "max_pool",
        "kernel_shape is required, one integer per spatial axis or one for all of them", "type", kernel_shape=None),
    _negative("max_pool",
        "(-1,) for input (2,), kernel (4,), strides (1,), dilations (1,) and pads (0,) before, (0,) after",
        x=(1, 1, 2), kernel_shape=[4]),
    _negative("max_pool",
        "(-1,) for input (2,), kernel (7,), strides (2,), dilations (1,) and pads (0,) before, (1,) after",
        x=(1, 1, 2), kernel_shape=[7], pads=[0, 1], strides=[2], ceil_mode=1),
    row("an output past 64-bit byte offsets", "max_pool", too_large((2, 1, 2**59)), x=(2, 1, 2**59),
        kernel_shape=[1]),
    row("an output past 64-bit byte offsets, NHWC", "max_pool", too_large((2, 2**58, 3)), x=(2, 2**58, 3),
        kernel_shape=[1], layout="NHWC"),
]  # fmt: skip

REFUSALS = [
    *(refusal for operator in ("conv", "conv_transpose", "max_pool") for refusal in of_every_operator(operator)),
    *(refusal for operator in ("conv", "conv_transpose") for refusal in of_both_convolutions(operator)),
    *_CONV,
    *_CONV_TRANSPOSE,
    *_MAX_POOL,
]
