"""Conv of one channel a group (depthwise) with channels last, as a direct sum: one launch, which reads w as it is.

The struct mirrors ``ConvChannelsParams`` of ``kernels_cu/conv_channels.cu``, where the forms are explained. Lower ranks
are of unit depth and height. ConvTranspose of stride 1 is Conv with its taps turned round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import product
from math import gcd, prod
from typing import Any

import numpy as np

from gpuconv import _dtypes
from gpuconv.cuda import direct_plan, model, params
from gpuconv.cuda.choice import Candidate
from gpuconv.cuda.correlation import Problem
from gpuconv.cuda.direct_tile import Work
from gpuconv.cuda.plan import Launch, Limits, Plan, Variant

_MOST_BLOCKS = 2**31 - 1
_MOST_FILTERS = 4  # of a channel
_THREADS, _WARP = 128, 32
_OUTPUTS = 16  # of a thread, in each channel
_WEIGHT_BYTES = 32 * 1024  # of those in shared memory, as far as one row of the kernel needs no more
_LINE, _BURST = 128, 64  # bytes, of the L1 cache and of the memory bus
_VECTORS = (1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64, 128)  # threads along the channels, at most
# Instructions, as the main loops of sm_90a have them: of an input in registers; of a row of the kernel; of a tap, with
# a load of its weights. Estimated: of a thread's tile but for that; of a weight that is widened.
_INPUT = {"float16": 11, "bfloat16": 11, "float32": 8, "float64": 8}
_ROW, _TAP, _REST, _WEIGHT = 10, 3, 400, 30
# Taps from one window of a thread to the next, 0 for any; taps at once; columns.
FORMS = ((1, 4, 8), (1, 7, 8), (2, 4, 4), (0, 1, 4))


@dataclass(frozen=True, slots=True)
class Tile:
    """What a block makes of a problem: so many threads along the channels, the rows and the columns.

    Attributes
    ----------
    work : Work
    form : tuple of int
    whole : bool
        Whether pixels are made of whole vectors of channels, one filter each.
    vectors, rows, columns : int
        Threads of a block.
    walk : int
        How often they step on to the next rows.
    """

    work: Work
    form: tuple[int, int, int]
    whole: bool
    vectors: int
    rows: int
    columns: int
    walk: int

    @property
    def word(self) -> int:
        """Bytes of a sum."""
        return _dtypes.entry(_dtypes.entry(self.work.dtype).accumulator).itemsize

    @property
    def vector(self) -> int:
        """Channels of a thread."""
        return 16 // self.word

    @property
    def each(self) -> tuple[int, int]:
        """Rows and columns of a thread."""
        return _OUTPUTS // self.form[2], self.form[2]

    @property
    def apart(self) -> tuple[int, int]:
        """Rows and columns from one output of a thread to the next, so that they share inputs."""
        height, width = (d // gcd(s, d) for s, d in zip(self.work.strides[1:], self.work.dilations[1:], strict=True))
        return height, width if self.form[0] else 1

    @property
    def advance(self) -> int:
        """Taps from one row of a thread to the next."""
        return self.work.strides[1] // gcd(self.work.strides[1], self.work.dilations[1])

    @property
    def tiles(self) -> tuple[int, int]:
        """Of threads along the rows and the columns of a slice."""
        axes = zip(self.work.y_extent[1:], self.each, self.apart, strict=True)
        height, width = (-(-extent // (each * apart)) * apart for extent, each, apart in axes)
        return height, width

    @property
    def filters(self) -> int:
        """Channels of y."""
        return self.work.groups * self.work.filters

    @property
    def blocks_by_axis(self) -> tuple[int, int, int]:
        """Along the channels, the columns and the rows."""
        height, width = self.tiles
        channels = -(-self.filters // (self.vectors * self.vector))
        return channels, -(-width // self.columns), -(-height // (self.rows * self.walk))

    @property
    def blocks(self) -> int:
        return prod(self.blocks_by_axis) * self.work.y_extent[0] * self.work.images

    # ---- shared memory

    @property
    def pitch(self) -> int:
        """Words of a tap: those that are written together, of neighbouring taps, begin in different banks."""
        return (self.vectors + 1) * self.vector

    @property
    def step(self) -> int:
        """Rows of the kernel whose weights are in shared memory at a time."""
        _, height, width = self.work.taps
        return min(height, max(1, _WEIGHT_BYTES // (self.word * self.pitch * width)))

    @property
    def parts(self) -> int:
        """Of a slice of the kernel, each of so many rows."""
        return -(-self.work.taps[1] // self.step)

    @property
    def shared_bytes(self) -> int:
        return self.word * self.pitch * self.step * self.work.taps[2]

    # ---- time

    @property
    def turns(self) -> int:
        """How often a thread makes its outputs: once for a vector of channels, or for each of them."""
        return 1 if self.whole else self.vector

    @property
    def outputs(self) -> tuple[int, int]:
        """Rows and columns of a thread, of which columns are made even if they do not exist."""
        rows, columns = self.each
        return min(rows, -(-self.work.y_extent[1] // self.apart[0])), columns

    @property
    def products(self) -> int:
        """Of a thread."""
        return prod(self.outputs) * self.vector * prod(self.work.taps)

    def inputs(self, chunk: int) -> int:
        """Return how many vectors of x a thread meets, of a last chunk of so many taps of a row."""
        depth, height, width = self.work.taps
        rows, columns = self.outputs
        stride, taps, _ = self.form
        more, chunks = (columns - 1) * max(stride, 1), -(-width // taps)
        in_a_row = chunks * more + (chunks - 1) * taps + chunk
        return depth * (height + self.parts * (rows - 1) * self.advance) * in_a_row

    @property
    def loads(self) -> int:
        """Of vectors of x, and of weights, by a thread."""
        return self.turns * self.inputs((self.work.taps[2] - 1) % self.form[1] + 1)

    @property
    def lines(self) -> int:
        """Lines of the L1 cache that a warp's vectors lie in."""
        lanes = min(self.vectors, _WARP)
        size = self.vector // self.turns * _dtypes.entry(self.work.dtype).itemsize
        return -(-_WARP // lanes) * -(-lanes * size // _LINE)

    @property
    def factors(self) -> int:
        """Loads of weights by a thread."""
        return self.turns * self.outputs[0] * prod(self.work.taps)

    @property
    def instructions(self) -> float:
        """Of a thread, on all of its way."""
        depth, height, width = self.work.taps
        rows = self.turns * self.outputs[0] * depth * height * -(-width // self.form[1])
        inputs = _INPUT[self.work.dtype] * self.turns * self.inputs(self.form[1])
        weights = _WEIGHT * self.turns * self.vectors * self.vector * prod(self.work.taps) / _THREADS
        each = self.products + inputs + _ROW * rows + _TAP * self.factors + _REST * self.turns
        return self.walk * each + weights * (1 if self.parts * depth == 1 else self.walk)

    @property
    def met(self) -> int:
        """Bytes of x that a block meets."""
        size = self.vectors * self.vector * _dtypes.entry(self.work.dtype).itemsize
        axes = zip(
            (self.rows * self.walk, self.columns), self.each, self.work.strides[1:], self.work.taps[1:], strict=True
        )
        inputs = prod((count * each - 1) * stride + taps for (count, each, stride, taps) in axes)
        return -(-size // _BURST) * _BURST * inputs * self.work.taps[0]

    def seconds(self, limits: Limits) -> float:
        """Model what a multiprocessor takes: for products, instructions, reading from its L1 cache or from the L2."""
        entry, threads = _dtypes.entry(self.work.dtype), self.vectors * self.rows * self.columns
        walked = threads * self.walk
        rounds = -(-self.blocks // limits.multiprocessors) * limits.multiprocessors
        issued = rounds * -(-threads // _WARP) * _WARP * self.instructions
        inputs = model.gathering(self.blocks, walked * self.loads, self.lines, limits)
        factors = model.gathering(self.blocks, walked * self.factors, 16 // self.turns * _WARP // _LINE, limits)
        return max(
            model.arithmetic(self.blocks, walked * self.products, entry.accumulator, 1.0, limits),
            model.instructions(issued, limits),
            inputs + factors,
            model.cached(self.blocks, self.met, limits),
        )

    def __str__(self) -> str:
        rows, columns = self.outputs
        return (
            f"direct, channels last: blocks of {self.vectors * self.vector} channels x {self.walk * self.rows * rows} "
            f"x {self.columns * columns} outputs, {self.step} rows of the kernel at a time; 32-bit indices"
        )


# ---------------------------------------------------------------- candidates


def candidates(problem: Problem, limits: Limits) -> Iterator[Candidate]:
    """Yield a candidate for every form that takes the problem."""
    if refusal(problem) is not None:
        return
    work, whole = direct_plan.work_of(problem), _in_vectors(problem)
    for form in FORMS:
        if form[0] in (0, work.strides[2] // gcd(work.strides[2], work.dilations[2])):
            tile = best(work, form, whole, limits)
            if tile is not None:
                seconds = model.overlapped(tile.seconds(limits), model.memory(problem.bytes, limits))
                yield Candidate(variant(problem.dtype, form).name, seconds, partial(_plan, problem, tile))


def refusal(problem: Problem) -> str | None:
    """Return why no kernel of this family takes a problem; None where one does."""
    if problem.rank > 3:
        return f"{problem.rank} spatial axes; it has three"
    if problem.channels != 1 or problem.filters > _MOST_FILTERS:
        return (
            f"{problem.channels} channels and {problem.filters} filters a group; it takes 1 and up to {_MOST_FILTERS}"
        )
    if any(stride != 1 for stride in problem.strides):
        return f"ConvTranspose with strides {problem.strides}; it takes those of stride 1"
    if problem.group == 1 or problem.x_strides[1] != 1 or problem.y_strides[1] != 1:
        return "channels do not lie next to each other in x and y"
    if 0 in problem.x_shape or 0 in problem.taps:
        return "there is nothing to sum"
    if problem.wide() or _far(problem):
        return "it needs 64-bit indices"
    return None


def _far(problem: Problem) -> bool:
    """Tell whether the bytes from one input of a window to the next need 64 bits."""
    step = max(problem.column_strides[-1], problem.dilations[-1]) * problem.x_strides[-1] * problem.itemsize
    return abs(step) >= params.INDEX_LIMIT


@lru_cache(maxsize=1024)
def best(work: Work, form: tuple[int, int, int], whole: bool, limits: Limits) -> Tile | None:
    """Return the tile with the shortest time; None where there is no room for any, or no grid for its blocks."""
    tiles = (tile for tile in _tiles(work, form, whole) if tile.blocks <= _MOST_BLOCKS)
    fitting = [tile for tile in tiles if tile.shared_bytes <= limits.shared_bytes_per_block]
    return min(fitting, key=lambda tile: tile.seconds(limits), default=None)


def _tiles(work: Work, form: tuple[int, int, int], whole: bool) -> Iterator[Tile]:
    least = Tile(work, form, whole, 1, 1, 1, 1)
    size, vectors = least.vector * _dtypes.entry(work.dtype).itemsize, -(-least.filters // least.vector)
    unit = max(1, _BURST // size)
    for most, columns, walk in product(_VECTORS, (1, 2, 4, 8, 16, 32), (1, 2, 3, 4)):
        even = -(-vectors // -(-vectors // most))
        share = min(vectors, -(-even // unit) * unit)
        rows = min(_THREADS // (share * columns), -(-least.tiles[0] // walk))
        if rows and columns < 2 * least.tiles[1] and walk <= least.tiles[0]:
            yield Tile(work, form, whole, share, rows, columns, walk)


# ---------------------------------------------------------------- plans


def _plan(problem: Problem, tile: Tile) -> Plan:
    chosen = variant(problem.dtype, tile.form)
    roles = {"x": "x", "w": "w", "y": "y"} | ({} if problem.b_stride is None else {"b": "b"})
    launch = Launch(
        chosen,
        (tile.blocks, 1, 1),
        tile.shared_bytes,
        params.pack(chosen.layout, _fields(problem, tile)),
        params.pointers(chosen.layout, roles),
    )
    return Plan(problem.operator, (launch,), 0, "", (str(tile),))


def _fields(problem: Problem, tile: Tile) -> dict[str, Any]:
    work, division = tile.work, params.division
    w_group, w_filter, *_ = problem.w_strides
    w_first, w_stride = direct_plan.weights_of(problem)
    channel_blocks, column_blocks, row_blocks = tile.blocks_by_axis
    x_stride, y_stride = (direct_plan.axes_of(problem, one[2:]) for one in (problem.x_strides, problem.y_strides))
    return {
        "channels": tile.filters,
        "x_batch": problem.x_strides[0],
        "x_channel": problem.x_strides[1],
        "x_extent": work.x_extent,
        "x_stride": x_stride,
        "y_batch": problem.y_strides[0],
        "y_channel": problem.y_strides[1],
        "y_extent": work.y_extent,
        "y_stride": y_stride,
        "w_first": w_first,
        "w_group": w_group,
        "w_filter": w_filter,
        "w_stride": w_stride,
        "b_stride": problem.b_stride or 0,
        "stride": work.strides,
        "dilation": work.dilations,
        "start": [-pad for pad in work.pads],
        "taps": work.taps,
        "step": tile.step,
        "row_advance": tile.advance,
        "window_step": work.dilations[2] if tile.form[0] else work.strides[2],
        "pitch": tile.pitch,
        "in_vectors": tile.whole,
        "filters": division(problem.filters, False),
        "vectors": division(tile.vectors, False),
        "columns": division(tile.columns, False),
        "rows": tile.rows,
        "walk": tile.walk,
        "channel_blocks": division(channel_blocks, False),
        "column_blocks": division(column_blocks, False),
        "row_blocks": division(row_blocks, False),
        "depths": division(work.y_extent[0], False),
        "apart": params.divisions(tile.apart, False),
        "step_taps": division(tile.step * work.taps[2], False),
        "row_taps": division(work.taps[2], False),
        "row_parts": division(tile.parts, False),
        "parts": tile.parts * work.taps[0],
    }


def _in_vectors(problem: Problem) -> bool:
    """Tell whether pixels are made of whole vectors of channels with a filter each, if x and y begin with one."""
    vector = 16 // _dtypes.entry(_dtypes.entry(problem.dtype).accumulator).itemsize
    arrays = ((problem.x_shape, problem.x_strides), (problem.y_shape, problem.y_strides))
    steps = (
        step
        for shape, strides in arrays
        for axis, (extent, step) in enumerate(zip(shape, strides, strict=True))
        if axis != 1 and extent > 1
    )
    return problem.filters == 1 and problem.group % vector == 0 and not any(step % vector for step in steps)


# ---------------------------------------------------------------- variants


def variant(dtype: str, form: tuple[int, int, int]) -> Variant:
    """Return the kernel of one form, for every rank up to three."""
    entry, (stride, taps, _) = _dtypes.entry(dtype), form
    return Variant(
        name=f"depthwise_{dtype}_3d_channels_" + (f"{taps}s{stride}" if stride else "taps"),
        source="conv_channels.cu",
        function="conv_channels",
        arguments=(entry.cuda, _dtypes.entry(entry.accumulator).cuda, *map(str, form)),
        parameter="ConvChannelsParams",
        layout=_layout(),
        threads=_THREADS,
        blocks_per_sm=4 if stride == 0 else 3,
    )


@cache
def _layout() -> np.dtype[Any]:
    axes, divider = (3,), params.divider(False)
    arrays = (
        (name, "<i4", *shape)
        for array in ("x", "y")
        for name, *shape in (
            (f"{array}_batch",),
            (f"{array}_channel",),
            (f"{array}_extent", axes),
            (f"{array}_stride", axes),
        )
    )
    return params.layout(
        [
            *((name, params.POINTER) for name in ("x", "w", "b", "y")),
            ("channels", "<i4"),
            *arrays,
            *((name, "<i4") for name in ("w_first", "w_group", "w_filter")),
            ("w_stride", "<i4", axes),
            ("b_stride", "<i4"),
            *((name, "<i4", axes) for name in ("stride", "dilation", "start", "taps")),
            *((name, "<i4") for name in ("step", "row_advance", "window_step", "pitch", "in_vectors")),
            *((name, divider) for name in ("filters", "vectors", "columns")),
            ("rows", "<i4"),
            ("walk", "<i4"),
            *((name, divider) for name in ("channel_blocks", "column_blocks", "row_blocks", "depths")),
            ("apart", divider, (2,)),
            *((name, divider) for name in ("step_taps", "row_taps", "row_parts")),
            ("parts", "<i4"),
        ]
    )


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan can name."""
    for dtype in _dtypes.CONV_DTYPES:
        for form in FORMS:
            yield variant(dtype, form)
