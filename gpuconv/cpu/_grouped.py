"""Grouped and depthwise Conv in one or two dimensions, for few input channels per group.

With few channels, im2col takes longer than the GEMMs. Two algorithms copy less; both process blocks that stay in a
core's cache:

- *by rows*: row-wise im2col. Each row of inputs is expanded for the taps of one kernel row only; the rows that an
  output row uses are adjacent, so one strided view serves all kernel rows, and one GEMM computes the output row.
- *by channels*: direct convolution, for one input and one output channel per group (depthwise). Inputs are copied to
  channels-last, so that every tap reads contiguous channels for any stride, and `einsum` accumulates tap by tap.

The first is chosen for long output rows, the second for many channels; otherwise `_gather` computes the call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import gcd, prod
from threading import get_ident
from typing import Any

import numpy as np

from gpuconv.cpu import _blas, _threads
from gpuconv.cpu._finish import Finish
from gpuconv.cpu._gather import Weights, finite
from gpuconv.cpu._workspace import INVARIANT, SCRATCH, Array, Partition, Span, limit, spans
from gpuconv.rules.geometry import ConvGeometry, tap_range

_TILE_BYTES = 2**20  # of a block
_FEW_CHANNELS = 8  # input channels per group up to which im2col dominates the time
# By rows: at least 9 taps, and rows of at least 28 outputs (14 from 100 taps on), so that a GEMM amortises its call
_SOME_TAPS, _MANY_TAPS, _LONG_ROW = 9, 100, 28
_LONG_RUN = 64  # contiguous elements that amortise the start of NumPy's inner loop
_VECTOR = 16  # elements of the widest SIMD vector
_PAGE, _SET = 512, 1024  # bytes: rows at multiples of this distance conflict in the cache, when written and read
_GATHERS_PER_PASS = 4  # elements copied by im2col in the time of one pass over an input


@dataclass(frozen=True, slots=True)
class _Axis:
    """One spatial axis of the convolution: extents, kernel, stride, dilation, and padding before the first input."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    dilation: int
    pad: int

    def seen(self, outputs: int) -> int:
        """Return the extent of the receptive field of ``outputs`` adjacent outputs, padding included."""
        return (outputs - 1) * self.stride + (self.kernel - 1) * self.dilation + 1

    def inside(self, first: int, places: int, every: int = 1) -> tuple[slice, slice]:
        """Return which of ``places`` elements hold inputs, and which: element ``i`` is input ``first + i * every``."""
        low, high = tap_range(places, self.inputs, every, first)
        start = low * every + first
        reads = slice(start, start + (high - low - 1) * every + 1, every) if low < high else slice(0, 0)
        return slice(low, high), reads


Block = tuple[Span, Span, Span]  # images, groups, rows of outputs


@dataclass(frozen=True, slots=True)
class GroupedWork:
    """The plan of a grouped convolution.

    Attributes
    ----------
    geometry : ConvGeometry
    down, across : _Axis
        The vertical and the horizontal axis. A 1-D convolution has one row.
    by_rows : bool
        Whether to compute by rows; otherwise by channels.
    is_staged : bool
        Whether inputs are first copied to a padded channel stride, since the original one causes cache conflicts when
        they are transposed to channels-last.
    blocks : tuple of (images, groups, rows)
        Half-open spans of images, groups and output rows.
    is_shared : bool
        Whether the work is large enough for several threads.
    """

    geometry: ConvGeometry
    down: _Axis
    across: _Axis
    by_rows: bool
    is_staged: bool
    blocks: tuple[Block, ...] = ()
    is_shared: bool = False

    @property
    def channels(self) -> int:
        """Input channels per group."""
        return self.geometry.w_shape[1]

    @property
    def made(self) -> int:
        """Output channels per group."""
        return self.geometry.w_shape[0] // self.geometry.group

    def elements(self, rows: int) -> int:
        """Return the elements of all buffers for ``rows`` output rows of one group of one image."""
        down, across = self.down, self.across
        results, height = self.made * rows * across.outputs, down.seen(rows)
        if self.by_rows:
            return (
                height * self.channels * (_phases(across) * _places(across) + across.kernel * across.outputs) + results
            )
        plane, weights = height * across.seen(across.outputs), down.kernel * across.kernel * across.outputs
        return (2 if self.is_staged else 1) * plane + _VECTOR + weights + results


