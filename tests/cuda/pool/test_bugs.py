"""Bugs in MaxPool's kernels for rows of neighbours: wrong ties, NaN, borders and synchronisation are noticed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness import many_blocks
from tests.harness.many_blocks import CHANNEL_POOLS, PATCH_POOLS, TILE_POOLS, VECTOR_POOLS, ManyBlocks
from tests.harness.mutate_kernels import changed_kernels
from tests.harness.test_planted_bugs import exchanged
from tests.harness.tiers import first_of_each, report

pytestmark = [pytest.mark.emulator, pytest.mark.usefixtures("cache_of_broken_kernels")]

VECTORS, TILES, CHANNELS, PATCHES = (f"pool/{name}.cu" for name in ("vectors", "tiles", "channels", "patches"))
RUNS = "pool/runs.cuh"
ORDER, PACKED, STAGING, PTX = "pool/order.cuh", "pool/packed.cuh", "pool/staging.cuh", "base/ptx.cuh"
WRONG = "elements differ"
OUT_OF_BOUNDS = "global memory out of bounds"


def of(pools: tuple[ManyBlocks, ...], part: str) -> ManyBlocks:
    """The problem of a kernel."""
    return next(one for one in pools if part in one.kernel)


PLANES = next(one for one in TILE_POOLS if one.problem.x_shape[0] == 71)  # the last tile has fewer


@dataclass(frozen=True)
class Bug:
    """One bug: what stands in the file, what stands there instead, what meets it, what is said of it."""

    name: str
    path: str
    old: str
    new: str
    problem: ManyBlocks
    message: str


BUGS = (
    Bug("of equal elements the last one has the index", ORDER, "return !(later <= best) && best == best;",
        "return !(later < best) && best == best;", of(VECTOR_POOLS, "float32_3d_vectors_2x2"), WRONG),
    Bug("the last NaN has the index", ORDER, "return !(later <= best) && best == best;", "return !(later <= best);",
        of(VECTOR_POOLS, "float32_3d_vectors_3x2"), WRONG),
    Bug("of equal elements in other slices the later one stays", ORDER, "other.place < place",
        "other.place > place", of(TILE_POOLS, "bfloat16"), WRONG),
    Bug("NaN is lost where short elements are compared in pairs", PTX, "max.NaN.f16x2", "max.f16x2",
        of(VECTOR_POOLS, "float16"), WRONG),
    Bug("signed bytes are compared as unsigned ones", PACKED, "kSign<signed char> = 0x80", "kSign<signed char> = 0",
        of(VECTOR_POOLS, "int8"), WRONG),
    Bug("a row's first lane takes from the row before", VECTORS, "elements[i] = first ? least<T>() : before;",
        "elements[i] = before;", of(VECTOR_POOLS, "float32_3d_vectors_3x2"), WRONG),
    Bug("a row's last lane takes from the row behind", VECTORS, "COUNT + i] = last ? least<T>() : after;",
        "COUNT + i] = after;", of(VECTOR_POOLS, "int8"), WRONG),
    Bug("lanes that only help write", VECTORS, "lane >= before && lane < 32 - after", "true",
        of(VECTOR_POOLS, "bfloat16"), "race between blocks|elements differ"),
    Bug("warps share no lane", VECTORS, "warp * (32 - before - after)", "warp * 32",
        of(VECTOR_POOLS, "float16"), "never written"),
    Bug("windows of -inf have the number of a column in the padding", VECTORS, "+ max(starts[j], 0)};", "+ starts[j]};",
        of(VECTOR_POOLS, "float64"), WRONG),
    Bug("vectors are read wherever x begins", VECTORS, "% (kOutputs * S * sizeof(T)) != 0", "% 1 != 0",
        of(VECTOR_POOLS, "float32_3d_vectors_2x2"), "misaligned"),
    Bug("rows below the last one are read", VECTORS,
        "if (inside(first + i, p.x_extent[1])) rows[i] = *reinterpret_cast<const uint4*>",
        "if (first + i >= 0) rows[i] = *reinterpret_cast<const uint4*>", of(VECTOR_POOLS, "int8"), OUT_OF_BOUNDS),
    Bug("a tile is read before it is there", STAGING, "copy_async<16>(", "if (false) copy_async<16>(",
        of(TILE_POOLS, "float16"), "uninitialised shared memory read"),
    Bug("no barrier after a tile's copies", TILES, "copy_async_wait<0>();\n    __syncthreads();",
        "copy_async_wait<0>();", of(TILE_POOLS, "float16"), "shared memory race|uninitialised shared|in flight"),
    Bug("a tile is not waited for", TILES, "copy_async_wait<0>();\n", "\n", of(TILE_POOLS, "float16"), "in flight"),
    Bug("planes that are none are written", TILES, "min(p.tile_planes, p.planes - tile.plane)", "p.tile_planes",
        PLANES, OUT_OF_BOUNDS),
    Bug("tiles off the vectors are read as vectors", TILES, "p.vectors && tile.phase == 0", "p.vectors",
        TILE_POOLS[6], "uninitialised shared"),
    Bug("lines begin with the vector, windows do not", TILES, "tap * p.dilation[2] + lead", "tap * p.dilation[2]",
        of(TILE_POOLS, "float16"), WRONG),
    Bug("taps beside the tile are read", TILES, "(p.kernel[1] - 1) * p.dilation[1] < tile.rows) {",
        "0 < tile.rows) {", of(TILE_POOLS, "float32"), f"shared memory|{WRONG}"),
    Bug("of dilated slices the next one is fetched", TILES, "slice * p.dilation[0] * p.x_stride[0]",
        "slice * p.x_stride[0]", of(TILE_POOLS, "bfloat16"), f"{WRONG}|misaligned"),
    Bug("windows of dilated runs lie side by side", RUNS, "* (RUN * step) + between", "* RUN + between",
        of(TILE_POOLS, "float64"), "shared memory race"),
    Bug("results are written before they are there", TILES, "lead, lines, results);\n    __syncthreads();",
        "lead, lines, results);", of(TILE_POOLS, "float32"), "shared memory race"),
    Bug("the end of a run is written 16 bytes at a time", STAGING, "(count - head) / kVector * kVector",
        "(count - head + kVector - 1) / kVector * kVector", of(TILE_POOLS, "float16"), f"race|{OUT_OF_BOUNDS}|{WRONG}"),
    Bug("pixels off the vectors are read as vectors", CHANNELS, "% (kVector * sizeof(T)) != 0", "% 1 != 0",
        of(CHANNEL_POOLS, "uint8"), "misaligned"),
    Bug("columns outside of x are read", CHANNELS, "if (!inside(column, p.x_extent[2])) return maxima;", "",
        of(CHANNEL_POOLS, "int8"), f"{WRONG}|{OUT_OF_BOUNDS}"),
    Bug("windows of two columns take a third one", CHANNELS, "if (p.kernel[2] == kMost) window", "window",
        of(CHANNEL_POOLS, "float64"), WRONG),
    Bug("walks go past the end of the row", CHANNELS, "min(walk.column + p.walk, p.y_extent[2])",
        "walk.column + p.walk", of(CHANNEL_POOLS, "float16"), f"{WRONG}|{OUT_OF_BOUNDS}|race"),
    Bug("large windows have three rows", CHANNELS, "row < walk.rows.end; row += kBatch",
        "row < walk.rows.first + 1; row += kBatch", of(CHANNEL_POOLS, "int8"), WRONG),
    Bug("Indices count from the vector's first channel", CHANNELS, "walk.number + p.plane + second.place",
        "walk.number + second.place", of(CHANNEL_POOLS, "float32"), WRONG),
    Bug("pixels off the vectors are copied as vectors", PATCHES, "% (VECTOR * sizeof(T)) == 0;", "% 1 == 0;",
        of(PATCH_POOLS, "uint8"), "misaligned"),
    Bug("rows of a patch are not tested", PATCHES, "inside(row, patch.rows) ?", "row < patch.rows ?",
        of(PATCH_POOLS, "int8"), f"shared memory|{WRONG}"),
    Bug("lines have x in the padding", PATCHES, "if (inside(column, patch.columns)) {", "if (true) {",
        of(PATCH_POOLS, "float16"), f"shared memory|{WRONG}"),
    Bug("the last channels have a patch of their own", PATCHES, "(p.channels - patch.channel) / VECTOR)",
        "p.channels / VECTOR)", of(PATCH_POOLS, "float32"), f"{OUT_OF_BOUNDS}|{WRONG}|race"),
    Bug("lines are read before they are there", PATCHES, "* vectors + vector);\n    }\n    __syncthreads();",
        "* vectors + vector);\n    }",
        of(PATCH_POOLS, "float32"), "shared memory race|uninitialised"),
    Bug("a window's tail is the one before's", RUNS, "element(0, kernel + i - 1)", "element(0, kernel + i - 2)",
        of(PATCH_POOLS, "float32"), WRONG),
)  # fmt: skip


@pytest.mark.parametrize("bug", first_of_each(BUGS, report), ids=lambda bug: bug.name)
def test_a_bug_is_noticed(bug: Bug) -> None:
    text = exchanged(bug.path, bug.old, bug.new)
    with pytest.raises(AssertionError, match=bug.message), changed_kernels({bug.path: text}):
        many_blocks.run(bug.problem, "sm_90a")


def test_every_kernel_of_rows_has_bugs() -> None:
    assert {bug.path for bug in BUGS} >= {
        VECTORS,
        TILES,
        CHANNELS,
        PATCHES,
        RUNS,
        ORDER,
        PACKED,
        STAGING,
    }
    assert all(Path(bug.path).suffix in (".cu", ".cuh") for bug in BUGS)
