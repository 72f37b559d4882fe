"""Conv and ConvTranspose on NumPy arrays: which way to compute them."""

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
from gpuconv.cpu._workspace import ALONE, Array, Cut, in_order, last_axes, limit, spans
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import ConvGeometry, ConvTransposeGeometry

_MORE_OUTPUTS = 4  # times the inputs: then most of what would be gathered is padding
_ONE_BLOCK = 2**20  # elements of a group and their products that are multiplied at once
_GATHERED, _ADDED, _OPERATIONS = 1e9, 5e8, 5e10  # elements, and operations of products, per second
_RUN = 8  # elements that are added in the time that a run of neighbours takes to start
_TERM = 1e-4  # seconds that a product of its own takes to be prepared and added
_MORE = 2  # output channels for each input channel of a ConvTranspose that is computed as a Conv


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
    alone: str | None = None,
) -> None:
    """Write Conv of x and w, plus b, into y, finished; ``facts`` are those of w.

    With ``alone``, the layout, an image's sums do not depend on other images, on threads, or on how x and y lie.
    """
    if alone is None:
        _conv(x, w, b, y, geometry, finish, facts, Cut(x.shape[0], _threads.count()))
        return

    def compute(x: Array, y: Array, images: slice) -> None:
        _conv(x, w, b, y, geometry.of_images(x.shape[0]), finish.at(images), facts, ALONE)

    in_order(alone, x, y, compute)


def _conv(
    x: Array,
    w: Array,
    b: Array | None,
    y: Array,
    geometry: ConvGeometry,
    finish: Finish,
    facts: Weights | None,
    cut: Cut,
) -> None:
    accumulator = dtypes.accumulator(x.dtype)
    w, geometry = crop(w, geometry)
    if facts is not None and _gather.again(x, w, b, y, geometry, accumulator, finish, facts, cut):
        return
    if 0 in (x.size, w.size, y.size):
        fill(y, b, finish, accumulator)
        return
    w = contiguous(w)
    done = False
    to_many = y.size * x.shape[1] >= _MORE_OUTPUTS * x.size * y.shape[1] and _adds_to_many(geometry)
    if to_many or _adds_fewer(geometry, cut.images):
        done = _overlap_add.run(as_overlap_add(x, w, b, y, geometry, accumulator, finish), cut)
    done = done or _grouped.run(x, w, b, y, geometry, accumulator, finish, facts, cut)
    by_rows = not done and _gather.goes_by_rows(geometry, accumulator, facts is not None, cut)
    if not done and _adds_less_than_it_gathers(geometry, by_rows):
        done = _scatter.run(_as_scatter(x, w, b, y, geometry, accumulator, finish), cut)
    done = done or _gather.conv(x, w, b, y, geometry, accumulator, finish, facts, cut)
    if not done and _scatter.serves(len(geometry.kernel_shape)):
        done = _overlap_add.run(as_overlap_add(x, w, b, y, geometry, accumulator, finish), cut)
    if not done:
        _by_taps(lambda: _taps.conv(x, w, b, y, geometry, accumulator, finish), cut)


def _adds_to_many(geometry: ConvGeometry) -> bool:
    """Tell whether each of a few inputs had better be multiplied by all taps: far more outputs meet mostly padding."""
    rows, channels = geometry.w_shape[0] // geometry.group, geometry.w_shape[1]
    return max(geometry.strides) == 1 and rows < 2 * channels and _scatter.serves(len(geometry.kernel_shape))


