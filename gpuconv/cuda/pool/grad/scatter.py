"""Gradient of MaxPool for large windows: each window's gradient is scattered to the element that its index names.

The opposite of the gather: each index is loaded once per thread instead of once per covered element. A thread owns a
box of elements whose sums it keeps in shared memory, so no atomics are needed (``pool/grad/scatter.cu``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import NamedTuple

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant, types
from gpuconv.cuda.plan import Candidate, Limits, Offer, Plan, Refusal, model
from gpuconv.cuda.pool.grad.base import Form, WalkView, walked, windows_met
from gpuconv.cuda.pool.grad.problem import PoolGradProblem, one_launch
from gpuconv.cuda.pool.problem import blocks_of
from gpuconv.rules import dtypes

NAME = "scatter"
_THREADS = 64
_RESIDENT = 16  # most blocks per SM, which leave 64 registers per thread
_COLUMNS, _SLICES = (1, 2, 4, 8, 16), (1, 2, 4, 8)  # columns, slices per box
_WALKS = (256, 128, 64, 32, 16, 8, 4)  # rows of windows per thread
_PART = 4  # windows loaded together
# Instructions (counted): per thread; per initial sum; per row of windows; per slice of one; per window. Per row
# of x; per slice of one; per store of columns.
_THREAD, _SUM, _ROW, _SLICE, _WINDOW = 210, 8, 35, 25, 38
_ROW_OF_X, _SLICE_OF_X, _WRITTEN = 30, 20, 14
# Cycles between a thread's windows: a quarter of an index's latency from the caches, plus a shared-memory round trip.
# Cycles between columns that are stored. Both assumed.
_WINDOW_TAKES, _COLUMN_TAKES = 80, 30
_INDEX = 8  # bytes per index
_LANES = 32
# Bytes that the L1 cache delivers per cycle, and that the L2 cache accepts per cycle (the latter assumed).
_LINE, _SECTOR = 128, 32


# ---------------------------------------------------------------- accepted problems


def _accepted(problem: PoolGradProblem, limits: Limits) -> tuple[WalkView, Box] | str:
    """Return the view of the problem that the kernel takes, or why it does not accept the problem."""
    view = _view(problem)
    if isinstance(view, str):
        return view
    forward = problem.forward
    if forward.column_major and len(forward.axes) > 1:
        return "column-major numbers"
    boxes = [box for box in _boxes(view, problem.dtype) if box.bytes <= limits.shared_bytes_per_block]
    if not boxes:
        return "shared memory does not hold the rows of a window"
    if view.wide(boxes[0], problem.spans):
        return "64-bit indices"
    return view, _best(problem, view, boxes, limits)


def _view(problem: PoolGradProblem) -> WalkView | str:
    """Return the view with the outermost of three axes as the height."""
    view, axes = walked(problem), problem.forward.axes
    if isinstance(view, str) or len(axes) < 3:
        return view
    return replace(view, depth=axes[1], height=axes[0])


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True, slots=True)
class Box(Form):
    """A thread's box: its columns and slices, and the rows whose sums are in shared memory."""

    size: int  # bytes per sum
    walk: int = 0  # rows of windows per thread

    @property
    def slice_bytes(self) -> int:
        """Shared-memory bytes per block for one slice of a row."""
        return _THREADS * self.columns * self.size

    @property
    def row_bytes(self) -> int:
        """Shared-memory bytes per block for one row."""
        return self.slices * self.slice_bytes

    @property
    def bytes(self) -> int:
        """Shared-memory bytes per block."""
        return self.rows * self.row_bytes

    def __str__(self) -> str:
        return f"boxes of {self.slices} x {self.columns} elements, {self.walk} rows of windows a thread"


def _boxes(view: WalkView, dtype: str) -> Iterator[Box]:
    """Yield boxes of all sizes up to the first that covers x."""
    size = dtypes.sums(dtype).itemsize
    for columns, slices in product(_fitting(_COLUMNS, view.width.extent), _fitting(_SLICES, view.depth.extent)):
        yield Box(view.height.reach, 0, columns, 0, size, slices=slices)


def _fitting(sizes: tuple[int, ...], extent: int) -> list[int]:
    """Return the sizes up to the first that covers ``extent``."""
    return [size for size in sizes if size < 2 * extent]


def _best(problem: PoolGradProblem, view: WalkView, boxes: list[Box], limits: Limits) -> Box:
    """Return the box and walk with the least modelled time."""
    tried = [replace(box, walk=walk) for box in boxes for walk in view.lengths(box, _WALKS)]
    return min(tried, key=lambda box: _seconds(problem, view, box, limits))


def _vector(problem: PoolGradProblem, view: WalkView, box: Box) -> int:
    """Return the columns written per store: 16 bytes of them, or 1."""
    *others, step = view.strides("x")
    count = 16 // box.size
    whole = not any(number % count for number in (box.columns, view.width.extent, *others))
    return count if step == 1 and whole else 1


# ---------------------------------------------------------------- cost


class _Work(NamedTuple):
    """The work of one thread."""

    windows: int  # windows visited, padding of the last part included
    written: int  # stores of columns
    instructions: int
    clocks: int  # cycles per thread if all windows hit the caches
    trips: float  # load latencies for windows that its neighbours have not loaded


