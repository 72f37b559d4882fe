"""One problem for each form of the kernels, large enough for several blocks each way.

Small shapes hide mistakes: where height and width, or the strides, pads and dilations of two axes, are equal, or one
block makes all outputs, a kernel may take one for the other. These problems have unequal ones, at least three blocks
of output channels and three of pixels (MaxPool: three of outputs), and slices of K for every buffer and some more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

import gpuconv
from tests.emulator import emulated_cuda
from tests.harness.emulated import architecture, indices, preferred
from tests.oracle import oracle
from tests.oracle.operands import LAYOUTS, values
from tests.oracle.oracle import assert_close, assert_same
from tests.oracle.strategies import Problem

Ints = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ManyBlocks:
    """A problem with its values, and the kernel that must make it.

    Attributes
    ----------
    kernel : str
        Name of the candidate, and of the last kernel launched but for ``_split``.
    problem : Problem
    kinds : tuple of str
        Of the values of x, w and b, see `operands`; or of those below.
    layout : str
        Of the inputs.
    out : str
        Layout of the result, which the caller provides then; Indices have another one. None: a new array.
    packed : bool
        Whether the weights are packed before.
    """

    kernel: str
    problem: Problem
    kinds: tuple[str, ...] = ("integers", "integers", "integers")
    layout: str = "contiguous"
    out: str | None = None
    packed: bool = False

    @property
    def dtype(self) -> Any:
        return np.dtype(next(name for name in _DTYPES if f"_{name}_" in self.kernel))

    @property
    def precision(self) -> str:
        return next((name for name in ("3xtf32", "tf32") if f"_{name}_" in self.kernel), "ieee")

    @property
    def arithmetic(self) -> str:
        """What the bound of the comparison is that of; see `oracle.ARITHMETIC`."""
        return "tensor cores" if "mma_" in self.kernel and self.dtype.itemsize == 2 else self.precision

    @property
    def wide(self) -> bool:
        return self.kernel.endswith("_wide")

    @property
    def architecture(self) -> str:
        """One that has the kernel, for the planner's limits."""
        return architecture(self.dtype, self.problem.rank)


_DTYPES = ("bfloat16", "float16", "float32", "float64", "uint8", "int8")


def _seldom_infinite(generator: np.random.Generator, shape: Ints, often: int = 60) -> Any:
    """Small integers and, one in so many, infinities: many sums stay finite, some for want of one tap inside x."""
    return np.where(generator.random(shape) < 1 / often, np.inf, generator.integers(-4, 5, shape))


def _filled(kind: str, seed: int, shape: Ints, dtype: Any) -> Any:
    """Fill an array: "seldom infinite", or "one in 99 infinite", or as `operands.values` does."""
    if kind.endswith("infinite"):
        often = 60 if kind == "seldom infinite" else int(kind.split()[2])
        return _seldom_infinite(np.random.default_rng(seed), shape, often).astype(dtype)
    return values(kind, seed, shape, dtype)


_INTEGERS = ("integers", "integers", "integers")
_INFINITE_WEIGHTS = ("integers", "seldom infinite", "integers")
_INFINITE_INPUTS = ("seldom infinite", "integers", "integers")


def _gemm(
    kernel: str,
    x: Ints,
    w: Ints,
    *,
    kinds: tuple[str, ...] = _INTEGERS,
    layout: str = "contiguous",
    out: str | None = None,
    bias: bool = True,
    operator: str | None = None,
    **attributes: Any,
) -> ManyBlocks:
    operator = operator or ("conv_transpose" if kernel.startswith("conv_transpose") else "conv")
    filters = w[0] if operator == "conv" else w[1] * attributes.get("group", 1)
    b = (filters,) if bias else None
    return ManyBlocks(kernel, Problem(operator, x, w, b, attributes), kinds, layout, out)


_transposed = partial(_gemm, operator="conv_transpose")


def _average(
    kernel: str, x: Ints, kind: str, layout: str = "contiguous", out: str | None = None, **attributes: Any
) -> ManyBlocks:
    return ManyBlocks(kernel, Problem("average_pool", x, attributes=attributes), (kind,), layout, out)


def _pool(
    kernel: str, x: Ints, kind: str, layout: str = "contiguous", out: str | None = None, **attributes: Any
) -> ManyBlocks:
    return ManyBlocks(kernel, Problem("max_pool", x, attributes=attributes), (kind,), layout, out)


_CONV_2D: dict[str, Any] = {"strides": [2, 1], "pads": [1, 2, 0, 1], "dilations": [1, 2]}
_CONV_2D_TURNED: dict[str, Any] = {"strides": [1, 2], "pads": [0, 2, 2, 1], "dilations": [3, 1]}
_CONV_3D: dict[str, Any] = {"strides": [1, 3, 2], "pads": [1, 2, 0, 0, 1, 2], "dilations": [2, 1, 3]}
_TRANSPOSE_2D: dict[str, Any] = {
    "strides": [2, 3], "pads": [1, 2, 0, 3], "dilations": [1, 2], "output_padding": [1, 0],
}  # fmt: skip
_TRANSPOSE_SHARED: dict[str, Any] = {"strides": [4, 2], "pads": [3, 0, 1, 2], "dilations": [6, 3]}
_TRANSPOSE_3D: dict[str, Any] = {"strides": [2, 1, 3], "pads": [1, 0, 2, 0, 1, 1], "dilations": [3, 2, 1]}

