"""MaxPool over channels that lie one after another, with large windows: down the columns, then along the rows.

The kernel is in ``kernels_cu/pool/patches.cu``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from gpuconv.cuda.build import structs
from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.plan.launching import MOST_BLOCKS
from gpuconv.cuda.plan.offers import Candidate, Offer, Refusal
from gpuconv.cuda.pool import channels as pool_channels
from gpuconv.cuda.pool import general
from gpuconv.cuda.pool.layout import Runs, instructions, runs_of, taken
from gpuconv.cuda.pool.problem import Problem, one_launch, seconds, three_axes, used_strides
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

NAME = "patches"
_THREADS = 128
_RUN = structs.constant("kRun", "pool/patches.cu")
# Of shared memory a block: of the largest six are in flight on a multiprocessor.
_BYTES = tuple(36 * 1024 >> halved for halved in range(4))
_PLACE = 8  # bytes of a pair's place in shared memory, for each of its elements half of them
# Instructions, with Indices or without: for each of what _work returns; counted.
_INSTRUCTIONS = {False: (0, 61, 0, 0, 5, 38, 0.6, 0), True: (420, 0, 578, 32, 0, 0, 0, 4)}


@dataclass(frozen=True, slots=True)
class _Tile:
    """What a block makes, and what it keeps in shared memory."""

    vectors: int
    rows: int
    columns: int
    grid: Ints  # tiles: of images, depths, bands, columns and channels
    x_rows: int
    x_columns: int
    slices: int
    line: int  # pixels of x, and of the padding
    down: Runs
    along: Runs
    lines_at: int
    places_at: int
    bytes: int

    @property
    def inputs_of_output(self) -> float:
        """Pixels of lines for each output; of equally many, those of more channels count for less."""
        return self.x_rows * self.line / (self.rows * self.columns) - self.vectors / 1e3


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel, or why it does not take the problem."""
    tile = _accepted(problem, limits)
    if isinstance(tile, str):
        yield Refusal(tile)
        return
    indices = problem.indices_strides is not None
    kernel = variant(problem.dtype, indices)
    time = seconds(problem, _instructions(problem, tile, limits), limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, tile, kernel))


def _accepted(problem: Problem, limits: Limits) -> _Tile | str:
    why = pool_channels.pixels_refusal(problem, dilated=True)
    if why is not None:
        return why
    if general.needs_wide(problem):
        return "64-bit indices"
    tile = _tile(problem, limits)
    if tile.bytes > limits.shared_bytes_per_block:
        return "shared memory does not hold the pixels of a window"
    return "64-bit indices" if prod(tile.grid) > MOST_BLOCKS else tile


# ---------------------------------------------------------------- kernels


_KERNEL = Kernel("pool/patches.cu", "max_pool_patches", "PatchPoolParams", _THREADS, name="max_pool")


def variant(dtype: str, indices: bool) -> Variant:
    """Return the kernel for a dtype, with indices or without."""
    blocks = 4 if dtypes.entry(dtype).itemsize == (8 if indices else 1) else 5
    element, form = dtypes.entry(dtype).cuda, "indices" * indices
    return _KERNEL.over(dtype, 3, NAME, form, types=(element,), sizes=(indices,), blocks_per_sm=blocks)


def variants() -> list[Variant]:
    """Return every kernel that a plan can name."""
    return [variant(*row) for row in product(dtypes.MAX_POOL_DTYPES, (False, True))]


# ---------------------------------------------------------------- tiles


def _dilations(problem: Problem) -> Ints:
    return (*[1] * (3 - len(problem.axes)), *(axis.dilation for axis in problem.axes))


def _tile(problem: Problem, limits: Limits) -> _Tile:
    """Return the quickest tile, of the best ones of several sizes."""
    _, (_, height, width), *_ = three_axes(problem)
    least = 32 // (pool_channels.vector(problem) * dtypes.entry(problem.dtype).itemsize)  # a sector
    kept = _Kept.of(problem)
    rows, columns = ([_line(problem, axis, n) for n in _parts(extent)] for axis, extent in ((1, height), (2, width)))
    shares = (max(2 * least, 1), max(least, 1))
    every = [_laid_out(kept, vectors, down, along) for vectors in shares for down in rows for along in columns]
    least_tile = _laid_out(kept, max(least, 1), _line(problem, 1, 1), _line(problem, 2, min(width, _RUN)))
    best = (
        min([tile for tile in every if tile.bytes <= size] or [least_tile], key=lambda tile: tile.inputs_of_output)
        for size in _BYTES
    )
    return min(best, key=lambda tile: _instructions(problem, tile, limits))


def _parts(outputs: int) -> list[int]:
    """Return how many of an axis's outputs a tile may have: all, or whole runs."""
    runs = [count * _RUN for count in (8, 4, 3, 2, 1) if count * _RUN < outputs]
    return [outputs, *runs] if outputs <= 16 * _RUN else runs


@dataclass(frozen=True, slots=True)
class _Line:
    """So many outputs along an axis: the runs that make them, the inputs that they meet, with padding and without."""

    outputs: int
    tiles: int
    runs: Runs
    padded: int
    inputs: int


