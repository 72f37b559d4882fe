"""Specimens of Conv and ConvTranspose: at least one for each form of their kernels, except wgmma.

Within a specimen, axes differ in extents, kernels, strides, dilations and pads as far as the form allows. Some weights
or inputs are infinite, since padding that takes part in a sum then gives NaN.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.kernels.specimen import INFINITE_INPUTS, INFINITE_WEIGHTS, INTEGERS, Forward, Ints
from tests.oracle.strategies import Problem


def conv(
    kernel: str,
    x: Ints,
    w: Ints,
    *,
    kinds: tuple[str, ...] = INTEGERS,
    layout: str = "contiguous",
    out: str | None = None,
    bias: bool = True,
    operator: str | None = None,
    **attributes: Any,
) -> Forward:
    """Return a specimen from the candidate's name, the shapes of x and w, further options, and the attributes."""
    operator = operator or ("conv_transpose" if kernel.startswith("conv_transpose") else "conv")
    filters = w[0] if operator == "conv" else w[1] * attributes.get("group", 1)
    b = (filters,) if bias else None
    return Forward(kernel, Problem(operator, x, w, b, attributes), kinds, layout, out)


transposed = partial(conv, operator="conv_transpose")

_CONV_2D: dict[str, Any] = {"strides": [2, 1], "pads": [1, 2, 0, 1], "dilations": [1, 2]}
_CONV_2D_TURNED: dict[str, Any] = {"strides": [1, 2], "pads": [0, 2, 2, 1], "dilations": [3, 1]}
_CONV_3D: dict[str, Any] = {"strides": [1, 3, 2], "pads": [1, 2, 0, 0, 1, 2], "dilations": [2, 1, 3]}
_TRANSPOSE_2D: dict[str, Any] = {
    "strides": [2, 3], "pads": [1, 2, 0, 3], "dilations": [1, 2], "output_padding": [1, 0],
}  # fmt: skip
_TRANSPOSE_SHARED: dict[str, Any] = {"strides": [4, 2], "pads": [3, 0, 1, 2], "dilations": [6, 3]}
_TRANSPOSE_3D: dict[str, Any] = {"strides": [2, 1, 3], "pads": [1, 0, 2, 0, 1, 1], "dilations": [3, 2, 1]}

