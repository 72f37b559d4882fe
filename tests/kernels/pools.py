"""Specimens of MaxPool and AveragePool: at least one for each form of their kernels, with unequal axes."""

from __future__ import annotations

from typing import Any

from tests.kernels.specimen import Forward, Ints, MaxPool
from tests.oracle.strategies import Problem


def max_pool(
    kernel: str, x: Ints, kind: str, layout: str = "contiguous", out: str | None = None, **attributes: Any
) -> MaxPool:
    """Return a specimen: candidate, shape of x, kind of values, layouts of x and of the result, attributes."""
    return MaxPool(kernel, Problem("max_pool", x, attributes=attributes), (kind,), layout, out)


def average(
    kernel: str, x: Ints, kind: str, layout: str = "contiguous", out: str | None = None, **attributes: Any
) -> Forward:
    """Return a specimen of AveragePool."""
    return Forward(kernel, Problem("average_pool", x, attributes=attributes), (kind,), layout, out)


_POOL_2D: dict[str, Any] = {"kernel_shape": [3, 4], "strides": [2, 1], "pads": [4, 3, 3, 2], "dilations": [1, 2]}
_POOL_2D_TURNED: dict[str, Any] = {
    "kernel_shape": [4, 2], "strides": [1, 3], "pads": [11, 1, 4, 2], "dilations": [3, 2], "ceil_mode": 1,
}  # fmt: skip
_POOL_3D: dict[str, Any] = {
    "kernel_shape": [2, 3, 5], "strides": [1, 2, 1], "pads": [4, 3, 2, 0, 2, 4], "dilations": [2, 3, 1],
    "storage_order": 1,
}  # fmt: skip

POOLS = (
    max_pool("max_pool_float32_3d", (2, 3, 21, 14), "ties", out="channels last", **_POOL_2D),
    max_pool("max_pool_float32_3d", (2, 9, 13, 8), "ties", "channels last", "channels last", **_POOL_2D),
    max_pool("max_pool_float64_4d_wide", (2, 7, 5, 12, 9), "nonfinite", "channels last", "channels last", **_POOL_3D),
    max_pool("max_pool_float32_4d_wide", (2, 3, 9, 52), "nonfinite", "reversed", **_POOL_2D_TURNED),
    max_pool("max_pool_float16_3d", (3, 2, 13, 40), "nonfinite", "channels last", **_POOL_2D_TURNED),
    max_pool("max_pool_bfloat16_4d_wide", (3, 2, 20, 15), "nonfinite", "strided", "reversed", **_POOL_2D),
    max_pool("max_pool_float64_3d", (2, 2, 5, 12, 9), "nonfinite", "fortran", "strided", **_POOL_3D),
    max_pool("max_pool_int8_4d_wide", (2, 2, 5, 12, 9), "any integer", **_POOL_3D),
    max_pool("max_pool_uint8_3d", (2, 3, 150), "any integer", "broadcast", kernel_shape=[5], strides=[1], pads=[9, 8],
             dilations=[2]),
    max_pool("max_pool_float16_4d_wide", (2, 3, 150), "lowest", kernel_shape=[7], strides=[1], pads=[20, 8],
             dilations=[3]),
)  # fmt: skip

