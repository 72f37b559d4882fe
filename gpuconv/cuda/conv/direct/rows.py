"""Direct Conv with few channels per group, depthwise above all (``conv/direct/rows.cu``): one launch, w read in place.

A block stages a tile of x with its halo, and the weights, in shared memory; a thread computes a register tile of
adjacent outputs. It takes arrays with W innermost (NCHW), and several groups of at most 32 channels and filters, or a
single channel. ConvTranspose of stride 1 is a Conv with reversed taps.

Axes are D, H and W; shorter problems get axes of one element. A dilated Conv is computed as several undilated ones, its
*phases*: the rows and columns that are a dilation apart. *Words* are elements of the accumulator's type; pitches in
shared memory avoid bank conflicts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import product, starmap
from math import gcd, prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.conv.direct.base import THREADS, WARP, even_shares, on_arrays, unfit, view_of, weights_of
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import MOST_BLOCKS, RANK, Candidate, Offer, Plan, Refusal, model, numbers
from gpuconv.cuda.plan.limits import RESERVED_BYTES, Limits, blocks_by_registers
from gpuconv.cuda.plan.strided import filled
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

NAME = "direct sums of rows"
GROUPED = 4  # filters per thread of the forms with more than one
_MOST_CHANNELS = 32  # channels per group, and filters per group
_STEPS = (32, 16, 8, 4, 2, 1)  # channels staged in shared memory at a time
_COPY, _READ = 4, 4  # instructions per staged element, and the cost of reading one byte of it (assumed)
_WEIGHT = 40  # instructions per weight (assumed)
_RESIDENT = 5  # blocks per SM that shared memory should allow


# ---------------------------------------------------------------- accepted problems


@dataclass(frozen=True, slots=True)
class RowForm:
    """A kernel form: the shape of a thread's register tile and the geometry it is specialised for."""

    filters: int  # filters per thread
    rows: int  # rows per thread, each of 16 bytes of columns
    kernel: int  # taps along both H and W; 0 for any number
    # stride along both H and W; 0 for any stride and dilation; 1 also covers strides that divide the dilations
    stride: int
    line: bool  # 1-D problems, where rows are strips of the line
    registers: int  # registers per thread with float32 accumulators
    efficiency: float  # fraction of the main loop's instructions that are multiply-adds

    def __str__(self) -> str:
        if self.kernel:
            return f"{self.kernel}x{self.kernel}s{self.stride}"
        return "line" if self.line else "rows" if self.stride else "taps"

    def takes(self, view: Problem) -> bool:
        """Return whether the form accepts the problem."""
        if (self.filters == 1) != (view.channels == 1 and view.filters < GROUPED):
            return False
        if self.kernel and view.taps[1:] != (self.kernel,) * 2:
            return False
        if self.stride == 2:
            return (view.column_strides[1:], view.dilations[1:]) == ((2, 2), (1, 1))
        if self.stride == 1:
            flat = view.columns[:2] + view.taps[:2] == (1, 1, 1, 1)
            return self.line == flat and 0 not in _phases(view, self)
        return True


FORMS = (
    RowForm(1, 7, 3, 1, False, 72, 0.84),
    RowForm(1, 7, 3, 2, False, 96, 0.72),
    RowForm(1, 7, 5, 1, False, 96, 0.92),
    RowForm(1, 7, 5, 2, False, 112, 0.85),
    RowForm(1, 7, 7, 1, False, 128, 0.95),
    RowForm(1, 7, 7, 2, False, 128, 0.91),
    RowForm(1, 7, 0, 1, False, 96, 0.69),
    RowForm(1, 8, 0, 1, True, 96, 0.77),
    RowForm(1, 1, 0, 0, False, 64, 0.15),
    RowForm(GROUPED, 3, 3, 1, False, 128, 0.91),
    RowForm(GROUPED, 3, 3, 2, False, 128, 0.88),
    RowForm(GROUPED, 1, 0, 0, False, 80, 0.38),
)


