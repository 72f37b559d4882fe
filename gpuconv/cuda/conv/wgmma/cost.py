"""Cost model of the wgmma kernels: how tiles are scheduled on persistent blocks, and the predicted time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, prod
from typing import NamedTuple

from gpuconv.cuda.conv.gemm import fragments, split
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.conv.wgmma.pixels import PixelStrips
from gpuconv.cuda.conv.wgmma.sources import SECTOR, Source
from gpuconv.cuda.conv.wgmma.strips import Strips
from gpuconv.cuda.conv.wgmma.tiles import SLICE_BYTES, WgmmaTile
from gpuconv.cuda.plan import model
from gpuconv.cuda.plan.limits import Limits, nearest

# cycles for 256 threads to store one accumulator each, element by element (from the PTX instruction count)
_WRITTEN = 50
_IN_VECTORS = 0.5  # factor on that if a thread stores vectors (likewise)
_BY_SECTORS = 0.64  # factor if a warp's store fills sectors of several lines, one line per cycle (likewise)
_ANYWHERE = 1.25  # sectors touched per sector filled by 128-byte runs that start anywhere
_BANKS = 128  # shared-memory bandwidth in bytes per cycle
_BEGINNING = 1500  # cycles from kernel start to the first product (assumed)


@dataclass(frozen=True)
class WgmmaWork:
    """A problem with its source of x and w, its tile, its strips, and its split-K schedule."""

    source: Source
    tile: WgmmaTile
    # the strips of x that several taps share; None if each tap fetches its columns separately
    strips: Strips | PixelStrips | None = None
    splits: int = 1  # splits per split tile
    divided: int = 0  # number of split tiles; they are the last ones

    @cached_property
    def counts(self) -> tuple[int, int]:
        """Tiles along M and along N, for one group and phase."""
        m_tiles, n_tiles = self.source.problem.tiles(self.tile.block_m, self.tile.block_n)
        return m_tiles, n_tiles if self.strips is None else self.source.problem.batch * prod(self.strips.extent)

    @cached_property
    def tiles(self) -> int:
        """Tiles over all groups and phases."""
        problem = self.source.problem
        return prod(self.counts) * prod(problem.phases) * problem.group

    @property
    def whole(self) -> int:
        """Tiles computed by a single block."""
        return self.tiles - self.divided

    @property
    def items(self) -> int:
        """Work items: whole tiles, and shares of split ones."""
        return self.whole + self.divided * self.splits

    @property
    def sums_bytes(self) -> int:
        """Bytes of partial sums per tile and split."""
        return self.tile.block_m * self.tile.block_n * 4

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the workspace: tickets and all partial sums."""
        return split.ticket_bytes(self.divided) + self.divided * self.splits * self.sums_bytes

    @cached_property
    def inner(self) -> int:
        """Slices of K per step: the taps that share a strip, or 1."""
        return 1 if self.strips is None else self.strips.inner

    @property
    def strip_bytes(self) -> float:
        """Bytes of a strip per tap that shares it."""
        return 0 if self.strips is None else self.strips.bytes / self.strips.inner

    @property
    def resident(self) -> bool:
        """Whether weights stay in shared memory for all tiles; not with split-K, where shares need different ones."""
        return isinstance(self.strips, Strips) and self.strips.resident and not self.divided

    @property
    def apart(self) -> int:
        """Steps per slice of channels: one per 3xTF32 product, unless the products share a strip."""
        return 1 if self.source.in_registers else self.source.products

    @cached_property
    def most_steps(self) -> int:
        """Steps along K of the largest phase, which splits divide."""
        return prod(self.source.problem.most_taps) // self.inner * self.source.channel_slices * self.apart

    @cached_property
    def steps(self) -> float:
        """Steps along K per tile, mean over phases."""
        problem = self.source.problem
        all_taps = prod(problem.taps) / prod(problem.phases)
        return all_taps / self.inner * self.source.channel_slices * self.apart


# ---------------------------------------------------------------- cost


def seconds(work: WgmmaWork, limits: Limits) -> float:
    """Return the predicted seconds of all launches."""
    return _in_splits(work, work.splits, _costs(work, limits), limits)


def in_best_splits(work: WgmmaWork, counts: Sequence[int], limits: Limits) -> WgmmaWork:
    """Return the work with the number of splits that is predicted to be fastest; on a tie, the first of ``counts``."""
    costs = _costs(work, limits)
    return replace(work, splits=min(counts, key=lambda count: _in_splits(work, count, costs, limits)))


class _Costs(NamedTuple):
    """Costs that do not depend on the number of splits."""

    step: float  # cycles per step along K
    writing: float  # cycles for one warpgroup, or both together, to write a tile
    memory: float  # seconds of DRAM traffic
    before: tuple[float, ...]  # seconds of each launch before the kernel


def _costs(work: WgmmaWork, limits: Limits) -> _Costs:
    """Return the costs that do not depend on the number of splits."""
    problem, size = work.source.problem, work.source.problem.itemsize
    copied, packed = work.source.x_last_bytes, work.source.packed_bytes
    x, w = prod(problem.x_shape) * size, problem.group * problem.filters * problem.rows * size
    moved = problem.bytes_by_phase + max(0, copied - x) + max(0, packed - w)
    before = tuple(
        model.memory(read + written, limits) + limits.rates.launch
        for read, written in ((x, copied), (w, packed))
        if written
    )
    return _Costs(_step(work, limits), _writing(work), model.memory(moved, limits), before)


