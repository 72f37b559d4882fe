"""The problems that each kernel family refuses, with the reasons that plans give; and the kernels of layers.

A row has a problem, the beginning of the reason, and the families that refuse the problem for it. If a number decides,
`TAKEN` has the largest accepted one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv.direct import bands, channels, few, rows, transpose
from gpuconv.cuda.conv.gemm import grouped, interleaved, matrix, mma, pointwise, stem
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.conv.wgmma import family as wgmma
from gpuconv.cuda.plan import offers
from gpuconv.cuda.pool import axis as pool_axis
from gpuconv.cuda.pool import channels as pool_channels
from gpuconv.cuda.pool import families as pool_families
from gpuconv.cuda.pool import patches, tiles, vectors
from gpuconv.cuda.pool.grad import averages, scatter, walks
from gpuconv.cuda.pool.grad import families as pool_grad_families
from gpuconv.cuda.pool.grad.problem import PoolGradProblem
from gpuconv.cuda.weight_grad import families as weight_families
from gpuconv.cuda.weight_grad import rows as weight_rows
from gpuconv.cuda.weight_grad import tiles as weight_tiles
from gpuconv.rules import geometry as geometries
from tests.cuda.pool.problems import lying, made
from tests.harness import plans
from tests.harness.offered import candidates, refused, said
from tests.harness.plans import HOPPER, problem, weight_grad

FAR = 2**31  # elements: a stride that needs 64-bit indices
Ints = tuple[int, ...]


def conv(x: Ints, w: Ints, dtype: str = "float32", **more: Any) -> Problem:
    return problem("conv", x, w, dtype, **more)


def half(x: Ints, w: Ints, **more: Any) -> Problem:
    return conv(x, w, "float16", **more)


def transposed(x: Ints, w: Ints, strides: list[int], dtype: str = "float32", **more: Any) -> Problem:
    return problem("conv_transpose", x, w, dtype, strides=strides, **more)


def last(x: Ints, w: Ints, operator: str = "conv", **more: Any) -> Problem:
    return problem(operator, x, w, "float32", layout="NHWC", **more)


def pool(x: Ints, kernel: Any, x_strides: Ints | None = None, **more: Any) -> Any:
    one = made(x, kernel_shape=kernel, **more)
    return replace(one, x_strides=x_strides or one.x_strides)


def max_pool_grad(x: Ints, kernel: list[int], **more: Any) -> Any:
    return plans.max_pool_grad(x, kernel_shape=kernel, **more).problem


def average_pool_grad(x: Ints, kernel: list[int], **more: Any) -> Any:
    forward = geometries.average_pool(x, kernel_shape=kernel, **more)
    return PoolGradProblem(forward, "float32", lying(forward.y_shape, False), None, lying(x, False))


G2: dict[str, Any] = {"group": 2}
G4: dict[str, Any] = {"group": 4}
TWOS = (2, 2, 2, 2)
ONE_GROUP = (1, 3, 9, 9), (4, 3, 3, 3)
GEMM = (8, 64, 8, 8), (256, 64, 1, 1)  # x and w of a Conv with one tap, whose pixels are contiguous
BLOCKS = (8, 64, 8, 8), (64, 32, 2, 2)  # of a ConvTranspose whose strides equal its kernel
IMAGES = (2, 3, 20, 20)  # x of a pool's gradient
NO_WINDOW: dict[str, Any] = {"strides": [9, 1], "pads": [5, 0, 0, 0]}  # the only row of windows ends before x
_64_BIT = "it needs 64-bit indices"
_FAR = "offsets or coordinates need 64-bit indices"
_OVERLAP = "the outputs of neighbours overlap or lie apart"

EXPLAINED: list[tuple[Any, str, tuple[Any, ...]]] = [
    # what several families of convolutions refuse
    (half((1, 4, 3, 3, 3, 3), (4, 2, *TWOS), **G2), "4 spatial axes", (rows, few, bands, stem, grouped, mma)),
    (last((1, 2, 4, 4, 4, 4), (2, 1, *TWOS), **G2), "4 spatial axes; it has three", (channels,)),
    (transposed((1, 4, *TWOS), (4, 6, *TWOS), [2] * 4), "4 spatial axes", (pointwise, matrix, interleaved)),
    (conv((2, 2, 8), (2, 1, 3), x_strides=(FAR, 8, 1), **G2), _64_BIT, (rows, few, bands)),
    (conv((2, 20, 6, 8), (70, 20, 1, 1), x_strides=(FAR, 48, 8, 1)), _64_BIT, (pointwise,)),
    (transposed((1, 1, 2**26, 2), (1, 32, 2, 2), [2, 2]), _64_BIT, (pointwise, interleaved)),
    (conv((2, 3, 9), (4, 3, 3), x_strides=(FAR, 9, 1)), _FAR, (stem,)),
    (half((2, 2**10, 2**10, 2**11), (1, 2**10, 1, 1)), _FAR, (mma,)),
    (conv((1, 2, 0, 8), (2, 1, 3, 3), pads=[2, 0, 2, 0], **G2), "there is nothing to sum", (rows, bands)),
    (conv((1, 0, 9), (4, 0, 3)), "there is nothing to sum", (few, bands)),
    (half((1, 0, 3), (2, 0, 1)), "there is nothing to multiply", (mma,)),
    (last((1, 4, 8), (4, 1, 3), "conv_transpose", strides=[2], **G4), "ConvTranspose with strides (2,)",
     (channels, rows)),
    # direct sums
    (last((1, 8, 8), (4, 2, 3), **G4), "2 channels and 1 filters a group; it takes 1 and up to 4", (channels,)),
    (last((1, 4, 8), (20, 1, 3), **G4), "1 channels and 5 filters a group; it takes 1 and up to 4", (channels,)),
    (last((1, 4, 8, 8), (4, 1, 3, 3), x_strides=(FAR, 1, 2**29, 2**29), **G4), _64_BIT, (channels,)),
    (conv((1, 66, 8), (2, 33, 3), **G2), "33 channels, 1 filters a group; it takes 1 to 32 of both", (rows,)),
    (conv((1, 2, 8), (66, 1, 3), **G2), "1 channels, 33 filters a group; it takes 1 to 32 of both", (rows,)),
    (conv((1, 2, 8), (2, 1, 3), x_strides=(16, 1, 2), **G2), "neighbours of a row do not lie next to each other",
     (rows,)),
    (conv(*ONE_GROUP, strides=[2, 2]), "strides (2, 2), dilations (1, 1): it takes dilations, and", (bands,)),
    (conv(*ONE_GROUP, dilations=[1, 2]), "strides (1, 1), dilations (1, 2): it takes dilations, and", (bands,)),
    (transposed((1, 3, 9), (3, 4, 3), [3], dilations=[2]), "strides (3,), dilations (2,): it takes", (bands,)),
    (transposed((1, 2, 4, 4, 4), (2, 1, 2, 2, 2), [2, 2, 2], **G2), "3 spatial axes; it has two", (transpose,)),
    (transposed((1, 4, 8), (4, 1, 4), [2], **G2), "2 channels a group; it takes one", (transpose,)),
    (transposed((1, 2, 8), (2, 1, 5), [2], **G2), "more than two taps a phase, or dilated ones", (transpose,)),
    (transposed((1, 2, 8), (2, 1, 3), [2], dilations=[2], **G2), "more than two taps a phase, or dilated",
     (transpose,)),
    (transposed((1, 2, 0, 8), (2, 1, 2, 2), [1, 2], output_padding=[0, 1], **G2), "there is nothing to sum",
     (transpose,)),
    # GEMMs
    (conv((1, 3, 9), (4, 3, 3), "float64"), "elements of 64 bits", (stem,)),
    (conv((2, 3, 9), (4, 3, 3), "bfloat16", dilations=[2]), "taps of a row that are no neighbours, which", (stem,)),
    (conv((1, 1, 64, 250), (8, 1, 17, 241)), "4097 rows of K; it takes 1 to 4096", (stem,)),
    (conv((1, 15, 4096), (4, 15, 3), dilations=[2000]), "the inputs of a block leave no room for a second", (stem,)),
    (half((1, 130, 9), (4, 65, 3), **G2), "65 channels in a group; it takes up to 64", (grouped,)),
    (conv((1, 4, 9), (4, 2, 3), "float64", **G2), "products of float64", (grouped,)),
    (conv((1, 4, 9), (4, 2, 3), **G2), "float32 products are those of IEEE arithmetic", (grouped, mma)),
    (conv((1, 130, 9, 9), (8, 65, 3, 3), precision="tf32", **G2), "65 channels in a group", (grouped,)),
    (half((1, 128, 9, 9, 9), (128, 64, 5, 5, 5), **G2), "232448 bytes of shared memory have no room", (grouped,)),
    *(
        (one, "pixels are not contiguous in x and y, or there are strides or padding", (pointwise,))
        for one in (
            conv((2, 20, 6, 8), (70, 20, 1, 1), strides=[1, 2]),
            conv((2, 20, 6, 8), (70, 20, 1, 1), pads=[0, 0, 0, 1]),
            conv((2, 20, 2, 2), (70, 20, 1, 1), pads=[0, 0, 1, 1], strides=[2, 2]),  # as many outputs as inputs
            conv((2, 20, 6, 8), (70, 20, 1, 1), x_strides=(960, 48, 1, 6)),  # rows are columns
        )
    ),
    *(
        (one, "pixels of a channel of x are not contiguous, or begin on less than 4 bytes", (matrix,))
        for one in (
            half((8, 64, 7, 7), (256, 64, 1, 1)),
            half(*GEMM, strides=[2, 2]),
            half(*GEMM, pads=[0, 0, 1, 0]),
            half((8, 64, 2, 2), (256, 64, 1, 1), strides=[2, 2], pads=[0, 0, 1, 1]),
            transposed((8, 64, 7, 7), (64, 32, 2, 2), [2, 2], "float16"),
        )
    ),
    (half((8, 12, 8, 8), (256, 12, 1, 1)), "12 channels of a filter are not whole 16 bytes", (matrix,)),
    (transposed((8, 64, 8, 8), (64, 31, 2, 1), [2, 1], "float64"), "it has no float64", (matrix,)),
    (transposed((8, 64, 8, 8), (64, 31, 1, 3), [1, 3], "float16"), "output channels and taps of an input", (matrix,)),
    (replace(transposed(*BLOCKS, [2, 2], "float16"), y_strides=(8192, 1, 512, 32)),
     "outputs along W are not contiguous", (matrix, interleaved)),
    (transposed((8, 64, 8, 8), (64, 32, 3, 3), [2, 2], "float16"),
     f"(3, 3) taps, strides (2, 2), dilations (1, 1): {_OVERLAP}", (pointwise, matrix)),
    (transposed((1, 4, 9), (4, 6, 2), [3]), f"(2,) taps, strides (3,), dilations (1,): {_OVERLAP}",
     (pointwise, matrix)),
    (transposed((1, 4, 9), (4, 6, 2), [2], dilations=[2]), f"(2,) taps, strides (2,), dilations (2,): {_OVERLAP}",
     (pointwise, matrix)),
    (transposed((1, 4, 9), (4, 6, 2), [2], output_padding=[1]), "y has outputs that no tap reaches",
     (pointwise, matrix)),
    (transposed((1, 3, 5, 4), (3, 4, 2, 33), [2, 33]), "33 taps along W; it takes up to 32", (pointwise, matrix)),
    (replace(transposed((1, 20, 9, 8), (20, 6, 2, 2), [2, 2]), w_strides=(480, 4, 24, 1, 2)),
     "the taps of a channel are not contiguous in w", (pointwise, matrix)),
    (transposed((1, 4, 9, 9), (4, 6, 3, 3), [2, 1]), "outputs of one phase are neighbours along W already",
     (interleaved,)),
    (transposed((1, 4, 9), (4, 6, 30), [20]), "the sums of 20 phases along W leave no room for a second",
     (interleaved,)),
    (half((1, 64, 9, 9), (31, 64, 3, 3)), "a group has 31 output channels, less than the 32 of half a tile", (wgmma,)),
    (half((1, 64, 9, 9), (62, 32, 3, 3), **G2), "a group has 31 output channels", (wgmma,)),
    (half((1, 64, 0, 9), (64, 64, 1, 3), pads=[1, 0, 1, 0]), "there is no input to fetch", (wgmma,)),
    (half((1, 64, 40, 9), (64, 64, 1, 3), strides=[9, 1]), "TMA fetches strides up to 8, not 9", (wgmma,)),
    (transposed((1, 64, 9, 9), (64, 64, 3, 3), [6, 6], "float16"), "36 phases are more than 32", (wgmma,)),
    (half((1, 64, 300, 9), (64, 64, 2, 3), dilations=[255, 1]),
     "taps reach 255 elements, more than the 254 of TMA's offsets on 2 axes", (wgmma,)),
    (half((1, 64, 9, 9, 9), (64, 64, 32, 1, 1), pads=[15, 0, 0, 16, 0, 0]),
     "taps reach 31 elements, more than the 30 of TMA's offsets on 3 axes", (wgmma,)),
    (half((1, 64, 9), (64, 64, 2), dilations=[65535], pads=[32768, 32768]), "taps reach 65535 elements", (wgmma,)),
    (half((1, 64, 9, 9), (64, 64, 3, 3), pads=[0, 129, 0, 0]),
     "columns begin -129 or end 0 elements beside x, TMA allows -128 to 127", (wgmma,)),
    (half((1, 64, 9, 9, 9), (64, 64, 1, 1, 1), pads=[0] * 5 + [16]),
     "columns begin 0 or end 16 elements beside x, TMA allows -16 to 15", (wgmma,)),
    (transposed((1, 64, 9, 9), (64, 64, 3, 140), [1, 1], "float16"), "columns begin -139 or end ", (wgmma,)),
    (half((2, 1, 2**13, 2**14), (64, 1, 3, 3), strides=[8, 8]), "a copy of x or w would have 2**31 elements", (wgmma,)),
    # gradients of weights
    (weight_grad((2, 2, 5, 5, 5, 5), (2, 1, 1, 1, 1, 1), **G2), "4 spatial axes", (weight_rows, weight_tiles)),
    (weight_grad((0, 8, 5), (8, 1, 1), group=8), "there is nothing to multiply", (weight_rows, weight_tiles)),
    (weight_grad((1, 1, 0), (1, 1, 1), pads=[1, 1]), "there is nothing to multiply", (weight_rows, weight_tiles)),
    (weight_grad((1, 1, 2**30), (1, 1, 1)), _FAR, (weight_rows, weight_tiles)),
    (weight_grad((1, 1, 2**30), (1, 1, 1), strides=[2**20]), _FAR, (weight_tiles,)),
    (weight_grad((1, 1, 2**28), (1, 1, 1)), _FAR, (weight_rows,)),  # up to four times the number of walks
    (weight_grad((1, 1, 9), (1, 1, 2), dilations=[2**25], pads=[2**25, 0]), _FAR, (weight_rows,)),
    (weight_grad((1, 2, 2**29), (1, 2, 3), strides=[2**20]),
     "channels of x are 2147483648 bytes apart, not fewer than 2147483648", (weight_tiles,)),
    # pools
    (pool((2, 3, 4, 4, 4, 4), [2] * 4, indices=True), "4 spatial axes", (vectors, tiles, pool_axis)),
    (pool((2, 3, 9, 4), [2, 2], dilations=[1, 5], pads=[0, 2, 0, 2], indices=True), "dilated windows",
     (vectors, tiles, pool_axis)),
    (pool((2, 3, 4, 16), [2, 2], pads=[2, 0, 0, 0], indices=True), "some windows are empty",
     (vectors, tiles, pool_axis)),
    (pool((2, 3, 4, 16), [2, 2], pads=[0, 0, 0, 2]), "some windows are empty", (vectors, tiles)),
    (pool((2, 3, 4, 16), [2, 2], storage_order=1, indices=True), "column-major numbers", (vectors, tiles)),
    (pool((2, 3, 16), [2], x_strides=(96, 32, 2)), "neighbours of a row lie 2 elements apart", (vectors, tiles)),
    (pool((2, 3, 8, 16), [2, 2], x_strides=(2**40, 128, 16, 1), strides=2), "64-bit indices", (vectors, tiles)),
    (pool((1, 2, 9, 16), [3, 3], dilations=[2, 2]), "dilated windows", (vectors,)),
    (pool((1, 2, 9, 10), [3, 3], strides=2), "rows are not made of whole vectors of 4 elements", (vectors,)),
    (pool((1, 2, 9, 16), [3, 3], strides=2, pads=[0, 2, 0, 0]), "windows of 3 x 3, 2 x 2 apart, padded by 2",
     (vectors,)),
    (pool((1, 2, 9, 16), [3, 2], strides=2), "windows of 3 x 2, 2 x 2 apart, padded by 0", (vectors,)),
    (pool((1, 2, 2, 9), [2, 2], dilations=[2, 1], pads=[1, 0, 0, 0]), "windows that begin inside the input", (tiles,)),
    (pool((1, 1, 400, 3, 3000), [400, 3, 3], strides=2), "shared memory does not hold the rows of a window", (tiles,)),
    (pool((2, 16, 9, 16), [2, 2], last=True, dilations=[1, 2]), "dilated windows", (pool_channels,)),
    (pool((2, 16, 9, 16), [2, 2], last=True, pads=[0, 2, 0, 0]), "some windows are empty", (pool_channels, patches)),
    (pool((2, 16, 9, 16), [2, 2], last=True, storage_order=1, indices=True), "column-major", (pool_channels, patches)),
    (pool((2, 2**16, 2**8, 2**8), [2, 2], last=True), "64-bit indices", (pool_channels, patches)),
    (pool((2, 16, 9, 16), [2, 2]), "channels are not neighbours", (pool_channels, patches)),
    (pool((2, 3, 9, 9), [1, 5], indices=True), "windows along rows of neighbours", (pool_axis,)),
    (pool((2, 3, 9), [5], indices=True), "windows along rows of neighbours", (pool_axis,)),
    # gradients of pools
    (max_pool_grad(IMAGES, [3, 3], dilations=[2, 1]), "dilated windows", (walks, scatter)),
    (average_pool_grad(IMAGES, [3, 3], dilations=[2, 1]), "dilated windows", (averages,)),
    (max_pool_grad((2, 3, 4, 4, 4, 4), [1] * 4), "4 spatial axes", (walks, scatter)),
    (average_pool_grad((2, 3, 4, 4, 4, 4), [1] * 4), "4 spatial axes", (averages,)),
    (max_pool_grad((2, 3, 2, 20), [1, 3], **NO_WINDOW), "no window meets x", (walks, scatter)),
    (average_pool_grad((2, 3, 2, 20), [1, 3], **NO_WINDOW), "no window meets x", (averages,)),
    (max_pool_grad(IMAGES, [14, 3]), "windows of 14 rows", (walks,)),
    (average_pool_grad(IMAGES, [14, 3]), "elements that 14 rows of windows reach", (averages,)),
    (max_pool_grad(IMAGES, [5, 5], storage_order=1), "column-major numbers", (scatter,)),
    (max_pool_grad((2, 3, 1, 20), [1, 5], storage_order=1), "column-major numbers", (scatter,)),
    (max_pool_grad((2, 3, 909, 20), [909, 5]), "shared memory does not hold the rows of a window", (scatter,)),
]  # fmt: skip

# Problems for which a family is obviously not meant: plans do not give the reason.
PLAIN: list[tuple[Any, str, tuple[Any, ...]]] = [
    (conv((1, 4, 9), (6, 4, 3)), "Conv has no phases", (interleaved, transpose)),
    (conv((1, 4, 9), (6, 4, 3)), "pixels are not contiguous", (pointwise,)),
    (conv((1, 4, 9), (6, 4, 3)), "several taps", (matrix,)),
    (transposed((1, 2, 4, 4, 4), (2, 1, 2, 2, 2), [2, 2, 2]), "3 spatial axes; it has two", (transpose,)),
    (transposed((1, 4, 8), (4, 1, 4), [2]), "4 channels a group; it takes one", (transpose,)),
    (conv((1, 8, 9, 9), (8, 1, 3, 3), group=8), "channels do not lie next to each other in x and y", (channels,)),
    (last((1, 8, 9, 9), (8, 8, 3, 3)), "channels do not lie next to each other in x and y", (channels,)),
    (conv((1, 33, 9, 9), (8, 33, 3, 3)), "33 channels, 8 filters a group; it takes 1 to 32 of both", (rows,)),
    (conv(*ONE_GROUP), "a single group of 3 channels; it takes several groups, or one channel", (rows,)),
    (conv((1, 16, 30, 40), (9, 16, 3, 3)), "9 output channels a group; it takes Conv with up to 8", (few,)),
    (transposed((1, 3, 9), (3, 4, 3), [2]), "4 output channels a group; it takes Conv with up to 8", (few,)),
    (conv((1, 3, 9, 9), (9, 3, 3, 3)), "9 output channels a group; it takes up to 8", (bands,)),
    (transposed((1, 3, 9), (3, 8, 3), [1]), "it is no Conv", (stem,)),
    (half((1, 16, 9), (4, 16, 3)), "16 channels of a group; it takes 1 to 15", (stem,)),
    (conv((1, 0, 9), (4, 0, 3)), "0 channels of a group; it takes 1 to 15", (stem,)),
    (conv((2, 20, 6, 8), (70, 20, 1, 2)), "pixels are not contiguous", (pointwise,)),
    (half((1, 8, 9, 9), (8, 8, 1, 1)), "8 rows of float16; it takes one or more of float32", (pointwise,)),
    (conv((2, 20, 6, 8), (70, 20, 1, 1), "float64"), "20 rows of float64; it takes one or more", (pointwise,)),
    (conv((2, 0, 6, 8), (70, 0, 1, 1)), "0 rows of float32; it takes one or more of float32", (pointwise,)),
    (conv((1, 8, 9, 9), (8, 8, 3, 3), "float64"), "products of float64", (grouped,)),
    (half((1, 65, 9, 9), (8, 65, 3, 3)), "65 channels in a group; it takes up to 64", (grouped,)),
    (conv((1, 130, 9, 9), (8, 65, 3, 3), **G2), "65 channels in a group; it takes up to 64", (grouped,)),
    (half((1, 8, 9, 9), (8, 8, 3, 3)), "several taps", (matrix,)),
    (conv(*GEMM), "no tensor cores for these types", (matrix,)),
    (conv(*GEMM, "float64"), "no tensor cores for these types", (matrix,)),
    (conv((1, 64, 9, 9), (64, 64, 3, 3)), "float32 products are those of IEEE arithmetic", (wgmma,)),
    (conv((1, 64, 9, 9), (64, 64, 3, 3), "float64"), "it does not multiply float64", (wgmma,)),
    (weight_grad((2, 8, 5, 5), (8, 2, 3, 3), **G4), "2 channels a group; it takes one", (weight_rows,)),
    (pool((2, 3, 9, 9), [5, 5]), "values alone", (pool_axis,)),
    (pool((2, 3, 9, 9), [1, 1], strides=2, indices=True), "windows of one element", (pool_axis,)),
    (average_pool_grad(IMAGES, [3, 3]), "averages", (walks, scatter)),
    (max_pool_grad(IMAGES, [3, 3]), "maxima", (averages,)),
]

TAKEN: list[tuple[Any, tuple[Any, ...]]] = [
    *((last((1, 4, 8), (4 * filters, 1, 3), **G4), (channels,)) for filters in (1, 3, 4)),
    (last((1, 4, 8, 8), (4, 1, 3, 3), **G4), (channels, rows)[:1]),
    (conv((1, 64, 8), (64, 32, 3), **G2), (rows,)),
    (conv(*ONE_GROUP), (few, bands, stem)),
    (conv((1, 15, 30, 40), (8, 15, 3, 3)), (few, bands, stem)),
    (transposed((1, 2, 1, 8), (2, 1, 1, 2), [1, 2], **G2), (transpose,)),
    (conv((1, 1, 64, 250), (8, 1, 64, 64)), (stem,)),
    *((half((1, 64 * g, 9, 9), (32 * g, 64, 3, 3), group=g), (grouped,)) for g in (1, 2)),
    (half((1, 2, 9, 9), (64, 1, 3, 3), **G2), (grouped,)),
    (conv((2, 20, 6, 8), (70, 20, 1, 1)), (pointwise,)),
    (half(*GEMM), (matrix,)),
    (transposed(*BLOCKS, [2, 2], "float16"), (matrix, pointwise)),
    (transposed((1, 3, 5, 4), (3, 4, 2, 32), [2, 32]), (pointwise,)),
    (transposed((1, 4, 9, 9), (4, 6, 3, 3), [2, 2]), (interleaved,)),
    (weight_grad((1, 1, 2**28 - 1), (1, 1, 1)), (weight_rows,)),
    (weight_grad((1, 1, 9), (1, 1, 2), dilations=[2**24], pads=[2**24, 0]), (weight_rows,)),
    (weight_grad((1, 2, 2**29 - 1), (1, 2, 3), strides=[2**20]), (weight_tiles,)),
    (weight_grad((1, 2, 2**29), (1, 2, 3), "float16", strides=[2**20]), (weight_tiles,)),
    (weight_grad((1, 1, 2**29), (1, 1, 3), strides=[2**20]), (weight_tiles,)),  # no other channel is read
    (weight_grad((1, 1, 2**30 - 1), (1, 1, 1), strides=[2**20]), (weight_tiles,)),
    (pool((1, 2, 9, 16), [3, 3], strides=2), (vectors, tiles)),
    (pool((1, 2, 2, 9), [2, 2]), (tiles,)),
    (pool((2, 16, 9, 16), [2, 2], last=True), (pool_channels, patches)),
    (pool((2, 3, 9, 9), [5, 5], indices=True), (pool_axis,)),
    (max_pool_grad(IMAGES, [13, 3]), (walks, scatter)),
    (average_pool_grad(IMAGES, [13, 3]), (averages,)),
]


PADS = {size: [size // 2] * 4 for size in (3, 5, 7, 9)}
IMAGE, BLOCK = (1, 64, 256, 256), (32, 256, 56, 56)
TF32: dict[str, Any] = {"precision": "tf32"}

# Layers and their kernels: the name, or its beginning if that ends with "_".
CHOSEN: list[tuple[Any, str]] = [
    # few output channels: bands of x, or one output a thread if windows are far apart
    *(
        (one, "conv_bands_")
        for dtype in ("float32", "bfloat16")
        for one in (
            conv((1, 32, 1080, 1920), (1, 32, 5, 5), dtype, pads=PADS[5]),
            conv((1, 128, 512, 512), (3, 128, 3, 3), dtype, pads=PADS[3]),
            conv((1, 32, 220416), (1, 32, 7), dtype, pads=[3, 3]),
        )
    ),
    (transposed((64, 128, 32, 32), (128, 3, 4, 4), [2, 2], pads=[1] * 4), "conv_bands_"),
    (transposed((1, 56, 270, 480), (56, 1, 9, 9), [4, 4], pads=PADS[9]), "conv_bands_"),
    *(
        (conv(IMAGE, (filters, 64, *taps), dtype, pads=[k // 2 for k in taps] * 2), f"conv_bands_{dtype}_3d_{form}")
        for filters, taps, dtype, form in (
            (1, (5, 5), "float32", "1x7_5x5"),
            (1, (4, 5), "float32", "1x7_3x4"),
            (1, (3, 3), "bfloat16", "1x7_3x3"),
            (3, (3, 3), "float16", "3x3_3x3"),
            (3, (2, 2), "float32", "3x3_2x2"),
            (3, (7, 7), "float32", "3x3_3x4"),
            (4, (3, 3), "float32", "4x3_3x3"),
            (4, (1, 2), "float32", "4x3_2x2"),
            (3, (3, 3), "float64", "3x3_3x4"),
        )
    ),
    (conv((1, 128, 512, 512), (3, 128, 3, 3), pads=PADS[3], strides=[2, 2]), "conv_few_float32_3d_4x512"),
    # depthwise layers and groups: direct sums, or packed groups on tensor cores
    *(
        (
            conv(x, (x[1], 1, k, k), dtype, layout="NHWC", group=x[1], strides=[stride] * 2, pads=PADS[k]),
            f"depthwise_{dtype}_3d_channels_",
        )
        for x, k, stride in (((64, 144, 56, 56), 3, 1), ((64, 96, 112, 112), 3, 2), ((32, 96, 56, 56), 7, 1))
        for dtype in ("float16", "bfloat16", "float32")
    ),
    (transposed((8, 64, 56, 56), (64, 1, 3, 3), [1, 1], group=64), "depthwise_"),
    (  # few rows and columns of many phases
        conv((4, 64, 33, 33), (64, 1, 3, 3), group=64, dilations=[12, 12], pads=[12] * 4),
        "depthwise_float32_3d_taps",
    ),
    *(
        (
            conv((32, 1024, 14, 14), (1024, 32, 3, 3), "bfloat16", group=32, pads=PADS[3], layout=layout),
            "conv_grouped_bfloat16_3d_mma_32x512",
        )
        for layout in ("NCHW", "NHWC")
    ),
    # few input channels
    (conv((32, 3, 224, 224), (64, 3, 7, 7), strides=[2, 2], pads=PADS[7]), "conv_stem_float32_3d_32x256x7"),
    (conv((32, 3, 224, 224), (64, 3, 7, 7), "bfloat16", strides=[2, 2], pads=PADS[7]),
     "conv_stem_bfloat16_3d_mma_64x256"),
    # implicit GEMM by FFMA: tiles that fill all multiprocessors
    *(
        (conv((8, channels, side, side), (filters, channels, 3, 3), pads=PADS[3]), f"conv_{tile}")
        for channels, filters, side, tile in (
            (256, 256, 112, "float32_3d_128x128x16_uniform"),  # enough for every multiprocessor
            (256, 64, 112, "float32_3d_64x64x16_uniform"),  # half of the large tile would be empty
            (3, 64, 112, "float32_3d_64x64x16"),  # slices of K have several taps
            (256, 256, 16, "float32_3d_64x64x16_uniform"),  # fewer pixels: smaller tiles, on more multiprocessors
            (256, 256, 22, "float32_3d_128x128x16_uniform_split"),  # several blocks a tile, to idle less
            (256, 256, 7, "float32_3d_64x64x16_uniform_split"),  # still fewer: several blocks a tile
            (32, 9, 256, "tap_rows_float32_3d_64x64x16_uniform"),  # taps along W fill the tile that 9 filters do not
            (32, 1, 256, "bands_float32_3d_1x7_3x3"),  # too few output channels for a GEMM
        )
    ),
    (  # 40 large tiles
        conv((1, 1280, 32, 32), (640, 1280, 3, 3), pads=PADS[3]),
        "conv_float32_3d_128x128x16_uniform_split",
    ),
    (  # 16 tiles instead of 4
        conv((1, 256, 7, 7), (256, 256, 3, 3), pads=PADS[3]),
        "conv_tap_rows_float32_3d_64x64x16_uniform_split",
    ),
    (  # more than one round
        conv((8, 256, 17, 17), (256, 256, 3, 3), pads=PADS[3]),
        "conv_float32_3d_64x64x16_uniform_split",
    ),
    (  # a large tile for each multiprocessor
        conv((1, 512, 96, 88), (256, 512, 3, 3), pads=PADS[3]),
        "conv_float32_3d_128x128x16_uniform",
    ),
    # tensor cores, where they apply
    (half(BLOCK, (256, 256, 3, 3)), "conv_float16_3d_wgmma_128x256_rows"),
    (conv((1, 128, 14, 14), (64, 128, 3, 3), "bfloat16"), "conv_tap_rows_bfloat16_3d_mma_128x128x32_scalar"),
    (half((8, 3, 224, 224), (64, 3, 7, 7)), "conv_float16_3d_mma_64x64x32_rowwise"),
    (conv((8, 64, 56, 56), (64, 64, 3, 3), "float64"), "conv_float64_3d_mma_64x64x16_scalar"),
    (conv(BLOCK, (256, 256, 3, 3), **TF32), "conv_float32_3d_tf32_wgmma_128x128_pixel_rows"),
    (conv(BLOCK, (256, 256, 3, 3)), "conv_float32_3d_128x128x16_uniform"),
    # strided ConvTranspose: kernels that write whole rows
    *(
        (transposed(x, w, strides, **more), f"conv_transpose_{kernel}_float32_3d_")
        for x, w, strides, more, kernel in (
            ((16, 32, 128, 256), (32, 16, 3, 5), [2, 3], {"dilations": [2, 1], "group": 4}, "interleaved"),
            ((16, 32, 64, 128), (32, 64, 3, 3), [5, 5], {"dilations": [2, 2]}, "interleaved"),
            ((16, 32, 131072), (32, 64, 3), [2], {"dilations": [2]}, "interleaved"),
            ((8, 128, 64, 64), (128, 24, 2, 2), [2, 2], {}, "depth_to_space"),
            ((8, 3, 64, 64), (3, 3, 2, 2), [2, 2], {}, "depth_to_space"),
        )
    ),
]  # fmt: skip


def operator_of(one: Any) -> Any:
    """Return the module with all families for this kind of problem."""
    kinds = {"Problem": conv_families, "WeightGradProblem": weight_families, "PoolProblem": pool_families}
    return kinds.get(type(one).__name__, pool_grad_families)


def single(table: list[tuple[Any, str, tuple[Any, ...]]]) -> list[Any]:
    return [pytest.param(one, family, why, id=f"{family.NAME}-{why}") for one, why, found in table for family in found]


@pytest.mark.parametrize(("one", "family", "why"), single(EXPLAINED))
def test_what_a_family_refuses_goes_to_others_with_the_reason(one: Any, family: Any, why: str) -> None:
    refusal = refused(family, one, HOPPER)
    assert refusal is not None
    assert refusal.why.startswith(why)
    assert said(offers.choose(one, operator_of(one).FAMILIES, HOPPER), family) == refusal.why


@pytest.mark.parametrize(("one", "family", "why"), single(PLAIN))
def test_plans_do_not_say_what_goes_without_saying(one: Any, family: Any, why: str) -> None:
    refusal = refused(family, one, HOPPER)
    assert refusal is not None
    assert refusal.why.startswith(why)
    assert said(offers.choose(one, operator_of(one).FAMILIES, HOPPER), family) is None


@pytest.mark.parametrize(("one", "family"), [(one, family) for one, found in TAKEN for family in found])
def test_what_is_just_within_the_limits_is_taken(one: Any, family: Any) -> None:
    assert candidates(family, one, HOPPER)


@pytest.mark.parametrize(("one", "kernel"), CHOSEN)
def test_layers_get_the_kernel_that_is_for_them(one: Problem, kernel: str) -> None:
    plan = conv_families.plan(one, HOPPER)
    assert plan.kernel.startswith(kernel) if kernel.endswith("_") else plan.kernel == kernel
    assert sum(reason.endswith(", chosen") for reason in plan.reasons) == 1
