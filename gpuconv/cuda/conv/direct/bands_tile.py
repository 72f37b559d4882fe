"""The tiles of ``kernels_cu/conv/direct/bands.cu``: what a block makes, how that lies in shared memory, what it costs.

Positions are the columns and rows of the correlation of stride 1 that Conv is, and ConvTranspose by its phases. Words
are of the accumulator's type.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from operator import itemgetter

from gpuconv.cuda.conv.direct.base import THREADS, WARP, even_shares
from gpuconv.cuda.plan import model, numbers
from gpuconv.cuda.plan.limits import RESERVED_BYTES, Limits, blocks_by_registers, nearest
from gpuconv.rules import dtypes

_BANK_BYTES = 128
_STEPS = (32, 16, 8)  # channels in shared memory at a time
# Instructions besides the sums, as in the machine code: for each element of x that is copied, of several bytes, of two,
# alone, or as one of neighbouring channels, in vectors or one by one; for each weight; before, for the first of its
# channels; for each output; of every thread in a round of channels, and at all.
_COPY, _COPY_HALF, _COPY_ONE, _COPY_CHANNELS, _COPY_CHANNEL, _WEIGHT = 1.6, 2.6, 6.3, 4.6, 6.8, 6.3
_PLACE, _PLACE_CHANNELS, _OUTPUT, _ROUND, _BLOCK = 80, 30, 30, 80, 300
_LATENCY = 1000  # cycles from a block's first load until the band is there; assumed
_ALONE = 0.25  # share of its instructions' time that a block alone on a multiprocessor waits besides; assumed


# ---------------------------------------------------------------- what it sees


@dataclass(frozen=True, slots=True)
class BandAxis:
    """One axis of a problem as a correlation of stride 1."""

    phases: int  # ConvTranspose's stride; of Conv 1
    taps: int  # of the kernel, with stride 1
    kernel: int  # taps of w
    positions: int
    start: int  # coordinate at position 0 of the input of the first tap
    origin: int  # of the output of phase 0


@dataclass(frozen=True, slots=True)
class BandView:
    """What is to be done: ``depths`` output planes of ``planes`` taps each, ``vectors`` as in the kernel's struct."""

    dtype: str
    copies: int  # images and groups
    channels: int
    filters: int
    depths: int
    planes: int
    height: BandAxis
    width: BandAxis
    line: bool
    vectors: int
    lines: int  # of the L1 cache that 32 neighbouring columns lie in, where they are copied one by one