_AVERAGE_2D: dict[str, Any] = {
    "kernel_shape": [3, 4], "strides": [2, 1], "pads": [4, 3, 3, 2], "dilations": [1, 2], "count_include_pad": 1,
}  # fmt: skip
_AVERAGE_3D: dict[str, Any] = {
    "kernel_shape": [2, 3, 5], "strides": [1, 2, 1], "pads": [4, 3, 2, 0, 2, 4], "dilations": [2, 3, 1],
}  # fmt: skip
# Windows without valid elements, pads that count or not, windows added by ceil_mode; every family of kernels.
AVERAGES = (
    average("average_pool_float32_3d", (2, 3, 21, 14), "integers", out="channels last", **_AVERAGE_2D),
    average("average_pool_float16_3d", (2, 2, 5, 12, 9), "nonfinite", "channels last", "channels last", **_AVERAGE_3D),
    average("average_pool_float64_4d_wide", (2, 7, 5, 12, 9), "integers", "reversed", **_AVERAGE_3D),
    average("average_pool_bfloat16_4d_wide", (3, 2, 20, 15), "nonfinite", "strided", "reversed", **_AVERAGE_2D),
    average("average_pool_float32_3d_vectors_3x2", (3, 7, 17, 40), "integers", out="strided rows", kernel_shape=[3, 3],
            strides=[2, 2], pads=[2, 1, 1, 0], count_include_pad=1),
    average("average_pool_float16_3d_vectors_3x2", (2, 5, 2, 23, 88), "integers", kernel_shape=[2, 3, 3],
            strides=[1, 2, 2], pads=[1, 1, 0, 0, 2, 0], out="strided rows"),
    average("average_pool_bfloat16_3d_vectors_3x1", (3, 9, 21, 48), "integers", "strided rows", kernel_shape=[3, 3],
            pads=[1, 2, 2, 0]),
    average("average_pool_float64_3d_vectors_2x2", (2, 9, 3, 29, 28), "nonfinite", "off the vectors",
            kernel_shape=[3, 2, 2], strides=[2, 2, 2], pads=[2, 1, 0, 1, 0, 0], ceil_mode=1, count_include_pad=1),
    average("average_pool_float32_3d_channels", (2, 20, 9, 22, 31), "integers", "channels last", "channels last",
            kernel_shape=[2, 4, 3], strides=[1, 3, 2], pads=[1, 3, 2, 0, 1, 1], count_include_pad=1),
    average("average_pool_bfloat16_3d_channels", (3, 16, 31, 33), "integers", "strided pixels", "strided pixels",
            kernel_shape=[3, 5], strides=[2, 1], pads=[1, 2, 0, 4]),
    average("average_pool_float64_3d_channels", (2, 10, 28, 23), "nonfinite", "pixels off the vectors", "channels last",
            kernel_shape=[4, 2], strides=[1, 3], pads=[2, 1, 0, 1], ceil_mode=1),
    average("average_pool_float32_3d_tiles", (2, 2, 31, 600), "integers", kernel_shape=[4, 7], strides=[2, 1],
            dilations=[1, 2], pads=[2, 3, 1, 4], count_include_pad=1),
    average("average_pool_float16_3d_tiles", (2, 3, 53, 160), "integers", kernel_shape=[5, 4], strides=[3, 2],
            dilations=[1, 2], pads=[2, 1, 0, 3], out="strided rows"),
    average("average_pool_bfloat16_3d_tiles", (71, 23, 5, 7), "integers", kernel_shape=[4, 2], strides=[1, 2],
            dilations=[1, 2], pads=[3, 0, 2, 1]),
    average("average_pool_float32_3d_tiles", (2, 3, 26, 64), "nonfinite", "off the vectors", kernel_shape=[7, 5],
            strides=[1, 2], dilations=[2, 1], pads=[3, 0, 2, 4], ceil_mode=1, count_include_pad=1),
    average("average_pool_float64_3d_tiles", (3, 5, 3, 17, 32), "integers", kernel_shape=[2, 3, 9], strides=[1, 2, 1],
            dilations=[2, 3, 2], pads=[1, 2, 9, 1, 4, 7]),
    average("average_pool_float32_3d_patches", (2, 16, 29, 37), "integers", "channels last", "channels last",
            kernel_shape=[5, 7], strides=[1, 2], dilations=[2, 1], pads=[3, 4, 2, 1], count_include_pad=1),
    average("average_pool_float16_3d_patches", (1, 32, 5, 21, 26), "integers", "channels last", "strided pixels",
            kernel_shape=[3, 4, 6], strides=[2, 1, 1], dilations=[1, 2, 1], pads=[1, 2, 3, 0, 1, 4]),
    average("average_pool_float64_3d_patches", (2, 6, 33, 25), "nonfinite", "pixels off the vectors", "channels last",
            kernel_shape=[6, 4], strides=[2, 3], dilations=[1, 2], pads=[1, 3, 4, 0], ceil_mode=1),
)  # fmt: skip

