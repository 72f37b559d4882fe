"""Tiles of the tensor-core implicit GEMM: shapes, loading forms, shared memory, and their modelled cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import fragments, split
from gpuconv.cuda.conv.gemm.fragments import FRAGMENT_BYTES, Arithmetic, WarpTile
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import RANK, Limits, model
from gpuconv.cuda.plan.numbers import whole

# ---------------------------------------------------------------- tiles


@dataclass(frozen=True, slots=True)
class MmaForm:
    """How a tile's slices of x are gathered into shared memory."""

    # - "vector": 16 bytes of contiguous channels per copy, one tap per slice of K.
    # - "scalar": single elements, one tap per slice of K.
    # - "rowwise": single elements, with a tap lookup per row of K.
    # - "chunks", "halves": 16 or 8 bytes of contiguous channels, with a tap lookup per copy.
    gather: str
    block_k: int  # rows of K per slice
    stages: int  # pipeline stages: slices in shared memory
    issued: float  # main-loop instructions of a warp per mma instruction

    @property
    def rowwise(self) -> bool:
        """Whether K is padded as a whole to full slices, instead of per tap; the taps then come from a table."""
        return self.gather in ("rowwise", "chunks", "halves")

    @property
    def copied(self) -> int:
        """Bytes of contiguous channels per asynchronous copy; 0 for copies of single elements."""
        return {"vector": 16, "chunks": 16, "halves": 8}.get(self.gather, 0)

    def entries(self, rows: int, itemsize: int) -> int:
        """Return the entries of the tap table for ``rows`` rows of K; 0 if each slice has one tap."""
        return rows // max(1, self.copied // itemsize) if self.rowwise else 0


@dataclass(frozen=True, slots=True)
class MmaTile(WarpTile):
    """A tensor-core tile: the outputs of one block and of one warp, and the forms it is instantiated in."""

    forms: tuple[MmaForm, ...]


_SQUARE_OF_HALF = (
    MmaForm("vector", 64, 3, 2.9),
    MmaForm("chunks", 64, 3, 4.0),
    MmaForm("halves", 64, 3, 5.1),
    MmaForm("scalar", 32, 4, 6.4),
    MmaForm("rowwise", 32, 4, 16.0),
)
_FLAT_OF_HALF = (MmaForm("vector", 64, 3, 5.2), MmaForm("chunks", 64, 3, 8.8), MmaForm("scalar", 32, 4, 17.0))
# 64 × 256 tiles: two stages and the pixel table take 84 KiB, for 16-bit and 32-bit elements. That allows two blocks per
# SM with 228 KiB of shared memory, and one with 164 or 100 KiB. (Two in 164 KiB would need a pixel table of 4 instead
# of 16 bytes per pixel.) Registers would allow two. Slices of half the depth would fit twice into 100 KiB, but need a
# barrier for half as many products.
_HALF = (
    MmaTile(128, 128, 64, 64, 2, (MmaForm("vector", 64, 2, 1.7), MmaForm("scalar", 32, 3, 3.1))),
    MmaTile(64, 256, 64, 64, 2, (MmaForm("vector", 64, 2, 1.8), MmaForm("chunks", 64, 2, 2.7))),
    MmaTile(32, 256, 32, 64, 2, (MmaForm("vector", 64, 2, 2.6), MmaForm("chunks", 64, 2, 4.2))),
    MmaTile(64, 64, 32, 32, 4, _SQUARE_OF_HALF),
    MmaTile(16, 128, 16, 32, 4, _FLAT_OF_HALF),
)
_SQUARE_OF_SINGLE = (
    MmaForm("vector", 32, 3, 4.9),
    MmaForm("chunks", 32, 3, 6.0),
    MmaForm("scalar", 16, 4, 6.7),
    MmaForm("rowwise", 16, 4, 11.2),
)
_FLAT_OF_SINGLE = (MmaForm("vector", 32, 3, 9.3), MmaForm("chunks", 32, 3, 12.9), MmaForm("scalar", 16, 4, 14.9))
_SINGLE = (
    MmaTile(128, 128, 64, 64, 2, (MmaForm("scalar", 16, 3, 3.3),)),
    MmaTile(64, 256, 64, 64, 2, (MmaForm("vector", 32, 2, 2.8),)),
    MmaTile(32, 256, 32, 64, 2, (MmaForm("vector", 32, 2, 4.6), MmaForm("chunks", 32, 2, 6.2))),
    MmaTile(64, 64, 32, 32, 4, _SQUARE_OF_SINGLE),
    MmaTile(16, 128, 16, 32, 4, _FLAT_OF_SINGLE),
)
_SQUARE_OF_SPLIT = (
    MmaForm("vector", 16, 4, 3.2),
    MmaForm("chunks", 16, 4, 3.5),
    MmaForm("scalar", 16, 4, 3.4),
    MmaForm("rowwise", 16, 4, 4.8),
)
_FLAT_OF_SPLIT = (MmaForm("vector", 16, 4, 5.4), MmaForm("chunks", 16, 4, 6.5), MmaForm("scalar", 16, 4, 6.1))
_SPLIT = (
    MmaTile(128, 128, 64, 64, 2, (MmaForm("scalar", 16, 3, 2.0),)),
    MmaTile(64, 64, 32, 32, 3, _SQUARE_OF_SPLIT),
    MmaTile(16, 128, 16, 32, 4, _FLAT_OF_SPLIT),
)
_SQUARE_OF_DOUBLE = (
    MmaForm("vector", 16, 3, 13.1),
    MmaForm("scalar", 16, 3, 16.5),
    MmaForm("rowwise", 16, 3, 25.5),
)
_FLAT_OF_DOUBLE = (MmaForm("vector", 16, 3, 22.5), MmaForm("scalar", 16, 3, 30.5))
_DOUBLE = (MmaTile(64, 64, 32, 32, 3, _SQUARE_OF_DOUBLE), MmaTile(16, 128, 16, 32, 4, _FLAT_OF_DOUBLE))
TILES = {"HalfProducts": _HALF, "Bfloat16Products": _HALF, "Tf32Products": _SINGLE, "Tf32x3Products": _SPLIT}
TILES["DoubleProducts"] = _DOUBLE


