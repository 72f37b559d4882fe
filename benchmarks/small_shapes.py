"""Small problems that together use every kernel for up to three spatial axes.

`benchmarks.smoke`, compute-sanitizer and the emulator's tests run them. Values are small integers, so that sums are
exact in any order and results can be compared for equality.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import gpuconv

_FLOATS = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Problem:
    """One call without its dtype, plus its gradients if ``gradients`` is set; ``w`` is () for pools."""

    operator: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    attributes: dict[str, Any]
    gradients: bool = False


def _pads(*numbers: int) -> dict[str, Any]:
    return {"pads": list(numbers)}


def _pool(x: tuple[int, ...], kernel: list[int], **attributes: Any) -> Problem:
    return Problem("max_pool", x, (), {"kernel_shape": kernel, **attributes})


# Channels and pixels just below, at and above tile sizes; K slices within one tap (channels divisible by 16) or across.
PROBLEMS = (
    Problem("conv", (2, 3, 21), (5, 3, 3), {**_pads(1, 2), "strides": [2]}),
    Problem("conv", (1, 32, 40), (65, 32, 2), {"dilations": [3]}),
    Problem("conv", (2, 3, 9, 8), (4, 3, 3, 3), _pads(1, 0, 2, 1)),
    Problem("conv", (1, 16, 9, 8), (20, 16, 3, 3), {**_pads(1, 1, 1, 1), "strides": [2, 2]}),
    Problem("conv", (3, 33, 7, 11), (70, 33, 2, 3), {"dilations": [2, 1]}),
    Problem("conv", (1, 12, 9, 9), (12, 1, 3, 3), {"group": 12}),
    Problem("conv", (2, 36, 6, 8), (70, 36, 1, 1), {}),
    Problem("conv", (3, 35, 11), (130, 35, 1), {}),
    Problem("conv", (2, 32, 8, 9), (64, 16, 3, 3), {"group": 2, **_pads(1, 1, 1, 1)}),
    Problem("conv", (1, 1, 3, 3), (1, 1, 3, 3), _pads(9, 9, 9, 9)),
    Problem("conv", (1, 4, 5, 6, 7), (6, 4, 2, 3, 2), {**_pads(1, 0, 1, 0, 2, 1), "strides": [1, 2, 2]}),
    Problem("conv", (1, 16, 4, 5, 6), (66, 16, 2, 2, 2), {}),
    # Few output channels: kernels that compute bands of rows.
    Problem("conv", (1, 12, 20, 36), (1, 12, 5, 5), _pads(2, 2, 2, 2)),
    Problem("conv", (2, 8, 17, 21), (3, 8, 3, 3), _pads(1, 1, 1, 1)),
    Problem("conv", (1, 16, 300), (2, 16, 7), _pads(3, 3)),
    Problem("conv", (1, 8, 4, 11, 20), (4, 4, 2, 3, 3), {"group": 2, **_pads(1, 1, 1, 0, 1, 1)}),
    Problem("conv", (2, 12, 20, 16), (3, 16, 7, 7), {**_pads(3, 3, 3, 3), "layout": "NHWC"}),
    Problem("conv_transpose", (1, 12, 10, 9), (12, 1, 9, 9), {"strides": [4, 4], **_pads(4, 4, 4, 4)}),
    Problem("conv_transpose", (2, 16, 9, 8), (16, 3, 4, 4), {"strides": [2, 2], **_pads(1, 1, 1, 1)}),
    Problem("conv_transpose", (2, 9, 8, 16), (16, 2, 4, 4), {"strides": [2, 2], "layout": "NHWC"}),
    # Few input channels: kernels that load several taps of a kernel row at once.
    *(
        Problem("conv", (2, 3, 9, 40), (33, 3, 2, taps), {**_pads(1, 3, 0, 2), "strides": [2, 2]})
        for taps in (4, 5, 7, 11)
    ),
    # Depthwise and grouped, with rows that are whole vectors or not.
    *(
        Problem("conv", (2, 3, 11, width), (3, 1, kernel, kernel), {"group": 3, "strides": [stride] * 2})
        for kernel in (3, 5, 7)
        for stride, width in ((1, 16), (2, 13))
    ),
    Problem("conv", (1, 2, 40, 150), (4, 1, 4, 6), {"group": 2, **_pads(2, 3, 1, 0)}),
    Problem("conv", (2, 3, 700), (3, 1, 4), {"group": 3, **_pads(3, 0)}),
    Problem("conv", (1, 8, 9, 11), (12, 4, 3, 3), {"group": 2, **_pads(1, 0, 2, 1), "strides": [2, 2]}),
    Problem("conv", (1, 6, 4, 9, 10), (6, 1, 3, 3, 3), {"group": 6, **_pads(1, 1, 1, 1, 1, 1), "strides": [2, 1, 1]}),
    Problem("conv_transpose", (2, 3, 21), (3, 5, 3), {**_pads(1, 2), "strides": [2]}),
    Problem("conv_transpose", (1, 32, 40), (32, 65, 4), {"strides": [3], "dilations": [2]}),
    Problem("conv_transpose", (2, 3, 9, 8), (3, 4, 3, 3), _pads(1, 0, 2, 1)),
    Problem("conv_transpose", (1, 16, 9, 8), (16, 20, 4, 4), {**_pads(1, 1, 1, 1), "strides": [2, 2]}),
    Problem("conv_transpose", (1, 33, 7, 11), (33, 70, 2, 2), {"strides": [2, 2]}),
    Problem("conv_transpose", (1, 12, 9, 9), (12, 1, 3, 3), {"group": 12, "strides": [2, 1]}),
    Problem("conv_transpose", (2, 32, 8, 9), (32, 40, 3, 3), {"group": 2, "strides": [3, 2], "output_padding": [1, 0]}),
    Problem("conv_transpose", (1, 6, 9, 10), (6, 1, 3, 3), {"group": 6, **_pads(1, 0, 2, 1)}),
    Problem("conv_transpose", (1, 4, 5, 6, 7), (4, 6, 2, 3, 2), {"strides": [1, 2, 3], "dilations": [2, 1, 2]}),
    Problem("conv_transpose", (1, 16, 4, 5, 6), (16, 66, 2, 2, 2), {"strides": [2, 2, 2]}),
    Problem("conv_transpose", (1, 32, 3, 4, 5), (32, 20, 3, 3, 3), {"strides": [2, 1, 2]}),
    Problem("conv_transpose", (2, 12, 9, 8), (12, 3, 1, 5), {"strides": [1, 5], **_pads(0, 2, 1, 1)}),
    _pool((2, 3, 50), [3], strides=[2], pads=[1, 1]),
    _pool((1, 2, 9), [2], dilations=[4], pads=[3, 4]),
    _pool((2, 3, 9, 8), [3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    _pool((1, 5, 16, 17), [2, 2], strides=[2, 2], ceil_mode=1),
    _pool((1, 2, 6, 6), [5, 5], pads=[2, 2, 2, 2], storage_order=1),
    _pool((1, 3, 20, 64), [3, 3], pads=[1, 1, 1, 1]),
    _pool((2, 3, 11, 48), [3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    _pool((1, 3, 10, 48), [2, 2], strides=[2, 2]),
    _pool((1, 2, 3, 1000), [1, 3], strides=[1, 3]),
    _pool((1, 2, 30, 33), [13, 13], pads=[6, 6, 6, 6]),
    _pool((2, 3, 21, 48), [4, 5], strides=[2, 1], pads=[1, 2, 1, 2]),
    _pool((1, 2, 19, 33), [5, 4], strides=[2, 3], dilations=[2, 1]),
    _pool((2, 2, 5, 6, 7), [2, 3, 2], pads=[1, 0, 1, 0, 1, 1], strides=[1, 2, 3], dilations=[2, 1, 2]),
    _pool((1, 3, 21, 5), [6, 1], pads=[2, 0, 3, 0]),
    _pool((1, 2, 3, 4), [2, 2], pads=[4, 2, 3, 2], strides=[2, 2]),
    # Global pooling: one window per channel.
    _pool((2, 3, 7, 7), [7, 7]),
    _pool((1, 2, 20, 30), [20, 30]),
    _pool((1, 2, 70, 64), [70, 64]),
)


# For tensor cores: 16-byte copies of channels (NHWC) or of pixels along W (NCHW), and float32 rounded to TF32.
TENSOR = tuple(
    Problem(operator, (2, 9, 8, channels) if layout == "NHWC" else (2, channels, 9, 8), w, {**attributes, **more})
    for operator, channels, w, attributes in (
        ("conv", 32, (20, 32, 3, 3), _pads(1, 1, 1, 1)),
        ("conv", 3, (20, 3, 3, 3), {"strides": [2, 2]}),
        ("conv", 24, (20, 24, 3, 3), _pads(1, 1, 1, 1)),
        ("conv", 4, (70, 4, 3, 3), _pads(1, 0, 1, 2)),
        ("conv", 3, (20, 3, 2, 4), {"strides": [2, 4]}),
        ("conv", 3, (20, 3, 3, 8), {"strides": [1, 8], **_pads(1, 0, 0, 0)}),
        ("conv", 32, (20, 32, 1, 1), {}),
        ("conv", 32, (24, 8, 3, 3), {"group": 4, **_pads(1, 0, 2, 1)}),
        ("conv_transpose", 32, (32, 20, 3, 3), {"strides": [2, 2]}),
        ("conv_transpose", 40, (40, 70, 3, 3), {"strides": [2, 1], **_pads(1, 0, 1, 2)}),
        ("conv_transpose", 32, (32, 6, 3, 3), {"group": 4, "strides": [2, 1]}),
        ("conv_transpose", 3, (3, 20, 3, 3), {"strides": [2, 1]}),
        ("conv_transpose", 32, (32, 20, 2, 2), {"strides": [2, 2]}),
    )
    for layout in ("NCHW", "NHWC")
    for more in (
        {"layout": layout},
        {"layout": layout, "precision": "tf32"},
        {"layout": layout, "precision": "3xtf32"},
    )
)

# Depthwise NHWC: channel counts that are whole vectors or not, and several filters per channel.
DEPTHWISE = tuple(
    Problem("conv", x, w, {"group": x[-1], "layout": "NHWC", **attributes})
    for x, w, attributes in (
        ((2, 9, 14, 16), (16, 1, 3, 3), _pads(1, 1, 1, 1)),
        ((2, 9, 14, 20), (20, 1, 3, 3), {"strides": [2, 2]}),
        ((1, 12, 13, 6), (6, 1, 5, 7), {"dilations": [2, 1], **_pads(4, 3, 2, 1)}),
        ((1, 9, 17, 4), (8, 1, 2, 4), {"strides": [1, 3]}),
    )
) + tuple(
    Problem("conv_transpose", (1, 9, 8, 6), (6, 2, 3, 4), {"group": 6, "strides": [2, 3], "layout": "NHWC", **pads})
    for pads in ({}, _pads(1, 2, 0, 1))
)

# MaxPool NHWC: windows that share columns, large windows, and channel counts that are not whole vectors.
CHANNELS = tuple(
    _pool(x, kernel, layout="NHWC", **attributes)
    for x, kernel, attributes in (
        ((2, 9, 14, 32), [3, 3], {"strides": [2, 2], **_pads(1, 1, 1, 1)}),
        ((1, 8, 10, 48), [5, 5], _pads(2, 2, 2, 2)),
        ((1, 4, 5, 7, 16), [2, 2, 2], {"strides": [2, 1, 2]}),
        ((2, 9, 8, 33), [3, 2], {"dilations": [2, 1]}),
        ((2, 9, 14, 33), [3, 3], {"strides": [2, 2], **_pads(1, 1, 1, 1)}),
        ((1, 8, 10, 21), [4, 5], _pads(2, 2, 1, 2)),
        ((2, 6, 5, 40), [6, 5], {}),
    )
)


def _average(x: tuple[int, ...], kernel: list[int], **attributes: Any) -> Problem:
    return Problem("average_pool", x, (), {"kernel_shape": kernel, **attributes})


# AveragePool: rows of whole vectors and others, NHWC, large windows, global windows.
AVERAGES = (
    _average((2, 3, 50), [3], strides=[2], pads=[1, 1], count_include_pad=1),
    _average((1, 2, 9), [2], dilations=[4], pads=[3, 4]),
    _average((2, 3, 9, 8), [3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1, ceil_mode=1),
    _average((1, 3, 20, 64), [3, 3], pads=[1, 1, 1, 1]),
    _average((2, 3, 11, 48), [3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    _average((1, 3, 10, 48), [2, 2], strides=[2, 2]),
    _average((1, 2, 30, 33), [13, 13], pads=[6, 6, 6, 6]),
    _average((2, 3, 21, 48), [4, 5], strides=[2, 1], pads=[1, 2, 1, 2], count_include_pad=1),
    _average((2, 2, 5, 6, 7), [2, 3, 2], pads=[1, 0, 1, 0, 1, 1], strides=[1, 2, 3], dilations=[2, 1, 2]),
    _average((1, 2, 3, 4), [2, 2], pads=[4, 2, 3, 2], strides=[2, 2]),
    _average((2, 9, 14, 32), [3, 3], strides=[2, 2], pads=[1, 1, 1, 1], layout="NHWC"),
    _average((1, 8, 10, 48), [5, 5], pads=[2, 2, 2, 2], layout="NHWC"),
    _average((1, 4, 5, 7, 16), [2, 2, 2], strides=[2, 1, 2], layout="NHWC"),
    _average((2, 9, 7, 19), [3, 3], strides=[2, 1], pads=[1, 0, 1, 0], layout="NHWC"),
    _average((1, 8, 10, 21), [5, 4], pads=[2, 2, 2, 1], layout="NHWC"),
    _average((2, 3, 7, 7), [7, 7]),
    _average((1, 2, 20, 30), [20, 30]),
    _average((1, 2, 70, 64), [70, 64]),
    _average((2, 6, 5, 40), [6, 5], layout="NHWC"),
    # Numbers of taps by which gradients divide exactly.
    replace(_average((2, 3, 9, 8), [2, 2], strides=[2, 1], pads=[1, 1, 1, 1]), gradients=True),
    replace(_average((1, 6, 6, 2), [4, 2], dilations=[1, 2], layout="NHWC"), gradients=True),
    replace(_average((1, 2, 5, 6, 7), [2, 2, 4], strides=[2, 2, 3], count_include_pad=1), gradients=True),
    replace(_average((2, 5, 11, 18), [4, 2], strides=[4, 2]), gradients=True),
    replace(_average((2, 12, 9, 5), [2, 4], pads=[1, 1, 1, 1], count_include_pad=1, layout="NHWC"), gradients=True),
    replace(_average((1, 3, 12, 11), [4, 8], strides=[1, 2]), gradients=True),
    replace(_average((2, 2, 17, 5), [8, 2]), gradients=True),
    *(  # windows that cover one or two pixels along each axis
        replace(
            _average((2, 3, 2, 2), [size] * 2, strides=[stride] * 2, pads=[*[size - 2] * 2, *[size - 1] * 2]),
            gradients=True,
        )
        for size, stride in ((2, 1), (3, 1), (5, 1), (7, 1), (3, 2), (4, 2), (5, 2), (7, 2))
    ),
)


# Gradients, also in complex dtypes.
GRADIENTS = tuple(
    replace(problem, gradients=True)
    for problem in (
        Problem("conv", (2, 3, 9, 8), (4, 3, 3, 3), {**_pads(1, 0, 2, 1), "strides": [2, 1]}),
        Problem("conv", (1, 12, 9, 9), (12, 1, 3, 3), {"group": 12}),
        Problem("conv", (2, 5, 7, 3, 6), (70, 5, 2, 1, 3), {"dilations": [1, 2, 2]}),
        Problem("conv", (1, 2, 400), (3, 2, 5), {}),
        Problem("conv", (2, 9, 8, 3), (4, 3, 3, 3), {"layout": "NHWC"}),
        # Large tiles: 16-byte copies of channels, or of pixels.
        Problem("conv", (2, 6, 9, 48), (144, 24, 3, 2), {"layout": "NHWC", **_pads(1, 0, 2, 1), "group": 2}),
        Problem("conv", (2, 20, 6, 8), (70, 20, 1, 1), {}),
        *(
            Problem("conv", *shapes, {"precision": precision, **attributes})
            for precision in ("tf32", "3xtf32")
            for *shapes, attributes in (
                ((2, 3, 9, 11), (40, 3, 3, 5), {**_pads(1, 2, 1, 2), "strides": [2, 2]}),
                ((2, 6, 7, 24), (72, 24, 2, 3), {"layout": "NHWC"}),
            )
        ),
        Problem("conv_transpose", (2, 4, 6, 5), (4, 3, 3, 4), {"strides": [2, 3], **_pads(1, 0, 1, 1), "group": 2}),
        _pool((2, 3, 9, 8), [3, 3], strides=[2, 1], pads=[1, 1, 1, 1]),
        _pool((1, 6, 6, 2), [3, 2], dilations=[2, 1], layout="NHWC", storage_order=1),
        _pool((1, 2, 5, 6, 7), [2, 2, 3], strides=[2, 2, 3]),
        # Column kernels: one window shape for each specialised kernel.
        _pool((2, 3, 7, 9), [1, 1]),
        _pool((2, 3, 9, 8), [2, 2], strides=[2, 2]),
        _pool((2, 3, 11, 10), [3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        _pool((2, 3, 9, 10), [3, 3], pads=[1, 1, 1, 1]),
        _pool((1, 2, 17, 9), [7, 2], strides=[3, 1]),
    )
)


def calls() -> Iterator[tuple[Problem, str, bool]]:
    """Yield (problem, dtype, wide) for all problems and dtypes: first with 32-bit indices, then with 64-bit ones."""
    for wide in (False, True):
        for problem in (*PROBLEMS, *DEPTHWISE, *CHANNELS, *AVERAGES, *TENSOR, *GRADIENTS):
            for dtype in _dtypes_of(problem):
                yield problem, dtype, wide


def _dtypes_of(problem: Problem) -> tuple[str, ...]:
    if "precision" in problem.attributes:
        return ("float32",)
    if problem.gradients and problem.operator != "max_pool":
        return (*_FLOATS, "complex64", "complex128")
    return (*_FLOATS, "int8", "uint8") if problem.operator == "max_pool" else _FLOATS


def operands(problem: Problem, dtype: str) -> list[Any]:
    """Return x, or x, w and b, as small integers in a dtype; bfloat16 needs ml_dtypes."""
    random = np.random.default_rng(0)
    if not problem.w:
        shapes = [problem.x]
    else:
        group = problem.attributes.get("group", 1)
        filters = problem.w[0] if problem.operator == "conv" else problem.w[1] * group
        shapes = [problem.x, problem.w, (filters,)]
    lowest = 0 if dtype == "uint8" else -3
    return [_integers(random, lowest, shape, dtype) for shape in shapes]


def _integers(random: np.random.Generator, lowest: int, shape: tuple[int, ...], dtype: str) -> Any:
    numbers = random.integers(lowest, 4, shape).astype(numpy_dtype(dtype))
    return numbers + 1j * random.integers(lowest, 4, shape).astype(dtype) if dtype.startswith("complex") else numbers


def numpy_dtype(dtype: str) -> Any:
    """Return the NumPy dtype of this name; bfloat16 needs ml_dtypes."""
    if dtype != "bfloat16":
        return np.dtype(dtype)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def compute(problem: Problem, arrays: list[Any]) -> list[Any]:
    """Call the public function and, if asked for, those of the gradients; MaxPool with and without Indices.

    Convolutions are also computed fused, with a residual whose memory layout differs from the result's, so that it is
    copied first.
    """
    function = getattr(gpuconv, problem.operator)
    if problem.operator == "average_pool":
        y = function(*arrays, **problem.attributes)
        backwards = problem.gradients and [gpuconv.average_pool_grad(y, arrays[0].shape, **problem.attributes)]
        return [y, *(backwards or ())]
    if problem.operator != "max_pool":
        y = function(*arrays, **problem.attributes)
        activation = None if y.dtype.kind == "c" else ("leaky_relu", 0.5)
        fused = function(*arrays, **problem.attributes, activation=activation, residual=y[..., ::-1])
        return [y, fused, *(_gradients(problem, arrays, y) if problem.gradients else ())]
    y, indices = function(*arrays, **problem.attributes, return_indices=True)
    found = [y, indices, function(*arrays, **problem.attributes)]
    if problem.gradients:
        if y.dtype.kind not in "iu":
            found.append(gpuconv.max_pool_grad(y, indices, arrays[0].shape, **problem.attributes))
        layout = problem.attributes.get("layout", "NCHW")
        places = (indices % y.size - 1)[..., ::-1]  # duplicate and dropped (-1) places, in a non-contiguous array
        ones = [1] * (y.ndim - 2)
        found.append(gpuconv.max_unpool(y, places, kernel_shape=ones, layout=layout, check_indices=False))
    return found


def _gradients(problem: Problem, arrays: list[Any], y: Any) -> list[Any]:
    """Return the gradients of x, w and b, with the forward result as dy."""
    x, w, _ = arrays
    of_input, of_weight, of_bias = (
        getattr(gpuconv, f"{problem.operator}_{what}_grad") for what in ("input", "weight", "bias")
    )
    layout = {"layout": problem.attributes.get("layout", "NCHW")}
    gradients = of_input(y, w, x.shape, **problem.attributes), of_weight(x, y, w.shape, **problem.attributes)
    return [*gradients, of_bias(y, **layout)]
