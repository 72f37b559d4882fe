"""GridSample and DeformConv: interpolation at computed positions, as gathers and weighted sums.

Interpolation separates by axis: the taps of all axes are combined to indices into flattened images, which end with a
zero for padding. DeformConv gathers im2col columns and multiplies them with the filters.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from itertools import product as combinations
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpuconv._errors import ArgumentError
from gpuconv.cpu import _threads
from gpuconv.onnx.operators.form import Form, Operator, blocks_of_channels, is_float, namespace, saturated, wide
from gpuconv.onnx.operators.pooling import on_device
from gpuconv.onnx.operators.products import product
from gpuconv.onnx.operators.resizing import cubic

_BLOCK = 2**16  # elements summed up per block, while they are in cache
_MODES = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic", "nearest": "nearest"}
_PADDINGS = ("zeros", "border", "reflection")
_CUBIC = -0.75  # coefficient of GridSample's cubic kernel


class _Tap(NamedTuple):
    """Interpolation taps along one axis, or in a flattened image.

    Attributes
    ----------
    index : array of int
    weight : array, optional
        None stands for ones.
    outside : array of bool, optional
        Which taps read padding; None stands for none.
    """

    index: Any
    weight: Any = None
    outside: Any = None


# ---------------------------------------------------------------- from places to elements


def _flat_taps(at: Sequence[Any], extents: Sequence[int], mode: str, padding: str, edge: float) -> list[_Tap]:
    """Return the taps in flattened images whose weighted sums are the interpolated values.

    The images must be followed by one zero, which padding reads.

    Parameters
    ----------
    at : sequence of arrays
        Positions along every axis, in elements.
    extents : sequence of int
        Spatial extents of the images.
    mode, padding : str
        A value of _MODES, and one of _PADDINGS.
    edge : float
        Distance of the reflection border beyond the first and last element: 0 or 0.5.
    """
    along = [_taps(*axis, mode, padding, edge) for axis in zip(at, extents, strict=True)]
    return [_flat(taps, extents) for taps in combinations(*along)]


def _taps(at: Any, extent: int, mode: str, padding: str, edge: float) -> list[_Tap]:
    """Return the taps along one axis for positions ``at``."""
    xp = namespace(at)
    at = xp.rint(at) if mode == "nearest" else at
    at = _within(at, extent, mode, padding, edge)
    low = xp.floor(at)
    return [_tap(low + step, extent, weight, padding, edge) for step, weight in _weights(at - low, mode)]


def _within(at: Any, extent: int, mode: str, padding: str, edge: float) -> Any:
    """Clamp or reflect positions out of bounds; cubic interpolation pads its taps instead of clamping positions."""
    xp = namespace(at)
    if padding == "reflection":
        return _reflected(at, extent, edge)
    margin = 0 if padding == "border" and mode != "cubic" else 4  # far enough that all taps are out of bounds
    return xp.minimum(xp.maximum(at, -margin), extent - 1 + margin)


def _weights(share: Any, mode: str) -> list[tuple[int, Any]]:
    """Return (offset, weight) of the neighbours of each position, given its fractional part."""
    if mode == "nearest":
        return [(0, None)]
    if mode == "linear":
        return [(0, 1 - share), (1, share)]
    return [(step, cubic(namespace(share).abs(share - step), _CUBIC)) for step in range(-1, 3)]


def _tap(place: Any, extent: int, weight: Any, padding: str, edge: float) -> _Tap:
    """Return the tap at integer positions; NaN selects element 0, or padding if padding_mode is zeros."""
    xp = namespace(place)
    outside = ~((place >= 0) & (place <= extent - 1)) if padding == "zeros" else None
    place = _reflected(place, extent, edge) if padding == "reflection" else place
    return _Tap(xp.fmin(xp.fmax(place, 0), extent - 1).astype(np.intp), weight, outside)


def _reflected(place: Any, extent: int, edge: float) -> Any:
    """Reflect positions at the borders, repeatedly if necessary."""
    xp = namespace(place)
    first, last = -edge, extent - 1 + edge
    if first == last:
        return place * 0 + first
    below = place < first
    beyond = xp.where(below, first - place, place - last)
    turns = xp.floor(beyond / (last - first))
    rest = beyond - turns * (last - first)
    forwards = (turns - 2 * xp.floor(turns / 2) == 0) == below
    return xp.where(beyond > 0, xp.where(forwards, first + rest, last - rest), place)


def _flat(taps: tuple[_Tap, ...], extents: Sequence[int]) -> _Tap:
    """Combine one tap per axis to a tap in the flattened image, the product of their weights."""
    index: Any = reduce(lambda sum_, one: sum_ * one[1] + one[0].index, zip(taps, extents, strict=True), 0)
    weights = [tap.weight for tap in taps if tap.weight is not None]
    padding = [tap.outside for tap in taps if tap.outside is not None]
    if padding:
        outside = reduce(lambda a, b: a | b, padding)
        index = namespace(index).where(outside, prod(extents), index)
    return _Tap(index, reduce(lambda a, b: a * b, weights) if weights else None)


def _sum(rows: Any, taps: list[_Tap], place: Any) -> Any:
    """Return weighted sums (C, P) of flattened images (C, D + 1), with the indices and weights at ``place``."""
    return reduce(operator.iadd, (_weighted(rows, tap, place) for tap in taps))


def _weighted(rows: Any, tap: _Tap, place: Any) -> Any:
    part = namespace(rows).take(rows, tap.index[place], axis=1)
    if tap.weight is not None:
        part *= tap.weight[place].astype(part.dtype, copy=False)
    return part


def _rows(images: Any) -> Any:
    """Flatten images (C, D1, ..., Dr) to (C, D + 1), with a zero at the end of each."""
    xp, flat = namespace(images), images.reshape(images.shape[0], prod(images.shape[1:]))
    return xp.concatenate([flat, xp.zeros((images.shape[0], 1), images.dtype)], axis=1)


# ---------------------------------------------------------------- GridSample


def _grid_sample(form: Form, x: Any, grid: Any) -> Any:
    """GridSample: interpolate x (N, C, D1, ..., Dr) at grid (N, O1, ..., Or, r), whose coordinates name the last axis
    first.
    """
    mode, padding = _checked(form, x, grid)
    extents, corners = x.shape[2:], bool(form.get("align_corners"))
    shape = (x.shape[0], x.shape[1], *grid.shape[1:-1])
    places = wide(grid).reshape(x.shape[0], prod(grid.shape[1:-1]), len(extents))
    at = [_counted(places[:, :, -1 - axis], extent, corners) for axis, extent in enumerate(extents)]
    values = wide(x) if mode == "nearest" or is_float(x) else x.astype(np.float64)
    y = namespace(x).zeros(shape, values.dtype)
    if 0 in (*shape, *extents):
        return y.astype(x.dtype, copy=False)
    taps = _flat_taps(at, extents, mode, padding, 0.0 if corners else 0.5)

    def fill(block: tuple[int, slice]) -> None:
        y[block] = _sum(_rows(values[block]), taps, block[0]).reshape(y[block].shape)

    everything = [(image, slice(None)) for image in range(x.shape[0])]
    blocks = everything if on_device(x) else blocks_of_channels(y, _BLOCK)
    _threads.run(_threads.quietly(fill), blocks, side_by_side=not on_device(x) and _threads.pays(y.nbytes))
    return saturated(y, x.dtype) if x.dtype.kind in "iu" and mode != "nearest" else y.astype(x.dtype, copy=False)


def _checked(form: Form, x: Any, grid: Any) -> tuple[str, str]:
    """Return mode (by its name in the newest opset) and padding_mode, after validation of the shapes."""
    if x.ndim < 3 or grid.ndim != x.ndim or grid.shape[0] != x.shape[0] or grid.shape[-1] != x.ndim - 2:
        raise ArgumentError(
            "X must be (N, C, D1, …, Dr) and grid (N, O1, …, Or, r), but they have the shapes "
            f"{x.shape} and {grid.shape}"
        )
    mode, padding = form.get("mode"), form.get("padding_mode")
    if mode not in _MODES:
        raise ArgumentError(f"mode must be one of {', '.join(_MODES)}, not {mode!r}")
    if padding not in _PADDINGS:
        raise ArgumentError(f"padding_mode must be one of {', '.join(_PADDINGS)}, not {padding!r}")
    return _MODES[mode], padding


def _counted(place: Any, extent: int, corners: bool) -> Any:
    """Convert normalised positions to elements: -1 and 1 are the centres of the corner pixels, or their outer edges."""
    return (place + 1) / 2 * (extent - 1) if corners else ((place + 1) * extent - 1) / 2


def _grid_sample_cost(form: Form, x: Any, grid: Any) -> int:
    taps = {"nearest": 1, "linear": 2, "cubic": 4}[_checked(form, x, grid)[0]]
    return int(x.size + prod((*x.shape[:2], *grid.shape[1:-1])) * taps ** (x.ndim - 2))


# ---------------------------------------------------------------- DeformConv


def _deform_conv(form: Form, x: Any, w: Any, offset: Any, b: Any = None, mask: Any = None) -> Any:
    """DeformConv: gather columns by bilinear interpolation at offset taps, then one matrix product per image."""
    shapes = _shapes(form, x, w, offset, b, mask)
    images, filters, channels = x.shape[0], w.shape[0], w.shape[1]
    xp, count, positions = namespace(x), prod(shapes.kernel), prod(shapes.out)
    y = xp.zeros((images, shapes.group, positions, filters // shapes.group), wide(x).dtype)
    if 0 not in (*x.shape, *y.shape, *w.shape):
        grouped = wide(w).reshape(shapes.group, filters // shapes.group, channels, count).transpose(0, 3, 2, 1)
        grouped = grouped.reshape(shapes.group, count * channels, filters // shapes.group)
        taps = _moved_taps(shapes, x.shape[2:], wide(offset), mask if mask is None else wide(mask))
        for image in range(images):
            columns = _columns(wide(x[image]), [_Tap(*(part[image] for part in tap[:2])) for tap in taps], shapes)
            y[image] = product(columns.reshape(shapes.group, positions, count * channels), grouped)
    y = y.transpose(0, 1, 3, 2).reshape(images, filters, positions)
    y = y if b is None else y + wide(b).reshape(-1, 1)
    return y.reshape(images, filters, *shapes.out).astype(x.dtype, copy=False)


def _moved_taps(shapes: _Shapes, extents: Sequence[int], offset: Any, mask: Any) -> list[_Tap]:
    """Return the taps per image and offset group (N, G, P * K), with the K taps of a position adjacent."""
    images, rank = offset.shape[0], len(extents)
    count, positions = prod(shapes.kernel), prod(shapes.out)
    every = (images, shapes.offset_group, positions * count)
    moved = offset.reshape(images, shapes.offset_group, count, rank, positions).transpose(3, 0, 1, 4, 2)
    bases = [namespace(offset).asarray(base.astype(offset.dtype)) for base in _bases(shapes)]
    at = [(away + base).reshape(every) for away, base in zip([moved[axis] for axis in range(rank)], bases, strict=True)]
    taps = _flat_taps(at, extents, "linear", "zeros", 0.0)
    if mask is None:
        return taps
    share = mask.reshape(images, shapes.offset_group, count, positions).transpose(0, 1, 3, 2).reshape(every)
    return [tap._replace(weight=tap.weight * share) for tap in taps]


class _Shapes(NamedTuple):
    """Validated attributes of DeformConv; each tuple has one number per spatial axis."""

    kernel: tuple[int, ...]
    out: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    group: int
    offset_group: int


def _shapes(form: Form, x: Any, w: Any, offset: Any, b: Any, mask: Any) -> _Shapes:
    """Return the attributes with defaults; raise ArgumentError if inputs do not fit them."""
    rank = x.ndim - 2
    if rank < 1 or w.ndim != x.ndim or offset.ndim != x.ndim:
        raise ArgumentError(f"X {x.shape}, W {w.shape} and offset {offset.shape} must have the same three or more axes")
    strides, dilations = (tuple(form.get(name) or (1,) * rank) for name in ("strides", "dilations"))
    pads = tuple(form.get("pads") or (0, 0) * rank)
    kernel = tuple(w.shape[2:])
    if (len(strides), len(dilations), len(pads)) != (rank, rank, 2 * rank) or min(*strides, *dilations) < 1:
        raise ArgumentError(
            f"strides {strides}, dilations {dilations} and pads {pads} must have 1, 1 and 2 numbers for each of "
            f"{rank} axes, and the former must be positive"
        )
    given = form.get("kernel_shape")
    if given is not None and tuple(given) != kernel:
        raise ArgumentError(f"kernel_shape is {tuple(given)}, but W has the shape {w.shape}")
    sums = zip(x.shape[2:], kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
    out = tuple((n + begin + end - (k - 1) * d - 1) // s + 1 for n, k, s, d, begin, end in sums)
    group, offset_group = form.get("group"), form.get("offset_group")
    if x.shape[1] != w.shape[1] * group or w.shape[0] % group or x.shape[1] % offset_group:
        raise ArgumentError(
            f"X {x.shape} and W {w.shape} do not fit with group {group} and offset_group {offset_group}"
        )
    taps = offset_group * prod(kernel)
    wanted = {"offset": (x.shape[0], taps * rank, *out), "mask": (x.shape[0], taps, *out), "B": (w.shape[0],)}
    for name, array in (("offset", offset), ("mask", mask), ("B", b)):
        if array is not None and array.shape != wanted[name]:
            raise ArgumentError(f"{name} must have the shape {wanted[name]}, not {array.shape}")
    return _Shapes(kernel, out, strides, dilations, pads[:rank], group, offset_group)


def _bases(shapes: _Shapes) -> list[Any]:
    """Return, per axis, the tap positions of the undeformed convolution: (P, K) by output position and tap."""
    along = zip(_grid(shapes.out), _grid(shapes.kernel), shapes.strides, shapes.dilations, shapes.begins, strict=True)
    return [at[:, None] * stride - begin + tap * dilation for at, tap, stride, dilation, begin in along]


def _grid(extents: tuple[int, ...]) -> list[Any]:
    return [along.reshape(-1) for along in np.indices(extents)]


def _columns(x: Any, taps: list[_Tap], shapes: _Shapes) -> Any:
    """Return the im2col matrix of an image (C, D1, ...): (group, P * K, C / group)."""
    xp, channels, size = namespace(x), x.shape[0] // shapes.group, taps[0].index.shape[-1]
    shared = x.shape[0] // shapes.offset_group
    columns = xp.zeros((shapes.group, size, channels), x.dtype)
    bounds = sorted({*range(0, x.shape[0] + 1, channels), *range(0, x.shape[0] + 1, shared)})
    for low, high in pairwise(bounds):  # channels that share both their filters' group and their offsets
        pixels = _pixels(x[low:high])
        part = columns[low // channels, :, low % channels : low % channels + high - low]
        level = [_Tap(*(values[low // shared] for values in tap[:2])) for tap in taps]

        def fill(rows: slice, part: Any = part, pixels: Any = pixels, level: list[_Tap] = level) -> None:
            part[rows] = reduce(operator.iadd, (_weighted_pixels(pixels, tap, rows) for tap in level))

        step = size if on_device(x) else max(1, _BLOCK // (high - low))
        blocks = [slice(first, first + step) for first in range(0, size, step)]
        _threads.run(_threads.quietly(fill), blocks, side_by_side=not on_device(x) and _threads.pays(columns.nbytes))
    return columns


def _pixels(images: Any) -> Any:
    """Return images (C, D1, ..., Dr) as (D + 1, C): channels of a pixel adjacent, and a pixel of zeros at the end."""
    pixels = namespace(images).zeros((prod(images.shape[1:]) + 1, images.shape[0]), images.dtype)
    pixels[:-1] = images.reshape(images.shape[0], -1).T
    return pixels


def _weighted_pixels(pixels: Any, tap: _Tap, rows: slice) -> Any:
    part = namespace(pixels).take(pixels, tap.index[rows], axis=0)
    part *= tap.weight[rows, None].astype(part.dtype, copy=False)
    return part


def _deform_conv_cost(form: Form, x: Any, w: Any, offset: Any, b: Any = None, mask: Any = None) -> int:
    shapes = _shapes(form, x, w, offset, b, mask)
    columns = x.shape[0] * x.shape[1] * prod(shapes.kernel) * prod(shapes.out)
    return int(columns * (2 ** len(shapes.kernel) + w.shape[0] // shapes.group))


OPERATORS = {
    "DeformConv": Operator(_deform_conv, cost=_deform_conv_cost),
    "GridSample": Operator(_grid_sample, cost=_grid_sample_cost),
}
