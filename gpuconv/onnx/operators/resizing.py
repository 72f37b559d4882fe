"""Resize and Upsample: separable interpolation, one axis at a time, by nearest, linear or cubic filters.

Coordinates and weights of an axis are computed on the host in float64. The array operations are gathers and weighted
sums of slices, on NumPy or CuPy arrays.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from math import ceil, floor, inf, prod
from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError
from gpuconv.onnx.operators.form import Form, Operator, ints, namespace, saturated, wide
from gpuconv.onnx.operators.shaping import axis_of

_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic"}
_REACH = {"linear": 1, "cubic": 2}  # elements on each side of a position that have non-zero weights
_ROUNDED: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True, slots=True)
class _Axis:
    """How to resize one axis: its extent before and after, its scale, and the region of interest (start, end)."""

    axis: int
    extent: int
    result: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def _resize(form: Form, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
    """Resize, one axis at a time."""
    if form.opset < 11:
        roi, scales = None, roi
    axes = _axes(form, x, roi, scales, sizes)
    transform = form.get("coordinate_transformation_mode") or "asymmetric"
    interpolate = _nearest if _MODES[form.get("mode")] == "nearest" else _filtered if _is_filtered(form) else _linear
    y = x if interpolate is _nearest else wide(x)
    outside: list[tuple[int, Any]] = []
    for spec in axes:
        if spec.extent == spec.result and spec.scale == 1 and transform != "tf_crop_and_resize":
            continue
        at = _coordinates(spec, transform)
        y = interpolate(form, y, spec, at)
        if transform == "tf_crop_and_resize":
            outside.append((spec.axis, (at < 0) | (at > spec.extent - 1)))
    y = _extrapolated(y, outside, form.get("extrapolation_value"))
    # weighted sums, in which some weights are negative
    if y.dtype.kind == "f" and x.dtype.kind in "iu" and _is_filtered(form):
        return saturated(namespace(y).rint(y), x.dtype)
    return y.astype(x.dtype, copy=y is x)


def _is_filtered(form: Form) -> bool:
    """Return whether results are filtered by more than two neighbours (cubic, or antialiased)."""
    return _MODES[form.get("mode")] == "cubic" or bool(form.get("antialias"))


def _cost(form: Form, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> int:
    """Return an upper bound of the elements computed, intermediate results included: axes may grow before others
    shrink.
    """
    axes = _axes(form, x, roi, roi if form.opset < 11 else scales, sizes)
    growth = prod(-(-spec.result // spec.extent) for spec in axes if spec.result > spec.extent)
    return int(x.size) * growth * (2 * _REACH.get(_MODES[form.get("mode")], 1) if _is_filtered(form) else 1)


def _axes(form: Form, x: Any, roi: Any, scales: Any, sizes: Any) -> list[_Axis]:
    """Return the axes to resize, from scales or sizes."""
    chosen = form.get("axes")
    axes = [axis_of(axis, x.ndim) for axis in (range(x.ndim) if chosen is None else chosen)]
    extents = [x.shape[axis] for axis in axes]
    if sizes is not None and np.size(sizes):
        if scales is not None and np.size(scales):
            raise ArgumentError("either scales or sizes must be given, not both")
        results, factors = _sizes(form, extents, ints(sizes))
    elif scales is not None and np.size(scales) == len(axes):
        factors = [float(scale) for scale in np.asarray(scales)]
        if not all(0 < factor < inf for factor in factors):
            raise ArgumentError(f"the scales {factors} must be finite and greater than 0")
        results = [floor(extent * np.float32(scale)) for extent, scale in zip(extents, factors, strict=True)]
    else:
        raise ArgumentError(f"either scales or sizes must have one entry for each of the {len(axes)} axes")
    region = np.asarray(roi, np.float64) if roi is not None and np.size(roi) == 2 * len(axes) else None
    starts, ends = ([0.0] * len(axes), [1.0] * len(axes)) if region is None else region.reshape(2, -1).tolist()
    return [_Axis(*spec) for spec in zip(axes, extents, results, factors, starts, ends, strict=True)]


def _sizes(form: Form, extents: list[int], sizes: list[int]) -> tuple[list[int], list[float]]:
    """Return sizes and scales; a keep_aspect_ratio_policy other than "stretch" uses one scale for all axes."""
    if len(sizes) != len(extents):
        raise ArgumentError(f"sizes has {len(sizes)} entries, but {len(extents)} axes are resized")
    if any(size < 1 if extent else size for size, extent in zip(sizes, extents, strict=True)):
        raise ArgumentError(f"the sizes {sizes} must be at least 1, and 0 for axes without elements (x has {extents})")
    factors = [size / extent if extent else 1.0 for size, extent in zip(sizes, extents, strict=True)]
    policy = form.get("keep_aspect_ratio_policy") or "stretch"
    if policy == "stretch":
        return sizes, factors
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [floor(extent * factor + 0.5) for extent in extents], [factor] * len(extents)


def _coordinates(spec: _Axis, transform: str) -> Any:
    """Return the position of each output element in input coordinates, by coordinate_transformation_mode."""
    q = np.arange(spec.result, dtype=np.float64)
    if transform == "asymmetric":
        return q / spec.scale
    if transform == "align_corners":
        last = spec.scale * spec.extent - 1  # not rounded to an integer, as in the specification's own tests
        return q * (spec.extent - 1) / last if spec.result > 1 else np.zeros_like(q)
    if transform == "tf_crop_and_resize":
        if spec.result == 1:
            return q + 0.5 * (spec.start + spec.end) * (spec.extent - 1)
        return spec.start * (spec.extent - 1) + q * (spec.end - spec.start) * (spec.extent - 1) / (spec.result - 1)
    if transform == "tf_half_pixel_for_nn":
        return (q + 0.5) / spec.scale
    if transform == "pytorch_half_pixel" and spec.result == 1:
        return np.zeros_like(q)
    centred = (q + 0.5) / spec.scale - 0.5
    if transform in ("half_pixel", "pytorch_half_pixel"):
        return centred
    if transform == "half_pixel_symmetric":
        return centred + spec.extent / 2 * (1 - spec.result / (spec.scale * spec.extent))
    raise ArgumentError(f"coordinate_transformation_mode {transform!r} is not one of the specification's")


def _nearest(form: Form, x: Any, spec: _Axis, at: Any) -> Any:
    """Nearest neighbour."""
    return _gather(x, spec, _ROUNDED[form.get("nearest_mode") or "floor"](at))


def _gather(x: Any, spec: _Axis, places: Any) -> Any:
    """Return elements at positions along an axis; positions out of bounds take the edge element."""
    xp = namespace(x)
    return xp.take(x, xp.asarray(np.clip(places, 0, spec.extent - 1).astype(np.int64)), axis=spec.axis)


def _linear(_: Form, x: Any, spec: _Axis, at: Any) -> Any:
    """Linear interpolation between the two neighbours of each position."""
    low = np.floor(at)
    share = at - low
    return _weighted_sum(x, spec, [(low, 1 - share), (low + 1, share)])


def _filtered(form: Form, x: Any, spec: _Axis, at: Any) -> Any:
    """Weighted mean of the neighbours of each position.

    With antialias, the filter is widened by 1 / scale when an axis shrinks.
    """
    mode, antialias = _MODES[form.get("mode")], form.get("antialias")
    narrow = min(spec.scale, 1.0) if antialias else 1.0
    reach = _REACH[mode] / narrow
    places = (np.floor(at - reach) + 1)[:, None] + np.arange(ceil(2 * reach))
    distance = np.abs(places - at[:, None]) * narrow
    weights = np.maximum(0, 1 - distance) if mode == "linear" else cubic(distance, form.get("cubic_coeff_a"))
    if form.get("exclude_outside"):
        weights = np.where((places < 0) | (places > spec.extent - 1), 0, weights)
    if antialias or form.get("exclude_outside"):
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    return _weighted_sum(x, spec, zip(places.T, weights.T, strict=True))


def cubic(distance: Any, a: float) -> Any:
    """Return Keys's cubic kernel (1981) at a distance: 1 at 0, and 0 at 1, at 2 and beyond."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    where = namespace(distance).where
    return where(distance <= 1, near, where(distance < 2, far, distance * 0))


