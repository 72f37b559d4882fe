"""Tiles of ``conv/direct/bands.cu``: what a block computes, its layout in shared memory, and its modelled cost.

*Positions* are rows and columns of the equivalent correlation of stride 1: Conv itself, or ConvTranspose per phase. A
*job* is a thread's filters (or filters × phases along W) for one phase along H. *Words* are elements of the
accumulator's type.
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
_STEPS = (32, 16, 8)  # channels staged in shared memory at a time
# Instructions other than multiply-adds, counted in SASS. Per element of x copied: in vectors, in 16-bit vectors,
# singly, as channel vectors, as single channels; per weight. Per element or weight and round, to compute its address,
# likewise for channels; per output; per thread and round; per thread.
_COPY, _COPY_HALF, _COPY_ONE, _COPY_CHANNELS, _COPY_CHANNEL, _WEIGHT = 1.6, 2.6, 6.3, 4.6, 6.8, 6.3
_PLACE, _PLACE_CHANNELS, _OUTPUT, _ROUND, _BLOCK = 80, 30, 30, 80, 300
_LATENCY = 1000  # cycles from a block's first load until its band has arrived (assumed)
_ALONE = 0.25  # stall time of a block that is alone on its SM, as a share of its instructions' time (assumed)


# ---------------------------------------------------------------- accepted problems


@dataclass(frozen=True, slots=True)
class BandAxis:
    """One axis of a problem as a correlation of stride 1."""

    phases: int  # ConvTranspose's stride; 1 for Conv
    taps: int  # taps of the stride-1 kernel: those of one phase
    kernel: int  # taps of w
    positions: int
    start: int  # input coordinate of the first tap at position 0
    origin: int  # output coordinate of phase 0 at position 0


@dataclass(frozen=True, slots=True)
class BandView:
    """The problem as the kernel sees it: ``depths`` output planes of ``planes`` taps each.

    ``vectors`` has the meaning of the field in the kernel's struct: elements per copy, negative for channels.
    """

    dtype: str
    copies: int  # images × groups
    channels: int
    filters: int
    depths: int
    planes: int
    height: BandAxis
    width: BandAxis
    line: bool
    vectors: int
    lines: int  # L1 lines that a warp touches when it copies 32 adjacent columns element by element


@dataclass(frozen=True, slots=True)
class BandForm:
    """A kernel form: the shape of a thread's register tile and its unrolled taps."""

    filters: int  # filters per thread
    rows: int  # rows per thread, each of 16 bytes of columns
    kernel_rows: int  # rows of the kernel that are unrolled
    kernel_columns: int
    registers: int  # registers per thread with float32 accumulators
    efficiency: float  # fraction of the main loop's instructions that are multiply-adds

    def __str__(self) -> str:
        return f"{self.filters}x{self.rows}_{self.kernel_rows}x{self.kernel_columns}"

    def chunks(self, view: BandView) -> int:
        """Return the number of chunks that a kernel row is divided into."""
        return -(-view.width.taps // self.kernel_columns)

    def takes(self, view: BandView) -> bool:
        """Return whether the form accepts the problem: chunks start at vectors, and large unrolled kernels match."""
        unrolled = self.kernel_rows <= 3 or (view.height.taps == self.kernel_rows and view.height.phases == 1)
        return unrolled and (self.kernel_columns % 4 == 0 or self.chunks(view) == 1)


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True)
class BandTeam:
    """How a block's threads are divided, independent of the number of channels staged at a time."""

    view: BandView
    form: BandForm
    threads: tuple[int, int]  # threads along rows and columns
    jobs: int  # jobs per block, each with all of those threads
    parts: int  # threads among which a job's channels are divided

    @cached_property
    def word(self) -> int:
        """Bytes per word of shared memory."""
        return dtypes.sums(self.view.dtype).itemsize

    @cached_property
    def vector(self) -> int:
        """Words per 16 bytes; also the columns per thread."""
        return 16 // self.word

    @cached_property
    def positions(self) -> tuple[int, int]:
        """Rows and columns of positions per block."""
        return self.threads[0] * self.form.rows, self.threads[1] * self.vector

    @property
    def fold(self) -> int:
        """Positions per row when a 1-D line is folded into rows; else 0."""
        return self.positions[1] if self.view.line else 0

    @property
    def blocks_by_axis(self) -> tuple[int, int]:
        """Blocks along H and W."""
        height, width = self.view.height.positions, self.view.width.positions
        if self.view.line:
            height, width = -(-width // self.positions[1]), 1
        return -(-height // self.positions[0]), -(-width // self.positions[1])

    @property
    def all_jobs(self) -> int:
        """Jobs of one output plane, image and group."""
        return _all_jobs(self.view, self.form)

    @property
    def job_blocks(self) -> int:
        """Blocks among which the jobs are divided."""
        return -(-self.all_jobs // self.jobs)

    @cached_property
    def blocks(self) -> int:
        """Blocks of the launch."""
        return prod(self.blocks_by_axis) * self.view.depths * self.job_blocks * self.view.copies

    # ---- shared memory

    @cached_property
    def chunks(self) -> int:
        """Chunks per kernel row."""
        return self.form.chunks(self.view)

    @cached_property
    def _window(self) -> int:
        """Vectors of a band's row that a thread reads per chunk of the kernel's row."""
        return (self.vector + self.form.kernel_columns - 2) // self.vector + 1

    @cached_property
    def _banks(self) -> int:
        """Shared-memory banks, each as wide as a vector."""
        return _BANK_BYTES // self.word // self.vector

    @cached_property
    def extent(self) -> tuple[int, int]:
        """Rows and columns of the band; columns are padded to whole vectors."""
        rows, columns = self.positions
        reach = (self.chunks - 1) * self.form.kernel_columns + self._window * self.vector
        return rows + self.view.height.taps - 1, columns - self.vector + reach

    @cached_property
    def row_pitch(self) -> int:
        """Words per row of the band, padded so that a warp's threads on adjacent rows hit different banks."""
        vectors = self.extent[1] // self.vector
        if self.threads[1] % self._banks:
            vectors = numbers.congruent(vectors, self.form.rows, self.threads[1], self._banks)
        return vectors * self.vector

    @cached_property
    def channel_pitch(self) -> int:
        """Words per channel of the band, padded so that threads of adjacent channels hit different banks."""
        vectors, here = self.extent[0] * self.row_pitch // self.vector, prod(self.threads) * self.jobs
        if self.view.vectors < 0 or here >= WARP:
            return self.vector * (vectors | 1)
        return self.vector * numbers.congruent(vectors, 1, here, self._banks)

    @cached_property
    def row_weights(self) -> int:
        """Words of weights per kernel row."""
        return self.chunks * numbers.whole(self.form.kernel_columns * self.form.filters, self.vector)

    @cached_property
    def channel_weights(self) -> int:
        """Words of weights per channel, for all jobs of a block."""
        return self.jobs * self.view.height.taps * self.row_weights

    @cached_property
    def plane(self) -> int:
        """Words of one filter's outputs in shared memory, padded so that adjacent phases hit different banks."""
        apart = max(1, self._banks // self.view.width.phases) if self.view.width.phases > 1 else 0
        return numbers.congruent(prod(self.positions) // self.vector, 1, apart, self._banks) * self.vector

    def room(self, step: int) -> int:
        """Return the bytes of shared memory per block with ``step`` channels at a time."""
        band = step * (self.channel_pitch + self.channel_weights)
        return self.word * max(band, self.jobs * self.form.filters * self.plane)

    @cached_property
    def _most_resident(self) -> int:
        """Blocks per SM that registers allow."""
        return blocks_per_sm(self.form, self.view.dtype)

    def resident(self, shared_bytes: int, limits: Limits) -> int:
        """Return the occupancy in blocks per SM, limited by ``shared_bytes`` per block and by registers."""
        return min(limits.shared_bytes_per_multiprocessor // (shared_bytes + RESERVED_BYTES), self._most_resident)

    # ---- cost

    @cached_property
    def _accumulator(self) -> str:
        """Dtype of the accumulators."""
        return dtypes.entry(self.view.dtype).accumulator

    @cached_property
    def _busy(self) -> int:
        """Warps of a block with outputs to compute."""
        return -(-prod(self.threads) * self.jobs * self.parts // WARP)

    @cached_property
    def _kernel_rows(self) -> float:
        """Mean rows of the kernel that a warp processes: those of every phase that its threads have."""
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
        """Multiply-add instructions of a thread per channel."""
        form = self.form
        return form.filters * form.rows * self.vector * self._kernel_rows * form.kernel_columns * self.chunks

    def instructions(self, rounds: int, channels: int) -> float:
        """Return the instructions of a block, counted per thread.

        ``rounds`` is the number of bands it stages, ``channels`` the channels that each thread sums over.
        """
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
        """Channels that a block copies, over all planes of the kernel."""
        return self.view.planes * self.view.channels

    def _copies(self, rounds: int) -> float:
        """Return the instructions for copying x to shared memory."""
        rows, columns = self.extent
        if self.view.vectors < 0:  # each warp copies along a row, with several threads per column
            threads, each = (2, _COPY_CHANNELS) if self.view.vectors < -1 else (8, _COPY_CHANNEL)
            cost = threads * _PLACE_CHANNELS * rounds + each * self._copied
            return rows * numbers.whole(columns, WARP // threads) * cost
        if self.view.vectors == 1:
            return rows * columns * (_PLACE * rounds + _COPY_ONE * self._copied)
        cost = _COPY if dtypes.entry(self.view.dtype).itemsize > 2 else _COPY_HALF
        return rows * columns * (_PLACE / self.vector * rounds + cost * self._copied)

    @cached_property
    def _reads(self) -> float:
        """Shared-memory wavefronts of a warp per channel."""
        form, taps, size = self.form, self._kernel_rows, _BANK_BYTES // self.word
        rows = self.chunks * (taps + -(-taps // form.kernel_rows) * (form.rows - 1))
        return rows * self._window * self.vector * WARP / size + taps * self.row_weights / self.vector

    @cached_property
    def _fetched(self) -> float:
        """Shared-memory wavefronts and L2 lines that one block needs to stage all of its x."""
        # L2 lines per 128 bytes staged; the store adds one wavefront.
        across = {1: float(self.view.lines), -1: 5.0}.get(self.view.vectors, 4.0 if self.view.vectors < 0 else 1.0)
        lines = 1.0 + across
        return lines * self._copied * prod(self.extent) / (_BANK_BYTES // self.word)

    def time(self, step: int, resident: int, limits: Limits) -> float:
        """Return the modelled seconds without DRAM: the largest of instruction issue, shared memory, and latency."""
        rounds = -(-self.view.channels // step) * self.view.planes  # bands that a block stages
        channels = rounds * -(-min(step, self.view.channels) // self.parts)  # channels per thread
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
    """A block's work: its team, with ``step`` channels staged at a time."""

    step: int

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory per block."""
        return self.room(self.step)

    def seconds(self, limits: Limits) -> float:
        """Return the modelled seconds of the launch, without DRAM traffic."""
        return self.time(self.step, self.resident(self.shared_bytes, limits), limits)

    @property
    def order(self) -> str:
        """Name of the order in which an output's products are summed."""
        kernel = f"{self.form.kernel_rows} x {self.form.kernel_columns} taps"
        return f"{kernel} of {self.step} channels at a time in {self.parts} parts"

    def __str__(self) -> str:
        rows, columns = self.positions
        return (
            f"bands of {rows}x{columns} positions, {self.jobs} of {self.all_jobs} jobs of {self.form.filters} filters "
            f"a block, {self.step} channels at a time in {self.parts} parts; 32-bit indices"
        )


def blocks_per_sm(form: BandForm, dtype: str) -> int:
    """Return the blocks per SM that registers allow."""
    return blocks_by_registers(form.registers, dtypes.entry(dtype).accumulator, THREADS)


@lru_cache(maxsize=256)
def best(view: BandView, form: BandForm, limits: Limits) -> BandTile | None:
    """Return the tile with the least modelled time; None if none fits the device."""
    quickest = min(_timed(view, form, limits), key=itemgetter(0), default=None)
    return None if quickest is None else _tile(*quickest[1:])


@lru_cache(maxsize=256)
def in_order(view: BandView, form: BandForm, limits: Limits) -> tuple[BandTile, ...]:
    """Return the fastest tile of each order of summation: each ``step`` and number of channel parts."""
    quickest: dict[tuple[int, int], tuple[float, BandTeam]] = {}
    for time, team, step in _timed(view, form, limits):
        order = step, team.parts
        quickest[order] = min(quickest.get(order, (time, team)), (time, team), key=itemgetter(0))
    return tuple(_tile(team, step) for (step, _), (_, team) in quickest.items())


def _timed(view: BandView, form: BandForm, limits: Limits) -> Iterator[tuple[float, BandTeam, int]]:
    """Yield (seconds, team, step) of each tile that fits the device."""
    for team, step in _teams(view, form):
        shared_bytes = team.room(step)
        resident = team.resident(shared_bytes, limits) if shared_bytes <= limits.shared_bytes_per_block else 0
        if resident > 0:
            yield team.time(step, resident, limits), team, step


def _tile(team: BandTeam, step: int) -> BandTile:
    """Return a team with the number of channels that it stages at a time."""
    return BandTile(team.view, team.form, team.threads, team.jobs, team.parts, step)


def _all_jobs(view: BandView, form: BandForm) -> int:
    """Return the jobs of one output plane, image and group."""
    return -(-view.filters * view.width.phases // form.filters) * view.height.phases


def _teams(view: BandView, form: BandForm) -> Iterator[tuple[BandTeam, int]]:
    """Yield teams with their steps; threads that positions do not need divide the channels among them."""
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
    """Return the numbers of threads to try along an axis: even divisions of it, and powers of two."""
    return sorted({*even_shares(needed), *(power for power in (1, 2, 4, 8, 16, 32, 64, 128) if power < 2 * needed)})
