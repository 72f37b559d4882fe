"""MaxPool and AveragePool with channels last, for large windows (``pool/patches.cu``).

Separable within a block: a patch of x is staged in shared memory, pooled down the columns, then along the rows. A
thread pools a run of adjacent windows at once, sharing their common taps (van Herk). Chosen over ``channels`` where
windows are large or dilated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np

from gpuconv.cuda.build import params, structs
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.plan import MOST_BLOCKS, Candidate, Limits, Offer, Plan, Refusal, model
from gpuconv.cuda.pool import general
from gpuconv.cuda.pool.problem import (
    PoolAxis,
    PoolProblem,
    PoolView,
    blocks_of,
    channels_of_vector,
    in_vectors,
    one_launch,
    pixels_of,
    why_singly,
)
from gpuconv.cuda.pool.runs import WindowRuns, longest, of_short, runs_of, taken
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

NAME = "patches"
_THREADS = 128
_RUN = structs.constant("kRun", "pool/patches.cu")
# Shared memory per block to try; with the largest, six blocks fit an SM.
_BYTES = tuple(36 * 1024 >> halved for halved in range(4))
_PLACE = 8  # bytes per place of a pair of elements in shared memory: 4 each
# Instructions by Indices: per unit of each entry that _work returns (counted).
_INSTRUCTIONS = {False: (0, 61, 0, 0, 5, 38, 0.6, 0), True: (420, 0, 578, 32, 0, 0, 0, 4)}
_COUNT, _DIVISION = 25, 10  # instructions to count a pixel's taps, and to divide each channel (estimated)
# extra instructions per channel loaded, or stored, element by element (counted)
_LOADED_SINGLY, _WRITTEN_SINGLY = 5, 12
_BYTE_SINGLY = 13  # the same for loading a 1-byte element, without Indices


# ---------------------------------------------------------------- accepted problems


def _accepted(problem: PoolProblem, limits: Limits) -> tuple[PoolView, PatchTile] | str:
    """Return the view of the problem that the kernel takes, or why it does not accept the problem."""
    pixels = pixels_of(problem, dilated=True)
    if isinstance(pixels, str):
        return pixels
    if general.needs_wide(problem):
        return "64-bit indices"
    tile = _best(problem, pixels, limits)
    if tile.bytes > limits.shared_bytes_per_block:
        return "shared memory does not hold the pixels of a window"
    return "64-bit indices" if prod(tile.grid) > MOST_BLOCKS else (pixels, tile)


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True, slots=True)
class PatchTile:
    """A tile: the outputs of a block, and its layout in shared memory (``…_at`` are byte offsets)."""

    vectors: int
    rows: int
    columns: int
    grid: Ints  # number of tiles along images, depths, rows, columns, channels
    x_rows: int
    x_columns: int
    slices: int
    line: int  # pixels of x per line, including padding
    down: WindowRuns
    along: WindowRuns
    lines_at: int
    places_at: int
    bytes: int

    @property
    def inputs_of_output(self) -> float:
        """Staged pixels per output, a ranking of tiles; on a tie, more channels win."""
        return self.x_rows * self.line / (self.rows * self.columns) - self.vectors / 1e3


@dataclass(frozen=True, slots=True)
class _Line:
    """A tile's extent along one axis: outputs, their runs, and the inputs they read, with and without padding."""

    outputs: int
    tiles: int
    runs: WindowRuns
    padded: int
    inputs: int


