"""Conv of few channels a group, depthwise above all, and ConvTranspose of stride 1, as a direct sum: one launch.

The kernel is in ``kernels_cu/conv/direct/rows.cu``, where its forms are explained. Axes are depth, row and column;
lower ranks are of unit depth and height. ConvTranspose of stride 1 is Conv with its taps turned round. Forms of stride
1 take dilations too, as several undilated Convs: each is of the rows and columns of one phase, a dilation apart. Words
of shared memory are of the accumulator's type; pitches let the threads of a warp read without bank conflicts, whichever
way their tiles run on to the next row, depth or channel.
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
GROUPED = 4  # filters of a thread where it makes more than one
_MOST_CHANNELS = 32  # of a group, and as many filters
_STEPS = (32, 16, 8, 4, 2, 1)  # channels in shared memory at a time
_COPY, _READ = 4, 4  # instructions for an element of x, and what a byte of it counts like; assumed
_WEIGHT = 40  # instructions for a weight; assumed
_RESIDENT = 5  # blocks that a multiprocessor should have room for


# ---------------------------------------------------------------- what it sees


@dataclass(frozen=True, slots=True)
class RowForm:
    """One form of the kernel."""

    filters: int  # of a thread
    rows: int  # of a thread, for each of its 16 bytes of columns
    kernel: int  # taps of both axes of the plane, 0 for any
    stride: int  # of both axes of the plane, 0 for any and for any dilation; of 1 also what divides the dilations
    line: bool  # a single axis: rows are strips of it
    registers: int  # that a thread needs for float32 sums
    efficiency: float  # share of multiplications among the main loop's instructions

    def __str__(self) -> str:
        if self.kernel:
            return f"{self.kernel}x{self.kernel}s{self.stride}"
        return "line" if self.line else "rows" if self.stride else "taps"

    def takes(self, view: Problem) -> bool:
        """Tell whether this form can solve a problem."""
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
    """Return how many undilated Convs a form makes along each axis, of outputs that lie so far apart; 0 for none."""
    if form.stride != 1:
        return 1, 1, 1
    axes = zip(view.taps[1:], view.column_strides[1:], view.dilations[1:], strict=True)
    return 1, *(1 if taps == 1 else 0 if dilation % stride else dilation // stride for taps, stride, dilation in axes)


def _refusal(problem: Problem) -> Refusal | None:
    """Return why no kernel of this family takes a problem; None where one does."""
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
    """The threads of a block along each axis: what they make of a problem, whatever the groups, filters and steps."""

    view: Problem
    form: RowForm
    threads: Ints

    @cached_property
    def phases(self) -> Ints:
        """Undilated Convs along each axis: of outputs that lie so far apart."""
        return _phases(self.view, self.form)

    @cached_property
    def dilations(self) -> Ints:
        """From one tap to the next, in x; where there is one tap, from one output to the next."""
        if self.form.stride != 1:
            return self.view.dilations
        (_, h, w), (_, across, along) = self.view.column_strides, self.phases
        return self.view.dilations[0], h * across, w * along

    @cached_property
    def lead(self) -> int:
        """Taps before the first window of a row, so that inputs stay aligned; unrolled forms expect SAME padding."""
        if self.form.kernel:
            return -(self.form.kernel // 2) % self.view.vector
        return -self.view.pads[2] % self.view.vector if self.form.stride and self.dilations[2] == 1 else 0

    @cached_property
    def per_thread(self) -> Ints:
        """Outputs of a thread along each axis."""
        return _outputs_of_thread(self.view, self.form)

    @cached_property
    def blocks_by_axis(self) -> Ints:
        depths, rows, columns = self.view.columns
        extents = depths, -(-rows // self.phases[1]), columns
        tiles = zip(extents, self.threads, self.per_thread, strict=True)
        deep, down, along = (-(-extent // (threads * made)) for extent, threads, made in tiles)
        return deep, down * self.row_phases, along

    @cached_property
    def row_phases(self) -> int:
        """Phases that have rows."""
        return min(self.phases[1], self.view.columns[1])

    @cached_property
    def spatial_blocks(self) -> int:
        """Blocks along the axes and the images, for each group and tile of filters."""
        return prod(self.blocks_by_axis) * self.view.batch

    def far(self) -> bool:
        """Tell whether phases count rows or columns, also behind the last ones, that need 64-bit indices."""
        view, (_, d, s) = self.view, self.dilations
        if (d, s) == (1, 1):
            return False
        rows, columns = view.coordinates[1] + 3 * d * self.extent[1], view.coordinates[2] + 3 * s * self.extent[2]
        offsets = (rows * abs(strides[3]) for strides in (view.x_strides, view.y_strides))
        return max(rows, columns, *offsets) >= params.INDEX_LIMIT

    # ---- shared memory

    @cached_property
    def extent(self) -> Ints:
        """What is staged of x for one channel; of columns also what fills the last vectors up."""
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
        """Words that pitches are multiples of."""
        return self.view.vector if self.form.stride else 1

    @cached_property
    def banks(self) -> int:
        """Banks of shared memory, of ``unit`` words each."""
        return 128 // self.view.word // self.unit

    @cached_property
    def inner_pitches(self) -> Ints:
        """Words from one phase of columns, row and depth to the next."""
        _, rows, columns = self.extent
        _, h, w = self._positions
        form, unit, banks, phases = self.form, self.unit, self.banks, self.input_phases
        phase = -(-columns // phases)
        if form.stride == 2 and self.view.word == 4:
            # Even and odd columns that are copied together go to other banks.
            phase = numbers.congruent(phase, 1, 16, 32)
        elif form.stride == 1 and phases > 1:
            # So do the vectors of neighbouring threads, which have phases in turn.
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
        """Threads along each axis, of columns those of one phase."""
        return *self.threads[:2], self.threads[2] // self.phases[2]

    def channel_pitch(self, step: int) -> int:
        """Return the words from one of so many channels to the next."""
        least = self.extent[0] * self.inner_pitches[2] // self.unit
        return self.unit * numbers.congruent(least, step, prod(self._positions), self.banks)

    @cached_property
    def row_taps(self) -> int:
        """Words of the weights of one row of the kernel."""
        lead = 0 if self.form.kernel else self.lead
        return numbers.whole(lead + self.view.taps[2], self.view.vector)

    @cached_property
    def channel_weights(self) -> int:
        """Words of the weights of one channel for the filters that a thread makes."""
        return prod(self.view.taps[:2]) * self.row_taps * self.form.filters

    def pitch_of_filters(self, step: int) -> int:
        """Return an odd number of vectors: weights of neighbouring groups begin in different banks."""
        return self.view.vector * (-(-step * self.channel_weights // self.view.vector) | 1)

    def words_of_inputs(self, groups: int, step: int) -> int:
        """Return the words before the weights: inputs, and what the warps turn their results round in."""
        inputs = numbers.whole(groups * step * self.channel_pitch(step), self.view.vector)
        return inputs + THREADS // 8 * 9 * self.view.vector

    def room(self, groups: int, filter_tiles: int, step: int) -> int:
        """Return the bytes of shared memory of a block."""
        weights = groups * filter_tiles * self.pitch_of_filters(step)
        return self.view.word * (self.words_of_inputs(groups, step) + weights)

    # ---- cost

    @cached_property
    def sums(self) -> float:
        """Instructions of a thread for its sums, and for the outputs that they become."""
        outputs = self.form.filters * self.form.rows * self.view.vector
        return outputs * prod(self.view.taps) * self.view.channels / self.form.efficiency + 4 * outputs

    def work_of_block(self, groups: int, filter_tiles: int, step: int) -> tuple[int, float]:
        """Return the elements that a block copies, and its instructions: of copying, of sums, of the rest.

        Warps without outputs cost little.
        """
        rounds = -(-self.view.channels // step)
        staged = groups * step * prod(self.extent) * rounds
        busy = numbers.whole(prod(self.threads) * groups * filter_tiles, WARP)
        weights = groups * filter_tiles * step * self.channel_weights * rounds
        return staged, _COPY * staged + _WEIGHT * weights + busy * self.sums + 200 * THREADS

    def channel_blocks(self, groups: int, filter_tiles: int) -> tuple[int, int]:
        """Return the blocks along the filters of a group, and along the groups."""
        return -(-self.view.filters // (filter_tiles * self.form.filters)), -(-self.view.group // groups)

    def cost(self, groups: int, filter_tiles: int, step: int) -> float:
        """Measure all blocks' time, where inputs that several of them read are not free."""
        staged, instructions = self.work_of_block(groups, filter_tiles, step)
        blocks = self.spatial_blocks * prod(self.channel_blocks(groups, filter_tiles))
        return blocks * (instructions + _READ * self.view.itemsize * staged)


