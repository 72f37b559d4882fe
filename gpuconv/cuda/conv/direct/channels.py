"""Direct depthwise Conv with channels last (``conv/direct/channels.cu``): one launch, w read in place.

A thread computes a register tile of outputs for one vector of channels, so loads and stores are coalesced along the
channels. Chosen for one input channel and up to 4 filters per group when x and y have contiguous channels.
ConvTranspose of stride 1 is a Conv with reversed taps. Three spatial axes; shorter problems get D or H of one element.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import product, starmap
from math import gcd, prod
from operator import itemgetter
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.conv.direct.base import THREADS, WARP, on_arrays, unfit, view_of, weights_of
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import MOST_BLOCKS, RANK, Candidate, Limits, Offer, Plan, Refusal, model, numbers
from gpuconv.cuda.plan.strided import array_fields
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

NAME = "direct sums of channels"
_MOST_FILTERS = 4  # filters per input channel
_OUTPUTS = 16  # outputs per thread and channel
_WEIGHT_BYTES = 32 * 1024  # limit on weights in shared memory, unless one row of the kernel needs more
_LINE, _BURST = 128, 64  # bytes of an L1 line, and of a DRAM burst
_VECTORS = (1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64, 128)  # limits on threads along the channels
# Instructions, counted in SASS for sm_90a. Per input in registers, loaded as a vector or element by element; in the
# latter case, per further element of a row of x, its address; per kernel row; per tap, with the load of its weights.
# Estimated: a thread's remaining instructions; per output element stored singly; per weight converted to the
# accumulator's type.
_INPUT = {"float16": 11, "bfloat16": 11, "float32": 8, "float64": 8}
_INPUT_SINGLY = {"float16": 16, "bfloat16": 16, "float32": 12, "float64": 8}
_FOUND = 14
_ROW, _TAP, _REST, _SINGLY, _WEIGHT = 10, 3, 400, 4, 30
# Taps between adjacent windows of a thread (0: any stride); taps in registers at a time; columns per thread.
FORMS = ((1, 7, 8), (2, 4, 4), (0, 1, 4))


# ---------------------------------------------------------------- accepted problems


def _refusal(problem: Problem) -> Refusal | None:
    """Return why this family does not accept the problem; None if it does."""
    if problem.group == 1 or problem.x_strides[1] != 1 or problem.y_strides[1] != 1:
        return Refusal("channels do not lie next to each other in x and y", plain=True)
    if problem.rank > 3:
        return Refusal(f"{problem.rank} spatial axes; it has three")
    if problem.channels != 1 or problem.filters > _MOST_FILTERS:
        return Refusal(
            f"{problem.channels} channels and {problem.filters} filters a group; it takes 1 and up to {_MOST_FILTERS}"
        )
    if any(stride != 1 for stride in problem.strides):
        return Refusal(f"ConvTranspose with strides {problem.strides}; it takes those of stride 1")
    # bytes between adjacent inputs of a window
    step = max(problem.column_strides[-1], problem.dilations[-1]) * problem.x_strides[-1] * problem.itemsize
    return unfit(problem) or (Refusal("it needs 64-bit indices") if abs(step) >= params.INDEX_LIMIT else None)


def in_vectors(problem: Problem) -> bool:
    """Return whether all pixels consist of whole vectors of channels with one filter each, given aligned x and y."""
    arrays = ((problem.x_shape, problem.x_strides), (problem.y_shape, problem.y_strides))
    steps = (
        step
        for shape, strides in arrays
        for axis, (extent, step) in enumerate(zip(shape, strides, strict=True))
        if axis != 1 and extent > 1
    )
    vector = problem.vector
    return problem.filters == 1 and problem.group % vector == 0 and not any(step % vector for step in steps)


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True)
class ChannelThread:
    """What a thread computes, for ``vectors`` threads along the channels, whatever the block's rows and columns."""

    view: Problem
    form: tuple[int, int, int]
    whole: bool  # pixels consist of whole vectors of channels, one filter each
    vectors: int  # threads per block along the channels

    @cached_property
    def burst_bytes(self) -> int:
        """Bytes of channels per pixel that a block reads, in whole DRAM bursts."""
        return numbers.whole(self.vectors * self.view.vector * self.view.itemsize, _BURST)

    @cached_property
    def per_thread(self) -> tuple[int, int]:
        """Rows and columns of outputs per thread."""
        return _OUTPUTS // self.form[2], self.form[2]

    @cached_property
    def apart(self) -> tuple[int, int]:
        """Distance in rows and columns between a thread's outputs, chosen so that they share inputs under dilation."""
        height, width = (
            d // gcd(s, d) for s, d in zip(self.view.column_strides[1:], self.view.dilations[1:], strict=True)
        )
        return height, width if self.form[0] else 1

    @cached_property
    def advance(self) -> int:
        """Taps by which a thread's adjacent rows are shifted against each other."""
        return self.view.column_strides[1] // gcd(self.view.column_strides[1], self.view.dilations[1])

    @cached_property
    def tiles(self) -> tuple[int, int]:
        """Threads along the rows and the columns of one output plane."""
        axes = zip(self.view.columns[1:], self.per_thread, self.apart, strict=True)
        height, width = (-(-extent // (outputs * apart)) * apart for extent, outputs, apart in axes)
        return height, width

    @cached_property
    def filters(self) -> int:
        """Channels of y."""
        return self.view.group * self.view.filters

    @cached_property
    def slices(self) -> int:
        """Output planes (D × batch)."""
        return self.view.columns[0] * self.view.batch

    def grid(self, rows: int, columns: int, walk: int) -> tuple[int, int, int]:
        """Return the blocks per output plane along channels, columns and rows.

        ``rows`` and ``columns`` are threads per block, ``walk`` the steps that a thread takes down the rows.
        """
        height, width = self.tiles
        return -(-self.filters // (self.vectors * self.view.vector)), -(-width // columns), -(-height // (rows * walk))

    # ---- shared memory

    @cached_property
    def pitch(self) -> int:
        """Words of shared memory per tap, padded so that adjacent taps hit different banks."""
        return (self.vectors + 1) * self.view.vector

    @cached_property
    def step(self) -> int:
        """Rows of the kernel whose weights are in shared memory at a time."""
        _, height, width = self.view.taps
        return min(height, max(1, _WEIGHT_BYTES // (self.view.word * self.pitch * width)))

    @cached_property
    def parts(self) -> int:
        """Parts of a kernel plane, of ``step`` rows each."""
        return -(-self.view.taps[1] // self.step)

    @cached_property
    def order(self) -> str:
        """Name of the order in which an output's products are summed."""
        parts = f"{self.step} rows at a time, " if self.parts > 1 else ""
        return f"{self.view.fused} over {parts}{self.form[1]} columns of taps at a time"

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory per block: weights, in the accumulator's type."""
        return self.view.word * self.pitch * self.step * self.view.taps[2]

    # ---- cost

    @cached_property
    def parts_of_vector(self) -> int:
        """Loads per vector of x: 1, or one per channel if vectors are not whole."""
        return 1 if self.whole else self.view.vector

    @cached_property
    def outputs(self) -> tuple[int, int]:
        """Rows and columns per thread; columns beyond the end of y are computed too, rows are not."""
        rows, columns = self.per_thread
        return min(rows, -(-self.view.columns[1] // self.apart[0])), columns

    @cached_property
    def products(self) -> int:
        """Multiply-adds per thread."""
        return prod(self.outputs) * self.view.vector * prod(self.view.taps)

    def inputs(self, chunk: int) -> int:
        """Return the vectors of x that a thread loads when the last chunk of a row has ``chunk`` taps."""
        stride, taps, _ = self.form
        more, chunks = (self.outputs[1] - 1) * max(stride, 1), -(-self.view.taps[2] // taps)
        return self.rows_of_x * (chunks * more + (chunks - 1) * taps + chunk)

    @cached_property
    def rows_of_x(self) -> int:
        """Rows of x that a thread reads."""
        depth, height, _ = self.view.taps
        return depth * (height + self.parts * (self.outputs[0] - 1) * self.advance)

    @cached_property
    def loads(self) -> int:
        """Loads of x per thread."""
        return self.parts_of_vector * self.inputs((self.view.taps[2] - 1) % self.form[1] + 1)

    @cached_property
    def lines(self) -> int:
        """L1 lines that a warp touches per load."""
        lanes = min(self.vectors, WARP)
        size = self.view.vector // self.parts_of_vector * self.view.itemsize
        return -(-WARP // lanes) * -(-lanes * size // _LINE)

    @cached_property
    def factors(self) -> int:
        """Loads of weights per thread."""
        return self.outputs[0] * prod(self.view.taps)

    @cached_property
    def instructions(self) -> tuple[float, float]:
        """Instructions per thread: per step of its walk, and for weights (shared by steps if all fit shared memory)."""
        depth, height, width = self.view.taps
        vector, chunks = self.view.vector, -(-width // self.form[1])
        rows = self.outputs[0] * depth * height * chunks
        inputs = float((_INPUT if self.whole else _INPUT_SINGLY)[self.view.dtype] * self.inputs(self.form[1]))
        weights = _WEIGHT * self.vectors * vector * prod(self.view.taps) / THREADS
        if not self.whole:
            inputs += _FOUND * (vector - 1) * self.rows_of_x * chunks + _SINGLY * prod(self.outputs) * vector
        return self.products + inputs + _ROW * rows + _TAP * self.factors + _REST, weights

    def met(self, rows: int, columns: int) -> int:
        """Return the bytes of x that a block of ``rows`` × ``columns`` threads reads."""
        _, down, across = self.view.column_strides
        depth, taps_h, taps_w = self.view.taps
        made_h, made_w = self.per_thread
        height, width = (rows * made_h - 1) * down + taps_h, (columns * made_w - 1) * across + taps_w
        return self.burst_bytes * height * width * depth

    def time(self, rows: int, columns: int, walk: int, limits: Limits) -> float:
        """Model the seconds of the busiest SM: the largest of multiply-adds, instruction issue, L1 and L2 traffic."""
        blocks, threads = prod(self.grid(rows, columns, walk)) * self.slices, self.vectors * rows * columns
        walked, (step, weights) = threads * walk, self.instructions
        again = 1 if self.parts * self.view.taps[0] == 1 else walk
        rounds = numbers.whole(blocks, limits.multiprocessors)
        issued = rounds * -(-threads // WARP) * WARP * (walk * step + weights * again)
        inputs = model.gathering(blocks, walked * self.loads, self.lines, limits)
        factors = model.gathering(blocks, walked * self.factors, 16 * WARP // _LINE, limits)
        return max(
            model.arithmetic(blocks, walked * self.products, self.view.accumulator, 1.0, limits),
            model.instructions(issued, limits),
            inputs + factors,
            model.cached(blocks, self.met(rows * walk, columns), limits),
        )


@dataclass(frozen=True)
class ChannelTile(ChannelThread):
    """A block's work: its threads along the channels, rows and columns, and the steps they walk down the rows."""

    rows: int  # threads per block along the rows
    columns: int  # threads per block along the columns
    walk: int  # steps down the rows that each thread takes

    @cached_property
    def blocks_by_axis(self) -> tuple[int, int, int]:
        """Blocks along the channels, the columns and the rows."""
        return self.grid(self.rows, self.columns, self.walk)

    @cached_property
    def blocks(self) -> int:
        """Blocks of the launch."""
        return prod(self.blocks_by_axis) * self.slices

    def seconds(self, limits: Limits) -> float:
        """Model the seconds of the launch, without DRAM traffic."""
        return self.time(self.rows, self.columns, self.walk, limits)

    def __str__(self) -> str:
        channels, (rows, columns) = self.vectors * self.view.vector, self.outputs
        return (
            f"direct, channels last: blocks of {channels} channels x {self.walk * self.rows * rows} x "
            f"{self.columns * columns} outputs, {self.step} rows of the kernel at a time; {self._why_singly}"
            "32-bit indices"
        )

    @property
    def _why_singly(self) -> str:
        """The reason, for ``explain``, why channels are loaded and stored one by one; empty if they are not."""
        if self.whole:
            return ""
        view = self.view
        what = f"{view.group} channels, or gaps between pixels, are not whole vectors of {view.vector}"
        return f"channels one by one: {what if view.filters == 1 else f'each has {view.filters} filters'}; "


@lru_cache(maxsize=1024)
def best(view: Problem, form: tuple[int, int, int], whole: bool, limits: Limits) -> ChannelTile | None:
    """Return the tile with the least modelled time; None if none fits shared memory or the grid."""
    quickest = min(_timed(view, form, whole, limits), key=itemgetter(0), default=None)
    return None if quickest is None else ChannelTile(view, form, whole, quickest[1].vectors, *quickest[2])


def in_order(view: Problem, form: tuple[int, int, int], whole: bool, limits: Limits) -> list[ChannelTile]:
    """Return the fastest tile of each order of summation (rows of the kernel at a time)."""
    quickest: dict[str, tuple[float, ChannelThread, Ints]] = {}
    for timed in _timed(view, form, whole, limits):
        order = timed[1].order
        quickest[order] = min(quickest.get(order, timed), timed, key=itemgetter(0))
    return [ChannelTile(view, form, whole, thread.vectors, *block) for _, thread, block in quickest.values()]


def _timed(
    view: Problem, form: tuple[int, int, int], whole: bool, limits: Limits
) -> Iterator[tuple[float, ChannelThread, Ints]]:
    """Yield (seconds, thread, block) of each block shape that fits shared memory and the grid."""
    for vectors in _shares(view):
        thread = ChannelThread(view, form, whole, vectors)
        if thread.shared_bytes <= limits.shared_bytes_per_block:
            for block in _blocks(thread):
                yield thread.time(*block, limits), thread, block


def _shares(view: Problem) -> Iterator[int]:
    """Yield the numbers of threads along the channels that read whole DRAM bursts."""
    vector = view.vector
    unit = max(1, _BURST // (vector * view.itemsize))
    vectors = -(-view.group * view.filters // vector)
    evens = (-(-vectors // -(-vectors // most)) for most in _VECTORS)
    yield from dict.fromkeys(min(vectors, -(-even // unit) * unit) for even in evens)


def _blocks(thread: ChannelThread) -> Iterator[tuple[int, int, int]]:
    """Yield (rows, columns, walk) of the blocks that fit the grid's limits."""
    height, width = thread.tiles
    for columns, walk in product((1, 2, 4, 8, 16, 32), (1, 2, 3, 4)):
        rows = min(THREADS // (thread.vectors * columns), -(-height // walk))
        fits = rows and columns < 2 * width and walk <= height
        if fits and prod(thread.grid(rows, columns, walk)) * thread.slices <= MOST_BLOCKS:
            yield rows, columns, walk


# ---------------------------------------------------------------- offers


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield the best tile of each form that accepts the problem."""
    if refusal := _refusal(problem):
        yield refusal
        return
    view, whole = view_of(problem), in_vectors(problem)
    tiles = (best(view, form, whole, limits) for form in _fitting(view))
    yield from (_candidate(problem, tile, limits) for tile in tiles if tile is not None)


def offers_in_order(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield batch-invariant candidates: for each form, the best tile of every order of summation."""
    if refusal := _refusal(problem):
        yield refusal
        return
    view, whole = view_of(problem), in_vectors(problem)
    for form in _fitting(view):
        yield from (_candidate(problem, tile, limits) for tile in in_order(view, form, whole, limits))


def _fitting(view: Problem) -> list[tuple[int, int, int]]:
    """Return the forms that accept the problem's stride and dilation along W."""
    apart = view.column_strides[2] // gcd(view.column_strides[2], view.dilations[2])
    return [form for form in FORMS if form[0] in (0, apart)]


def _candidate(problem: Problem, tile: ChannelTile, limits: Limits) -> Candidate:
    """Return a tile as a candidate for the problem."""
    seconds = model.overlapped(tile.seconds(limits), model.memory(problem.bytes, limits))
    return Candidate(variant(problem.dtype, tile.form).name, seconds, partial(_plan, problem, tile), tile.order)


# ---------------------------------------------------------------- launch


def _plan(problem: Problem, tile: ChannelTile) -> Plan:
    """Return the plan of this candidate."""
    kernel, fields = variant(problem.dtype, tile.form), _fields(problem, tile)
    return on_arrays(problem, kernel, tile.blocks, fields, str(tile), tile.shared_bytes)


def _fields(problem: Problem, tile: ChannelTile) -> dict[str, Any]:
    """Return the fields of the kernel's parameter struct."""
    view = tile.view
    w_group, w_filter, *_ = problem.w_strides
    w_first, w_stride = weights_of(problem)
    channel_blocks, column_blocks, row_blocks = tile.blocks_by_axis
    return {
        "channels": tile.filters,
        **array_fields({"x": problem.x_strides, "y": problem.y_strides}, RANK),
        "x_extent": view.x_shape[2:],
        "y_extent": view.columns,
        "w_first": w_first,
        "w_group": w_group,
        "w_filter": w_filter,
        "w_stride": w_stride,
        "b_stride": problem.b_stride or 0,
        "stride": view.column_strides,
        "dilation": view.dilations,
        "start": [-pad for pad in view.pads],
        "taps": view.taps,
        **params.members(tile, "vectors", "columns", "rows", "walk", "step", "pitch", "apart"),
        "row_advance": tile.advance,
        "window_step": view.dilations[2] if tile.form[0] else view.column_strides[2],
        "in_vectors": tile.whole,
        "filters": problem.filters,
        "channel_blocks": channel_blocks,
        "column_blocks": column_blocks,
        "row_blocks": row_blocks,
        "depths": view.columns[0],
        "step_taps": tile.step * view.taps[2],
        "row_taps": view.taps[2],
        "row_parts": tile.parts,
        "parts": tile.parts * view.taps[0],
    }


_KERNEL = Kernel("conv/direct/channels.cu", "conv_channels", "ConvChannelsParams", THREADS, name="depthwise")


def variant(dtype: str, form: tuple[int, int, int]) -> Variant:
    """Return the kernel variant of a form, for any rank up to three."""
    stride, taps, _ = form
    label = f"channels_{taps}s{stride}" if stride else "channels_taps"
    return _KERNEL.over(dtype, 3, label, types=types(dtype), sizes=form, blocks_per_sm=3 if stride else 4)


def variants() -> Iterator[Variant]:
    """Yield every kernel variant of this family."""
    return starmap(variant, product(dtypes.CONV_DTYPES, FORMS))
