"""Conv and ConvTranspose as implicit GEMM on the cores' own multipliers: the kernels that accept every problem.

Two launches, one that packs the weights and one that makes the tiles. Their structs begin with that of
``kernels_cu/conv/problem.cuh``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod

from gpuconv.cuda.build import structs
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm.base import Divisible, PackedWeights
from gpuconv.cuda.conv.problem import Problem, in_axes
from gpuconv.cuda.plan import launching, model
from gpuconv.cuda.plan.launch import Launch, Limits, Plan, Space, kept
from gpuconv.cuda.plan.numbers import RANK
from gpuconv.cuda.plan.offers import Candidate, Offer
from gpuconv.rules import dtypes

_STAGES = 3
_ROWWISE = 0.75  # of the multiplications' share, where the tap of every row must be found
NAME = "implicit GEMM"
_SQUARE = structs.constant("kSquare", "conv/gemm/pack_weights.cu")
_WIDE_RANK = 4  # of kernels with 64-bit indices for problems of this rank and lower ones


@dataclass(frozen=True, slots=True)
class Tile:
    """One candidate: the outputs of a block and of a thread, and the forms of the kernel that it comes in.

    Attributes
    ----------
    block_m, block_n, block_k, thread_m, thread_n : int
    blocks_per_sm : int
        That the kernel's registers leave room for.
    efficiency : float
        Share of multiplications among the main loop's instructions, of the form with one tap per slice if there is one.
    uniform : bool
        Comes in the form where every slice of K has one tap.
    rowwise : bool
        Comes in the form that finds the tap of every row of K.
    wide : bool
        Comes with 64-bit indices too.
    """

    block_m: int
    block_n: int
    block_k: int
    thread_m: int
    thread_n: int
    blocks_per_sm: int
    efficiency: float
    uniform: bool = True
    rowwise: bool = True
    wide: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.block_m // self.thread_m) * (self.block_n // self.thread_n)

    def shared_bytes(self, accumulator: str) -> int:
        """Return the bytes of the buffers in shared memory."""
        return _STAGES * self.block_k * (self.block_m + self.block_n) * dtypes.entry(accumulator).itemsize

    def __str__(self) -> str:
        return f"{self.block_m}x{self.block_n}x{self.block_k}"


# The candidates; of equal ones the first is taken.
_LARGE = Tile(128, 128, 16, 8, 8, 2, 0.86, rowwise=False)
_MIDDLE = Tile(64, 64, 16, 8, 4, 4, 0.78, wide=True)
_FLAT = Tile(16, 128, 16, 4, 4, 4, 0.3, uniform=False)
_MIDDLE_HALF = replace(_MIDDLE, efficiency=0.7)
_MIDDLE_DOUBLE = Tile(64, 64, 16, 8, 4, 2, 0.7, wide=True)
_FLAT_DOUBLE = Tile(16, 128, 16, 4, 4, 3, 0.3, uniform=False)
_TILES = {
    "float16": (_MIDDLE_HALF,),
    "bfloat16": (_MIDDLE_HALF,),
    "float32": (_LARGE, _MIDDLE, _FLAT),
    "float64": (_MIDDLE_DOUBLE, _FLAT_DOUBLE),
}
_DIVISIBLE = {"conv": (_LARGE, _MIDDLE), "conv_transpose": (_MIDDLE,)}


# ---------------------------------------------------------------- plans


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for every tile that the device has room for.

    Raises
    ------
    ArgumentError
        The problem needs more than 64-bit indices or more blocks than a grid has.
    """
    wide = problem.wide(problem.group * problem.rows * pitch(problem))
    problem = in_axes(problem, _WIDE_RANK) if wide else problem.lifted
    for tile in _TILES[problem.dtype]:
        room = _shared_bytes(problem, tile, wide) <= limits.shared_bytes_per_block
        uniform = tile.uniform and problem.channels > 0 and problem.channels % tile.block_k == 0
        if room and (uniform or tile.rowwise) and (tile.wide or not wide):
            kernel = variant(problem.operator, problem.dtype, wide, problem.rank, tile, uniform)
            make = partial(_plan, problem, tile, uniform, wide)
            yield Candidate(kernel.name, _seconds(problem, tile, uniform, limits), make)