CONVS = (
    _gemm("conv_float32_3d_16x128x16", (3, 13, 19, 11), (40, 13, 3, 2), out="channels last",
          **_CONV_2D),
    _gemm("conv_float32_3d_64x64x16_uniform", (2, 32, 9, 23), (140, 32, 2, 3), **_CONV_2D_TURNED),
    _gemm("conv_float16_3d_64x64x16", (2, 32, 13, 19), (280, 16, 2, 3), group=2, kinds=_INFINITE_WEIGHTS,
          **_CONV_2D),
    _gemm("conv_float32_3d_16x128x16", (3, 2, 19, 11), (80, 1, 3, 2), group=2, kinds=_INFINITE_WEIGHTS,
          layout="reversed", **_CONV_2D),
    _gemm("conv_float32_3d_128x128x16_uniform", (2, 16, 18, 26), (300, 16, 3, 2), layout="fortran", out="strided",
          **_CONV_2D_TURNED),
    _gemm("conv_float32_4d_64x64x16_wide", (2, 10, 5, 13, 12), (280, 5, 2, 3, 2), group=2, kinds=_INFINITE_INPUTS,
          layout="reversed", out="fortran", **_CONV_3D),
    _gemm("conv_float16_3d_64x64x16", (2, 7, 16, 19), (145, 7, 2, 3), kinds=_INFINITE_INPUTS,
          layout="channels last", **_CONV_2D_TURNED),
    _gemm("conv_bfloat16_4d_64x64x16_wide", (2, 48, 95), (150, 48, 2), layout="strided", bias=False,
          strides=[1], pads=[2, 1], dilations=[3]),
    _gemm("conv_bfloat16_3d_64x64x16", (3, 5, 120), (133, 5, 7), strides=[1], pads=[5, 4], dilations=[2],
          kinds=_INFINITE_WEIGHTS),
    _gemm("conv_float64_3d_16x128x16", (3, 13, 11, 19), (37, 13, 2, 3), layout="broadcast", **_CONV_2D),
    _gemm("conv_float64_4d_64x64x16_uniform_wide", (2, 32, 9, 21), (130, 32, 2, 3), kinds=_INFINITE_WEIGHTS,
          out="reversed", **_CONV_2D_TURNED),
    _gemm("conv_float16_3d_64x64x16", (2, 5, 5, 13, 12), (140, 5, 2, 3, 2), kinds=_INFINITE_WEIGHTS, **_CONV_3D),
)  # fmt: skip
SPLIT = (
    _gemm("conv_float32_3d_64x64x16_uniform_split", (2, 32, 9, 23), (140, 32, 2, 3), out="strided", **_CONV_2D_TURNED),
    _gemm("conv_float16_3d_mma_64x64x32_scalar_split", (2, 64, 13, 19), (280, 32, 3, 2), group=2,
          kinds=_INFINITE_WEIGHTS, layout="channels last", **_CONV_2D),
    _gemm("conv_float64_3d_mma_64x64x16_scalar_split", (2, 16, 5, 13, 12), (140, 16, 2, 3, 2), kinds=_INFINITE_INPUTS,
          layout="reversed", out="fortran", **_CONV_3D),
    _gemm("conv_float32_3d_128x128x16_uniform_split", (2, 32, 18, 26), (300, 32, 3, 2), layout="fortran",
          **_CONV_2D_TURNED),
    _gemm("conv_bfloat16_3d_mma_64x64x64_vector_split", (2, 72, 13, 33), (300, 72, 2, 1), layout="channels last",
          kinds=_INFINITE_INPUTS, **_CONV_2D_TURNED),
    _gemm("conv_float32_3d_tf32_128x128x16_scalar_split", (2, 21, 18, 26), (300, 21, 3, 2), out="strided", **_CONV_2D),
    _gemm("conv_float64_3d_mma_64x64x16_vector_split", (2, 38, 9, 23), (140, 38, 2, 3), layout="channels last",
          kinds=_INFINITE_WEIGHTS, out="channels last", **_CONV_2D),
    _gemm("conv_float64_3d_mma_16x128x16_vector_split", (3, 20, 7, 9, 8), (70, 10, 2, 3, 2), layout="channels last",
          group=2, kinds=_INFINITE_INPUTS, **_CONV_3D),
    _gemm("conv_float64_3d_mma_16x128x16_scalar_split", (3, 21, 17, 38), (43, 21, 3, 2), out="strided",
          kinds=_INFINITE_INPUTS, **_CONV_2D_TURNED),
)  # fmt: skip
SPLIT_PHASES = (
    _gemm("conv_transpose_float32_3d_64x64x16_uniform_split", (2, 32, 7, 11), (32, 140, 3, 4), out="fortran",
          kinds=_INFINITE_WEIGHTS, **_TRANSPOSE_2D),
    _gemm("conv_transpose_bfloat16_3d_mma_64x64x32_scalar_split", (2, 40, 7, 11), (40, 140, 5, 4),
          out="channels last", **_TRANSPOSE_SHARED),
    _gemm("conv_transpose_float16_3d_mma_64x64x64_vector_split", (1, 72, 9, 31), (72, 300, 3, 4),
          layout="channels last", **_TRANSPOSE_2D),
    _gemm("conv_transpose_float64_3d_mma_64x64x16_scalar_split", (2, 40, 4, 5, 7), (40, 140, 3, 2, 2),
          layout="reversed", group=2, kinds=_INFINITE_INPUTS, **_TRANSPOSE_3D),
    _gemm("conv_transpose_float64_3d_mma_64x64x16_vector_split", (1, 34, 9, 31), (34, 140, 3, 4),
          layout="channels last", **_TRANSPOSE_2D),
    _gemm("conv_transpose_float64_3d_mma_16x128x16_vector_split", (2, 18, 9, 23), (18, 35, 3, 4),
          layout="channels last", kinds=_INFINITE_WEIGHTS, **_TRANSPOSE_2D),
    _gemm("conv_transpose_float64_3d_mma_16x128x16_scalar_split", (2, 20, 4, 5, 9), (20, 37, 3, 2, 2),
          layout="reversed", group=2, kinds=_INFINITE_INPUTS, **_TRANSPOSE_3D),
)  # fmt: skip
# More taps than a table has, and more channels than shared memory has room for the weights of.
FEW = (
    _gemm("conv_few_float32_3d_4x512", (2, 50, 31, 41), (3, 50, 5, 7), strides=[1, 2], pads=[3, 2, 1, 4],
          dilations=[2, 1], kinds=_INFINITE_WEIGHTS),
    _gemm("conv_few_float64_3d_8x512", (1, 28, 9, 13, 16), (10, 14, 2, 3, 2), group=2, layout="reversed",
          strides=[1, 1, 2], pads=[1, 2, 0, 2, 1, 3], dilations=[2, 1, 3], kinds=_INFINITE_INPUTS, out="fortran"),
    _gemm("conv_few_bfloat16_3d_8x512", (3, 5, 400), (7, 5, 4), strides=[1], pads=[3, 2], dilations=[2],
          layout="channels last", bias=False),
)  # fmt: skip
# Every form; bands of rows of vectors, of vectors of channels, of single ones, and neither; lines; phases with
# different taps; several rounds of channels; outputs of several filters side by side.
BANDS = (
    _gemm("conv_bands_float32_3d_1x7_3x3", (2, 20, 31, 44), (1, 20, 2, 3), pads=[2, 1, 0, 2], kinds=_INFINITE_WEIGHTS),
    _gemm("conv_bands_bfloat16_3d_1x7_5x5", (1, 40, 30, 37), (1, 40, 5, 5), pads=[2, 4, 1, 0], layout="channels last",
          bias=False),
    _gemm("conv_bands_float16_3d_1x7_3x4", (3, 9, 700), (2, 9, 7), pads=[3, 6], kinds=_INFINITE_WEIGHTS),
    _gemm("conv_bands_float32_3d_1x7_3x4", (2, 45, 17, 26), (1, 45, 3, 4), pads=[1, 3, 2, 0], layout="channels last",
          kinds=_INFINITE_INPUTS),
    _transposed("conv_bands_float32_3d_3x3_2x2", (2, 33, 9, 16), (33, 3, 3, 4), strides=[2, 3], pads=[1, 0, 2, 1],
                output_padding=[1, 0], out="channels last", kinds=_INFINITE_INPUTS),
    _gemm("conv_bands_float32_3d_3x3_3x3", (1, 16, 8, 9, 20), (6, 8, 2, 3, 3), group=2, strides=[2, 1, 1],
          pads=[1, 0, 2, 0, 1, 1], dilations=[3, 1, 1], kinds=_INFINITE_INPUTS, layout="channels last"),
    _gemm("conv_bands_bfloat16_3d_3x3_3x4", (1, 5, 40, 33), (3, 5, 4, 9), pads=[3, 5, 0, 2], layout="reversed"),
    _transposed("conv_bands_float32_3d_4x3_2x2", (1, 8, 5, 6, 9), (8, 2, 2, 3, 4), strides=[3, 1, 2],
                pads=[1, 0, 2, 0, 1, 0], output_padding=[0, 0, 1], kinds=_INFINITE_WEIGHTS),
    _transposed("conv_bands_float16_3d_4x3_3x3", (2, 12, 23, 28), (12, 1, 8, 9), strides=[3, 4], pads=[2, 4, 1, 3],
                output_padding=[2, 3]),
    _gemm("conv_bands_float64_3d_1x7_3x4", (2, 6, 30, 29), (1, 6, 5, 6), pads=[4, 1, 2, 0], out="reversed"),
    _transposed("conv_bands_float64_3d_3x3_3x4", (1, 10, 14, 22), (10, 4, 5, 3), strides=[2, 1], pads=[1, 0, 3, 2],
                kinds=_INFINITE_WEIGHTS),
)  # fmt: skip
_LAST: dict[str, Any] = {"layout": "channels last", "out": "channels last"}
# More weights than shared memory takes at once, vectors of channels that are whole and not, dilated outputs apart.
CHANNELS = (
    _gemm("depthwise_float32_3d_channels_7s1", (2, 40, 19, 45), (40, 1, 4, 3), group=40, strides=[2, 3],
          dilations=[1, 3], pads=[2, 1, 1, 3], **_LAST),
    _gemm("depthwise_bfloat16_3d_channels_7s1", (2, 24, 33, 80), (24, 1, 5, 16), group=24, strides=[1, 2],
          dilations=[3, 4], pads=[4, 3, 0, 9], kinds=_INFINITE_INPUTS, **_LAST),
    _gemm("depthwise_float16_3d_channels_4s2", (2, 9, 22, 51), (18, 1, 3, 5), group=9, strides=[3, 2],
          pads=[2, 4, 1, 3], kinds=_INFINITE_WEIGHTS, **_LAST),
    _gemm("depthwise_float64_3d_channels_taps", (1, 20, 6, 13, 37), (20, 1, 3, 2, 4), group=20, strides=[2, 1, 3],
          dilations=[1, 3, 2], pads=[1, 2, 4, 2, 1, 3], kinds=_INFINITE_WEIGHTS, bias=False, **_LAST),
    _gemm("depthwise_float32_3d_channels_taps", (1, 4, 67, 41), (4, 1, 63, 70), group=4, strides=[3, 1],
          dilations=[2, 1], pads=[61, 40, 60, 31], **_LAST),
)  # fmt: skip
# Phases of two taps, of one and of none along an axis; walks that end within a column; channels first and last.
DEPTHWISE_TRANSPOSED = (
    _gemm("conv_transpose_depthwise_float32_2d", (2, 5, 11, 23), (5, 1, 4, 5), group=5, kinds=_INFINITE_WEIGHTS,
          strides=[2, 3], pads=[1, 2, 0, 3], output_padding=[1, 0]),
    _gemm("conv_transpose_depthwise_bfloat16_2d", (3, 6, 9, 13), (6, 2, 3, 7), group=6, kinds=_INFINITE_INPUTS,
          strides=[4, 5], pads=[0, 3, 1, 2], **_LAST),
    _gemm("conv_transpose_depthwise_float64_2d", (2, 3, 150), (3, 1, 6), group=3, strides=[4], pads=[2, 1],
          layout="reversed", out="fortran", bias=False),
)  # fmt: skip
# Channels that are no whole slices; rows of x of whole 16 bytes, and others.
POINTWISE = (
    _gemm("conv_pointwise_float32_1d_128x128x16", (3, 35, 13, 11), (300, 35, 1, 1), out="reversed"),
    _gemm("conv_pointwise_float32_1d_64x64x16", (3, 40, 4, 3, 7), (300, 20, 1, 1, 1), group=2, bias=False),
    _gemm("conv_pointwise_float32_1d_64x64x16", (5, 21, 68), (140, 21, 1), kinds=_INFINITE_WEIGHTS),
)  # fmt: skip
# Of one tap on tensor cores: images of whole copies of 16, 8 and 4 bytes, channels side by side; slices that are not
# whole.
MATRIX = (
    _gemm("conv_matrix_float16_3d_mma_64x128x64_pixels", (2, 72, 12, 14), (300, 72, 1, 1), kinds=_INFINITE_INPUTS,
          out="strided"),
    _gemm("conv_matrix_float16_3d_mma_64x128x64_pixels", (3, 80, 10, 14), (280, 40, 1, 1), group=2, bias=False),
    _gemm("conv_matrix_bfloat16_3d_mma_64x64x64_pixels", (3, 136, 3, 5, 6), (140, 136, 1, 1, 1),
          kinds=_INFINITE_WEIGHTS, out="channels last"),
    _gemm("conv_matrix_float16_3d_mma_64x128x64_channels", (2, 72, 9, 41), (300, 72, 1, 1), strides=[1, 2],
          layout="channels last", out="fortran"),
    _gemm("conv_matrix_bfloat16_3d_mma_64x128x64_channels", (2, 80, 9, 23), (280, 40, 1, 1), group=2,
          layout="channels last", kinds=_INFINITE_INPUTS),
    _gemm("conv_matrix_float16_3d_mma_64x64x64_channels", (2, 72, 7, 11), (140, 72, 1, 1), pads=[1, 0, 2, 1],
          layout="channels last", kinds=_INFINITE_WEIGHTS),
    _gemm("conv_matrix_float32_3d_tf32_64x128x32_pixels", (2, 36, 13, 12), (300, 36, 1, 1), kinds=_INFINITE_WEIGHTS),
    _gemm("conv_matrix_float32_3d_tf32_64x128x32_pixels", (3, 72, 143), (280, 36, 1), group=2, out="reversed"),
    _gemm("conv_matrix_float32_3d_tf32_64x64x32_pixels", (3, 40, 10, 13), (140, 40, 1, 1), kinds=_INFINITE_INPUTS),
    _gemm("conv_matrix_float32_3d_3xtf32_64x64x32_pixels", (3, 36, 9, 14), (300, 36, 1, 1), kinds=_INFINITE_INPUTS),
    _gemm("conv_matrix_float32_3d_3xtf32_64x64x32_pixels", (2, 40, 12, 12), (140, 40, 1, 1), kinds=_INFINITE_WEIGHTS),
)  # fmt: skip
TRANSPOSED = (
    _gemm("conv_transpose_float32_3d_64x64x16_uniform", (2, 32, 7, 11), (32, 140, 3, 4), out="fortran",
          **_TRANSPOSE_2D),
    _gemm("conv_transpose_float32_3d_16x128x16", (2, 2, 9, 16), (2, 40, 4, 17), group=2,
          kinds=_INFINITE_WEIGHTS, layout="reversed", **_TRANSPOSE_2D),
    _gemm("conv_transpose_float16_3d_64x64x16", (2, 9, 8, 17), (9, 137, 5, 6), kinds=_INFINITE_INPUTS,
          layout="fortran", **_TRANSPOSE_SHARED),
    _gemm("conv_transpose_float16_3d_64x64x16", (1, 32, 7, 10), (32, 130, 5, 4), group=2, layout="strided",
          out="channels last", kinds=_INFINITE_WEIGHTS, **_TRANSPOSE_SHARED),
    _gemm("conv_transpose_float64_4d_64x64x16_wide", (1, 7, 4, 5, 7), (7, 140, 3, 2, 2), kinds=_INFINITE_INPUTS,
          layout="reversed", out="strided", **_TRANSPOSE_3D),
    _gemm("conv_transpose_float32_4d_64x64x16_uniform_wide", (2, 48, 70), (48, 130, 7), bias=False,
          strides=[3], pads=[2, 3], dilations=[2], kinds=_INFINITE_WEIGHTS),
    _gemm("conv_transpose_bfloat16_3d_64x64x16", (2, 11, 140), (11, 135, 9), strides=[2], pads=[4, 3],
          dilations=[2], layout="channels last"),
    _gemm("conv_transpose_bfloat16_4d_64x64x16_wide", (2, 5, 7, 11), (5, 140, 3, 13), kinds=_INFINITE_WEIGHTS,
          out="reversed", **_TRANSPOSE_2D),
)  # fmt: skip
# A stride along W of 3 and of 2, and a first phase along W without any tap.
INTERLEAVED = (
    _gemm("conv_transpose_interleaved_float32_3d_64x128x16_uniform", (2, 48, 9, 17), (48, 140, 3, 4), **_TRANSPOSE_2D),
    _gemm("conv_transpose_interleaved_float32_3d_64x64x16_uniform", (2, 48, 9, 17), (48, 140, 3, 4), **_TRANSPOSE_2D),
    _gemm("conv_transpose_interleaved_float32_3d_16x128x8_uniform", (2, 16, 9, 16), (16, 40, 4, 7), group=2,
          kinds=_INFINITE_WEIGHTS, layout="reversed", **_TRANSPOSE_2D),
    _gemm("conv_transpose_interleaved_float16_3d_16x128x8", (2, 9, 8, 17), (9, 37, 5, 6), kinds=_INFINITE_INPUTS,
          layout="fortran", **_TRANSPOSE_SHARED),
    _gemm("conv_transpose_interleaved_float16_3d_64x64x16", (1, 32, 7, 10), (32, 130, 5, 4), group=2,
          layout="strided", kinds=_INFINITE_WEIGHTS, **_TRANSPOSE_SHARED),
    _gemm("conv_transpose_interleaved_float64_3d_64x64x16", (2, 13, 75), (13, 137, 6), bias=False, strides=[2],
          pads=[2, 3], dilations=[3], kinds=_INFINITE_WEIGHTS),
    _gemm("conv_transpose_interleaved_float64_3d_16x128x16", (1, 7, 5, 9, 8), (7, 37, 3, 2, 3), strides=[3, 1, 2],
          pads=[1, 0, 2, 0, 1, 1], dilations=[2, 3, 1], kinds=_INFINITE_INPUTS, layout="reversed"),
    _gemm("conv_transpose_interleaved_bfloat16_3d_64x64x16", (2, 48, 70), (48, 130, 7), strides=[2],
          pads=[2, 3], dilations=[3], kinds=_INFINITE_WEIGHTS),
)  # fmt: skip
DISJOINT = (
    _gemm("conv_transpose_depth_to_space_float32_3d_64x64x16", (2, 53, 11, 17), (53, 30, 2, 3), strides=[2, 3],
          pads=[1, 2, 0, 4], dilations=[1, 1], kinds=_INFINITE_WEIGHTS, out="channels last"),
    _gemm("conv_transpose_depth_to_space_float32_3d_16x128x16", (2, 66, 9, 17), (66, 9, 1, 5), group=2,
          strides=[1, 5], pads=[0, 3, 2, 1], dilations=[1, 1], kinds=_INFINITE_INPUTS),
    _gemm("conv_transpose_depth_to_space_float64_3d_64x64x16", (1, 60, 4, 5, 9), (60, 15, 2, 3, 2), strides=[2, 3, 2],
          pads=[1, 0, 1, 0, 2, 1], dilations=[1, 1, 1], layout="reversed", out="fortran"),
    _gemm("conv_transpose_depth_to_space_float16_3d_64x64x16", (2, 53, 9, 11), (53, 36, 3, 2), strides=[3, 2],
          pads=[2, 1, 0, 3], dilations=[1, 1], kinds=_INFINITE_WEIGHTS, bias=False, out="reversed"),
    _gemm("conv_transpose_depth_to_space_bfloat16_3d_16x128x16", (3, 50, 130), (50, 9, 4), strides=[4], pads=[3, 2],
          dilations=[1], out="strided"),
)  # fmt: skip
DISJOINT_TENSOR = (
    _gemm("conv_transpose_matrix_float16_3d_mma_64x128x64", (2, 72, 13, 20), (72, 50, 3, 2), strides=[3, 2],
          pads=[2, 1, 0, 3], dilations=[1, 1], kinds=_INFINITE_WEIGHTS, bias=False),
    _gemm("conv_transpose_matrix_bfloat16_3d_mma_64x128x64", (3, 136, 134), (136, 38, 4), strides=[4], pads=[3, 2],
          dilations=[1]),
    _gemm("conv_transpose_matrix_float32_3d_tf32_128x128x32", (2, 66, 9, 17), (66, 60, 1, 5), group=2, strides=[1, 5],
          pads=[0, 3, 2, 1], dilations=[1, 1], kinds=_INFINITE_INPUTS),
    _gemm("conv_transpose_matrix_float32_3d_3xtf32_128x128x32", (2, 40, 4, 5, 9), (40, 30, 2, 3, 2), strides=[2, 3, 2],
          pads=[1, 0, 1, 0, 2, 1], dilations=[1, 1, 1], kinds=_INFINITE_WEIGHTS),
    # ... outputs along W two at once
    _gemm("conv_transpose_matrix_float32_3d_tf32_128x128x32", (2, 36, 9, 18), (36, 50, 3, 2), strides=[3, 2],
          pads=[2, 0, 1, 2], dilations=[1, 1], kinds=_INFINITE_INPUTS),
)  # fmt: skip
# All phases are rows: some with a tap less than others, of blocks that the padding cuts off, and that no input reaches.
PHASE_ROWS = (
    _gemm("conv_transpose_phase_rows_float16_3d_mma_16x128x64_vector", (2, 72, 13, 20), (72, 9, 5, 4), strides=[2, 2],
          pads=[2, 1, 0, 3], dilations=[1, 1], kinds=_INFINITE_WEIGHTS, layout="channels last"),
    _gemm("conv_transpose_phase_rows_bfloat16_3d_mma_16x128x64_vector", (2, 16, 11, 19), (16, 12, 3, 7), group=2,
          strides=[1, 3], pads=[0, 5, 2, 1], dilations=[2, 1], output_padding=[0, 2], kinds=_INFINITE_INPUTS,
          layout="channels last", out="channels last"),
    _gemm("conv_transpose_phase_rows_float16_3d_mma_32x256x64_vector_split", (2, 40, 17, 26), (40, 6, 7, 5),
          strides=[3, 4], pads=[4, 1, 3, 2], dilations=[1, 1], layout="channels last", bias=False, out="reversed"),
    _gemm("conv_transpose_phase_rows_bfloat16_3d_mma_32x256x64_vector", (3, 48, 5, 9, 20), (48, 7, 2, 1, 3),
          strides=[2, 3, 2], pads=[1, 0, 1, 0, 2, 0], dilations=[1, 1, 1], output_padding=[1, 0, 1],
          kinds=_INFINITE_WEIGHTS, layout="channels last", out="strided"),
    _gemm("conv_transpose_phase_rows_float64_3d_mma_64x64x16_scalar_split", (2, 21, 4, 5, 9), (21, 33, 3, 2, 5),
          strides=[2, 1, 2], pads=[1, 0, 2, 0, 1, 1], dilations=[1, 3, 1], kinds=_INFINITE_INPUTS, layout="reversed"),
    _gemm("conv_transpose_phase_rows_float32_3d_128x128x16_uniform", (2, 32, 9, 17), (32, 45, 3, 4), strides=[2, 3],
          pads=[1, 2, 0, 3], dilations=[1, 1], output_padding=[1, 0], kinds=_INFINITE_WEIGHTS, out="channels last"),
    _gemm("conv_transpose_phase_rows_float32_3d_128x128x16_uniform_split", (2, 48, 130), (48, 90, 5), strides=[4],
          pads=[1, 2], dilations=[1], kinds=_INFINITE_INPUTS, layout="channels last"),
)  # fmt: skip
# All taps along W are rows, of Conv and of ConvTranspose, whose taps run backwards: tiles with rows of no filter, and
# taps that reach over a quarter of a tile.
TAP_ROWS = (
    _gemm("conv_tap_rows_float16_3d_mma_32x256x64_vector", (2, 72, 13, 40), (14, 72, 3, 5), strides=[2, 1],
          pads=[1, 2, 0, 3], dilations=[1, 2], kinds=_INFINITE_WEIGHTS, layout="channels last"),
    _transposed("conv_tap_rows_bfloat16_3d_mma_32x256x64_vector", (2, 32, 11, 33), (32, 9, 2, 7), group=2,
                strides=[1, 1], pads=[0, 2, 1, 3], dilations=[3, 1], kinds=_INFINITE_INPUTS, layout="channels last",
                out="channels last"),
    _gemm("conv_tap_rows_float16_3d_mma_64x256x64_vector", (3, 40, 5, 6, 40), (33, 40, 2, 1, 4), strides=[2, 1, 1],
          pads=[1, 0, 2, 0, 1, 3], dilations=[1, 2, 3], layout="channels last", bias=False, out="reversed"),
    _gemm("conv_tap_rows_bfloat16_3d_mma_64x256x64_vector", (3, 24, 400), (5, 24, 31), strides=[1], pads=[7, 9],
          dilations=[2], kinds=_INFINITE_WEIGHTS, layout="channels last"),
    _transposed("conv_tap_rows_float32_3d_tf32_32x256x32_vector", (2, 20, 17, 30), (20, 17, 3, 4), strides=[1, 1],
                pads=[1, 0, 2, 3], dilations=[1, 2], layout="channels last", out="strided"),
    _gemm("conv_tap_rows_float32_3d_tf32_64x256x32_vector_split", (2, 36, 14, 33), (25, 36, 2, 7), strides=[2, 1],
          pads=[0, 3, 1, 2], dilations=[2, 1], kinds=_INFINITE_INPUTS, layout="channels last"),
    _gemm("conv_tap_rows_float32_3d_3xtf32_16x128x16_vector", (2, 16, 9, 25), (24, 8, 2, 3), group=2, strides=[1, 1],
          pads=[1, 2, 0, 1], dilations=[1, 3], kinds=_INFINITE_WEIGHTS, layout="channels last"),
    _transposed("conv_tap_rows_float32_3d_3xtf32_64x64x16_vector_split", (2, 12, 7, 20), (12, 46, 2, 3), strides=[1, 1],
                pads=[1, 0, 0, 2], dilations=[2, 1], kinds=_INFINITE_INPUTS, layout="channels last",
                out="channels last"),
    _gemm("conv_tap_rows_float64_3d_mma_64x64x16_scalar_split", (2, 9, 8, 21), (20, 9, 2, 7), strides=[2, 1],
          pads=[1, 4, 0, 2], dilations=[1, 2], kinds=_INFINITE_WEIGHTS, layout="reversed"),
    _gemm("conv_tap_rows_float16_3d_mma_128x128x32_scalar", (2, 40, 13, 21), (51, 40, 3, 5), strides=[2, 1],
          pads=[1, 2, 0, 3], dilations=[1, 2], kinds=_INFINITE_WEIGHTS, layout="reversed"),
    _transposed("conv_tap_rows_bfloat16_3d_mma_128x128x32_scalar_split", (2, 33, 9, 17), (33, 65, 2, 4), strides=[1, 1],
                pads=[0, 2, 1, 3], dilations=[3, 1], kinds=_INFINITE_INPUTS, out="channels last"),
    _gemm("conv_tap_rows_float32_3d_tf32_128x128x16_scalar", (3, 20, 150), (54, 20, 5), strides=[1], pads=[3, 2],
          dilations=[3], kinds=_INFINITE_WEIGHTS, bias=False, out="strided"),
    _gemm("conv_tap_rows_float32_3d_128x128x16_uniform", (2, 32, 13, 21), (102, 16, 3, 5), group=2, strides=[2, 1],
          pads=[1, 2, 0, 3], dilations=[1, 2], kinds=_INFINITE_INPUTS, out="strided"),
    _transposed("conv_tap_rows_float32_3d_64x64x16_uniform", (2, 16, 9, 17), (16, 33, 2, 4), strides=[1, 1],
                pads=[0, 2, 1, 3], dilations=[3, 1], kinds=_INFINITE_WEIGHTS, layout="channels last",
                out="channels last"),
    _gemm("conv_tap_rows_float32_3d_64x64x16", (2, 5, 4, 5, 20), (43, 5, 2, 1, 3), strides=[1, 2, 1],
          pads=[1, 0, 2, 0, 1, 3], dilations=[1, 2, 3], kinds=_INFINITE_WEIGHTS, bias=False, layout="reversed"),
    # ... with strides along W, runs of taps, of which the last is shorter
    _gemm("conv_tap_rows_float16_3d_mma_64x256x64_vector", (2, 72, 13, 60), (43, 72, 3, 5), strides=[1, 2],
          pads=[1, 2, 0, 3], dilations=[2, 1], kinds=_INFINITE_WEIGHTS, layout="channels last", out="channels last"),
    _gemm("conv_tap_rows_bfloat16_3d_mma_128x128x32_scalar", (3, 37, 11, 90), (90, 37, 2, 7), strides=[2, 3],
          pads=[0, 4, 1, 2], dilations=[2, 1], kinds=_INFINITE_INPUTS, layout="reversed"),
    _gemm("conv_tap_rows_float32_3d_64x64x16", (2, 5, 7, 61), (70, 5, 2, 5), strides=[1, 4], pads=[1, 2, 0, 3],
          dilations=[2, 1], kinds=_INFINITE_WEIGHTS, bias=False, out="strided"),
    _gemm("conv_tap_rows_float32_3d_128x128x16_uniform", (2, 32, 9, 80), (140, 16, 3, 7), group=2, strides=[1, 2],
          pads=[1, 4, 0, 3], dilations=[2, 1], kinds=_INFINITE_INPUTS, layout="channels last"),
    _gemm("conv_tap_rows_float32_3d_3xtf32_64x64x16_vector", (1, 12, 5, 6, 33), (70, 12, 2, 1, 3), strides=[1, 3, 2],
          pads=[1, 0, 2, 0, 1, 1], dilations=[1, 2, 1], kinds=_INFINITE_WEIGHTS, layout="channels last"),
    # ... K of each in several shares
    _gemm("conv_tap_rows_float32_3d_64x64x16_split", (2, 21, 9, 20), (43, 21, 2, 3), strides=[2, 1],
          pads=[1, 0, 1, 3], dilations=[1, 2], kinds=_INFINITE_INPUTS, layout="reversed"),
    _gemm("conv_tap_rows_float32_3d_128x128x16_uniform_split", (3, 32, 170), (70, 32, 7), strides=[1], pads=[4, 1],
          dilations=[1], kinds=_INFINITE_WEIGHTS, layout="channels last"),
    _transposed("conv_tap_rows_bfloat16_3d_mma_64x256x64_vector_split", (2, 104, 9, 33), (104, 33, 2, 5),
                strides=[1, 1], pads=[0, 2, 1, 3], dilations=[1, 2], layout="channels last", out="channels last"),
)  # fmt: skip

