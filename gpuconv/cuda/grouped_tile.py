"""The tiles of ``conv_grouped.cu``: outputs cut, inputs in shared memory, and what it costs, by the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from gpuconv._geometry import Ints
from gpuconv.cuda import model, multiples
from gpuconv.cuda.grouped_work import Work
from gpuconv.cuda.limits import RESERVED_BYTES
from gpuconv.cuda.plan import Limits

_PIECE = 16 * 40 * 4  # bytes of shared memory that a warp's sums pass through one by one
_TAPS_AT_ONCE = 9  # that a thread waits for together
_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)  # that an axis may be cut into
_TRIED = 5  # shapes of tiles, by the whole model
_WAIT = 800  # cycles from a load to what it brings; assumed
_ISSUED = 4  # instructions of warps that a multiprocessor issues in a cycle
# Instructions of a warp, counted in the machine code: of a step of the main loop, beside those that multiply and those
# that make a fragment of inputs ready; for 32 pixels of a fragment's channels, by the bytes of an element; for 32
# copies of 16 bytes; for 32 weights of one tap.
_STEP, _PREPARED, _GATHERED, _COPIED, _WEIGHT = 26, {"mma": 0, "tf32": 4, "3xtf32": 7}, {2: 130, 4: 95}, 56, 13
# The same for 16 x 32 outputs, and wavefronts for each of their bytes.
_WRITTEN = {"single": (560, 20), "pairs": (150, 12), "chunks": (170, 12)}


_Phases = list[tuple[float, float]]


@dataclass(frozen=True)
class Tile:
    """Columns of a tile along each axis, and the blocks that share the tiles."""

    work: Work
    tile: Ints
    turns: int

    @cached_property
    def box(self) -> Ints:
        """Inputs that the columns meet along each axis."""
        work, (outer, *inner) = self.work, self.tile
        steps, columns = work.problem.column_strides, work.problem.columns[0]
        crossed = -(-(outer - 1) // columns)
        if outer % columns == 0 or columns % outer == 0:
            crossed = (outer - 1) // columns
        apart = max(0, work.image_inputs - columns * steps[0])
        first = (outer - 1) * steps[0] + crossed * apart + work.reaches[0] + 1
        rest = ((t - 1) * s + reach + 1 for t, s, reach in zip(inner, steps[1:], work.reaches[1:], strict=True))
        return (first, *rest)

    @cached_property
    def pitches(self) -> Ints:
        """Pixels from one step along each axis of the box to the next: where a row of columns ends, banks go on."""
        (_, middle, inner), (_, *box) = self.tile, self.box
        steps = self.work.problem.column_strides
        row = multiples.congruent(box[1], steps[1], inner * steps[2], 8)
        plane = multiples.congruent((box[0] - 1) * row + box[1], steps[0], middle * steps[1] * row, 8)
        return plane, row, 1

    @cached_property
    def counts(self) -> Ints:
        """Tiles along each axis."""
        first, *rest = self.work.problem.columns
        extents = (first * self.work.problem.batch, *rest)
        return tuple(-(-extent // tile) for extent, tile in zip(extents, self.tile, strict=True))

    @cached_property
    def outputs(self) -> str:
        """How a warp writes if y begins on 16 bytes: 16 bytes of channels, columns in pairs, or one by one."""
        work, problem = self.work, self.work.problem
        batch, channel, *spatial = problem.y_strides
        steps = [batch, *(step for step, n in zip(spatial, problem.y_shape[2:], strict=True) if n > 1)]
        if channel == 1 and work.filters % 16 == 0 and all(step * problem.itemsize % 16 == 0 for step in steps):
            return "chunks"
        inner = self._inner()
        others = [channel, batch, *(step for axis, step in enumerate(spatial) if axis != inner)]
        even = all(number % 2 == 0 for number in (self.tile[inner], problem.columns[inner], *others))
        return "pairs" if even and spatial[inner] == 1 and prod(problem.strides) == 1 else "single"

    @property
    def blocks(self) -> int:
        """Of the launch."""
        problem = self.work.problem
        return self.work.m_tiles * prod(problem.phases) * (problem.group // self.work.together) * self.turns

    @cached_property
    def shared_bytes(self) -> int:
        """Of a block, without the taps of a phase."""
        form, size = self.work.form, self.work.problem.itemsize
        pieces = (_PIECE, 16 * (form.warp_n + 8) * size, form.warp_n * (16 * size + (16 if size == 4 else 0)))
        return self.work.weight_bytes + max(self.box[0] * self.pitches[0] * self.work.pitch, form.warps * max(pieces))

    def seconds(self, limits: Limits, phases: _Phases | None = None) -> float:
        """Model the time of the busiest multiprocessor: of what it has most of, and of waiting.

        ``phases`` are those of a tile of the same size, which no number of blocks changes.
        """
        work, form = self.work, self.work.form
        tiles = -(-prod(self.counts) // self.turns)
        room = limits.shared_bytes_per_multiprocessor // (self.shared_bytes + RESERVED_BYTES)
        resident = max(1, min(form.blocks_per_sm, room, -(-self.blocks // limits.multiprocessors)))
        products = form.block_m * form.warp_n * (32 // work.problem.itemsize) * work.arithmetic.products
        sums = model.tensor(self.blocks, tiles * self._steps() * products, work.arithmetic.lanes, 0.0, limits)
        phases = phases or self.phases(limits)
        times = [tiles, tiles, tiles, 1]
        if resident > 1:  # phases of one go on beside others of another
            issued, wavefronts = (sum(n * phase[i] for n, phase in zip(times, phases, strict=True)) for i in range(2))
            others = model.busy(self.blocks, max(issued / _ISSUED, wavefronts), limits)
            busy = max(sums, others)
        else:
            first, *rest = (
                model.busy(self.blocks, n * max(issued / _ISSUED, wavefronts), limits)
                for n, (issued, wavefronts) in zip(times, phases, strict=True)
            )
            busy = max(sums, first) + sum(rest)
        waits = max(self._weight_waits(), self._waits() if work.chunks else 0) + (tiles - work.chunks) * self._waits()
        return busy + model.busy(self.blocks, _WAIT * waits / resident, limits)

    def with_turns(self, turns: int) -> Tile:
        """Return a tile of this size that other blocks share; what is known of one holds for the other."""
        other = replace(self, turns=turns)
        vars(other).update({**vars(self), "turns": turns})
        return other

    def phases(self, limits: Limits) -> _Phases:
        """Return the instructions of warps, and wavefronts, of a tile's three phases and of a block's weights."""
        return [*self._tile(limits), self._weights()]

    def effort(self, limits: Limits) -> float:
        """Return the cycles of the busiest multiprocessor's tiles, without weights and waiting."""
        issued, wavefronts = (sum(costs) for costs in zip(*self._tile(limits), strict=True))
        all_tiles = replace(self, turns=prod(self.counts)).blocks
        rounds = -(-all_tiles // limits.multiprocessors)
        return float(rounds * max(issued / _ISSUED, wavefronts))

    def _steps(self) -> float:
        """Steps of the main loop, of all warps, for a tile of a phase."""
        taps = prod(self.work.problem.taps) / prod(self.work.problem.phases)
        return -(-prod(self.tile) // self.work.form.warp_n) * taps * self.work.depths

    def _tile(self, limits: Limits) -> list[tuple[float, float]]:
        """Instructions of warps, and wavefronts: of a tile's main loop, of its band, and of its outputs."""
        work, form, arithmetic = self.work, self.work.form, self.work.arithmetic
        cached, rows, columns, size = limits.rates.cached, form.block_m // 16, form.warp_n // 8, work.problem.itemsize
        issued = _STEP + columns * (_PREPARED[arithmetic.label] + rows * arithmetic.products)
        wavefronts = 1 + 4 * rows * arithmetic.parts + 2 * columns * self._conflicts()
        copies = prod(self.box) * work.depths / 32
        if work.chunks:
            band = 2 * copies * _COPIED, 2 * copies * 512 / cached
        else:
            band = copies * _GATHERED[size], copies * max(32 / size * self._lines() + 8, 1024 / cached)
        outputs = form.warps * rows * columns / 4
        each, wide = _WRITTEN[self.outputs]
        return [(self._steps() * issued, self._steps() * wavefronts), band, (outputs * each, outputs * wide * size)]

    def _lines(self) -> float:
        """Lines of 128 bytes that 32 neighbouring pixels of a band lie in; rows may follow each other."""
        problem, inner = self.work.problem, self._inner()
        if problem.x_strides[2 + inner] not in (0, 1):
            return 32
        outer = problem.x_strides[1 + inner] if inner else 0
        whole = self.tile[inner] == problem.columns[inner] and outer == problem.x_shape[2 + inner]
        rows = 1.0 if whole else max(1.0, 32 / self.box[inner])
        return rows + 32 * problem.itemsize / 128

    def _inner(self) -> int:
        """The innermost axis that a tile has several columns of."""
        return max((axis for axis, columns in enumerate(self.tile) if columns > 1), default=0)

    def _conflicts(self) -> float:
        """Times that a bank is asked by eight columns in a row, whose pixels may be apart, on the average."""
        _, middle, inner = self.tile
        steps = self.work.problem.column_strides
        outer_step, middle_step, inner_step = (s * pitch for s, pitch in zip(steps, self.pitches, strict=True))
        runs = range(0, min(prod(self.tile), 64), 8)
        most = 0
        for first in runs:
            banks = [0] * 8
            for column in range(first, first + 8):
                row, last = divmod(column, inner)
                plane, second = divmod(row, middle)
                banks[(plane * outer_step + second * middle_step + last * inner_step) % 8] += 1
            most += max(banks)
        return most / len(runs)

    def _waits(self) -> int:
        """Times that a thread waits for what it reads of a band."""
        items = prod(self.box) * self.work.depths
        return 1 if self.work.chunks else -(-items // (2 * self.work.form.threads))

    def _weights(self) -> tuple[float, float]:
        """Instructions and wavefronts for a block's weights."""
        work, taps = self.work, prod(self.work.problem.taps)
        warps = min(work.form.block_m, work.filters) * work.problem.channels / 32
        lines = min(32, -(-32 * taps * work.problem.itemsize // 128))
        cleared = work.weight_bytes / 512
        return 8 * cleared + warps * taps * _WEIGHT, 4 * cleared + warps * taps * (lines + 3)

    def _weight_waits(self) -> int:
        """Times that a thread waits for weights."""
        work = self.work
        pairs = min(work.form.block_m, work.filters) * work.problem.channels
        return -(-pairs // (2 * work.form.threads)) * -(-prod(work.problem.taps) // _TAPS_AT_ONCE)


def best(work: Work, limits: Limits, more_bytes: int) -> tuple[float, Tile] | None:
    """Return the quickest way to cut the outputs, with its modelled seconds, or None where shared memory is too small.

    Of all shapes the few with the least work in all are tried, and parts of these, with more or fewer blocks.
    ``more_bytes`` are what a block needs beside a tile's.
    """
    room = limits.shared_bytes_per_block - more_bytes
    shapes = (Tile(work, shape, 1) for shape in _shapes(work))
    fitting = [tile for tile in shapes if tile.shared_bytes <= room]
    found: list[tuple[float, Tile]] = []
    for whole in sorted(fitting, key=lambda tile: tile.effort(limits))[:_TRIED]:
        first, *rest = whole.tile
        for size in sorted({first, -(-first // 2), -(-first // 4), -(-first // 8)}):
            one = Tile(work, (size, *rest), 1)
            if one.shared_bytes > room:
                continue
            tiles, phases = prod(one.counts), one.phases(limits)
            for turns in sorted({-(-tiles // n) for n in (1, 2, 3, 4, 6, 8)}):
                tile = one.with_turns(turns)
                found.append((tile.seconds(limits, phases), tile))
    return min(found, key=lambda pair: pair[0], default=None)


def _shapes(work: Work) -> Iterator[Ints]:
    """Yield sizes of tiles, each axis cut into about equal parts."""
    outer, middle, inner = work.problem.columns
    most, rows = work.form.columns, outer * work.problem.batch
    for last in _parts(inner, most):
        for second in _parts(middle, most // last):
            room = min(most // (last * second), rows)
            for first in {room, room // outer * outer or max(_parts(outer, room))}:
                yield first, second, last


def _parts(extent: int, most: int) -> list[int]:
    return sorted({size for n in _PARTS if (size := -(-extent // n)) <= most}) or [most]