def tiles(dtype: str) -> tuple[Tile, ...]:
    """Return the tiles that there are for elements of a type."""
    return _TILES[dtype]


def divisible(problem: Problem, limits: Limits) -> Iterator[Divisible]:
    """Yield the tiles that several blocks could make: those of float32 with one tap per slice."""
    if (problem.dtype, problem.precision) != ("float32", "ieee") or problem.rank > RANK or problem.rows == 0:
        return
    if problem.wide(problem.group * problem.rows * pitch(problem)):
        return
    problem = problem.lifted
    for tile in _DIVISIBLE[problem.operator]:
        if problem.channels % tile.block_k == 0:
            yield Divisible(
                variant=variant(problem.operator, "float32", False, RANK, tile, True),
                shared_bytes=_shared_bytes(problem, tile, False),
                tiles=_blocks(problem, tile),
                slices=problem.rows / prod(problem.phases) / tile.block_k,
                most_slices=problem.most_rows // tile.block_k,
                sums_bytes=tile.block_m * tile.block_n * 4,
                busy=partial(_busy, problem, tile, True, limits),
                packing=partial(packing, problem, False),
                plan=partial(_plan, problem, tile, True, False),
            )


def _busy(problem: Problem, tile: Tile, uniform: bool, limits: Limits, blocks: int, slices: float) -> float:
    """Model the seconds of the blocks' arithmetic or of their reading inputs."""
    rows = slices * tile.block_k
    multiplications = tile.block_m * tile.block_n * rows
    return max(
        model.arithmetic(blocks, multiplications, problem.accumulator, efficiency(tile, uniform), limits),
        model.gathering(blocks, tile.block_n * rows, problem.lines, limits),
    )