# Specialised kernels: rows of whole vectors, with halo lanes on one side, on both or on none ...
VECTOR_POOLS = (
    max_pool("max_pool_float32_3d_vectors_3x2", (3, 7, 17, 40), "nonfinite", out="strided rows", kernel_shape=[3, 3],
             strides=[2, 2], pads=[2, 1, 1, 0]),
    max_pool("max_pool_float16_3d_vectors_3x2", (2, 5, 2, 23, 88), "nonfinite", kernel_shape=[2, 3, 3],
             strides=[1, 2, 2], pads=[1, 1, 0, 0, 2, 0], out="strided rows"),
    max_pool("max_pool_bfloat16_3d_vectors_3x1", (3, 9, 21, 48), "zeros", "strided rows", kernel_shape=[3, 3],
             pads=[1, 2, 2, 0]),
    max_pool("max_pool_float64_3d_vectors_3x1", (2, 7, 3, 12, 16), "lowest", kernel_shape=[3, 3, 3], strides=[2, 1, 1],
             pads=[1, 0, 1, 0, 2, 1]),
    max_pool("max_pool_int8_3d_vectors_3x2", (4, 11, 27, 80), "any integer", out="strided rows", kernel_shape=[3, 3],
             strides=[2, 2], pads=[1, 0, 0, 2], ceil_mode=1),
    max_pool("max_pool_uint8_3d_vectors_2x2", (5, 7, 41, 112), "the ends", kernel_shape=[2, 2], strides=[2, 2],
             pads=[1, 0, 0, 1], ceil_mode=1),
    max_pool("max_pool_float32_3d_vectors_2x2", (2, 6, 3, 19, 28), "ties", "off the vectors", kernel_shape=[3, 2, 2],
             strides=[2, 2, 2], pads=[2, 1, 0, 1, 0, 0]),
    max_pool("max_pool_float16_3d_vectors_3x2", (11, 17, 9, 16), "nonfinite", kernel_shape=[3, 3], strides=[2, 2],
             pads=[0, 1, 1, 2]),
    max_pool("max_pool_float32_3d_vectors_3x1", (2, 7, 9, 44), "normal", kernel_shape=[3, 3], pads=[2, 1, 0, 1]),
    max_pool("max_pool_uint8_3d_vectors_3x1", (5, 7, 13, 48), "the ends", "off the vectors", kernel_shape=[3, 3],
             pads=[2, 1, 0, 2]),
)  # fmt: skip
# ... tiles: strides, dilations, overlapping and disjoint windows, rows between windows, vector and scalar loads of x,
# whole planes and parts of rows, several small planes per block, and planes of one row.
TILE_POOLS = (
    max_pool("max_pool_float32_3d_tiles", (2, 2, 31, 600), "nonfinite", kernel_shape=[4, 7], strides=[2, 1],
             dilations=[1, 2], pads=[2, 3, 1, 4]),
    max_pool("max_pool_float16_3d_tiles", (2, 3, 53, 160), "nonfinite", kernel_shape=[5, 4], strides=[3, 2],
             dilations=[1, 2], pads=[2, 1, 0, 3], out="strided rows"),
    max_pool("max_pool_bfloat16_3d_tiles", (3, 5, 3, 17, 32), "nonfinite", kernel_shape=[2, 3, 9], strides=[1, 2, 1],
             dilations=[2, 3, 2], pads=[1, 2, 9, 1, 4, 7]),
    max_pool("max_pool_int8_3d_tiles", (4, 31, 13, 32), "any integer", kernel_shape=[6, 4], strides=[2, 1],
             dilations=[2, 1], pads=[3, 1, 5, 2]),
    max_pool("max_pool_uint8_3d_tiles", (2, 2, 60, 141), "the ends", "strided rows", kernel_shape=[4, 5],
             strides=[2, 3], dilations=[2, 1], pads=[1, 0, 2, 4], ceil_mode=1),
    max_pool("max_pool_float64_3d_tiles", (3, 7, 900), "lowest", kernel_shape=[8], dilations=[3], pads=[5, 2]),
    max_pool("max_pool_float32_3d_tiles", (2, 3, 26, 64), "ties", "off the vectors", kernel_shape=[7, 5],
             strides=[1, 2], dilations=[2, 1], pads=[3, 0, 2, 4]),
    max_pool("max_pool_uint8_3d_tiles", (2, 3, 14, 1600), "any integer", kernel_shape=[3, 5], strides=[1, 2],
             dilations=[2, 1], pads=[1, 3, 0, 2]),
    max_pool("max_pool_uint8_3d_tiles", (2, 2, 105, 37), "the ends", kernel_shape=[2, 3], strides=[3, 1],
             dilations=[1, 2], pads=[1, 2, 0, 1], out="strided rows"),
    max_pool("max_pool_bfloat16_3d_tiles", (2, 3, 45, 37), "zeros", "strided rows", kernel_shape=[2, 3], strides=[3, 2],
             dilations=[2, 1], pads=[1, 2, 0, 1]),
    max_pool("max_pool_bfloat16_3d_tiles", (71, 23, 5, 7), "nonfinite", kernel_shape=[4, 2], strides=[1, 2],
             dilations=[1, 2], pads=[3, 0, 2, 1]),
    max_pool("max_pool_int8_3d_tiles", (2, 3, 60, 29), "any integer", kernel_shape=[1, 13], strides=[2, 1],
             dilations=[1, 2], pads=[0, 9, 0, 12]),
    max_pool("max_pool_float64_3d_tiles", (2, 3, 1901), "lowest", kernel_shape=[3], strides=[3], pads=[2, 1]),
    max_pool("max_pool_float64_3d_tiles", (2, 3, 4, 31, 38), "nonfinite", kernel_shape=[2, 7, 5], strides=[2, 1, 1],
             dilations=[1, 1, 2], pads=[1, 3, 2, 0, 4, 1]),
)  # fmt: skip
# ... vectors of channels: walks along rows with shared columns, single outputs, unaligned pixels, and channel counts
# that are not whole vectors.
CHANNEL_POOLS = (
    max_pool("max_pool_float16_3d_channels", (2, 72, 31, 37), "nonfinite", "channels last", "strided pixels",
             kernel_shape=[2, 3], strides=[3, 2], pads=[1, 2, 0, 1]),
    max_pool("max_pool_bfloat16_3d_channels", (2, 40, 5, 12, 15), "zeros", "strided pixels", "channels last",
             kernel_shape=[2, 4, 3], strides=[2, 3, 1], pads=[1, 3, 2, 0, 1, 0]),
    max_pool("max_pool_float32_3d_channels", (3, 12, 23, 19), "nonfinite", "channels last", "channels last",
             kernel_shape=[3, 5], strides=[1, 2], pads=[0, 4, 2, 3], ceil_mode=1),
    max_pool("max_pool_float64_3d_channels", (2, 14, 25, 15), "lowest", "channels last", "strided pixels",
             kernel_shape=[3, 2], strides=[2, 1], pads=[2, 1, 0, 1]),
    max_pool("max_pool_int8_3d_channels", (3, 48, 41, 14), "any integer", "channels last", "channels last",
             kernel_shape=[7, 2], strides=[2, 3], pads=[5, 1, 6, 0]),
    max_pool("max_pool_uint8_3d_channels", (2, 112, 11, 29), "the ends", "pixels off the vectors", "channels last",
             kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 1, 2]),
    max_pool("max_pool_bfloat16_3d_channels", (3, 43, 23, 19), "nonfinite", "channels last", "strided pixels",
             kernel_shape=[3, 2], strides=[1, 2], pads=[2, 1, 0, 1]),
    max_pool("max_pool_float32_3d_channels", (2, 7, 3, 25, 17), "zeros", "channels last", "channels last",
             kernel_shape=[2, 3, 4], strides=[2, 2, 1], pads=[1, 0, 2, 0, 2, 1]),
    max_pool("max_pool_int8_3d_channels", (3, 37, 41, 14), "any integer", "channels last", "channels last",
             kernel_shape=[4, 3], strides=[2, 1], pads=[3, 1, 1, 2]),
)  # fmt: skip

