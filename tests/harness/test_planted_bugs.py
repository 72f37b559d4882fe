"""Bugs planted into the kernels themselves: the emulator names each one's kind and its line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import gpuconv
from gpuconv import cuda
from gpuconv.cuda.build import kernel_files
from tests.emulator import EmulatorError, emulated_cuda
from tests.harness.emulated import preferred
from tests.harness.mutate_kernels import changed_kernels
from tests.harness.tiers import first_of_each, report
from tests.oracle import oracle
from tests.oracle.operands import LAYOUTS, filled, values

pytestmark = [pytest.mark.emulator, pytest.mark.usefixtures("cache_of_broken_kernels")]


IMPLICIT, TRANSPOSE, PHASES = "conv/gemm/implicit_gemm.cuh", "conv/gemm/conv_transpose.cu", "conv/phases.cuh"
FFMA, GATHER, EPILOGUE = "conv/gemm/ffma.cuh", "conv/gather.cuh", "conv/epilogue.cuh"
INTERLEAVED, BLOCKS = "conv/gemm/interleaved.cuh", "conv/gemm/depth_to_space.cuh"
DEPTH_TO_SPACE = "conv/gemm/depth_to_space.cu"
MMA, SLICE, FRAGMENTS = "conv/gemm/mma.cuh", "conv/gemm/slice_inputs.cuh", "conv/gemm/fragments.cuh"
PACK, PACK_FRAGMENTS, POOL = "conv/gemm/pack_weights.cu", "conv/gemm/pack_fragments.cu", "pool/general.cu"
DIRECT = "conv/direct/rows.cu"
PAST_CHUNKS = "global memory out of bounds: read of 16 bytes"
SPLIT, TICKETS = "conv/gemm/split_k.cuh", "base/tickets.cuh"
TRANSPOSE_SPLIT, SPLIT_KERNEL = "conv/gemm/split_transpose.cu", "conv_float32_3d_64x64x16_uniform_split"
FEW, BANDS, POINTWISE = "conv/direct/few.cu", "conv/direct/bands.cu", "conv/gemm/pointwise.cu"
PRODUCT, MATRIX_ROWS = "conv/gemm/matrix_product.cuh", "base/matrix_rows.cuh"
CHANNELS = "conv/direct/channels.cu"
STEM, STEM_BAND, STEM_MMA = "conv/gemm/stem.cu", "conv/gemm/stem.cuh", "conv/gemm/stem_mma.cuh"
VECTORS, STORED = "base/vectors.cuh", "*reinterpret_cast<Elements*>(target) = elements;"
DEPTHWISE_TRANSPOSE = "conv/direct/transpose.cu"
OUT_OF_BOUNDS = "global memory out of bounds: {} of . bytes"


def text_of(path: str) -> str:
    text: str = kernel_files.folder().joinpath(*path.split("/")).read_text(encoding="utf-8")
    return text


def exchanged(path: str, old: str, new: str) -> str:
    """A kernel's text with a bug; what it replaces must be there exactly once."""
    text = text_of(path)
    assert text.count(old) == 1, f"{path} has {text.count(old)} times, not once: {old}"
    return text.replace(old, new)


def arrays(dtype: str = "float32", c: int = 20, m: int = 70) -> tuple[Any, Any]:
    (x, w, _), _ = filled("conv", (1, c, 11, 13), (m, c, 3, 2), {}, dtype)
    return x, w


def rows(dtype: str = "float32") -> Any:
    """A Conv of several tiles each way, without a bias, whose taps are found row by row."""
    with preferred("16x128"):
        return gpuconv.conv(*arrays(dtype), pads=[2, 1, 2, 1])


def slices(dtype: str = "float32") -> Any:
    """The same of one tap per slice of K, and of enough slices to fill every buffer twice."""
    with preferred(f"conv_{dtype}_3d_64x64x16_uniform"):
        return gpuconv.conv(*arrays(dtype, c=80), pads=[2, 1, 2, 1])


def halves(form: str, c: int = 40) -> Callable[[], Any]:
    """A Conv in float16 on tensor cores, of several tiles and slices, in one form of one tile."""

    def call() -> Any:
        x, w = arrays("float16", c=c)
        if form.endswith(("vector", "chunks", "halves")):
            x = LAYOUTS["channels last"](x)
        with preferred(f"mma_{form}"):
            return gpuconv.conv(x, w, pads=[2, 1, 2, 1])

    return call


VECTOR, SCALAR, ROWWISE = halves("64x64x64_vector"), halves("64x64x32_scalar"), halves("64x64x32_rowwise", c=3)
CHUNKS, HALVES = halves("64x64x64_chunks"), halves("64x64x64_halves")


def infinite() -> Any:
    """A Conv with infinite weights on the padding."""
    x, w = values("integers", 1, (1, 2, 9, 8), "float32"), values("nonfinite", 2, (70, 2, 3, 3), "float32")
    return gpuconv.conv(x, w, pads=[1, 1, 1, 1])


def in_splits(share: bool = False) -> Any:
    """A Conv whose tiles are made by several blocks each."""
    x, w = arrays(c=80)
    with preferred(SPLIT_KERNEL):
        return gpuconv.conv(x, gpuconv.pack(w) if share else w, pads=[2, 1, 2, 1])


def last_in_splits() -> Any:
    """The same where but some of the tiles are in splits, after whole ones."""
    with (
        mock.patch.object(cuda.runtime, "_limits", replace(cuda.runtime.limits(0), multiprocessors=4)),
        preferred(SPLIT_KERNEL),
    ):
        return gpuconv.conv(*arrays(c=80), pads=[2, 1, 2, 1])


