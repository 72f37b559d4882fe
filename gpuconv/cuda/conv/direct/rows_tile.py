"""The tiles of ``kernels_cu/conv/direct/rows.cu``: what a block makes, and how that lies in shared memory.

Words are of the accumulator's type. Pitches are chosen so that the threads of a warp, whichever way their tiles run on
to the next row, depth or channel, read from different banks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import Any

from gpuconv.cuda.conv.direct.base import THREADS, Form, Work
from gpuconv.cuda.plan import numbers
from gpuconv.cuda.plan.launch import Limits
from gpuconv.cuda.plan.limits import RESERVED_BYTES
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

_STEPS = (32, 16, 8, 4, 2, 1)  # channels in shared memory at a time
_WARP = 32
_COPY, _READ = 4, 4  # instructions for an element of x, and what a byte of it counts like; assumed
_WEIGHT = 40  # instructions for a weight; assumed
_RESIDENT = 5  # blocks that a multiprocessor should have room for


@dataclass(frozen=True)
class Threads:
    """The threads of a block along each axis: what they make of a problem, whatever the groups, filters and steps."""

    work: Work
    form: Form
    threads: Ints

    @cached_property
    def word(self) -> int:
        """Bytes of a word of shared memory."""
        return dtypes.sums(self.work.dtype).itemsize

    @cached_property
    def vector(self) -> int:
        """Words of 16 bytes: columns of a thread."""
        return 16 // self.word

    @cached_property
    def lead(self) -> int:
        """Columns before the first window of a row, so that inputs stay aligned; unrolled forms expect SAME padding."""
        if self.form.kernel:
            return -(self.form.kernel // 2) % self.vector
        return -self.work.pads[2] % self.vector if self.form.stride else 0

    @cached_property
    def each(self) -> Ints:
        """Outputs of a thread along each axis."""
        return _each(self.work, self.form, self.vector)

    @cached_property
    def blocks_by_axis(self) -> Ints:
        tiles = zip(self.work.y_extent, self.threads, self.each, strict=True)
        return tuple(-(-extent // (count * each)) for extent, count, each in tiles)

    @cached_property
    def spatial_blocks(self) -> int:
        """Of all images, for each group and tile of filters."""
        return prod(self.blocks_by_axis) * self.work.images

    # ---- shared memory

    @cached_property
    def extent(self) -> Ints:
        """What is staged of x for one channel; of columns also what fills the last vectors up."""
        work, (_, _, last) = self.work, self.each
        axes = zip(self.threads, self.each, work.strides, work.taps, work.dilations, strict=True)
        depths, rows, columns = ((t * e - 1) * s + (k - 1) * d + 1 for t, e, s, k, d in axes)
        stride, vector = self.form.stride, self.vector
        if self.form.kernel:
            reach = self.lead + (vector - 1) * stride + self.form.kernel - 1
            columns = stride * (self.threads[2] * vector + reach // stride // vector * vector)
        elif stride:
            columns = self.threads[2] * last + self.row_taps
        return depths, rows, columns

    @cached_property
    def unit(self) -> int:
        """Words that pitches are multiples of."""
        return self.vector if self.form.stride else 1

    @cached_property
    def banks(self) -> int:
        """Of so many words."""
        return 128 // self.word // self.unit

    @cached_property
    def inner_pitches(self) -> Ints:
        """Words from one phase of columns, row and depth to the next."""
        _, rows, columns = self.extent
        _, h, w = self.threads
        stride = self.work.strides[2] if self.form.stride == 0 else self.form.stride
        phase = -(-columns // stride)
        if self.form.stride == 2 and self.word == 4:
            # Even and odd columns that are copied together go to other banks.
            phase = numbers.congruent(phase, 1, 16, 32)
        unit, banks = self.unit, self.banks
        apart = self.work.strides[1] * (self.form.rows if self.form.stride else 1)
        row = unit * numbers.congruent(-(-phase * stride // unit), apart, w, banks)
        depth = unit * numbers.congruent(rows * row // unit, self.work.strides[0], w * h, banks)
        return phase, row, depth

    def channel_pitch(self, step: int) -> int:
        """Return the words from one of so many channels to the next."""
        least = self.extent[0] * self.inner_pitches[2] // self.unit
        return self.unit * numbers.congruent(least, step, prod(self.threads), self.banks)

    @cached_property
    def row_taps(self) -> int:
        """Words of the weights of one row of the kernel."""
        lead = 0 if self.form.kernel else self.lead
        return numbers.whole(lead + self.work.taps[2], self.vector)

    @cached_property
    def channel_weights(self) -> int:
        """Words of the weights of one channel for the filters that a thread makes."""
        return prod(self.work.taps[:2]) * self.row_taps * self.form.filters

    def pitch_of_filters(self, step: int) -> int:
        """Return an odd number of vectors: weights of neighbouring groups begin in different banks."""
        return self.vector * (-(-step * self.channel_weights // self.vector) | 1)

    def words_of_inputs(self, groups: int, step: int) -> int:
        """Return the words before the weights: inputs, and what the warps turn their results round in."""
        inputs = numbers.whole(groups * step * self.channel_pitch(step), self.vector)
        return inputs + THREADS // 8 * 9 * self.vector

    def room(self, groups: int, filter_tiles: int, step: int) -> int:
        """Return the bytes of shared memory of a block."""
        weights = groups * filter_tiles * self.pitch_of_filters(step)
        return self.word * (self.words_of_inputs(groups, step) + weights)

    # ---- time

    @cached_property
    def sums(self) -> float:
        """Instructions of a thread for its sums, and for the outputs that they become."""
        outputs = self.form.filters * self.form.rows * self.vector
        return outputs * prod(self.work.taps) * self.work.channels / self.form.efficiency + 4 * outputs

    def work_of_block(self, groups: int, filter_tiles: int, step: int) -> tuple[int, float]:
        """Return the elements that a block copies, and its instructions: of copying, of sums, of the rest.

        Warps without outputs cost little.
        """
        rounds = -(-self.work.channels // step)
        staged = groups * step * prod(self.extent) * rounds
        busy = numbers.whole(prod(self.threads) * groups * filter_tiles, _WARP)
        weights = groups * filter_tiles * step * self.channel_weights * rounds
        return staged, _COPY * staged + _WEIGHT * weights + busy * self.sums + 200 * THREADS

    def blocks_of(self, groups: int, filter_tiles: int) -> int:
        """Return the blocks of a launch."""
        filter_blocks = -(-self.work.filters // (filter_tiles * self.form.filters))
        return filter_blocks * -(-self.work.groups // groups) * self.spatial_blocks

    def cost(self, groups: int, filter_tiles: int, step: int) -> float:
        """Measure all blocks' time, where inputs that several of them read are not free."""
        staged, instructions = self.work_of_block(groups, filter_tiles, step)
        return self.blocks_of(groups, filter_tiles) * (instructions + self.read_cost * staged)

    @cached_property
    def read_cost(self) -> int:
        """Of an element of x."""
        return _READ * dtypes.entry(self.work.dtype).itemsize


