"""How x and w come to the kernels of convolution by wgmma: the tensor maps by which TMA fetches them.

Along x a map walks over the columns of a phase and reads, for a tap, the input at a fixed distance from each: what
drivers call im2col. Or maps are of boxes: of the rows of x, or of patches of pixels, which several taps share. Axes of
maps stand innermost first, those of problems outermost first.
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

LEAST_FILTERS = 32  # half of the least tile: of fewer, mma.sync makes less in vain
SECTOR = 32  # bytes that cross the memory bus together
ALIGNMENT = 16  # bytes, of addresses and of distances in memory
MOST_PHASES = 32
_IN_ORDER = 2  # times as long as otherwise takes a step that waits for the one before; estimated
_MOST_STRIDE = 8
_CORNER_BITS = {1: 16, 2: 8, 3: 5}  # of a signed corner, by axes
_MOST_REACH = {1: 65534, 2: 254, 3: 30}  # inputs from the first tap to the last: one less than offsets can hold
_MOST_ELEMENTS = 2**31 - 1  # of a copy


@dataclass(frozen=True)
class Source:
    """One way to x and w."""

    problem: Problem
    # "copied", "direct" or "rows": a copy of x with the channels last; x itself, whose channels lie last; or x itself,
    # whose pixels along W do
    form: str
    packed: bool  # whether w is packed, or is read as it is
    # Whether channels that lie last come in patches of pixels that taps share, not anew for each tap
    patches: bool = False
    slice_bytes: int = SLICE_BYTES  # of a row of a slice of K

    @cached_property
    def in_strips(self) -> bool:
        """Whether x comes in strips that taps share, if there are several."""
        return self.patches or self.form == "rows"

    @cached_property
    def in_registers(self) -> bool:
        """Whether x, as it is, is rounded on its way through registers."""
        return not _takes_rounded(self.problem) and self.form != "copied"

    @cached_property
    def seen(self) -> Problem:
        """The problem as the kernel sees it: of strips a Conv, with an image along one axis where rows lie so."""
        if not self.in_strips:
            return self.problem
        conv = correlation.as_conv(self.problem)
        assert conv is not None
        return (conv.flat or conv) if self.form == "rows" else conv

    @cached_property
    def block_k(self) -> int:
        """Channels of a slice."""
        return self.slice_bytes // self.problem.itemsize

    @cached_property
    def parts(self) -> int:
        """Numbers that one of x or w is the sum of."""
        return fragments.arithmetic(self.problem).parts

    @cached_property
    def products(self) -> int:
        """Multiplications of tensor cores for one of the problem's."""
        return fragments.arithmetic(self.problem).products

    @cached_property
    def channel_slices(self) -> int:
        """Slices of a tap."""
        return -(-self.problem.channels // self.block_k)

    @cached_property
    def last_steps(self) -> int:
        """Steps of a tap's last slice that are multiplied: no others than have channels.

        In registers more than half of a slice take longer than all of it, which zeros may fill up.
        """
        channels = self.problem.channels - (self.channel_slices - 1) * self.block_k
        steps, whole_slice = -(-channels * self.problem.itemsize // STEP_BYTES), self.slice_bytes // STEP_BYTES
        zeros = self.in_registers and self.problem.group == 1
        return whole_slice if zeros and _IN_ORDER * steps >= whole_slice else steps

    @cached_property
    def filled(self) -> float:
        """The time that the steps take, as a share of that of whole slices."""
        steps = self.slice_bytes // STEP_BYTES
        last = self.last_steps
        if self.in_registers and last < steps:
            last *= _IN_ORDER
        return ((self.channel_slices - 1) * steps + last) / (self.channel_slices * steps)

    @cached_property
    def x_fetched(self) -> float:
        """The bytes of x that come from memory, as a share of those of whole slices: not zeros behind the last channel.

        Where others follow a group's channels, or a part's, these come instead.
        """
        all_bytes = self.channel_slices * self.slice_bytes
        if self.all_x_channels > self.x_channels:
            return 1.0
        own = self.x_channels * self.problem.itemsize
        return (own if self.form == "rows" else whole(own, SECTOR)) / all_bytes

    @cached_property
    def w_fetched(self) -> float:
        """Likewise of w."""
        return whole(self.w_channels * self.problem.itemsize, SECTOR) / (self.channel_slices * self.slice_bytes)

    @cached_property
    def x_channels(self) -> int:
        """Channels of a group in x or its copy: whole steps where others follow that must not be read as its own."""
        if self.form != "copied":
            return self.problem.channels
        unit = ALIGNMENT if self.problem.group * self.parts == 1 else STEP_BYTES
        return whole(self.problem.channels, unit // self.problem.itemsize)

    @property
    def all_x_channels(self) -> int:
        """Channels of all groups and parts in x or its copy."""
        return self.problem.group * (self.parts if self.form == "copied" else 1) * self.x_channels

    @cached_property
    def w_channels(self) -> int:
        """Channels of a tap in the rows of w."""
        channels = self.problem.channels
        return whole(channels, ALIGNMENT // self.problem.itemsize) if self.packed else channels

    def weights(self) -> PackedWeights:
        """Return how a kernel finds single weights."""
        if not self.packed:
            return PackedWeights(self.problem.w_strides[1], self.problem.filters, self.w_channels)
        row = prod(self.problem.taps) * self.w_channels
        return PackedWeights(row, self.problem.filters * self.parts, self.w_channels)

    @cached_property
    def x_last_bytes(self) -> int:
        """Bytes of the channels-last copy of x, 0 where there is none."""
        return operands.x_bytes(self.problem, self.x_channels, self.parts) if self.form == "copied" else 0

    @cached_property
    def packed_bytes(self) -> int:
        """Bytes of the packed weights, 0 where w is read as it is."""
        return operands.weight_bytes(self.problem, self.w_channels, self.parts) if self.packed else 0

    @property
    def aligned(self) -> tuple[tuple[str, int], ...]:
        """The arrays whose addresses must be multiples of so many bytes; copies always are."""
        x = (("x", ALIGNMENT),) if self.form != "copied" else ()
        return x if self.packed else (*x, ("w", ALIGNMENT))


# ---------------------------------------------------------------- what it sees


def refusal(problem: Problem) -> str | None:
    """Return why no map takes a problem that tensor cores do."""
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
    """Where the columns of all phases lie on one axis of x."""

    lower: int  # input coordinate of the first column through the tap that lies lowest
    upper: int  # that of the last column, counted from the last element of x
    reach: int  # coordinates from that tap to the one that lies highest


def windows(problem: Problem) -> Iterator[Window]:
    """Yield where columns lie, axis by axis."""
    for axis in range(problem.rank):
        lowest, highest = _taps(problem, axis)
        last = lowest + (problem.columns[axis] - 1) * problem.column_strides[axis]
        yield Window(lowest, last + 1 - problem.x_shape[2 + axis], highest - lowest)


def _taps(problem: Problem, axis: int) -> tuple[int, int]:
    """Return the lowest and the highest input coordinate that a tap of a phase's column 0 meets."""
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
    """Yield the ways to the arrays of a problem that is not refused, of each kind the shortest."""
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
        problem = problem.met  # pixels that no output meets are not copied
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
    """Tell whether the last slice of 16-bit channels has the half of those that it could have, or less."""
    slots = SLICE_BYTES // 2
    return problem.itemsize == 2 and 0 < problem.channels % slots <= slots // 2


def of_copies(problem: Problem) -> Source:
    """Return the way that takes every problem that is not refused, wherever its arrays lie."""
    return Source(problem, "copied", packed=True)


def _takes_rounded(problem: Problem) -> bool:
    """Tell whether kernels can multiply x and w as they are: TF32 is rounded before, which TMA does not."""
    return problem.itemsize == 2


def _channels_last(problem: Problem) -> bool:
    """Tell whether x can be fetched as it is, its channels contiguous."""
    batch, channel, *spatial = problem.x_strides
    if not (channel == 1 and _own_steps(problem)):
        return False
    sizes = [problem.group * problem.channels, *problem.x_shape[:1:-1], problem.batch]
    return _strides(sizes, [*spatial[::-1], batch], problem.itemsize) is not None


def no_rows(problem: Problem) -> str | None:
    """Return why x of a Conv cannot be fetched by rows of pixels, or None."""
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
    """Return the sizes of x, pixels of a row innermost, then channels; and the strides of all axes but the first."""
    lifted = problem.lifted
    batch, channel, depth, height, _ = lifted.x_strides
    channels = problem.group * problem.channels
    return (*lifted.x_shape[:1:-1], channels, problem.batch), [height, depth, channel, batch]


def _w_as_it_is(problem: Problem) -> bool:
    """Tell whether w can be fetched as it is: rows of taps right behind each other, of contiguous channels."""
    group, filters, channel, *spatial = problem.w_strides
    if not _takes_rounded(problem) or channel != 1:
        return False
    if prod(problem.taps) > 1 and merged_stride(problem.taps, spatial) != problem.channels:
        return False
    if problem.group > 1 and group != problem.filters * filters:
        return False
    return _strides(*_rows_of_w(problem), problem.itemsize) is not None


def _rows_of_w(problem: Problem) -> tuple[Ints, list[int]]:
    """Return the sizes of w, channels of a tap innermost, then taps; and the strides of all axes but the first."""
    group, filters, *_ = problem.w_strides
    channels = problem.channels
    return (channels, prod(problem.taps), problem.filters, problem.group), [channels, filters, group]


def _own_steps(problem: Problem) -> bool:
    """Tell whether no step along K meets channels of another group."""
    return problem.group == 1 or problem.channels * problem.itemsize % STEP_BYTES == 0


def _strides(sizes: Sequence[int], strides: Sequence[int], itemsize: int) -> Ints | None:
    """Return strides in bytes of the axes of a map but the innermost, or None where TMA has none like these.

    Each is a multiple of the one before. Axes of one element get those of the next that has several.
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
    """Return the maps of x and w for the tiles of a kernel."""
    return _columns_of_x(source, tile) if strips is None else _boxes_of_x(source, strips), _of_w(source, tile)


def _boxes_of_x(source: Source, strips: Strips | PixelStrips) -> TensorMap:
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
    """Return the role, the sizes and the strides of x or its copy, channels innermost, with the axes of ``problem``."""
    sizes = (source.all_x_channels, *problem.x_shape[:1:-1], problem.batch)
    if source.form == "copied":
        return "x_last", sizes, tuple(problem.itemsize * prod(sizes[: axis + 1]) for axis in range(problem.rank + 1))
    batch, _, *spatial = problem.x_strides
    return "x", sizes, _known(_strides(sizes, [*spatial[::-1], batch], problem.itemsize))


def _columns_of_x(source: Source, tile: WgmmaTile) -> TensorMap:
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
    assert strides is not None
    return strides


def loading(source: Source) -> Mapping[str, Any]:
    """Return the fields of ``Loading``."""
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
