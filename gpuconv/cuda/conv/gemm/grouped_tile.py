"""The tiles of ``conv/gemm/grouped.cu``: outputs cut, inputs in shared memory, and what it costs, by the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from operator import itemgetter

from gpuconv.cuda.conv.gemm.grouped_work import Work
from gpuconv.cuda.plan import model, numbers
from gpuconv.cuda.plan.launch import Limits
from gpuconv.cuda.plan.limits import RESERVED_BYTES
from gpuconv.rules.geometry import Ints

_PIECE = 16 * 40 * 4  # bytes of shared memory that a warp's sums pass through one by one
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


_Costs = tuple[float, float]  # instructions of warps, and wavefronts


@dataclass(frozen=True)
class Tile:
    """Columns of a tile along each axis, and the blocks that share the tiles."""

    work: Work
    tile: Ints
    turns: int

    @cached_property
    def box(self) -> Ints:
        """Inputs that the columns meet along each axis."""
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
        """Pixels from one step along each axis of the box to the next: where a row of columns ends, banks go on."""
        (_, middle, inner), (_, *box) = self.tile, self.box
        steps = self.work.problem.column_strides
        row = numbers.congruent(box[1], steps[1], inner * steps[2], 8)
        plane = numbers.congruent((box[0] - 1) * row + box[1], steps[0], middle * steps[1] * row, 8)
        return plane, row, 1

    @cached_property
    def counts(self) -> Ints:
        """Tiles along each axis."""
        problem, (outer, middle, inner) = self.work.problem, self.tile
        first, second, last = problem.columns
        return -(-first * problem.batch // outer), -(-second // middle), -(-last // inner)

    @cached_property
    def outputs(self) -> str:
        """How a warp writes if y begins on 16 bytes: 16 bytes of channels, columns in pairs, or one by one."""
        if self.work.written_in_chunks:
            return "chunks"
        inner = self._inner
        return "pairs" if self.tile[inner] % 2 == 0 and self.work.written_in_pairs[inner] else "single"

    @property
    def blocks(self) -> int:
        """Of the launch."""
        return self.work.blocks_by_turn * self.turns

    @cached_property
    def shared_bytes(self) -> int:
        """Of a block, without the taps of a phase."""
        work, form, size = self.work, self.work.form, self.work.itemsize
        pieces = max(_PIECE, 16 * (form.warp_n + 8) * size, form.warp_n * (16 * size + (16 if size == 4 else 0)))
        return work.weight_bytes + max(self.box[0] * self.pitches[0] * work.pitch, form.warps * pieces)

    def seconds(self, limits: Limits) -> float:
        """Model the time of the busiest multiprocessor: of what it has most of, and of waiting."""
        return self.time(self.turns, [*self.costs(limits), self.weights()], limits)

    def time(self, turns: int, costs: list[_Costs], limits: Limits) -> float:
        """Return the modelled time of tiles of this size that so many blocks share.

        ``costs`` are those of a tile's main loop, its band and its outputs, and of a block's weights.
        """
        work, form = self.work, self.work.form
        tiles, blocks = -(-prod(self.counts) // turns), work.blocks_by_turn * turns
        room = limits.shared_bytes_per_multiprocessor // (self.shared_bytes + RESERVED_BYTES)
        resident = max(1, min(form.blocks_per_sm, room, -(-blocks // limits.multiprocessors)))
        sums = model.tensor(blocks, tiles * self._steps * work.products, work.arithmetic.lanes, 0.0, limits)
        if resident > 1:  # phases of one go on beside others of another
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
        """Return the cycles of the busiest multiprocessor's tiles, without weights and waiting."""
        loop, band, outputs = self.costs(limits)
        rounds = -(-self.work.blocks_by_turn * prod(self.counts) // limits.multiprocessors)
        issued, wavefronts = loop[0] + band[0] + outputs[0], loop[1] + band[1] + outputs[1]
        return float(rounds * max(issued / _ISSUED, wavefronts))

    @cached_property
    def _steps(self) -> float:
        """Steps of the main loop, of all warps, for a tile of a phase."""
        return -(-prod(self.tile) // self.work.form.warp_n) * self.work.taps_of_phase * self.work.depths

    def costs(self, limits: Limits) -> tuple[_Costs, _Costs, _Costs]:
        """Return the costs of a tile's main loop, of its band, and of its outputs."""
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
        each, wide = _WRITTEN[self.outputs]
        return (self._steps * issued, self._steps * wavefronts), band, (outputs * each, outputs * wide * size)

    def weights(self) -> _Costs:
        """Return the costs of a block's weights."""
        work, taps = self.work, prod(self.work.problem.taps)
        warps = min(work.form.block_m, work.filters) * work.problem.channels / 32
        lines = min(32, -(-32 * taps * work.itemsize // 128))
        cleared = work.weight_bytes / 512
        return 8 * cleared + warps * taps * _WEIGHT, 4 * cleared + warps * taps * (lines + 3)

    def _lines(self) -> float:
        """Lines of 128 bytes that 32 neighbouring pixels of a band lie in; rows may follow each other."""
        problem, inner = self.work.problem, self._inner
        if problem.x_strides[2 + inner] not in (0, 1):
            return 32
        outer = problem.x_strides[1 + inner] if inner else 0
        whole = self.tile[inner] == problem.columns[inner] and outer == problem.x_shape[2 + inner]
        rows = 1.0 if whole else max(1.0, 32 / self.box[inner])
        return rows + 32 * self.work.itemsize / 128

    @cached_property
    def _inner(self) -> int:
        """The innermost axis that a tile has several columns of."""
        _, middle, inner = self.tile
        return 2 if inner > 1 else 1 if middle > 1 else 0

    def _conflicts(self) -> float:
        """Times that a bank is asked by eight columns in a row, whose pixels may be apart, on the average."""
        _, middle, inner = self.tile
        (first, second, third), (plane, row, pixel) = self.work.problem.column_strides, self.pitches
        runs = -(-min(prod(self.tile), 64) // 8)
        apart = first * plane % 8 if middle * inner < 8 * runs else 0
        return _asked(runs, middle, inner, (apart, second * row % 8, third * pixel % 8))

    @cached_property
    def _waits(self) -> int:
        """Times that a thread waits for what it reads of a band."""
        items = prod(self.box) * self.work.depths
        return 1 if self.work.chunks else -(-items // (2 * self.work.form.threads))


@lru_cache(maxsize=1024)
def _asked(runs: int, middle: int, inner: int, steps: Ints) -> float:
    """Return how often a bank is asked by so many runs of eight columns, whose pixels lie these steps apart."""
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


def best(work: Work, limits: Limits, more_bytes: int) -> tuple[float, Tile] | None:
    """Return the quickest way to cut the outputs, with its modelled seconds, or None where shared memory is too small.

    Of all shapes the few with the least work in all are tried, and parts of these, with more or fewer blocks.
    ``more_bytes`` are what a block needs beside a tile's.
    """
    room = limits.shared_bytes_per_block - more_bytes
    shapes = [Tile(work, shape, 1) for shape in _shapes(work)]
    fitting = [tile for tile in shapes if tile.shared_bytes <= room]
    found: list[tuple[float, Ints, int]] = []
    for whole in sorted(fitting, key=lambda tile: tile.effort(limits))[:_TRIED]:
        first, *rest = whole.tile
        for size in sorted({first, -(-first // 2), -(-first // 4), -(-first // 8)}):
            one = Tile(work, (size, *rest), 1)
            if one.shared_bytes > room:
                continue
            tiles, costs = prod(one.counts), [*one.costs(limits), one.weights()]
            shares = sorted({-(-tiles // n) for n in (1, 2, 3, 4, 6, 8)})
            found += [(one.time(turns, costs, limits), one.tile, turns) for turns in shares]
    if not found:
        return None
    seconds, columns, turns = min(found, key=itemgetter(0))
    return seconds, Tile(work, columns, turns)


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
