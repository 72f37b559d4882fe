"""Wrong calls of the gradients and of unpooling, in rows, with the whole message that each must raise."""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuconv
from gpuconv import ArgumentError, ArgumentTypeError
from tests.rules.refusal_rows import too_large
from tests.rules.wrong_calls import Wrong

F = np.float32
X, W, DY = np.ones((1, 4, 5, 6), F), np.ones((6, 2, 3, 3), F), np.ones((1, 6, 3, 4), F)
GROUP = {"group": 2}
INDICES = np.zeros((1, 2, 2), np.int64)
MAXIMA = np.ones((1, 2, 2), F)
NUMBERS = "but the elements of (1, 2, 4) (N, C, D1, …) have the numbers 0 to 7, and -1 stands for none"
CURE = "; if they count within each plane, as PyTorch's do, pass indices_in='plane', or add 4 * (n * 2 + c)"


def numbers(*numbers: int) -> Any:
    return np.array(numbers, np.int64).reshape(1, 2, 2)


ROWS: list[tuple[str, str, tuple[Any, ...], dict[str, Any], str, str]] = [
    ("a dy of another shape", "conv_input_grad", (X, W, X.shape), GROUP, "value",
        "dy must have the shape of the result (1, 6, 3, 4), not (1, 4, 5, 6)"),
    ("a dy of another layout", "conv_weight_grad", (np.ones((1, 5, 6, 4), F), DY, W.shape), {**GROUP, "layout": "NHWC"},
        "value", "dy must have the shape of the result (1, 3, 4, 6), not (1, 6, 3, 4)"),
    ("an x_shape of other channels", "conv_input_grad", (DY, W, (1, 3, 5, 6)), GROUP, "value",
        "x has 3 channels, but w expects 2 per group x group 2 = 4 (x.shape=(1, 3, 5, 6), w.shape=(6, 2, 3, 3))"),
    ("no x_shape", "conv_input_grad", (DY, W, None), GROUP, "type",
        "x_shape is required, the shape of the array whose gradient is asked for"),
    ("an x_shape of words", "conv_input_grad", (DY, W, "abcd"), GROUP, "type",
        "x_shape must be a sequence of integers such as [1, 1], not 'abcd'"),
    ("a negative x_shape", "conv_input_grad", (DY, W, (1, 4, -5, 6)), GROUP, "value",
        "no entry of x_shape may be negative, but x_shape=(1, 4, -5, 6)"),
    ("a w_shape without taps", "conv_weight_grad", (X, DY, (6, 2, 0, 3)), GROUP, "value",
        "every kernel extent must be at least 1, but w.shape=(6, 2, 0, 3)"),
    ("a stride of 0", "conv_transpose_input_grad", (X, W, DY.shape), {"strides": [0, 1]}, "value",
        "every entry of strides must be at least 1, but strides=(0, 1)"),
    ("dtypes that differ", "conv_weight_grad", (X, DY.astype("float64"), W.shape), GROUP, "type",
        "dy has dtype float64, but x has float32; all arrays must share one dtype"),
    ("integers", "conv_bias_grad", (np.ones((1, 2, 3), np.int32),), {}, "type",
        "dy has dtype int32, but must be one of float16, bfloat16, float32, float64, complex64, complex128"),
    ("a dy without space", "conv_transpose_bias_grad", (np.ones((1, 2), F),), {}, "value",
        "dy must have a batch, a channel and at least one spatial axis, but dy.shape=(1, 2)"),
    ("an unknown layout", "conv_bias_grad", (DY,), {"layout": "CHW"}, "value",
        "layout must be one of NCHW, NHWC, not 'CHW'"),
    ("an unknown precision", "conv_input_grad", (DY, W, X.shape), {**GROUP, "precision": "half"}, "value",
        "precision must be one of ieee, tf32, 3xtf32, not 'half'"),
    ("no array", "conv_weight_grad", (X, [1.0], W.shape), GROUP, "type",
        "dy must be a NumPy or CuPy array, not builtins.list"),
    ("indices of another shape", "max_pool_grad", (MAXIMA, INDICES[:, :1], (1, 2, 4)),
        {"kernel_shape": [2], "strides": [2]}, "value", "indices must have the shape of dy (1, 2, 2), not (1, 1, 2)"),
    ("a dy of another pooling", "max_pool_grad", (MAXIMA, INDICES, (1, 2, 4)), {"kernel_shape": [2]}, "value",
        "dy must have the shape of the result (1, 2, 3), not (1, 2, 2)"),
    ("indices of 32 bits", "max_pool_grad", (MAXIMA, INDICES.astype(np.int32), (1, 2, 4)),
        {"kernel_shape": [2], "strides": [2]}, "type", "indices must have dtype int64, not int32"),
    ("an index past the end", "max_pool_grad", (MAXIMA, numbers(0, 2, 8, 4), (1, 2, 4)),
        {"kernel_shape": [2], "strides": [2]}, "value", f"indices hold 8 at (0, 1, 0), {NUMBERS}"),
    ("an index below -1", "max_unpool", (MAXIMA, numbers(0, -2, 1, -1)), {"kernel_shape": [2], "strides": [2]}, "value",
        f"indices hold -2 at (0, 0, 1), {NUMBERS}"),
    ("an index outside its window", "max_pool_grad", (MAXIMA, numbers(0, 2, 4, 3), (1, 2, 4)),
        {"kernel_shape": [2], "strides": [2]}, "value",
        f"indices hold 3 at (0, 1, 1), the number of an element of (1, 2, 4) (N, C, D1, …) outside that window{CURE}"),
    ("an index of a later window", "max_pool_grad", (MAXIMA, numbers(2, 2, 6, 6), (1, 2, 4)),
        {"kernel_shape": [2], "strides": [2]}, "value",
        "indices hold 2 at (0, 0, 0), the number of an element of (1, 2, 4) (N, C, D1, …) outside that window; "
        "pass the Indices and the attributes of the forward call"),
    ("indices within planes", "max_unpool", (MAXIMA, numbers(0, 2, 1, 3)), {"kernel_shape": [2], "strides": [2]},
        "value",
        f"indices hold 1 at (0, 1, 0), the number of an element of (1, 2, 4) (N, C, D1, …) outside that window{CURE}"),
    ("indices of the whole tensor", "max_unpool", (MAXIMA, numbers(0, 2, 5, 7)),
        {"kernel_shape": [2], "strides": [2], "indices_in": "plane"}, "value",
        "indices hold 5 at (0, 1, 0), but the elements of a plane (4,) have the numbers 0 to 3, and -1 stands for "
        "none; if they count through the whole tensor, as in ONNX, leave indices_in='plane' out"),
    ("an index outside its window of the only plane", "max_unpool", (np.ones((1, 1, 2), F), np.array([[[2, 0]]])),
        {"kernel_shape": [2], "strides": [2], "pads": [1, 1]}, "value",
        "indices hold 2 at (0, 0, 0), but the elements of (1, 1, 2) (N, C, D1, …) have the numbers 0 to 1, "
        "and -1 stands for none"),
    ("an index before its window, channels last", "max_unpool", (np.ones((1, 2, 1), F), np.array([[[0], [1]]])),
        {"kernel_shape": [2], "strides": [2], "layout": "NHWC"}, "value",
        "indices hold 1 at (0, 1, 0), the number of an element of (1, 1, 4) (N, C, D1, …) outside that window; "
        "pass the Indices and the attributes of the forward call"),
    ("an index into an empty plane", "max_unpool", (MAXIMA[:, :1], np.array([[[-1, 0]]])),
        {"kernel_shape": [1], "strides": [1], "pads": [1, 1]}, "value",
        "indices hold 0 at (0, 0, 1), but (1, 1, 0) (N, C, D1, …) has no elements, so that all must be -1"),
    ("an unknown numbering", "max_pool_grad", (MAXIMA, INDICES, (1, 2, 4)),
        {"kernel_shape": [2], "strides": [2], "indices_in": "image"}, "value",
        "indices_in must be one of tensor, plane, not 'image'"),
    ("a numbering that is no text", "max_unpool", (MAXIMA, INDICES),
        {"kernel_shape": [2], "strides": [2], "indices_in": ["plane"]}, "type",
        "indices_in must be a string, not ['plane']"),
    ("a negative output_shape", "max_unpool", (MAXIMA, INDICES, (-3,)),
        {"kernel_shape": [2], "strides": [2], "indices_in": "plane"}, "value",
        "no entry of output_shape may be negative, but output_shape=(-3,)"),
    ("no kernel_shape", "max_unpool", (MAXIMA, INDICES), {"kernel_shape": None}, "type",
        "kernel_shape is required, one integer per spatial axis or one for all of them"),
    ("a kernel of 0", "max_unpool", (MAXIMA, INDICES), {"kernel_shape": [0]}, "value",
        "every entry of kernel_shape must be at least 1, but kernel_shape=(0,)"),
    ("a bare kernel of 0", "max_unpool", (MAXIMA, INDICES), {"kernel_shape": 0}, "value",
        "every entry of kernel_shape must be at least 1, but kernel_shape=0"),
    ("an x_shape that is a number", "conv_input_grad", (DY, W, 4), GROUP, "type",
        "x_shape must be a sequence of integers such as [1, 1], not 4"),
    ("a bare output_shape", "max_unpool", (MAXIMA, INDICES, 4), {"kernel_shape": 2}, "type",
        "output_shape must be a sequence of integers such as [1, 1], not 4"),
    ("a y without space", "max_unpool", (MAXIMA[0], INDICES[0]), {"kernel_shape": []}, "value",
        "y must have a batch, a channel and at least one spatial axis, but y.shape=(2, 2)"),
    ("a small output_shape", "max_unpool", (MAXIMA, INDICES, (3,)), {"kernel_shape": [2], "strides": [2]}, "value",
        "output_shape (3,) is smaller than (4,), which the attributes give and Indices number"),
    ("a long output_shape", "max_unpool", (MAXIMA, INDICES, (2, 4)), {"kernel_shape": [2]}, "value",
        "output_shape must have one entry per spatial axis (1), or N and C in front of them (3), not 2: (2, 4)"),
    ("indices of 16 bits", "max_unpool", (MAXIMA, INDICES.astype(np.int16)), {"kernel_shape": [2]}, "type",
        "indices must have dtype int64, not int16"),
    ("complex maxima", "max_unpool", (MAXIMA.astype(np.complex64), INDICES), {"kernel_shape": [2]}, "type",
        "y has dtype complex64, but must be one of float16, bfloat16, float32, float64, int8, uint8"),
    ("an x_shape past 64-bit byte offsets", "conv_input_grad",
        (np.ones((1, 1, 1), F), np.ones((1, 1, 1), F), (1, 1, 2**62)), {"strides": [2**62]}, "value",
        too_large((1, 1, 2**62), "x_shape")),
    ("an empty x_shape past 64-bit byte offsets", "max_pool_grad",
        (np.ones((0, 1, 1), F), np.ones((0, 1, 1), np.int64), (0, 1, 2**60)), {"kernel_shape": [1], "strides": [2**60]},
        "value", too_large((0, 1, 2**60), "x_shape")),
    ("a w_shape past 64-bit byte offsets", "conv_weight_grad",
        (np.ones((1, 0, 1), F), np.ones((1, 1, 1), F), (1, 0, 2**60 + 1)), {"pads": [2**60, 0]}, "value",
        too_large((1, 0, 2**60 + 1), "w_shape")),
    ("an output_shape past 64-bit byte offsets", "max_unpool",
        (np.ones((2, 1, 0), F), np.ones((2, 1, 0), np.int64), (2**59,)), {"kernel_shape": [1]}, "value",
        too_large((2, 1, 2**59))),
    ("an output_shape past 64-bit byte offsets, NHWC", "max_unpool",
        (np.ones((0, 1, 3), F), np.ones((0, 1, 3), np.int64), (2**58,)), {"kernel_shape": [1], "layout": "NHWC"},
        "value", too_large((0, 2**58, 3))),
    ("channels past 64-bit byte offsets", "conv_bias_grad", (np.broadcast_to(F(1), (1, 2**60, 1)),), {}, "value",
        too_large((2**60,))),
    *(
        (f"the name {theirs}", operator, arrays, {theirs: 2}, "type", f"{theirs} is called {ours} here, as in ONNX")
        for operator, arrays, theirs, ours in (
            ("conv_input_grad", (DY, W, X.shape), "groups", "group"),
            ("conv_weight_grad", (X, DY, W.shape), "padding", "pads"),
            ("conv_transpose_input_grad", (X, W, DY.shape), "stride", "strides"),
            ("conv_transpose_weight_grad", (DY, X, W.shape), "dilation", "dilations"),
            ("max_pool_grad", (MAXIMA, INDICES, (1, 2, 4)), "kernel_size", "kernel_shape"),
            ("max_unpool", (MAXIMA, INDICES), "kernel_size", "kernel_shape"),
        )
    ),
    *(
        (f"no {name}", operator, (DY,), {name: 2}, "type", f"there is no argument '{name}'; it takes dy, layout, out")
        for operator in ("conv_bias_grad", "conv_transpose_bias_grad")
        for name in ("stride", "bias")
    ),
    ("more axes than an array has", "max_pool_grad", (MAXIMA, INDICES, (1,) * 65), {"kernel_shape": [1] * 63}, "value",
        "x has 63 spatial axes, but beside batch and channels an array has at most 62"),
]  # fmt: skip


def _wrong(name: str, operator: str, arrays: Any, attributes: Any, kind: str, message: str) -> Wrong:
    error = ArgumentTypeError if kind == "type" else ArgumentError

    def call() -> Any:
        return getattr(gpuconv, operator)(*arrays, **attributes)

    return Wrong(f"{operator}: {name}", call, error, f"{operator}: {message}")


GRADIENTS = [_wrong(*row) for row in ROWS]