def _in_splits(work: WgmmaWork, splits: int, costs: _Costs, limits: Limits) -> float:
    """Return the predicted seconds of all launches, with ``splits`` splits per split tile."""
    seconds = model.overlapped(_busy(work, splits, costs, limits), costs.memory)
    for launch in costs.before:
        seconds += launch
    return seconds + (_adding(work, splits, limits) if work.divided else 0)


def _busy(work: WgmmaWork, splits: int, costs: _Costs, limits: Limits) -> float:
    """Return the seconds of the busiest SM."""
    rounds = -(-work.whole // limits.multiprocessors)
    shares = -(-work.divided * splits // limits.multiprocessors)
    share = -(-work.most_steps // splits)
    cycles = _cycles(work, rounds, work.steps, costs)
    if shares:
        cycles += _cycles(work, shares, share * work.steps / work.most_steps, costs)
    longest = _cycles(work, 1, work.most_steps if work.whole else share, costs)
    return (max(cycles, longest) + _BEGINNING) / nearest(limits.architecture).clock


def _cycles(work: WgmmaWork, tiles: int, steps: float, costs: _Costs) -> float:
    """Return the cycles of ``tiles`` tiles of one block; with ping-pong, writing overlaps the next tile's products."""
    if tiles == 0:
        return 0
    products, writing = steps * costs.step, costs.writing
    if not work.tile.ping_pong:
        return tiles * (products + writing)
    return tiles * max(products, (products + writing) / 2) + writing


def _step(work: WgmmaWork, limits: Limits) -> float:
    """Return the cycles per step: the largest of tensor-core, L2 and shared-memory time."""
    tile, lanes = work.tile, fragments.arithmetic(work.source.problem).lanes
    together = work.source.products // work.apart
    products = work.inner * tile.block_m * tile.block_n * work.source.block_k * together * work.source.filled
    rate = limits.rates.wgmma * nearest(limits.architecture).tensor_lanes[lanes]
    return max(
        products / rate, (_w_bytes(work) + _x_bytes(work)) / limits.rates.cached, _shared_bytes(work, together) / _BANKS
    )


def _shared_bytes(work: WgmmaWork, together: int) -> float:
    """Return the shared-memory bytes that a step reads if pixels pass through registers, a possible bottleneck."""
    if not work.source.in_registers:
        return 0
    tile = work.tile
    again = gcd(work.source.seen.column_strides[-1], 8)  # bank-conflict degree of pixels that are a stride apart
    weights = tile.block_n // 64 * tile.block_m * together
    return work.inner * SLICE_BYTES * work.source.filled * (weights + tile.block_n * work.source.parts * again)


def _w_bytes(work: WgmmaWork) -> float:
    """Return the bytes of w per step, as L2 traffic."""
    if work.resident:
        return 0
    parts = work.source.parts if work.source.in_registers else 1
    return work.inner * parts * work.tile.block_m * work.source.slice_bytes * work.source.w_fetched


def _x_bytes(work: WgmmaWork) -> float:
    """Return the bytes of x per step, as L2 traffic."""
    fetched = work.source.x_fetched
    if work.strips is None:
        return work.tile.block_n * SLICE_BYTES * fetched
    anywhere = work.source.form == "rows" and work.source.seen.taps[-1] > 1
    if isinstance(work.strips, PixelStrips):
        row = work.strips.box[1] * 4
        return work.strips.bytes * fetched * ((row + SECTOR) / row if anywhere else 1)
    return work.strips.bytes * fetched * (_ANYWHERE if anywhere else 1)


def _writing(work: WgmmaWork) -> float:
    """Return the cycles for one warpgroup, or both together, to write a tile."""
    cycles = work.tile.block_m * work.tile.block_n / 256 * _WRITTEN * (2 if work.tile.ping_pong else 1)
    if work.source.in_registers:
        return cycles * _BY_SECTORS
    return cycles * (_IN_VECTORS if _in_vectors(work.source.seen, work.source.in_strips) else 1)


def _in_vectors(problem: Problem, in_strips: bool) -> bool:
    """Return whether y is written as vectors: of adjacent pixels (within a row, for strips) or of channels."""
    batch, channel, *_ = problem.y_strides
    vector = 16 // problem.itemsize
    if channel == 1:
        return problem.filters % 16 == 0 and not any(step % vector for step in (batch, *problem.y_column_strides))
    if in_strips:
        *apart, neighbours_at = problem.y_column_strides
        aligned = not any(step % vector for step in (problem.columns[-1], batch, channel, *apart))
        return neighbours_at == 1 and aligned
    neighbours = problem.y_column_strides == tuple(prod(problem.columns[k + 1 :]) for k in range(problem.rank))
    return neighbours and prod(problem.columns) % 4 == 0 and batch % 4 == channel % 4 == 0


def _adding(work: WgmmaWork, splits: int, limits: Limits) -> float:
    """Return the seconds of the split-K reduction, with its own launch if no launch precedes the kernel."""
    split_blocks = -(-work.divided * splits // limits.multiprocessors)
    seconds = model.adding_up((split_blocks + splits) * work.sums_bytes, split_blocks, limits)
    needs_launch = work.source.form != "copied" and not work.source.packed
    return seconds + (limits.rates.launch if needs_launch else 0)