CONVS = (
    conv("conv_float32_3d_16x128x16", (3, 13, 19, 11), (40, 13, 3, 2), out="channels last", **_CONV_2D),
    conv("conv_float32_3d_64x64x16_uniform", (2, 32, 9, 23), (140, 32, 2, 3), **_CONV_2D_TURNED),
    conv("conv_float16_3d_64x64x16", (2, 32, 13, 19), (280, 16, 2, 3), group=2, kinds=INFINITE_WEIGHTS, **_CONV_2D),
    conv("conv_float32_3d_16x128x16", (3, 2, 19, 11), (80, 1, 3, 2), group=2, kinds=INFINITE_WEIGHTS, layout="reversed",
         **_CONV_2D),
    conv("conv_float32_3d_128x128x16_uniform", (2, 16, 18, 26), (300, 16, 3, 2), layout="fortran", out="strided",
         **_CONV_2D_TURNED),
    conv("conv_float32_4d_64x64x16_wide", (2, 10, 5, 13, 12), (280, 5, 2, 3, 2), group=2, kinds=INFINITE_INPUTS,
         layout="reversed", out="fortran", **_CONV_3D),
    conv("conv_float16_3d_64x64x16", (2, 7, 16, 19), (145, 7, 2, 3), kinds=INFINITE_INPUTS, layout="channels last",
         **_CONV_2D_TURNED),
    conv("conv_bfloat16_4d_64x64x16_wide", (2, 48, 95), (150, 48, 2), layout="strided", bias=False, strides=[1],
         pads=[2, 1], dilations=[3]),
    conv("conv_bfloat16_3d_64x64x16", (3, 5, 120), (133, 5, 7), strides=[1], pads=[5, 4], dilations=[2],
         kinds=INFINITE_WEIGHTS),
    conv("conv_float64_3d_16x128x16", (3, 13, 11, 19), (37, 13, 2, 3), layout="broadcast", **_CONV_2D),
    conv("conv_float64_4d_64x64x16_uniform_wide", (2, 32, 9, 21), (130, 32, 2, 3), kinds=INFINITE_WEIGHTS,
         out="reversed", **_CONV_2D_TURNED),
    conv("conv_float16_3d_64x64x16", (2, 5, 5, 13, 12), (140, 5, 2, 3, 2), kinds=INFINITE_WEIGHTS, **_CONV_3D),
)  # fmt: skip
SPLIT = (
    conv("conv_float32_3d_64x64x16_uniform_split", (2, 32, 9, 23), (140, 32, 2, 3), out="strided", **_CONV_2D_TURNED),
    conv("conv_float16_3d_mma_64x64x32_scalar_split", (2, 64, 13, 19), (280, 32, 3, 2), group=2, kinds=INFINITE_WEIGHTS,
         layout="channels last", **_CONV_2D),
    conv("conv_float64_3d_mma_64x64x16_scalar_split", (2, 16, 5, 13, 12), (140, 16, 2, 3, 2), kinds=INFINITE_INPUTS,
         layout="reversed", out="fortran", **_CONV_3D),
    conv("conv_float32_3d_128x128x16_uniform_split", (2, 32, 18, 26), (300, 32, 3, 2), layout="fortran",
         **_CONV_2D_TURNED),
    conv("conv_bfloat16_3d_mma_64x64x64_vector_split", (2, 72, 13, 33), (300, 72, 2, 1), layout="channels last",
         kinds=INFINITE_INPUTS, **_CONV_2D_TURNED),
    conv("conv_float32_3d_tf32_128x128x16_scalar_split", (2, 21, 18, 26), (300, 21, 3, 2), out="strided", **_CONV_2D),
    conv("conv_float64_3d_mma_64x64x16_vector_split", (2, 38, 9, 23), (140, 38, 2, 3), layout="channels last",
         kinds=INFINITE_WEIGHTS, out="channels last", **_CONV_2D),
    conv("conv_float64_3d_mma_16x128x16_vector_split", (3, 20, 7, 9, 8), (70, 10, 2, 3, 2), layout="channels last",
         group=2, kinds=INFINITE_INPUTS, **_CONV_3D),
    conv("conv_float64_3d_mma_16x128x16_scalar_split", (3, 21, 17, 38), (43, 21, 3, 2), out="strided",
         kinds=INFINITE_INPUTS, **_CONV_2D_TURNED),
)  # fmt: skip
SPLIT_PHASES = (
    conv("conv_transpose_float32_3d_64x64x16_uniform_split", (2, 32, 7, 11), (32, 140, 3, 4), out="fortran",
         kinds=INFINITE_WEIGHTS, **_TRANSPOSE_2D),
    conv("conv_transpose_bfloat16_3d_mma_64x64x32_scalar_split", (2, 40, 7, 11), (40, 140, 5, 4), out="channels last",
         **_TRANSPOSE_SHARED),
    conv("conv_transpose_float16_3d_mma_64x64x64_vector_split", (1, 72, 9, 31), (72, 300, 3, 4), layout="channels last",
         **_TRANSPOSE_2D),
    conv("conv_transpose_float64_3d_mma_64x64x16_scalar_split", (2, 40, 4, 5, 7), (40, 140, 3, 2, 2), layout="reversed",
         group=2, kinds=INFINITE_INPUTS, **_TRANSPOSE_3D),
    conv("conv_transpose_float64_3d_mma_64x64x16_vector_split", (1, 34, 9, 31), (34, 140, 3, 4), layout="channels last",
         **_TRANSPOSE_2D),
    conv("conv_transpose_float64_3d_mma_16x128x16_vector_split", (2, 18, 9, 23), (18, 35, 3, 4), layout="channels last",
         kinds=INFINITE_WEIGHTS, **_TRANSPOSE_2D),
    conv("conv_transpose_float64_3d_mma_16x128x16_scalar_split", (2, 20, 4, 5, 9), (20, 37, 3, 2, 2), layout="reversed",
         group=2, kinds=INFINITE_INPUTS, **_TRANSPOSE_3D),
)  # fmt: skip
# More taps than the tap table holds, and more channels than have their weights in shared memory at once.
FEW = (
    conv("conv_few_float32_3d_4x512", (2, 50, 31, 41), (3, 50, 5, 7), strides=[1, 2], pads=[3, 2, 1, 4],
         dilations=[2, 1], kinds=INFINITE_WEIGHTS),
    conv("conv_few_float64_3d_8x512", (1, 28, 9, 13, 16), (10, 14, 2, 3, 2), group=2, layout="reversed",
         strides=[1, 1, 2], pads=[1, 2, 0, 2, 1, 3], dilations=[2, 1, 3], kinds=INFINITE_INPUTS, out="fortran"),
    conv("conv_few_bfloat16_3d_8x512", (3, 5, 400), (7, 5, 4), strides=[1], pads=[3, 2], dilations=[2],
         layout="channels last", bias=False),
)  # fmt: skip
# Every form: bands with vectors along rows, along channels, of single channels, and of neither; 1-D problems; phases
# with different taps; several rounds over channels; several filters per output vector.
BANDS = (
    conv("conv_bands_float32_3d_1x7_3x3", (2, 20, 31, 44), (1, 20, 2, 3), pads=[2, 1, 0, 2], kinds=INFINITE_WEIGHTS),
    conv("conv_bands_bfloat16_3d_1x7_5x5", (1, 40, 30, 37), (1, 40, 5, 5), pads=[2, 4, 1, 0], layout="channels last",
         bias=False),
    conv("conv_bands_float16_3d_1x7_3x4", (3, 9, 700), (2, 9, 7), pads=[3, 6], kinds=INFINITE_WEIGHTS),
    conv("conv_bands_float32_3d_1x7_3x4", (2, 45, 17, 26), (1, 45, 3, 4), pads=[1, 3, 2, 0], layout="channels last",
         kinds=INFINITE_INPUTS),
    transposed("conv_bands_float32_3d_3x3_2x2", (2, 33, 9, 16), (33, 3, 3, 4), strides=[2, 3], pads=[1, 0, 2, 1],
               output_padding=[1, 0], out="channels last", kinds=INFINITE_INPUTS),
    conv("conv_bands_float32_3d_3x3_3x3", (1, 16, 8, 9, 20), (6, 8, 2, 3, 3), group=2, strides=[2, 1, 1],
         pads=[1, 0, 2, 0, 1, 1], dilations=[3, 1, 1], kinds=INFINITE_INPUTS, layout="channels last"),
    conv("conv_bands_bfloat16_3d_3x3_3x4", (1, 5, 40, 33), (3, 5, 4, 9), pads=[3, 5, 0, 2], layout="reversed"),
    transposed("conv_bands_float32_3d_4x3_2x2", (1, 8, 5, 6, 9), (8, 2, 2, 3, 4), strides=[3, 1, 2],
               pads=[1, 0, 2, 0, 1, 0], output_padding=[0, 0, 1], kinds=INFINITE_WEIGHTS),
    transposed("conv_bands_float16_3d_4x3_3x3", (2, 12, 23, 28), (12, 1, 8, 9), strides=[3, 4], pads=[2, 4, 1, 3],
               output_padding=[2, 3]),
    conv("conv_bands_float64_3d_1x7_3x4", (2, 6, 30, 29), (1, 6, 5, 6), pads=[4, 1, 2, 0], out="reversed"),
    transposed("conv_bands_float64_3d_3x3_3x4", (1, 10, 14, 22), (10, 4, 5, 3), strides=[2, 1], pads=[1, 0, 3, 2],
               kinds=INFINITE_WEIGHTS),
)  # fmt: skip
_LAST: dict[str, Any] = {"layout": "channels last", "out": "channels last"}
# More weights than fit shared memory at once; channel counts that are whole vectors or not; strides with dilations.
CHANNELS = (
    conv("depthwise_float32_3d_channels_7s1", (2, 40, 19, 45), (40, 1, 4, 3), group=40, strides=[2, 3],
         dilations=[1, 3], pads=[2, 1, 1, 3], **_LAST),
    conv("depthwise_bfloat16_3d_channels_7s1", (2, 24, 33, 80), (24, 1, 5, 16), group=24, strides=[1, 2],
         dilations=[3, 4], pads=[4, 3, 0, 9], kinds=INFINITE_INPUTS, **_LAST),
    conv("depthwise_float16_3d_channels_4s2", (2, 9, 22, 51), (18, 1, 3, 5), group=9, strides=[3, 2], pads=[2, 4, 1, 3],
         kinds=INFINITE_WEIGHTS, **_LAST),
    conv("depthwise_float64_3d_channels_taps", (1, 20, 6, 13, 37), (20, 1, 3, 2, 4), group=20, strides=[2, 1, 3],
         dilations=[1, 3, 2], pads=[1, 2, 4, 2, 1, 3], kinds=INFINITE_WEIGHTS, bias=False, **_LAST),
    conv("depthwise_float32_3d_channels_taps", (1, 4, 67, 41), (4, 1, 63, 70), group=4, strides=[3, 1],
         dilations=[2, 1], pads=[61, 40, 60, 31], **_LAST),
)  # fmt: skip
# Phases with two taps, one and none along an axis; walks that end within a column; channels first and last.
DEPTHWISE_TRANSPOSED = (
    conv("conv_transpose_depthwise_float32_2d", (2, 5, 11, 23), (5, 1, 4, 5), group=5, kinds=INFINITE_WEIGHTS,
         strides=[2, 3], pads=[1, 2, 0, 3], output_padding=[1, 0]),
    conv("conv_transpose_depthwise_bfloat16_2d", (3, 6, 9, 13), (6, 2, 3, 7), group=6, kinds=INFINITE_INPUTS,
         strides=[4, 5], pads=[0, 3, 1, 2], **_LAST),
    conv("conv_transpose_depthwise_float64_2d", (2, 3, 150), (3, 1, 6), group=3, strides=[4], pads=[2, 1],
         layout="reversed", out="fortran", bias=False),
)  # fmt: skip
# Channel counts that are not whole slices of K; rows of x that are multiples of 16 bytes, or not.
POINTWISE = (
    conv("conv_pointwise_float32_1d_128x128x16", (3, 35, 13, 11), (300, 35, 1, 1), out="reversed"),
    conv("conv_pointwise_float32_1d_64x64x16", (3, 40, 4, 3, 7), (300, 20, 1, 1, 1), group=2, bias=False),
    conv("conv_pointwise_float32_1d_64x64x16", (5, 21, 68), (140, 21, 1), kinds=INFINITE_WEIGHTS),
)  # fmt: skip
# One tap on tensor cores: images copied in units of 16, 8 and 4 bytes; channels last; partial slices of K.
MATRIX = (
    conv("conv_matrix_float16_3d_mma_64x128x64_pixels", (2, 72, 12, 14), (300, 72, 1, 1), kinds=INFINITE_INPUTS,
         out="strided"),
    conv("conv_matrix_float16_3d_mma_64x128x64_pixels", (3, 80, 10, 14), (280, 40, 1, 1), group=2, bias=False),
    conv("conv_matrix_bfloat16_3d_mma_64x64x64_pixels", (3, 136, 3, 5, 6), (140, 136, 1, 1, 1), kinds=INFINITE_WEIGHTS,
         out="channels last"),
    conv("conv_matrix_float16_3d_mma_64x128x64_channels", (2, 72, 9, 41), (300, 72, 1, 1), strides=[1, 2],
         layout="channels last", out="fortran"),
    conv("conv_matrix_bfloat16_3d_mma_64x128x64_channels", (2, 80, 9, 23), (280, 40, 1, 1), group=2,
         layout="channels last", kinds=INFINITE_INPUTS),
    conv("conv_matrix_float16_3d_mma_64x64x64_channels", (2, 72, 7, 11), (140, 72, 1, 1), pads=[1, 0, 2, 1],
         layout="channels last", kinds=INFINITE_WEIGHTS),
    conv("conv_matrix_float32_3d_tf32_64x128x32_pixels", (2, 36, 13, 12), (300, 36, 1, 1), kinds=INFINITE_WEIGHTS),
    conv("conv_matrix_float32_3d_tf32_64x128x32_pixels", (3, 72, 143), (280, 36, 1), group=2, out="reversed"),
    conv("conv_matrix_float32_3d_tf32_64x64x32_pixels", (3, 40, 10, 13), (140, 40, 1, 1), kinds=INFINITE_INPUTS),
    conv("conv_matrix_float32_3d_3xtf32_64x64x32_pixels", (3, 36, 9, 14), (300, 36, 1, 1), kinds=INFINITE_INPUTS),
    conv("conv_matrix_float32_3d_3xtf32_64x64x32_pixels", (2, 40, 12, 12), (140, 40, 1, 1), kinds=INFINITE_WEIGHTS),
)  # fmt: skip
TRANSPOSED = (
    conv("conv_transpose_float32_3d_64x64x16_uniform", (2, 32, 7, 11), (32, 140, 3, 4), out="fortran", **_TRANSPOSE_2D),
    conv("conv_transpose_float32_3d_16x128x16", (2, 2, 9, 16), (2, 40, 4, 17), group=2, kinds=INFINITE_WEIGHTS,
         layout="reversed", **_TRANSPOSE_2D),
    conv("conv_transpose_float16_3d_64x64x16", (2, 9, 8, 17), (9, 137, 5, 6), kinds=INFINITE_INPUTS, layout="fortran",
         **_TRANSPOSE_SHARED),
    conv("conv_transpose_float16_3d_64x64x16", (1, 32, 7, 10), (32, 130, 5, 4), group=2, layout="strided",
         out="channels last", kinds=INFINITE_WEIGHTS, **_TRANSPOSE_SHARED),
    conv("conv_transpose_float64_4d_64x64x16_wide", (1, 7, 4, 5, 7), (7, 140, 3, 2, 2), kinds=INFINITE_INPUTS,
         layout="reversed", out="strided", **_TRANSPOSE_3D),
    conv("conv_transpose_float32_4d_64x64x16_uniform_wide", (2, 48, 70), (48, 130, 7), bias=False, strides=[3],
         pads=[2, 3], dilations=[2], kinds=INFINITE_WEIGHTS),
    conv("conv_transpose_bfloat16_3d_64x64x16", (2, 11, 140), (11, 135, 9), strides=[2], pads=[4, 3], dilations=[2],
         layout="channels last"),
    conv("conv_transpose_bfloat16_4d_64x64x16_wide", (2, 5, 7, 11), (5, 140, 3, 13), kinds=INFINITE_WEIGHTS,
         out="reversed", **_TRANSPOSE_2D),
)  # fmt: skip
# A stride along W of 3 and of 2, and a first phase along W without any tap.
INTERLEAVED = (
    conv("conv_transpose_interleaved_float32_3d_64x128x16_uniform", (2, 48, 9, 17), (48, 140, 3, 4), **_TRANSPOSE_2D),
    conv("conv_transpose_interleaved_float32_3d_64x64x16_uniform", (2, 48, 9, 17), (48, 140, 3, 4), **_TRANSPOSE_2D),
    conv("conv_transpose_interleaved_float32_3d_16x128x8_uniform", (2, 16, 9, 16), (16, 40, 4, 7), group=2,
         kinds=INFINITE_WEIGHTS, layout="reversed", **_TRANSPOSE_2D),
    conv("conv_transpose_interleaved_float16_3d_16x128x8", (2, 9, 8, 17), (9, 37, 5, 6), kinds=INFINITE_INPUTS,
         layout="fortran", **_TRANSPOSE_SHARED),
    conv("conv_transpose_interleaved_float16_3d_64x64x16", (1, 32, 7, 10), (32, 130, 5, 4), group=2, layout="strided",
         kinds=INFINITE_WEIGHTS, **_TRANSPOSE_SHARED),
    conv("conv_transpose_interleaved_float64_3d_64x64x16", (2, 13, 75), (13, 137, 6), bias=False, strides=[2],
         pads=[2, 3], dilations=[3], kinds=INFINITE_WEIGHTS),
    conv("conv_transpose_interleaved_float64_3d_16x128x16", (1, 7, 5, 9, 8), (7, 37, 3, 2, 3), strides=[3, 1, 2],
         pads=[1, 0, 2, 0, 1, 1], dilations=[2, 3, 1], kinds=INFINITE_INPUTS, layout="reversed"),
    conv("conv_transpose_interleaved_bfloat16_3d_64x64x16", (2, 48, 70), (48, 130, 7), strides=[2], pads=[2, 3],
         dilations=[3], kinds=INFINITE_WEIGHTS),
)  # fmt: skip
DISJOINT = (
    conv("conv_transpose_depth_to_space_float32_3d_64x64x16", (2, 53, 11, 17), (53, 30, 2, 3), strides=[2, 3],
         pads=[1, 2, 0, 4], dilations=[1, 1], kinds=INFINITE_WEIGHTS, out="channels last"),
    conv("conv_transpose_depth_to_space_float32_3d_16x128x16", (2, 66, 9, 17), (66, 9, 1, 5), group=2, strides=[1, 5],
         pads=[0, 3, 2, 1], dilations=[1, 1], kinds=INFINITE_INPUTS),
    conv("conv_transpose_depth_to_space_float64_3d_64x64x16", (1, 60, 4, 5, 9), (60, 15, 2, 3, 2), strides=[2, 3, 2],
         pads=[1, 0, 1, 0, 2, 1], dilations=[1, 1, 1], layout="reversed", out="fortran"),
    conv("conv_transpose_depth_to_space_float16_3d_64x64x16", (2, 53, 9, 11), (53, 36, 3, 2), strides=[3, 2],
         pads=[2, 1, 0, 3], dilations=[1, 1], kinds=INFINITE_WEIGHTS, bias=False, out="reversed"),
    conv("conv_transpose_depth_to_space_bfloat16_3d_16x128x16", (3, 50, 130), (50, 9, 4), strides=[4], pads=[3, 2],
         dilations=[1], out="strided"),
)  # fmt: skip
DISJOINT_TENSOR = (
    conv("conv_transpose_matrix_float16_3d_mma_64x128x64", (2, 72, 13, 20), (72, 50, 3, 2), strides=[3, 2],
         pads=[2, 1, 0, 3], dilations=[1, 1], kinds=INFINITE_WEIGHTS, bias=False),
    conv("conv_transpose_matrix_bfloat16_3d_mma_64x128x64", (3, 136, 134), (136, 38, 4), strides=[4], pads=[3, 2],
         dilations=[1]),
    conv("conv_transpose_matrix_float32_3d_tf32_128x128x32", (2, 66, 9, 17), (66, 60, 1, 5), group=2, strides=[1, 5],
         pads=[0, 3, 2, 1], dilations=[1, 1], kinds=INFINITE_INPUTS),
    conv("conv_transpose_matrix_float32_3d_3xtf32_128x128x32", (2, 40, 4, 5, 9), (40, 30, 2, 3, 2), strides=[2, 3, 2],
         pads=[1, 0, 1, 0, 2, 1], dilations=[1, 1, 1], kinds=INFINITE_WEIGHTS),
    # ... two outputs along W per store
    conv("conv_transpose_matrix_float32_3d_tf32_128x128x32", (2, 36, 9, 18), (36, 50, 3, 2), strides=[3, 2],
         pads=[2, 0, 1, 2], dilations=[1, 1], kinds=INFINITE_INPUTS),
)  # fmt: skip
# M enumerates phases: phases with fewer taps, blocks of outputs cropped by pads, and outputs that no input reaches.
PHASE_ROWS = (
    conv("conv_transpose_phase_rows_float16_3d_mma_16x128x64_vector", (2, 72, 13, 20), (72, 9, 5, 4), strides=[2, 2],
         pads=[2, 1, 0, 3], dilations=[1, 1], kinds=INFINITE_WEIGHTS, layout="channels last"),
    conv("conv_transpose_phase_rows_bfloat16_3d_mma_16x128x64_vector", (2, 16, 11, 19), (16, 12, 3, 7), group=2,
         strides=[1, 3], pads=[0, 5, 2, 1], dilations=[2, 1], output_padding=[0, 2], kinds=INFINITE_INPUTS,
         layout="channels last", out="channels last"),
    conv("conv_transpose_phase_rows_float16_3d_mma_32x256x64_vector_split", (2, 40, 17, 26), (40, 6, 7, 5),
         strides=[3, 4], pads=[4, 1, 3, 2], dilations=[1, 1], layout="channels last", bias=False, out="reversed"),
    conv("conv_transpose_phase_rows_bfloat16_3d_mma_32x256x64_vector", (3, 48, 5, 9, 20), (48, 7, 2, 1, 3),
         strides=[2, 3, 2], pads=[1, 0, 1, 0, 2, 0], dilations=[1, 1, 1], output_padding=[1, 0, 1],
         kinds=INFINITE_WEIGHTS, layout="channels last", out="strided"),
    conv("conv_transpose_phase_rows_float64_3d_mma_64x64x16_scalar_split", (2, 21, 4, 5, 9), (21, 33, 3, 2, 5),
         strides=[2, 1, 2], pads=[1, 0, 2, 0, 1, 1], dilations=[1, 3, 1], kinds=INFINITE_INPUTS, layout="reversed"),
    conv("conv_transpose_phase_rows_float32_3d_128x128x16_uniform", (2, 32, 9, 17), (32, 45, 3, 4), strides=[2, 3],
         pads=[1, 2, 0, 3], dilations=[1, 1], output_padding=[1, 0], kinds=INFINITE_WEIGHTS, out="channels last"),
    conv("conv_transpose_phase_rows_float32_3d_128x128x16_uniform_split", (2, 48, 130), (48, 90, 5), strides=[4],
         pads=[1, 2], dilations=[1], kinds=INFINITE_INPUTS, layout="channels last"),
)  # fmt: skip
# M enumerates taps along W, in Conv and ConvTranspose (whose taps run backwards): tiles with unused rows of M, and taps
# that extend over a quarter of a tile.
TAP_ROWS = (
    conv("conv_tap_rows_float16_3d_mma_32x256x64_vector", (2, 72, 13, 40), (14, 72, 3, 5), strides=[2, 1],
         pads=[1, 2, 0, 3], dilations=[1, 2], kinds=INFINITE_WEIGHTS, layout="channels last"),
    transposed("conv_tap_rows_bfloat16_3d_mma_32x256x64_vector", (2, 32, 11, 33), (32, 9, 2, 7), group=2,
               strides=[1, 1], pads=[0, 2, 1, 3], dilations=[3, 1], kinds=INFINITE_INPUTS, layout="channels last",
               out="channels last"),
    conv("conv_tap_rows_float16_3d_mma_64x256x64_vector", (3, 40, 5, 6, 40), (33, 40, 2, 1, 4), strides=[2, 1, 1],
         pads=[1, 0, 2, 0, 1, 3], dilations=[1, 2, 3], layout="channels last", bias=False, out="reversed"),
    conv("conv_tap_rows_bfloat16_3d_mma_64x256x64_vector", (3, 24, 400), (5, 24, 31), strides=[1], pads=[7, 9],
         dilations=[2], kinds=INFINITE_WEIGHTS, layout="channels last"),
    transposed("conv_tap_rows_float32_3d_tf32_32x256x32_vector", (2, 20, 17, 30), (20, 17, 3, 4), strides=[1, 1],
               pads=[1, 0, 2, 3], dilations=[1, 2], layout="channels last", out="strided"),
    conv("conv_tap_rows_float32_3d_tf32_64x256x32_vector_split", (2, 36, 14, 33), (25, 36, 2, 7), strides=[2, 1],
         pads=[0, 3, 1, 2], dilations=[2, 1], kinds=INFINITE_INPUTS, layout="channels last"),
    conv("conv_tap_rows_float32_3d_3xtf32_16x128x16_vector", (2, 16, 9, 25), (24, 8, 2, 3), group=2, strides=[1, 1],
         pads=[1, 2, 0, 1], dilations=[1, 3], kinds=INFINITE_WEIGHTS, layout="channels last"),
    transposed("conv_tap_rows_float32_3d_3xtf32_64x64x16_vector_split", (2, 12, 7, 20), (12, 46, 2, 3), strides=[1, 1],
               pads=[1, 0, 0, 2], dilations=[2, 1], kinds=INFINITE_INPUTS, layout="channels last", out="channels last"),
    conv("conv_tap_rows_float64_3d_mma_64x64x16_scalar_split", (2, 9, 8, 21), (20, 9, 2, 7), strides=[2, 1],
         pads=[1, 4, 0, 2], dilations=[1, 2], kinds=INFINITE_WEIGHTS, layout="reversed"),
    conv("conv_tap_rows_float16_3d_mma_128x128x32_scalar", (2, 40, 13, 21), (51, 40, 3, 5), strides=[2, 1],
         pads=[1, 2, 0, 3], dilations=[1, 2], kinds=INFINITE_WEIGHTS, layout="reversed"),
    transposed("conv_tap_rows_bfloat16_3d_mma_128x128x32_scalar_split", (2, 33, 9, 17), (33, 65, 2, 4), strides=[1, 1],
               pads=[0, 2, 1, 3], dilations=[3, 1], kinds=INFINITE_INPUTS, out="channels last"),
    conv("conv_tap_rows_float32_3d_tf32_128x128x16_scalar", (3, 20, 150), (54, 20, 5), strides=[1], pads=[3, 2],
         dilations=[3], kinds=INFINITE_WEIGHTS, bias=False, out="strided"),
    conv("conv_tap_rows_float32_3d_128x128x16_uniform", (2, 32, 13, 21), (102, 16, 3, 5), group=2, strides=[2, 1],
         pads=[1, 2, 0, 3], dilations=[1, 2], kinds=INFINITE_INPUTS, out="strided"),
    transposed("conv_tap_rows_float32_3d_64x64x16_uniform", (2, 16, 9, 17), (16, 33, 2, 4), strides=[1, 1],
               pads=[0, 2, 1, 3], dilations=[3, 1], kinds=INFINITE_WEIGHTS, layout="channels last",
               out="channels last"),
    conv("conv_tap_rows_float32_3d_64x64x16", (2, 5, 4, 5, 20), (43, 5, 2, 1, 3), strides=[1, 2, 1],
         pads=[1, 0, 2, 0, 1, 3], dilations=[1, 2, 3], kinds=INFINITE_WEIGHTS, bias=False, layout="reversed"),
    # ... strides along W: runs of taps, the last one shorter
    conv("conv_tap_rows_float16_3d_mma_64x256x64_vector", (2, 72, 13, 60), (43, 72, 3, 5), strides=[1, 2],
         pads=[1, 2, 0, 3], dilations=[2, 1], kinds=INFINITE_WEIGHTS, layout="channels last", out="channels last"),
    conv("conv_tap_rows_bfloat16_3d_mma_128x128x32_scalar", (3, 37, 11, 90), (90, 37, 2, 7), strides=[2, 3],
         pads=[0, 4, 1, 2], dilations=[2, 1], kinds=INFINITE_INPUTS, layout="reversed"),
    conv("conv_tap_rows_float32_3d_64x64x16", (2, 5, 7, 61), (70, 5, 2, 5), strides=[1, 4], pads=[1, 2, 0, 3],
         dilations=[2, 1], kinds=INFINITE_WEIGHTS, bias=False, out="strided"),
    conv("conv_tap_rows_float32_3d_128x128x16_uniform", (2, 32, 9, 80), (140, 16, 3, 7), group=2, strides=[1, 2],
         pads=[1, 4, 0, 3], dilations=[2, 1], kinds=INFINITE_INPUTS, layout="channels last"),
    conv("conv_tap_rows_float32_3d_3xtf32_64x64x16_vector", (1, 12, 5, 6, 33), (70, 12, 2, 1, 3), strides=[1, 3, 2],
         pads=[1, 0, 2, 0, 1, 1], dilations=[1, 2, 1], kinds=INFINITE_WEIGHTS, layout="channels last"),
    # ... split-K
    conv("conv_tap_rows_float32_3d_64x64x16_split", (2, 21, 9, 20), (43, 21, 2, 3), strides=[2, 1], pads=[1, 0, 1, 3],
         dilations=[1, 2], kinds=INFINITE_INPUTS, layout="reversed"),
    conv("conv_tap_rows_float32_3d_128x128x16_uniform_split", (3, 32, 170), (70, 32, 7), strides=[1], pads=[4, 1],
         dilations=[1], kinds=INFINITE_WEIGHTS, layout="channels last"),
    transposed("conv_tap_rows_bfloat16_3d_mma_64x256x64_vector_split", (2, 104, 9, 33), (104, 33, 2, 5), strides=[1, 1],
               pads=[0, 2, 1, 3], dilations=[1, 2], layout="channels last", out="channels last"),
)  # fmt: skip