def phases_in_splits() -> Any:
    """A ConvTranspose of six phases on tensor cores, several tiles each way, whose tiles are made in splits."""
    (x, w, _), attributes = filled("conv_transpose", (1, 70, 9, 8), (70, 70, 3, 4), {"strides": [2, 3]}, "float16")
    with preferred("conv_transpose_float16_3d_mma_64x64x32_scalar_split"):
        return gpuconv.conv_transpose(x, w, **attributes)


def few() -> Any:
    """A Conv of few output channels, with more taps than a table has and more channels than there is room for."""
    (x, w, _), _ = filled("conv", (1, 50, 31, 41), (3, 50, 5, 7), {}, "float32")
    with preferred("conv_few"):
        return gpuconv.conv(x, w, pads=[2, 1, 2, 1])


def bands() -> Any:
    """A ConvTranspose of few output channels, of several blocks, rounds of channels and threads of others each."""
    (x, w, _), _ = filled("conv_transpose", (3, 40, 9, 14), (40, 2, 3, 4), {}, "float32")
    with preferred("conv_bands"):
        return gpuconv.conv_transpose(x, w, strides=[2, 3], pads=[1, 2, 0, 1])


def over_channels() -> Any:
    """A depthwise Conv over vectors of channels, with more weights than there is room for."""
    (x, w, _), _ = filled("conv", (1, 9, 14, 36), (36, 1, 24, 20), {}, "float32")
    with preferred("channels_7s1"):
        return gpuconv.conv(x, w, group=36, pads=[12, 10, 11, 9], layout="NHWC")


def over_single_channels() -> Any:
    """The same of channels that are no whole vectors."""
    (x, w, _), _ = filled("conv", (3, 9, 40, 6), (6, 1, 3, 5), {}, "float32")
    with preferred("channels_7s1"):
        return gpuconv.conv(x, w, group=6, layout="NHWC")


def depthwise_transposed() -> Any:
    """A depthwise ConvTranspose whose phases meet one tap or two."""
    (x, w, _), attributes = filled("conv_transpose", (3, 5, 9, 14), (5, 1, 3, 5), {"strides": [2, 3]}, "float32")
    with preferred("conv_transpose_depthwise"):
        return gpuconv.conv_transpose(x, w, group=5, **attributes)


def pointwise() -> Any:
    """A Conv of one tap, of channels that are no whole slices, and rows of x that are no whole 16 bytes."""
    (x, w, _), _ = filled("conv", (3, 35, 11, 13), (70, 35, 1, 1), {}, "float32")
    with preferred("conv_pointwise"):
        return gpuconv.conv(x, w)


def matrix() -> Any:
    """A Conv of one tap on tensor cores, of several tiles, and channels that are no whole slices."""
    (x, w, _), _ = filled("conv", (3, 72, 10, 14), (70, 72, 1, 1), {}, "float16")
    with preferred("conv_matrix_float16_3d_mma_64x64x64_pixels"):
        return gpuconv.conv(x, w)


def stem(dtype: str = "float32") -> Any:
    """A Conv of few input channels, of several passes, in rows of x and y of whole vectors."""
    (x, w, _), _ = filled("conv", (3, 3, 21, 40), (140, 3, 3, 7), {}, dtype)
    with preferred("conv_stem"):
        return gpuconv.conv(x, w, pads=[2, 3, 1, 10], strides=[1, 2])


def stem_in_halves() -> Any:
    """The same in float16, on tensor cores."""
    return stem("float16")


def transposed() -> Any:
    (x, w, _), attributes = filled("conv_transpose", (1, 20, 9, 8), (20, 70, 3, 4), {"strides": [2, 3]}, "float32")
    return gpuconv.conv_transpose(x, w, **attributes)


INFINITE_PHASES = values("integers", 1, (1, 2, 9, 8), "float32"), values("nonfinite", 2, (2, 70, 3, 5), "float32")
PHASES_ALONG_W: dict[str, Any] = {"strides": [1, 2], "pads": [1, 1, 1, 1]}


def interleaved() -> Any:
    """A ConvTranspose of three phases along W and two along H, several tiles each way."""
    with preferred("interleaved_float32_3d_64x64x16"):
        return transposed()


def infinite_phases() -> Any:
    """The same of infinite weights on the padding, in two phases."""
    with preferred("interleaved"):
        return gpuconv.conv_transpose(*INFINITE_PHASES, **PHASES_ALONG_W)


def disjoint() -> Any:
    """A ConvTranspose whose kernel is its stride, with rows of weights of no whole vectors, cut off at the borders."""
    attributes = {"strides": [1, 5], "pads": [1, 2, 0, 1]}
    (x, w, _), _ = filled("conv_transpose", (1, 20, 9, 30), (20, 9, 1, 5), attributes, "float32")
    with preferred("depth_to_space_float32_3d_16x128x16"):
        return gpuconv.conv_transpose(x, w, **attributes)


def pairs() -> Any:
    """The same with two outputs along W of each input, in rows of an odd number of these."""
    attributes = {"strides": [1, 2], "pads": [0, 0, 0, 1]}
    (x, w, _), _ = filled("conv_transpose", (3, 40, 9, 14), (40, 6, 1, 2), attributes, "float16")
    with preferred("conv_transpose_matrix_float16_3d_mma_64x128x64"):
        return gpuconv.conv_transpose(x, w, **attributes)


def pool() -> Any:
    """A MaxPool of 912 outputs in four blocks."""
    with preferred("max_pool_float32_3d"):
        return gpuconv.max_pool(values("integers", 1, (2, 3, 150), "float32"), kernel_shape=[3], pads=[2, 2])


def depthwise() -> Any:
    (x, w, _), _ = filled("conv", (3, 3, 22, 37), (3, 1, 3, 3), {"group": 3}, "float32")
    with preferred("depthwise_float32_3d_3x3s1"):
        return gpuconv.conv(x, w, group=3, pads=[2, 1, 1, 2])