def kernels(arithmetic: Arithmetic) -> Iterator[tuple[MmaTile, MmaForm]]:
    """Yield every (tile, form) pair."""
    for tile in TILES[arithmetic.cuda]:
        for form in tile.forms:
            yield tile, form


# (M, N, form) of the tiles instantiated with several GEMM rows per filter, by operator and arithmetic
_Forms = Mapping[str, tuple[tuple[int, int, str], ...]]
_FLAT, _LOW, _WIDE = (16, 128, "vector"), (32, 256, "vector"), (64, 256, "vector")
_SQUARE, _SINGLE_SQUARE, _LARGE = (64, 64, "vector"), (64, 64, "scalar"), (128, 128, "scalar")
_WITH_ROWS: Mapping[str, _Forms] = {
    "conv": {
        "HalfProducts": (_LOW, _WIDE, _LARGE),
        "Bfloat16Products": (_LOW, _WIDE, _LARGE),
        "Tf32Products": (_LOW, _WIDE, _LARGE),
        "Tf32x3Products": (_FLAT, _SQUARE),
        "DoubleProducts": (_SINGLE_SQUARE,),
    },
    "conv_transpose": {
        "HalfProducts": (_FLAT, _LOW),
        "Bfloat16Products": (_FLAT, _LOW),
        "DoubleProducts": (_SINGLE_SQUARE,),
    },
}


def of_rows(arithmetic: Arithmetic, operator: str) -> Iterator[tuple[MmaTile, MmaForm]]:
    """Yield the (tile, form) pairs instantiated with several GEMM rows per filter, for this operator."""
    those = _WITH_ROWS[operator].get(arithmetic.cuda, ())
    for tile, form in kernels(arithmetic):
        if (tile.block_m, tile.block_n, form.gather) in those:
            yield tile, form


def divisible(arithmetic: Arithmetic, tile: MmaTile, form: MmaForm) -> bool:
    """Return whether the variant supports split-K.

    Large 3xTF32 tiles do not: their products take all the time. Flat float64 tiles do: few slices of K already occupy
    an SM.
    """
    if (tile.block_m, tile.block_n) == (64, 64) or arithmetic.cuda == "DoubleProducts":
        return form.gather not in ("rowwise", "halves")
    return (tile.block_m, tile.block_n) == (128, 128) and arithmetic.products == 1


# ---------------------------------------------------------------- slices of K