def _line(axis: PoolAxis, outputs: int) -> _Line:
    """Return a tile's extent along one axis, for ``outputs`` outputs."""
    runs = runs_of(outputs, axis.taps, axis.stride, axis.dilation, _RUN)
    padded = (runs.outputs - 1) * axis.stride + axis.reach
    inputs = min((outputs - 1) * axis.stride + axis.reach, axis.extent)
    return _Line(outputs, -(-axis.windows // outputs), runs, padded, inputs)


def _best(problem: PoolProblem, pixels: PoolView, limits: Limits) -> PatchTile:
    """Return the fastest of the best tiles for several sizes of shared memory."""
    least = max(32 // (channels_of_vector(problem) * problem.itemsize), 1)  # vectors per sector
    sizes = _TileSizes.of(problem, pixels)
    rows, columns = ([_line(axis, n) for n in _parts(axis.windows)] for axis in (pixels.height, pixels.width))
    shares = (2 * least, least)
    tiles = [_laid_out(sizes, vectors, down, along) for vectors in shares for down in rows for along in columns]
    smallest = _laid_out(sizes, least, _line(pixels.height, 1), _line(pixels.width, min(pixels.width.windows, _RUN)))
    best = (
        min([tile for tile in tiles if tile.bytes <= size] or [smallest], key=lambda tile: tile.inputs_of_output)
        for size in _BYTES
    )
    return min(best, key=lambda tile: _seconds(problem, pixels, tile, limits))


def _parts(outputs: int) -> list[int]:
    """Return the numbers of outputs per tile to try along an axis: all, or whole runs."""
    runs = [count * _RUN for count in (8, 4, 3, 2, 1) if count * _RUN < outputs]
    return [outputs, *runs] if outputs <= 16 * _RUN else runs


# ---------------------------------------------------------------- shared memory


@dataclass(frozen=True, slots=True)
class _TileSizes:
    """Sizes that all tiles of a problem have in common."""

    vector: int
    vector_bytes: int
    line_bytes: int  # bytes per vector in a line of intermediate results
    place_bytes: int
    slices: int
    images: int
    depth: int
    channels: int

    @classmethod
    def of(cls, problem: PoolProblem, pixels: PoolView) -> _TileSizes:
        """Return the common sizes for a problem."""
        depth, vector = pixels.depth, channels_of_vector(problem)
        slices = min(depth.taps, -(-depth.extent // depth.dilation))
        of_line = dtypes.sums(problem.dtype).itemsize if problem.averages else problem.itemsize
        sizes = (vector * problem.itemsize, vector * of_line, _PLACE if problem.named else 0)
        return cls(vector, *sizes, slices, pixels.image.extent, depth.windows, pixels.channel.extent)


def _laid_out(sizes: _TileSizes, vectors: int, down: _Line, along: _Line) -> PatchTile:
    """Return the tile of ``vectors`` vectors and these extents, with its shared-memory layout."""
    pixel, line = vectors * sizes.vector_bytes, along.padded
    lines_at = -(-sizes.slices * down.inputs * along.inputs * pixel // 16) * 16
    places_at = lines_at + -(-down.outputs * line * vectors * sizes.line_bytes // 16) * 16
    return PatchTile(
        vectors=vectors,
        rows=down.outputs,
        columns=along.outputs,
        grid=(sizes.images, sizes.depth, down.tiles, along.tiles, -(-sizes.channels // (vectors * sizes.vector))),
        x_rows=down.inputs,
        x_columns=along.inputs,
        slices=sizes.slices,
        line=line,
        down=down.runs,
        along=along.runs,
        lines_at=lines_at,
        places_at=places_at,
        bytes=places_at + down.outputs * line * vectors * sizes.place_bytes,
    )


# ---------------------------------------------------------------- cost


def _work(problem: PoolProblem, pixels: PoolView, tile: PatchTile) -> Ints:
    """Return a block's work: threads; vectors of x; runs, loads, comparisons down columns; the same along rows."""
    size = problem.itemsize
    words = 2 if problem.named else 8 if size == 1 else max(4, 8 // size) if size < 8 else 2
    if problem.averages:
        words = channels_of_vector(problem)
    down, along = tile.down.count * tile.line * tile.vectors, tile.rows * tile.along.count * tile.vectors
    down_loads, down_merges = taken(pixels.height.taps, tile.down, _RUN)
    along_loads, along_merges = taken(pixels.width.taps, tile.along, _RUN)
    return (
        _THREADS,
        tile.slices * tile.x_rows * tile.x_columns * tile.vectors,
        down,
        down * tile.slices * down_loads,
        down * tile.slices * down_merges * words,
        along,
        along * along_loads,
        along * along_merges * words,
    )


def _instructions(problem: PoolProblem, pixels: PoolView, tile: PatchTile) -> float:
    """Return the instructions that a block executes."""
    of_block = float(np.dot(_work(problem, pixels, tile), _INSTRUCTIONS[problem.named]))
    if problem.averages:
        of_block += tile.rows * tile.columns * tile.vectors * (_COUNT + _DIVISION * channels_of_vector(problem))
    if not in_vectors(problem):
        loaded, written = tile.slices * tile.x_rows * tile.x_columns, tile.rows * tile.columns
        load = _BYTE_SINGLY if problem.itemsize == 1 and not problem.named else _LOADED_SINGLY
        of_block += (load * loaded + _WRITTEN_SINGLY * written) * tile.vectors * channels_of_vector(problem)
    return of_block * of_short(problem)


def _seconds(problem: PoolProblem, pixels: PoolView, tile: PatchTile, limits: Limits) -> float:
    """Model the seconds; 16-byte vectors are copied asynchronously together, others by each thread in turn."""
    kernel, blocks = _variant_of(problem), prod(tile.grid)
    together = in_vectors(problem) and (not problem.named or problem.itemsize == 8)
    trips = 1 if together else -(-tile.slices * tile.x_rows * tile.x_columns * tile.vectors // _THREADS)
    instructions = blocks * _instructions(problem, pixels, tile)
    work = _work(problem, pixels, tile)
    threads, x, down, _, _, along, *_ = work
    items = (threads, x, *[down] * 3, *[along] * 3)
    most = longest(work, items, _INSTRUCTIONS[problem.named], _THREADS) * of_short(problem)
    planned = blocks_of(kernel, blocks * _THREADS, instructions, trips, limits, tile.bytes, most)
    return model.streaming(planned, problem.bytes, limits)


# ---------------------------------------------------------------- offers


def offers(problem: PoolProblem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel, or why it does not accept the problem."""
    accepted = _accepted(problem, limits)
    if isinstance(accepted, str):
        yield Refusal(accepted)
        return
    pixels, tile = accepted
    kernel, time = _variant_of(problem), _seconds(problem, pixels, tile, limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, pixels, tile, kernel))


# ---------------------------------------------------------------- launch


def _plan(problem: PoolProblem, pixels: PoolView, tile: PatchTile, kernel: Variant) -> Plan:
    """Return the plan of this candidate."""
    _, depths, row_tiles, column_tiles, channel_tiles = tile.grid
    fields = pixels.fields(kernel) | {
        "tile_rows": tile.rows,
        "tile_columns": tile.columns,
        "whole": in_vectors(problem),
        **params.members(tile, "x_rows", "x_columns", "vectors", "line", "lines_at", "places_at"),
        "step": [tile.down.step, tile.along.step],
        "steps": [max(runs.step, 1) for runs in (tile.down, tile.along)],
        "channel_tiles": channel_tiles,
        "column_tiles": column_tiles,
        "row_tiles": row_tiles,
        "depths": depths,
        "depth_dilation": pixels.depth.dilation,
        "down": tile.down.count,
        "along": tile.along.count,
    }
    blocks = prod(tile.grid)
    reason = (
        f"channels last: {tile.vectors * channels_of_vector(problem)} channels of {tile.rows} x {tile.columns} "
        f"outputs a block of {_THREADS} threads, {_RUN} windows of a line a thread; "
        f"{tile.bytes} bytes of shared memory, {blocks} blocks"
        f"{why_singly(problem)}"
    )
    return one_launch(problem, kernel, blocks, tile.bytes, fields, reason)


_KERNEL = Kernel("pool/patches.cu", "max_pool_patches", "PatchPoolParams", _THREADS, name="max_pool")
_AVERAGE = replace(_KERNEL, function="average_pool_patches", parameter="AveragePatchPoolParams", name="average_pool")


def variant(dtype: str, indices: bool) -> Variant:
    """Return the MaxPool variant for a dtype, with or without Indices."""
    blocks = 4 if dtypes.entry(dtype).itemsize == (8 if indices else 1) else 5
    element, form = dtypes.entry(dtype).cuda, "indices" * indices
    return _KERNEL.over(dtype, 3, NAME, form, types=(element,), sizes=(indices,), blocks_per_sm=blocks)


def average_variant(dtype: str) -> Variant:
    """Return the AveragePool variant for a dtype."""
    blocks = 3 if dtypes.entry(dtype).itemsize == 2 else 4  # 168 or 128 registers per thread
    return _AVERAGE.over(dtype, 3, NAME, types=types(dtype), blocks_per_sm=blocks)


def _variant_of(problem: PoolProblem) -> Variant:
    """Return the kernel variant for the problem."""
    return average_variant(problem.dtype) if problem.averages else variant(problem.dtype, problem.named)


def variants() -> list[Variant]:
    """Yield every kernel variant of this family."""
    maxima = [variant(*row) for row in product(dtypes.MAX_POOL_DTYPES, (False, True))]
    return maxima + [average_variant(dtype) for dtype in dtypes.CONV_DTYPES]