def whole_rows() -> Any:
    (x, w, _), _ = filled("conv", (3, 3, 22, 36), (3, 1, 3, 3), {"group": 3}, "float16")
    with preferred("depthwise_float16_3d_3x3s1"):
        return gpuconv.conv(x, w, group=3, pads=[1, 1, 1, 1])


def long_rows() -> Any:
    (x, w, _), _ = filled("conv", (3, 3, 22, 37), (3, 1, 8, 6), {"group": 3}, "float32")
    with preferred("depthwise_float32_3d_rows"):
        return gpuconv.conv(x, w, group=3, pads=[2, 1, 1, 2])


def stepwise() -> Any:
    """A grouped Conv whose channels are staged step by step, with an infinite weight in the last step."""
    (x, w, _), _ = filled("conv", (1, 64, 40, 41), (8, 32, 3, 3), {"group": 2}, "float32")
    with preferred("grouped_float32_3d_3x3s1"):
        return gpuconv.conv(x, w, group=2, pads=[1, 1, 1, 1])


def infinite_direct() -> Any:
    with preferred("depthwise_float32_3d_3x3s1"):
        return gpuconv.conv(*infinite_corner(), group=2, pads=[1, 1, 1, 1])


def infinite_corner() -> tuple[Any, Any]:
    x, w = values("integers", 1, (3, 2, 22, 37), "float32"), values("integers", 2, (2, 1, 3, 3), "float32")
    w[0, 0, 0, 0] = float("inf")
    return x, w


@dataclass(frozen=True)
class Bug:
    """One bug.

    Attributes
    ----------
    name, path : str
    old, new : str
        What stands in the file, and the bug.
    call : callable
        Meets it.
    message : str
        What the emulator must say, a regular expression.
    at : str
        What stands in the line that it must name, where it names one.
    """

    name: str
    path: str
    old: str
    new: str
    call: Callable[[], Any]
    message: str
    at: str


FIND = "origin[axis] + tap[axis] * taps.advance[axis];\n"
FIND_INSIDE = FIND + "            found = found && inside(coordinate, p.x_extent[axis]);\n"
ARRIVED = "__syncthreads();     // the slice has arrived"
FILLED = "__syncthreads();\n#pragma unroll 1\n    for (int phase"
LAID = "__syncwarp();\n        const bool suspect = all.write"
MOVED = "__syncthreads();\n#pragma unroll 1\n        for (int i = threadIdx.x; i < kBlockN"
TURNED = "__syncwarp();\n                if (channels_last)"
TURNED_BACK = "__syncwarp();\n            }\n        }\n        return channels_last"
TURNED_LANES = "store_shared(piece + (place + place / 8) * kVector, part);\n                __syncwarp();"
PUBLISHED = "        __threadfence();\n        last = "
LEARNT = "all - 1;\n        __threadfence();"
PARTS_RACE = "race between blocks on workspace"
CLIP = "const Index end = stop < p.x_extent[axis] ? stop : p.x_extent[axis];"
NO_MORE = "if (output >= p.outputs) return;"