@dataclass(frozen=True)
class RowTile(RowThreads):
    """What a block makes of a problem: so many threads along each axis, groups and tiles of filters."""

    groups: int
    filter_tiles: int
    step: int

    @property
    def blocks(self) -> int:
        return self.spatial_blocks * prod(self.channel_blocks(self.groups, self.filter_tiles))

    @property
    def pitches(self) -> Ints:
        """Words from one phase of columns, row, depth and channel to the next."""
        return (*self.inner_pitches, self.channel_pitch(self.step))

    @property
    def shared_bytes(self) -> int:
        return self.room(self.groups, self.filter_tiles, self.step)

    def fields(self) -> dict[str, Any]:
        """Return the struct's fields that the tile settles."""
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
    vector = view.vector
    if form.stride == 0:  # the outputs of a thread lie rows apart where there are enough of them, else columns
        return (1, vector, 1) if view.columns[1] >= vector else (1, 1, vector)
    return (1, 1, vector * form.rows) if form.line else (1, form.rows, vector)


def _lanes(count: int) -> int:
    """Return the power of two of threads that so many columns keep busy."""
    return min(THREADS.bit_length() - 1, (count - 1).bit_length())


@lru_cache(maxsize=1024)
def best(view: Problem, form: RowForm, limits: Limits) -> RowTile | None:
    """Return the tile with the least to do in all its blocks; None where the device has room for none."""
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
    outputs = _outputs_of_thread(view, form)
    phases = _phases(view, form)
    needed = [-(-extent // (count * phase)) for extent, count, phase in zip(view.columns, outputs, phases, strict=True)]
    depths, rows, columns = map(even_shares, needed)
    if form.stride == 0:  # neighbours make neighbours
        columns = [count for count in columns if count >= min(WARP, needed[2])]
    elif form.stride == 2:  # of odd numbers, no pitch lets the next row begin in the bank that comes next
        columns = sorted({count + count % 2 for count in columns})
    columns = [count * phases[2] for count in columns]
    for d, h, w in product(depths, rows, columns):
        if w * h * d <= THREADS:
            yield RowThreads(view, form, (d, h, w))


def _shares(threads: RowThreads) -> Iterator[tuple[int, int, int]]:
    """Yield the groups, tiles of filters and channels at a time that so many threads may have."""
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
    """Yield a candidate for every form that takes the problem and that the device has room for."""
    if refusal := _refusal(problem):
        yield refusal
        return
    view = view_of(problem)
    for form in FORMS:
        if not form.takes(view):
            continue
        tile = best(view, form, limits)
        if tile is not None and tile.blocks <= MOST_BLOCKS and not tile.far():
            # Inputs that several tiles meet mostly come from the L2 cache.
            _, instructions = tile.work_of_block(tile.groups, tile.filter_tiles, tile.step)
            busy = model.arithmetic(tile.blocks, instructions, problem.accumulator, 1.0, limits)
            seconds = model.overlapped(busy, model.memory(problem.bytes, limits))
            order = f"{problem.fused} over channels, taps"
            yield Candidate(variant(problem.dtype, form).name, seconds, partial(_plan, problem, tile), order)


# ---------------------------------------------------------------- launch


def _plan(problem: Problem, tile: RowTile) -> Plan:
    kernel, fields = variant(problem.dtype, tile.form), _fields(problem, tile)
    return on_arrays(problem, kernel, tile.blocks, fields, str(tile), tile.shared_bytes)


def _fields(problem: Problem, tile: RowTile) -> dict[str, Any]:
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
    """Return the most elements, at most a vector, in whose multiples rows begin and end, if the array does."""
    return gcd(vector, shape[-1], *(step for extent, step in zip(shape[:-1], strides[:-1], strict=True) if extent > 1))


_KERNEL = Kernel("conv/direct/rows.cu", "conv_direct", "DirectParams", THREADS, name="depthwise")
_GROUPED = replace(_KERNEL, name="grouped")


def variant(dtype: str, form: RowForm) -> Variant:
    """Return the kernel of one form, for every rank up to three."""
    sizes = (form.filters, form.rows, form.kernel, form.stride, form.line)
    blocks = blocks_by_registers(form.registers, dtypes.entry(dtype).accumulator, THREADS)
    kernel = _GROUPED if form.filters == GROUPED else _KERNEL
    return kernel.over(dtype, 3, str(form), types=types(dtype), sizes=sizes, blocks_per_sm=blocks)


def variants() -> Iterator[Variant]:
    return starmap(variant, product(dtypes.CONV_DTYPES, FORMS))
