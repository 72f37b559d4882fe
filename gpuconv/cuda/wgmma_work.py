"""What the blocks of convolution by wgmma do one after the other, and what it costs, by the model."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gpuconv.cuda import fragments, model
from gpuconv.cuda.correlation import Problem
from gpuconv.cuda.limits import nearest
from gpuconv.cuda.plan import Limits
from gpuconv.cuda.wgmma_maps import Source, packed_bytes, x_last_bytes
from gpuconv.cuda.wgmma_tile import SLICE_BYTES, Tile

_CACHED = 50  # bytes of the L2 cache that a multiprocessor's copies get per clock; assumed
_WRITTEN = 50  # cycles in which 256 threads write a sum each, one by one; by the count of instructions in PTX
_IN_VECTORS = 0.5  # of them where a thread writes several at once; likewise
_BEGINNING = 1500  # cycles from a kernel's start until its first product; assumed


@dataclass(frozen=True, slots=True)
class Work:
    """A problem, the way to its arrays, the tile, and how its tiles are dealt out.

    Attributes
    ----------
    source : Source
    tile : Tile
    splits : int
        Of each tile that is divided.
    divided : int
        The last tiles, those that are divided.
    """

    source: Source
    tile: Tile
    splits: int = 1
    divided: int = 0

    @property
    def tiles(self) -> int:
        """Of all groups and phases."""
        problem = self.source.problem
        return prod(self.source.tiles(self.tile)) * prod(problem.phases) * problem.group

    @property
    def whole(self) -> int:
        """Tiles that one block makes."""
        return self.tiles - self.divided

    @property
    def items(self) -> int:
        """Whole tiles, and shares of divided ones."""
        return self.whole + self.divided * self.splits

    @property
    def ticket_bytes(self) -> int:
        """Of a ticket for each divided tile."""
        return -(-self.divided // 4) * 16

    @property
    def sums_bytes(self) -> int:
        """Of a tile's sums."""
        return self.tile.block_m * self.tile.block_n * 4

    @property
    def workspace_bytes(self) -> int:
        """Of the tickets and of the sums of all shares."""
        return self.ticket_bytes + self.divided * self.splits * self.sums_bytes

    @property
    def most_slices(self) -> int:
        """Slices of K of a tile of the phase that meets the most taps."""
        return prod(self.source.problem.most_taps) * self.source.channel_slices * self.source.products

    @property
    def slices(self) -> float:
        """Slices of K of a tile, the mean of those of all phases."""
        problem = self.source.problem
        all_taps = prod(problem.taps) / prod(problem.phases)
        return all_taps * self.source.channel_slices * self.source.products


# ---------------------------------------------------------------- time


def seconds(work: Work, limits: Limits) -> float:
    """Model the time of all launches."""
    problem, size = work.source.problem, work.source.problem.itemsize
    copied, packed = x_last_bytes(work.source), packed_bytes(work.source)
    x, w = prod(problem.x_shape) * size, problem.group * problem.filters * problem.rows * size
    moved = problem.bytes_by_phase + max(0, copied - x) + max(0, packed - w)
    found = model.overlapped(_busy(work, limits), model.memory(moved, limits))
    for before, after in ((x, copied), (w, packed)):
        if after:
            found += model.memory(before + after, limits) + model.LAUNCH
    return found + (_adding(work, limits) if work.divided else 0)


def _busy(work: Work, limits: Limits) -> float:
    """Return the seconds of the busiest multiprocessor."""
    whole = -(-work.whole // limits.multiprocessors)
    shares = -(-work.divided * work.splits // limits.multiprocessors)
    share = -(-work.most_slices // work.splits)
    cycles = _cycles(work, whole, work.slices, limits)
    if shares:
        cycles += _cycles(work, shares, share * work.slices / work.most_slices, limits)
    longest = _cycles(work, 1, work.most_slices if work.whole else share, limits)
    return (max(cycles, longest) + _BEGINNING) / nearest(limits.architecture).clock


def _cycles(work: Work, tiles: int, slices: float, limits: Limits) -> float:
    """Return the cycles of so many tiles of a block: while one is written, the next is multiplied, if in turns."""
    if tiles == 0:
        return 0
    products, writing = slices * _slice(work, limits), _writing(work)
    if not work.tile.turns:
        return tiles * (products + writing)
    return tiles * max(products, (products + writing) / 2) + writing


def _slice(work: Work, limits: Limits) -> float:
    """Return the cycles of a slice: of its products, or of its way from the L2 cache."""
    tile, lanes = work.tile, fragments.arithmetic(work.source.problem).lanes
    products = tile.block_m * tile.block_n * work.source.block_k
    rate = model.WGMMA * nearest(limits.architecture).tensor_lanes[lanes]
    return max(products / rate, (tile.block_m + tile.block_n) * SLICE_BYTES / _CACHED)


def _writing(work: Work) -> float:
    """Return the cycles in which one warpgroup, or both together, write a tile."""
    cycles = work.tile.block_m * work.tile.block_n / 256 * _WRITTEN * (2 if work.tile.turns else 1)
    return cycles * (_IN_VECTORS if _in_vectors(work.source.problem) else 1)


def _in_vectors(problem: Problem) -> bool:
    """Tell whether neighbouring pixels of y, or channels, make whole vectors."""
    batch, channel, *_ = problem.y_strides
    vector = 16 // problem.itemsize
    if channel == 1:
        return problem.filters % 16 == 0 and not any(step % vector for step in (batch, *problem.y_column_strides))
    neighbours = problem.y_column_strides == tuple(prod(problem.columns[k + 1 :]) for k in range(problem.rank))
    return neighbours and prod(problem.columns) % 4 == 0 and batch % 4 == channel % 4 == 0


def _adding(work: Work, limits: Limits) -> float:
    """Return the seconds that adding up shares takes, and the launch for it where none comes before."""
    left = -(-work.divided * work.splits // limits.multiprocessors)
    seconds = model.adding_up((left + work.splits) * work.sums_bytes, left, limits)
    alone = work.source.form != "copied" and not work.source.packed
    return seconds + (model.LAUNCH if alone else 0)
