"""The gradient of weights of groups of one channel, depthwise layers above all, down rows of outputs.

The kernel is in ``kernels_cu/weight_grad/rows.cu``, where its tiles of taps are explained. Axes are depth, row and
column; lower ranks have axes of one element in front.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product, starmap
from math import gcd, prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.passes import sums
from gpuconv.cuda.plan import Candidate, Launch, Limits, Offer, Plan, Refusal, model
from gpuconv.cuda.plan.numbers import RANK, whole
from gpuconv.cuda.plan.strided import array_fields, filled
from gpuconv.cuda.weight_grad.problem import OPERATOR, WeightGradProblem
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import Ints

NAME = "rows"
_THREADS = 128
_WARP = 32
_BLOCKS_PER_SM = 4
_LANES = (32, 16, 8)  # filters of a block where channels lie closest together
_WALKS = (64, 32, 16, 8, 4, 2, 1)  # rows of outputs
_ROUNDS = (1, 2, 4, 8)  # of blocks for all multiprocessors
_FARTHEST = 2**30  # coordinates are below, and so are the elements from one input or output of a thread to the next
_LINE = 128  # bytes of the L1 cache
_BURST = 32  # bytes that come from the L2 cache together
_BEGINNING = 2500  # cycles from a block's start to its first product and from its last one to its end; assumed
# Instructions: for a walk, for one of its rows, for an element of x or dy; for each tap in the end. Counted in SASS.
_WALK, _ROW, _ELEMENT, _TAP = 120, 20, 6, 30


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True, slots=True)
class RowForm:
    """One form of the kernel: the taps of a tile, and the columns of a thread."""

    rows: int
    across: int
    columns: int

    def __str__(self) -> str:
        return f"rows_{self.rows}x{self.across}"

    @property
    def window(self) -> int:
        """Inputs of a row that a thread meets."""
        return self.columns - 1 + self.across


FORMS = (RowForm(1, 4, 8), RowForm(1, 16, 8), RowForm(3, 3, 4), RowForm(5, 5, 4), RowForm(7, 7, 4))


# ---------------------------------------------------------------- what it sees


@dataclass(frozen=True)
class RowView:
    """A problem as the kernel sees it."""

    problem: WeightGradProblem

    def _axes(self, spatial: Ints, entry: int) -> Ints:
        return tuple(filled(spatial, RANK, entry))

    @cached_property
    def taps(self) -> Ints:
        return self._axes(self.problem.geometry.kernel_shape, 1)

    @cached_property
    def extents(self) -> Ints:
        """Outputs along each axis."""
        return self._axes(self.problem.geometry.y_shape[2:], 1)

    @cached_property
    def x_extents(self) -> Ints:
        return self._axes(self.problem.geometry.x_shape[2:], 1)

    @cached_property
    def pads(self) -> Ints:
        return self._axes(self.problem.geometry.pads_begin, 0)

    @cached_property
    def strides(self) -> Ints:
        """Of the windows; 1 along an axis of one output."""
        strides = self._axes(self.problem.geometry.strides, 1)
        return tuple(1 if n == 1 else s for s, n in zip(strides, self.extents, strict=True))

    @cached_property
    def dilations(self) -> Ints:
        """Of the taps; 1 along an axis of one tap."""
        dilations = self._axes(self.problem.geometry.dilations, 1)
        return tuple(1 if n == 1 else d for d, n in zip(dilations, self.taps, strict=True))

    @cached_property
    def common(self) -> Ints:
        return tuple(map(gcd, self.strides, self.dilations))

    @cached_property
    def steps(self) -> Ints:
        """Coordinates from one input of a thread to the next."""
        return tuple(s * d // g for s, d, g in zip(self.strides, self.dilations, self.common, strict=True))

    @cached_property
    def apart(self) -> Ints:
        """Outputs from one of a thread to the next."""
        axes = zip(self.dilations, self.common, self.extents, strict=True)
        return tuple(max(1, min(d // g, n)) for d, g, n in axes)

    @cached_property
    def phases(self) -> Ints:
        """Taps from one of a tile to the next."""
        return tuple(min(s // g, k) for s, g, k in zip(self.strides, self.common, self.taps, strict=True))

    @cached_property
    def channels_last(self) -> bool:
        """Whether lanes go along the channels, which lie closer together than the columns."""
        return abs(self.problem.dy_strides[1]) < abs(self.problem.dy_strides[-1]) and self.filters > 1

    @cached_property
    def filters(self) -> int:
        """Of all groups."""
        return self.problem.geometry.w_shape[0]

    def refusal(self) -> str | None:
        """Return why the kernel does not take the problem, or None."""
        problem = self.problem
        if problem.geometry.w_shape[1] != 1:
            return f"{problem.geometry.w_shape[1]} channels a group; it takes one"
        if problem.result != problem.dtype:
            return f"products of parts of {problem.result} are added up apart"
        if len(problem.geometry.kernel_shape) > RANK:
            return f"{len(problem.geometry.kernel_shape)} spatial axes are more than {RANK}"
        if problem.pixels == 0 or 0 in problem.geometry.x_shape:
            return "there is nothing to multiply"
        if problem.wide() or self._farthest() >= _FARTHEST:
            return "offsets or coordinates need 64-bit indices"
        return None

    def _farthest(self) -> int:
        """Return a bound of coordinates that tiles reach, and of the elements that a thread steps over."""
        most = max(form.columns + form.across + form.rows for form in FORMS)
        reaches = (
            max(n * s, pad) + (k + most * s) * d
            for n, s, pad, k, d in zip(
                self.extents, self.strides, self.pads, self.taps, self.dilations, strict=True
            )
        )
        x, dy = (self._axes(strides[2:], 0) for strides in (self.problem.x_strides, self.problem.dy_strides))
        steps = (abs(step * stride) for step, stride in zip((*self.steps, *self.apart), (*x, *dy), strict=True))
        return max(*reaches, *steps, *self.x_extents)


@dataclass(frozen=True)
class RowTile:
    """What the blocks of one form make of a problem."""

    view: RowView
    form: RowForm
    lanes: int  # filters of a block
    walk: int  # rows of outputs of a thread
    parts: int

    # ---- how it is dealt

    @cached_property
    def tap_tiles(self) -> Ints:
        """Along each axis."""
        axes = zip(self.view.taps, self.view.phases, (1, self.form.rows, self.form.across), strict=True)
        return tuple(phases * -(-(-(-taps // phases)) // made) for taps, phases, made in axes)

    @cached_property
    def tiles(self) -> Ints:
        """Walks of an image along each axis."""
        axes = zip(self.view.extents, self.view.apart, (1, self.walk, self.form.columns), strict=True)
        return tuple(apart * -(-extent // (made * apart)) for extent, apart, made in axes)

    @cached_property
    def items(self) -> int:
        """Walks of one filter."""
        return self.view.problem.geometry.y_shape[0] * self.view.extents[0] * prod(self.tiles[1:])

    @cached_property
    def each(self) -> int:
        """Walks of a part."""
        return -(-self.items // self.parts)

    @cached_property
    def workers(self) -> int:
        """Threads of a block for one filter."""
        return _THREADS // self.lanes

    @cached_property
    def filter_blocks(self) -> int:
        return -(-self.view.filters // self.lanes)

    @cached_property
    def blocks(self) -> int:
        return prod(self.tap_tiles) * self.filter_blocks * self.parts

    # ---- cost

    @cached_property
    def walks(self) -> int:
        """Walks of a thread."""
        return -(-self.each // self.workers)

    @cached_property
    def rows(self) -> int:
        """Rows of x of a walk."""
        return self.walk + self.form.rows - 1

    @cached_property
    def instructions(self) -> float:
        """Instructions of a thread."""
        form = self.form
        products = form.rows * form.across * form.columns
        row = _ROW + (form.window + form.columns) * _ELEMENT + products
        return self.walks * (_WALK + self.rows * row) + _TAP * form.rows * form.across

    @cached_property
    def abreast(self) -> int:
        """Threads of a block whose walks lie next to each other in the same rows, of one filter."""
        return min(self.workers, self.tiles[2])

    def _lines(self, channel: int, step: int) -> int:
        """Return in how many lines of the L1 cache an element of each thread of a warp lies, by an array's strides."""
        size, across = self.view.problem.itemsize, _WARP // self.lanes
        if self.lanes > 1:
            return min(_WARP, across * max(1, self.lanes * abs(channel) * size // _LINE))
        run = min(self.view.apart[2], across)  # of neighbours in a row; the next ones are further apart
        runs = -(-across // run) * -(-run * abs(step) * size // _LINE)
        lines = min(runs, -(-across * self.form.columns * abs(step) * size // _LINE))
        return min(_WARP, max(lines, -(-across // self.tiles[2])))

    def _bytes(self, channel: int, step: int) -> int:
        """Return what an element of a row takes of the L2 cache, for all filters of a block, by an array's strides."""
        size = self.view.problem.itemsize
        if self.lanes > 1:
            return whole(self.lanes * min(abs(channel) * size, _BURST), _BURST)
        return min(_BURST, max(1, abs(step)) * size)

    def seconds(self, limits: Limits) -> float:
        """Model the time of the tiles and of adding the parts up."""
        problem, form, blocks, view = self.view.problem, self.form, self.blocks, self.view
        rounds = whole(blocks, limits.multiprocessors)
        rows_of_x, rows_of_dy = (_THREADS * self.walks * rows for rows in (self.rows, self.walk))
        products = rows_of_x * form.rows * form.across * form.columns
        x = problem.x_strides[1], problem.x_strides[-1] * view.strides[2]
        dy = problem.dy_strides[1], problem.dy_strides[-1]
        lines = model.gathering(blocks, rows_of_x * form.window, self._lines(*x), limits)
        lines += model.gathering(blocks, rows_of_dy * form.columns, self._lines(*dy), limits)
        columns = self.abreast * form.columns
        inputs = columns + (form.across - 1) * min(view.apart[2], self.abreast)
        met = self.rows * inputs * self._bytes(*x) + self.walk * columns * self._bytes(*dy)
        busy = max(
            model.instructions(rounds * _THREADS * self.instructions, limits),
            model.arithmetic(blocks, products, dtypes.entry(problem.dtype).accumulator, 1.0, limits),
            model.cached(blocks, self.walks * -(-self.workers // self.abreast) * met, limits),
            lines,
        )
        busy += model.busy(-(-blocks // _BLOCKS_PER_SM), _BEGINNING, limits)
        left = 2 * sums.workspace_bytes(self.parts, prod(problem.geometry.w_shape), problem.dtype)
        return model.overlapped(busy, model.memory(problem.bytes + left, limits)) + limits.rates.launch


# ---------------------------------------------------------------- offers


def offers(problem: WeightGradProblem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for every form, or why there is none."""
    view = RowView(problem)
    if why := view.refusal():
        yield Refusal(why, plain=problem.geometry.w_shape[1] != 1)
        return
    for form in FORMS:
        time, tile = min(
            ((tile.seconds(limits), tile) for tile in _tiles(view, form, limits)), key=lambda timed: timed[0]
        )
        yield Candidate(variant(problem.dtype, form).name, time, partial(_plan, problem, tile))


def _tiles(view: RowView, form: RowForm, limits: Limits) -> Iterator[RowTile]:
    rows = -(-view.extents[1] // view.apart[1])
    walks = dict.fromkeys(-(-rows // -(-rows // walk)) for walk in _WALKS)
    room = sums.most_parts(prod(view.problem.geometry.w_shape), view.problem.dtype)
    for lanes, walk in product(_LANES if view.channels_last else (1,), walks):
        one = RowTile(view, form, lanes, walk, 1)
        most = min(room, one.items)
        wanted = {max(1, min(most, rounds * limits.multiprocessors // one.blocks)) for rounds in _ROUNDS}
        for parts in sorted({-(-one.items // -(-one.items // parts)) for parts in wanted}):
            yield RowTile(view, form, lanes, walk, parts)


# ---------------------------------------------------------------- launch


def _plan(problem: WeightGradProblem, tile: RowTile) -> Plan:
    g, view, kernel = problem.geometry, tile.view, variant(problem.dtype, tile.form)
    fields: dict[str, Any] = {
        **params.members(view, "filters", "taps", "apart", "phases"),
        "all": prod(g.w_shape),
        **array_fields({"x": problem.x_strides, "dy": problem.dy_strides}, RANK),
        "x_extent": view.x_extents,
        "dy_extent": view.extents,
        "stride": view.strides,
        "pad": view.pads,
        "dilation": view.dilations,
        "step": view.steps,
        **params.members(tile, "items", "each", "walk", "tap_tiles", "filter_blocks", "lanes"),
        "multiplier": problem.filters,
        "depths": tile.tiles[0],
        "row_tiles": tile.tiles[1],
        "column_tiles": tile.tiles[2],
    }
    roles = {"x": "x", "dy": "dy", "sums": "workspace"}
    launch = Launch.of_blocks(OPERATOR, kernel, tile.blocks, fields, roles)
    reason = (
        f"{tile.lanes} filters a block, {tile.form.columns} columns x {tile.walk} rows a walk, "
        f"{tile.items} walks in {tile.parts} parts of {tile.each}"
    )
    return sums.plan(OPERATOR, launch, tile.parts, g.w_shape, problem.w_strides, problem.result, reason)


_KERNEL = Kernel(
    *("weight_grad/rows.cu", "conv_weight_grad_rows", "WeightGradRowsParams", _THREADS, _BLOCKS_PER_SM),
    name="conv_weight_grad",
)


def variant(dtype: str, form: RowForm) -> Variant:
    """Return the kernel of one form."""
    sizes = (form.rows, form.across, form.columns)
    large = form.rows * form.across > 25
    blocks = _BLOCKS_PER_SM - large - (dtype == "float64") * (1 if form.rows * form.across <= 16 else 2 - large)
    return _KERNEL.over(dtype, RANK, str(form), types=types(dtype), sizes=sizes, blocks_per_sm=blocks)


def variants() -> Iterator[Variant]:
    """Yield all variants."""
    return starmap(variant, product(dtypes.CONV_DTYPES, FORMS))