_POOL_2D: dict[str, Any] = {"kernel_shape": [3, 4], "strides": [2, 1], "pads": [4, 3, 3, 2], "dilations": [1, 2]}
_POOL_2D_TURNED: dict[str, Any] = {
    "kernel_shape": [4, 2], "strides": [1, 3], "pads": [11, 1, 4, 2], "dilations": [3, 2], "ceil_mode": 1,
}  # fmt: skip
_POOL_3D: dict[str, Any] = {
    "kernel_shape": [2, 3, 5], "strides": [1, 2, 1], "pads": [4, 3, 2, 0, 2, 4], "dilations": [2, 3, 1],
    "storage_order": 1,
}  # fmt: skip

POOLS = (
    _pool("max_pool_float32_3d", (2, 3, 21, 14), "ties", out="channels last", **_POOL_2D),
    _pool("max_pool_float32_3d", (2, 9, 13, 8), "ties", "channels last", "channels last", **_POOL_2D),
    _pool("max_pool_float64_4d_wide", (2, 7, 5, 12, 9), "nonfinite", "channels last", "channels last", **_POOL_3D),
    _pool("max_pool_float32_4d_wide", (2, 3, 9, 52), "nonfinite", "reversed", **_POOL_2D_TURNED),
    _pool("max_pool_float16_3d", (3, 2, 13, 40), "nonfinite", "channels last", **_POOL_2D_TURNED),
    _pool("max_pool_bfloat16_4d_wide", (3, 2, 20, 15), "nonfinite", "strided", "reversed", **_POOL_2D),
    _pool("max_pool_float64_3d", (2, 2, 5, 12, 9), "nonfinite", "fortran", "strided", **_POOL_3D),
    _pool("max_pool_int8_4d_wide", (2, 2, 5, 12, 9), "any integer", **_POOL_3D),
    _pool("max_pool_uint8_3d", (2, 3, 150), "any integer", "broadcast", kernel_shape=[5], strides=[1], pads=[9, 8],
          dilations=[2]),
    _pool("max_pool_float16_4d_wide", (2, 3, 150), "lowest", kernel_shape=[7], strides=[1], pads=[20, 8],
          dilations=[3]),
)  # fmt: skip