# ... patches of pixels: strides, dilations, parts of the channels, unaligned pixels, partial vectors of channels.
PATCH_POOLS = (
    max_pool("max_pool_float32_3d_patches", (2, 20, 23, 31), "nonfinite", "channels last", "strided pixels",
             kernel_shape=[7, 5], strides=[1, 2], dilations=[2, 1], pads=[3, 4, 6, 1]),
    max_pool("max_pool_bfloat16_3d_patches", (2, 40, 4, 13, 17), "nonfinite", "strided pixels", "channels last",
             kernel_shape=[2, 6, 3], strides=[1, 2, 1], dilations=[2, 1, 2], pads=[1, 5, 3, 2, 4, 1]),
    max_pool("max_pool_int8_3d_patches", (3, 48, 41, 24), "any integer", "channels last", "channels last",
             kernel_shape=[7, 4], strides=[2, 3], dilations=[1, 2], pads=[5, 1, 6, 2]),
    max_pool("max_pool_uint8_3d_patches", (2, 80, 21, 29), "the ends", "pixels off the vectors", "channels last",
             kernel_shape=[2, 9], strides=[2, 1], dilations=[3, 1], pads=[3, 4, 1, 8]),
    max_pool("max_pool_float16_3d_patches", (2, 72, 26, 19), "zeros", "channels last", "strided pixels",
             kernel_shape=[5, 13], strides=[2, 1], dilations=[2, 1], pads=[0, 6, 4, 12], ceil_mode=1),
    max_pool("max_pool_float64_3d_patches", (2, 14, 19, 33), "lowest", "channels last", "channels last",
             kernel_shape=[4, 5], strides=[1, 2], dilations=[3, 2], pads=[6, 3, 1, 8]),
    max_pool("max_pool_float16_3d_patches", (2, 40, 29, 37), "nonfinite", "channels last", "channels last",
             kernel_shape=[6, 7], strides=[2, 1], dilations=[4, 2], pads=[3, 6, 1, 4]),
    max_pool("max_pool_float32_3d_patches", (2, 19, 23, 31), "nonfinite", "channels last", "channels last",
             kernel_shape=[5, 4], strides=[1, 2], dilations=[1, 2], pads=[3, 4, 1, 2]),
    max_pool("max_pool_uint8_3d_patches", (2, 71, 19, 22), "the ends", "channels last", "strided pixels",
             kernel_shape=[4, 7], strides=[2, 1], dilations=[1, 2], pads=[2, 5, 1, 8]),
)  # fmt: skip