def run(
    x: Array,
    w: Array,
    b: Array | None,
    y: Array,
    geometry: ConvGeometry,
    accumulator: str,
    finish: Finish,
    facts: Weights | None,
    partition: Partition,
) -> bool:
    """Write Conv into y; return False if another algorithm is faster, or padding meets weights that are not finite."""
    if geometry.group == 1:
        return False
    bytes_ = limit()
    key = "grouped", bytes_, accumulator, x.shape[0], partition
    known = None if facts is None else facts.algorithms.get(key)
    if known is None:
        work = _plan(geometry, accumulator, partition, bytes_)
        if work is None:
            return False
        known = work, _matrices(w, work, accumulator)
        if facts is not None:
            facts.algorithms[key] = known
    padded = any(geometry.pads_begin) or any(geometry.pads_end)
    if padded and not (finite(w) if facts is None else facts.finite):
        return False
    work, weights = known
    _run(x, b, y, finish, work, weights, partition.at_once(bytes_))
    return True


@lru_cache(maxsize=1024)
def _plan(geometry: ConvGeometry, accumulator: str, partition: Partition, bytes_: int) -> GroupedWork | None:
    """Plan a convolution; return None if another algorithm is faster, or this one does not apply."""
    rank, taps, item = len(geometry.kernel_shape), prod(geometry.kernel_shape), np.dtype(accumulator).itemsize
    if rank > 2 or geometry.w_shape[1] > _FEW_CHANNELS or prod(geometry.w_shape) * item > bytes_ // 8:
        return None
    axes = zip(
        geometry.x_shape[2:],
        geometry.y_shape[2:],
        geometry.kernel_shape,
        geometry.strides,
        geometry.dilations,
        geometry.pads_begin,
        strict=True,
    )
    down, across = (_Axis(1, 1, 1, 1, 1, 0), *(_Axis(*axis) for axis in axes))[-2:]
    by_rows = _has_good_rows(down, across)
    if not by_rows and (rank == 1 or geometry.w_shape[0] > geometry.group or geometry.w_shape[1] > 1 or taps == 1):
        return None
    work = GroupedWork(geometry, down, across, by_rows, prod(geometry.x_shape[2:]) * item % _SET == 0)
    gathered = prod(geometry.y_shape[1:]) * taps * item // _GATHERS_PER_PASS  # per image
    is_shared = partition.threads > 1 and _threads.pays(geometry.x_shape[0] * gathered)
    is_cut = partition.threads > 1 and _threads.pays(partition.images * gathered)
    blocks = _blocks(work, item, partition if is_cut else replace(partition, threads=1), partition.share_of(bytes_))
    return replace(work, blocks=blocks, is_shared=is_shared) if blocks else None


def _has_good_rows(down: _Axis, across: _Axis) -> bool:
    taps = down.kernel * across.kernel
    width = across.outputs if taps < _MANY_TAPS else 2 * across.outputs
    return down.dilation == 1 and taps >= _SOME_TAPS and width >= _LONG_ROW