BUGS = (
    Bug("taps in the padding are read", GATHER, FIND_INSIDE, FIND, rows,
        OUT_OF_BOUNDS.format("read"), "if constexpr (kAsync) copy_async<sizeof(T)>"),
    Bug("taps in the padding are read, in 16 bits", GATHER, FIND_INSIDE, FIND, lambda: slices("float16"),
        OUT_OF_BOUNDS.format("read"), "else gathered[which] = found ? *source"),
    Bug("no barrier between filling and multiplying", IMPLICIT, ARRIVED, "// the slice has arrived", slices,
        "shared memory race", "rows[i] = *reinterpret_cast<const Vector*>"),
    Bug("one copy too few is waited for", IMPLICIT, "copy_async_wait<kStages - 2>", "copy_async_wait<kStages - 1>",
        slices, "an asynchronous copy is in flight", "rows[i] = *reinterpret_cast<const Vector*>"),
    Bug("weights are not fetched", FFMA, "fetch_weights(stage, tap_row(taps, next.tap) + next.channel);", ";", slices,
        "uninitialised shared memory read", "rows[i] = *reinterpret_cast<const Vector*>"),
    Bug("16-bit elements stay in registers", IMPLICIT, "multiplier.deposit(stage);\n        }", "}",
        lambda: slices("float16"),
        "uninitialised shared memory read", "columns[j] = *reinterpret_cast<const Vector*>"),
    Bug("16-bit elements go to the buffer in use", IMPLICIT, "if (more) multiplier.deposit(filled);",
        "if (more) multiplier.deposit(stage);",
        lambda: slices("float16"), "shared memory race: write after read", "target[i * kThreads] = widen(gathered[i])"),
    Bug("lanes read a piece that others still write", EPILOGUE, TURNED, TURNED.replace("__syncwarp();", ""), rows,
        "shared memory race: read after write", "const Acc sum = piece["),
    Bug("lanes write a piece that others still read", EPILOGUE, TURNED_BACK, TURNED_BACK.replace("__syncwarp();", ""),
        slices, "shared memory race: write after read", "store_shared(piece"),
    Bug("channels that are none are written", EPILOGUE, "!exists || m + row >= p.filters", "!exists", rows,
        OUT_OF_BOUNDS.format("write"), "= narrow<T>(sum);"),
    Bug("the last channel is not written", EPILOGUE, "m + row >= p.filters", "m + row + 1 >= p.filters", rows,
        "elements of y, of shape .*, were never written", ""),
    Bug("tiles overlap", IMPLICIT, "group, m_tile * Multiplier::kBlockM,", "group, m_tile * (Multiplier::kBlockM - 4),",
        rows,
        "race between blocks on y", "= narrow<T>(sum);"),
    Bug("what is repaired reads the padding", EPILOGUE, "if (found) sum = multiply_add", "sum = multiply_add",
        infinite, OUT_OF_BOUNDS.format("read"), "sum = multiply_add(multiplier.weight"),
    Bug("channels that are none are repaired", EPILOGUE, "m < end && m < p.filters", "m < end", infinite,
        OUT_OF_BOUNDS.format("read"), "if (spoilt(widen(target)))"),
    Bug("the padding of packed weights is left out", PACK, "m >= p.pitch", "m >= p.filters", rows,
        "uninitialised global read of weights", "weights + packed * p.pitch"),
    Bug("no barrier where weights are turned round", PACK, "__syncthreads();", "", rows,
        "shared memory race", "= square[along][i]"),
    Bug("the square of weights is too small", PACK, "square[kSquare][kSquare + 1]", "square[kSquare - 1][kSquare + 1]",
        rows, "outside every variable", "square[i][along] = found"),
    Bug("channels that are none are packed", PACK, " && m < p.filters", "", rows,
        OUT_OF_BOUNDS.format("read"), "square[i][along] = found"),
    Bug("taps are used before they are there", TRANSPOSE, "__syncthreads();", "", transposed,
        "shared memory race: read after write", "taps.count[axis] = divider"),
    Bug("one thread waits for the others", TRANSPOSE, "taps);\n    }\n    __syncthreads();",
        "taps);\n    __syncthreads();\n    }", transposed,
        "reached by only some lanes", "__syncthreads();"),
    Bug("outputs between the phases are taken for its own", PHASES, "(a.extent - phase - 1) / a.stride + 1",
        "a.extent", transposed, OUT_OF_BOUNDS.format("write"), "= narrow<T>(sum);"),
    Bug("taps of phases that are none are filled", INTERLEAVED, "if (threadIdx.x >= phases.divisor) return;", "",
        interleaved, "shared memory out of bounds", "taps."),
    Bug("phases are multiplied before their taps are there", INTERLEAVED, FILLED,
        FILLED.replace("__syncthreads();", ""), interleaved, "shared memory race", "taps"),
    Bug("lanes read planes that others still write", INTERLEAVED, LAID, LAID.replace("__syncwarp();", ""), interleaved,
        "shared memory race: read after write", "const Acc sum = sums[row * kPitch]"),
    Bug("planes take the place of buffers in use", INTERLEAVED, "shared + kBuffers + (phase - 1)",
        "shared + (phase - 1)", interleaved, "shared memory race|uninitialised|in flight", ""),
    Bug("lanes that wrote nothing suspect leave", INTERLEAVED, "if (!__any_sync(~0u, suspect)) return;",
        "if (!suspect) return;", infinite_phases, "reached by only some lanes", "__syncwarp();    // lanes repair"),
    Bug("channels that are none are interleaved", INTERLEAVED, "if (m + row >= p.common.filters) continue;", "",
        interleaved, OUT_OF_BOUNDS.format("write"), "= narrow<T>(sum);"),
    Bug("sums are moved before they are there", BLOCKS, MOVED, MOVED.replace("__syncthreads();", ""), disjoint,
        "shared memory race: read after write", "(multiplier, sums["),
    Bug("outputs that the padding cuts off are written", BLOCKS, "exists && inside(origin[axis] + found.tap[axis],",
        "exists && inside(0,", disjoint, OUT_OF_BOUNDS.format("write") + "|race between blocks",
        "= output<FINISH>(multiplier, sums[row"),
    Bug("rows that are none are moved", BLOCKS, " && m0 + row < p.common.filters; row +=", "; row +=", disjoint,
        "uninitialised shared memory read", "found"),
    Bug("channels that are none are gathered", DEPTH_TO_SPACE, " && this->next_k + row + step < this->taps.rows;", ";",
        disjoint, OUT_OF_BOUNDS.format("read"), "if constexpr (kAsync) copy_async<sizeof(T)>"),
    Bug("weights are read past the end of their row", DEPTH_TO_SPACE, "k < left ? sizeof(Acc) : 0", "sizeof(Acc)",
        disjoint, OUT_OF_BOUNDS.format("read"), "copy_async<sizeof(Acc)>(target + k"),
    Bug("single weights are read as vectors", DEPTH_TO_SPACE, "% 16 == 0 && this->p.pitch % kVector == 0", "% 16 == 0",
        disjoint, "misaligned|out of bounds", "copy_async<16>(target"),
    Bug("tensor cores: taps in the padding are copied", SLICE, "meets(at, away) ? p.channels - first : 0",
        "p.channels - first", VECTOR, PAST_CHUNKS, "copy_async<16>((target"),
    Bug("tensor cores: channels that are none are copied", SLICE, "(WHOLE ? 0 : k * kChunk) < channels[i]",
        "0 < channels[i]", VECTOR, PAST_CHUNKS, "copy_async<16>((target"),
    Bug("tensor cores: taps in the padding are read, row by row", SLICE, "meets(mine[0], away.coordinate)", "true",
        ROWWISE, OUT_OF_BOUNDS.format("read"), "load_half(source)"),
    Bug("tensor cores: taps in the padding are copied, chunk by chunk", SLICE,
        "meets(mine[i], away.coordinate) ? kPiece * sizeof(T) : 0", "kPiece * sizeof(T)", CHUNKS, PAST_CHUNKS,
        "copy_async<kPiece"),
    Bug("tensor cores: every other half of a chunk is copied", SLICE, "k < BLOCK_K / kPiece; k += kShares) {\n"
        "            const Standing away = entry[k];\n#pragma unroll\n            for (int i = 0; i < kPixels; ++i)\n",
        "k < BLOCK_K / kPiece; k += 2 * kShares) {\n"
        "            const Standing away = entry[k];\n#pragma unroll\n            for (int i = 0; i < kPixels; ++i)\n",
        HALVES, "uninitialised shared memory read", "load_matrices(words"),
    Bug("tensor cores: one copy too few is waited for", IMPLICIT, "copy_async_wait<kStages - 2>",
        "copy_async_wait<kStages - 1>", VECTOR, "an asynchronous copy is in flight", "a[i][k][part] = load_shared"),
    Bug("tensor cores: no barrier between filling and multiplying", IMPLICIT, ARRIVED, "// the slice has arrived",
        SCALAR, "shared memory race", "a[i][k][part] = load_shared"),
    Bug("tensor cores: weights are not copied", MMA, "copy_async<16>(target + i, next_weights + i, 16);", ";", SCALAR,
        "uninitialised shared memory read", "a[i][k][part] = load_shared"),
    Bug("tensor cores: 16-bit elements stay in registers", IMPLICIT, "if (more) multiplier.deposit(filled);", "",
        SCALAR, "uninitialised shared memory read", "load_matrices(words"),
    Bug("tensor cores: the table of pixels is read before it is there", SLICE, "keep(place);\n        __syncthreads();",
        "keep(place);", SCALAR, "shared memory race: read after write", "const Standing at = pixels["),
    Bug("tensor cores: a warp's chunk overlaps the next one's", MMA, "WARP_M + i * kRows", "WARP_M + i * (kRows - 1)",
        SCALAR, "race between blocks on y|were never written|race", ""),
    Bug("fragments: no barrier where weights are turned round", PACK_FRAGMENTS, "__syncthreads();", "", SCALAR,
        "shared memory race", "Arithmetic::part(tile["),
    Bug("fragments: channels that are none are packed", PACK_FRAGMENTS, "channel < p.channels && ", "", SCALAR,
        OUT_OF_BOUNDS.format("read"), "found ? w[offset]"),
    Bug("a block's sums are not published", TICKETS, PUBLISHED, PUBLISHED.replace("__threadfence();", ""), in_splits,
        PARTS_RACE, "load_l2(source"),
    Bug("the last block does not look at memory anew", TICKETS, LEARNT, LEARNT.replace("__threadfence();", ""),
        in_splits, PARTS_RACE, "load_l2(source"),
    Bug("a block arrives before its threads have written", TICKETS, "__syncthreads();             //", "//", in_splits,
        PARTS_RACE, "load_l2(source"),
    Bug("the last but one adds up", TICKETS, "== all - 1", "== all - 2", in_splits,
        "uninitialised global read of workspace", "load_l2(source"),
    Bug("tickets are counted by two at once", TICKETS, "atomicAdd(ticket, 1)", "(*ticket)++", in_splits,
        PARTS_RACE, "last = (*ticket)++"),
    Bug("tickets are not set to zero", TICKETS, "first[i] = 0;", ";", in_splits,
        "uninitialised global read of workspace", "atomicAdd(ticket"),
    Bug("tiles keep their sums in one place", SPLIT, "static_cast<long long>(tile)", "static_cast<long long>(tile / 2)",
        in_splits, PARTS_RACE, "store_l2(target"),
    Bug("splits follow the first whole tile", SPLIT, "block_number() - splits.whole;", "block_number() - 1;",
        last_in_splits, "uninitialised global read of workspace|race between blocks|out of bounds", ""),
    Bug("splits of a phase are used before its taps are there", TRANSPOSE_SPLIT, "__syncthreads();", "",
        phases_in_splits, "shared memory race: read after write", "taps.start[axis]"),
    Bug("tensor cores: splits of a phase read the weights of another", MMA, "PHASED ? tap_row(taps, inputs.next.tap)",
        "PHASED ? 100 * tap_row(taps, inputs.next.tap)", phases_in_splits, OUT_OF_BOUNDS.format("read") + "|16 bytes",
        "next_weights + i, 16"),
    Bug("a split too many is added up", SPLIT, "split < splits;", "split <= splits;", lambda: in_splits(share=True),
        "global memory out of bounds: read of 16 bytes", "load_l2(source"),
    Bug("taps in the padding are read, without a GEMM", FEW, "found = found && inside(", "(void)inside(", few,
        OUT_OF_BOUNDS.format("read"), "if (found[i]) values[i] = "),
    Bug("weights change while they are in use", FEW, "__syncthreads();     // all threads have left the weights",
        "", few, "shared memory race: write after read", "weights[i] = m < "),
    Bug("weights are used before they are there", FEW, "__syncthreads();\n                add_channels",
        "add_channels", few, "shared memory race: read after write", "rows[j] = reinterpret_cast<const Vector*>"),
    Bug("the table changes while it is in use", FEW, "__syncthreads();     // all threads have left the table", "",
        few, "shared memory race: write after read", "entry."),
    Bug("filters that are none are read", FEW, "m < p.common.filters ? widen(w[", "true ? widen(w[", few,
        OUT_OF_BOUNDS.format("read"), "weights[i] = true"),
    Bug("filters that are none are written", FEW, "if (m >= p.common.filters) break;", "", few,
        OUT_OF_BOUNDS.format("write"), "= narrow<T>(sum);"),
    Bug("a band changes while it is in use", BANDS, "__syncthreads();         // all have left what is replaced now",
        "", bands, "shared memory race: read after write", "Vector load("),
    Bug("a band is used before it is there", BANDS, "__syncthreads();\n                if (part", "if (part", bands,
        "shared memory race: read after write", "Vector load("),
    Bug("sums of other channels are added at once", BANDS, "            __syncthreads();\n            if (turn",
        "if (turn", bands, "shared memory race: write after read", "place = sum"),
    Bug("rows that are none are written", BANDS, "!inside(h, p.axes[1].y_extent)", "false", bands,
        OUT_OF_BOUNDS.format("write"), "= narrow<T>(sum)"),
    Bug("inputs in the padding are read", BANDS, "found && channel + kBatch <= count", "channel + kBatch <= count",
        bands, OUT_OF_BOUNDS.format("read"), "elements[i] = *reinterpret_cast<const Elements*>(source + i * step)"),
    Bug("inputs in the padding are loaded", CHANNELS, "unsigned(inside(w + c * p.window_step, p.x_extent[2])) << c",
        "1u << c", over_channels, PAST_CHUNKS, "if (bits >> c & 1) elements[c]"),
    Bug("rows in the padding are met", CHANNELS, "if (inside(h, p.x_extent[1])) take", "take", over_channels,
        PAST_CHUNKS, "if (bits >> c & 1) elements[c]"),
    Bug("weights are staged while others read them", CHANNELS,
        "__syncthreads();                     // all threads have left the weights", "", over_channels,
        "shared memory race: write after read", "shared[tap * p.pitch + of_channel] = value"),
    Bug("channels that are none are made", CHANNELS, "rows > 0 && block_channel + channel<COUNT>(turn) < p.channels",
        "rows > 0", over_single_channels, OUT_OF_BOUNDS.format("(read|write)"), ""),
    Bug("weights of channels that are none are read over channels", CHANNELS,
        "block_channel + of_channel < p.channels && kh", "kh", over_single_channels, OUT_OF_BOUNDS.format("read"),
        "value = widen(weight("),
    Bug("taps that are none are read", DEPTHWISE_TRANSPOSE, "kh < p.taps[0] && kw < p.taps[1]", "true",
        depthwise_transposed, OUT_OF_BOUNDS.format("read"), "exists ? widen(w["),
    Bug("rows in the padding are met by transposed taps", DEPTHWISE_TRANSPOSE, "meets[j]) && found)", "meets[j]))",
        depthwise_transposed, OUT_OF_BOUNDS.format("read"), "widen(*inputs[j])"),
    Bug("outputs below the last row are made", DEPTHWISE_TRANSPOSE, "min(p.walk, ", "(p.walk + 0 * ",
        depthwise_transposed, OUT_OF_BOUNDS.format("write"), "*to = narrow<T>"),
    Bug("weights of channels that are none are read", POINTWISE, "k + first_channel() < left;", "true;", pointwise,
        OUT_OF_BOUNDS.format("read"), "source, whole ?"),
    Bug("channels that are none are read", POINTWISE, "exists && k + row < left", "exists", pointwise,
        OUT_OF_BOUNDS.format("read"), "copy_async<WIDTH"),
    Bug("16 bytes are copied wherever rows begin", POINTWISE, "steps % kVector) == 0", "steps % kVector) >= 0",
        pointwise, "misaligned cp.async", "copy_async<WIDTH"),
    Bug("16 bytes are copied of images that begin on 8", PRODUCT, "copied.start(w + m0",
        "inputs.width = 16; copied.start(w + m0", matrix, "misaligned cp.async", "copy_async<WIDTH < 4"),
    Bug("blocks that padding cuts off are written whole", BLOCKS, "exists = exists && origin[axis] >= 0 &&",
        "exists = exists &&", disjoint, OUT_OF_BOUNDS.format("write") + "|race",
        "if (exists) y[rows[mine].offset] = value"),
    Bug("pairs of outputs are stored wherever they are", BLOCKS, "steps % 2 == 0 && aligned;", "aligned;", pairs,
        "misaligned", "reinterpret_cast<Pair*>"),
    Bug("channels that are none are copied", MATRIX_ROWS, "left >= BLOCK_K) {", "left > 0) {", matrix,
        OUT_OF_BOUNDS.format("read"), "copy_async<WIDTH < 4"),
    Bug("filters that are none are copied", MATRIX_ROWS, "left > 0 && m < columns;", "left > 0;", matrix,
        PAST_CHUNKS, "copy_async<16>(target + m * kPitch, source, exists"),
    Bug("windows end one element late", POOL, CLIP, CLIP.replace(";", " + 1;"), pool,
        OUT_OF_BOUNDS.format("read"), "elements[tap] = tap == 0 || tap < left"),
    Bug("windows begin one element early", POOL, "divisor) - 1 - before", "divisor) - 2 - before", pool,
        OUT_OF_BOUNDS.format("read"), "elements[tap] = tap == 0 || tap < left"),
    Bug("outputs that are none have windows", POOL, NO_MORE, "", pool,
        OUT_OF_BOUNDS.format("read"), "elements[tap] = tap == 0 || tap < left"),
    Bug("the last output is left out", POOL, NO_MORE, NO_MORE.replace("p.outputs", "p.outputs - 1"), pool,
        "1 of 912 elements of y, of shape .*, were never written", ""),
    Bug("two blocks make one output", POOL, "* kThreads + Index(threadIdx.x)", "* (kThreads - 1) + Index(threadIdx.x)",
        pool, "race between blocks on y", "dot(q, p.y_stride)] = maximum.value"),
    Bug("rows in the padding are copied", DIRECT, "found && i < left && inside(h, p.x_extent[1])", "found && i < left",
        depthwise, OUT_OF_BOUNDS.format("read"), "elements[i] = real ?"),
    Bug("columns in the padding are copied", DIRECT, " && inside(w, p.x_extent[2])", "", depthwise,
        OUT_OF_BOUNDS.format("read"), "elements[i] = real ?"),
    Bug("vectors of other rows than those of whole vectors", DIRECT, "p.x_width == kVector && aligned", "aligned",
        depthwise, "misaligned", "elements[i] = real ?"),
    Bug("the last rows are not staged", DIRECT, "int left = run.count;", "int left = run.count - 1;",
        depthwise, "uninitialised shared memory read", "return *reinterpret_cast<const Vector*>(source)"),
    Bug("no barrier between copying and summing", DIRECT, "finite = __syncthreads_and(stage(channel)) && finite;",
        "finite = stage(channel) && finite;", depthwise, "shared memory race",
        "return *reinterpret_cast<const Vector*>(source)"),
    Bug("no barrier before the next channels", DIRECT, "if (channel > 0) __syncthreads();", "", stepwise,
        "shared memory race", "*target = widen(values[0]);"),
    Bug("weights are copied to where the warps turn their results round", DIRECT, "shared[p.weights + to] = value;",
        "shared[p.weights - 8 + to] = value;", depthwise, "uninitialised shared memory read",
        "return *reinterpret_cast<const Vector*>(source)"),
    Bug("lanes read what others have not yet put down", DIRECT, TURNED_LANES, TURNED_LANES.replace("__syncwarp();", ""),
        depthwise, "shared memory race: read after write", "store(y + targets[i]"),
    Bug("columns that are none are written", DIRECT, "j < columns ? left[i] : 0", "left[i]", depthwise,
        "global memory|race between blocks|race on y", "*target = narrow<T>(sum);"),
    Bug("rows that are none are written in vectors", DIRECT, "exists && taken(r) < out.left", "exists", whole_rows,
        OUT_OF_BOUNDS.format("write") + "|race between", STORED),
    Bug("kernel rows that are none are read", DIRECT, "!ALL_ROWS && !LINE && !inside(i - r, kernel_rows())", "false",
        long_rows, "uninitialised shared memory read|shared memory", "return *reinterpret_cast<const Vector*>(source)"),
    Bug("a sum over the taps inside reads the padding", DIRECT,
        " || !inside(at[1], p.x_extent[1])", "", infinite_direct, OUT_OF_BOUNDS.format("read"), "const T input = x["),
    Bug("rows of a band outside of x are read", STEM_BAND,
        "inside(depth, p.common.x_extent[1]) && inside(row, p.common.x_extent[2])", "true", stem, PAST_CHUNKS,
        "copy_async<16>(target + (one.place"),
    Bug("output channels that do not exist are written", STEM_MMA, "if (m >= p.common.filters) break;", "",
        stem_in_halves, OUT_OF_BOUNDS.format("write").replace(" . ", " .* ") + "|race between",
        STORED),
    Bug("distances of the last words of K are left out", STEM_BAND, "i = threadIdx.x; i < entries;",
        "i = threadIdx.x; i < p.steps;", stem_in_halves, "uninitialised shared memory read", "load_word(table"),
)  # fmt: skip