def _phases(view: Problem, form: RowForm) -> Ints:
    """Return the number of undilated Convs per axis that a form computes a dilated one as; 0 if it cannot."""
    if form.stride != 1:
        return 1, 1, 1
    axes = zip(view.taps[1:], view.column_strides[1:], view.dilations[1:], strict=True)
    return 1, *(1 if taps == 1 else 0 if dilation % stride else dilation // stride for taps, stride, dilation in axes)


def _refusal(problem: Problem) -> Refusal | None:
    """Return why this family does not accept the problem; None if it does."""
    if problem.rank > 3:
        return Refusal(f"{problem.rank} spatial axes; it has three")
    if not 1 <= problem.channels <= _MOST_CHANNELS or problem.filters > _MOST_CHANNELS:
        return Refusal(
            f"{problem.channels} channels, {problem.filters} filters a group; it takes 1 to {_MOST_CHANNELS} of both",
            plain=problem.group == 1,
        )
    if problem.group == 1 and problem.channels > 1:
        return Refusal(
            f"a single group of {problem.channels} channels; it takes several groups, or one channel", plain=True
        )
    if any(stride != 1 for stride in problem.strides):
        return Refusal(f"ConvTranspose with strides {problem.strides}; it takes those of stride 1")
    steps = ((problem.x_shape, problem.x_strides), (problem.y_shape, problem.y_strides))
    if any(shape[-1] > 1 and strides[-1] != 1 for shape, strides in steps):
        return Refusal("neighbours of a row do not lie next to each other in x and y")
    return unfit(problem)


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True)
class RowThreads:
    """The threads of a block along each axis, independent of its groups, filters and staged channels."""

    view: Problem
    form: RowForm
    threads: Ints

    @cached_property
    def phases(self) -> Ints:
        """Number of undilated Convs per axis; outputs of one are this far apart."""
        return _phases(self.view, self.form)

    @cached_property
    def dilations(self) -> Ints:
        """Distance in x between adjacent taps; where there is one tap, between adjacent outputs."""
        if self.form.stride != 1:
            return self.view.dilations
        (_, h, w), (_, across, along) = self.view.column_strides, self.phases
        return self.view.dilations[0], h * across, w * along

    @cached_property
    def lead(self) -> int:
        """Columns of padding before a row's first window that keep inputs aligned; SAME padding if unrolled."""
        if self.form.kernel:
            return -(self.form.kernel // 2) % self.view.vector
        return -self.view.pads[2] % self.view.vector if self.form.stride and self.dilations[2] == 1 else 0

    @cached_property
    def per_thread(self) -> Ints:
        """Outputs per thread along each axis."""
        return _outputs_of_thread(self.view, self.form)

    @cached_property
    def blocks_by_axis(self) -> Ints:
        """Blocks along D, H (with its phases) and W."""
        depths, rows, columns = self.view.columns
        extents = depths, -(-rows // self.phases[1]), columns
        tiles = zip(extents, self.threads, self.per_thread, strict=True)
        deep, down, along = (-(-extent // (threads * outputs)) for extent, threads, outputs in tiles)
        return deep, down * self.row_phases, along

    @cached_property
    def row_phases(self) -> int:
        """Phases along H that have outputs."""
        return min(self.phases[1], self.view.columns[1])

    @cached_property
    def spatial_blocks(self) -> int:
        """Blocks along the spatial axes and the batch, for each group and tile of filters."""
        return prod(self.blocks_by_axis) * self.view.batch

    def far(self) -> bool:
        """Return whether coordinates of dilated rows or columns, including those beyond the end, need 64 bits."""
        view, (_, d, s) = self.view, self.dilations
        if (d, s) == (1, 1):
            return False
        rows, columns = view.coordinates[1] + 3 * d * self.extent[1], view.coordinates[2] + 3 * s * self.extent[2]
        offsets = (rows * abs(strides[3]) for strides in (view.x_strides, view.y_strides))
        return max(rows, columns, *offsets) >= params.INDEX_LIMIT

    # ---- shared memory

    @cached_property
    def extent(self) -> Ints:
        """Extents of x staged per channel; columns are padded to whole vectors."""
        view, (_, made, last) = self.view, self.per_thread
        axes = zip(self.threads, self.per_thread, view.column_strides, view.taps, view.dilations, strict=True)
        depths, rows, columns = ((t * e - 1) * s + (k - 1) * d + 1 for t, e, s, k, d in axes)
        stride, vector, phases = self.form.stride, view.vector, self.phases[2]
        if stride:
            rows = (self.threads[1] * made - 1) * stride + view.taps[1]
        if self.form.kernel:
            reach = self.lead + (vector - 1) * stride + self.form.kernel - 1
            columns = stride * (self.threads[2] * vector + phases * (reach // stride // vector * vector))
        elif stride:
            columns = self.threads[2] * last + phases * self.row_taps
        return depths, rows, columns

    @cached_property
    def unit(self) -> int:
        """Pitches are multiples of this many words."""
        return self.view.vector if self.form.stride else 1

    @cached_property
    def banks(self) -> int:
        """Shared-memory banks of ``unit`` words each."""
        return 128 // self.view.word // self.unit

    @cached_property
    def inner_pitches(self) -> Ints:
        """Words of shared memory per phase of columns, per row and per depth."""
        _, rows, columns = self.extent
        _, h, w = self._positions
        form, unit, banks, phases = self.form, self.unit, self.banks, self.input_phases
        phase = -(-columns // phases)
        if form.stride == 2 and self.view.word == 4:
            # even and odd columns, copied together, go to different banks
            phase = numbers.congruent(phase, 1, 16, 32)
        elif form.stride == 1 and phases > 1:
            # so do the vectors of adjacent threads, which cycle through the phases
            phase = unit * numbers.congruent(phase // unit, 1, phases if phases % 2 else max(banks // phases, 1), banks)
        apart = form.stride * form.rows if form.stride else self.view.column_strides[1]
        row = unit * numbers.congruent(-(-phase * phases // unit), apart, w, banks)
        depth = unit * numbers.congruent(rows * row // unit, self.view.column_strides[0], w * h, banks)
        return phase, row, depth

    @cached_property
    def input_phases(self) -> int:
        """Phases of columns in shared memory."""
        if self.form.stride == 1:
            return self.phases[2]
        return self.form.stride or self.view.column_strides[2]

    @cached_property
    def _positions(self) -> Ints:
        """Threads along each axis; along W, those of one phase."""
        return *self.threads[:2], self.threads[2] // self.phases[2]

    def channel_pitch(self, step: int) -> int:
        """Return the words of shared memory per channel, when ``step`` channels are staged at a time."""
        least = self.extent[0] * self.inner_pitches[2] // self.unit
        return self.unit * numbers.congruent(least, step, prod(self._positions), self.banks)

    @cached_property
    def row_taps(self) -> int:
        """Words of weights per kernel row."""
        lead = 0 if self.form.kernel else self.lead
        return numbers.whole(lead + self.view.taps[2], self.view.vector)

    @cached_property
    def channel_weights(self) -> int:
        """Words of weights per channel, for the filters of one thread."""
        return prod(self.view.taps[:2]) * self.row_taps * self.form.filters

    def pitch_of_filters(self, step: int) -> int:
        """Return the words of weights per tile of filters: an odd number of vectors, against bank conflicts."""
        return self.view.vector * (-(-step * self.channel_weights // self.view.vector) | 1)

    def words_of_inputs(self, groups: int, step: int) -> int:
        """Return the words before the weights: staged x, and the buffer through which warps transpose their outputs."""
        inputs = numbers.whole(groups * step * self.channel_pitch(step), self.view.vector)
        return inputs + THREADS // 8 * 9 * self.view.vector

    def room(self, groups: int, filter_tiles: int, step: int) -> int:
        """Return the bytes of shared memory per block."""
        weights = groups * filter_tiles * self.pitch_of_filters(step)
        return self.view.word * (self.words_of_inputs(groups, step) + weights)

    # ---- cost

    @cached_property
    def sums(self) -> float:
        """Instructions per thread for its multiply-adds and outputs."""
        outputs = self.form.filters * self.form.rows * self.view.vector
        return outputs * prod(self.view.taps) * self.view.channels / self.form.efficiency + 4 * outputs

    def work_of_block(self, groups: int, filter_tiles: int, step: int) -> tuple[int, float]:
        """Return the elements that a block stages, and its instructions; warps without outputs cost little."""
        rounds = -(-self.view.channels // step)
        staged = groups * step * prod(self.extent) * rounds
        busy = numbers.whole(prod(self.threads) * groups * filter_tiles, WARP)
        weights = groups * filter_tiles * step * self.channel_weights * rounds
        return staged, _COPY * staged + _WEIGHT * weights + busy * self.sums + 200 * THREADS

    def channel_blocks(self, groups: int, filter_tiles: int) -> tuple[int, int]:
        """Return the blocks along the filters of a group, and along the groups."""
        return -(-self.view.filters // (filter_tiles * self.form.filters)), -(-self.view.group // groups)

    def cost(self, groups: int, filter_tiles: int, step: int) -> float:
        """Return a relative cost of all blocks, in instructions, with a charge for every staged byte."""
        staged, instructions = self.work_of_block(groups, filter_tiles, step)
        blocks = self.spatial_blocks * prod(self.channel_blocks(groups, filter_tiles))
        return blocks * (instructions + _READ * self.view.itemsize * staged)


@dataclass(frozen=True)
class RowTile(RowThreads):
    """A block's work: its threads along each axis, its groups, tiles of filters, and channels staged at a time."""

    groups: int
    filter_tiles: int
    step: int

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        return self.spatial_blocks * prod(self.channel_blocks(self.groups, self.filter_tiles))

    @property
    def pitches(self) -> Ints:
        """Words of shared memory per phase of columns, per row, per depth and per channel."""
        return (*self.inner_pitches, self.channel_pitch(self.step))

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory per block."""
        return self.room(self.groups, self.filter_tiles, self.step)

    def fields(self) -> dict[str, Any]:
        """Return the struct's fields that depend on the tile."""
        view = self.view
        phase, row, depth, channel = self.pitches
        filter_blocks, group_blocks = self.channel_blocks(self.groups, self.filter_tiles)
        columns, (_, made, last) = self.extent[2], self.per_thread
        _, h, w = self.threads
        return {
            **params.members(self, "lead", "step", "extent"),
            "phase_pitch": phase,
            "row_pitch": row,
            "depth_pitch": depth,
            "channel_pitch": channel,
            "weights": self.words_of_inputs(self.groups, self.step),
            "filter_weights": self.step * self.channel_weights,
            "filter_pitch": self.pitch_of_filters(self.step),
            "lanes": [_lanes(-(-columns // width)) for width in (1, 2, 4)],
            "row_lanes": _lanes(self.extent[1]),
            "outputs": [self.threads[0], h * made * self.phases[1], w * last],
            "spread_row": self.phases[1] if self.form.stride else h if made > 1 else 0,
            "spread_column": self.phases[2] if self.form.stride else w if last > 1 else 0,
            "strip": self._positions[2] * view.vector,
            "groups_here": self.groups,
            "filter_bits": self.filter_tiles.bit_length() - 1,
            "tiles": self.threads,
            "blocks": self.blocks_by_axis,
            "filter_blocks": filter_blocks,
            "group_blocks": group_blocks,
            "taps": (*view.taps[:2], self.row_taps),
            "by_step": self.step,
            "row_phases": self.row_phases,
            "column_phases": self.input_phases,
            "row_taps": view.taps[2],
        }

    def __str__(self) -> str:
        d, h, w = (threads * made for threads, made in zip(self.threads, self.per_thread, strict=True))
        apart = f", in rows {self.phases[1]} apart" if self.phases[1] > 1 else ""
        return (
            f"direct: blocks of {d}x{h}x{w} outputs{apart}, of {self.filter_tiles * self.form.filters} filters in "
            f"{self.groups} groups, {self.step} channels of each at a time; 32-bit indices"
        )


def _outputs_of_thread(view: Problem, form: RowForm) -> Ints:
    """Return the outputs per thread along D, H and W."""
    vector = view.vector
    if form.stride == 0:  # a thread's outputs are rows apart if there are enough rows, else columns apart
        return (1, vector, 1) if view.columns[1] >= vector else (1, 1, vector)
    return (1, 1, vector * form.rows) if form.line else (1, form.rows, vector)


def _lanes(count: int) -> int:
    """Return log2 of the threads that ``count`` columns keep busy."""
    return min(THREADS.bit_length() - 1, (count - 1).bit_length())


@lru_cache(maxsize=1024)
def best(view: Problem, form: RowForm, limits: Limits) -> RowTile | None:
    """Return the tile with the least total cost; None if none fits shared memory.

    Tiles that allow ``_RESIDENT`` blocks per SM are preferred.
    """
    rooms = (limits.shared_bytes_per_multiprocessor // _RESIDENT - RESERVED_BYTES, limits.shared_bytes_per_block)
    tiles = [
        (threads.room(*shares), threads, shares) for threads in _threads(view, form) for shares in _shares(threads)
    ]
    for room in rooms:
        fitting = [(threads, shares) for size, threads, shares in tiles if size <= room]
        if fitting:
            threads, shares = min(fitting, key=lambda pair: pair[0].cost(*pair[1]))
            return RowTile(view, form, threads.threads, *shares)
    return None


def _threads(view: Problem, form: RowForm) -> Iterator[RowThreads]:
    """Yield the divisions of a block's threads among D, H and W to try."""
    outputs = _outputs_of_thread(view, form)
    phases = _phases(view, form)
    needed = [-(-extent // (count * phase)) for extent, count, phase in zip(view.columns, outputs, phases, strict=True)]
    depths, rows, columns = map(even_shares, needed)
    if form.stride == 0:  # adjacent threads compute adjacent outputs
        columns = [count for count in columns if count >= min(WARP, needed[2])]
    elif form.stride == 2:  # with an odd number, no pitch puts adjacent rows into adjacent banks
        columns = sorted({count + count % 2 for count in columns})
    columns = [count * phases[2] for count in columns]
    for d, h, w in product(depths, rows, columns):
        if w * h * d <= THREADS:
            yield RowThreads(view, form, (d, h, w))


def _shares(threads: RowThreads) -> Iterator[tuple[int, int, int]]:
    """Yield the (groups, tiles of filters, staged channels) possible for this many threads."""
    view, spatial = threads.view, prod(threads.threads)
    filter_tiles = -(-view.filters // threads.form.filters)
    for filters in (1, 2, 4, 8):
        room = THREADS // (spatial * filters)
        if room == 0 or filters >= 2 * filter_tiles:
            continue
        groups = min(view.group, room)
        for some in {groups, -(-groups // 2), -(-groups // 4), 1}:
            yield some, filters, view.channels
        for step in _STEPS:
            if step < view.channels:
                yield 1, filters, step


# ---------------------------------------------------------------- offers


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield the best tile of each form that accepts the problem and fits the device."""
    if refusal := _refusal(problem):
        yield refusal
        return
    view = view_of(problem)
    for form in FORMS:
        if not form.takes(view):
            continue
        tile = best(view, form, limits)
        if tile is not None and tile.blocks <= MOST_BLOCKS and not tile.far():
            # Inputs that several tiles read mostly hit the L2 cache.
            _, instructions = tile.work_of_block(tile.groups, tile.filter_tiles, tile.step)
            busy = model.arithmetic(tile.blocks, instructions, problem.accumulator, 1.0, limits)
            seconds = model.overlapped(busy, model.memory(problem.bytes, limits))
            order = f"{problem.fused} over channels, taps"
            yield Candidate(variant(problem.dtype, form).name, seconds, partial(_plan, problem, tile), order)


# ---------------------------------------------------------------- launch


def _plan(problem: Problem, tile: RowTile) -> Plan:
    """Return the plan of this candidate."""
    kernel, fields = variant(problem.dtype, tile.form), _fields(problem, tile)
    return on_arrays(problem, kernel, tile.blocks, fields, str(tile), tile.shared_bytes)


def _fields(problem: Problem, tile: RowTile) -> dict[str, Any]:
    """Return the fields of the kernel's parameter struct."""
    view = tile.view
    w_first, w_stride = weights_of(problem)
    x_strides, y_strides = (
        (*strides[:2], *filled(strides[2:], RANK, 0)[:2], 1) for strides in (problem.x_strides, problem.y_strides)
    )
    first, together = view.pads[2] + tile.lead * tile.dilations[2], tile.form.stride != 1 or tile.dilations[2] == 1
    return {
        "groups": view.group,
        "channels": view.channels,
        "filters": view.filters,
        **params.array_fields("x", x_strides, view.x_shape[2:]),
        **params.array_fields("y", y_strides, view.columns),
        "w_first": w_first,
        **problem.w_steps,
        "w_stride": w_stride,
        "b_stride": problem.b_stride or 0,
        "stride": view.column_strides,
        "dilation": tile.dilations,
        "start": [-pad for pad in (*view.pads[:2], first)],
        "x_width": gcd(_width(problem.x_shape, problem.x_strides, view.vector), first) if together else 1,
        "y_width": _width(problem.y_shape, problem.y_strides, view.vector) if together else 1,
        "y_step": y_strides[3] * tile.phases[1],
        **tile.fields(),
    }


def _width(shape: Ints, strides: Ints, vector: int) -> int:
    """Return the widest copy, in elements up to ``vector``, that all rows are aligned to, given an aligned array."""
    return gcd(vector, shape[-1], *(step for extent, step in zip(shape[:-1], strides[:-1], strict=True) if extent > 1))


_KERNEL = Kernel("conv/direct/rows.cu", "conv_direct", "DirectParams", THREADS, name="depthwise")
_GROUPED = replace(_KERNEL, name="grouped")


def variant(dtype: str, form: RowForm) -> Variant:
    """Return the kernel variant of a form, for any rank up to three."""
    sizes = (form.filters, form.rows, form.kernel, form.stride, form.line)
    blocks = blocks_by_registers(form.registers, dtypes.entry(dtype).accumulator, THREADS)
    kernel = _GROUPED if form.filters == GROUPED else _KERNEL
    return kernel.over(dtype, 3, str(form), types=types(dtype), sizes=sizes, blocks_per_sm=blocks)


def variants() -> Iterator[Variant]:
    """Yield every kernel variant of this family."""
    return starmap(variant, product(dtypes.CONV_DTYPES, FORMS))
