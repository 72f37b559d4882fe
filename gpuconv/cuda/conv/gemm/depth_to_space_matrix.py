"""ConvTranspose whose kernel is its stride, without dilation, on tensor cores (``conv/gemm/depth_to_space_matrix.cu``).

One launch, which reads w as it is. The GEMM is that of ``depth_to_space_plan``, operands come as in ``matrix_plan``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import prod

from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import depth_to_space, fragments, matrix, mma
from gpuconv.cuda.conv.gemm.base import PackedWeights
from gpuconv.cuda.conv.gemm.matrix import Tile
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import launching, model
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.plan.offers import Candidate, Offer, Refusal

NAME = "conv_transpose_matrix"
_HALF = (Tile(64, 128, 32, 64, 2, 4, 2.3, 0.28),)
_SINGLE = (Tile(128, 128, 64, 64, 2, 2, 3.8, 0.14),)
_SPLIT = (Tile(128, 128, 64, 64, 2, 2, 2.3, 0.05),)
_INPUTS = "pixels"  # lie side by side in x
TILES: Mapping[str, tuple[Tile, ...]] = {
    "HalfProducts": _HALF,
    "Bfloat16Products": _HALF,
    "Tf32Products": _SINGLE,
    "Tf32x3Products": _SPLIT,
}
_WRITING, _IN_PAIRS = (
    20,
    13,
)  # instructions of a warp for 32 outputs after the main loop, which padding does not cut off
_SUMS = 4  # bytes


# ---------------------------------------------------------------- what they accept


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for every tile that the device has room for."""
    why, rows = _unfit(problem), None
    if why is None:
        rows = _rows(problem)
        why = "pixels of a channel of x do not lie behind each other, or begin on less than 4 bytes"
    if rows is None:
        yield Refusal(why, plain=not problem.phases)
        return
    tiles = [
        tile
        for tile in TILES[fragments.arithmetic(problem).cuda]
        if _shared_bytes(rows, tile) <= limits.shared_bytes_per_block
    ]
    if not tiles:
        yield Refusal(f"{limits.shared_bytes_per_block} bytes of shared memory have no room for a tile")
    for tile in tiles:
        name = variant(problem.dtype, problem.precision, tile).name
        yield Candidate(name, _seconds(problem, rows, tile, limits), partial(_plan, problem, rows, tile))


def _unfit(problem: Problem) -> str | None:
    """Return what is wrong with a problem, whatever the device."""
    why = depth_to_space.unfit(problem) or mma.refusal(problem)
    if why is not None:
        return why
    if problem.dtype == "float64":
        return "it has no float64"
    rows = depth_to_space.rows_of(correlation.in_three_axes(problem))
    w_group, unit, step, *_ = rows.w_strides
    if unit != 1 or step * rows.itemsize % 4 or rows.filters * rows.itemsize % 4:
        return "output channels and taps of an input channel do not begin on 4 bytes in w, side by side"
    if problem.wide(problem.group * abs(w_group) * problem.itemsize):
        return "w needs 64-bit indices"
    if problem.y_strides[-1] != 1:
        return "outputs along W do not lie side by side"
    return None


def _rows(problem: Problem) -> Problem | None:
    """Return the GEMM as a problem of one tap, if pixels lie behind each other in x."""
    return matrix.of_pixels(depth_to_space.rows_of(correlation.in_three_axes(problem)))


# ---------------------------------------------------------------- plans


def _shared_bytes(rows: Problem, tile: Tile) -> int:
    """Return the bytes of the slices, or of the sums that take their place, and of the table of rows."""
    slices = matrix.shared_bytes(rows, _INPUTS, tile, weight_rows=True)
    sums = tile.block_m * (tile.block_n * _SUMS + 64)
    return max(slices, sums) + tile.block_m * depth_to_space.ROW_BYTES


def _seconds(problem: Problem, rows: Problem, tile: Tile, limits: Limits) -> float:
    blocks = prod(rows.tiles(tile.block_m, tile.block_n)) * rows.group
    pairs = problem.taps[-1] == 2 and not any(number % 2 for number in (*problem.y_strides[:-1], problem.pads[-1]))
    after = tile.block_m * tile.block_n / 32 * (_IN_PAIRS if pairs else _WRITING)
    busy = matrix.busy(rows, _INPUTS, tile, blocks, limits, after)
    return model.overlapped(busy, model.memory(problem.bytes, limits))


def _plan(problem: Problem, rows: Problem, tile: Tile) -> Plan:
    counts = rows.tiles(tile.block_m, tile.block_n)
    blocks = prod(counts) * rows.group
    chosen = variant(rows.dtype, rows.precision, tile)
    weights = PackedWeights(rows.w_strides[2] * rows.itemsize, rows.channels, rows.channels)
    fields = depth_to_space.fields(problem, rows, counts, weights)
    roles = gemm_base.roles(rows) | {"common.weights": "w"}
    shared = _shared_bytes(rows, tile)
    launch = launching.of_blocks(rows.operator, chosen, blocks, fields, roles, shared)
    reason = f"one GEMM of {rows.filters} rows, channels and taps, on tensor cores; weights as they are"
    return Plan(rows.operator, (launch,), (f"{reason}; {matrix.copied(rows, _INPUTS)}",))


# ---------------------------------------------------------------- variants


_KERNEL = Kernel("conv/gemm/depth_to_space_matrix.cu", NAME, "DepthToSpaceParams<int, 3>")


def variant(dtype: str, precision: str, tile: Tile) -> Variant:
    """Return the kernel of one tile."""
    return matrix.of_tile(_KERNEL, dtype, precision, tile)


def forms() -> Iterator[tuple[str, str, Tile]]:
    """Yield dtype, precision and tile of every kernel."""
    for dtype, precision in fragments.operands():
        for tile in TILES.get(fragments.arithmetic_of(dtype, precision).cuda, ()):
            yield dtype, precision, tile


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan can name."""
    for form in forms():
        yield variant(*form)