@pytest.mark.parametrize("bug", first_of_each(BUGS, report), ids=lambda bug: bug.name)
def test_a_bug_is_reported_with_its_line(bug: Bug) -> None:
    text = exchanged(bug.path, bug.old, bug.new)
    with pytest.raises(EmulatorError, match=bug.message) as caught, changed_kernels({bug.path: text}), emulated_cuda():
        bug.call()
    if bug.at:
        assert re.search(rf"\b({'|'.join(lines_of(bug.at, {bug.path: text}))})\b", str(caught.value)), caught.value


PATHS = (
    IMPLICIT, FFMA, GATHER, EPILOGUE, MMA, SLICE, FRAGMENTS, TRANSPOSE, PHASES, INTERLEAVED, BLOCKS, DEPTH_TO_SPACE,
    PACK, PACK_FRAGMENTS, POOL, SPLIT, TRANSPOSE_SPLIT, TICKETS, DIRECT, FEW, BANDS, POINTWISE, PRODUCT, MATRIX_ROWS,
    STEM, STEM_BAND, STEM_MMA, VECTORS,
)  # fmt: skip


def lines_of(part: str, changed: dict[str, str]) -> list[str]:
    """Where a part of a line stands in the kernels, as reports write it."""
    texts = {path: text_of(path) for path in PATHS} | changed
    return [
        rf"{re.escape(path.removeprefix('include/'))}:{number}"
        for path, text in texts.items()
        for number, line in enumerate(text.split("\n"), 1)
        if part in line
    ]