_AVERAGE_2D: dict[str, Any] = {
    "kernel_shape": [3, 4], "strides": [2, 1], "pads": [4, 3, 3, 2], "dilations": [1, 2], "count_include_pad": 1,
}  # fmt: skip
_AVERAGE_3D: dict[str, Any] = {
    "kernel_shape": [2, 3, 5], "strides": [1, 2, 1], "pads": [4, 3, 2, 0, 2, 4], "dilations": [2, 3, 1],
}  # fmt: skip
# Windows of nothing, pads that count and others, what ceil_mode adds; every family of kernels.
AVERAGES = (
    _average("average_pool_float32_3d", (2, 3, 21, 14), "integers", out="channels last", **_AVERAGE_2D),
    _average("average_pool_float16_3d", (2, 2, 5, 12, 9), "nonfinite", "channels last", "channels last",
             **_AVERAGE_3D),
    _average("average_pool_float64_4d_wide", (2, 7, 5, 12, 9), "integers", "reversed", **_AVERAGE_3D),
    _average("average_pool_bfloat16_4d_wide", (3, 2, 20, 15), "nonfinite", "strided", "reversed", **_AVERAGE_2D),
    _average("average_pool_float32_3d_vectors_3x2", (3, 7, 17, 40), "integers", out="strided rows",
             kernel_shape=[3, 3], strides=[2, 2], pads=[2, 1, 1, 0], count_include_pad=1),
    _average("average_pool_float16_3d_vectors_3x2", (2, 5, 2, 23, 88), "integers", kernel_shape=[2, 3, 3],
             strides=[1, 2, 2], pads=[1, 1, 0, 0, 2, 0], out="strided rows"),
    _average("average_pool_bfloat16_3d_vectors_3x1", (3, 9, 21, 48), "integers", "strided rows", kernel_shape=[3, 3],
             pads=[1, 2, 2, 0]),
    _average("average_pool_float64_3d_vectors_2x2", (2, 9, 3, 29, 28), "nonfinite", "off the vectors",
             kernel_shape=[3, 2, 2], strides=[2, 2, 2], pads=[2, 1, 0, 1, 0, 0], ceil_mode=1, count_include_pad=1),
    _average("average_pool_float32_3d_channels", (2, 20, 9, 22, 31), "integers", "channels last", "channels last",
             kernel_shape=[2, 4, 3], strides=[1, 3, 2], pads=[1, 3, 2, 0, 1, 1], count_include_pad=1),
    _average("average_pool_bfloat16_3d_channels", (3, 16, 31, 33), "integers", "strided pixels", "strided pixels",
             kernel_shape=[3, 5], strides=[2, 1], pads=[1, 2, 0, 4]),
    _average("average_pool_float64_3d_channels", (2, 10, 28, 23), "nonfinite", "pixels off the vectors",
             "channels last", kernel_shape=[4, 2], strides=[1, 3], pads=[2, 1, 0, 1], ceil_mode=1),
    _average("average_pool_float32_3d_tiles", (2, 2, 31, 600), "integers", kernel_shape=[4, 7], strides=[2, 1],
             dilations=[1, 2], pads=[2, 3, 1, 4], count_include_pad=1),
    _average("average_pool_float16_3d_tiles", (2, 3, 53, 160), "integers", kernel_shape=[5, 4], strides=[3, 2],
             dilations=[1, 2], pads=[2, 1, 0, 3], out="strided rows"),
    _average("average_pool_bfloat16_3d_tiles", (71, 23, 5, 7), "integers", kernel_shape=[4, 2], strides=[1, 2],
             dilations=[1, 2], pads=[3, 0, 2, 1]),
    _average("average_pool_float32_3d_tiles", (2, 3, 26, 64), "nonfinite", "off the vectors", kernel_shape=[7, 5],
             strides=[1, 2], dilations=[2, 1], pads=[3, 0, 2, 4], ceil_mode=1, count_include_pad=1),
    _average("average_pool_float64_3d_tiles", (3, 5, 3, 17, 32), "integers", kernel_shape=[2, 3, 9],
             strides=[1, 2, 1], dilations=[2, 3, 2], pads=[1, 2, 9, 1, 4, 7]),
    _average("average_pool_float32_3d_patches", (2, 16, 29, 37), "integers", "channels last", "channels last",
             kernel_shape=[5, 7], strides=[1, 2], dilations=[2, 1], pads=[3, 4, 2, 1], count_include_pad=1),
    _average("average_pool_float16_3d_patches", (1, 32, 5, 21, 26), "integers", "channels last", "strided pixels",
             kernel_shape=[3, 4, 6], strides=[2, 1, 1], dilations=[1, 2, 1], pads=[1, 2, 3, 0, 1, 4]),
    _average("average_pool_float64_3d_patches", (2, 6, 33, 25), "nonfinite", "pixels off the vectors",
             "channels last", kernel_shape=[6, 4], strides=[2, 3], dilations=[1, 2], pads=[1, 3, 4, 0], ceil_mode=1),
)  # fmt: skip

