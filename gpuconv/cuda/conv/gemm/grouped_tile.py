"""Tile selection for ``conv/gemm/grouped.cu``: how many groups and outputs a block takes, and what that costs.

A *band* is the part of x, with its halo, that a block stages in shared memory for one tile. Axes are in the kernel's
order, three of them; the outermost runs through all images of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import gcd, prod
from operator import itemgetter

from gpuconv.cuda.conv.gemm.fragments import FRAGMENT_BYTES, Arithmetic
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import Limits, model, numbers
from gpuconv.rules.geometry import Ints

# ---------------------------------------------------------------- kernel forms and their work


_GAP = 16  # padding in bytes between pixels of a band, and between the weights of taps
_TAP_BYTES = 8  # bytes per entry of the tap table
_TAPS_AT_ONCE = 9  # taps whose weight loads are in flight together


@dataclass(frozen=True, slots=True)
class GroupedForm:
    """A kernel variant: filters per block, columns per warp, warps per block, occupancy allowed by registers."""

    block_m: int
    warp_n: int
    warps: int
    blocks_per_sm: int

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 32 * self.warps

    @property
    def columns(self) -> int:
        """Most columns per tile."""
        return self.warps * self.warp_n

    def __str__(self) -> str:
        return f"{self.block_m}x{self.columns}"


_FORMS = (GroupedForm(16, 64, 8, 2), GroupedForm(32, 64, 8, 2))


def forms(arithmetic: Arithmetic) -> tuple[GroupedForm, ...]:
    """Return the forms for an arithmetic; weights in two parts leave registers for the small one only."""
    return _FORMS if arithmetic.parts == 1 else _FORMS[:1]


@dataclass(frozen=True)
class GroupedWork:
    """A problem with its three axes in the kernel's order, and the groups joined per block."""

    problem: Problem
    arithmetic: Arithmetic
    form: GroupedForm
    joined_groups: int  # groups joined per block

    @cached_property
    def itemsize(self) -> int:
        """Bytes per element of x, w and y."""
        return self.problem.itemsize

    @property
    def channels(self) -> int:
        """Channels per block: those of the joined groups."""
        return self.joined_groups * self.problem.channels

    @cached_property
    def filters(self) -> int:
        """Filters of the joined groups."""
        return self.joined_groups * self.problem.filters

    @cached_property
    def depths(self) -> int:
        """Fragments along K per tap."""
        return -(-self.channels * self.itemsize // 32)

    @cached_property
    def chunks(self) -> bool:
        """Whether x has contiguous channels in aligned 16-byte chunks at every pixel, given an aligned base address."""
        batch, channel, *spatial = self.problem.x_strides
        return channel == 1 and all(step * self.itemsize % 16 == 0 for step in (batch, *spatial, self.channels))

    @cached_property
    def m_tiles(self) -> int:
        """Blocks among which the filters of the joined groups are divided."""
        return -(-self.filters // self.form.block_m)

    @cached_property
    def blocks_per_tile_block(self) -> int:
        """Blocks of the launch per block along the tiles: filter tiles × phases × joined groups."""
        return self.m_tiles * prod(self.problem.phases) * (self.problem.group // self.joined_groups)

    @cached_property
    def pitch(self) -> int:
        """Bytes between adjacent pixels of a band in shared memory."""
        return self.depths * 32 + _GAP

    @cached_property
    def reaches(self) -> Ints:
        """Per axis, the distance from the first to the last input of a column, in the phase with the most taps."""
        met = zip(self.problem.most_taps, self.problem.axes, strict=True)
        return tuple((taps - 1) * (axis.dilation // gcd(axis.stride, axis.dilation)) for taps, axis in met)

    @cached_property
    def image_inputs(self) -> int:
        """Inputs of one image along the outermost axis, including the padding that columns read."""
        return (self.problem.columns[0] - 1) * self.problem.column_strides[0] + self.reaches[0] + 1

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of shared memory for the weight fragments and the tap table."""
        taps = prod(self.problem.taps)
        fragments = self.depths * self.form.block_m // 16 * FRAGMENT_BYTES * self.arithmetic.parts + _GAP
        return -(-taps * _TAP_BYTES // 16) * 16 + taps * fragments

    @cached_property
    def products(self) -> int:
        """Tensor-core products per step of the main loop, per warp."""
        return self.form.block_m * self.form.warp_n * (32 // self.itemsize) * self.arithmetic.products

    @cached_property
    def weight_waits(self) -> int:
        """Number of load latencies that a thread waits for while loading weights."""
        pairs = min(self.form.block_m, self.filters) * self.problem.channels
        return -(-pairs // (2 * self.form.threads)) * -(-prod(self.problem.taps) // _TAPS_AT_ONCE)

    @cached_property
    def written_in_chunks(self) -> bool:
        """Whether y has contiguous channels in aligned 16-byte chunks at every pixel, given an aligned base address."""
        problem = self.problem
        batch, channel, *spatial = problem.y_strides
        steps = [batch, *(step for step, n in zip(spatial, problem.y_shape[2:], strict=True) if n > 1)]
        return channel == 1 and self.filters % 16 == 0 and all(step * self.itemsize % 16 == 0 for step in steps)

    @cached_property
    def written_in_pairs(self) -> tuple[bool, ...]:
        """Per axis, whether pairs of columns are contiguous and aligned in y, for tiles with an even number of them."""
        problem = self.problem
        batch, channel, *spatial = problem.y_strides

        def paired(axis: int) -> bool:
            """Return whether pairs along this axis are contiguous and aligned."""
            others = (problem.columns[axis], channel, batch, *spatial[:axis], *spatial[axis + 1 :])
            return spatial[axis] == 1 and prod(problem.strides) == 1 and not any(number % 2 for number in others)

        return tuple(map(paired, range(len(spatial))))

    @property
    def fragments(self) -> float:
        """Weight fragments of mma per tap and group of the Conv: few if many groups share a tile."""
        return self.depths * self.m_tiles * self.form.block_m / 16 / self.joined_groups


# ---------------------------------------------------------------- tiles, their shared memory and their cost


_PIECE = 16 * 40 * 4  # bytes of shared memory through which a warp passes its accumulators, fragment by fragment
_WAIT = 800  # cycles of global load latency (assumed)
_ISSUED = 4  # warp instructions that an SM issues per cycle
# Warp instructions, counted in SASS. In order: a main-loop step without its mma and preparation; preparing a fragment
# of inputs; gathering 32 pixels of a fragment's channels, by bytes per element; 32 copies of 16 bytes; 32 weights of
# one tap.
_STEP, _PREPARED, _GATHERED, _COPIED, _WEIGHT = 26, {"mma": 0, "tf32": 4, "3xtf32": 7}, {2: 130, 4: 95}, 56, 13
# (warp instructions per 16 × 32 outputs, wavefronts per byte of them)
_WRITTEN = {"single": (560, 20), "pairs": (150, 12), "chunks": (170, 12)}
_Costs = tuple[float, float]  # warp instructions, shared-memory wavefronts


@dataclass(frozen=True)
class GroupedTile:
    """A tile: its columns along each axis, and ``tile_blocks``, the number of blocks that share the tiles."""

    work: GroupedWork
    tile: Ints
    tile_blocks: int

    @cached_property
    def box(self) -> Ints:
        """Extents of the band: inputs, with halo, that the tile's columns read along each axis."""
        work, (outer, middle, inner) = self.work, self.tile
        steps, columns = work.problem.column_strides, work.problem.columns[0]
        crossed = -(-(outer - 1) // columns)
        if outer % columns == 0 or columns % outer == 0:
            crossed = (outer - 1) // columns
        apart = max(0, work.image_inputs - columns * steps[0])
        return (
            (outer - 1) * steps[0] + crossed * apart + work.reaches[0] + 1,
            (middle - 1) * steps[1] + work.reaches[1] + 1,
            (inner - 1) * steps[2] + work.reaches[2] + 1,
        )

    @cached_property
    def pitches(self) -> Ints:
        """Band strides in pixels along each axis, padded so that adjacent rows and planes hit different banks."""
        (_, middle, inner), (_, *box) = self.tile, self.box
        steps = self.work.problem.column_strides
        row = numbers.congruent(box[1], steps[1], inner * steps[2], 8)
        plane = numbers.congruent((box[0] - 1) * row + box[1], steps[0], middle * steps[1] * row, 8)
        return plane, row, 1

    @cached_property
    def counts(self) -> Ints:
        """Number of tiles along each axis."""
        problem, (outer, middle, inner) = self.work.problem, self.tile
        first, second, last = problem.columns
        return -(-first * problem.batch // outer), -(-second // middle), -(-last // inner)

    @cached_property
    def outputs(self) -> str:
        """How a warp writes, given an aligned y: "chunks" of 16 bytes of channels, "pairs" of columns, or "single"."""
        if self.work.written_in_chunks:
            return "chunks"
        inner = self._inner
        return "pairs" if self.tile[inner] % 2 == 0 and self.work.written_in_pairs[inner] else "single"

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        return self.work.blocks_per_tile_block * self.tile_blocks

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per block, without the taps of a phase."""
        work, form, size = self.work, self.work.form, self.work.itemsize
        pieces = max(_PIECE, 16 * (form.warp_n + 8) * size, form.warp_n * (16 * size + (16 if size == 4 else 0)))
        return work.weight_bytes + max(self.box[0] * self.pitches[0] * work.pitch, form.warps * pieces)

    def seconds(self, limits: Limits) -> float:
        """Model the seconds of the busiest SM: its dominant resource, plus exposed load latency."""
        return self.time(self.tile_blocks, [*self.costs(limits), self.weights()], limits)

    def time(self, tile_blocks: int, costs: list[_Costs], limits: Limits) -> float:
        """Model the seconds of tiles of this size when ``tile_blocks`` blocks share them.

        ``costs`` are those of a tile's main loop, band and outputs, and of a block's weights.
        """
        work, form = self.work, self.work.form
        tiles, blocks = -(-prod(self.counts) // tile_blocks), work.blocks_per_tile_block * tile_blocks
        room = limits.blocks_of(self.shared_bytes)
        resident = min(form.blocks_per_sm, room, -(-blocks // limits.multiprocessors))
        sums = model.tensor(blocks, tiles * self._steps * work.products, work.arithmetic.lanes, 0.0, limits)
        if resident > 1:  # blocks overlap: one multiplies while another loads or writes
            loop, band, outputs, weights = costs
            issued = tiles * loop[0] + tiles * band[0] + tiles * outputs[0] + weights[0]
            wavefronts = tiles * loop[1] + tiles * band[1] + tiles * outputs[1] + weights[1]
            busy = max(sums, model.busy(blocks, max(issued / _ISSUED, wavefronts), limits))
        else:
            first, *rest = [
                model.busy(blocks, n * max(issued / _ISSUED, wavefronts), limits)
                for n, (issued, wavefronts) in zip((tiles, tiles, tiles, 1), costs, strict=True)
            ]
            busy = max(sums, first) + sum(rest)
        waits = max(work.weight_waits, self._waits if work.chunks else 0) + (tiles - work.chunks) * self._waits
        return busy + model.busy(blocks, _WAIT * waits / resident, limits)

    def effort(self, limits: Limits) -> float:
        """Return the cycles of the busiest SM's tiles, without weights and latency; a cheap first ranking."""
        loop, band, outputs = self.costs(limits)
        rounds = -(-self.work.blocks_per_tile_block * prod(self.counts) // limits.multiprocessors)
        issued, wavefronts = loop[0] + band[0] + outputs[0], loop[1] + band[1] + outputs[1]
        return float(rounds * max(issued / _ISSUED, wavefronts))

    @cached_property
    def _steps(self) -> float:
        """Main-loop steps over all warps, for a tile of one phase."""
        problem = self.work.problem
        taps = prod(problem.taps) / prod(problem.phases)  # mean over phases
        return -(-prod(self.tile) // self.work.form.warp_n) * taps * self.work.depths

    def costs(self, limits: Limits) -> tuple[_Costs, _Costs, _Costs]:
        """Return the (instructions, wavefronts) of a tile's main loop, band and outputs."""
        work, form, arithmetic = self.work, self.work.form, self.work.arithmetic
        cached, rows, columns, size = limits.rates.cached, form.block_m // 16, form.warp_n // 8, work.itemsize
        issued = _STEP + columns * (_PREPARED[arithmetic.label] + rows * arithmetic.products)
        wavefronts = 1 + 4 * rows * arithmetic.parts + 2 * columns * self._conflicts()
        copies = prod(self.box) * work.depths / 32
        if work.chunks:
            band = 2 * copies * _COPIED, 2 * copies * 512 / cached
        else:
            band = copies * _GATHERED[size], copies * max(32 / size * self._lines() + 8, 1024 / cached)
        outputs = form.warps * rows * columns / 4
        instructions, wide = _WRITTEN[self.outputs]
        return (self._steps * issued, self._steps * wavefronts), band, (outputs * instructions, outputs * wide * size)

    def weights(self) -> _Costs:
        """Return the (instructions, wavefronts) of loading a block's weights."""
        work, taps = self.work, prod(self.work.problem.taps)
        warps = min(work.form.block_m, work.filters) * work.problem.channels / 32
        lines = min(32, -(-32 * taps * work.itemsize // 128))
        cleared = work.weight_bytes / 512
        return 8 * cleared + warps * taps * _WEIGHT, 4 * cleared + warps * taps * (lines + 3)

    def _lines(self) -> float:
        """Return the 128-byte lines that 32 adjacent pixels of a band occupy in x; contiguous rows share lines."""
        problem, inner = self.work.problem, self._inner
        if problem.x_strides[2 + inner] not in (0, 1):
            return 32
        outer = problem.x_strides[1 + inner] if inner else 0
        contiguous = self.tile[inner] == problem.columns[inner] and outer == problem.x_shape[2 + inner]
        rows = 1.0 if contiguous else max(1.0, 32 / self.box[inner])
        return rows + 32 * self.work.itemsize / 128

    @cached_property
    def _inner(self) -> int:
        """The innermost axis along which the tile has several columns."""
        _, middle, inner = self.tile
        return 2 if inner > 1 else 1 if middle > 1 else 0

    def _conflicts(self) -> float:
        """Return the mean bank-conflict degree of the loads of eight adjacent columns."""
        _, middle, inner = self.tile
        (first, second, third), (plane, row, pixel) = self.work.problem.column_strides, self.pitches
        runs = -(-min(prod(self.tile), 64) // 8)
        apart = first * plane % 8 if middle * inner < 8 * runs else 0
        return _conflicts_of(runs, middle, inner, (apart, second * row % 8, third * pixel % 8))

    @cached_property
    def _waits(self) -> int:
        """Number of load latencies that a thread waits for while it loads a band."""
        items = prod(self.box) * self.work.depths
        return 1 if self.work.chunks else -(-items // (2 * self.work.form.threads))


@lru_cache(maxsize=1024)
def _conflicts_of(runs: int, middle: int, inner: int, steps: Ints) -> float:
    """Return the mean bank-conflict degree of ``runs`` loads of eight columns, at distances ``steps`` modulo 8."""
    outer_step, middle_step, inner_step = steps
    places: list[int] = []
    line = 0
    while len(places) < 8 * runs:
        first = line // middle * outer_step + line % middle * middle_step
        places.extend(range(first, first + inner * inner_step, inner_step) if inner_step else [first] * inner)
        line += 1
    most = 0
    for at in range(0, 8 * runs, 8):
        banks = [0] * 8
        for place in places[at : at + 8]:
            banks[place % 8] += 1
        most += max(banks)
    return most / runs


# ---------------------------------------------------------------- choice of a tile


_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)  # numbers of parts into which an axis may be divided
_TRIED = 5  # shapes evaluated by the full cost model


def best(work: GroupedWork, limits: Limits, more_bytes: int) -> tuple[float, GroupedTile] | None:
    """Return the fastest tile with its modelled seconds; None if no tile fits shared memory.

    All shapes are ranked by :meth:`GroupedTile.effort`. The best few, and halves, quarters and eighths of them, are
    then evaluated by the full model with several numbers of blocks. ``more_bytes`` is shared memory that a block needs
    in addition.
    """
    room = limits.shared_bytes_per_block - more_bytes
    shapes = [GroupedTile(work, shape, 1) for shape in _shapes(work)]
    fitting = [tile for tile in shapes if tile.shared_bytes <= room]
    options: list[tuple[float, Ints, int]] = []
    for shape in sorted(fitting, key=lambda tile: tile.effort(limits))[:_TRIED]:
        first, *rest = shape.tile
        for size in sorted({first, -(-first // 2), -(-first // 4), -(-first // 8)}):
            part = GroupedTile(work, (size, *rest), 1)
            if part.shared_bytes > room:
                continue
            tiles, costs = prod(part.counts), [*part.costs(limits), part.weights()]
            shares = sorted({-(-tiles // n) for n in (1, 2, 3, 4, 6, 8)})
            options += [(part.time(tile_blocks, costs, limits), part.tile, tile_blocks) for tile_blocks in shares]
    if not options:
        return None
    seconds, columns, tile_blocks = min(options, key=itemgetter(0))
    return seconds, GroupedTile(work, columns, tile_blocks)


def _shapes(work: GroupedWork) -> Iterator[Ints]:
    """Yield tile shapes that divide each axis into about equal parts."""
    outer, middle, inner = work.problem.columns
    most, rows = work.form.columns, outer * work.problem.batch
    for last in _parts(inner, most):
        for second in _parts(middle, most // last):
            room = min(most // (last * second), rows)
            for first in {room, room // outer * outer or max(_parts(outer, room))}:
                yield first, second, last


def _parts(extent: int, most: int) -> list[int]:
    """Return the sizes, at most ``most``, that divide an axis into about equal parts."""
    return sorted({size for n in _PARTS if (size := -(-extent // n)) <= most}) or [most]
