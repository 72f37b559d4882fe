"""Conv as a matrix product: the inputs of a block of outputs are gathered into a matrix, and BLAS multiplies it.

``y[m, p] = sum over k of w[m, k] * columns[k, p]`` with ``k = (channel, tap)`` and ``p = (image, output position)``.
Blocks stay in cache and within the workspace. A 1x1 kernel needs no gathering: its input is the matrix.

Gathering takes two steps: what every tap of the last axis sees of each row of inputs, zeros of the padding included,
then these rows once more for every tap of the axes before it. The second copies long runs; the first, whose runs are
an output row at most, is left with one axis of the kernel. In two dimensions with a vertical stride of one the second
can be left out, since what a row of taps meets is one run already: then a product for every row of taps is added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from gpuconv.cpu import _blas, _product, _threads
from gpuconv.cpu._finish import Finish
from gpuconv.cpu._workspace import (
    MOST_AXES,
    SCRATCH,
    Array,
    Block,
    BlockSize,
    Cut,
    Ints,
    Span,
    balance,
    blocks,
    flat_index,
    limit,
    pieces,
    share_rows,
    shrink,
    spans,
)
from gpuconv.rules.geometry import ConvGeometry, tap_range

_TILE_BYTES = 2 * 2**20  # stays in a core's cache, and is worth a turn of the interpreter; twice that for two cores
_FINISHED = 2**16  # results that are finished at a time: a core's cache has them still
_WORTH_STARTING = 2**16  # results for which a pass over them costs more than calling BLAS without NumPy
_FEW = 8
_SEVERAL = 4  # taps of the last axis, each of which is copied by a step of its own
_DEEP = 48  # elements of a sum, in whose time its result is read and written again
_OFTEN = 8  # uses of a weight that are worth moving it
_WIDE = 512  # columns from which a product is efficient
_NARROW = 16  # columns of a block in a workspace that is too small for gathering
_SPARSE = 64  # elements to gather from, for each that is gathered


class _WeightsNotFinite(Exception):
    """A zero of the padding may have met an infinite or NaN weight."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What holds for weights, in convolutions of one geometry, as long as nobody changes them.

    Attributes
    ----------
    finite : bool
    ways : dict
        How such convolutions were computed, by what else decides it.
    """

    finite: bool
    ways: dict[Any, Any]


@dataclass(frozen=True, slots=True)
class _Way:
    """How a convolution is computed.

    Attributes
    ----------
    work : _GatheredBlocks
    by : Share
        Who computes it.
    matrices : None or list of array (products, groups, rows, depth)
        The weights of every part of the work; None where they are converted one after the other.
    flat : bool
        Whether an image of x is its matrix, if it flattens.
    whole : bool
        Whether one product of two matrices is all, if x flattens and y is contiguous.
    """

    work: _GatheredBlocks
    by: _blas.Share
    matrices: list[Array] | None
    flat: bool
    whole: bool


def known_weights(w: Array) -> Weights:
    """Look at weights (M, C/G, k_1, …) that do not change, once for all convolutions of one geometry."""
    return Weights(finite(w), {})


def goes_by_rows(geometry: ConvGeometry, accumulator: str, is_known: bool, cut: Cut) -> bool:
    """Tell whether products are added up row by row of taps, for which weights have to be put into another order.

    For weights that are not known, only where this costs little beside the rest.
    """
    if not _product.available(accumulator) or not _serves_rows(geometry, cut.images):
        return False
    if is_known and not cut.alone:
        return True
    rows, positions = geometry.w_shape[0] // geometry.group, cut.images * prod(geometry.y_shape[2:])
    return positions >= _OFTEN * rows and prod(geometry.w_shape) * np.dtype(accumulator).itemsize <= limit() // 8


@lru_cache(maxsize=1024)
def _serves_rows(geometry: ConvGeometry, images: int) -> bool:
    """Tell whether outputs meet a row of taps in inputs that are one run, and it is worth a product of its own."""
    channels = geometry.x_shape[1]
    return (
        len(geometry.kernel_shape) == 2
        and geometry.kernel_shape[0] > 1
        and geometry.strides[0] == 1
        and geometry.group <= _product.MOST
        and channels // geometry.group * geometry.kernel_shape[1] >= _DEEP
        and (images == 1 or prod(geometry.y_shape[2:]) >= _WIDE)
    )


def _by_rows(w: Array, geometry: ConvGeometry, accumulator: str) -> Array:
    """Return weights as (k_1, G, M/G, C/G * k_2)."""
    moved = np.ascontiguousarray(np.moveaxis(_split(w, geometry)[0], 3, 0), accumulator)
    return moved.reshape(*moved.shape[:3], -1)


def conv(
    x: Array,
    w: Array,
    b: Array | None,
    y: Array,
    geometry: ConvGeometry,
    accumulator: str,
    finish: Finish,
    facts: Weights | None,
    cut: Cut,
) -> bool:
    """Write Conv into y; return False where another way is needed.

    That is where there is not enough workspace, weights are not finite, or arrays would have too many axes.

    ``facts`` are those of ``w``, if they are known.
    """
    threads, bytes_ = _threads.count(), limit()
    way = _way(x, w, y, geometry, accumulator, facts, threads, bytes_, cut)
    if way is None:
        return False
    if facts is not None and way.matrices is not None:
        facts.ways[_kind(x, y, cut)] = way
    return _go(way, x, w, b, y, geometry, accumulator, finish, facts, cut)


def _kind(x: Array, y: Array, cut: Cut) -> Any:
    """Return what besides the weights and the geometry decides how a convolution is computed."""
    return _threads.count(), limit(), x.shape[0], x.dtype, y.dtype, cut


def again(
    x: Array,
    w: Array,
    b: Array | None,
    y: Array,
    geometry: ConvGeometry,
    accumulator: str,
    finish: Finish,
    facts: Weights,
    cut: Cut,
) -> bool:
    """Do what :func:`conv` does, where it was the way for operands like these; return False where it was not."""
    way = facts.ways.get(_kind(x, y, cut))
    return way is not None and _go(way, x, w, b, y, geometry, accumulator, finish, facts, cut)


def _go(
    way: _Way,
    x: Array,
    w: Array,
    b: Array | None,
    y: Array,
    geometry: ConvGeometry,
    accumulator: str,
    finish: Finish,
    facts: Weights | None,
    cut: Cut,
) -> bool:
    """Compute a convolution in one way; return False where weights are not finite."""
    if way.whole and way.matrices and y.flags.c_contiguous and _flattens(x):
        _blas.run(lambda matrices: _multiply_whole(x, matrices[0, 0], b, y, finish), way.matrices, way.by)
        return True
    work = way.work
    suspicious = work.padded and facts is None and w.size > y.size and not cut.alone
    if work.padded and not suspicious and not (finite(w) if facts is None else facts.finite):
        return False
    flat, stacks = way.flat and _flattens(x), _stacks(geometry, cut)

    def job(matrices: Array, part: tuple[Span, Span]) -> _GatheredProduct:
        return _GatheredProduct(
            x, matrices, b, y, finish, geometry, slice(*part[0]), part[1][0], flat, suspicious, stacks, cut.alone
        )

    def compute(pair: tuple[_GatheredProduct, int]) -> None:
        pair[0].compute(work.piece(pair[1]))

    matrices: Iterable[Array] | None = way.matrices
    if matrices is None:  # one after the other
        split = _split(w, geometry)
        matrices = (_matrices(split, part, accumulator) for part in work.parts)
    jobs: Iterator[_GatheredProduct] = map(job, matrices, work.parts)
    try:
        for some in [list(jobs)] if way.matrices is not None else ([one] for one in jobs):
            _blas.run(compute, list(product(some, range(len(work.blocks)))), way.by, cut.at_once(limit()))
    except _WeightsNotFinite:
        return False
    return True


def _way(
    x: Array,
    w: Array,
    y: Array,
    geometry: ConvGeometry,
    accumulator: str,
    facts: Weights | None,
    threads: int,
    bytes_: int,
    cut: Cut,
) -> _Way | None:
    """Decide how a convolution is computed; return None where the workspace is too small."""
    by_rows = goes_by_rows(geometry, accumulator, facts is not None, cut)
    converts = not by_rows and (w.dtype != accumulator or not w.flags.c_contiguous)
    item = np.dtype(accumulator).itemsize
    positions = prod(y.shape[2:])
    thin = positions == 1 or w.shape[0] == geometry.group
    of_image = _blas.operations(w.size * positions, accumulator)
    by = _blas.share(of_image * x.shape[0], threads, thin)
    plain = x.dtype == y.dtype == accumulator
    cut = replace(cut, threads=_blas.parts(of_image, cut, thin))
    stacked = -(-x.shape[0] // threads) if _stacks(geometry, cut) and not by_rows else 1
    work = _work(geometry, plain, converts, by_rows, item, cut, stacked, bytes_)
    if work is None:
        return None
    matrices = None
    if not converts or w.size * item <= bytes_ // 8:
        if by_rows:
            split = _by_rows(w, geometry, accumulator)
        else:
            split = _split(np.ascontiguousarray(w, accumulator), geometry)
        matrices = [_matrices(split, part, accumulator) for part in work.parts]
    flat = x.dtype == accumulator and _pointwise(geometry)
    one = not cut.alone and flat and plain and x.shape[0] == geometry.group == len(work.parts) == len(work.blocks)
    return _Way(work, by, matrices, flat, one)


def _multiply_whole(x: Array, matrix: Array, b: Array | None, y: Array, finish: Finish) -> None:
    """Write the product of a matrix (M, C) and one image (1, C, …), finished."""
    rows, depth = matrix.shape
    columns, result = x.reshape(depth, -1), y.reshape(rows, -1)
    bias = None if b is None else b.astype(result.dtype, copy=False)[:, None]
    if bias is not None and result.size >= _WORTH_STARTING:
        operands = matrix[None], columns[None], result[None]
        if _product.adds(*operands):
            result[...] = bias
            _product.add(*operands)
            _finish_whole(result, y, None, finish)
            return
    np.matmul(matrix, columns, out=result)
    _finish_whole(result, y, bias, finish)


def _finish_whole(sums: Array, y: Array, bias: Array | None, finish: Finish) -> None:
    """Add a bias to sums (M, positions), the elements of y, and finish these, as many as a cache holds at a time."""
    if sums.size <= _FINISHED or (bias is None and finish.passes < 2):
        if bias is not None:
            sums += bias
        finish.apply(y)
        return
    for low, high in spans(len(sums), max(1, _FINISHED // sums.shape[1])):
        if bias is not None:
            sums[low:high] += bias[low:high]
        finish.at((slice(None), slice(low, high))).apply(y[:, low:high])


def _split(w: Array, geometry: ConvGeometry) -> Array:
    """Return weights (M, C/G, k_1, …) as (1, G, M/G, C/G, k_1, …)."""
    return w.reshape(1, geometry.group, w.shape[0] // geometry.group, *w.shape[1:])


def _matrices(split: Array, part: tuple[Span, Span], accumulator: str) -> Array:
    """Return the weights of some groups and rows as (products, groups, rows, depth)."""
    groups, rows = part
    matrices = split[:, slice(*groups), slice(*rows)].astype(accumulator, copy=False)
    return matrices.reshape(*matrices.shape[:3], -1)


def finite(array: Array) -> bool:
    """Tell at the cost of one sum whether all is finite; only if the sum is not, element by element."""
    return bool(np.isfinite(np.add.reduce(array, axis=None)) or np.isfinite(array).all())


# ---------------------------------------------------------------- what a geometry asks for


@dataclass(frozen=True, slots=True)
class _Piece:
    """One block, and how its inputs are gathered.

    Attributes
    ----------
    images : slice
    positions : tuple of int
        Its extent, per spatial axis.
    box : tuple of slice
        Its positions, per spatial axis.
    first, count : int
        Where it starts in an image's positions, and how many positions it has.
    reads : tuple of slice
        Per spatial axis, the inputs that any tap sees; of an axis with one tap but the last, those of the outputs.
    rows : tuple of int
        Spatial extents of the gathered rows: all inputs that are read and the zeros around them, then the outputs.
    padded : None or (int, index)
        Where the last axis has many taps: how many inputs and zeros of a row they see, and where in
        (groups, channels, images, r_1 … r_(n-1), that many) the inputs are; the rows are made of these.
    borders : tuple of index
        Where zeros of the padding go in the rows (groups, channels, k_n, images, r_1 … r_(n-1), q_n), or in what they
        are made of.
    taps : tuple of (index, index)
        For every tap of the last axis, where in the rows it goes, and which of the inputs that are read go there.
    shifts : None or tuple of (index, index, index)
        Where rows have as many outputs as inputs: the same with rows end to end. Where in the rows a tap's planes are,
        which of a plane's elements get inputs, and which inputs; what comes from another row lies in the borders.
    """

    images: slice
    positions: Ints
    box: tuple[slice, ...]
    first: int
    count: int
    reads: tuple[slice, ...]
    rows: Ints
    padded: tuple[int, Any] | None
    borders: tuple[Any, ...]
    taps: tuple[tuple[Any, Any], ...]
    shifts: tuple[tuple[Any, Any, Any], ...] | None


@dataclass(frozen=True, slots=True)
class _GatheredBlocks:
    """All blocks of all images, and the parts of the weights that each is multiplied with."""

    geometry: ConvGeometry
    parts: list[tuple[Span, Span]]
    blocks: list[Block]
    few: tuple[_Piece, ...]  # where there are so few blocks that the time to describe them counts
    padded: bool

    def piece(self, number: int) -> _Piece:
        """Return the description of a block."""
        return self.few[number] if self.few else _piece(self.geometry, self.blocks[number])


@lru_cache(maxsize=1024)
def _work(
    geometry: ConvGeometry,
    plain: bool,
    converts: bool,
    by_rows: bool,
    item: int,
    cut: Cut,
    stacked: int,
    bytes_: int,
) -> _GatheredBlocks | None:
    plan = _plan(geometry, plain, converts, by_rows, item, cut, stacked, bytes_)
    if plan is None:
        return None
    parts = product(spans(geometry.group, plan.groups), spans(geometry.w_shape[0] // geometry.group, plan.rows))
    every = blocks(geometry.x_shape[0], geometry.y_shape[2:], plan)
    few = tuple(_piece(geometry, block) for block in every) if len(every) <= _FEW else ()
    return _GatheredBlocks(geometry, list(parts), every, few, any(geometry.pads_begin) or any(geometry.pads_end))


def _piece(geometry: ConvGeometry, block: Block) -> _Piece:
    axes = zip(
        block.box,
        block.positions,
        geometry.x_shape[2:],
        geometry.kernel_shape,
        geometry.strides,
        geometry.offsets,
        strict=True,
    )
    *outer, ((a, b), q, n, _, s, offsets) = axes
    seen = min(n, max(0, a * s + offsets[0])), max(0, min(n, (b - 1) * s + offsets[-1] + 1))
    rows = [_row_axis(*axis) for axis in outer]
    within = tuple(inside for _, inside, _ in rows)
    padded = None
    every = (slice(None),) * (3 if len(offsets) > _SEVERAL else 4)  # groups, channels, perhaps taps, images
    borders: list[Any] = [
        (*every, *(slice(None),) * number, border)
        for number, (size, inside, _) in enumerate(rows)
        for border in _around(size, inside)
    ]
    if len(offsets) > _SEVERAL:
        reach, begins = (q - 1) * s + offsets[-1] - offsets[0] + 1, a * s + offsets[0]
        inside = slice(seen[0] - begins, seen[1] - begins) if seen[0] < seen[1] else slice(0, 0)
        padded = reach, (*every, *within, inside)
        borders += [(*every, *within, border) for border in _around(reach, inside)]
    taps, shifts = [], []
    plane = q * (within[-1].stop - within[-1].start) if within else 0
    for number, offset in enumerate(offsets if padded is None else ()):
        start = a * s + offset - seen[0]
        size, inside, reads = _axis(q, max(0, seen[1] - seen[0]), s, start)
        place = (*every[:2], number, every[3], *within)
        borders += [(*place, border) for border in _around(size, inside)]
        taps.append(((*place, inside), (..., reads)))
        if inside.start < inside.stop:
            before, after = max(0, -start), max(0, start)
            shifts.append((place, (..., slice(before, plane - after)), (..., slice(after, plane - before))))
    return _Piece(
        block.images,
        block.positions,
        tuple(slice(*span) for span in block.box),
        flat_index(block.box, geometry.y_shape[2:]),
        prod(block.positions),
        (*(reads for _, _, reads in rows), slice(*seen)),
        (*(size for size, _, _ in rows), q),
        padded,
        tuple(borders),
        tuple(taps),
        tuple(shifts) if shifts and plane and s == 1 and q == n and seen == (0, n) else None,
    )


def _row_axis(span: Span, q: int, n: int, k: int, s: int, offsets: range) -> tuple[int, slice, slice]:
    """Describe the inputs of an axis that a block sees, all of those between too if there are several taps."""
    start = span[0] * s + offsets[0]
    if k == 1:
        return _axis(q, n, s, start)
    return _axis((q - 1) * s + offsets[-1] - offsets[0] + 1, n, 1, start)


def _axis(size: int, extent: int, step: int, start: int) -> tuple[int, slice, slice]:
    """Return how many places there are, which of them get inputs, and which inputs; the others get zeros."""
    low, high = tap_range(size, extent, step, start)
    first = low * step + start
    reads = slice(first, first + (high - low - 1) * step + 1, step) if low < high else slice(0, 0)
    return size, slice(low, high), reads


def _around(size: int, inside: slice) -> list[slice]:
    """Return the parts of an axis that are not inside."""
    ends = slice(0, inside.start), slice(inside.stop, size)
    return [part for part in ends if part.start < part.stop]


def _plan(
    geometry: ConvGeometry,
    plain: bool,
    converts: bool,
    by_rows: bool,
    item: int,
    cut: Cut,
    stacked: int,
    bytes_: int,
) -> BlockSize | None:
    """Choose the block, or return None where the workspace is too small for one that pays, or axes are too many.

    ``plain`` says that x and y are of the accumulator's type, ``converts`` that weights have to be copied. As many
    small images as ``stacked`` may make one call of NumPy, each a product of its own.
    """
    images, threads, group = cut.images, cut.threads, geometry.group
    rows, depth, out = geometry.w_shape[0] // group, prod(geometry.w_shape[1:]), geometry.y_shape[2:]
    budget = cut.share_of(bytes_) // item
    if _axes(geometry) > MOST_AXES or _elements(geometry, (1,) * len(out), rows) > budget:
        return None
    gathered = depth // geometry.kernel_shape[0] if by_rows else depth
    column = (0 if plain and _pointwise(geometry) else gathered) + (0 if plain else rows)
    tile = min((_TILE_BYTES if threads > 1 else 2 * _TILE_BYTES) // item, budget)
    share = -(-images * prod(out) // threads)
    box = shrink(out, max(_WIDE, min(tile // max(1, column), share)))
    # Small images: several make one product; of many small groups, several make one call instead.
    together = max(1, min(images, _WIDE // prod(box))) if box == out and group == 1 else 1
    if -(-images // threads) * prod(out) >= _WIDE // 4:  # enough for every thread to have a product of its own
        together = min(together, -(-images // threads))
    if together == group == 1:
        box = balance(box, out, images, threads, _WIDE // 2)
    while _elements(geometry, box, rows) * together > budget:
        if _seen(geometry, box) > _SPARSE * prod(geometry.w_shape[1:]) * prod(box):
            return None  # a block of little but zeros between inputs, and as many such blocks as outputs
        box = shrink(out, prod(box) // 2) if together == 1 else box
        together = max(1, together // 2)
    if box != out and prod(box) < _NARROW:
        return None  # a product of so few columns takes less time than the steps to gather them
    if converts:
        rows = min(rows, max(1, budget // (4 * depth)))
    whole = rows * group == geometry.w_shape[0]
    groups = tile // (_elements(geometry, box, rows) + rows * depth) if whole else 1
    if group == 1:
        rows = share_rows(rows, -(-images // together) * pieces(box, out), threads)
    groups = max(1, min(group, groups))
    if box == out and groups * rows * prod(box) < _WORTH_STARTING:
        together = max(together, min(stacked, tile // (2 * groups * _elements(geometry, box, rows))))
    return BlockSize(groups, rows, together, box)


def _axes(geometry: ConvGeometry) -> int:
    """Return how many axes the rows have, or the columns with their axes for taps, where those are made."""
    rank = len(geometry.kernel_shape)
    return rank + 4 if max(geometry.kernel_shape[:-1], default=1) == 1 else 2 * rank + 3


def _elements(geometry: ConvGeometry, box: Ints, rows: int) -> int:
    """Elements that one group of one image holds for a block: gathered, results, and what it is gathered from."""
    return (prod(geometry.w_shape[1:]) + rows) * prod(box) + _seen(geometry, box)


def _seen(geometry: ConvGeometry, box: Ints) -> int:
    """Elements of one group of one image that a block is gathered from."""
    axes = zip(box, geometry.kernel_shape, _reach(geometry, box), strict=True)
    *outer, (q, k, last) = axes
    rows = prod(positions if taps == 1 else reach for positions, taps, reach in outer)
    converted = last if k > _SEVERAL else min(last, geometry.x_shape[-1])
    return geometry.w_shape[1] * rows * (converted + k * q)  # and then once for every tap


def _stacks(geometry: ConvGeometry, cut: Cut) -> bool:
    """Tell whether images of a block are multiplied one by one: where they must be, or each group is anyway."""
    return cut.alone or geometry.group > 1


def _pointwise(geometry: ConvGeometry) -> bool:
    """Tell whether output position and input position are the same thing."""
    return (
        geometry.x_shape[2:] == geometry.y_shape[2:]
        and max(geometry.kernel_shape) == max(geometry.strides) == 1
        and not any(geometry.pads_begin)
    )


def _flattens(array: Array) -> bool:
    """Tell whether BLAS can read and write an image's channels and positions as a matrix: C-contiguous, or NHWC."""
    return array.flags.c_contiguous or np.moveaxis(array, 1, -1).flags.c_contiguous