# ... separable MaxPool with Indices: windows that overlap with offsets 1 and 2, dilated ones, windows of one tap; the
# launch that numbers elements, along each axis, in both storage orders.
AXIS_POOLS = (
    max_pool("max_pool_float32_3d_axis_indices", (2, 3, 17, 11, 9), "nonfinite", kernel_shape=[7, 3, 2],
             strides=[1, 2, 1], dilations=[1, 1, 2], pads=[3, 2, 0, 2, 0, 1]),
    max_pool("max_pool_float16_3d_axis_indices", (2, 20, 23, 19), "nonfinite", "channels last", "strided pixels",
             kernel_shape=[9, 4], strides=[2, 1], dilations=[1, 2], pads=[4, 3, 3, 2]),
    max_pool("max_pool_bfloat16_3d_axis_indices", (5, 5, 37, 14), "zeros", "strided rows", kernel_shape=[9, 2],
             strides=[2, 3], dilations=[3, 1], pads=[12, 1, 9, 0], storage_order=1),
    max_pool("max_pool_float64_3d_axis_indices", (2, 14, 25, 15), "lowest", "channels last", "channels last",
             kernel_shape=[4, 3], strides=[3, 1], dilations=[1, 2], pads=[2, 1, 3, 2], ceil_mode=1),
    max_pool("max_pool_int8_3d_axis_indices", (2, 3, 10, 14, 11), "the ends", "pixels off the vectors", "channels last",
             kernel_shape=[2, 6, 3], strides=[3, 1, 2], dilations=[2, 1, 3], pads=[1, 2, 5, 1, 3, 4]),
    max_pool("max_pool_uint8_3d_axis_indices", (3, 7, 26, 19), "any integer", "off the vectors", "strided rows",
             kernel_shape=[10, 3], strides=[2, 1], dilations=[1, 2], pads=[9, 2, 4, 1]),
    max_pool("max_pool_float32_3d_axis_numbered_indices", (3, 12, 5, 40), "nonfinite", "channels last", "channels last",
             kernel_shape=[1, 6], strides=[2, 1], dilations=[1, 3], pads=[0, 7, 0, 4]),
    max_pool("max_pool_float16_3d_axis_numbered_indices", (2, 7, 31, 40), "ties", "strided rows", "strided rows",
             kernel_shape=[9, 1], strides=[2, 3], dilations=[1, 2], pads=[5, 0, 3, 0]),
    max_pool("max_pool_bfloat16_3d_axis_numbered_indices", (2, 6, 4, 33, 7), "nonfinite", "strided pixels",
             "channels last", kernel_shape=[1, 10, 1], strides=[2, 1, 3], dilations=[1, 2, 1], pads=[0, 8, 0, 0, 11, 0],
             storage_order=1),
    max_pool("max_pool_int8_3d_axis_numbered_indices", (2, 3, 14, 9, 11), "any integer", out="strided rows",
             kernel_shape=[4, 1, 1], strides=[1, 2, 1], dilations=[3, 1, 1], pads=[4, 0, 0, 5, 0, 0]),
)  # fmt: skip

FAST_POOLS = (*VECTOR_POOLS, *TILE_POOLS, *CHANNEL_POOLS, *PATCH_POOLS, *AXIS_POOLS)
FORWARD_POOLS: tuple[Forward, ...] = (*POOLS, *FAST_POOLS, *AVERAGES)