def _line(problem: Problem, axis: int, outputs: int) -> _Line:
    extents, windows, kernel, stride, _ = three_axes(problem)
    dilation = _dilations(problem)[axis]
    runs = runs_of(outputs, (kernel[axis] - 1) // dilation + 1, stride[axis], dilation, _RUN)
    padded = (runs.outputs - 1) * stride[axis] + kernel[axis]
    inputs = min((outputs - 1) * stride[axis] + kernel[axis], extents[axis])
    return _Line(outputs, -(-windows[axis] // outputs), runs, padded, inputs)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What tiles of any size have of a problem."""

    vector: int
    vector_bytes: int
    place_bytes: int
    slices: int
    images: int
    depth: int
    channels: int

    @classmethod
    def of(cls, problem: Problem) -> _Kept:
        (extent, *_), (depth, *_), (size, *_), *_ = three_axes(problem)
        dilation, vector = _dilations(problem)[0], pool_channels.vector(problem)
        slices = min((size - 1) // dilation + 1, -(-extent // dilation))
        place_bytes = 0 if problem.indices_strides is None else _PLACE
        images, channels, *_ = problem.geometry.x_shape
        vector_bytes = vector * dtypes.entry(problem.dtype).itemsize
        return cls(vector, vector_bytes, place_bytes, slices, images, depth, channels)


def _laid_out(kept: _Kept, vectors: int, down: _Line, along: _Line) -> _Tile:
    pixel, line = vectors * kept.vector_bytes, along.padded
    lines_at = -(-kept.slices * down.inputs * along.inputs * pixel // 16) * 16
    places_at = lines_at + -(-down.outputs * line * pixel // 16) * 16
    return _Tile(
        vectors=vectors,
        rows=down.outputs,
        columns=along.outputs,
        grid=(kept.images, kept.depth, down.tiles, along.tiles, -(-kept.channels // (vectors * kept.vector))),
        x_rows=down.inputs,
        x_columns=along.inputs,
        slices=kept.slices,
        line=line,
        down=down.runs,
        along=along.runs,
        lines_at=lines_at,
        places_at=places_at,
        bytes=places_at + down.outputs * line * vectors * kept.place_bytes,
    )


def _work(problem: Problem, tile: _Tile) -> Ints:
    """Return what a block does: threads, vectors of x; runs down, loads, comparisons; the same along."""
    _, _, kernel, *_ = three_axes(problem)
    taps = [(one - 1) // step + 1 for one, step in zip(kernel, _dilations(problem), strict=True)]
    size = dtypes.entry(problem.dtype).itemsize
    words = 2 if problem.indices_strides is not None else 8 if size == 1 else max(4, 8 // size) if size < 8 else 2
    down, along = tile.down.count * tile.line * tile.vectors, tile.rows * tile.along.count * tile.vectors
    down_loads, down_merges = taken(taps[1], tile.down, _RUN)
    along_loads, along_merges = taken(taps[2], tile.along, _RUN)
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


def _instructions(problem: Problem, tile: _Tile, limits: Limits) -> float:
    """Return how many instructions all threads execute."""
    each = float(np.dot(_work(problem, tile), _INSTRUCTIONS[problem.indices_strides is not None]))
    return instructions(problem, each, prod(tile.grid), limits)


# ---------------------------------------------------------------- launches


def _plan(problem: Problem, tile: _Tile, kernel: Variant) -> Plan:
    extents, windows, reach, stride, pad = map(list, three_axes(problem))
    dilation, channels = _dilations(problem), problem.geometry.x_shape[1]
    _, depths, bands, column_tiles, channel_tiles = tile.grid
    counts = {
        "channel_tiles": channel_tiles,
        "column_tiles": column_tiles,
        "bands": bands,
        "depths": depths,
        "depth_dilation": dilation[0],
        "vectors": tile.vectors,
        "x_columns": tile.x_columns,
        "line": tile.line,
        "down": tile.down.count,
        "along": tile.along.count,
    }
    fields: dict[str, Any] = {
        "plane": prod(extents),
        "x_extent": extents,
        "y_extent": windows,
        "kernel": [(one - 1) // step + 1 for one, step in zip(reach, dilation, strict=True)],
        "stride": stride,
        "dilation": list(dilation),
        "pad": pad,
        "channels": channels,
        "tile_rows": tile.rows,
        "tile_columns": tile.columns,
        "x_rows": tile.x_rows,
        "lines_at": tile.lines_at,
        "places_at": tile.places_at,
        "step": [tile.down.step, tile.along.step],
        "steps": [max(runs.step, 1) for runs in (tile.down, tile.along)],
        **counts,
    }
    for name, (batch, _, *spatial) in zip(("x", "y", "indices"), used_strides(problem), strict=True):
        fields |= {f"{name}_batch": batch, f"{name}_stride": [0] * (3 - len(spatial)) + spatial}
    blocks = prod(tile.grid)
    reason = (
        f"channels last: {tile.vectors * pool_channels.vector(problem)} channels of {tile.rows} x {tile.columns} "
        f"outputs a block of {_THREADS} threads, {_RUN} windows of a line a thread; "
        f"{tile.bytes} bytes of shared memory, {blocks} blocks"
    )
    return one_launch(problem, kernel, blocks, tile.bytes, fields, reason)