def _reach(geometry: ConvGeometry, box: Ints) -> Ints:
    """Inputs per spatial axis that a box of outputs sees."""
    axes = zip(box, geometry.strides, geometry.kernel_shape, geometry.dilations, strict=True)
    return tuple((q - 1) * s + (k - 1) * d + 1 for q, s, k, d in axes)


# ---------------------------------------------------------------- the computation


@dataclass(slots=True)
class _GatheredProduct:
    """The product of one set of weights (products, groups, rows, depth) with all blocks.

    Of one product, the depth is over channels and all taps, of several over channels and one row of taps.
    """

    x: Array
    weights: Array
    b: Array | None
    y: Array
    finish: Finish
    geometry: ConvGeometry
    groups: slice
    first_row: int
    flat: bool  # an image of x is its matrix
    suspicious: bool
    stacks: bool  # images are multiplied one by one
    alone: bool  # and have the same bits in every batch

    def compute(self, piece: _Piece) -> None:
        """Compute one block and store it."""
        images, (_, groups, rows, _) = piece.images.stop - piece.images.start, self.weights.shape
        first = self.groups.start * (self.geometry.w_shape[0] // self.geometry.group) + self.first_row
        channels = slice(first, first + groups * rows)
        columns = self._columns(piece, images)
        target = self._target(piece, images, channels)
        if target is None:
            shape = (*columns[0].shape[:-2], rows, columns[0].shape[-1])
            result = SCRATCH.take("result", shape, self.weights.dtype)
            if result.ndim == 4:
                sums = result.reshape(images, groups * rows, *piece.positions)
            else:
                sums = result.reshape(groups * rows, images, *piece.positions).swapaxes(0, 1)
        else:
            result, sums = target, self.y[(piece.images, channels, *piece.box)]
        bias = None if self.b is None else self.b[channels].astype(result.dtype, copy=False)
        if self._multiply(columns, result, sums, bias):
            bias = None
        if self.suspicious:
            self._check(result)
        if target is not None and bias is None and not self.finish:
            return
        one_pass = target is not None and bias is None and self.finish.passes < 2
        for low, high in spans(groups * rows, groups * rows if one_pass else _FINISHED // (images * piece.count)):
            place = (piece.images, slice(first + low, first + high), *piece.box)
            part = sums[:, low:high]
            if bias is not None:
                part += _along_channels(bias[low:high], part)
            if self.finish:
                self.finish.at(place).apply(part)
            if target is None:
                self.y[place] = part

    def _multiply(self, columns: list[Array], result: Array, sums: Array, bias: Array | None) -> bool:
        """Write the products into result, whose elements are those of sums; return whether the bias is in them."""
        started = bias is not None and result.size >= _WORTH_STARTING
        adds = started and result.ndim == 3 and _product.adds(self.weights[0], columns[0], result)
        if len(columns) == 1 and not adds:
            np.matmul(self.weights[0], columns[0], out=result)
            return False
        if bias is not None:
            sums[...] = _along_channels(bias, sums)
        for number, (matrix, part) in enumerate(zip(self.weights, columns, strict=True)):
            _product.add(matrix, part, result, onto=bias is not None or number > 0)
        return True

    def _target(self, piece: _Piece, images: int, channels: slice) -> Array | None:
        """Return the block's place in y as a matrix, or as those of several images, where y can be written in place."""
        y, (products, groups, rows, _) = self.y, self.weights.shape
        if y.dtype != self.weights.dtype or (products > 1 and not y.flags.aligned):
            return None
        if images > 1 and not self.stacks:
            return None
        if not (y.flags.c_contiguous or (products == 1 and rows > 1 and _flattens(y))):  # BLAS makes no rows with gaps
            return None
        if images > 1:  # whole ones
            return y[piece.images, channels].reshape(images, groups, rows, -1)
        flat = y[piece.images.start, channels].reshape(groups, rows, -1)
        return flat if flat.shape[2] == piece.count else flat[..., piece.first : piece.first + piece.count]

    def _check(self, result: Array) -> None:
        """Padding meets a weight that is not finite only where the result is not finite either."""
        if not finite(result) and not finite(self.weights):
            raise _WeightsNotFinite

    def _columns(self, piece: _Piece, images: int) -> list[Array]:
        """Return the block's inputs for every product, (groups, depth, positions).

        Of several images that are multiplied one by one, one (images, groups, depth, positions).
        """
        geometry, channels = self.geometry, self.geometry.w_shape[1]
        products, groups, _, depth = self.weights.shape
        span = slice(self.groups.start * channels, self.groups.stop * channels)
        if self.flat and self.stacks and images > 1:
            return [self.x[piece.images, span].reshape(images, groups, channels, piece.count)]
        if self.flat and images == 1:
            flat = self.x[piece.images.start, span].reshape(groups, channels, -1)
            return [flat if flat.shape[2] == piece.count else flat[..., piece.first : piece.first + piece.count]]
        source = self.x[(piece.images, span, *piece.reads)]
        # (images, groups * channels, …) -> (groups, channels, images, …)
        if images == 1:
            source = source.reshape(groups, channels, 1, *source.shape[2:])
        else:
            source = np.moveaxis(source.reshape(images, groups, channels, *source.shape[2:]), 0, 2)
        rows = self._rows(source, piece)
        if products > 1:
            planes, step = rows.reshape(groups, depth, -1), geometry.dilations[0] * rows.shape[-1]
            return [planes[..., tap * step : tap * step + piece.count] for tap in range(products)]
        kernel = geometry.kernel_shape
        if max(kernel[:-1], default=1) > 1:
            shape = (groups, channels, *kernel, images, *piece.positions)
            columns = SCRATCH.take("columns", shape, self.weights.dtype)
            np.copyto(columns, _windows(rows, shape, geometry))
            rows = columns
        if self.stacks and images > 1:
            several = np.moveaxis(rows.reshape(groups, depth, images, piece.count), 2, 0)
            if not self.alone:
                return [several]
            stacked = SCRATCH.take("stacked", several.shape, rows.dtype)
            np.copyto(stacked, several)
            return [stacked]  # with the strides that one image has: some bits depend on them
        return [rows.reshape(groups, depth, images * piece.count)]

    def _rows(self, source: Array, piece: _Piece) -> Array:
        """Return (groups, channels, k_n, images, r_1 … r_(n-1), q_n): what the last axis's taps see of every row."""
        dtype, taps = self.weights.dtype, piece.taps
        if piece.padded is not None:
            return self._rows_of_padded(source, piece, *piece.padded)
        if source.dtype != dtype and len(taps) > 1:  # once, not for every tap
            converted = SCRATCH.take("converted", source.shape, dtype)
            np.copyto(converted, source)
            source = converted
        rows = SCRATCH.take("rows", (*source.shape[:2], len(taps), source.shape[2], *piece.rows), dtype)
        if piece.shifts is not None and source.strides[-2:] == (source.shape[-1] * source.itemsize, source.itemsize):
            planes = _planes(source)
            for place, writes, reads in piece.shifts:
                _planes(rows[place])[writes] = planes[reads]
        else:
            for place, reads in taps:
                rows[place] = source[reads]
        for border in piece.borders:
            rows[border] = 0
        return rows

    def _rows_of_padded(self, source: Array, piece: _Piece, reach: int, inside: Any) -> Array:
        """Return what `_rows` does, from a padded copy of the inputs: few steps, however many taps."""
        groups, channels, images = source.shape[:3]
        padded = SCRATCH.take("padded", (groups, channels, images, *piece.rows[:-1], reach), self.weights.dtype)
        for border in piece.borders:
            padded[border] = 0
        padded[inside] = source
        taps, itemsize = self.geometry.kernel_shape[-1], padded.itemsize
        dilation, stride = self.geometry.dilations[-1], self.geometry.strides[-1] if piece.rows[-1] > 1 else 0
        shape = (groups, channels, taps, images, *piece.rows)
        group, channel, *others, _ = padded.strides
        view = np.ndarray(
            shape, padded.dtype, padded, 0, (group, channel, dilation * itemsize, *others, stride * itemsize)
        )
        rows = SCRATCH.take("rows", shape, padded.dtype)
        np.copyto(rows, view)
        return rows


def _along_channels(bias: Array, sums: Array) -> Array:
    """Return a bias (M,) so that it broadcasts with sums (N, M, …)."""
    return bias.reshape(-1, *(1,) * (sums.ndim - 2))


def _planes(array: Array) -> Array:
    """Return a view with the last two axes, between which there is no gap, as one."""
    *outer, height, width = array.shape
    return array.reshape(*outer, height * width)


def _windows(rows: Array, shape: Ints, geometry: ConvGeometry) -> Array:
    """Return a view (groups, channels, k_1 … k_n, images, q_1 … q_n) of rows for every tap."""
    group, channel, last_tap, image, *outer, last = rows.strides
    taps, moves = [], []
    # An axis of one element may have a stride or a dilation past any array; where it leads does not matter.
    for axis, step in enumerate(outer):
        several = geometry.kernel_shape[axis] > 1
        taps.append(geometry.dilations[axis] * step if several else 0)
        stride = geometry.strides[axis] if several else 1
        moves.append(stride * step if shape[-len(outer) - 1 + axis] > 1 else 0)
    return np.ndarray(shape, rows.dtype, rows, 0, (group, channel, *taps, last_tap, image, *moves, last))