@dataclass(frozen=True)
class Tile(Threads):
    """What a block makes of a problem: so many threads along each axis, groups and tiles of filters."""

    groups: int
    filter_tiles: int
    step: int

    @property
    def filter_blocks(self) -> int:
        return -(-self.work.filters // (self.filter_tiles * self.form.filters))

    @property
    def group_blocks(self) -> int:
        return -(-self.work.groups // self.groups)

    @property
    def blocks(self) -> int:
        return self.blocks_of(self.groups, self.filter_tiles)

    @property
    def pitches(self) -> Ints:
        """Words from one phase of columns, row, depth and channel to the next."""
        return (*self.inner_pitches, self.channel_pitch(self.step))

    @property
    def filter_weights(self) -> int:
        """Words of the weights of the filters that a thread makes."""
        return self.step * self.channel_weights

    @property
    def filter_pitch(self) -> int:
        return self.pitch_of_filters(self.step)

    @property
    def weights(self) -> int:
        """Words before the weights."""
        return self.words_of_inputs(self.groups, self.step)

    @property
    def shared_bytes(self) -> int:
        return self.room(self.groups, self.filter_tiles, self.step)

    @property
    def instructions(self) -> float:
        """Instructions of a block."""
        return self.work_of_block(self.groups, self.filter_tiles, self.step)[1]

    def fields(self) -> dict[str, Any]:
        """Return the struct's fields that the tile settles."""
        work = self.work
        phase, row, depth, channel = self.pitches
        columns = self.extent[2]
        return {
            "lead": self.lead,
            "step": self.step,
            "extent": self.extent,
            "phase_pitch": phase,
            "row_pitch": row,
            "depth_pitch": depth,
            "channel_pitch": channel,
            "weights": self.weights,
            "filter_weights": self.filter_weights,
            "filter_pitch": self.filter_pitch,
            "lanes": [_lanes(-(-columns // width)) for width in (1, 2, 4)],
            "row_lanes": _lanes(self.extent[1]),
            "outputs": [count * each for count, each in zip(self.threads, self.each, strict=True)],
            "spread_row": self.threads[1] if self.each[1] > 1 else 0,
            "spread_column": self.threads[2] if self.each[2] > 1 else 0,
            "groups_here": self.groups,
            "filter_bits": self.filter_tiles.bit_length() - 1,
            "tiles": self.threads,
            "blocks": self.blocks_by_axis,
            "filter_blocks": self.filter_blocks,
            "group_blocks": self.group_blocks,
            "taps": (*work.taps[:2], self.row_taps),
            "by_step": self.step,
            "by_stride": work.strides[2],
            "row_taps": work.taps[2],
        }

    def __str__(self) -> str:
        d, h, w = (count * each for count, each in zip(self.threads, self.each, strict=True))
        return (
            f"direct: blocks of {d}x{h}x{w} outputs of {self.filter_tiles * self.form.filters} filters in "
            f"{self.groups} groups, {self.step} channels of each at a time; 32-bit indices"
        )


def _each(work: Work, form: Form, vector: int) -> Ints:
    if form.stride == 0:  # the outputs of a thread lie rows apart where there are enough of them, else columns
        return (1, vector, 1) if work.y_extent[1] >= vector else (1, 1, vector)
    return (1, 1, vector * form.rows) if form.line else (1, form.rows, vector)


def _lanes(count: int) -> int:
    """Return the power of two of threads that so many columns keep busy."""
    return min(THREADS.bit_length() - 1, (count - 1).bit_length())


# ---------------------------------------------------------------- choosing


@lru_cache(maxsize=1024)
def best(work: Work, form: Form, limits: Limits) -> Tile | None:
    """Return the tile with the least to do in all its blocks; None where the device has room for none."""
    rooms = (limits.shared_bytes_per_multiprocessor // _RESIDENT - RESERVED_BYTES, limits.shared_bytes_per_block)
    tiles = [
        (threads.room(*shares), threads, shares) for threads in _threads(work, form) for shares in _shares(threads)
    ]
    for room in rooms:
        fitting = [(threads, shares) for size, threads, shares in tiles if size <= room]
        if fitting:
            threads, shares = min(fitting, key=lambda pair: pair[0].cost(*pair[1]))
            return Tile(work, form, threads.threads, *shares)
    return None


def _threads(work: Work, form: Form) -> Iterator[Threads]:
    vector = 16 // dtypes.sums(work.dtype).itemsize
    needed = [-(-extent // each) for extent, each in zip(work.y_extent, _each(work, form, vector), strict=True)]
    depths, rows, columns = map(_counts, needed)
    if form.stride == 0:  # neighbours make neighbours
        columns = [count for count in columns if count >= min(_WARP, needed[2])]
    elif form.stride == 2:  # of odd numbers, no pitch lets the next row begin in the bank that comes next
        columns = sorted({count + count % 2 for count in columns})
    for d, h, w in product(depths, rows, columns):
        if w * h * d <= THREADS:
            yield Threads(work, form, (d, h, w))


def _shares(threads: Threads) -> Iterator[tuple[int, int, int]]:
    """Yield the groups, tiles of filters and channels at a time that so many threads may have."""
    work, spatial = threads.work, prod(threads.threads)
    filter_tiles = -(-work.filters // threads.form.filters)
    for filters in (1, 2, 4, 8):
        room = THREADS // (spatial * filters)
        if room == 0 or filters >= 2 * filter_tiles:
            continue
        groups = min(work.groups, room)
        for some in {groups, -(-groups // 2), -(-groups // 4), 1}:
            yield some, filters, work.channels
        for step in _STEPS:
            if step < work.channels:
                yield 1, filters, step


def _counts(needed: int) -> list[int]:
    """Return how many threads may stand along an axis: shares of it that are as equal as can be."""
    shares = {-(-needed // -(-needed // most)) for most in (1, 2, 4, 8, 16, 32, 64, 128)}
    return sorted(shares)