@lru_cache(maxsize=1024)
def _adds_fewer(geometry: ConvGeometry, images: int) -> bool:
    """Tell whether a Conv with strides gathers far more inputs for its outputs than it would add products of inputs.

    Taps of one remainder of the stride are multiplied with the inputs that they meet: one product each.
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
    alone: str | None = None,
) -> None:
    """Write ConvTranspose of x and w, plus b, into y, finished; ``alone`` as in :func:`conv`."""
    if alone is None:
        _conv_transpose(x, w, b, y, geometry, finish, Cut(x.shape[0], _threads.count()))
        return

    def compute(x: Array, y: Array, images: slice) -> None:
        # Whether inputs are finite may decide how they are computed: those of an image for this image.
        step = 1 if x.shape[0] > 1 and not _gather.finite(x) else x.shape[0]
        for some in (slice(*span) for span in spans(x.shape[0], step)):
            part = x[some]
            _conv_transpose(part, w, b, y[some], geometry.of_images(part.shape[0]), finish.at(images).at(some), ALONE)

    in_order(alone, x, y, compute)


def _conv_transpose(
    x: Array, w: Array, b: Array | None, y: Array, geometry: ConvTransposeGeometry, finish: Finish, cut: Cut
) -> None:
    accumulator = dtypes.accumulator(x.dtype)
    w, geometry = crop(w, geometry)
    if 0 in (x.size, w.size, y.size):
        fill(y, b, finish, accumulator)
        return
    w = contiguous(w)
    done = _by_gathering(x, w, b, y, geometry, accumulator, finish, cut)
    if not done and _scatter.serves(len(geometry.kernel_shape)):
        weights = w.reshape(geometry.group, w.shape[0] // geometry.group, *w.shape[1:])  # (G, C/G, M/G, k_1, …)
        strides, offsets = geometry.strides, geometry.offsets
        overlap = OverlapAdd((Term(x, weights, offsets),), b, y, finish, strides, accumulator)
        by_strides = _overlap_add.pays(overlap, cut)
        done = _phase_rows.run(overlap, cut, by_strides) or (by_strides and _overlap_add.run(overlap, cut))
        if not done:
            done = _scatter.run(_scatter.ScatterProblem(x, weights, b, y, finish, strides, offsets, accumulator), cut)
        done = done or _overlap_add.run(overlap, cut)
    if not done:
        _by_taps(lambda: _taps.conv_transpose(x, w, b, y, geometry, accumulator, finish), cut)


def _by_gathering(
    x: Array,
    w: Array,
    b: Array | None,
    y: Array,
    geometry: ConvTransposeGeometry,
    accumulator: str,
    finish: Finish,
    cut: Cut,
) -> bool:
    """Compute a ConvTranspose of stride 1 and few input channels as the Conv that it is, with the taps in reverse.

    Return False where it has other strides, or copying C inputs for every tap costs more than adding M products.
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
    return _gather.conv(x, weights, b, y, of_conv, accumulator, finish, None, cut)


def _by_taps(compute: Callable[[], None], cut: Cut) -> None:
    """Compute tap by tap, with BLAS held at one thread where its number of threads must not show."""
    _blas.run(lambda _: compute(), [0], _blas.Share.ALONE if cut.alone else _blas.Share.AT_ONCE)


@lru_cache(maxsize=1024)
def _adds_less_than_it_gathers(geometry: ConvGeometry, by_rows: bool) -> bool:
    """Tell whether adding up M values per tap costs less than copying C per tap, or per tap of a row.

    An addition costs about as much as copying two elements, and starting those of a tap as copying ten thousand; half
    of the copies are of long runs. Not where the kernel's reach is long beside an image that is more than one block:
    blocks would multiply too many inputs more than once.
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
    """Input ``q + offset`` of a Conv with stride 1 reaches output ``q``: the offsets the other way round."""
    group = geometry.group
    weights = w.reshape(group, w.shape[0] // group, *w.shape[1:]).swapaxes(1, 2)  # (G, C/G, M/G, k_1, …)
    offsets = tuple(tuple(-offset for offset in axis) for axis in geometry.offsets)
    return _scatter.ScatterProblem(x, weights, b, y, finish, geometry.strides, offsets, accumulator)


def as_overlap_add(
    x: Array, w: Array, b: Array | None, y: Array, geometry: ConvGeometry, accumulator: str, finish: Finish
) -> OverlapAdd:
    """Split a Conv by the remainders of ``offset / stride``: taps of one remainder are a Conv of stride 1."""
    weights = w.reshape(geometry.group, w.shape[0] // geometry.group, *w.shape[1:]).swapaxes(1, 2)
    axes = zip(geometry.offsets, geometry.strides, x.shape[2:], strict=True)
    terms = []
    for parts in product(*(_overlap_add.remainders(*axis) for axis in axes)):
        taps, inputs, offsets = zip(*parts, strict=True)
        terms.append(Term(x[last_axes(inputs)], weights[last_axes(taps)], offsets))
    return OverlapAdd(tuple(terms), b, y, finish, (1,) * len(geometry.strides), accumulator)
