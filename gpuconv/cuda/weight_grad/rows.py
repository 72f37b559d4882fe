"""Weight gradient for depthwise layers, one channel per group (``weight_grad/rows.cu``).

A thread walks down rows of outputs and keeps the sums of a tile of taps in registers. So x and dy are read once for the
whole tile. A tree reduction and a second launch add the threads' sums. Axes are D, H and W; shorter problems get
leading axes of one element.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice, product, starmap
from math import gcd, lcm, prod
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
_LANES = (32, 16, 8, 4, 2, 1)  # filters per block with channels last, to try
_WALKS = (64, 32, 16, 8, 4, 2, 1)  # rows of outputs per walk to try
_ROUNDS = (1, 2, 4)  # waves of blocks to aim for
_FARTHEST = 2**29  # exclusive bound on coordinates, and on the elements between adjacent inputs or outputs of a thread
_LINE = 128  # bytes of an L1 line
_BURST = 32  # bytes of one L2 sector
_BEGINNING = 2500  # cycles from a block's start to its first product, and from its last product to its end (assumed)
_TAP = 30  # instructions per tap for the final reduction
_BEFORE = 12  # instructions per element of dy loaded before a walk (counted)


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True, slots=True)
class RowForm:
    """A kernel form: the taps of a tile, and the columns per thread."""

    rows: int
    across: int
    columns: int
    # instructions for 2-, 4- and 8-byte elements (counted in SASS): per walk, and per row
    walk: Ints
    row: Ints

    def __str__(self) -> str:
        return f"rows_{self.rows}x{self.across}"

    @property
    def window(self) -> int:
        """Inputs per row that a thread reads."""
        return self.columns - 1 + self.across

    @property
    def before(self) -> int:
        """Instructions of a walk that starts above x: its first rows of dy are loaded beforehand."""
        return _BEFORE * (self.rows - 1) * self.columns


FORMS = (
    RowForm(1, 4, 8, (370, 343, 349), (157, 130, 152)),
    RowForm(1, 16, 8, (504, 466, 474), (400, 352, 396)),
    RowForm(3, 3, 4, (286, 269, 282), (112, 101, 115)),
    RowForm(5, 5, 4, (342, 297, 320), (205, 200, 218)),
    RowForm(7, 7, 4, (373, 326, 326), (314, 312, 312)),
)
_DOUBLE = (*FORMS[:-1], RowForm(7, 7, 2, (312, 312, 312), (193, 193, 193)))  # registers hold half as many float64 sums


def forms(dtype: str) -> tuple[RowForm, ...]:
    """Return the kernel forms for a dtype."""
    return _DOUBLE if dtype == "float64" else FORMS


# ---------------------------------------------------------------- accepted problems


@dataclass(frozen=True)
class RowView:
    """The problem as the kernel sees it; for a single spatial axis, walks go from image to image."""

    problem: WeightGradProblem

    @cached_property
    def down_images(self) -> bool:
        """Whether images take the place of rows (a single spatial axis)."""
        return len(self.problem.geometry.kernel_shape) == 1

    def _axes(self, spatial: Ints, entry: int, of_rows: int | None = None) -> Ints:
        """Return entries for D, H and W; for a single axis, that of H may be given."""
        depth, row, column = filled(spatial, RANK, entry)
        return depth, row if of_rows is None or not self.down_images else of_rows, column

    def _strides(self, strides: Ints) -> Ints:
        """Return an array's strides: image, channel, then the three axes."""
        image, channel, *spatial = strides
        return (0 if self.down_images else image, channel, *self._axes(tuple(spatial), 0, image))

    @cached_property
    def x_strides(self) -> Ints:
        """Strides of x: image, channel, then the three axes."""
        return self._strides(self.problem.x_strides)

    @cached_property
    def dy_strides(self) -> Ints:
        """Strides of dy: image, channel, then the three axes."""
        return self._strides(self.problem.dy_strides)

    @cached_property
    def batch(self) -> int:
        """Images; 1 if images take the place of rows."""
        return 1 if self.down_images else self.problem.geometry.y_shape[0]

    @cached_property
    def taps(self) -> Ints:
        """Taps along each axis."""
        return self._axes(self.problem.geometry.kernel_shape, 1)

    @cached_property
    def extents(self) -> Ints:
        """Outputs along each axis."""
        batch, _, *spatial = self.problem.geometry.y_shape
        return self._axes(tuple(spatial), 1, batch)

    @cached_property
    def x_extents(self) -> Ints:
        """Extents of x along each axis."""
        batch, _, *spatial = self.problem.geometry.x_shape
        return self._axes(tuple(spatial), 1, batch)

    @cached_property
    def pads(self) -> Ints:
        """Padding at the beginning of each axis."""
        return self._axes(self.problem.geometry.pads_begin, 0)

    @cached_property
    def strides(self) -> Ints:
        """Strides of the windows; 1 along an axis of one output."""
        strides = self._axes(self.problem.geometry.strides, 1)
        return tuple(1 if n == 1 else s for s, n in zip(strides, self.extents, strict=True))

    @cached_property
    def dilations(self) -> Ints:
        """Dilations of the taps; 1 along an axis of one tap."""
        dilations = self._axes(self.problem.geometry.dilations, 1)
        return tuple(1 if n == 1 else d for d, n in zip(dilations, self.taps, strict=True))

    @cached_property
    def steps(self) -> Ints:
        """Input coordinates between adjacent inputs of a thread, along H and W: lcm(stride, dilation)."""
        return tuple(starmap(lcm, self._plane(self.strides, self.dilations)))

    @cached_property
    def apart(self) -> Ints:
        """Outputs between adjacent outputs of a thread, along H and W: dilation / gcd(stride, dilation)."""
        axes = self._plane(self.strides, self.dilations, self.extents)
        return tuple(min(d // gcd(s, d), n) for s, d, n in axes)

    @cached_property
    def phases(self) -> Ints:
        """Taps between adjacent taps of a tile, along H and W: stride / gcd(stride, dilation)."""
        return tuple(min(s // gcd(s, d), k) for s, d, k in self._plane(self.strides, self.dilations, self.taps))

    @staticmethod
    def _plane(*numbers: Ints) -> Iterator[Ints]:
        """Zip the entries of H and W."""
        return islice(zip(*numbers, strict=True), 1, None)

    @cached_property
    def channels_last(self) -> bool:
        """Whether lanes run along the channels, which have a smaller stride than columns."""
        return abs(self.dy_strides[1]) < abs(self.dy_strides[-1]) and self.filters > 1

    @cached_property
    def filters(self) -> int:
        """Filters over all groups."""
        return self.problem.geometry.w_shape[0]

    def refusal(self) -> str | None:
        """Return why the kernel does not accept the problem; None if it does."""
        problem, rank = self.problem, len(self.problem.geometry.kernel_shape)
        if problem.geometry.w_shape[1] != 1:
            return f"{problem.geometry.w_shape[1]} channels a group; it takes one"
        if problem.result != problem.dtype:
            return f"products of parts of {problem.result} are added up apart"
        if rank > RANK:
            return f"{rank} spatial axes are more than {RANK}"
        if problem.pixels == 0 or 0 in problem.geometry.x_shape:
            return "there is nothing to multiply"
        if problem.wide() or self._farthest() >= _FARTHEST:
            return "offsets or coordinates need 64-bit indices"
        return None

    def _farthest(self) -> int:
        """Return an upper bound on coordinates, numbers of walks, and elements that a thread steps over."""
        most = max(form.rows + form.window for form in FORMS)
        axes = zip(self.extents, self.strides, self.pads, self.taps, self.dilations, strict=True)
        reaches = (max(n * s, pad) + (k + most * s) * d for n, s, pad, k, d in axes)
        apart = zip((*self.steps, *self.apart), (*self.x_strides[3:], *self.dy_strides[3:]), strict=True)
        return max(*reaches, *self.x_extents, *(abs(n * step) for n, step in apart), 2 * self.problem.pixels)


@dataclass(frozen=True)
class RowTile:
    """The launch of one form: its lanes, walks and parts."""

    view: RowView
    form: RowForm
    lanes: int  # filters per block
    walk: int  # rows of outputs per walk
    parts: int

    # ---- work distribution

    @cached_property
    def tap_tiles(self) -> Ints:
        """Tiles of taps along each axis."""
        depths, *taps = self.view.taps
        axes = zip(taps, self.view.phases, (self.form.rows, self.form.across), strict=True)
        return (depths, *(phases * -(-count // (phases * tap_rows)) for count, phases, tap_rows in axes))

    @cached_property
    def walks(self) -> Ints:
        """Walks per image along each axis."""
        depths, *extents = self.view.extents
        axes = zip(extents, self.view.apart, (self.walk, self.form.columns), strict=True)
        return (depths, *(apart * -(-extent // (outputs * apart)) for extent, apart, outputs in axes))

    @cached_property
    def items(self) -> int:
        """Walks per filter."""
        return self.view.batch * prod(self.walks)

    @cached_property
    def each(self) -> int:
        """Walks per part."""
        return -(-self.items // self.parts)

    @cached_property
    def workers(self) -> int:
        """Threads of a block per filter."""
        return _THREADS // self.lanes

    @cached_property
    def filter_blocks(self) -> int:
        """Blocks along the filters."""
        return -(-self.view.filters // self.lanes)

    @cached_property
    def blocks(self) -> int:
        """Blocks of the launch."""
        return prod(self.tap_tiles) * self.filter_blocks * self.parts

    # ---- cost

    @cached_property
    def walks_of_thread(self) -> int:
        """Walks per thread."""
        return -(-self.each // self.workers)

    @cached_property
    def rows(self) -> int:
        """Rows of x per walk, without out-of-bounds ones."""
        return min(self.walk + self.form.rows - 1, -(-self.view.x_extents[1] // self.view.steps[0]))

    @cached_property
    def instructions(self) -> float:
        """Instructions per thread."""
        form, size = self.form, self.view.problem.itemsize // 4
        before = form.before * self.view.apart[0] / self.walks[1] if self.view.pads[1] else 0
        walk = form.walk[size] + before + self.rows * form.row[size]
        return self.walks_of_thread * walk + _TAP * form.rows * form.across

    @cached_property
    def abreast(self) -> int:
        """Threads of a block, for one filter, whose walks are adjacent in the same rows."""
        return min(self.workers, self.walks[2])

    def _lines(self, channel: int, step: int) -> int:
        """Return the L1 lines that a warp's load of one element per thread touches; the arguments are strides."""
        size, across = self.view.problem.itemsize, _WARP // self.lanes
        if self.lanes > 1:
            return min(_WARP, across * -(-self.lanes * max(1, abs(channel)) * size // _LINE))
        run = min(self.view.apart[1], across)  # adjacent elements of a row; the next run is further away
        runs = -(-across // run) * -(-run * abs(step) * size // _LINE)
        lines = min(runs, -(-across * self.form.columns * abs(step) * size // _LINE))
        return min(_WARP, max(lines, -(-across // self.walks[2])))

    def _bytes(self, channel: int, step: int) -> int:
        """Return the L2 bytes that one element of a row costs for all filters of a block; the arguments are strides."""
        size = self.view.problem.itemsize
        if self.lanes > 1:
            return whole(self.lanes * min(abs(channel) * size, _BURST), _BURST)
        return min(_BURST, max(1, abs(step)) * size)

    def seconds(self, limits: Limits) -> float:
        """Model the seconds of the tiles and of adding the parts."""
        problem, form, blocks, view = self.view.problem, self.form, self.blocks, self.view
        rounds = whole(blocks, limits.multiprocessors)
        rows_of_x, rows_of_dy = (_THREADS * self.walks_of_thread * rows for rows in (self.rows, self.walk))
        products = rows_of_x * form.rows * form.across * form.columns
        x = view.x_strides[1], view.x_strides[-1] * view.strides[2]
        dy = view.dy_strides[1], view.dy_strides[-1]
        lines = model.gathering(blocks, rows_of_x * form.window, self._lines(*x), limits)
        lines += model.gathering(blocks, rows_of_dy * form.columns, self._lines(*dy), limits)
        columns = self.abreast * form.columns
        inputs = columns + (form.across - 1) * min(view.apart[1], self.abreast)
        met = self.rows * inputs * self._bytes(*x) + self.walk * columns * self._bytes(*dy)
        busy = max(
            model.instructions(rounds * _THREADS * self.instructions, limits),
            model.arithmetic(blocks, products, dtypes.entry(problem.dtype).accumulator, 1.0, limits),
            model.cached(blocks, self.walks_of_thread * -(-self.workers // self.abreast) * met, limits),
            lines,
        )
        busy += model.busy(-(-blocks // _blocks_per_sm(problem.dtype, form)), _BEGINNING, limits)
        sums_bytes = 2 * sums.workspace_bytes(self.parts, prod(problem.geometry.w_shape), problem.dtype)
        return model.overlapped(busy, model.memory(problem.bytes + sums_bytes, limits)) + limits.rates.launch


# ---------------------------------------------------------------- offers


def offers(problem: WeightGradProblem, limits: Limits) -> Iterator[Offer]:
    """Yield the best tile of each form, or why the kernel does not accept the problem."""
    view = RowView(problem)
    if why := view.refusal():
        yield Refusal(why, plain=problem.geometry.w_shape[1] != 1)
        return
    for form in forms(problem.dtype):
        time, tile = min(
            ((tile.seconds(limits), tile) for tile in _tiles(view, form, limits)), key=lambda timed: timed[0]
        )
        yield Candidate(variant(problem.dtype, form).name, time, partial(_plan, problem, tile))


def _lanes(view: RowView) -> Iterable[int]:
    """Return the filters per block to try: the largest number, and the one that leaves fewest threads idle."""
    if not view.channels_last:
        return (1,)
    fitting = [lanes for lanes in _LANES if lanes < 2 * view.filters]
    return dict.fromkeys((fitting[0], min(fitting[:3], key=lambda lanes: whole(view.filters, lanes))))


def _tiles(view: RowView, form: RowForm, limits: Limits) -> Iterator[RowTile]:
    """Yield the tiles to try for a form."""
    rows = -(-view.extents[1] // view.apart[0])
    walks = dict.fromkeys(-(-rows // -(-rows // walk)) for walk in _WALKS)
    room = sums.most_parts(prod(view.problem.geometry.w_shape), view.problem.dtype)
    for lanes, walk in product(_lanes(view), walks):
        undivided = RowTile(view, form, lanes, walk, 1)
        most = min(room, undivided.items)
        wanted = {max(1, min(most, rounds * limits.multiprocessors // undivided.blocks)) for rounds in _ROUNDS}
        for parts in sorted({-(-undivided.items // -(-undivided.items // parts)) for parts in wanted}):
            yield RowTile(view, form, lanes, walk, parts)


# ---------------------------------------------------------------- launch


def _plan(problem: WeightGradProblem, tile: RowTile) -> Plan:
    """Return the plan of this candidate."""
    g, view, kernel = problem.geometry, tile.view, variant(problem.dtype, tile.form)
    fields: dict[str, Any] = {
        **params.members(view, "filters", "taps", "apart", "phases"),
        "all": prod(g.w_shape),
        **array_fields({"x": view.x_strides, "dy": view.dy_strides}, RANK),
        "x_extent": view.x_extents,
        "dy_extent": view.extents,
        "stride": view.strides,
        "pad": view.pads,
        "dilation": view.dilations,
        "step": view.steps,
        **params.members(tile, "items", "each", "walk", "tap_tiles", "filter_blocks", "walks", "lanes"),
        "multiplier": problem.filters,
    }
    x, dy = problem.roles
    roles = {"x": x, "dy": dy, "sums": "workspace"}
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
    """Return the kernel variant of a form."""
    sizes = (form.rows, form.across, form.columns)
    blocks = _blocks_per_sm(dtype, form)
    return _KERNEL.over(dtype, RANK, str(form), types=types(dtype), sizes=sizes, blocks_per_sm=blocks)


def _blocks_per_sm(dtype: str, form: RowForm) -> int:
    """Return the occupancy that leaves a thread its registers: 128, more for many or 64-bit sums."""
    if dtype == "float64":
        return 3 if form.rows * form.across <= 9 else 2
    return 3 if form.rows * form.across > 25 else _BLOCKS_PER_SM


def variants() -> Iterator[Variant]:
    """Yield all variants."""
    return (variant(dtype, form) for dtype in dtypes.CONV_DTYPES for form in forms(dtype))
