"""Where the wgmma kernels fetch x and w from: the arrays themselves or copies, and the tensor maps for TMA.

An im2col map reads, for one tap, the inputs at a fixed distance from consecutive output columns. A tiled map reads
boxes: rows of x, or patches of pixels that several taps share. This module decides which forms a problem allows and
builds their maps. Axes of maps are ordered innermost first, those of problems outermost first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import gcd, prod
from typing import Any

from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.gemm import fragments
from gpuconv.cuda.conv.gemm.base import PackedWeights
from gpuconv.cuda.conv.problem import Problem, merged_stride
from gpuconv.cuda.conv.wgmma import operands
from gpuconv.cuda.conv.wgmma.pixels import PixelStrips
from gpuconv.cuda.conv.wgmma.strips import PATCH, ROW, Strips
from gpuconv.cuda.conv.wgmma.tiles import HALF_SLICE, SLICE_BYTES, STEP_BYTES, WgmmaTile
from gpuconv.cuda.plan import TensorMap
from gpuconv.cuda.plan.numbers import RANK, whole
from gpuconv.rules.geometry import Ints

LEAST_FILTERS = 32  # half of the smallest tile; with fewer filters, mma.sync wastes less
SECTOR = 32  # bytes of one DRAM/L2 sector
ALIGNMENT = 16  # bytes that TMA requires of addresses and strides
MOST_PHASES = 32
_IN_ORDER = 2  # slowdown of a step that waits for the previous one (estimated)
_MOST_STRIDE = 8
_CORNER_BITS = {1: 16, 2: 8, 3: 5}  # number of spatial axes → bits of a signed im2col corner
# number of spatial axes → largest distance between first and last tap: one less than im2col offsets can hold
_MOST_REACH = {1: 65534, 2: 254, 3: 30}
_MOST_ELEMENTS = 2**31 - 1  # limit on the elements of a copy


@dataclass(frozen=True)
class Source:
    """One way to fetch x and w."""

    problem: Problem
    # "copied": a channels-last copy of x; "direct": x itself, whose channels are contiguous; "rows": x itself, whose
    # pixels along W are contiguous
    form: str
    packed: bool  # whether w is packed first, or fetched in place
    # whether contiguous channels come in patches of pixels that taps share, instead of separately per tap
    patches: bool = False
    slice_bytes: int = SLICE_BYTES  # bytes per row of a slice of K

    @cached_property
    def in_strips(self) -> bool:
        """Whether x is fetched in strips that several taps can share."""
        return self.patches or self.form == "rows"

    @cached_property
    def in_registers(self) -> bool:
        """Whether x is float32 read in place, which is rounded to TF32 in registers."""
        return not _takes_rounded(self.problem) and self.form != "copied"

    @cached_property
    def seen(self) -> Problem:
        """The problem as the kernel sees it: a Conv for strips, with merged spatial axes where rows allow it."""
        if not self.in_strips:
            return self.problem
        conv = correlation.as_conv(self.problem)
        assert conv is not None
        return (conv.flat or conv) if self.form == "rows" else conv

    @cached_property
    def block_k(self) -> int:
        """Channels per slice of K."""
        return self.slice_bytes // self.problem.itemsize

    @cached_property
    def parts(self) -> int:
        """Parts that x or w is split into: 2 for 3xTF32."""
        return fragments.arithmetic(self.problem).parts

    @cached_property
    def products(self) -> int:
        """Tensor-core products per product of the problem: 3 for 3xTF32."""
        return fragments.arithmetic(self.problem).products

    @cached_property
    def channel_slices(self) -> int:
        """Slices of K per tap."""
        return -(-self.problem.channels // self.block_k)

    @cached_property
    def last_steps(self) -> int:
        """mma steps of a tap's last slice that are executed; steps of padding only are skipped.

        With x in registers, more than half of a slice's steps take longer than all of them, so the slice is completed
        with zeros.
        """
        channels = self.problem.channels - (self.channel_slices - 1) * self.block_k
        steps, whole_slice = -(-channels * self.problem.itemsize // STEP_BYTES), self.slice_bytes // STEP_BYTES
        zeros = self.in_registers and self.problem.group == 1
        return whole_slice if zeros and _IN_ORDER * steps >= whole_slice else steps

    @cached_property
    def filled(self) -> float:
        """Time of all steps relative to that of whole slices."""
        steps = self.slice_bytes // STEP_BYTES
        last = self.last_steps
        if self.in_registers and last < steps:
            last *= _IN_ORDER
        return ((self.channel_slices - 1) * steps + last) / (self.channel_slices * steps)

    @cached_property
    def x_fetched(self) -> float:
        """Bytes of x fetched relative to those of whole slices.

        Zeros beyond the last channel are not fetched. If another group or part follows, its channels are fetched
        instead.
        """
        all_bytes = self.channel_slices * self.slice_bytes
        if self.all_x_channels > self.x_channels:
            return 1.0
        channel_bytes = self.x_channels * self.problem.itemsize
        return (channel_bytes if self.form == "rows" else whole(channel_bytes, SECTOR)) / all_bytes

    @cached_property
    def w_fetched(self) -> float:
        """Bytes of w fetched relative to those of whole slices."""
        return whole(self.w_channels * self.problem.itemsize, SECTOR) / (self.channel_slices * self.slice_bytes)

    @cached_property
    def x_channels(self) -> int:
        """Channels per group in x or its copy, padded so that an mma step never reads the next group's channels."""
        if self.form != "copied":
            return self.problem.channels
        unit = ALIGNMENT if self.problem.group * self.parts == 1 else STEP_BYTES
        return whole(self.problem.channels, unit // self.problem.itemsize)

    @property
    def all_x_channels(self) -> int:
        """Channels in x or its copy, over all groups and parts."""
        return self.problem.group * (self.parts if self.form == "copied" else 1) * self.x_channels

    @cached_property
    def w_channels(self) -> int:
        """Channels per tap in the rows of w."""
        channels = self.problem.channels
        return whole(channels, ALIGNMENT // self.problem.itemsize) if self.packed else channels

    def weights(self) -> PackedWeights:
        """Return the layout of packed weights, with which single weights are found."""
        if not self.packed:
            return PackedWeights(self.problem.w_strides[1], self.problem.filters, self.w_channels)
        row = prod(self.problem.taps) * self.w_channels
        return PackedWeights(row, self.problem.filters * self.parts, self.w_channels)

    @cached_property
    def x_last_bytes(self) -> int:
        """Bytes of the channels-last copy of x; 0 without one."""
        return operands.x_bytes(self.problem, self.x_channels, self.parts) if self.form == "copied" else 0

    @cached_property
    def packed_bytes(self) -> int:
        """Bytes of the packed weights; 0 if w is fetched in place."""
        return operands.weight_bytes(self.problem, self.w_channels, self.parts) if self.packed else 0

    @property
    def aligned(self) -> tuple[tuple[str, int], ...]:
        """(role, bytes) of the arrays whose address must be aligned; copies always are."""
        x = (("x", ALIGNMENT),) if self.form != "copied" else ()
        return x if self.packed else (*x, ("w", ALIGNMENT))


# ---------------------------------------------------------------- accepted problems


def refusal(problem: Problem) -> str | None:
    """Return why no tensor map can describe the problem's windows; None if one can."""
    if problem.filters < LEAST_FILTERS:
        return f"a group has {problem.filters} output channels, less than the {LEAST_FILTERS} of half a tile"
    if 0 in problem.x_shape:
        return "there is no input to fetch"
    if max(problem.column_strides) > _MOST_STRIDE:
        return f"TMA fetches strides up to {_MOST_STRIDE}, not {max(problem.column_strides)}"
    if prod(problem.phases) > MOST_PHASES:
        return f"{prod(problem.phases)} phases are more than {MOST_PHASES}"
    reach = max(window.reach for window in windows(problem))
    most = _MOST_REACH[problem.rank]
    if reach > most:
        return f"taps reach {reach} elements, more than the {most} of TMA's offsets on {problem.rank} axes"
    bound = 1 << _CORNER_BITS[problem.rank] - 1
    corners = [corner for window in windows(problem) for corner in (window.lower, window.upper)]
    if not all(-bound <= corner < bound for corner in corners):
        return (
            f"columns begin {min(corners)} or end {max(corners)} elements beside x, TMA allows {-bound} to {bound - 1}"
        )
    copy = of_copies(problem)
    if max(copy.x_last_bytes, copy.packed_bytes) > _MOST_ELEMENTS * problem.itemsize:
        return "a copy of x or w would have 2**31 elements or more"
    return None


@dataclass(frozen=True, slots=True)
class Window:
    """The bounding box of all phases' im2col columns along one axis of x."""

    lower: int  # input coordinate of the first column at the lowest tap
    upper: int  # that of the last column, relative to the last element of x
    reach: int  # distance between the lowest and the highest tap


def windows(problem: Problem) -> Iterator[Window]:
    """Yield the window of each spatial axis."""
    for axis in range(problem.rank):
        lowest, highest = _taps(problem, axis)
        last = lowest + (problem.columns[axis] - 1) * problem.column_strides[axis]
        yield Window(lowest, last + 1 - problem.x_shape[2 + axis], highest - lowest)


def _taps(problem: Problem, axis: int) -> tuple[int, int]:
    """Return the lowest and the highest input coordinate that column 0 reads, over all phases."""
    taps, dilation, pad = problem.taps[axis], problem.dilations[axis], problem.pads[axis]
    if not problem.phases:
        return -pad, (taps - 1) * dilation - pad
    stride = problem.strides[axis]
    common = gcd(stride, dilation)
    period = stride // common
    inverse = pow(dilation // common, -1, period)
    met: list[int] = []
    for place in range(pad, pad + problem.phases[axis]):
        first = place // common * inverse % period
        if place % common == 0 and first < taps:
            last = first + (taps - 1 - first) // period * period
            met += ((place - tap * dilation) // stride for tap in (first, last))
    return min(met, default=0), max(met, default=0)


# ---------------------------------------------------------------- forms


def sources(problem: Problem) -> Iterator[Source]:
    """Yield the sources for an accepted problem: of each form, the one that needs the fewest copies."""
    conv = correlation.as_conv(problem)
    if not _takes_rounded(problem):
        copied = Source(problem, "copied", packed=True)
        yield copied
        if conv is not None:
            yield replace(copied, patches=True)
            if _channels_last(problem):
                yield replace(copied, form="direct", patches=True)
            if no_rows(conv) is None:
                yield replace(copied, form="rows")
        return
    if problem.x_strides[1] == 1 and not _channels_last(problem):
        problem = problem.without_unread_pixels  # pixels that no output reads are not copied
        conv = correlation.as_conv(problem)
    for slice_bytes in (SLICE_BYTES, HALF_SLICE) if _half_is_empty(problem) else (SLICE_BYTES,):
        last = "direct" if _channels_last(problem) else "copied"
        columns = Source(problem, last, not _w_as_it_is(problem), slice_bytes=slice_bytes)
        if slice_bytes == SLICE_BYTES:
            yield columns
        if conv is not None:
            yield replace(columns, patches=True)
            if no_rows(conv) is None:
                yield replace(columns, form="rows")


def _half_is_empty(problem: Problem) -> bool:
    """Return whether at most half of the last slice's 16-bit channels are used."""
    slots = SLICE_BYTES // 2
    return problem.itemsize == 2 and 0 < problem.channels % slots <= slots // 2


def of_copies(problem: Problem) -> Source:
    """Return the fallback source, copies of x and w, which accepts every problem and every address."""
    return Source(problem, "copied", packed=True)


def _takes_rounded(problem: Problem) -> bool:
    """Return whether x and w can be multiplied without rounding; TF32 must be rounded first, which TMA does not do."""
    return problem.itemsize == 2


def _channels_last(problem: Problem) -> bool:
    """Return whether x can be fetched in place with its channels contiguous."""
    batch, channel, *spatial = problem.x_strides
    if not (channel == 1 and _own_steps(problem)):
        return False
    sizes = [problem.group * problem.channels, *problem.x_shape[:1:-1], problem.batch]
    return _strides(sizes, [*spatial[::-1], batch], problem.itemsize) is not None


def no_rows(problem: Problem) -> str | None:
    """Return why x of a Conv cannot be fetched in place by rows of pixels; None if it can."""
    if not _own_steps(problem):
        channels = STEP_BYTES // problem.itemsize
        return f"the {problem.channels} channels of a group are not whole steps of {channels}"
    if _takes_rounded(problem) and problem.column_strides[-1] != 1:
        return f"the stride along its rows is {problem.column_strides[-1]}"
    seen = problem.flat or problem
    channels = problem.group * problem.channels
    if problem.x_strides[1] == 1 < channels and channels * problem.itemsize % ALIGNMENT:
        return f"the {channels} channels of a pixel are not whole {ALIGNMENT} bytes"
    if seen.x_strides[-1] != 1:
        return "the pixels of its rows are not contiguous"
    if _strides(*_rows_of_x(seen), seen.itemsize) is None:
        return f"its rows are not {ALIGNMENT} bytes, or a multiple of that, apart"
    return None


def _rows_of_x(problem: Problem) -> tuple[Ints, list[int]]:
    """Return the sizes of x with W innermost, then H, D, channels, batch; and the strides of all axes but the first."""
    lifted = problem.lifted
    batch, channel, depth, height, _ = lifted.x_strides
    channels = problem.group * problem.channels
    return (*lifted.x_shape[:1:-1], channels, problem.batch), [height, depth, channel, batch]


def _w_as_it_is(problem: Problem) -> bool:
    """Return whether w can be fetched in place: contiguous channels, and taps that follow each other without gaps."""
    group, filters, channel, *spatial = problem.w_strides
    if not _takes_rounded(problem) or channel != 1:
        return False
    if prod(problem.taps) > 1 and merged_stride(problem.taps, spatial) != problem.channels:
        return False
    if problem.group > 1 and group != problem.filters * filters:
        return False
    return _strides(*_rows_of_w(problem), problem.itemsize) is not None


def _rows_of_w(problem: Problem) -> tuple[Ints, list[int]]:
    """Return the sizes of w with channels innermost, then taps; and the strides of all axes but the first."""
    group, filters, *_ = problem.w_strides
    channels = problem.channels
    return (channels, prod(problem.taps), problem.filters, problem.group), [channels, filters, group]


def _own_steps(problem: Problem) -> bool:
    """Return whether no mma step along K reads another group's channels."""
    return problem.group == 1 or problem.channels * problem.itemsize % STEP_BYTES == 0


def _strides(sizes: Sequence[int], strides: Sequence[int], itemsize: int) -> Ints | None:
    """Return a map's strides in bytes for all axes but the innermost; None if TMA does not support them.

    Each stride must be a multiple of the one before. Axes of one element take the stride of the next longer axis.
    """
    steps: list[int] = []
    outer = whole(sizes[0] * itemsize, ALIGNMENT)
    for size, stride in zip(sizes[1:], strides, strict=True):
        if size > 1:
            outer = max(outer, stride * itemsize * size)
    for size, stride in zip(sizes[:0:-1], reversed(strides), strict=True):
        outer = stride * itemsize if size > 1 else outer
        steps.insert(0, outer)
    if min(steps) <= 0 or any(after % before for before, after in pairwise((ALIGNMENT, *steps))):
        return None
    return tuple(steps) if steps[0] >= sizes[0] * itemsize else None


# ---------------------------------------------------------------- tensor maps


def maps(source: Source, tile: WgmmaTile, strips: Strips | PixelStrips | None) -> tuple[TensorMap, TensorMap]:
    """Return the tensor maps of x and w for a kernel's tile."""
    return _columns_of_x(source, tile) if strips is None else _boxes_of_x(source, strips), _of_w(source, tile)


def _boxes_of_x(source: Source, strips: Strips | PixelStrips) -> TensorMap:
    """Return the tiled map of x for strips."""
    if isinstance(strips, PixelStrips):
        high, wide = strips.box
    else:
        high, wide = (1, ROW) if source.form == "rows" else (strips.bytes // (source.slice_bytes * PATCH), PATCH)
    if source.form == "rows":
        role, (sizes, steps) = "x", _rows_of_x(source.seen)
        strides, box = _known(_strides(sizes, steps, source.problem.itemsize)), (wide, high, 1, source.block_k, 1)
        swizzle = 0 if source.in_registers else SLICE_BYTES
    else:
        role, sizes, strides = _channels_of_x(source, source.problem.lifted)
        box = (source.block_k, wide, high, 1, 1)
        swizzle = source.slice_bytes
    ones = (1,) * len(sizes)
    return TensorMap(role, "x_map", source.problem.dtype, sizes, strides, ones, box=box, swizzle=swizzle)


def _channels_of_x(source: Source, problem: Problem) -> tuple[str, Ints, Ints]:
    """Return the role, sizes and strides of x or its copy with channels innermost; ``problem`` determines the axes."""
    sizes = (source.all_x_channels, *problem.x_shape[:1:-1], problem.batch)
    if source.form == "copied":
        return "x_last", sizes, tuple(problem.itemsize * prod(sizes[: axis + 1]) for axis in range(problem.rank + 1))
    batch, _, *spatial = problem.x_strides
    return "x", sizes, _known(_strides(sizes, [*spatial[::-1], batch], problem.itemsize))


def _columns_of_x(source: Source, tile: WgmmaTile) -> TensorMap:
    """Return the im2col map of x."""
    problem = source.problem
    role, sizes, strides = _channels_of_x(source, problem)
    inner = tuple(windows(problem))[::-1]
    return TensorMap(
        *(role, "x_map", problem.dtype, sizes, strides, (1, *problem.column_strides[::-1], 1)),
        lower=tuple(window.lower for window in inner),
        upper=tuple(window.upper for window in inner),
        channels=source.block_k,
        pixels=tile.block_n,
    )


def _of_w(source: Source, tile: WgmmaTile) -> TensorMap:
    """Return the tiled map of w or of the packed weights."""
    problem, channels = source.problem, source.w_channels
    if source.packed:
        row = prod(problem.taps) * channels
        sizes: Ints = (channels, prod(problem.taps), problem.filters, problem.group * source.parts)
        steps = [channels, row, row * problem.filters]
    else:
        sizes, steps = _rows_of_w(problem)
    role, box = "packed" if source.packed else "w", (source.block_k, 1, tile.block_m, 1)
    strides = _known(_strides(sizes, steps, problem.itemsize))
    return TensorMap(role, "w_map", problem.dtype, sizes, strides, (1,) * 4, box=box, swizzle=source.slice_bytes)


def _known(strides: Ints | None) -> Ints:
    """Return strides that an earlier check has shown to exist."""
    assert strides is not None
    return strides


def loading(source: Source) -> Mapping[str, Any]:
    """Return the fields of the struct ``Loading``."""
    problem = source.problem
    lower = [window.lower for window in windows(problem)]
    return {
        "axes": problem.rank,
        "lower": [0] * (RANK - len(lower)) + lower,
        "channel_slices": source.channel_slices,
        "last_steps": source.last_steps,
        "parts": source.parts,
        "x_group": source.all_x_channels // problem.group,
        "x_part": source.x_channels,
        "w_tap": source.w_channels,
    }