# Rows that are whole vectors or not, tiles that end within the plane, and unequal axes as far as the forms allow.
DIRECT = (
    conv("depthwise_float32_3d_3x3s1", (2, 5, 33, 150), (10, 1, 3, 3), group=5, pads=[1, 0, 2, 1]),
    conv("depthwise_bfloat16_3d_3x3s1", (1, 3, 5, 20, 40), (3, 1, 2, 3, 3), group=3, strides=[2, 1, 1],
         dilations=[3, 1, 1], pads=[2, 1, 1, 1, 1, 0], kinds=INFINITE_INPUTS),
    conv("depthwise_float16_3d_3x3s2", (2, 3, 40, 90), (9, 1, 3, 3), group=3, strides=[2, 2], pads=[1, 1, 0, 2],
         kinds=INFINITE_WEIGHTS),
    conv("depthwise_float64_3d_5x5s1", (2, 3, 17, 38), (3, 1, 5, 5), group=3, pads=[2, 3, 1, 2], bias=False),
    conv("depthwise_float32_3d_5x5s2", (3, 2, 31, 29), (2, 1, 5, 5), group=2, strides=[2, 2], pads=[2, 0, 1, 2]),
    conv("depthwise_float32_3d_7x7s1", (3, 3, 18, 24), (3, 1, 7, 7), group=3, pads=[3, 3, 3, 3],
         kinds=INFINITE_WEIGHTS),
    conv("depthwise_bfloat16_3d_7x7s2", (3, 2, 26, 44), (2, 1, 7, 7), group=2, strides=[2, 2], pads=[2, 3, 4, 2]),
    conv("depthwise_float32_3d_rows", (2, 2, 23, 45), (4, 1, 9, 6), group=2, pads=[5, 3, 4, 1]),
    conv("depthwise_float16_3d_line", (3, 2, 1100), (2, 1, 6), group=2, pads=[5, 0], kinds=INFINITE_INPUTS),
    conv("depthwise_float32_3d_taps", (2, 3, 5, 13, 36), (6, 1, 2, 3, 4), group=3, **_CONV_3D),
    conv("grouped_float32_3d_3x3s1", (2, 15, 22, 30), (27, 5, 3, 3), group=3, pads=[0, 1, 2, 1]),
    conv("grouped_float64_3d_3x3s2", (3, 8, 17, 20), (10, 4, 3, 3), group=2, strides=[2, 2], pads=[1, 1, 1, 1],
         kinds=INFINITE_WEIGHTS),
    conv("grouped_float32_3d_taps", (2, 50, 9, 37), (40, 25, 3, 2), group=2, **_CONV_2D_TURNED),
    # Dilations as phases: of rows and columns, of only one of them, more phases than rows; combined with strides.
    conv("depthwise_float32_3d_7x7s1", (2, 3, 30, 41), (6, 1, 7, 7), group=3, dilations=[3, 4], pads=[8, 12, 10, 13]),
    conv("depthwise_float16_3d_3x3s1", (2, 3, 37, 70), (3, 1, 3, 3), group=3, strides=[2, 1], dilations=[6, 3],
         pads=[6, 0, 5, 7], kinds=INFINITE_WEIGHTS),
    conv("depthwise_bfloat16_3d_5x5s1", (1, 2, 5, 23, 40), (2, 1, 2, 5, 5), group=2, dilations=[3, 4, 1],
         pads=[2, 7, 1, 1, 8, 2], kinds=INFINITE_INPUTS),
    conv("depthwise_float32_3d_rows", (2, 2, 26, 85), (4, 1, 4, 6), group=2, strides=[1, 2], dilations=[1, 10],
         pads=[3, 21, 2, 27]),
    conv("depthwise_float64_3d_line", (2, 3, 700), (3, 1, 5), group=3, dilations=[6], pads=[24, 1]),
    conv("grouped_bfloat16_3d_3x3s1", (2, 15, 7, 54), (27, 5, 3, 3), group=3, dilations=[9, 8], pads=[9, 6, 8, 9],
         kinds=INFINITE_WEIGHTS),
)  # fmt: skip

