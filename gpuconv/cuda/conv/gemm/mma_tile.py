"""The tiles of implicit GEMM on tensor cores, how K is cut into slices for them, and what they cost, by the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod

from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import fragments
from gpuconv.cuda.conv.gemm.base import PackedWeights
from gpuconv.cuda.conv.gemm.fragments import FRAGMENT_BYTES, Arithmetic
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import model
from gpuconv.cuda.plan.launch import Limits
from gpuconv.cuda.plan.numbers import RANK

_STANDING = 16  # bytes of an entry of a table


@dataclass(frozen=True, slots=True)
class Form:
    """How a tile's inputs come into shared memory.

    Attributes
    ----------
    gather : {"vector", "scalar", "rowwise", "chunks", "halves"}
        16 bytes of channels that lie side by side, single elements, or single elements that each have their own tap;
        or 16 or 8 bytes of channels that each have their own tap.
    block_k, stages : int
        Rows of a slice of K, and slices in shared memory.
    issued : float
        Instructions of a warp in the main loop for every one that multiplies fragments.
    """

    gather: str
    block_k: int
    stages: int
    issued: float

    @property
    def rowwise(self) -> bool:
        """K is filled up to whole slices as a whole, not tap by tap."""
        return self.gather in ("rowwise", "chunks", "halves")

    @property
    def copied(self) -> int:
        """Bytes of channels that lie side by side and are copied at once, or 0: single elements are."""
        return {"vector": 16, "chunks": 16, "halves": 8}.get(self.gather, 0)

    def entries(self, rows: int, itemsize: int) -> int:
        """Return the entries of the table for so many rows of K: none for slices of one tap each."""
        return rows // max(1, self.copied // itemsize) if self.rowwise else 0


@dataclass(frozen=True, slots=True)
class Tile:
    """The outputs of a block and of a warp, and the forms that the kernel comes in.

    Attributes
    ----------
    block_m, block_n, warp_m, warp_n : int
    blocks_per_sm : int
        That the kernel's registers leave room for.
    forms : tuple of Form
    """

    block_m: int
    block_n: int
    warp_m: int
    warp_n: int
    blocks_per_sm: int
    forms: tuple[Form, ...]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.block_m // self.warp_m) * (self.block_n // self.warp_n) * 32


_SQUARE_OF_HALF = (
    Form("vector", 64, 3, 2.9),
    Form("chunks", 64, 3, 4.0),
    Form("halves", 64, 3, 5.1),
    Form("scalar", 32, 4, 6.4),
    Form("rowwise", 32, 4, 16.0),
)
_HALF = (
    Tile(128, 128, 64, 64, 2, (Form("vector", 64, 2, 1.7), Form("scalar", 32, 3, 3.1))),
    Tile(64, 256, 64, 64, 2, (Form("vector", 64, 2, 1.8), Form("chunks", 64, 2, 2.7))),
    Tile(64, 64, 32, 32, 4, _SQUARE_OF_HALF),
    Tile(16, 128, 16, 32, 4, (Form("vector", 64, 3, 5.2), Form("chunks", 64, 3, 8.8), Form("scalar", 32, 4, 17.0))),
)
_SQUARE_OF_SINGLE = (
    Form("vector", 32, 3, 4.9),
    Form("chunks", 32, 3, 6.0),
    Form("scalar", 16, 4, 6.7),
    Form("rowwise", 16, 4, 11.2),
)
_SINGLE = (
    Tile(128, 128, 64, 64, 2, (Form("scalar", 16, 3, 3.3),)),
    Tile(64, 256, 64, 64, 2, (Form("vector", 32, 2, 2.8),)),
    Tile(64, 64, 32, 32, 4, _SQUARE_OF_SINGLE),
)
_SQUARE_OF_SPLIT = (
    Form("vector", 16, 4, 3.2),
    Form("chunks", 16, 4, 3.5),
    Form("scalar", 16, 4, 3.4),
    Form("rowwise", 16, 4, 4.8),
)
_SPLIT = (
    Tile(128, 128, 64, 64, 2, (Form("scalar", 16, 3, 2.0),)),
    Tile(64, 64, 32, 32, 3, _SQUARE_OF_SPLIT),
)
_DOUBLE = (Tile(64, 64, 32, 32, 3, (Form("scalar", 16, 3, 16.5), Form("rowwise", 16, 3, 25.5))),)
TILES = {"HalfProducts": _HALF, "Bfloat16Products": _HALF, "Tf32Products": _SINGLE, "Tf32x3Products": _SPLIT}
TILES["DoubleProducts"] = _DOUBLE


def kernels(arithmetic: Arithmetic) -> Iterator[tuple[Tile, Form]]:
    """Yield every form of every tile."""
    for tile in TILES[arithmetic.cuda]:
        for form in tile.forms:
            yield tile, form


def divisible_kernels(arithmetic: Arithmetic) -> Iterator[tuple[Tile, Form]]:
    """Yield the square tiles; in 3xTF32, whose multiplications take all the time, large ones are no quicker."""
    for tile, form in kernels(arithmetic):
        if divisible(arithmetic, tile, form):
            yield tile, form


def divisible(arithmetic: Arithmetic, tile: Tile, form: Form) -> bool:
    """Tell whether several blocks could make a tile."""
    if (tile.block_m, tile.block_n) == (64, 64):
        return form.gather not in ("rowwise", "halves")
    return (tile.block_m, tile.block_n) == (128, 128) and form.gather == "scalar" and arithmetic.products == 1


# ---------------------------------------------------------------- K and the weights


def blocks(problem: Problem, tile: Tile) -> int:
    """Return the tiles of all groups and phases."""
    return prod(problem.tiles(tile.block_m, tile.block_n)) * prod(problem.phases) * problem.group


def channels_of_tap(problem: Problem, form: Form) -> int:
    """Rows of the GEMM from one tap to the next: whole slices, or no more than there are channels."""
    return problem.channels if form.rowwise else -(-problem.channels // form.block_k) * form.block_k


def slices(problem: Problem, form: Form) -> int:
    """Return the slices of K, of all phases together."""
    return -(-prod(problem.taps) * channels_of_tap(problem, form) // form.block_k)


def most_slices(problem: Problem, form: Form) -> int:
    """Slices of the phase whose outputs meet the most taps."""
    if form.rowwise:
        return slices(problem, form)
    return problem.most_rows // problem.channels * (channels_of_tap(problem, form) // form.block_k)


def depths(problem: Problem, form: Form) -> int:
    """Fragments along K of a slice."""
    return form.block_k * problem.itemsize // 32


def columns(problem: Problem, tile: Tile) -> int:
    """Fragments along M, in whole tiles."""
    return problem.tiles(tile.block_m, tile.block_n)[0] * tile.block_m // 16


def packed_weights(problem: Problem, tile: Tile, form: Form) -> PackedWeights:
    """Slices, their bytes from one to the next."""
    parts = columns(problem, tile) * depths(problem, form) * fragments.arithmetic(problem).parts
    pitch = parts * FRAGMENT_BYTES
    return PackedWeights(pitch, slices(problem, form), channels_of_tap(problem, form))


def packed_bytes(problem: Problem, tile: Tile, form: Form) -> int:
    """Return the bytes of all packed weights."""
    weights = packed_weights(problem, tile, form)
    return problem.group * weights.all_rows * weights.pitch


def shared_bytes(problem: Problem, tile: Tile, form: Form) -> int:
    """Return the bytes of the slices, the table of pixels, that of rows, and the taps of a phase."""
    size = problem.itemsize
    weights = tile.block_m * form.block_k * size * fragments.arithmetic(problem).parts
    pixelwise = size == 2 or form.copied > 0
    inputs = tile.block_n * form.block_k * size + (0 if pixelwise else 32 * form.block_k)
    entries = form.entries(slices(problem, form) * form.block_k, size)
    taps = gemm_base.taps_bytes(RANK) if problem.phases else 0
    return form.stages * (weights + inputs) + (tile.block_n + entries) * _STANDING + taps


# ---------------------------------------------------------------- time


def seconds(problem: Problem, tile: Tile, form: Form, limits: Limits) -> float:
    """Model the time of both launches, one block to each tile."""
    busy = busy_with(problem, tile, form, limits)
    mean = slices(problem, form) / prod(problem.phases)
    busiest = max(busy(blocks(problem, tile), mean), busy(1, most_slices(problem, form)))
    return model.overlapped(busiest, model.memory(problem.bytes_by_phase, limits)) + limits.rates.launch


def besides(problem: Problem, tile: Tile, form: Form) -> float:
    """Cycles of a multiprocessor for all else that goes with one multiplication; four warps issue at a time."""
    return max(form.issued / 4, _wavefronts(problem, tile, form))


def _wavefronts(problem: Problem, tile: Tile, form: Form) -> float:
    """128 bytes that go to or from shared memory, or to L1, for every instruction that multiplies fragments."""
    arithmetic = fragments.arithmetic(problem)
    pixels, elements = tile.block_n / 8, 32 / problem.itemsize  # fragments; rows of K of each
    loaded = (4 * arithmetic.parts * tile.warp_m / 16 + 2 * tile.warp_n / 8) / (tile.warp_m / 16 * tile.warp_n / 8)
    filled = (4 * arithmetic.parts * tile.block_m / 16 + 2 * pixels) / (tile.block_m / 16 * pixels)
    gathered = 0.0 if form.copied else elements / 4 / (tile.block_m / 16) * problem.lines  # of 32 pixels
    depths = 4 if arithmetic.cuda == "DoubleProducts" else 1  # of one instruction
    return (loaded + filled + gathered) * depths / arithmetic.products


def busy_with(problem: Problem, tile: Tile, form: Form, limits: Limits) -> Callable[[int, float], float]:
    """Return what takes a number of blocks and the slices of each, and returns the modelled seconds of these."""
    arithmetic = fragments.arithmetic(problem)
    slice_of_tile = tile.block_m * tile.block_n * form.block_k * arithmetic.products
    return partial(busy, slice_of_tile, arithmetic.lanes, besides(problem, tile, form), limits)


def busy(slice_of_tile: float, lanes: int, besides: float, limits: Limits, blocks: int, slices: float) -> float:
    """Return the modelled seconds of so many blocks with so many slices each."""
    return model.tensor(blocks, slices * slice_of_tile, lanes, besides, limits)
