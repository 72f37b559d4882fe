"""Conv and ConvTranspose on NumPy arrays: choose an algorithm by shapes and estimated times, and run it.

Conv is, in this order of preference where each one pays: overlap-add (`_overlap_add`, mostly padding, or large
strides), direct grouped convolution (`_grouped`, few channels per group), scatter (`_scatter`, few output channels), or
im2col with GEMM (`_gather`, the default). ConvTranspose is im2col (stride 1), one GEMM for all phases (`_phase_rows`),
overlap-add or scatter. Tap-wise accumulation (`_taps`) takes what fits nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from gpuconv.cpu import _blas, _gather, _grouped, _overlap_add, _phase_rows, _scatter, _taps, _threads
from gpuconv.cpu._crop import contiguous, crop
from gpuconv.cpu._finish import PLAIN, Finish, fill
from gpuconv.cpu._gather import Weights
from gpuconv.cpu._overlap_add import OverlapAdd, Term
from gpuconv.cpu._threads import quietly
from gpuconv.cpu._workspace import INVARIANT, Array, Partition, in_order, last_axes, limit, spans
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import ConvGeometry, ConvTransposeGeometry

_MORE_OUTPUTS = 4  # ratio of outputs to inputs from which most of an im2col matrix would be padding
_ONE_BLOCK = 2**20  # inputs of a group, and their products with all taps, up to which one block suffices
_GATHERED, _ADDED, _OPERATIONS = 1e9, 5e8, 5e10  # per second: elements copied, elements added, GEMM operations
_RUN = 8  # cost of starting an inner loop, in elements added
_TERM = 1e-4  # seconds of overhead of each further GEMM
_MORE = 2  # output channels per input channel from which a ConvTranspose of stride 1 is computed as a Conv


@quietly
def conv(
    x: Array,
    w: Array,
    b: Array | None,
    y: Array,
    geometry: ConvGeometry,
    finish: Finish = PLAIN,
    facts: Weights | None = None,
    *,
    invariant_layout: str | None = None,
) -> None:
    """Write Conv of x (N, C, …) and w (M, C/G, k_1, …), plus b (M,), after the epilogue ``finish``, into y (N, M, …).

    ``facts`` are those of constant weights w, else None. ``invariant_layout`` is the layout ("NCHW" or "NHWC") if the
    call is batch-invariant: then an image's bits do not depend on other images, threads, or the strides of x and y.
    """
    if invariant_layout is None:
        _conv(x, w, b, y, geometry, finish, facts, Partition(x.shape[0], _threads.count()))
        return

    def compute(x: Array, y: Array, images: slice) -> None:
        _conv(x, w, b, y, geometry.of_images(x.shape[0]), finish.at(images), facts, INVARIANT)

    in_order(invariant_layout, x, y, compute)


def _conv(
    x: Array,
    w: Array,
    b: Array | None,
    y: Array,
    geometry: ConvGeometry,
    finish: Finish,
    facts: Weights | None,
    partition: Partition,
) -> None:
    accumulator = dtypes.accumulator(x.dtype)
    w, geometry = crop(w, geometry)
    if facts is not None and _gather.repeat(x, w, b, y, geometry, accumulator, finish, facts, partition):
        return
    if 0 in (x.size, w.size, y.size):
        fill(y, b, finish, accumulator)
        return
    w = contiguous(w)
    done = False
    to_many = y.size * x.shape[1] >= _MORE_OUTPUTS * x.size * y.shape[1] and _adds_to_many(geometry)
    if to_many or _adds_fewer(geometry, partition.images):
        done = _overlap_add.run(as_overlap_add(x, w, b, y, geometry, accumulator, finish), partition)
    done = done or _grouped.run(x, w, b, y, geometry, accumulator, finish, facts, partition)
    by_rows = not done and _gather.goes_by_rows(geometry, accumulator, facts is not None, partition)
    if not done and _adds_less_than_it_gathers(geometry, by_rows):
        done = _scatter.run(_as_scatter(x, w, b, y, geometry, accumulator, finish), partition)
    done = done or _gather.conv(x, w, b, y, geometry, accumulator, finish, facts, partition)
    if not done and _scatter.serves(len(geometry.kernel_shape)):
        done = _overlap_add.run(as_overlap_add(x, w, b, y, geometry, accumulator, finish), partition)
    if not done:
        _by_taps(lambda: _taps.conv(x, w, b, y, geometry, accumulator, finish), partition)


def _adds_to_many(geometry: ConvGeometry) -> bool:
    """Return whether overlap-add suits a Conv whose receptive fields are mostly padding: stride 1, and M < 2C."""
    rows, channels = geometry.w_shape[0] // geometry.group, geometry.w_shape[1]
    return max(geometry.strides) == 1 and rows < 2 * channels and _scatter.serves(len(geometry.kernel_shape))


@lru_cache(maxsize=1024)
def _adds_fewer(geometry: ConvGeometry, images: int) -> bool:
    """Return whether overlap-add is predicted to take less than half the time of im2col, for a Conv with strides.

    Overlap-add computes one GEMM per phase of the stride: the taps of one remainder with the inputs that they use.
    """
    if max(geometry.strides) == 1 or not _scatter.serves(len(geometry.kernel_shape)):
        return False
    (made, channels, *taps), outputs = geometry.w_shape, geometry.y_shape[2:]
    pairs, terms, run = 1, 1, 1
    for offsets, stride, extent in zip(geometry.offsets, geometry.strides, geometry.x_shape[2:], strict=True):
        parts = _overlap_add.remainders(offsets, stride, extent)
        counts = [(len(range(extent)[inputs]), len(to)) for _, inputs, to in parts]
        pairs, terms = pairs * sum(n * k for n, k in counts), terms * len(parts)
        run = max((max(pair) for pair in counts), default=1)
    gathered = prod(outputs) * prod(taps) * channels * (geometry.group / _GATHERED + 2 * made / _OPERATIONS)
    added = pairs * made * ((1 + _RUN / run) / _ADDED + 2 * channels / _OPERATIONS)
    return images * added + terms * _TERM < images * gathered / 2


@quietly
def conv_transpose(
    x: Array,
    w: Array,
    b: Array | None,
    y: Array,
    geometry: ConvTransposeGeometry,
    finish: Finish = PLAIN,
    *,
    invariant_layout: str | None = None,
) -> None:
    """Write ConvTranspose of x (N, C, …) and w (C, M/G, k_1, …), plus b, into y; arguments as in :func:`conv`."""
    if invariant_layout is None:
        _conv_transpose(x, w, b, y, geometry, finish, Partition(x.shape[0], _threads.count()))
        return

    def compute(x: Array, y: Array, images: slice) -> None:
        # The algorithm may depend on whether inputs are finite; then it must be chosen for each image.
        step = 1 if x.shape[0] > 1 and not _gather.finite(x) else x.shape[0]
        for some in (slice(*span) for span in spans(x.shape[0], step)):
            part = x[some]
            _conv_transpose(
                part, w, b, y[some], geometry.of_images(part.shape[0]), finish.at(images).at(some), INVARIANT
            )

    in_order(invariant_layout, x, y, compute)


def _conv_transpose(
    x: Array, w: Array, b: Array | None, y: Array, geometry: ConvTransposeGeometry, finish: Finish, partition: Partition
) -> None:
    accumulator = dtypes.accumulator(x.dtype)
    w, geometry = crop(w, geometry)
    if 0 in (x.size, w.size, y.size):
        fill(y, b, finish, accumulator)
        return
    w = contiguous(w)
    done = _by_gathering(x, w, b, y, geometry, accumulator, finish, partition)
    if not done and _scatter.serves(len(geometry.kernel_shape)):
        weights = w.reshape(geometry.group, w.shape[0] // geometry.group, *w.shape[1:])  # (G, C/G, M/G, k_1, …)
        strides, offsets = geometry.strides, geometry.offsets
        overlap = OverlapAdd((Term(x, weights, offsets),), b, y, finish, strides, accumulator)
        by_strides = _overlap_add.pays(overlap, partition)
        done = _phase_rows.run(overlap, partition, by_strides) or (by_strides and _overlap_add.run(overlap, partition))
        if not done:
            done = _scatter.run(
                _scatter.ScatterProblem(x, weights, b, y, finish, strides, offsets, accumulator), partition
            )
        done = done or _overlap_add.run(overlap, partition)
    if not done:
        _by_taps(lambda: _taps.conv_transpose(x, w, b, y, geometry, accumulator, finish), partition)


def _by_gathering(
    x: Array,
    w: Array,
    b: Array | None,
    y: Array,
    geometry: ConvTransposeGeometry,
    accumulator: str,
    finish: Finish,
    partition: Partition,
) -> bool:
    """Compute a ConvTranspose of stride 1 as a Conv with reversed taps, by im2col; return False if that does not pay.

    It pays for few input channels: im2col copies C inputs per tap, scatter adds M products per tap.
    """
    group, (channels, rows, *_) = geometry.group, w.shape
    channels //= group
    if max(geometry.strides) > 1 or max(geometry.kernel_shape) == 1 or rows < _MORE * channels:
        return False
    if prod(y.shape[2:]) > _MORE_OUTPUTS * prod(x.shape[2:]):
        return False
    sizes = zip(geometry.kernel_shape, geometry.dilations, x.shape[2:], y.shape[2:], geometry.pads_begin, strict=True)
    reaches = [((k - 1) * d, n, q, pad) for k, d, n, q, pad in sizes]
    begin = tuple(reach - pad for reach, _, _, pad in reaches)
    end = tuple(q - n + pad for _, n, q, pad in reaches)
    if min(*begin, *end) < 0 or w.nbytes > limit() // 8:
        return False
    taps = (slice(None, None, -1),) * len(begin)
    turned = w.reshape(group, channels, *w.shape[1:]).swapaxes(1, 2)[last_axes(taps)]
    weights = np.ascontiguousarray(turned).reshape(group * rows, channels, *geometry.kernel_shape)
    ones = geometry.strides
    of_conv = ConvGeometry(
        geometry.x_shape,
        geometry.y_shape,
        geometry.kernel_shape,
        ones,
        geometry.dilations,
        begin,
        end,
        weights.shape,
        group,
    )
    return _gather.conv(x, weights, b, y, of_conv, accumulator, finish, None, partition)


def _by_taps(compute: Callable[[], None], partition: Partition) -> None:
    """Run tap-wise accumulation; batch-invariant calls use one BLAS thread, as the number of threads changes bits."""
    _blas.run(lambda _: compute(), [0], _blas.Workers.ONE if partition.invariant else _blas.Workers.CALLER)


@lru_cache(maxsize=1024)
def _adds_less_than_it_gathers(geometry: ConvGeometry, by_rows: bool) -> bool:
    """Return whether scatter (M additions per output and tap) costs less than im2col (C copies per output and tap).

    The estimate: an addition costs as much as copying two elements, each tap 10,000 elements more, and half of the
    copies are in long runs. With one GEMM per kernel row (``by_rows``), im2col copies only once per tap of a row. Large
    images are cut into blocks with overlapping halos: scatter is not taken if that adds 10 % to the products.
    """
    rows, channels = geometry.w_shape[0] // geometry.group, geometry.w_shape[1]
    taps, last, positions = prod(geometry.kernel_shape), geometry.kernel_shape[-1], prod(geometry.y_shape[2:])
    if max(geometry.strides) > 1 or taps == 1 or not _scatter.serves(len(geometry.kernel_shape)):
        return False
    copies = 2 * last if by_rows else taps + 2 * last
    if 2 * taps * (2 * rows * positions + 10_000) > channels * positions * copies:
        return False
    if prod(geometry.x_shape[2:]) * (channels + rows * taps) < _ONE_BLOCK:
        return True
    axes = zip(geometry.y_shape[2:], geometry.kernel_shape, geometry.dilations, strict=True)
    return prod(1 + (k - 1) * d / q for q, k, d in axes) < 1.1


def _as_scatter(
    x: Array, w: Array, b: Array | None, y: Array, geometry: ConvGeometry, accumulator: str, finish: Finish
) -> _scatter.ScatterProblem:
    """Return a Conv of stride 1 as a scatter problem: output ``q`` uses input ``q + offset``; offsets are negated."""
    group = geometry.group
    weights = w.reshape(group, w.shape[0] // group, *w.shape[1:]).swapaxes(1, 2)  # (G, C/G, M/G, k_1, …)
    offsets = tuple(tuple(-offset for offset in axis) for axis in geometry.offsets)
    return _scatter.ScatterProblem(x, weights, b, y, finish, geometry.strides, offsets, accumulator)


def as_overlap_add(
    x: Array, w: Array, b: Array | None, y: Array, geometry: ConvGeometry, accumulator: str, finish: Finish
) -> OverlapAdd:
    """Return a Conv as an overlap-add problem: one term per remainder of ``offset / stride``, each of stride 1."""
    weights = w.reshape(geometry.group, w.shape[0] // geometry.group, *w.shape[1:]).swapaxes(1, 2)
    axes = zip(geometry.offsets, geometry.strides, x.shape[2:], strict=True)
    terms = []
    for parts in product(*(_overlap_add.remainders(*axis) for axis in axes)):
        taps, inputs, offsets = zip(*parts, strict=True)
        terms.append(Term(x[last_axes(inputs)], weights[last_axes(taps)], offsets))
    return OverlapAdd(tuple(terms), b, y, finish, (1,) * len(geometry.strides), accumulator)