@pytest.mark.parametrize("call", sorted({bug.call for bug in BUGS}, key=lambda call: call.__qualname__))
def test_without_a_bug_nothing_is_reported(call: Callable[[], Any]) -> None:
    with emulated_cuda() as emulated:
        call()
    assert min(launch.grid[0] for launch in emulated.launches[-1:]) >= 3


# ---------------------------------------------------------------- bugs that some checks alone find


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (PACK, "m >= p.pitch", "m >= p.filters"),  # nobody looks at what comes of the padding
        (EPILOGUE, TURNED_BACK, TURNED_BACK.replace("__syncwarp();", "")),  # the emulated warp runs in step
        (GATHER, "exists = at.exists;", "exists = true;"),  # not even the checks: equivalent
    ],
)
def test_without_its_checks_the_emulator_sees_results_alone(path: str, old: str, new: str) -> None:
    x, w = arrays()
    options = {"check_shared": False, "check_global": False}
    with changed_kernels({path: exchanged(path, old, new)}), emulated_cuda(**options):
        y = gpuconv.conv(x, w, pads=[2, 1, 2, 1])
    oracle.assert_close(y, oracle.conv(x, w, pads=[2, 1, 2, 1]), "float32")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (IMPLICIT, "if (epilogue.write(shared)) epilogue.repair();", "epilogue.write(shared);"),
        (EPILOGUE, "!locate(at, offset) || ", "true || "),
        (EPILOGUE, "return !finite;", "return false;"),
        (EPILOGUE, "m += kRowStep) {\n", "m += 2 * kRowStep) {\n"),
        (EPILOGUE, "for (Index k = 0; k < taps.rows", "for (Index k = 1; k < taps.rows"),
    ],
)
def test_a_missing_repair_shows_in_the_results(path: str, old: str, new: str) -> None:
    x, w = values("integers", 1, (1, 2, 9, 8), "float32"), values("nonfinite", 2, (70, 2, 3, 3), "float32")
    exact = oracle.conv(x, w, pads=[1, 1, 1, 1])
    with changed_kernels({path: exchanged(path, old, new)}), emulated_cuda():
        y = gpuconv.conv(x, w, pads=[1, 1, 1, 1])
    with pytest.raises(AssertionError, match="elements are wrong"):
        oracle.assert_close(y, exact, "float32")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if (!__any_sync(~0u, suspect)) return;", "return;"),
        ("suspect = out.template store", "out.template store"),
        ("for (phase = int(all.phases.divisor) - 1; phase >= 0; --phase)", "for (phase = 1; phase > 0; --phase)"),
    ],
)
def test_a_missing_repair_of_interleaved_phases_shows_in_the_results(old: str, new: str) -> None:
    exact = oracle.conv_transpose(*INFINITE_PHASES, **PHASES_ALONG_W)
    with changed_kernels({INTERLEAVED: exchanged(INTERLEAVED, old, new)}), emulated_cuda():
        y = infinite_phases()
    with pytest.raises(AssertionError, match="elements are wrong"):
        oracle.assert_close(y, exact, "float32")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if (finite) {", "if (true) {"),
        ("finite = finite && is_finite(value);", ""),
        ("_and(stage(channel)) && finite;", "_and(stage(channel));  // of the last channels alone"),
        (" + p.start[2] + p.lead;", " + p.start[2];"),
    ],
)
def test_an_infinite_weight_on_the_padding_shows_in_the_results(old: str, new: str) -> None:
    x, w = infinite_corner()
    stacked = values("integers", 1, (1, 64, 40, 41), "float32"), values("integers", 2, (8, 32, 3, 3), "float32")
    stacked[1][0, 0, 0, 0] = float("inf")
    wrong = 0
    with changed_kernels({DIRECT: exchanged(DIRECT, old, new)}), emulated_cuda():
        for form, pair in (("depthwise_float32_3d_3x3s1", (x, w)), ("grouped_float32_3d_3x3s1", stacked)):
            with preferred(form):
                y = gpuconv.conv(*pair, group=2, pads=[1, 1, 1, 1])
            try:
                oracle.assert_close(y, oracle.conv(*pair, group=2, pads=[1, 1, 1, 1]), "float32")
            except AssertionError:
                wrong += 1
    assert wrong


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if (write<false>()) write<true>();", "write<false>();"),
        ("suspect = suspect || !finite;", ""),
        ("tap * axis.advance;", "tap;"),
        ("return number >= 0 && rest == 0", "return rest == 0"),
    ],
)
def test_a_missing_repair_of_bands_shows_in_the_results(old: str, new: str) -> None:
    x, w = values("integers", 1, (1, 3, 9, 8), "float32"), values("nonfinite", 2, (3, 2, 3, 5), "float32")
    exact = oracle.conv_transpose(x, w, **PHASES_ALONG_W)
    with changed_kernels({BANDS: exchanged(BANDS, old, new)}), emulated_cuda(), preferred("conv_bands"):
        y = gpuconv.conv_transpose(x, w, **PHASES_ALONG_W)
    with pytest.raises(AssertionError, match="elements are wrong"):
        oracle.assert_close(y, exact, "float32")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (
            STEM,
            "if (__any_sync(0xffffffff, multiplier.write(epilogue, shared))) epilogue.repair()",
            "multiplier.write(epilogue, shared)",
        ),
        (STEM_BAND, "words[i + 1], 0x5432)", "words[i + 1], 0x3254)"),
        (STEM_BAND, "tap[1] * p.taps.advance[1] * p.pitch[1] + tap[2]", "tap[2]"),
        (STEM_MMA, "kExact = false;", "kExact = true; "),
    ],
)
def test_a_band_in_disorder_shows_in_the_results(path: str, old: str, new: str) -> None:
    x, w = values("integers", 1, (1, 3, 4, 9, 40), "float16"), values("integers", 2, (70, 3, 2, 3, 7), "float16")
    x[0, 1, 2, 5, 20] = np.inf
    attributes = {"pads": [1, 1, 3, 0, 1, 2], "strides": [1, 1, 2]}
    exact = oracle.conv(x, w, **attributes)
    with changed_kernels({path: exchanged(path, old, new)}), preferred("conv_stem"), emulated_cuda():
        y = gpuconv.conv(x, w, **attributes)
    with pytest.raises(AssertionError, match="elements are wrong"):
        oracle.assert_close(y, exact, "float16", "tensor cores")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("path", "old", "new", "call"),
    [
        (FRAGMENTS, "return lane / 4 + element", "return lane % 8 + element", SCALAR),
        (FRAGMENTS, "lane % 4 * kWordElements + element % kWordElements", "lane % 4 + element % kWordElements", SCALAR),
        (MMA, "load_pixels(b_stage ^ depth * 32, b)", "load_pixels(b_stage ^ depth * 16, b)", SCALAR),
        (MMA, "lane() / 16 * 8 + lane() % 8", "lane() % 8", VECTOR),
        (SLICE, "copy_async<16>((target ^ k * 16)", "copy_async<16>((target + k * 16)", VECTOR),
        (SLICE, "(gathered[i + 2 * k + 1] << 16)", "(gathered[i + 2 * k] << 16)", SCALAR),
        (SLICE, "const int k = i * kRowsOfEntry;", "const int k = i;", CHUNKS),
        (SLICE, "(kHalves ? further / 2 : further) * 16", "further / 2 * 16", CHUNKS),
        (SLICE, "share() / 2) + share() % 2 * 8", "share() / 2) + (1 - share() % 2) * 8", HALVES),
        (MMA, "store_shared(target, pair);", "store_shared(target + 8, pair);", VECTOR),
    ],
)
def test_elements_in_a_wrong_place_show(path: str, old: str, new: str, call: Callable[[], Any]) -> None:
    x, w = arrays("float16", c=40)
    exact = oracle.conv(x, w, pads=[2, 1, 2, 1])
    with pytest.raises(AssertionError), changed_kernels({path: exchanged(path, old, new)}), emulated_cuda():
        oracle.assert_close(call(), exact, "float16", "tensor cores")