# Rows of whole vectors and others, tiles that end within the plane, all that the forms leave free as unequal as can be.
DIRECT = (
    _gemm("depthwise_float32_3d_3x3s1", (2, 5, 33, 150), (10, 1, 3, 3), group=5, pads=[1, 0, 2, 1]),
    _gemm("depthwise_bfloat16_3d_3x3s1", (1, 3, 5, 20, 40), (3, 1, 2, 3, 3), group=3, strides=[2, 1, 1],
          dilations=[3, 1, 1], pads=[2, 1, 1, 1, 1, 0], kinds=_INFINITE_INPUTS),
    _gemm("depthwise_float16_3d_3x3s2", (2, 3, 40, 90), (9, 1, 3, 3), group=3, strides=[2, 2], pads=[1, 1, 0, 2],
          kinds=_INFINITE_WEIGHTS),
    _gemm("depthwise_float64_3d_5x5s1", (2, 3, 17, 38), (3, 1, 5, 5), group=3, pads=[2, 3, 1, 2], bias=False),
    _gemm("depthwise_float32_3d_5x5s2", (3, 2, 31, 29), (2, 1, 5, 5), group=2, strides=[2, 2], pads=[2, 0, 1, 2]),
    _gemm("depthwise_float32_3d_7x7s1", (3, 3, 18, 24), (3, 1, 7, 7), group=3, pads=[3, 3, 3, 3],
          kinds=_INFINITE_WEIGHTS),
    _gemm("depthwise_bfloat16_3d_7x7s2", (3, 2, 26, 44), (2, 1, 7, 7), group=2, strides=[2, 2], pads=[2, 3, 4, 2]),
    _gemm("depthwise_float32_3d_rows", (2, 2, 23, 45), (4, 1, 9, 6), group=2, pads=[5, 3, 4, 1]),
    _gemm("depthwise_float16_3d_line", (3, 2, 1100), (2, 1, 6), group=2, pads=[5, 0], kinds=_INFINITE_INPUTS),
    _gemm("depthwise_float32_3d_taps", (2, 3, 5, 13, 36), (6, 1, 2, 3, 4), group=3, **_CONV_3D),
    _gemm("grouped_float32_3d_3x3s1", (2, 15, 22, 30), (27, 5, 3, 3), group=3, pads=[0, 1, 2, 1]),
    _gemm("grouped_float64_3d_3x3s2", (3, 8, 17, 20), (10, 4, 3, 3), group=2, strides=[2, 2], pads=[1, 1, 1, 1],
          kinds=_INFINITE_WEIGHTS),
    _gemm("grouped_float32_3d_taps", (2, 50, 9, 37), (40, 25, 3, 2), group=2, **_CONV_2D_TURNED),
    # Phases: of rows and columns, of either alone, more of them than rows; of every stride-th place.
    _gemm("depthwise_float32_3d_7x7s1", (2, 3, 30, 41), (6, 1, 7, 7), group=3, dilations=[3, 4], pads=[8, 12, 10, 13]),
    _gemm("depthwise_float16_3d_3x3s1", (2, 3, 37, 70), (3, 1, 3, 3), group=3, strides=[2, 1], dilations=[6, 3],
          pads=[6, 0, 5, 7], kinds=_INFINITE_WEIGHTS),
    _gemm("depthwise_bfloat16_3d_5x5s1", (1, 2, 5, 23, 40), (2, 1, 2, 5, 5), group=2, dilations=[3, 4, 1],
          pads=[2, 7, 1, 1, 8, 2], kinds=_INFINITE_INPUTS),
    _gemm("depthwise_float32_3d_rows", (2, 2, 26, 85), (4, 1, 4, 6), group=2, strides=[1, 2], dilations=[1, 10],
          pads=[3, 21, 2, 27]),
    _gemm("depthwise_float64_3d_line", (2, 3, 700), (3, 1, 5), group=3, dilations=[6], pads=[24, 1]),
    _gemm("grouped_bfloat16_3d_3x3s1", (2, 15, 7, 54), (27, 5, 3, 3), group=3, dilations=[9, 8], pads=[9, 6, 8, 9],
          kinds=_INFINITE_WEIGHTS),
)  # fmt: skip

