"""Weight gradient by FFMA on CUDA cores: the fallback that accepts every problem.

A GEMM with M = filters, N = (channel, tap), K = output pixels. K is split into parts, one block each (split-K); a
second launch adds the parts. Any rank and strides, 64-bit indices. Groups with few filters have register-tiled forms
(``weight_grad/plain.cu``, ``weight_grad/few.cu``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.passes import sums
from gpuconv.cuda.plan import Candidate, Launch, Limits, Offer, Plan, model, numbers, strided
from gpuconv.cuda.weight_grad.problem import OPERATOR, WeightGradProblem, pixels_of_part
from gpuconv.rules import dtypes

NAME = "plain tiles"
_THREADS = 128
_AHEAD = (3, 4)  # spatial axes of the kernels that are built ahead, with 32-bit and with 64-bit indices


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True, slots=True)
class PlainTile:
    """A tile: a block's filters × columns (channel, tap), its pixels per slice, and instructions per product (SASS)."""

    name: str
    filters: int
    columns: int
    slice: int
    instructions: float
    blocks_per_sm: int
    wide: bool


_LARGE = PlainTile("64x64", 64, 64, 32, 1.9, 3, wide=True)
_TILES = (_LARGE, PlainTile("few4", 4, 12, 128, 6.2, 3, wide=False), PlainTile("few1", 1, 12, 128, 18.8, 4, wide=False))


def _grid(problem: WeightGradProblem, tile: PlainTile) -> tuple[int, int]:
    """Return the tiles along M and along N, for one group."""
    return -(-problem.filters // tile.filters), -(-problem.columns // tile.columns)


def _parts(problem: WeightGradProblem, tile: PlainTile, limits: Limits) -> int:
    """Return the number of parts that the pixels are split into, enough blocks for all SMs."""
    blocks = prod(_grid(problem, tile)) * problem.geometry.group
    wanted = -(-2 * tile.blocks_per_sm * limits.multiprocessors // blocks)
    room = sums.most_parts(prod(problem.geometry.w_shape), problem.dtype)
    slices = -(-problem.pixels // tile.slice)
    parts = max(1, min(wanted, room, slices))
    return -(-slices // -(-slices // parts)) if slices else 1


# ---------------------------------------------------------------- cost


def _seconds(problem: WeightGradProblem, tile: PlainTile, parts: int, limits: Limits) -> float:
    """Model the seconds of all launches of this candidate."""
    blocks = prod(_grid(problem, tile)) * problem.geometry.group * parts
    products = tile.filters * tile.columns * pixels_of_part(problem.pixels, tile.slice, parts)
    rounds = numbers.whole(blocks, limits.multiprocessors)
    accumulator = dtypes.entry(problem.dtype).accumulator
    busy = max(
        model.instructions(rounds * products * tile.instructions, limits),
        model.arithmetic(blocks, products, accumulator, 1.0, limits),
    )
    sums_bytes = 2 * sums.workspace_bytes(parts, prod(problem.geometry.w_shape), problem.dtype)
    return model.overlapped(busy, model.memory(problem.bytes + sums_bytes, limits)) + limits.rates.launch


# ---------------------------------------------------------------- offers


def offers(problem: WeightGradProblem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for each tile."""
    wide = problem.wide()
    for tile in _TILES:
        if tile.wide or not (wide or len(problem.geometry.kernel_shape) > _AHEAD[0]):
            parts = _parts(problem, tile, limits)
            name = variant(problem.dtype, wide, _axes(problem, wide), tile).name
            seconds = _seconds(problem, tile, parts, limits)
            yield Candidate(name, seconds, partial(_plan, problem, tile, parts, wide))


# ---------------------------------------------------------------- launch


def _axes(problem: WeightGradProblem, wide: bool) -> int:
    """Return the kernel's number of spatial axes."""
    return strided.axes(len(problem.geometry.kernel_shape), wide, _AHEAD)


def _plan(problem: WeightGradProblem, tile: PlainTile, parts: int, wide: bool) -> Plan:
    """Return the plan of this candidate."""
    g, rank = problem.geometry, _axes(problem, wide)
    tiles = _grid(problem, tile)
    blocks = prod(tiles) * g.group * parts
    kernel = variant(problem.dtype, wide, rank, tile)
    pixels = pixels_of_part(problem.pixels, tile.slice, parts)
    fields = problem.fields(rank, tiles, pixels)
    x, dy = problem.roles
    roles = {"x": x, "dy": dy, "sums": "workspace"}
    launch = Launch.of_blocks(OPERATOR, kernel, blocks, fields, roles)
    reason = f"{problem.pixels} pixels in {parts} parts of {pixels}"
    products = 1 if problem.result == problem.dtype else g.w_shape[-1]
    shape = g.w_shape if products == 1 else g.w_shape[:-1]
    return sums.plan(OPERATOR, launch, parts, shape, problem.w_strides, problem.result, reason, products)


_KERNEL = Kernel(
    "weight_grad/plain.cu", "conv_weight_grad", "WeightGradParams<{index}, {rank}>", _THREADS, name="conv_weight_grad"
)
_FEW = replace(_KERNEL, source="weight_grad/few.cu", function="conv_weight_grad_few")


def variant(dtype: str, wide: bool, rank: int, tile: PlainTile) -> Variant:
    """Return the kernel variant that computes the parts' sums."""
    kernel, sizes = (_KERNEL, ()) if tile is _LARGE else (_FEW, (tile.filters,))
    blocks = tile.blocks_per_sm - wide - (dtype == "float64")  # 64-bit indices and float64 take more registers
    return kernel.over(dtype, rank, tile.name, types=types(dtype), sizes=sizes, wide=wide, blocks_per_sm=blocks)


def variants() -> Iterator[Variant]:
    """Yield the variants that are built ahead; those for more axes are compiled on first use."""
    for dtype in dtypes.CONV_DTYPES:
        for tile in _TILES:
            yield variant(dtype, False, _AHEAD[0], tile)
        for wide in (False, True):
            yield variant(dtype, wide, _AHEAD[1], _LARGE)