def pitch(problem: Problem) -> int:
    """Return M rounded up to 16 bytes of the accumulator's type."""
    vector = 16 // dtypes.sums(problem.dtype).itemsize
    return -(-problem.filters // vector) * vector


def _plan(problem: Problem, tile: Tile, uniform: bool, wide: bool) -> Plan:
    reasons = (tap_reason(problem, tile, uniform), _width_reason(wide))
    return with_packing(problem, wide, _gemm(problem, tile, uniform, wide), reasons)


def with_packing(problem: Problem, wide: bool, launch: Launch, reasons: tuple[str, ...]) -> Plan:
    """Return the plan of a launch on packed weights, after the one that packs them."""
    launches = (packing(problem, wide), launch) if problem.rows else (launch,)
    size = problem.group * problem.rows * pitch(problem) * dtypes.sums(problem.dtype).itemsize
    return Plan(problem.operator, launches, reasons, kept(Space.packed(size)))


def _seconds(problem: Problem, tile: Tile, uniform: bool, limits: Limits) -> float:
    busy = partial(_busy, problem, tile, uniform, limits)
    mean, most = (rows / tile.block_k for rows in (problem.rows / prod(problem.phases), problem.most_rows))
    busiest = max(busy(_blocks(problem, tile), mean), busy(1, most))
    memory = model.memory(problem.bytes_by_phase, limits)
    return model.overlapped(busiest, memory) + (limits.rates.launch if problem.rows else 0.0)


def efficiency(tile: Tile, uniform: bool) -> float:
    """Return a tile's share of multiplications: finding taps row by row takes its share of the instructions too."""
    return tile.efficiency if uniform or not tile.uniform else tile.efficiency * _ROWWISE


def _blocks(problem: Problem, tile: Tile) -> int:
    return prod(problem.tiles(tile.block_m, tile.block_n)) * prod(problem.phases) * problem.group


def _width_reason(wide: bool) -> str:
    return f"{64 if wide else 32}-bit indices: offsets and coordinates {'reach' if wide else 'are below'} 2**31"


def tap_reason(problem: Problem, tile: Tile, uniform: bool) -> str:
    """Say how the taps of a slice of K are found, and why."""
    if uniform:
        return f"one tap per slice of K: {tile.block_k} divides the {problem.channels} channels of a group"
    return f"taps found row by row: {problem.channels} channels per group, slices of {tile.block_k}"


def _gemm(problem: Problem, tile: Tile, uniform: bool, wide: bool) -> Launch:
    blocks = _blocks(problem, tile)
    chosen = variant(problem.operator, problem.dtype, wide, problem.rank, tile, uniform)
    fields = gemm_base.operands(problem, problem.tiles(tile.block_m, tile.block_n), packed_weights(problem))
    shared = _shared_bytes(problem, tile, wide)
    if _splits(problem.operator, problem.dtype, wide, problem.rank, tile, uniform):
        fields = {**fields, "splits": gemm_base.splits(blocks)}
    return launching.of_blocks(problem.operator, chosen, blocks, fields, gemm_base.roles(problem), shared)


def _shared_bytes(problem: Problem, tile: Tile, wide: bool) -> int:
    """Return the bytes of the slices, and of the taps of a phase."""
    taps = gemm_base.taps_bytes(problem.rank, wide) if problem.phases else 0
    return tile.shared_bytes(problem.accumulator) + taps


def packed_weights(problem: Problem) -> PackedWeights:
    """Return how the kernel finds them."""
    return PackedWeights(pitch(problem), problem.rows, problem.channels)


def packing(problem: Problem, wide: bool, tickets: int = 0) -> Launch:
    """Return the launch that packs the weights."""
    squares = (-(-pitch(problem) // _SQUARE), -(-problem.rows // _SQUARE))
    blocks = prod(squares) * problem.group
    chosen = packing_variant(problem.dtype, wide, problem.rank)
    fields = {
        "filters": problem.filters,
        "channels": problem.channels,
        "pitch": pitch(problem),
        "rows": problem.rows,
        **problem.w_steps,
        "w_stride": problem.w_strides[3:],
        "by_tap": prod(problem.taps),
        "taps": problem.taps,
        "m_squares": squares[0],
        "row_squares": squares[1],
    }
    return gemm_base.packing_launch(problem.operator, chosen, blocks, fields, tickets)


# ---------------------------------------------------------------- variants


_PACKING = Kernel("conv/gemm/pack_weights.cu", "pack_weights", "PackParams<{index}, {rank}>")
_KERNELS = {
    (operator, splits): Kernel(source, function, f"{struct}<{{index}}, {{rank}}>", name=operator)
    for (operator, splits), (source, function, struct) in gemm_base.SOURCES.items()
}


def variant(operator: str, dtype: str, wide: bool, rank: int, tile: Tile, uniform: bool) -> Variant:
    """Return the tile kernel of one operator."""
    kernel = _KERNELS[operator, _splits(operator, dtype, wide, rank, tile, uniform)]
    return kernel.over(
        *(dtype, rank, str(tile), "uniform" * uniform),
        types=types(dtype),
        sizes=(tile.block_m, tile.block_n, tile.block_k, tile.thread_m, tile.thread_n, uniform),
        wide=wide,
        threads=tile.threads,
        blocks_per_sm=tile.blocks_per_sm - wide,  # 64-bit numbers take more registers
    )


def _splits(operator: str, dtype: str, wide: bool, rank: int, tile: Tile, uniform: bool) -> bool:
    """Tell whether the kernel can also make a share of a tile."""
    return (dtype, wide, rank, uniform) == ("float32", False, RANK, True) and tile in _DIVISIBLE[operator]


def packing_variant(dtype: str, wide: bool, rank: int) -> Variant:
    """Return the kernel that packs weights."""
    return _PACKING.over(dtype, rank, types=types(dtype), wide=wide)


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan of one to four spatial axes can name."""
    for dtype, (rank, wide) in product(dtypes.CONV_DTYPES, ((RANK, False), (_WIDE_RANK, False), (_WIDE_RANK, True))):
        yield packing_variant(dtype, wide, rank)
        for tile, uniform in product(_TILES[dtype], (False, True)):
            if (tile.uniform if uniform else tile.rowwise) and (tile.wide or not wide):
                yield variant("conv", dtype, wide, rank, tile, uniform)
                yield variant("conv_transpose", dtype, wide, rank, tile, uniform)