# Windows that the faster kernels take: rows of whole vectors, with lanes that help on either side, on both, on none ...
VECTOR_POOLS = (
    _pool("max_pool_float32_3d_vectors_3x2", (3, 7, 17, 40), "nonfinite", out="strided rows", kernel_shape=[3, 3],
          strides=[2, 2], pads=[2, 1, 1, 0]),
    _pool("max_pool_float16_3d_vectors_3x2", (2, 5, 2, 23, 88), "nonfinite", kernel_shape=[2, 3, 3], strides=[1, 2, 2],
          pads=[1, 1, 0, 0, 2, 0], out="strided rows"),
    _pool("max_pool_bfloat16_3d_vectors_3x1", (3, 9, 21, 48), "zeros", "strided rows", kernel_shape=[3, 3],
          pads=[1, 2, 2, 0]),
    _pool("max_pool_float64_3d_vectors_3x1", (2, 7, 3, 12, 16), "lowest", kernel_shape=[3, 3, 3], strides=[2, 1, 1],
          pads=[1, 0, 1, 0, 2, 1]),
    _pool("max_pool_int8_3d_vectors_3x2", (4, 11, 27, 80), "any integer", out="strided rows", kernel_shape=[3, 3],
          strides=[2, 2], pads=[1, 0, 0, 2], ceil_mode=1),
    _pool("max_pool_uint8_3d_vectors_2x2", (5, 7, 41, 112), "the ends", kernel_shape=[2, 2], strides=[2, 2],
          pads=[1, 0, 0, 1], ceil_mode=1),
    _pool("max_pool_float32_3d_vectors_2x2", (2, 6, 3, 19, 28), "ties", "off the vectors", kernel_shape=[3, 2, 2],
          strides=[2, 2, 2], pads=[2, 1, 0, 1, 0, 0]),
    _pool("max_pool_float16_3d_vectors_3x2", (11, 17, 9, 16), "nonfinite", kernel_shape=[3, 3], strides=[2, 2],
          pads=[0, 1, 1, 2]),
    _pool("max_pool_float32_3d_vectors_3x1", (2, 7, 9, 44), "normal", kernel_shape=[3, 3], pads=[2, 1, 0, 1]),
    _pool("max_pool_uint8_3d_vectors_3x1", (5, 7, 13, 48), "the ends", "off the vectors", kernel_shape=[3, 3],
          pads=[2, 1, 0, 2]),
)  # fmt: skip
# ... tiles: strides, dilations, windows that share all taps but one and others, with rows between them that none has,
# vectors of x and single elements of it, whole planes and parts of rows, small planes together, and planes of one row.
TILE_POOLS = (
    _pool("max_pool_float32_3d_tiles", (2, 2, 31, 600), "nonfinite", kernel_shape=[4, 7], strides=[2, 1],
          dilations=[1, 2], pads=[2, 3, 1, 4]),
    _pool("max_pool_float16_3d_tiles", (2, 3, 53, 160), "nonfinite", kernel_shape=[5, 4], strides=[3, 2],
          dilations=[1, 2], pads=[2, 1, 0, 3], out="strided rows"),
    _pool("max_pool_bfloat16_3d_tiles", (3, 5, 3, 17, 32), "nonfinite", kernel_shape=[2, 3, 9], strides=[1, 2, 1],
          dilations=[2, 3, 2], pads=[1, 2, 9, 1, 4, 7]),
    _pool("max_pool_int8_3d_tiles", (4, 31, 13, 32), "any integer", kernel_shape=[6, 4], strides=[2, 1],
          dilations=[2, 1], pads=[3, 1, 5, 2]),
    _pool("max_pool_uint8_3d_tiles", (2, 2, 60, 141), "the ends", "strided rows", kernel_shape=[4, 5], strides=[2, 3],
          dilations=[2, 1], pads=[1, 0, 2, 4], ceil_mode=1),
    _pool("max_pool_float64_3d_tiles", (3, 7, 900), "lowest", kernel_shape=[8], dilations=[3], pads=[5, 2]),
    _pool("max_pool_float32_3d_tiles", (2, 3, 26, 64), "ties", "off the vectors", kernel_shape=[7, 5],
          strides=[1, 2], dilations=[2, 1], pads=[3, 0, 2, 4]),
    _pool("max_pool_uint8_3d_tiles", (2, 3, 14, 1600), "any integer", kernel_shape=[3, 5], strides=[1, 2],
          dilations=[2, 1], pads=[1, 3, 0, 2]),
    _pool("max_pool_uint8_3d_tiles", (2, 2, 105, 37), "the ends", kernel_shape=[2, 3], strides=[3, 1],
          dilations=[1, 2], pads=[1, 2, 0, 1], out="strided rows"),
    _pool("max_pool_bfloat16_3d_tiles", (2, 3, 45, 37), "zeros", "strided rows", kernel_shape=[2, 3], strides=[3, 2],
          dilations=[2, 1], pads=[1, 2, 0, 1]),
    _pool("max_pool_bfloat16_3d_tiles", (71, 23, 5, 7), "nonfinite", kernel_shape=[4, 2], strides=[1, 2],
          dilations=[1, 2], pads=[3, 0, 2, 1]),
    _pool("max_pool_int8_3d_tiles", (2, 3, 60, 29), "any integer", kernel_shape=[1, 13], strides=[2, 1],
          dilations=[1, 2], pads=[0, 9, 0, 12]),
    _pool("max_pool_float64_3d_tiles", (2, 3, 1901), "lowest", kernel_shape=[3], strides=[3], pads=[2, 1]),
    _pool("max_pool_float64_3d_tiles", (2, 3, 4, 31, 38), "nonfinite", kernel_shape=[2, 7, 5],
          strides=[2, 1, 1], dilations=[1, 1, 2], pads=[1, 3, 2, 0, 4, 1]),
)  # fmt: skip
# ... vectors of channels: walks along rows that share columns, outputs one by one, pixels off the vectors, channels
# that are no whole vectors.
CHANNEL_POOLS = (
    _pool("max_pool_float16_3d_channels", (2, 72, 31, 37), "nonfinite", "channels last", "strided pixels",
          kernel_shape=[2, 3], strides=[3, 2], pads=[1, 2, 0, 1]),
    _pool("max_pool_bfloat16_3d_channels", (2, 40, 5, 12, 15), "zeros", "strided pixels", "channels last",
          kernel_shape=[2, 4, 3], strides=[2, 3, 1], pads=[1, 3, 2, 0, 1, 0]),
    _pool("max_pool_float32_3d_channels", (3, 12, 23, 19), "nonfinite", "channels last", "channels last",
          kernel_shape=[3, 5], strides=[1, 2], pads=[0, 4, 2, 3], ceil_mode=1),
    _pool("max_pool_float64_3d_channels", (2, 14, 25, 15), "lowest", "channels last", "strided pixels",
          kernel_shape=[3, 2], strides=[2, 1], pads=[2, 1, 0, 1]),
    _pool("max_pool_int8_3d_channels", (3, 48, 41, 14), "any integer", "channels last", "channels last",
          kernel_shape=[7, 2], strides=[2, 3], pads=[5, 1, 6, 0]),
    _pool("max_pool_uint8_3d_channels", (2, 112, 11, 29), "the ends", "pixels off the vectors", "channels last",
          kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 1, 2]),
    _pool("max_pool_bfloat16_3d_channels", (3, 43, 23, 19), "nonfinite", "channels last", "strided pixels",
          kernel_shape=[3, 2], strides=[1, 2], pads=[2, 1, 0, 1]),
    _pool("max_pool_float32_3d_channels", (2, 7, 3, 25, 17), "zeros", "channels last", "channels last",
          kernel_shape=[2, 3, 4], strides=[2, 2, 1], pads=[1, 0, 2, 0, 2, 1]),
    _pool("max_pool_int8_3d_channels", (3, 37, 41, 14), "any integer", "channels last", "channels last",
          kernel_shape=[4, 3], strides=[2, 1], pads=[3, 1, 1, 2]),
)  # fmt: skip

# ... patches of pixels: strides, dilations, parts of the channels, pixels off the vectors, channels that are none.
PATCH_POOLS = (
    _pool("max_pool_float32_3d_patches", (2, 20, 23, 31), "nonfinite", "channels last", "strided pixels",
          kernel_shape=[7, 5], strides=[1, 2], dilations=[2, 1], pads=[3, 4, 6, 1]),
    _pool("max_pool_bfloat16_3d_patches", (2, 40, 4, 13, 17), "nonfinite", "strided pixels", "channels last",
          kernel_shape=[2, 6, 3], strides=[1, 2, 1], dilations=[2, 1, 2], pads=[1, 5, 3, 2, 4, 1]),
    _pool("max_pool_int8_3d_patches", (3, 48, 41, 24), "any integer", "channels last", "channels last",
          kernel_shape=[7, 4], strides=[2, 3], dilations=[1, 2], pads=[5, 1, 6, 2]),
    _pool("max_pool_uint8_3d_patches", (2, 80, 21, 29), "the ends", "pixels off the vectors", "channels last",
          kernel_shape=[2, 9], strides=[2, 1], dilations=[3, 1], pads=[3, 4, 1, 8]),
    _pool("max_pool_float16_3d_patches", (2, 72, 26, 19), "zeros", "channels last", "strided pixels",
          kernel_shape=[5, 13], strides=[2, 1], dilations=[2, 1], pads=[0, 6, 4, 12], ceil_mode=1),
    _pool("max_pool_float64_3d_patches", (2, 14, 19, 33), "lowest", "channels last", "channels last",
          kernel_shape=[4, 5], strides=[1, 2], dilations=[3, 2], pads=[6, 3, 1, 8]),
    _pool("max_pool_float16_3d_patches", (2, 40, 29, 37), "nonfinite", "channels last", "channels last",
          kernel_shape=[6, 7], strides=[2, 1], dilations=[4, 2], pads=[3, 6, 1, 4]),
    _pool("max_pool_float32_3d_patches", (2, 19, 23, 31), "nonfinite", "channels last", "channels last",
          kernel_shape=[5, 4], strides=[1, 2], dilations=[1, 2], pads=[3, 4, 1, 2]),
    _pool("max_pool_uint8_3d_patches", (2, 71, 19, 22), "the ends", "channels last", "strided pixels",
          kernel_shape=[4, 7], strides=[2, 1], dilations=[1, 2], pads=[2, 5, 1, 8]),
)  # fmt: skip

