"""Specimens of wgmma convolutions, in which persistent blocks compute several tiles each.

Axes have unequal extents, strides, pads and dilations; tiles span several images; slices of K span several taps and
channels; some inputs or weights are infinite. Planners see 2 to 5 multiprocessors, so that few blocks compute all
tiles.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.kernels.convolutions import conv
from tests.kernels.specimen import INFINITE_INPUTS, INFINITE_WEIGHTS, Forward, Ints


def wgmma(
    kernel: str, x: Ints, w: Ints, multiprocessors: int = 2, out: str = "contiguous", parts: bool = False, **more: Any
) -> Forward:
    """Return a specimen as `conv` does; with ``parts``, of 3xtf32, whose kernels are those of tf32."""
    if parts:  # integers would have an empty remainder
        more["kinds"] = ("normal", "normal", "normal")
    one = conv(kernel, x, w, out=out, **more)
    return replace(one, multiprocessors=multiprocessors, factors="3xtf32" if parts else None)


_FLAT: dict[str, Any] = {"strides": [2, 1], "pads": [1, 2, 0, 1], "dilations": [1, 2]}
_DEEP: dict[str, Any] = {"strides": [1, 2, 1], "pads": [1, 0, 2, 0, 1, 1], "dilations": [2, 1, 1]}
_PHASES: dict[str, Any] = {"strides": [2, 3], "pads": [1, 0, 2, 1], "dilations": [1, 2], "output_padding": [1, 0]}
_EMPTY_PHASES: dict[str, Any] = {**_PHASES, "dilations": [2, 2]}  # every second row has no tap
_LAST: dict[str, Any] = {"layout": "channels last", "out": "channels last"}

SMALL = wgmma("conv_float16_3d_wgmma_64x256", (5, 100, 12, 21), (130, 100, 3, 2), kinds=INFINITE_WEIGHTS, **_FLAT)
WIDE = wgmma("conv_bfloat16_3d_wgmma_64x256", (1, 150, 900), (70, 150, 5), pads=[7, 2], dilations=[3])
LAST = wgmma("conv_float16_3d_wgmma_64x256_direct", (3, 64, 12, 21), (144, 64, 3, 2), **_FLAT, **_LAST)
TILES = (
    SMALL,
    wgmma("conv_bfloat16_3d_wgmma_64x256_direct", (3, 128, 12, 21), (140, 64, 2, 3), kinds=INFINITE_INPUTS, group=2,
          layout="channels last", **_FLAT),
    wgmma("conv_transpose_float16_3d_wgmma_128x256", (2, 72, 7, 9), (72, 130, 3, 4), kinds=INFINITE_WEIGHTS,
          **_EMPTY_PHASES),
    wgmma("conv_float16_3d_wgmma_128x256", (2, 144, 4, 9, 11), (270, 144, 2, 1, 3), **_DEEP),
    wgmma("conv_float16_3d_wgmma_64x256_split", (1, 140, 9, 21), (130, 140, 3, 2), 4, **_FLAT),
    wgmma("conv_float32_3d_tf32_wgmma_64x256", (2, 68, 9, 21), (140, 34, 3, 2), parts=True, group=2, **_FLAT),
    wgmma("conv_float16_3d_wgmma_128x256_direct_split", (2, 200, 9, 21), (130, 200, 1, 1), 5, layout="channels last"),
    WIDE,
    wgmma("conv_float32_3d_tf32_wgmma_128x256", (4, 40, 9, 21), (300, 40, 3, 2), kinds=INFINITE_WEIGHTS, **_FLAT),
    LAST,
    wgmma("conv_float32_3d_tf32_wgmma_64x256", (2, 40, 12, 21), (76, 40, 3, 2), out="channels last", **_FLAT),
    wgmma("conv_float16_3d_wgmma_128x256_split", (1, 140, 18, 21), (130, 140, 3, 2), 3, **_FLAT),
    wgmma("conv_transpose_bfloat16_3d_wgmma_64x256_split", (1, 144, 7, 9), (144, 70, 3, 4), 5, **_PHASES),
    wgmma("conv_float32_3d_tf32_wgmma_64x256_split", (1, 70, 9, 21), (130, 70, 3, 2), 4, parts=True, **_FLAT),
)  # fmt: skip

# Strips of x with more slices of K than fit shared memory; resident weights in slices of 32 channels; ConvTranspose,
# whose taps run backwards.
ROWS = wgmma("conv_float16_3d_wgmma_64x256_rows", (2, 90, 5, 72), (70, 90, 3, 2), kinds=INFINITE_WEIGHTS,
             pads=[1, 2, 0, 1], dilations=[2, 2])  # fmt: skip
STAYING = wgmma("conv_bfloat16_3d_wgmma_64x256x32_rows", (2, 96, 7, 72), (64, 96, 3, 2), kinds=INFINITE_WEIGHTS,
                pads=[1, 0, 2, 1])  # fmt: skip
STRIPS = (
    ROWS,
    wgmma("conv_bfloat16_3d_wgmma_64x256_patches_direct", (3, 128, 20, 21), (140, 64, 3, 2), kinds=INFINITE_INPUTS,
          group=2, layout="channels last", pads=[1, 0, 2, 1], dilations=[2, 1]),
    wgmma("conv_bfloat16_3d_wgmma_128x256_rows", (2, 72, 5, 72), (140, 72, 3, 2), pads=[1, 2, 0, 1]),
    wgmma("conv_float16_3d_wgmma_128x256_rows", (3, 130, 9, 24), (130, 130, 1, 1)),
    wgmma("conv_float16_3d_wgmma_64x256_rows_split", (1, 72, 3, 5, 72), (70, 72, 2, 3, 2), 5, strides=[1, 2, 1]),
    wgmma("conv_float32_3d_tf32_wgmma_64x256_patches", (2, 34, 9, 21), (140, 17, 3, 2), parts=True, group=2,
          pads=[1, 1, 1, 1]),
    STAYING,
    wgmma("conv_float16_3d_wgmma_64x256_patches_direct", (2, 72, 19, 20), (72, 70, 3, 2), operator="conv_transpose",
          layout="channels last", pads=[1, 0, 0, 1]),
)  # fmt: skip

# Pixels loaded through registers, from strips that do not fit shared memory at once.
PIXEL_ROWS = wgmma("conv_float32_3d_tf32_wgmma_64x256_pixel_rows", (2, 72, 6, 36), (70, 72, 3, 2),
                   kinds=INFINITE_WEIGHTS, strides=[2, 1], pads=[1, 2, 0, 1], dilations=[2, 1])  # fmt: skip
PIXEL_PATCHES = wgmma("conv_float32_3d_tf32_wgmma_128x128_pixel_patches_direct", (3, 40, 9, 20), (70, 40, 3, 2),
                      kinds=INFINITE_INPUTS, strides=[2, 1], pads=[1, 0, 2, 1], **_LAST)  # fmt: skip
PIXELS_OF_PARTS = wgmma("conv_float32_3d_tf32_wgmma_128x128_pixel_rows", (2, 112, 9, 20), (280, 56, 3, 2), parts=True,
                        group=2, pads=[1, 1, 1, 1])  # fmt: skip
PIXELS = (
    *(PIXEL_ROWS, PIXEL_PATCHES, PIXELS_OF_PARTS),
    wgmma("conv_float32_3d_tf32_wgmma_128x128_pixel_rows_split", (1, 76, 3, 5, 36), (70, 76, 2, 3, 2), 5, parts=True,
          strides=[1, 1, 2]),
)  # fmt: skip

WGMMA = (*TILES, *STRIPS, *PIXELS)