def channels_of_tap(problem: Problem, form: MmaForm) -> int:
    """Return the rows of K per tap: channels rounded up to whole slices, or exact if K is padded as a whole."""
    return problem.channels if form.rowwise else -(-problem.channels // form.block_k) * form.block_k


def multiplied(problem: Problem, form: MmaForm) -> int:
    """Return the rows of K per tap that are multiplied: in the last slice, mma steps of padding only are skipped."""
    if form.rowwise:
        return problem.channels
    return whole(problem.channels, 32 // problem.itemsize * _fragments_of_step(problem))


def _fragments_of_step(problem: Problem) -> int:
    """Return the fragments along K that one mma instruction multiplies."""
    return 4 if fragments.arithmetic(problem).cuda == "DoubleProducts" else 1


def slices(problem: Problem, form: MmaForm) -> int:
    """Return the number of slices of K, over all phases."""
    return -(-prod(problem.taps) * channels_of_tap(problem, form) // form.block_k)


def most_slices(problem: Problem, form: MmaForm) -> int:
    """Return the number of slices of K in the phase with the most taps."""
    if form.rowwise:
        return slices(problem, form)
    return problem.most_rows // problem.channels * (channels_of_tap(problem, form) // form.block_k)


def depths(problem: Problem, form: MmaForm) -> int:
    """Return the mma fragments along K per slice."""
    return form.block_k * problem.itemsize // 32


def columns(problem: Problem, tile: MmaTile) -> int:
    """Return the mma fragments along M (16 rows each), in whole tiles."""
    return problem.tiles(tile.block_m, tile.block_n)[0] * tile.block_m // 16


def packed_weights(problem: Problem, tile: MmaTile, form: MmaForm) -> gemm_base.PackedWeights:
    """Return the layout of packed weights: whole slices, with the pitch in bytes."""
    parts = columns(problem, tile) * depths(problem, form) * fragments.arithmetic(problem).parts
    pitch = parts * FRAGMENT_BYTES
    return gemm_base.PackedWeights(pitch, slices(problem, form), channels_of_tap(problem, form))


def packed_bytes(problem: Problem, tile: MmaTile, form: MmaForm) -> int:
    """Return the bytes of the packed weights, over all groups."""
    weights = packed_weights(problem, tile, form)
    return problem.group * weights.all_rows * weights.pitch


# ---------------------------------------------------------------- shared memory


_ENTRY = 16  # bytes per table entry


def shared_bytes(problem: Problem, tile: MmaTile, form: MmaForm) -> int:
    """Return the bytes of shared memory: pipeline stages, tables of pixels and taps, one phase's taps."""
    size = problem.itemsize
    weights = tile.block_m * form.block_k * size * fragments.arithmetic(problem).parts
    padding = 0 if size == 2 or form.copied else 32 * form.block_k  # padding of K rows against bank conflicts
    inputs = tile.block_n * form.block_k * size + padding
    # each thread gathers for one pixel, which it keeps in registers: no pixel table
    pixel_in_registers = form.gather == "scalar" and tile.block_n == tile.threads
    entries = (0 if pixel_in_registers else tile.block_n) + form.entries(slices(problem, form) * form.block_k, size)
    taps = gemm_base.taps_bytes(RANK) if problem.phases else 0
    return form.stages * (weights + inputs) + entries * _ENTRY + taps


# ---------------------------------------------------------------- cost


def _wavefronts(problem: Problem, tile: MmaTile, form: MmaForm) -> float:
    """Return the shared-memory and L1 wavefronts (128 bytes each) per mma instruction."""
    arithmetic = fragments.arithmetic(problem)
    elements = 32 / problem.itemsize  # rows of K per fragment
    gathered = 0.0 if form.copied else elements / 4 / (tile.block_m / 16) * problem.lines  # for 32 pixels
    return (tile.wavefronts(arithmetic.parts) + gathered) * _fragments_of_step(problem) / arithmetic.products


def busy_with(problem: Problem, tile: MmaTile, form: MmaForm, limits: Limits, shared: int = 0) -> split.Busy:
    """Return a cost function: (blocks, slices per block, other blocks) → seconds.

    ``shared`` overrides the tile's bytes of shared memory per block, which limits occupancy.
    """
    arithmetic = fragments.arithmetic(problem)
    filled = multiplied(problem, form) / channels_of_tap(problem, form)
    slice_of_tile = tile.block_m * tile.block_n * form.block_k * arithmetic.products * filled
    # Cycles per mma for everything else; four warps issue per cycle. A partly filled slice costs as much to load as a
    # full one.
    other_cycles = max(form.issued / 4, _wavefronts(problem, tile, form)) / filled
    residence = tile.residence(shared or shared_bytes(problem, tile, form), limits)
    return lambda blocks, slices, others=0: model.tensor(
        blocks, slices * slice_of_tile, arithmetic.lanes, other_cycles, limits, residence, others
    )