# ... with Indices, one axis after the other: windows that share taps, one or two apart, dilated ones, single ones; the
# launch that numbers elements, along each axis, in both orders.
AXIS_POOLS = (
    _pool("max_pool_float32_3d_axis_indices", (2, 3, 17, 11, 9), "nonfinite", kernel_shape=[7, 3, 2],
          strides=[1, 2, 1], dilations=[1, 1, 2], pads=[3, 2, 0, 2, 0, 1]),
    _pool("max_pool_float16_3d_axis_indices", (2, 20, 23, 19), "nonfinite", "channels last", "strided pixels",
          kernel_shape=[9, 4], strides=[2, 1], dilations=[1, 2], pads=[4, 3, 3, 2]),
    _pool("max_pool_bfloat16_3d_axis_indices", (5, 5, 37, 14), "zeros", "strided rows", kernel_shape=[9, 2],
          strides=[2, 3], dilations=[3, 1], pads=[12, 1, 9, 0], storage_order=1),
    _pool("max_pool_float64_3d_axis_indices", (2, 14, 25, 15), "lowest", "channels last", "channels last",
          kernel_shape=[4, 3], strides=[3, 1], dilations=[1, 2], pads=[2, 1, 3, 2], ceil_mode=1),
    _pool("max_pool_int8_3d_axis_indices", (2, 3, 10, 14, 11), "the ends", "pixels off the vectors", "channels last",
          kernel_shape=[2, 6, 3], strides=[3, 1, 2], dilations=[2, 1, 3], pads=[1, 2, 5, 1, 3, 4]),
    _pool("max_pool_uint8_3d_axis_indices", (3, 7, 26, 19), "any integer", "off the vectors", "strided rows",
          kernel_shape=[10, 3], strides=[2, 1], dilations=[1, 2], pads=[9, 2, 4, 1]),
    _pool("max_pool_float32_3d_axis_numbered_indices", (3, 12, 5, 40), "nonfinite", "channels last", "channels last",
          kernel_shape=[1, 6], strides=[2, 1], dilations=[1, 3], pads=[0, 7, 0, 4]),
    _pool("max_pool_float16_3d_axis_numbered_indices", (2, 7, 31, 40), "ties", "strided rows", "strided rows",
          kernel_shape=[9, 1], strides=[2, 3], dilations=[1, 2], pads=[5, 0, 3, 0]),
    _pool("max_pool_bfloat16_3d_axis_numbered_indices", (2, 6, 4, 33, 7), "nonfinite", "strided pixels",
          "channels last", kernel_shape=[1, 10, 1], strides=[2, 1, 3], dilations=[1, 2, 1],
          pads=[0, 8, 0, 0, 11, 0], storage_order=1),
    _pool("max_pool_int8_3d_axis_numbered_indices", (2, 3, 14, 9, 11), "any integer", out="strided rows",
          kernel_shape=[4, 1, 1], strides=[1, 2, 1], dilations=[3, 1, 1], pads=[4, 0, 0, 5, 0, 0]),
)  # fmt: skip

# On tensor cores: whole slices of channels and parts of one, chunks of channels, the table of rows, phases.
TENSOR = (
    _gemm("conv_float16_3d_mma_128x128x64_vector", (2, 72, 13, 33), (300, 72, 3, 2), layout="channels last",
          kinds=_INFINITE_WEIGHTS, **_CONV_2D_TURNED),
    _gemm("conv_float16_3d_mma_128x128x32_scalar", (2, 40, 18, 26), (300, 40, 2, 3), layout="reversed", out="strided",
          **_CONV_2D),
    _gemm("conv_float16_3d_mma_64x64x32_rowwise", (2, 5, 5, 13, 18), (140, 5, 2, 3, 4), kinds=_INFINITE_WEIGHTS,
          **_CONV_3D),
    _gemm("conv_float16_3d_mma_16x128x32_scalar", (2, 66, 19, 23), (70, 33, 3, 2), group=2, kinds=_INFINITE_INPUTS,
          **_CONV_2D),
    _gemm("conv_bfloat16_3d_mma_64x64x64_vector", (2, 144, 13, 19), (280, 72, 3, 2), group=2, layout="channels last",
          out="channels last", **_CONV_2D),
    _gemm("conv_bfloat16_3d_mma_64x64x32_scalar", (2, 33, 150), (140, 33, 5), strides=[2], pads=[3, 2], dilations=[3],
          kinds=_INFINITE_WEIGHTS, bias=False),
    _gemm("conv_bfloat16_3d_mma_16x128x64_vector", (3, 16, 300), (40, 16, 4), strides=[2], pads=[3, 2], dilations=[2],
          layout="channels last", kinds=_INFINITE_INPUTS),
    _gemm("conv_bfloat16_3d_mma_64x256x64_vector", (2, 72, 21, 38), (140, 72, 2, 3), layout="channels last",
          kinds=_INFINITE_INPUTS, **_CONV_2D),
    _gemm("conv_float16_3d_mma_64x256x64_chunks", (2, 24, 21, 38), (140, 24, 3, 2), layout="channels last",
          kinds=_INFINITE_WEIGHTS, **_CONV_2D),
    _gemm("conv_bfloat16_3d_mma_32x256x64_vector", (2, 72, 21, 38), (70, 72, 2, 3), layout="channels last",
          kinds=_INFINITE_WEIGHTS, **_CONV_2D),
    _gemm("conv_float32_3d_tf32_32x256x32_chunks", (2, 12, 21, 38), (70, 12, 3, 2), layout="channels last",
          kinds=_INFINITE_INPUTS, **_CONV_2D),
    _gemm("conv_transpose_float16_3d_mma_32x256x64_vector", (2, 72, 17, 23), (72, 70, 3, 4), layout="channels last",
          out="channels last", **_TRANSPOSE_2D),
    _gemm("conv_transpose_float32_3d_tf32_64x256x32_vector", (2, 36, 17, 23), (36, 140, 3, 4), layout="channels last",
          **_TRANSPOSE_2D),
    _gemm("conv_bfloat16_3d_mma_64x64x64_chunks", (2, 80, 13, 19), (280, 40, 3, 2), group=2, layout="channels last",
          out="channels last", kinds=_INFINITE_INPUTS, **_CONV_2D),
    _gemm("conv_bfloat16_3d_mma_64x64x64_halves", (2, 12, 5, 13, 18), (140, 12, 2, 3, 4), layout="channels last",
          kinds=_INFINITE_WEIGHTS, **_CONV_3D),
    _gemm("conv_float16_3d_mma_16x128x64_chunks", (3, 16, 300), (40, 16, 14), strides=[2], pads=[3, 2], dilations=[2],
          layout="channels last", kinds=_INFINITE_INPUTS),
    _gemm("conv_float32_3d_tf32_64x64x32_chunks", (2, 3, 26, 96), (140, 3, 5, 16), strides=[2, 4], pads=[2, 8, 3, 4],
          dilations=[3, 1], kinds=_INFINITE_WEIGHTS),
    _gemm("conv_float32_3d_tf32_128x128x16_scalar", (2, 21, 18, 26), (300, 21, 3, 2), layout="fortran",
          kinds=_INFINITE_INPUTS, **_CONV_2D_TURNED),
    _gemm("conv_float32_3d_tf32_64x64x32_vector", (2, 36, 9, 23), (140, 36, 2, 3), layout="channels last",
          kinds=_INFINITE_WEIGHTS, **_CONV_2D_TURNED),
    _gemm("conv_float32_3d_tf32_64x64x16_rowwise", (2, 3, 19, 26), (140, 3, 5, 4), kinds=_INFINITE_WEIGHTS, **_CONV_2D),
    _gemm("conv_float32_3d_3xtf32_64x64x16_vector", (2, 20, 18, 26), (300, 20, 3, 2), layout="channels last",
          kinds=_INFINITE_WEIGHTS, **_CONV_2D_TURNED),
    _gemm("conv_float32_3d_3xtf32_64x64x16_scalar", (2, 20, 5, 9, 12), (140, 20, 2, 3, 2), layout="strided",
          kinds=_INFINITE_INPUTS, **_CONV_3D),
    _gemm("conv_float64_3d_mma_64x64x16_scalar", (2, 20, 13, 19), (140, 20, 3, 2), kinds=_INFINITE_WEIGHTS,
          layout="broadcast", **_CONV_2D),
    _gemm("conv_float64_3d_mma_64x64x16_rowwise", (2, 3, 13, 26), (140, 3, 5, 4), out="fortran", **_CONV_2D),
    _gemm("conv_transpose_float16_3d_mma_128x128x64_vector", (1, 72, 9, 31), (72, 300, 3, 4), layout="channels last",
          **_TRANSPOSE_2D),
    _gemm("conv_transpose_bfloat16_3d_mma_64x64x32_scalar", (2, 40, 7, 11), (40, 140, 5, 4),
          out="channels last", **_TRANSPOSE_SHARED),
    _gemm("conv_transpose_bfloat16_3d_mma_16x128x32_scalar", (2, 33, 150), (33, 40, 5), strides=[2], pads=[3, 2],
          dilations=[3], kinds=_INFINITE_INPUTS, bias=False),
    _gemm("conv_transpose_bfloat16_3d_mma_16x128x64_vector", (2, 80, 9, 23), (80, 40, 3, 4), group=2,
          layout="channels last", **_TRANSPOSE_2D),
    _gemm("conv_transpose_float32_3d_tf32_64x64x16_scalar", (2, 20, 4, 5, 7), (20, 140, 3, 2, 2), layout="reversed",
          kinds=_INFINITE_WEIGHTS, **_TRANSPOSE_3D),
    _gemm("conv_transpose_float32_3d_3xtf32_128x128x16_scalar", (1, 20, 9, 31), (20, 300, 3, 4), bias=False,
          **_TRANSPOSE_2D),
    _gemm("conv_transpose_float64_3d_mma_64x64x16_scalar", (2, 20, 7, 13), (20, 140, 3, 4), kinds=_INFINITE_WEIGHTS,
          **_TRANSPOSE_2D),
)  # fmt: skip