def _work(problem: PoolGradProblem, view: WalkView, box: Box) -> _Work:
    """Return the work of one thread."""
    steps = box.walk + view.halo(box)
    slices = min(steps, view.height.windows) * windows_met(view.depth, box.slices)
    windows = slices * -(-windows_met(view.width, box.columns) // _PART) * _PART
    rows_of_x = steps * view.step(box)
    slices_of_x = rows_of_x * box.slices
    written = slices_of_x * box.columns // _vector(problem, view, box)
    of_windows = _ROW * steps + _SLICE * slices + _WINDOW * windows
    of_x = _ROW_OF_X * rows_of_x + _SLICE_OF_X * slices_of_x + _WRITTEN * written
    sums = _SUM * box.rows * box.slices * box.columns
    clocks = windows * _WINDOW_TAKES + slices_of_x * box.columns * _COLUMN_TAKES
    return _Work(windows, written, _THREAD + sums + of_windows + of_x, clocks, _trips(view, box, slices))


def _trips(view: WalkView, box: Box, slices: int) -> float:
    """Return the load latencies that a thread waits for: those of the parts that its neighbours do not load too."""
    met = windows_met(view.width, box.columns)
    own = min(met, -(-box.columns // max(view.width.stride, 1)))
    return slices * -(-own // _PART)


def _seconds(problem: PoolGradProblem, view: WalkView, box: Box, limits: Limits) -> float:
    """Model the seconds: the largest of instructions, latency, cache and memory time."""
    work, threads = _work(problem, view, box), view.items(box, box.walk)
    blocks = blocks_of(variant(problem.dtype), threads, threads * work.instructions, work.trips, limits, box.bytes)
    turns = -(-blocks.number // (limits.multiprocessors * blocks.resident))
    busy = max(model.busy(1, turns * work.clocks, limits), _gathered(problem, view, box, work, blocks.number, limits))
    beside = model.overlapped(busy, model.memory(problem.bytes, limits))
    return max(beside, model.streaming(blocks, problem.bytes, limits))


def _gathered(problem: PoolGradProblem, view: WalkView, box: Box, work: _Work, blocks: int, limits: Limits) -> float:
    """Return the seconds of L1 traffic, and with channels last of L2 traffic.

    Without channels last, a block's threads visit adjacent windows, whose lines stay in the L1 cache.
    """
    size = dtypes.entry(problem.dtype).itemsize
    nearest, columns = (view.channel, 1) if view.channels_last else (view.width, box.columns)
    beside = min(-(-nearest.extent // columns), _LANES)
    apart = columns / max(nearest.stride, 1)  # windows between adjacent threads
    read = _asked(_INDEX * nearest.indices * apart, beside, _LINE) + _asked(size * nearest.y * apart, beside, _LINE)
    requests = work.windows * read + work.written * _asked(size * nearest.x * columns, beside, _SECTOR)
    seconds = model.gathering(blocks, _THREADS * requests, 1, limits)
    if view.channels_last:
        seconds = max(seconds, model.cached(blocks, _THREADS * work.windows * (_INDEX + size), limits))
    return seconds


def _asked(apart: float, beside: int, size: int) -> float:
    """Return the lines of ``size`` bytes that a warp's request touches, with adjacent lanes ``apart`` bytes apart.

    ``beside`` is the number of adjacent lanes; the next group of lanes is elsewhere in memory.
    """
    return min(_LANES, max(_LANES / beside, _LANES * abs(apart) / size))


# ---------------------------------------------------------------- offers


def offers(problem: PoolGradProblem, limits: Limits) -> Iterator[Offer]:
    """Yield the kernel, or why it does not accept the problem."""
    if problem.forward.averages:
        yield Refusal("averages", plain=True)
        return
    accepted = _accepted(problem, limits)
    if isinstance(accepted, str):
        yield Refusal(accepted)
        return
    view, box = accepted
    kernel = variant(problem.dtype)
    yield Candidate(kernel.name, _seconds(problem, view, box, limits), partial(_plan, problem, view, box, kernel))


# ---------------------------------------------------------------- launch


def _plan(problem: PoolGradProblem, view: WalkView, box: Box, kernel: Variant) -> Plan:
    """Return the plan of this candidate."""
    # If rows belong to another axis than the plane's they are channels, which Indices within a plane do not number.
    row, slice_ = view.height.place or view.width.extent, view.depth.place
    fields = view.fields_of(box, box.walk) | {
        "extent": [axis.extent for axis in view.axes],
        "box_slices": box.slices,
        "box_columns": box.columns,
        "vectors": _vector(problem, view, box) > 1,
        "reached": view.height.reach * row,
        "by_row": row,
        "by_slice": slice_ or row,
        **params.members(box, "slice_bytes", "row_bytes", "bytes"),
    }
    for name, array in (("dx", "x"), ("dy", "y"), ("indices", "indices"), ("place", "place")):
        fields |= params.array_fields(name, view.strides(array))
    fields = {name: value for name, value in fields.items() if name in (kernel.layout.names or ())}
    reason = f"{'channels last: ' * view.channels_last}{box}; {box.bytes} bytes of shared memory"
    return one_launch(problem, kernel, view.items(box, box.walk), fields, reason, box.bytes)


_KERNEL = Kernel(
    "pool/grad/scatter.cu", "max_pool_grad_scatter", "ScatterPoolGradParams", _THREADS, _RESIDENT, name="max_pool_grad"
)


def variant(dtype: str) -> Variant:
    """Return the kernel variant for a dtype."""
    return _KERNEL.over(dtype, 3, NAME, types=types(dtype))


def variants() -> list[Variant]:
    """Return all variants."""
    return [variant(dtype) for dtype in dtypes.CONV_DTYPES]
