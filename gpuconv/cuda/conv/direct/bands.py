"""Direct Conv of stride 1, and ConvTranspose, with at most 8 output channels per group (``conv/direct/bands.cu``).

GEMM tiles would be nearly empty with so few filters. A block stages a *band* of x, its inputs with halo, in shared
memory, and each thread computes a register tile of adjacent outputs. ConvTranspose's phases along W act as further
filters of a Conv with a shorter kernel.

One launch, w read in place; three spatial axes (shorter problems get D or H of one element; 1-D lines are folded into
rows). Tiles, shared memory and cost are in ``bands_tile.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import gcd, prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.conv.direct import bands_tile
from gpuconv.cuda.conv.direct.bands_tile import BandAxis, BandForm, BandTile, BandView
from gpuconv.cuda.conv.direct.base import THREADS, on_arrays, unfit
from gpuconv.cuda.conv.problem import Axis, Problem
from gpuconv.cuda.plan import Candidate, Limits, Offer, Plan, Refusal, model
from gpuconv.rules import dtypes

NAME = "bands of few filters"
MOST_FILTERS = 8  # per group
_SECTOR = 32  # bytes of one DRAM/L2 sector


# ---------------------------------------------------------------- accepted problems


def _refusal(problem: Problem) -> Refusal | None:
    """Return why this family does not accept the problem; None if it does."""
    if problem.filters > MOST_FILTERS:
        return Refusal(f"{problem.filters} output channels a group; it takes up to {MOST_FILTERS}", plain=True)
    if problem.rank > 3:
        return Refusal(f"{problem.rank} spatial axes; it has three")
    if any(step != 1 for step in problem.column_strides[-2:] + problem.dilations[-2:]):
        steps = problem.strides or problem.column_strides
        return Refusal(
            f"strides {steps}, dilations {problem.dilations}: it takes dilations, and Conv's strides, along depth alone"
        )
    return unfit(problem)


def _view(problem: Problem) -> BandView:
    """Return the problem as the bands kernel sees it, with the band's start aligned to vectors."""
    _, height, width = (_axis(axis, bool(problem.phases)) for axis in problem.axes)
    vectors = _vectors(problem)
    if vectors > 1:  # align the band's start to whole vectors
        shift = width.start % vectors
        positions = width.positions + shift
        width = BandAxis(
            width.phases, width.taps, width.kernel, positions, width.start - shift, width.origin - shift * width.phases
        )
    flat = (problem.x_shape[3], problem.y_shape[3], problem.taps[1], problem.pads[1]) == (1, 1, 1, 0)
    return BandView(
        dtype=problem.dtype,
        copies=problem.batch * problem.group,
        channels=problem.channels,
        filters=problem.filters,
        depths=problem.y_shape[2],
        planes=-(-problem.taps[0] // (problem.strides[0] if problem.phases else 1)),
        height=height,
        width=width,
        line=flat and height.phases == 1,
        vectors=vectors,
        lines=problem.lines,
    )


def _axis(axis: Axis, transposed: bool) -> BandAxis:
    """Return an axis as a correlation of stride 1; for ConvTranspose, of its phases."""
    if not transposed:
        return BandAxis(1, axis.taps, axis.taps, axis.y, -axis.pad, 0)
    taps, first = -(-axis.taps // axis.stride), axis.pad // axis.stride
    origin = first * axis.stride - axis.pad
    return BandAxis(axis.stride, taps, axis.taps, -(-(axis.y - origin) // axis.stride), first - taps + 1, origin)


def _vectors(problem: Problem) -> int:
    """Return how x is copied to shared memory, as the kernel's ``vectors``.

    Positive n: n adjacent elements of a row per copy. Below −1: that many adjacent channels per copy. −1: single
    elements, with adjacent threads on adjacent channels.
    """
    shape, strides = problem.x_shape, problem.x_strides
    if strides[-1] == 1 or shape[-1] == 1:
        vector = problem.vector
        aligned = gcd(vector, shape[-1], *_steps(problem, (0, 1, 2, 3))) == vector
        return vector if aligned else 1
    vector = 16 // problem.itemsize
    if strides[1] != 1 or problem.channels == 1:
        return 1
    if gcd(vector, problem.channels, *_steps(problem, (0, 2, 3, 4))) == vector:
        return -vector
    return -1 if problem.channels >= _NEIGHBOURS else 1


def _steps(problem: Problem, axes: tuple[int, ...]) -> list[int]:
    """Return the strides of x along these axes, without axes of one element."""
    return [problem.x_strides[axis] for axis in axes if problem.x_shape[axis] > 1]


# ---------------------------------------------------------------- tiles


_NEIGHBOURS = 8  # threads that copy a column's channels element by element
_FORMS = (
    BandForm(1, 7, 3, 3, 88, 0.86),
    BandForm(1, 7, 5, 5, 96, 0.93),
    BandForm(1, 7, 3, 4, 104, 0.89),
    BandForm(3, 3, 2, 2, 96, 0.87),
    BandForm(3, 3, 3, 3, 96, 0.91),
    BandForm(3, 3, 3, 4, 112, 0.92),
    BandForm(4, 3, 2, 2, 112, 0.90),
    BandForm(4, 3, 3, 3, 112, 0.93),
)
_DOUBLE_FORMS = (BandForm(1, 7, 3, 4, 80, 0.76), BandForm(3, 3, 3, 4, 112, 0.82))  # usable for kernels of any size


def forms(dtype: str) -> tuple[BandForm, ...]:
    """Return the kernel forms for a dtype."""
    return _DOUBLE_FORMS if dtype == "float64" else _FORMS


def _fitting(view: BandView) -> list[BandForm]:
    """Return, for each number of filters per thread, the form that wastes the fewest taps; on a tie, the first."""
    shortest: dict[int, BandForm] = {}
    for form in sorted(forms(view.dtype), key=lambda form: form.chunks(view) * form.kernel_columns):
        if form.takes(view):
            shortest.setdefault(form.filters, form)
    return list(shortest.values())


# ---------------------------------------------------------------- cost


def _scattered_bytes(problem: Problem) -> int:
    """Return the extra traffic in bytes where a group's channels fill no whole sector, so others' are loaded too."""
    own = problem.channels * problem.itemsize
    apart = problem.group > 1 and problem.x_strides[1] == 1 and abs(problem.x_strides[-1]) != 1
    return max(0, _SECTOR - own) * prod(problem.x_shape) // problem.channels if apart else 0


# ---------------------------------------------------------------- offers


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield the best tile of each form, one form per number of filters per thread."""
    if refusal := _refusal(problem):
        yield refusal
        return
    view = _view(problem.lifted)
    tiles = (bands_tile.best(view, form, limits) for form in _fitting(view))
    yield from (_candidate(problem, tile, limits) for tile in tiles if tile is not None)


def offers_in_order(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield batch-invariant candidates: for each form, the best tile of every order of summation."""
    if refusal := _refusal(problem):
        yield refusal
        return
    view = _view(problem.lifted)
    for form in _fitting(view):
        for tile in bands_tile.in_order(view, form, limits):
            yield _candidate(problem, tile, limits)


def _candidate(problem: Problem, tile: BandTile, limits: Limits) -> Candidate:
    """Return a tile as a candidate for the problem."""
    moved = problem.bytes + _scattered_bytes(problem)
    seconds = model.overlapped(tile.seconds(limits), model.memory(moved, limits))
    name = variant(problem.dtype, tile.form).name
    return Candidate(name, seconds, partial(_plan, problem.lifted, tile), f"{problem.fused} over {tile.order}")


# ---------------------------------------------------------------- launch


def _plan(problem: Problem, tile: BandTile) -> Plan:
    """Return the plan of this candidate."""
    kernel, reason = variant(problem.dtype, tile.form), f"no GEMM: {problem.filters} output channels of a group; {tile}"
    if problem.channels > 1 and problem.x_strides[1] == 1 and abs(tile.view.vectors) == 1:
        channels = f"{problem.channels} channels of a group, or gaps between pixels, are not whole 16 bytes"
        reason += f"; x is copied element by element: {channels}"
    return on_arrays(problem, kernel, tile.blocks, _fields(problem, tile), reason, tile.shared_bytes)


def _fields(problem: Problem, tile: BandTile) -> dict[str, Any]:
    """Return the fields of the kernel's parameter struct."""
    view = tile.view
    rows, columns = tile.extent
    height, width = tile.positions
    at_once = max(1, view.vectors)
    tiles_h, tiles_w = tile.blocks_by_axis
    return {
        "axes": [_struct(axis, bool(problem.phases)) for axis in problem.axes],
        **params.members(problem, "channels", "filters"),
        "x_batch": problem.x_strides[0],
        "x_channel": problem.x_strides[1],
        "y_batch": problem.y_strides[0],
        "y_channel": problem.y_strides[1],
        **problem.w_steps,
        "b_stride": problem.b_stride or 0,
        "start": [view.height.start, view.width.start],
        "origin": [view.height.origin, view.width.origin],
        **params.members(
            tile,
            "fold",
            "step",
            "parts",
            "row_pitch",
            "channel_pitch",
            "channel_weights",
            "plane",
            "jobs",
            "job_blocks",
        ),
        "rows": rows,
        "weights": tile.step * tile.channel_pitch,
        "width": width,
        "height": height,
        **params.members(view, "vectors", "depths"),
        "channels_last": int(problem.filters > 1 and abs(problem.y_strides[1]) < abs(problem.y_strides[-1])),
        "columns": -(-columns // at_once),
        "taps": view.height.taps,
        "chunks": tile.form.chunks(view),
        "threads_w": tile.threads[1],
        "threads_h": tile.threads[0],
        "by_filters": problem.filters,
        "tiles_w": tiles_w,
        "tiles_h": tiles_h,
        "groups": problem.group,
    }


def _struct(axis: Axis, transposed: bool) -> dict[str, Any]:
    """Return the fields of the struct ``BandsAxis``."""
    return {
        "x_extent": axis.x,
        "x_stride": axis.x_stride,
        "y_extent": axis.y,
        "y_stride": axis.y_stride,
        "w_stride": axis.w_stride,
        "kernel": axis.taps,
        "taps": _axis(axis, transposed).taps,
        "scale": axis.column_stride,
        "shift": axis.pad if transposed else -axis.pad,
        "advance": -axis.dilation if transposed else axis.dilation,
        "phases": axis.stride if transposed else 1,
    }


_KERNEL = Kernel("conv/direct/bands.cu", "conv_bands", "BandsParams", THREADS)


def variant(dtype: str, form: BandForm) -> Variant:
    """Return the kernel variant (template instantiation) of a dtype and a tile form, for up to three spatial axes."""
    sizes = (form.filters, form.rows, form.kernel_rows, form.kernel_columns)
    blocks = bands_tile.blocks_per_sm(form, dtype)
    return _KERNEL.over(dtype, 3, str(form), types=types(dtype), sizes=sizes, blocks_per_sm=blocks)


def variants() -> Iterator[Variant]:
    """Yield every kernel variant of this family."""
    for dtype in dtypes.CONV_DTYPES:
        for form in forms(dtype):
            yield variant(dtype, form)
