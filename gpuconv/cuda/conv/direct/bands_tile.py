"""The tiles of ``kernels_cu/conv/direct/bands.cu``: what a block makes, and how that lies in shared memory.

Positions are the columns and rows of the correlation of stride 1 that Conv is, and ConvTranspose by its phases. Words
are of the accumulator's type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod

from gpuconv.cuda.conv.direct.bands_work import Form, Work
from gpuconv.cuda.plan import model, numbers
from gpuconv.cuda.plan.launch import Limits
from gpuconv.cuda.plan.limits import RESERVED_BYTES, blocks_by_registers, nearest
from gpuconv.rules import dtypes

THREADS = 128
_WARP = 32
_BANK_BYTES = 128
_STEPS = (32, 16, 8)  # channels in shared memory at a time
# Instructions besides the sums, as in the machine code: for each element of x that is copied, of several bytes, of two,
# alone, or as one of neighbouring channels; for each weight; before, for the first of its channels; for each output; of
# every thread in a round of channels, and at all.
_COPY, _COPY_HALF, _COPY_ONE, _COPY_CHANNELS, _WEIGHT = 1.6, 2.6, 6.3, 4.6, 6.3
_PLACE, _PLACE_CHANNELS, _OUTPUT, _ROUND, _BLOCK = 80, 30, 30, 80, 300
_LATENCY = 1000  # cycles from a block's first load until the band is there; assumed
_ALONE = 0.25  # share of its instructions' time that a block alone on a multiprocessor waits besides; assumed


@dataclass(frozen=True)
class Team:
    """The threads of a block along rows and columns, its jobs and parts: what it makes, however many channels at once.

    Attributes
    ----------
    work : Work
    form : Form
    threads : tuple of int
        Along rows and columns.
    jobs : int
        Of so many threads each.
    parts : int
        That share the channels of a job.
    """

    work: Work
    form: Form
    threads: tuple[int, int]
    jobs: int
    parts: int

    @cached_property
    def word(self) -> int:
        """Bytes of a word of shared memory."""
        return dtypes.sums(self.work.dtype).itemsize

    @cached_property
    def vector(self) -> int:
        """Words of 16 bytes: columns of a thread."""
        return 16 // self.word

    @cached_property
    def positions(self) -> tuple[int, int]:
        """Rows and columns of a block."""
        return self.threads[0] * self.form.rows, self.threads[1] * self.vector

    @property
    def fold(self) -> int:
        """Positions of each of the rows that a line is cut into, or 0."""
        return self.positions[1] if self.work.line else 0

    @property
    def blocks_by_axis(self) -> tuple[int, int]:
        height, width = self.work.height.positions, self.work.width.positions
        if self.work.line:
            height, width = -(-width // self.positions[1]), 1
        return -(-height // self.positions[0]), -(-width // self.positions[1])

    @property
    def all_jobs(self) -> int:
        return _all_jobs(self.work, self.form)

    @property
    def job_blocks(self) -> int:
        return -(-self.all_jobs // self.jobs)

    @cached_property
    def blocks(self) -> int:
        return prod(self.blocks_by_axis) * self.work.depths * self.job_blocks * self.work.copies

    # ---- shared memory

    @cached_property
    def chunks(self) -> int:
        """Parts of a kernel's row."""
        return self.form.chunks(self.work)

    @cached_property
    def _window(self) -> int:
        """Vectors that a thread reads of a row for a part of the kernel's."""
        return (self.vector + self.form.kernel_columns - 2) // self.vector + 1

    @cached_property
    def _banks(self) -> int:
        """Of shared memory, as wide as a vector."""
        return _BANK_BYTES // self.word // self.vector

    @cached_property
    def extent(self) -> tuple[int, int]:
        """Rows and columns of the band; of columns also what fills the last vectors up."""
        rows, columns = self.positions
        reach = (self.chunks - 1) * self.form.kernel_columns + self._window * self.vector
        return rows + self.work.height.taps - 1, columns - self.vector + reach

    @cached_property
    def row_pitch(self) -> int:
        """Where the threads of a warp stand on several rows, the next row begins in the bank that comes next."""
        vectors = self.extent[1] // self.vector
        if self.threads[1] % self._banks:
            vectors = numbers.congruent(vectors, self.form.rows, self.threads[1], self._banks)
        return vectors * self.vector

    @cached_property
    def channel_pitch(self) -> int:
        """Threads of other channels begin in the bank that comes next; channels copied at once, in banks far apart."""
        vectors, here = self.extent[0] * self.row_pitch // self.vector, prod(self.threads) * self.jobs
        if self.work.vectors < 0 or here >= _WARP:
            return self.vector * (vectors | 1)
        return self.vector * numbers.congruent(vectors, 1, here, self._banks)

    @cached_property
    def row_weights(self) -> int:
        """Words of a kernel's row."""
        return self.chunks * numbers.whole(self.form.kernel_columns * self.form.filters, self.vector)

    @cached_property
    def channel_weights(self) -> int:
        return self.jobs * self.work.height.taps * self.row_weights

    @cached_property
    def plane(self) -> int:
        """Words of the sums of one filter; those of neighbouring phases begin in different banks."""
        apart = max(1, self._banks // self.work.width.phases) if self.work.width.phases > 1 else 0
        return numbers.congruent(prod(self.positions) // self.vector, 1, apart, self._banks) * self.vector

    def room(self, step: int) -> int:
        """Return the bytes of shared memory of a block."""
        band = step * (self.channel_pitch + self.channel_weights)
        return self.word * max(band, self.jobs * self.form.filters * self.plane)

    @cached_property
    def _most_resident(self) -> int:
        """Blocks that a multiprocessor has registers for."""
        return blocks_per_sm(self.form, self.work.dtype)

    def resident(self, shared_bytes: int, limits: Limits) -> int:
        """Return how many blocks of so many bytes a multiprocessor has room for."""
        return min(limits.shared_bytes_per_multiprocessor // (shared_bytes + RESERVED_BYTES), self._most_resident)

    # ---- time

    @cached_property
    def _accumulator(self) -> str:
        """Type of the sums."""
        return dtypes.entry(self.work.dtype).accumulator

    @cached_property
    def _busy(self) -> int:
        """Warps with sums to make."""
        return -(-prod(self.threads) * self.jobs * self.parts // _WARP)

    @cached_property
    def _kernel_rows(self) -> float:
        """Rows of the kernel that a warp meets, on average: those of all phases that its threads have."""
        height, spatial = self.work.height, prod(self.threads)
        if height.phases == 1 or height.kernel % height.phases == 0:
            return height.taps
        rows = [(height.kernel + height.phases - 1 - phase) // height.phases for phase in range(height.phases)]
        met = 0
        for first in range(0, _WARP * self._busy, _WARP):
            jobs = range(first // spatial, (first + _WARP - 1) // spatial + 1)
            met += sum({rows[job % self.jobs % height.phases] for job in jobs})
        return met / self._busy

    @cached_property
    def _sums(self) -> float:
        """Instructions of a thread for the sums of a channel, at full efficiency."""
        form = self.form
        return form.filters * form.rows * self.vector * self._kernel_rows * form.kernel_columns * self.chunks

    def instructions(self, rounds: int, channels: int) -> float:
        """Return the instructions of a block of so many bands, and channels of a thread; counted by thread."""
        outputs = self.jobs * self.form.filters * prod(self.positions)
        weights = self.channel_weights * (_PLACE * rounds + _WEIGHT * self._copied)
        return (
            self._busy * _WARP * channels * self._sums / self.form.efficiency
            + self._copies(rounds)
            + weights
            + _OUTPUT * outputs
            + THREADS * (_BLOCK + _ROUND * rounds)
        )

    @cached_property
    def _copied(self) -> int:
        """Channels that a block copies, once for every plane of the kernel."""
        return self.work.planes * self.work.channels

    def _copies(self, rounds: int) -> float:
        """Return the instructions of copying x."""
        rows, columns = self.extent
        if self.work.vectors < 0:  # a warp along each row, two threads a column
            each = 2 * _PLACE_CHANNELS * rounds + _COPY_CHANNELS * self._copied
            return rows * numbers.whole(columns, _WARP // 2) * each
        if self.work.vectors == 1:
            return rows * columns * (_PLACE * rounds + _COPY_ONE * self._copied)
        each = _COPY if dtypes.entry(self.work.dtype).itemsize > 2 else _COPY_HALF
        return rows * columns * (_PLACE / self.vector * rounds + each * self._copied)

    @cached_property
    def _reads(self) -> float:
        """Wavefronts of shared memory of a warp for a channel."""
        form, taps, size = self.form, self._kernel_rows, _BANK_BYTES // self.word
        rows = self.chunks * (taps + -(-taps // form.kernel_rows) * (form.rows - 1))
        return rows * self._window * self.vector * _WARP / size + taps * self.row_weights / self.vector

    @cached_property
    def _fetched(self) -> float:
        """Wavefronts of shared memory of a block, and lines, for all of x."""
        # For as many words as there are banks: wavefronts, and lines of x.
        each = 1.0 + (4.0 if self.work.vectors < 0 else self.work.lines if self.work.vectors == 1 else 1.0)
        return each * self._copied * prod(self.extent) / (_BANK_BYTES // self.word)

    def time(self, step: int, resident: int, limits: Limits) -> float:
        """Return the time of a launch but for that of the memory: of instructions, shared memory, or waiting."""
        rounds = -(-self.work.channels // step) * self.work.planes  # bands that a block copies
        channels = rounds * -(-min(step, self.work.channels) // self.parts)  # that a thread meets
        instructions = self.instructions(rounds, channels)
        wavefronts = self._busy * channels * self._reads + self._fetched
        efficiency = 1 / (1 + _ALONE / resident)
        issued = model.arithmetic(self.blocks, instructions, self._accumulator, efficiency, limits)
        shared = model.gathering(self.blocks, wavefronts * _WARP, 1, limits)
        waves = -(-self.blocks // (limits.multiprocessors * resident))
        cycles = rounds * _LATENCY + instructions / min(THREADS, self._busy * _WARP)
        return max(issued, shared, waves * cycles / nearest(limits.architecture).clock)


@dataclass(frozen=True)
class Tile(Team):
    """What a block makes, with so many channels in shared memory at once."""

    step: int

    @property
    def shared_bytes(self) -> int:
        return self.room(self.step)

    def seconds(self, limits: Limits) -> float:
        """Return the time of a launch but for that of the memory."""
        return self.time(self.step, self.resident(self.shared_bytes, limits), limits)

    def __str__(self) -> str:
        rows, columns = self.positions
        return (
            f"bands of {rows}x{columns} positions, {self.jobs} of {self.all_jobs} jobs of {self.form.filters} filters "
            f"a block, {self.step} channels at a time in {self.parts} parts; 32-bit indices"
        )


def blocks_per_sm(form: Form, dtype: str) -> int:
    """Return how many blocks the registers leave room for."""
    return blocks_by_registers(form.registers, dtypes.entry(dtype).accumulator, THREADS)


@lru_cache(maxsize=256)
def best(work: Work, form: Form, limits: Limits) -> Tile | None:
    """Return the tile that takes the least time; None where the device has room for none."""
    least, found = math.inf, None
    for team, step in _teams(work, form):
        shared_bytes = team.room(step)
        resident = team.resident(shared_bytes, limits) if shared_bytes <= limits.shared_bytes_per_block else 0
        if resident > 0 and (time := team.time(step, resident, limits)) < least:
            least, found = time, (team, step)
    return found and _tile(*found)


def _tile(team: Team, step: int) -> Tile:
    return Tile(team.work, team.form, team.threads, team.jobs, team.parts, step)


def _all_jobs(work: Work, form: Form) -> int:
    return -(-work.filters * work.width.phases // form.filters) * work.height.phases


def _teams(work: Work, form: Form) -> Iterator[tuple[Team, int]]:
    """Yield teams whose threads have enough neighbours, with steps; those that are left take other channels."""
    vector = 16 // dtypes.sums(work.dtype).itemsize
    columns = -(-work.width.positions // vector)
    rows = -(-columns // _WARP) if work.line else -(-work.height.positions // form.rows)
    every, steps = _all_jobs(work, form), sorted({min(step, work.channels) for step in _STEPS})
    widths = [_WARP] if work.line else [count for count in _counts(columns) if count >= min(8, columns)]
    for w, h, shares in product(widths, _counts(rows), (1, 2, 4, 8)):
        jobs = -(-every // shares)
        parts = 1 << min(3, (THREADS // (w * h * jobs)).bit_length() - 1) if w * h * jobs <= THREADS else 0
        if parts and (shares == 1 or shares < 2 * every):
            team = Team(work, form, (h, w), jobs, min(parts, steps[0]))
            for step in steps:
                if team.parts < min(parts, step):
                    team = Team(work, form, (h, w), jobs, min(parts, step))
                yield team, step


def _counts(needed: int) -> list[int]:
    """Return how many threads may stand along an axis: shares of it that are as equal as can be, and powers of two."""
    powers = [1, 2, 4, 8, 16, 32, 64, 128]
    shares = {-(-needed // -(-needed // most)) for most in powers}
    return sorted(shares | {power for power in powers if power < 2 * needed})