def _weighted_sum(x: Any, spec: _Axis, terms: Iterable[tuple[Any, Any]]) -> Any:
    """Return the sum of elements at positions along an axis, times their weights."""
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    after = (1,) * (x.ndim - 1 - spec.axis)
    parts = (
        _gather(x, spec, places) * namespace(x).asarray(weights.astype(dtype)).reshape(-1, *after)
        for places, weights in terms
    )
    return reduce(operator.iadd, parts)


def _extrapolated(y: Any, outside: list[tuple[int, Any]], value: Any) -> Any:
    """Replace outputs whose coordinates are out of bounds by the extrapolation value (tf_crop_and_resize)."""
    for axis, places in outside:
        if places.any():
            mask = namespace(y).asarray(places).reshape(-1, *(1,) * (y.ndim - 1 - axis))
            y = namespace(y).where(mask, value, wide(y)).astype(y.dtype, copy=False)
    return y


def _is_known(form: Form) -> bool:
    return form.get("mode") in _MODES


def _upsample(form: Form, x: Any, scales: Any = None) -> Any:
    """Upsample, as the Resize of opset 10 with scales of at least 1."""
    scales = form.get("scales") if form.opset < 9 else scales
    if scales is not None and np.size(scales) and not np.min(scales) >= 1:
        raise ArgumentError(f"the scales {np.asarray(scales).tolist()} must be at least 1; Resize makes axes smaller")
    return _resize(Form(10, {"mode": form.get("mode")}), x, scales)


def _upsample_cost(form: Form, x: Any, scales: Any = None) -> int:
    return _cost(Form(10, {"mode": form.get("mode")}), x, form.get("scales") if form.opset < 9 else scales)


def _has_scales(form: Form) -> bool:
    return form.opset >= 7 and _is_known(form)


OPERATORS = {
    "Resize": Operator(_resize, frozenset({1, 2, 3}), _is_known, _cost),
    "Upsample": Operator(_upsample, frozenset({1}), _has_scales, _upsample_cost),
}
