"""Conv by blocked im2col and GEMM: the default algorithm of the CPU backend.

``y[m, p] = sum over k of w[m, k] * columns[k, p]`` with ``k = (channel, tap)`` and ``p = (image, output position)``.
The im2col matrix ``columns`` is built for one block of outputs at a time, so that it stays in cache and within the
workspace, and BLAS multiplies it. A 1x1 kernel of stride 1 needs no im2col: its input is the matrix.

im2col takes two steps. The first copies, for each tap along the last axis, the inputs of every row, with zeros for the
padding; these copies are at most one output row long. The second copies the resulting rows once for each tap along the
other axes, in long contiguous runs. A 2-D kernel with a vertical stride of 1 can do without the second step: the inputs
of one kernel row are contiguous already. Then one GEMM per kernel row is accumulated into y.
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
    Ints,
    Partition,
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

_TILE_BYTES = 2 * 2**20  # of a block: fits a core's cache, amortises the interpreter; doubled with one thread
_FINISHED = 2**16  # results per call of the epilogue: still in a core's cache
_WORTH_STARTING = 2**16  # results from which one more pass over them costs more than calling BLAS through ctypes
_FEW = 8  # blocks whose descriptions are cached with the plan
_SEVERAL = 4  # taps of the last axis up to which each tap is copied by a call of its own
_DEEP = 48  # K from which one GEMM per kernel row pays: its products outweigh reading and writing y again
_OFTEN = 8  # outputs per row of weights from which reordering the weights pays
_WIDE = 512  # columns of the GEMM (N) from which it is efficient
_NARROW = 16  # fewer columns per block than this do not pay for im2col
_SPARSE = 64  # most elements staged for each element of the im2col matrix


class _WeightsNotFinite(Exception):
    """A zero of the padding may have been multiplied by an infinite or NaN weight, which gives a spurious NaN."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Facts about constant weights, cached per geometry: whether they are finite, and the algorithm for each shape.

    Attributes
    ----------
    finite : bool
        Whether all weights are finite.
    algorithms : dict
        The prepared algorithms. The key is everything that selects one besides weights and geometry.
    """

    finite: bool
    algorithms: dict[Any, Any]


@dataclass(frozen=True, slots=True)
class _Algorithm:
    """A prepared convolution: its blocks, its packed weights, and how threads share it.

    Attributes
    ----------
    work : _GatheredBlocks
        The blocks.
    workers : Workers
        How gpuconv's threads and BLAS's threads share them.
    matrices : None or list of array (products, groups, rows, depth)
        The weights as GEMM operands, one array per part of the weights. None if the converted weights exceed an eighth
        of the workspace: then each part is converted when its turn comes.
    flat : bool
        Whether x needs no im2col (a 1x1 kernel of stride 1 in the accumulator's type), if x flattens.
    whole : bool
        Whether the whole convolution is one GEMM, if x flattens and y is contiguous.
    """

    work: _GatheredBlocks
    workers: _blas.Workers
    matrices: list[Array] | None
    flat: bool
    whole: bool


def known_weights(w: Array) -> Weights:
    """Return the facts about constant weights (M, C/G, k_1, …), for all convolutions of one geometry."""
    return Weights(finite(w), {})


def goes_by_rows(geometry: ConvGeometry, accumulator: str, is_known: bool, partition: Partition) -> bool:
    """Return whether the convolution is computed as one GEMM per kernel row, which needs reordered weights.

    Weights that are not known to be constant (``is_known``) are reordered for each call, so only if that is cheap
    compared with the GEMMs.
    """
    if not _product.available(accumulator) or not _serves_rows(geometry, partition.images):
        return False
    if is_known and not partition.invariant:
        return True
    rows, positions = geometry.w_shape[0] // geometry.group, partition.images * prod(geometry.y_shape[2:])
    return positions >= _OFTEN * rows and prod(geometry.w_shape) * np.dtype(accumulator).itemsize <= limit() // 8


@lru_cache(maxsize=1024)
def _serves_rows(geometry: ConvGeometry, images: int) -> bool:
    """Return whether one GEMM per kernel row is possible (the row's inputs are contiguous) and pays off."""
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
    """Return weights (M, C/G, k_1, k_2) as one GEMM operand per kernel row: (k_1, G, M/G, C/G * k_2)."""
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
    partition: Partition,
) -> bool:
    """Write Conv into y; return False, with y undefined, if another algorithm has to compute it.

    That is if the workspace is too small, padding meets weights that are not finite, or an array would need more than
    64 axes. ``facts`` are those of constant weights ``w``, else None.
    """
    threads, bytes_ = _threads.count(), limit()
    algorithm = _choose_algorithm(x, w, y, geometry, accumulator, facts, threads, bytes_, partition)
    if algorithm is None:
        return False
    if facts is not None and algorithm.matrices is not None:
        facts.algorithms[_algorithm_key(x, y, partition)] = algorithm
    return _run_algorithm(algorithm, x, w, b, y, geometry, accumulator, finish, facts, partition)


def _algorithm_key(x: Array, y: Array, partition: Partition) -> Any:
    """Return the key of :attr:`Weights.algorithms`: what selects an algorithm besides weights and geometry."""
    return _threads.count(), limit(), x.shape[0], x.dtype, y.dtype, partition


def repeat(
    x: Array,
    w: Array,
    b: Array | None,
    y: Array,
    geometry: ConvGeometry,
    accumulator: str,
    finish: Finish,
    facts: Weights,
    partition: Partition,
) -> bool:
    """Compute Conv by the cached algorithm if :func:`conv` has computed a call like this one; else return False."""
    algorithm = facts.algorithms.get(_algorithm_key(x, y, partition))
    return algorithm is not None and _run_algorithm(
        algorithm, x, w, b, y, geometry, accumulator, finish, facts, partition
    )


def _run_algorithm(
    algorithm: _Algorithm,
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
    """Compute a prepared convolution; return False if padding meets weights that are not finite."""
    if algorithm.whole and algorithm.matrices and y.flags.c_contiguous and _flattens(x):
        _blas.run(
            lambda matrices: _multiply_whole(x, matrices[0, 0], b, y, finish), algorithm.matrices, algorithm.workers
        )
        return True
    work = algorithm.work
    suspicious = work.padded and facts is None and w.size > y.size and not partition.invariant
    if work.padded and not suspicious and not (finite(w) if facts is None else facts.finite):
        return False
    flat, stacks = algorithm.flat and _flattens(x), _stacks(geometry, partition)

    def job(matrices: Array, part: tuple[Span, Span]) -> _GatheredProduct:
        return _GatheredProduct(
            x,
            matrices,
            b,
            y,
            finish,
            geometry,
            slice(*part[0]),
            part[1][0],
            flat,
            suspicious,
            stacks,
            partition.invariant,
        )

    def compute(pair: tuple[_GatheredProduct, int]) -> None:
        pair[0].compute(work.piece(pair[1]))

    matrices: Iterable[Array] | None = algorithm.matrices
    if matrices is None:  # convert the weights part by part
        split = _split(w, geometry)
        matrices = (_matrices(split, part, accumulator) for part in work.parts)
    jobs: Iterator[_GatheredProduct] = map(job, matrices, work.parts)
    try:
        for some in [list(jobs)] if algorithm.matrices is not None else ([one] for one in jobs):
            _blas.run(
                compute, list(product(some, range(len(work.blocks)))), algorithm.workers, partition.at_once(limit())
            )
    except _WeightsNotFinite:
        return False
    return True


def _choose_algorithm(
    x: Array,
    w: Array,
    y: Array,
    geometry: ConvGeometry,
    accumulator: str,
    facts: Weights | None,
    threads: int,
    bytes_: int,
    partition: Partition,
) -> _Algorithm | None:
    """Plan a convolution; return None if the workspace is too small or an array would need too many axes."""
    by_rows = goes_by_rows(geometry, accumulator, facts is not None, partition)
    converts = not by_rows and (w.dtype != accumulator or not w.flags.c_contiguous)
    item = np.dtype(accumulator).itemsize
    positions = prod(y.shape[2:])
    thin = positions == 1 or w.shape[0] == geometry.group
    of_image = _blas.operations(w.size * positions, accumulator)
    workers = _blas.workers_for(of_image * x.shape[0], threads, thin)
    plain = x.dtype == y.dtype == accumulator
    partition = replace(partition, threads=_blas.parts(of_image, partition, thin))
    stacked = -(-x.shape[0] // threads) if _stacks(geometry, partition) and not by_rows else 1
    work = _work(geometry, plain, converts, by_rows, item, partition, stacked, bytes_)
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
    one = (
        not partition.invariant
        and flat
        and plain
        and x.shape[0] == geometry.group == len(work.parts) == len(work.blocks)
    )
    return _Algorithm(work, workers, matrices, flat, one)


def _multiply_whole(x: Array, matrix: Array, b: Array | None, y: Array, finish: Finish) -> None:
    """Write the GEMM of a matrix (M, C) and one image (1, C, …) into y, with bias and epilogue."""
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
    """Add the bias to sums (M, positions), a view of y, and apply the epilogue, in parts that stay in cache."""
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
    """Return the weights of some groups and rows as GEMM operands (products, groups, rows, depth)."""
    groups, rows = part
    matrices = split[:, slice(*groups), slice(*rows)].astype(accumulator, copy=False)
    return matrices.reshape(*matrices.shape[:3], -1)


def finite(array: Array) -> bool:
    """Return whether all elements are finite. Their sum is checked first; single elements only if it is not finite."""
    return bool(np.isfinite(np.add.reduce(array, axis=None)) or np.isfinite(array).all())


# ---------------------------------------------------------------- blocks


@dataclass(frozen=True, slots=True)
class _Piece:
    """One block of outputs, with the index expressions of its im2col.

    "Rows" is the result of the first step of im2col: (groups, channels, k_n, images, r_1 … r_(n-1), q_n), where r_i is
    the number of inputs and zeros that the block's receptive field has along axis i, and q_n its outputs along the last
    axis.

    Attributes
    ----------
    images : slice
        Its images.
    positions : tuple of int
        Outputs along each spatial axis.
    box : tuple of slice
        The same outputs as slices of y.
    first, count : int
        Row-major index of the first output in its image, and the number of outputs.
    reads : tuple of slice
        Inputs to load, per spatial axis: those of all taps. Along an axis with one tap (except the last axis), only
        those that outputs use.
    rows : tuple of int
        The extents (r_1, …, r_(n-1), q_n).
    padded : None or (int, index)
        For more than four taps along the last axis: a zero-padded copy of the inputs is made first. The extent of its
        last axis, and where in (groups, channels, images, r_1 … r_(n-1), extent) the inputs go.
    borders : tuple of index
        Where zeros of the padding go, in the rows or, if ``padded``, in the padded copy.
    taps : tuple of (index, index)
        For every tap of the last axis: where it goes in the rows, and which of the loaded inputs go there.
    shifts : None or tuple of (index, index, index)
        Set if rows have as many outputs as inputs. Then a tap is one shifted copy of a whole plane, its rows end to
        end: where the tap's planes are in the rows, which elements of a plane are written, and which are read.
        Elements that came from an adjacent row lie in the borders, and become zero afterwards.
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
    """All blocks of all images, and the parts (groups, rows) of the weights that each block is multiplied with."""

    geometry: ConvGeometry
    parts: list[tuple[Span, Span]]
    blocks: list[Block]
    few: tuple[_Piece, ...]  # descriptions of all blocks, cached if there are at most _FEW; else empty
    padded: bool

    def piece(self, number: int) -> _Piece:
        """Return the description of the block with this number."""
        return self.few[number] if self.few else _piece(self.geometry, self.blocks[number])


@lru_cache(maxsize=1024)
def _work(
    geometry: ConvGeometry,
    plain: bool,
    converts: bool,
    by_rows: bool,
    item: int,
    partition: Partition,
    stacked: int,
    bytes_: int,
) -> _GatheredBlocks | None:
    plan = _plan(geometry, plain, converts, by_rows, item, partition, stacked, bytes_)
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
    """Describe the inputs that a block loads along one axis: with several taps, also those between the taps."""
    start = span[0] * s + offsets[0]
    if k == 1:
        return _axis(q, n, s, start)
    return _axis((q - 1) * s + offsets[-1] - offsets[0] + 1, n, 1, start)


def _axis(size: int, extent: int, step: int, start: int) -> tuple[int, slice, slice]:
    """Return ``size``, the slice of it that holds inputs, and which inputs; the remaining elements are zeros."""
    low, high = tap_range(size, extent, step, start)
    first = low * step + start
    reads = slice(first, first + (high - low - 1) * step + 1, step) if low < high else slice(0, 0)
    return size, slice(low, high), reads


def _around(size: int, inside: slice) -> list[slice]:
    """Return the slices before and after ``inside``, those that are not empty."""
    ends = slice(0, inside.start), slice(inside.stop, size)
    return [part for part in ends if part.start < part.stop]


def _plan(
    geometry: ConvGeometry,
    plain: bool,
    converts: bool,
    by_rows: bool,
    item: int,
    partition: Partition,
    stacked: int,
    bytes_: int,
) -> BlockSize | None:
    """Choose the block size; return None if no block that pays fits the workspace, or an array needs too many axes.

    ``plain``: x and y have the accumulator's type. ``converts``: the weights have to be converted. ``item``: bytes of
    an element. ``stacked``: at most this many small images are multiplied in one call of NumPy, as separate GEMMs.
    ``bytes_``: the workspace.
    """
    images, threads, group = partition.images, partition.threads, geometry.group
    rows, depth, out = geometry.w_shape[0] // group, prod(geometry.w_shape[1:]), geometry.y_shape[2:]
    budget = partition.share_of(bytes_) // item
    if _axes(geometry) > MOST_AXES or _elements(geometry, (1,) * len(out), rows) > budget:
        return None
    gathered = depth // geometry.kernel_shape[0] if by_rows else depth
    column = (0 if plain and _pointwise(geometry) else gathered) + (0 if plain else rows)
    tile = min((_TILE_BYTES if threads > 1 else 2 * _TILE_BYTES) // item, budget)
    share = -(-images * prod(out) // threads)
    box = shrink(out, max(_WIDE, min(tile // max(1, column), share)))
    # Small images are merged along N into one GEMM. With groups, several groups go into one call of NumPy instead.
    together = max(1, min(images, _WIDE // prod(box))) if box == out and group == 1 else 1
    if -(-images // threads) * prod(out) >= _WIDE // 4:  # enough columns for one GEMM per thread
        together = min(together, -(-images // threads))
    if together == group == 1:
        box = balance(box, out, images, threads, _WIDE // 2)
    while _elements(geometry, box, rows) * together > budget:
        if _seen(geometry, box) > _SPARSE * prod(geometry.w_shape[1:]) * prod(box):
            return None  # the block stages mostly inputs that no tap uses, and no larger block fits
        box = shrink(out, prod(box) // 2) if together == 1 else box
        together = max(1, together // 2)
    if box != out and prod(box) < _NARROW:
        return None  # a GEMM of so few columns takes less time than its im2col
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
    """Return the most axes of an array of im2col: of the rows, or of the columns with one axis per tap axis."""
    rank = len(geometry.kernel_shape)
    return rank + 4 if max(geometry.kernel_shape[:-1], default=1) == 1 else 2 * rank + 3


def _elements(geometry: ConvGeometry, box: Ints, rows: int) -> int:
    """Return the elements that a block of one group of one image needs: im2col matrix, results, and staged inputs."""
    return (prod(geometry.w_shape[1:]) + rows) * prod(box) + _seen(geometry, box)


def _seen(geometry: ConvGeometry, box: Ints) -> int:
    """Return the elements of the first step of im2col, for a block of one group of one image."""
    axes = zip(box, geometry.kernel_shape, _reach(geometry, box), strict=True)
    *outer, (q, k, last) = axes
    rows = prod(positions if taps == 1 else reach for positions, taps, reach in outer)
    converted = last if k > _SEVERAL else min(last, geometry.x_shape[-1])
    return geometry.w_shape[1] * rows * (converted + k * q)  # the rows hold them once for every tap


def _stacks(geometry: ConvGeometry, partition: Partition) -> bool:
    """Return whether each image of a block is a GEMM of its own: required by ``invariant``, and free with groups."""
    return partition.invariant or geometry.group > 1


def _pointwise(geometry: ConvGeometry) -> bool:
    """Return whether this is a 1x1 kernel of stride 1 without padding, whose im2col matrix is x itself."""
    return (
        geometry.x_shape[2:] == geometry.y_shape[2:]
        and max(geometry.kernel_shape) == max(geometry.strides) == 1
        and not any(geometry.pads_begin)
    )


def _flattens(array: Array) -> bool:
    """Return whether BLAS can take an image as a (channels, positions) matrix: C-contiguous, or contiguous as NHWC."""
    return array.flags.c_contiguous or np.moveaxis(array, 1, -1).flags.c_contiguous


def _reach(geometry: ConvGeometry, box: Ints) -> Ints:
    """Return the extents of the receptive field of a box of outputs, per spatial axis."""
    axes = zip(box, geometry.strides, geometry.kernel_shape, geometry.dilations, strict=True)
    return tuple((q - 1) * s + (k - 1) * d + 1 for q, s, k, d in axes)


# ---------------------------------------------------------------- the computation


@dataclass(slots=True)
class _GatheredProduct:
    """The GEMMs of one part of the weights (products, groups, rows, depth) with all blocks.

    K (``depth``) runs over channels and all taps if there is one product, else over channels and one kernel row.
    """

    x: Array
    weights: Array
    b: Array | None
    y: Array
    finish: Finish
    geometry: ConvGeometry
    groups: slice
    first_row: int
    flat: bool  # x needs no im2col
    suspicious: bool  # weights have not been checked: check results, and weights only if a result is not finite
    stacks: bool  # each image is a GEMM of its own
    invariant: bool  # an image's bits must not depend on the batch

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
        """Compute the GEMMs into ``result`` (``sums`` is a view of it); return whether they include the bias."""
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
        """Return the block of y as (groups, rows, positions), images first if several; None if BLAS cannot write it."""
        y, (products, groups, rows, _) = self.y, self.weights.shape
        if y.dtype != self.weights.dtype or (products > 1 and not y.flags.aligned):
            return None
        if images > 1 and not self.stacks:
            return None
        if not (y.flags.c_contiguous or (products == 1 and rows > 1 and _flattens(y))):  # BLAS needs contiguous rows
            return None
        if images > 1:  # all positions of each
            return y[piece.images, channels].reshape(images, groups, rows, -1)
        flat = y[piece.images.start, channels].reshape(groups, rows, -1)
        return flat if flat.shape[2] == piece.count else flat[..., piece.first : piece.first + piece.count]

    def _check(self, result: Array) -> None:
        """Raise _WeightsNotFinite if weights are not finite; they need no check as long as the results are finite."""
        if not finite(result) and not finite(self.weights):
            raise _WeightsNotFinite

    def _columns(self, piece: _Piece, images: int) -> list[Array]:
        """Return the im2col matrix for each GEMM, (groups, depth, positions); the channels vary slowest along depth.

        If images are GEMMs of their own, one array (images, groups, depth, positions).
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
            if not self.invariant:
                return [several]
            stacked = SCRATCH.take("stacked", several.shape, rows.dtype)
            np.copyto(stacked, several)
            return [stacked]  # strides as for one image: BLAS may choose its kernel by them
        return [rows.reshape(groups, depth, images * piece.count)]

    def _rows(self, source: Array, piece: _Piece) -> Array:
        """Do the first step of im2col: return the rows, as :class:`_Piece` defines them."""
        dtype, taps = self.weights.dtype, piece.taps
        if piece.padded is not None:
            return self._rows_of_padded(source, piece, *piece.padded)
        if source.dtype != dtype and len(taps) > 1:  # convert once instead of once per tap
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
        """Do what `_rows` does from a zero-padded copy of the inputs: few NumPy calls, however many taps."""
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
    """Return a bias (M,) reshaped to broadcast with sums (N, M, …)."""
    return bias.reshape(-1, *(1,) * (sums.ndim - 2))


def _planes(array: Array) -> Array:
    """Return a view with the last two axes, which must be contiguous, merged into one."""
    *outer, height, width = array.shape
    return array.reshape(*outer, height * width)


def _windows(rows: Array, shape: Ints, geometry: ConvGeometry) -> Array:
    """Return the im2col matrix as a strided view (groups, channels, k_1 … k_n, images, q_1 … q_n) of the rows."""
    group, channel, last_tap, image, *outer, last = rows.strides
    taps, moves = [], []
    # Along an axis of one element, stride and dilation have no effect and may be huge: use 0 for them.
    for axis, step in enumerate(outer):
        several = geometry.kernel_shape[axis] > 1
        taps.append(geometry.dilations[axis] * step if several else 0)
        stride = geometry.strides[axis] if several else 1
        moves.append(stride * step if shape[-len(outer) - 1 + axis] > 1 else 0)
    return np.ndarray(shape, rows.dtype, rows, 0, (group, channel, *taps, last_tap, image, *moves, last))