# Groups that make one, and one group whose filters make several tiles.
GROUPED = (
    _gemm("conv_grouped_float16_3d_mma_16x512", (2, 24, 31, 41), (160, 6, 3, 2), group=4, kinds=_INFINITE_INPUTS,
          **_CONV_2D),
    _gemm("conv_grouped_float16_3d_mma_32x512", (2, 20, 5, 13, 18), (272, 5, 2, 3, 2), group=4, layout="reversed",
          kinds=_INFINITE_WEIGHTS, **_CONV_3D),
    _gemm("conv_grouped_bfloat16_3d_mma_32x512", (3, 40, 21, 14), (200, 20, 2, 3), group=2, layout="channels last",
          out="channels last", kinds=_INFINITE_INPUTS, **_CONV_2D_TURNED),
    _gemm("conv_grouped_bfloat16_3d_mma_32x512", (2, 96, 300), (280, 48, 5), group=2, strides=[2], pads=[3, 2],
          dilations=[3], bias=False),
    _gemm("conv_grouped_float32_3d_tf32_16x512", (2, 32, 26, 30), (144, 8, 3, 2), group=4, layout="channels last",
          out="channels last", kinds=_INFINITE_WEIGHTS, **_CONV_2D),
    _gemm("conv_grouped_float32_3d_tf32_32x512", (2, 34, 26, 30), (268, 17, 2, 3), group=2, kinds=_INFINITE_INPUTS,
          **_CONV_2D_TURNED),
    _gemm("conv_grouped_float32_3d_3xtf32_16x512", (2, 24, 26, 31), (146, 12, 3, 2), group=2, out="strided",
          kinds=_INFINITE_INPUTS, **_CONV_2D),
    _gemm("conv_transpose_grouped_float16_3d_mma_16x512", (2, 12, 9, 23), (12, 35, 3, 4), group=3,
          kinds=_INFINITE_INPUTS, **_TRANSPOSE_2D),
    _gemm("conv_transpose_grouped_bfloat16_3d_mma_32x512", (2, 32, 21, 27), (32, 72, 5, 4), group=2,
          layout="channels last", out="channels last", **_TRANSPOSE_SHARED),
    _gemm("conv_transpose_grouped_float32_3d_3xtf32_16x512", (2, 12, 6, 9, 11), (12, 70, 3, 2, 2), group=2,
          kinds=_INFINITE_WEIGHTS, **_TRANSPOSE_3D),
)  # fmt: skip

# Few input channels: rows of x that are whole vectors and others, runs of channels, boxes that end within the outputs.
STEMS = (
    _gemm("conv_stem_float32_3d_32x256x7", (2, 3, 37, 88), (70, 3, 5, 7), strides=[1, 2], pads=[2, 3, 1, 2],
          dilations=[2, 1], kinds=_INFINITE_WEIGHTS),
    _gemm("conv_stem_float32_3d_32x256x3", (2, 4, 5, 15, 34), (136, 2, 2, 4, 3), group=2, strides=[2, 1, 1],
          pads=[1, 2, 0, 0, 1, 1], dilations=[2, 3, 1], layout="reversed", out="channels last",
          kinds=_INFINITE_INPUTS),
    _gemm("conv_stem_float32_3d_32x256x1", (2, 3, 31, 53), (75, 3, 3, 4), strides=[2, 1], pads=[1, 2, 0, 3],
          dilations=[1, 2], layout="channels last", out="fortran"),
    _gemm("conv_stem_bfloat16_3d_mma_64x256", (2, 3, 41, 88), (136, 3, 5, 7), strides=[1, 2], pads=[2, 3, 1, 2],
          dilations=[2, 1], kinds=_INFINITE_WEIGHTS),
    _gemm("conv_stem_float16_3d_mma_32x256", (2, 3, 31, 56), (72, 3, 4, 3), strides=[2, 1], pads=[1, 2, 0, 1],
          dilations=[2, 1], layout="channels last", out="channels last", kinds=_INFINITE_INPUTS),
    _gemm("conv_stem_float16_3d_mma_64x256", (2, 2, 1700), (264, 1, 10), group=2, strides=[5], pads=[7, 2]),
    _gemm("conv_stem_float32_3d_tf32_64x256", (2, 3, 5, 15, 40), (136, 3, 2, 4, 3), strides=[2, 1, 1],
          pads=[1, 2, 0, 0, 1, 1], dilations=[2, 3, 1], kinds=_INFINITE_WEIGHTS),
    _gemm("conv_stem_float32_3d_3xtf32_32x256", (2, 3, 37, 45), (70, 3, 5, 4), strides=[1, 2], pads=[2, 3, 1, 2],
          dilations=[2, 3], layout="strided", kinds=_INFINITE_INPUTS),
)  # fmt: skip

GEMMS = (*CONVS, *SPLIT, *SPLIT_PHASES, *FEW, *POINTWISE, *TRANSPOSED, *INTERLEAVED, *DISJOINT)
FAST_POOLS = (*VECTOR_POOLS, *TILE_POOLS, *CHANNEL_POOLS, *PATCH_POOLS, *AXIS_POOLS)
ALL: tuple[ManyBlocks, ...] = (
    *(*GEMMS, *BANDS, *GROUPED, *TENSOR, *MATRIX),
    *(*DISJOINT_TENSOR, *PHASE_ROWS, *TAP_ROWS, *DIRECT, *STEMS, *CHANNELS, *DEPTHWISE_TRANSPOSED),
    *(*POOLS, *FAST_POOLS, *AVERAGES),
)


def is_split(launch: Any) -> bool:
    """Tell whether a launch makes tiles in several splits each."""
    struct = np.frombuffer(launch.parameters, launch.variant.layout)[0]
    return "splits" in (struct.dtype.names or ()) and int(struct["splits"]["count"]["divisor"]) > 1


@cache
def arrays(one: ManyBlocks) -> list[Any]:
    """x, w and b, as far as the problem has them."""
    shapes = zip(one.problem.shapes, one.kinds, strict=False)
    return [
        None if shape is None else LAYOUTS[one.layout](_filled(kind, seed, shape, one.dtype))
        for seed, (shape, kind) in enumerate(shapes)
    ]


@cache
def _expected(one: ManyBlocks) -> Any:
    function: Callable[..., Any] = getattr(oracle, one.problem.operator)
    return function(*arrays(one), **one.problem.attributes)


def _new(shape: Ints, dtype: Any, layout: str | None) -> Any:
    return None if layout is None else LAYOUTS[layout](np.zeros(shape, dtype))


_OTHER = {  # how Indices lie, by how the values do
    None: None,
    "reversed": "fortran",
    "strided rows": "off the vectors",
    "off the vectors": "off the vectors",
    "pixels off the vectors": "pixels off the vectors",
    "channels last": "channels last",
    "strided pixels": "channels last",
}


def run(one: ManyBlocks, architecture: str | None = None, **options: Any) -> Any:
    """Raise AssertionError where a result is wrong, EmulatorError where a check finds something; return the device."""
    expected, operands, attributes = _expected(one), arrays(one), one.problem.attributes
    pooling = one.problem.operator == "max_pool"
    shape = expected[0].shape if pooling else expected.value.shape
    out = _new(shape, one.dtype, one.out)
    places = _new(shape, np.int64, _OTHER.get(one.out, "reversed"))
    settings = (indices(one.wide), preferred(one.kernel), gpuconv.precision(one.precision))
    device = emulated_cuda(architecture, limits_of=one.architecture, **options)
    with settings[0], settings[1], settings[2], device as emulated:
        if pooling:
            pair = None if places is None else (out, places)
            both = gpuconv.max_pool(*operands, **attributes, return_indices=True, out=pair)
            both = [array.copy() for array in both]
        if one.packed:
            operands = [operands[0], gpuconv.pack(operands[1], one.problem.operator), *operands[2:]]
        if one.kernel.endswith("_indices"):  # which makes no values alone
            y = both[0]
        else:
            y = getattr(gpuconv, one.problem.operator)(*operands, **attributes, out=out)
    if pooling:
        assert_same(y, expected[0], bits=False)
        for found, right in zip(both, expected, strict=True):
            assert_same(found, right)
    else:
        assert_close(y, expected, one.dtype, one.arithmetic)
    return emulated
