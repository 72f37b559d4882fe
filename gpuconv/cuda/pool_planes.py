"""MaxPool with windows of any size one element apart, over planes that shared memory holds whole.

The kernel is in ``kernels_cu/max_pool_planes.cu``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from gpuconv import _dtypes
from gpuconv.cuda import multiples, pool_general
from gpuconv.cuda.choice import Candidate
from gpuconv.cuda.launching import MOST_BLOCKS
from gpuconv.cuda.plan import Limits, Plan
from gpuconv.cuda.pool_problem import (
    Problem,
    Rows,
    one_launch,
    rows_of,
    seconds,
    whole_vectors,
)
from gpuconv.cuda.variant import Variant

NAME = "planes"
_THREADS = 256
_RUN = 4  # kRun in max_pool_planes.cu
_BLOCK_BYTES = 24 * 1024  # of shared memory, where several planes share a block
_BLOCKS_PER_SM = 5  # 48 registers a thread
_BLOCKS_WANTED = 4  # of each multiprocessor; for fewer of them, fewer planes a block
# Instructions, with Indices or without: of an output, and of each tap of a line; counted, in machine code.
_INSTRUCTIONS = {False: (85, 11), True: (175, 22)}


@dataclass(frozen=True, slots=True)
class _Tile:
    """Planes of a block, and where what it keeps is in shared memory, in elements and bytes."""

    planes: int
    merged: bool
    pitch: int
    place_pitch: int
    result_pitch: int
    result_place_pitch: int
    columns_at: int
    places_at: int
    result_places_at: int
    bytes: int


def candidates(problem: Problem, limits: Limits) -> Iterator[Candidate]:
    """Yield the kernel, if it accepts the problem."""
    rows = _accepted(problem, limits)
    if isinstance(rows, str):
        return
    indices = problem.indices_strides is not None
    kernel = variant(problem.dtype, indices)
    each, tap = _INSTRUCTIONS[indices]
    count = prod(problem.geometry.y_shape) * (each + tap * (rows.kernel[1] + rows.kernel[2]) / _RUN)
    time = seconds(problem, count, limits)
    yield Candidate(kernel.name, time, lambda: _plan(problem, rows, kernel, limits))


def refusal(problem: Problem, limits: Limits) -> str | None:
    """Return why a problem is not accepted."""
    rows = _accepted(problem, limits)
    return rows if isinstance(rows, str) else None


def _accepted(problem: Problem, limits: Limits) -> Rows | str:
    rows = rows_of(problem)
    if isinstance(rows, str):
        return rows
    if rows.x_extent[0] > 1 or rows.y_extent[0] > 1:
        return "planes of several slices"
    if any(stride > 1 and outputs > 1 for stride, outputs in zip(rows.stride, rows.y_extent, strict=True)):
        return "windows more than one element apart"
    if pool_general.needs_wide(problem) or rows.planes > MOST_BLOCKS:
        return "64-bit indices"
    if _laid_out(rows, problem, 1).bytes > limits.shared_bytes_per_block:
        return "shared memory does not hold a plane"
    return rows


# ---------------------------------------------------------------- kernels


def variant(dtype: str, indices: bool) -> Variant:
    """Return the kernel for a dtype, with indices or without."""
    return Variant(
        name=f"max_pool_{dtype}_2d_planes" + "_indices" * indices,
        source="max_pool_planes.cu",
        function="max_pool_planes",
        arguments=(_dtypes.entry(dtype).cuda, str(indices).lower()),
        parameter="PlanePoolParams",
        threads=_THREADS,
        blocks_per_sm=_BLOCKS_PER_SM,
    )


def variants() -> list[Variant]:
    """Return every kernel that a plan can name."""
    return [variant(*row) for row in product(_dtypes.MAX_POOL_DTYPES, (False, True))]


# ---------------------------------------------------------------- shared memory


def _tile(rows: Rows, problem: Problem, limits: Limits) -> _Tile:
    """Return as many planes as a block has room for, but no more than leave every multiprocessor some blocks."""
    one = _laid_out(rows, problem, 1)
    if not one.merged:
        return one
    most = max(1, rows.planes // (_BLOCKS_WANTED * limits.multiprocessors))
    return _laid_out(rows, problem, max(1, min(most, _BLOCK_BYTES // one.bytes)))


def _laid_out(rows: Rows, problem: Problem, planes: int) -> _Tile:
    (_, height, width), (_, out_height, out_width) = rows.x_extent, rows.y_extent
    size, indices = _dtypes.entry(problem.dtype).itemsize, problem.indices_strides is not None
    merged, vector, lines = rows.planes_are_neighbours, 16 // size, planes * out_height
    x_bytes = size * whole_vectors(planes * height * width, vector)
    pitch, result_pitch = _odd(width, size), _odd(out_width, size)
    place_pitch, result_place_pitch = _odd(width, 4), _odd(out_width, 4)
    columns_at = multiples.whole(max(x_bytes, lines * result_pitch * size), 16)
    places_at = multiples.whole(columns_at + lines * pitch * size, 16)
    result_places_at = multiples.whole(places_at + lines * place_pitch * 4 * indices, 16)
    end = result_places_at + lines * result_place_pitch * 4 * indices
    pitches = (pitch, place_pitch, result_pitch, result_place_pitch)
    return _Tile(planes, merged, *pitches, columns_at, places_at, result_places_at, end)


def _odd(elements: int, size: int) -> int:
    """Return the pitch, odd in words or elements, that keeps lanes below one another from each other's banks."""
    per_word = max(1, 4 // size)
    return (-(-elements // per_word) | 1) * per_word


# ---------------------------------------------------------------- launches


def _plan(problem: Problem, rows: Rows, kernel: Variant, limits: Limits) -> Plan:
    tile = _tile(rows, problem, limits)
    (_, *x_extent), (_, *y_extent) = rows.x_extent, rows.y_extent
    counts = {
        "channels": rows.channels,
        "x_width": x_extent[1],
        "y_width": y_extent[1],
        "y_height": y_extent[0],
        "runs": -(-y_extent[0] // _RUN),
        "tile_lines": tile.planes * y_extent[0],
    }
    own = ("merged", "pitch", "place_pitch", "result_pitch", "result_place_pitch")
    fields = {name: value for name, value in rows.fields().items() if name in (kernel.layout.names or ())}
    for name in ("x", "y", "indices"):
        fields[f"{name}_stride"] = getattr(rows, f"{name}_strides")[3]
    fields |= {
        "plane": prod(x_extent),
        "tile_planes": tile.planes,
        "x_extent": x_extent,
        "y_extent": y_extent,
        "kernel": list(rows.kernel[1:]),
        "pad": list(rows.pad[1:]),
        **{name: getattr(tile, name) for name in (*own, "columns_at", "places_at", "result_places_at")},
        **counts,
    }
    blocks = -(-rows.planes // tile.planes)
    reason = (
        f"{tile.planes} planes a block of {_THREADS} threads in shared memory, "
        f"{_RUN} windows of a line a thread; {blocks} blocks"
    )
    return one_launch(problem, kernel, blocks, tile.bytes, fields, reason)