@dataclass(frozen=True, slots=True)
class BandForm:
    """One form of the kernel."""

    filters: int  # of a thread
    rows: int  # of a thread, for each of its 16 bytes of columns
    kernel_rows: int  # taps of a kernel's part that is unrolled
    kernel_columns: int
    registers: int  # that a thread needs for float32 sums
    efficiency: float  # share of multiplications among the main loop's instructions

    def __str__(self) -> str:
        return f"{self.filters}x{self.rows}_{self.kernel_rows}x{self.kernel_columns}"

    def chunks(self, view: BandView) -> int:
        """Parts of a kernel's row."""
        return -(-view.width.taps // self.kernel_columns)

    def takes(self, view: BandView) -> bool:
        """Tell whether this form can solve a problem: vectors begin with each part of a row, large parts are whole."""
        unrolled = self.kernel_rows <= 3 or (view.height.taps == self.kernel_rows and view.height.phases == 1)
        return unrolled and (self.kernel_columns % 4 == 0 or self.chunks(view) == 1)


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True)
class BandTeam:
    """The threads of a block along rows and columns, its jobs and parts, however many channels it has at once."""

    view: BandView
    form: BandForm
    threads: tuple[int, int]  # along rows and columns
    jobs: int  # of so many threads each
    parts: int  # that share the channels of a job

    @cached_property
    def word(self) -> int:
        """Bytes of a word of shared memory."""
        return dtypes.sums(self.view.dtype).itemsize

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
        return self.positions[1] if self.view.line else 0

    @property
    def blocks_by_axis(self) -> tuple[int, int]:
        height, width = self.view.height.positions, self.view.width.positions
        if self.view.line:
            height, width = -(-width // self.positions[1]), 1
        return -(-height // self.positions[0]), -(-width // self.positions[1])

    @property
    def all_jobs(self) -> int:
        return _all_jobs(self.view, self.form)

    @property
    def job_blocks(self) -> int:
        return -(-self.all_jobs // self.jobs)

    @cached_property
    def blocks(self) -> int:
        return prod(self.blocks_by_axis) * self.view.depths * self.job_blocks * self.view.copies

    # ---- shared memory

    @cached_property
    def chunks(self) -> int:
        """Parts of a kernel's row."""
        return self.form.chunks(self.view)

    @cached_property
    def _window(self) -> int:
        """Vectors that a thread reads of a row for a part of the kernel's."""
        return (self.vector + self.form.kernel_columns - 2) // self.vector + 1

    @cached_property
    def _banks(self) -> int:
        """Banks of shared memory, each as wide as a vector."""
        return _BANK_BYTES // self.word // self.vector

    @cached_property
    def extent(self) -> tuple[int, int]:
        """Rows and columns of the band; of columns also what fills the last vectors up."""
        rows, columns = self.positions
        reach = (self.chunks - 1) * self.form.kernel_columns + self._window * self.vector
        return rows + self.view.height.taps - 1, columns - self.vector + reach

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
        if self.view.vectors < 0 or here >= WARP:
            return self.vector * (vectors | 1)
        return self.vector * numbers.congruent(vectors, 1, here, self._banks)

    @cached_property
    def row_weights(self) -> int:
        """Words of a kernel's row."""
        return self.chunks * numbers.whole(self.form.kernel_columns * self.form.filters, self.vector)

    @cached_property
    def channel_weights(self) -> int:
        return self.jobs * self.view.height.taps * self.row_weights

    @cached_property
    def plane(self) -> int:
        """Words of the sums of one filter; those of neighbouring phases begin in different banks."""
        apart = max(1, self._banks // self.view.width.phases) if self.view.width.phases > 1 else 0
        return numbers.congruent(prod(self.positions) // self.vector, 1, apart, self._banks) * self.vector

    def room(self, step: int) -> int:
        """Return the bytes of shared memory of a block."""
        band = step * (self.channel_pitch + self.channel_weights)
        return self.word * max(band, self.jobs * self.form.filters * self.plane)

    @cached_property
    def _most_resident(self) -> int:
        """Blocks that a multiprocessor has registers for."""
        return blocks_per_sm(self.form, self.view.dtype)

    def resident(self, shared_bytes: int, limits: Limits) -> int:
        """Return how many blocks of so many bytes a multiprocessor has room for."""
        return min(limits.shared_bytes_per_multiprocessor // (shared_bytes + RESERVED_BYTES), self._most_resident)

    # ---- cost

    @cached_property
    def _accumulator(self) -> str:
        """Type of the sums."""
        return dtypes.entry(self.view.dtype).accumulator

    @cached_property
    def _busy(self) -> int:
        """Warps with sums to make."""
        return -(-prod(self.threads) * self.jobs * self.parts // WARP)

    @cached_property
    def _kernel_rows(self) -> float:
        """Rows of the kernel that a warp meets, on average: those of all phases that its threads have."""
        height, spatial = self.view.height, prod(self.threads)
        if height.phases == 1 or height.kernel % height.phases == 0:
            return height.taps
        rows = [(height.kernel + height.phases - 1 - phase) // height.phases for phase in range(height.phases)]
        met = 0
        for first in range(0, WARP * self._busy, WARP):
            jobs = range(first // spatial, (first + WARP - 1) // spatial + 1)
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
            self._busy * WARP * channels * self._sums / self.form.efficiency
            + self._copies(rounds)
            + weights
            + _OUTPUT * outputs
            + THREADS * (_BLOCK + _ROUND * rounds)
        )

    @cached_property
    def _copied(self) -> int:
        """Channels that a block copies, once for every plane of the kernel."""
        return self.view.planes * self.view.channels

    def _copies(self, rounds: int) -> float:
        """Return the instructions of copying x."""
        rows, columns = self.extent
        if self.view.vectors < 0:  # a warp along each row, some threads a column
            threads, each = (2, _COPY_CHANNELS) if self.view.vectors < -1 else (8, _COPY_CHANNEL)
            cost = threads * _PLACE_CHANNELS * rounds + each * self._copied
            return rows * numbers.whole(columns, WARP // threads) * cost
        if self.view.vectors == 1:
            return rows * columns * (_PLACE * rounds + _COPY_ONE * self._copied)
        cost = _COPY if dtypes.entry(self.view.dtype).itemsize > 2 else _COPY_HALF
        return rows * columns * (_PLACE / self.vector * rounds + cost * self._copied)

    @cached_property
    def _reads(self) -> float:
        """Wavefronts of shared memory of a warp for a channel."""
        form, taps, size = self.form, self._kernel_rows, _BANK_BYTES // self.word
        rows = self.chunks * (taps + -(-taps // form.kernel_rows) * (form.rows - 1))
        return rows * self._window * self.vector * WARP / size + taps * self.row_weights / self.vector

    @cached_property
    def _fetched(self) -> float:
        """Wavefronts of shared memory of a block, and lines, for all of x."""
        # For as many words as there are banks: wavefronts, and lines of x.
        across = {1: float(self.view.lines), -1: 5.0}.get(self.view.vectors, 4.0 if self.view.vectors < 0 else 1.0)
        lines = 1.0 + across
        return lines * self._copied * prod(self.extent) / (_BANK_BYTES // self.word)

    def time(self, step: int, resident: int, limits: Limits) -> float:
        """Return the time of a launch but for that of the memory: of instructions, shared memory, or waiting."""
        rounds = -(-self.view.channels // step) * self.view.planes  # bands that a block copies
        channels = rounds * -(-min(step, self.view.channels) // self.parts)  # that a thread meets
        instructions = self.instructions(rounds, channels)
        wavefronts = self._busy * channels * self._reads + self._fetched
        efficiency = 1 / (1 + _ALONE / resident)
        issued = model.arithmetic(self.blocks, instructions, self._accumulator, efficiency, limits)
        shared = model.gathering(self.blocks, wavefronts * WARP, 1, limits)
        waves = -(-self.blocks // (limits.multiprocessors * resident))
        cycles = rounds * _LATENCY + instructions / min(THREADS, self._busy * WARP)
        return max(issued, shared, waves * cycles / nearest(limits.architecture).clock)


@dataclass(frozen=True)
class BandTile(BandTeam):
    """What a block makes, with so many channels in shared memory at once."""

    step: int

    @property
    def shared_bytes(self) -> int:
        return self.room(self.step)

    def seconds(self, limits: Limits) -> float:
        """Return the time of a launch but for that of the memory."""
        return self.time(self.step, self.resident(self.shared_bytes, limits), limits)

    @property
    def order(self) -> str:
        """In which the products of an output are added."""
        kernel = f"{self.form.kernel_rows} x {self.form.kernel_columns} taps"
        return f"{kernel} of {self.step} channels at a time in {self.parts} parts"

    def __str__(self) -> str:
        rows, columns = self.positions
        return (
            f"bands of {rows}x{columns} positions, {self.jobs} of {self.all_jobs} jobs of {self.form.filters} filters "
            f"a block, {self.step} channels at a time in {self.parts} parts; 32-bit indices"
        )


def blocks_per_sm(form: BandForm, dtype: str) -> int:
    """Return how many blocks the registers leave room for."""
    return blocks_by_registers(form.registers, dtypes.entry(dtype).accumulator, THREADS)


@lru_cache(maxsize=256)
def best(view: BandView, form: BandForm, limits: Limits) -> BandTile | None:
    """Return the tile that takes the least time; None where the device has room for none."""
    quickest = min(_timed(view, form, limits), key=itemgetter(0), default=None)
    return None if quickest is None else _tile(*quickest[1:])


@lru_cache(maxsize=256)
def in_order(view: BandView, form: BandForm, limits: Limits) -> tuple[BandTile, ...]:
    """Return for each order of sums, by channels at a time and parts that share them, the tile of the least time."""
    quickest: dict[tuple[int, int], tuple[float, BandTeam]] = {}
    for time, team, step in _timed(view, form, limits):
        order = step, team.parts
        quickest[order] = min(quickest.get(order, (time, team)), (time, team), key=itemgetter(0))
    return tuple(_tile(team, step) for (step, _), (_, team) in quickest.items())


def _timed(view: BandView, form: BandForm, limits: Limits) -> Iterator[tuple[float, BandTeam, int]]:
    """Yield the time of each team that the device has room for, the team, and its channels at a time."""
    for team, step in _teams(view, form):
        shared_bytes = team.room(step)
        resident = team.resident(shared_bytes, limits) if shared_bytes <= limits.shared_bytes_per_block else 0
        if resident > 0:
            yield team.time(step, resident, limits), team, step


def _tile(team: BandTeam, step: int) -> BandTile:
    return BandTile(team.view, team.form, team.threads, team.jobs, team.parts, step)


def _all_jobs(view: BandView, form: BandForm) -> int:
    return -(-view.filters * view.width.phases // form.filters) * view.height.phases


def _teams(view: BandView, form: BandForm) -> Iterator[tuple[BandTeam, int]]:
    """Yield teams whose threads have enough neighbours, with steps; those that are left take other channels."""
    vector = 16 // dtypes.sums(view.dtype).itemsize
    columns = -(-view.width.positions // vector)
    rows = -(-columns // WARP) if view.line else -(-view.height.positions // form.rows)
    all_jobs, steps = _all_jobs(view, form), sorted({min(step, view.channels) for step in _STEPS})
    widths = [WARP] if view.line else [count for count in _counts(columns) if count >= min(8, columns)]
    for w, h, shares in product(widths, _counts(rows), (1, 2, 4, 8)):
        jobs = -(-all_jobs // shares)
        parts = 1 << min(3, (THREADS // (w * h * jobs)).bit_length() - 1) if w * h * jobs <= THREADS else 0
        if parts and (shares == 1 or shares < 2 * all_jobs):
            team = BandTeam(view, form, (h, w), jobs, min(parts, steps[0]))
            for step in steps:
                if team.parts < min(parts, step):
                    team = BandTeam(view, form, (h, w), jobs, min(parts, step))
                yield team, step


def _counts(needed: int) -> list[int]:
    """Return how many threads may stand along an axis: shares of it that are as equal as can be, and powers of two."""
    return sorted({*even_shares(needed), *(power for power in (1, 2, 4, 8, 16, 32, 64, 128) if power < 2 * needed)})