# On tensor cores: whole and partial slices of channels, chunks of channels, the table of rows of K, phases.
TENSOR = (
    conv("conv_float16_3d_mma_128x128x64_vector", (2, 72, 13, 33), (300, 72, 3, 2), layout="channels last",
         kinds=INFINITE_WEIGHTS, **_CONV_2D_TURNED),
    conv("conv_float16_3d_mma_128x128x32_scalar", (2, 40, 18, 26), (300, 40, 2, 3), layout="reversed", out="strided",
         **_CONV_2D),
    conv("conv_float16_3d_mma_64x64x32_rowwise", (2, 5, 5, 13, 18), (140, 5, 2, 3, 4), kinds=INFINITE_WEIGHTS,
         **_CONV_3D),
    conv("conv_float16_3d_mma_16x128x32_scalar", (2, 66, 19, 23), (70, 33, 3, 2), group=2, kinds=INFINITE_INPUTS,
         **_CONV_2D),
    conv("conv_bfloat16_3d_mma_64x64x64_vector", (2, 144, 13, 19), (280, 72, 3, 2), group=2, layout="channels last",
         out="channels last", **_CONV_2D),
    conv("conv_bfloat16_3d_mma_64x64x32_scalar", (2, 33, 150), (140, 33, 5), strides=[2], pads=[3, 2], dilations=[3],
         kinds=INFINITE_WEIGHTS, bias=False),
    conv("conv_bfloat16_3d_mma_16x128x64_vector", (3, 16, 300), (40, 16, 4), strides=[2], pads=[3, 2], dilations=[2],
         layout="channels last", kinds=INFINITE_INPUTS),
    conv("conv_bfloat16_3d_mma_64x256x64_vector", (2, 72, 21, 38), (140, 72, 2, 3), layout="channels last",
         kinds=INFINITE_INPUTS, **_CONV_2D),
    conv("conv_float16_3d_mma_64x256x64_chunks", (2, 24, 21, 38), (140, 24, 3, 2), layout="channels last",
         kinds=INFINITE_WEIGHTS, **_CONV_2D),
    conv("conv_bfloat16_3d_mma_32x256x64_vector", (2, 72, 21, 38), (70, 72, 2, 3), layout="channels last",
         kinds=INFINITE_WEIGHTS, **_CONV_2D),
    conv("conv_float32_3d_tf32_32x256x32_chunks", (2, 12, 21, 38), (70, 12, 3, 2), layout="channels last",
         kinds=INFINITE_INPUTS, **_CONV_2D),
    conv("conv_transpose_float16_3d_mma_32x256x64_vector", (2, 72, 17, 23), (72, 70, 3, 4), layout="channels last",
         out="channels last", **_TRANSPOSE_2D),
    conv("conv_transpose_float32_3d_tf32_64x256x32_vector", (2, 36, 17, 23), (36, 140, 3, 4), layout="channels last",
         **_TRANSPOSE_2D),
    conv("conv_bfloat16_3d_mma_64x64x64_chunks", (2, 80, 13, 19), (280, 40, 3, 2), group=2, layout="channels last",
         out="channels last", kinds=INFINITE_INPUTS, **_CONV_2D),
    conv("conv_bfloat16_3d_mma_64x64x64_halves", (2, 12, 5, 13, 18), (140, 12, 2, 3, 4), layout="channels last",
         kinds=INFINITE_WEIGHTS, **_CONV_3D),
    conv("conv_float16_3d_mma_16x128x64_chunks", (3, 16, 300), (40, 16, 14), strides=[2], pads=[3, 2], dilations=[2],
         layout="channels last", kinds=INFINITE_INPUTS),
    conv("conv_float32_3d_tf32_64x64x32_chunks", (2, 3, 26, 96), (140, 3, 5, 16), strides=[2, 4], pads=[2, 8, 3, 4],
         dilations=[3, 1], kinds=INFINITE_WEIGHTS),
    conv("conv_float32_3d_tf32_128x128x16_scalar", (2, 21, 18, 26), (300, 21, 3, 2), layout="fortran",
         kinds=INFINITE_INPUTS, **_CONV_2D_TURNED),
    conv("conv_float32_3d_tf32_64x64x32_vector", (2, 36, 9, 23), (140, 36, 2, 3), layout="channels last",
         kinds=INFINITE_WEIGHTS, **_CONV_2D_TURNED),
    conv("conv_float32_3d_tf32_64x64x16_rowwise", (2, 3, 19, 26), (140, 3, 5, 4), kinds=INFINITE_WEIGHTS, **_CONV_2D),
    conv("conv_float32_3d_3xtf32_64x64x16_vector", (2, 20, 18, 26), (300, 20, 3, 2), layout="channels last",
         kinds=INFINITE_WEIGHTS, **_CONV_2D_TURNED),
    conv("conv_float32_3d_3xtf32_64x64x16_scalar", (2, 20, 5, 9, 12), (140, 20, 2, 3, 2), layout="strided",
         kinds=INFINITE_INPUTS, **_CONV_3D),
    conv("conv_float64_3d_mma_64x64x16_scalar", (2, 20, 13, 19), (140, 20, 3, 2), kinds=INFINITE_WEIGHTS,
         layout="broadcast", **_CONV_2D),
    conv("conv_float64_3d_mma_64x64x16_rowwise", (2, 3, 13, 26), (140, 3, 5, 4), out="fortran", **_CONV_2D),
    conv("conv_transpose_float16_3d_mma_128x128x64_vector", (1, 72, 9, 31), (72, 300, 3, 4), layout="channels last",
         **_TRANSPOSE_2D),
    conv("conv_transpose_bfloat16_3d_mma_64x64x32_scalar", (2, 40, 7, 11), (40, 140, 5, 4), out="channels last",
         **_TRANSPOSE_SHARED),
    conv("conv_transpose_bfloat16_3d_mma_16x128x32_scalar", (2, 33, 150), (33, 40, 5), strides=[2], pads=[3, 2],
         dilations=[3], kinds=INFINITE_INPUTS, bias=False),
    conv("conv_transpose_bfloat16_3d_mma_16x128x64_vector", (2, 80, 9, 23), (80, 40, 3, 4), group=2,
         layout="channels last", **_TRANSPOSE_2D),
    conv("conv_transpose_float32_3d_tf32_64x64x16_scalar", (2, 20, 4, 5, 7), (20, 140, 3, 2, 2), layout="reversed",
         kinds=INFINITE_WEIGHTS, **_TRANSPOSE_3D),
    conv("conv_transpose_float32_3d_3xtf32_128x128x16_scalar", (1, 20, 9, 31), (20, 300, 3, 4), bias=False,
         **_TRANSPOSE_2D),
    conv("conv_transpose_float64_3d_mma_64x64x16_scalar", (2, 20, 7, 13), (20, 140, 3, 4), kinds=INFINITE_WEIGHTS,
         **_TRANSPOSE_2D),
)  # fmt: skip