def _blocks(work: GroupedWork, item: int, partition: Partition, budget: int) -> tuple[Block, ...]:
    """Return blocks that stay in a core's cache; none if one row does not fit, or inner loops would be short."""
    images, threads, group, height = partition.images, partition.threads, work.geometry.group, work.down.outputs
    least, rows, tile = 1, height, min(_TILE_BYTES, budget) // item
    if not work.by_rows:
        least = -(-_LONG_RUN // (work.across.outputs if work.across.stride == 1 else 1))
    while rows > 1 and least * work.elements(rows) > tile:
        rows = -(-rows // 2)
    size = work.elements(rows)
    if least > group or least * size > budget // item:
        return ()
    groups = max(least, min(group if images >= threads else -(-group // threads), tile // size))
    if not work.by_rows:
        groups = _apart(group, groups, item)
    together, every = 1, work.geometry.x_shape[0]
    if (groups, rows) == (group, height):
        many = (
            every if partition.invariant and work.by_rows else images
        )  # matmul treats each image as a GEMM of its own
        together = max(
            1, min(-(-many // (INVARIANT.threads if partition.invariant else threads)), tile // (group * size))
        )
    return tuple(product(spans(every, together), spans(group, groups), spans(height, rows)))


def _apart(channels: int, most: int, item: int) -> int:
    """Return the channels per block: equal parts, whole SIMD vectors, no row distance that causes cache conflicts."""
    parts = -(-channels // most)
    if parts == 1 and channels * item % _PAGE:
        return channels
    part = -(-channels // max(2, parts) // _VECTOR) * _VECTOR
    return min(channels, most, part if part * item % _PAGE else part + _VECTOR)


def _phases(axis: _Axis) -> int:
    """Return how many phases of the stride (residues of an input's position) the taps of a row use."""
    return min(axis.stride // gcd(axis.stride, axis.dilation), axis.kernel)


def _places(axis: _Axis) -> int:
    """Return how many inputs of one phase the outputs of a row use, padding included."""
    return axis.outputs + (axis.kernel - 1) * axis.dilation // axis.stride


def _matrices(w: Array, work: GroupedWork, accumulator: str) -> Array:
    """Return the weights as a GEMM operand (G, 1, M/G, k_1 * C/G * k_2) by rows, or as (k_1, k_2, C) by channels."""
    taps = work.down.kernel, work.across.kernel
    if not work.by_rows:
        return np.ascontiguousarray(w.reshape(-1, *taps).transpose(1, 2, 0), accumulator)
    split = w.reshape(work.geometry.group, 1, work.made, work.channels, *taps).swapaxes(3, 4)
    return np.ascontiguousarray(split, accumulator).reshape(*split.shape[:3], -1)


def _run(
    x: Array, b: Array | None, y: Array, finish: Finish, work: GroupedWork, weights: Array, most: int | None
) -> None:
    shape = (*y.shape[:2], work.down.outputs, work.across.outputs)
    x, y = x.reshape(*x.shape[:2], work.down.inputs, work.across.inputs), y.reshape(shape)
    if finish.residual is not None:
        finish = Finish(finish.residual.reshape(shape), finish.activation)
    bias = None if b is None else b.astype(weights.dtype, copy=False).reshape(-1, 1, 1)
    job = _GroupedProduct(x, weights, bias, y, finish, work)
    one = work.made * work.geometry.w_shape[1] * work.down.kernel * work.across.kernel * work.across.outputs
    product = _blas.workers_for(_blas.operations(one if work.by_rows else 0, weights.dtype), 1, thin=work.made == 1)
    _blas.run(job.compute, work.blocks, _blas.Workers.POOL if work.is_shared else product, most)


@dataclass(frozen=True, slots=True)
class _Buffers:
    """One thread's buffers for blocks of one shape; the zeros of the padding are already in place.

    Attributes
    ----------
    fills : list of (view (images, channels, …), index of inputs)
        Copies from x into the buffers.
    gathers : list of (view, view)
        Copies between buffers after that: destination and source.
    inputs : array
        Operand of `matmul` or `einsum`: a strided view of the buffers.
    weights : None or array
        By channels: room for the block's weights, repeated for every output column.
    products : array
        Result of `matmul` or `einsum`.
    sums : array (images, M, rows, columns)
        A view of ``products``.
    """

    fills: list[tuple[Array, Any]]
    gathers: list[tuple[Array, Array]]
    inputs: Array
    weights: Array | None
    products: Array
    sums: Array


class _GroupedProduct:
    """Computes the blocks of one convolution; each thread reuses its buffers from block to block."""

    def __init__(
        self, x: Array, weights: Array, bias: Array | None, y: Array, finish: Finish, work: GroupedWork
    ) -> None:
        self._x, self._weights, self._bias, self._y, self._finish, self._work = x, weights, bias, y, finish, work
        self._buffers: dict[int, tuple[Any, _Buffers]] = {}  # by thread: shape and buffers of its last block

    def compute(self, block: Block) -> None:
        """Compute one block and store it."""
        images, groups, rows = block
        buffers = self._buffers_for(images[1] - images[0], groups[1] - groups[0], rows)
        channels, made = self._work.channels, self._work.made
        source = self._x[slice(*images), groups[0] * channels : groups[1] * channels]
        for place, reads in buffers.fills:
            place[...] = source[reads]
        for place, view in buffers.gathers:
            place[...] = view
        if buffers.weights is None:
            np.matmul(self._weights[slice(*groups)], buffers.inputs, out=buffers.products)
        else:
            buffers.weights[...] = self._weights[:, :, None, slice(*groups)]
            weights = buffers.weights.reshape(*self._weights.shape[:2], *buffers.inputs.shape[4:])
            np.einsum("nijh...,ij...->nh...", buffers.inputs, weights, out=buffers.products)
        self._store(buffers.sums, (slice(*images), slice(groups[0] * made, groups[1] * made), slice(*rows)))

    def _store(self, sums: Array, at: Any) -> None:
        target = self._y[at]
        if self._bias is not None:
            bias = self._bias[at[1]]
            if not self._finish and target.dtype == sums.dtype:
                np.add(sums, bias, out=target)
                return
            sums += bias
        if self._finish:
            self._finish.at(at).apply(sums)
        target[...] = sums

    def _buffers_for(self, images: int, groups: int, rows: Span) -> _Buffers:
        key, thread = (images, groups, rows), get_ident()
        known = self._buffers.get(thread)
        if known is None or known[0] != key:
            make = self._for_rows if self._work.by_rows else self._for_channels
            known = self._buffers[thread] = key, make(images, groups, rows)
        return known[1]

    def _for_channels(self, images: int, channels: int, rows: Span) -> _Buffers:
        """Allocate the buffers of the algorithm by channels: inputs as channels-last, with padding."""
        down, across, dtype = self._work.down, self._work.across, self._weights.dtype
        seen, extents = (down.seen(rows[1] - rows[0]), across.seen(across.outputs)), (rows[1] - rows[0], across.outputs)
        planes = SCRATCH.take("planes", (images, *seen, channels), dtype)
        v, read_v = down.inside(rows[0] * down.stride - down.pad, seen[0])
        h, read_h = across.inside(-across.pad, seen[1])
        inside = planes[:, v, h].transpose(0, 3, 1, 2)
        if inside.size < planes.size:
            planes[...] = 0
        fill, gathers = inside, []
        if self._work.is_staged:
            size = prod(inside.shape[2:])
            fill = SCRATCH.take("staged", (images, channels, size + _VECTOR), dtype)[..., :size].reshape(inside.shape)
            gathers = [(inside, fill)]
        image, line, place, item = planes.strides
        taps = down.kernel, across.kernel
        apart = [axis.dilation if axis.kernel > 1 else 0 for axis in (down, across)]
        moves = [axis.stride if count > 1 else 0 for axis, count in zip((down, across), extents, strict=True)]
        steps = (image, apart[0] * line, apart[1] * place, moves[0] * line, moves[1] * place, item)
        inputs = np.ndarray((images, *taps, *extents, channels), dtype, planes.base, 0, steps)
        products = SCRATCH.take("sums", (images, *extents, channels), dtype)
        sums = products.transpose(0, 3, 1, 2)
        if across.stride == 1:  # columns and channels are contiguous: merge them, as einsum does not
            run = (extents[1] * channels,)
            inputs = np.ndarray((*inputs.shape[:4], *run), dtype, planes.base, 0, (*steps[:4], item))
            products = products.reshape(images, extents[0], *run)
        weights = SCRATCH.take("weights", (*taps, extents[1], channels), dtype)
        reads = (slice(None), slice(None), read_v, read_h)
        return _Buffers([(fill, reads)], gathers, inputs, weights, products, sums)

    def _for_rows(self, images: int, groups: int, rows: Span) -> _Buffers:
        """Allocate the buffers of the algorithm by rows: inputs split by phase of the stride, then row-wise im2col."""
        work, down, across, dtype = self._work, self._work.down, self._work.across, self._weights.dtype
        channels, height, width = work.channels, down.seen(rows[1] - rows[0]), across.outputs
        planes = SCRATCH.take("planes", (images, groups * channels, height, _phases(across), _places(across)), dtype)
        seen = SCRATCH.take("rows", (images, groups, height, channels, across.kernel, width), dtype)
        image, channel, line, phase_step, item = planes.strides
        v, read_v = down.inside(rows[0] * down.stride - down.pad, height)
        fills, gathers, every = [], [], across.stride // gcd(across.stride, across.dilation)
        for number in range(_phases(across)):
            shift, phase = divmod(number * across.dilation, across.stride)
            h, read_h = across.inside(phase - across.pad, planes.shape[-1], across.stride)
            fills.append((planes[:, :, v, number, h], (slice(None), slice(None), read_v, read_h)))
            place = seen[..., number::every, :]
            step = every * across.dilation // across.stride if place.shape[-2] > 1 else 0
            steps = (image, channels * channel, line, channel, step * item, item)
            at = number * phase_step + shift * item
            gathers.append((place, np.ndarray(place.shape, dtype, planes.base, at, steps)))
        if sum(view.size for view, _ in fills) < planes.size:
            planes[...] = 0
        *outer, line, _, tap, item = seen.strides
        shape = (images, groups, rows[1] - rows[0], self._weights.shape[-1], width)
        columns = np.ndarray(
            shape, dtype, seen.base, 0, (*outer, line * (down.stride if shape[2] > 1 else 0), tap, item)
        )
        sums = SCRATCH.take("sums", (images, groups, work.made, rows[1] - rows[0], width), dtype)
        whole = sums.reshape(images, groups * work.made, *sums.shape[3:])
        return _Buffers(fills, gathers, columns, None, sums.swapaxes(2, 3), whole)