# Several groups per tile of M, and one group whose filters fill several tiles.
GROUPED = (
    conv("conv_grouped_float16_3d_mma_16x512", (2, 24, 31, 41), (160, 6, 3, 2), group=4, kinds=INFINITE_INPUTS,
         **_CONV_2D),
    conv("conv_grouped_float16_3d_mma_32x512", (2, 20, 5, 13, 18), (272, 5, 2, 3, 2), group=4, layout="reversed",
         kinds=INFINITE_WEIGHTS, **_CONV_3D),
    conv("conv_grouped_bfloat16_3d_mma_32x512", (3, 40, 21, 14), (200, 20, 2, 3), group=2, layout="channels last",
         out="channels last", kinds=INFINITE_INPUTS, **_CONV_2D_TURNED),
    conv("conv_grouped_bfloat16_3d_mma_32x512", (2, 96, 300), (280, 48, 5), group=2, strides=[2], pads=[3, 2],
         dilations=[3], bias=False),
    conv("conv_grouped_float32_3d_tf32_16x512", (2, 32, 26, 30), (144, 8, 3, 2), group=4, layout="channels last",
         out="channels last", kinds=INFINITE_WEIGHTS, **_CONV_2D),
    conv("conv_grouped_float32_3d_tf32_32x512", (2, 34, 26, 30), (268, 17, 2, 3), group=2, kinds=INFINITE_INPUTS,
         **_CONV_2D_TURNED),
    conv("conv_grouped_float32_3d_3xtf32_16x512", (2, 24, 26, 31), (146, 12, 3, 2), group=2, out="strided",
         kinds=INFINITE_INPUTS, **_CONV_2D),
    conv("conv_transpose_grouped_float16_3d_mma_16x512", (2, 12, 9, 23), (12, 35, 3, 4), group=3, kinds=INFINITE_INPUTS,
         **_TRANSPOSE_2D),
    conv("conv_transpose_grouped_bfloat16_3d_mma_32x512", (2, 32, 21, 27), (32, 72, 5, 4), group=2,
         layout="channels last", out="channels last", **_TRANSPOSE_SHARED),
    conv("conv_transpose_grouped_float32_3d_3xtf32_16x512", (2, 12, 6, 9, 11), (12, 70, 3, 2, 2), group=2,
         kinds=INFINITE_WEIGHTS, **_TRANSPOSE_3D),
)  # fmt: skip

# Few input channels: rows of x that are whole vectors or not, runs of channels, and boxes cut off by the output's end.
STEMS = (
    conv("conv_stem_float32_3d_32x256x7", (2, 3, 37, 88), (70, 3, 5, 7), strides=[1, 2], pads=[2, 3, 1, 2],
         dilations=[2, 1], kinds=INFINITE_WEIGHTS),
    conv("conv_stem_float32_3d_32x256x3", (2, 4, 5, 15, 34), (136, 2, 2, 4, 3), group=2, strides=[2, 1, 1],
         pads=[1, 2, 0, 0, 1, 1], dilations=[2, 3, 1], layout="reversed", out="channels last", kinds=INFINITE_INPUTS),
    conv("conv_stem_float32_3d_32x256x1", (2, 3, 31, 53), (75, 3, 3, 4), strides=[2, 1], pads=[1, 2, 0, 3],
         dilations=[1, 2], layout="channels last", out="fortran"),
    conv("conv_stem_bfloat16_3d_mma_64x256", (2, 3, 41, 88), (136, 3, 5, 7), strides=[1, 2], pads=[2, 3, 1, 2],
         dilations=[2, 1], kinds=INFINITE_WEIGHTS),
    conv("conv_stem_float16_3d_mma_32x256", (2, 3, 31, 56), (72, 3, 4, 3), strides=[2, 1], pads=[1, 2, 0, 1],
         dilations=[2, 1], layout="channels last", out="channels last", kinds=INFINITE_INPUTS),
    conv("conv_stem_float16_3d_mma_64x256", (2, 2, 1700), (264, 1, 10), group=2, strides=[5], pads=[7, 2]),
    conv("conv_stem_float32_3d_tf32_64x256", (2, 3, 5, 15, 40), (136, 3, 2, 4, 3), strides=[2, 1, 1],
         pads=[1, 2, 0, 0, 1, 1], dilations=[2, 3, 1], kinds=INFINITE_WEIGHTS),
    conv("conv_stem_float32_3d_3xtf32_32x256", (2, 3, 37, 45), (70, 3, 5, 4), strides=[1, 2], pads=[2, 3, 1, 2],
         dilations=[2, 3], layout="strided", kinds=INFINITE_INPUTS),
)  # fmt: skip

GEMMS = (*CONVS, *SPLIT, *SPLIT_PHASES, *FEW, *POINTWISE, *TRANSPOSED, *INTERLEAVED, *DISJOINT)
CONVOLUTIONS: tuple[Forward, ...] = (
    *(*GEMMS, *BANDS, *GROUPED, *TENSOR, *MATRIX),
    *(*DISJOINT_TENSOR, *PHASE_ROWS, *TAP_ROWS, *DIRECT, *STEMS, *CHANNELS, *DEPTHWISE_TRANSPOSED),
)
