"""Resize and Upsample, nearest and linear: axis by axis, each output from one element or from two neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import floor, prod
from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError
from gpuconv.onnx.operators.form import Form, Operator, ints, namespace, wide
from gpuconv.onnx.operators.shaping import axis_of

_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear"}
_ROUNDED: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True, slots=True)
class _Axis:
    """How one axis is resized; start and end are the region of interest."""

    axis: int
    extent: int
    result: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def _resize(form: Form, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
    if form.opset < 11:
        roi, scales = None, roi
    axes = _axes(form, x, roi, scales, sizes)
    transform = form.get("coordinate_transformation_mode") or "asymmetric"
    nearest = form.get("nearest_mode") or "floor"
    y = wide(x) if _MODES[form.get("mode")] == "linear" else x
    outside: list[tuple[int, Any]] = []
    for one in axes:
        if one.extent == one.result and one.scale == 1 and transform != "tf_crop_and_resize":
            continue
        at = _coordinates(one, transform)
        y = _picked(y, one, _ROUNDED[nearest](at)) if _MODES[form.get("mode")] == "nearest" else _mixed(y, one, at)
        if transform == "tf_crop_and_resize":
            outside.append((one.axis, (at < 0) | (at > one.extent - 1)))
    return _extrapolated(y, outside, form.get("extrapolation_value")).astype(x.dtype, copy=y is x)


def _cost(form: Form, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> int:
    """Count what is between two axes, too: one may grow before another one shrinks."""
    axes = _axes(form, x, roi, roi if form.opset < 11 else scales, sizes)
    return int(x.size) * prod(-(-one.result // one.extent) for one in axes if one.result > one.extent)


def _axes(form: Form, x: Any, roi: Any, scales: Any, sizes: Any) -> list[_Axis]:
    chosen = form.get("axes")
    along = [axis_of(axis, x.ndim) for axis in (range(x.ndim) if chosen is None else chosen)]
    extents = [x.shape[axis] for axis in along]
    if sizes is not None and np.size(sizes):
        results, factors = _sizes(form, extents, ints(sizes))
    elif scales is not None and np.size(scales) == len(along):
        factors = [float(scale) for scale in np.asarray(scales)]
        results = [floor(extent * np.float32(scale)) for extent, scale in zip(extents, factors, strict=True)]
    else:
        raise ArgumentError(f"either scales or sizes must have one entry for each of the {len(along)} axes")
    region = np.asarray(roi, np.float64) if roi is not None and np.size(roi) == 2 * len(along) else None
    starts, ends = ([0.0] * len(along), [1.0] * len(along)) if region is None else region.reshape(2, -1).tolist()
    return [_Axis(*one) for one in zip(along, extents, results, factors, starts, ends, strict=True)]


def _sizes(form: Form, extents: list[int], wanted: list[int]) -> tuple[list[int], list[float]]:
    """Return sizes and scales; where the proportions are kept, one scale decides."""
    if len(wanted) != len(extents):
        raise ArgumentError(f"sizes has {len(wanted)} entries, but {len(extents)} axes are resized")
    factors = [size / extent for size, extent in zip(wanted, extents, strict=True)]
    policy = form.get("keep_aspect_ratio_policy") or "stretch"
    if policy == "stretch":
        return wanted, factors
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [floor(extent * factor + 0.5) for extent in extents], [factor] * len(extents)


def _coordinates(one: _Axis, transform: str) -> Any:
    """Return where each element of the result lies among those of the input."""
    q = np.arange(one.result, dtype=np.float64)
    if transform == "asymmetric":
        return q / one.scale
    if transform == "align_corners":
        last = one.scale * one.extent - 1  # not rounded, as the specification's own tests have it
        return q * (one.extent - 1) / last if one.result > 1 else np.zeros_like(q)
    if transform == "tf_crop_and_resize":
        if one.result == 1:
            return q + 0.5 * (one.start + one.end) * (one.extent - 1)
        return one.start * (one.extent - 1) + q * (one.end - one.start) * (one.extent - 1) / (one.result - 1)
    if transform == "tf_half_pixel_for_nn":
        return (q + 0.5) / one.scale
    if transform == "pytorch_half_pixel" and one.result == 1:
        return np.zeros_like(q)
    centred = (q + 0.5) / one.scale - 0.5
    if transform in ("half_pixel", "pytorch_half_pixel"):
        return centred
    if transform == "half_pixel_symmetric":
        return centred + one.extent / 2 * (1 - one.result / (one.scale * one.extent))
    raise ArgumentError(f"coordinate_transformation_mode {transform!r} is not one of the specification's")


def _picked(x: Any, one: _Axis, at: Any) -> Any:
    return _taken(x, one, np.clip(at, 0, one.extent - 1).astype(np.int64))


def _taken(x: Any, one: _Axis, indices: Any) -> Any:
    xp = namespace(x)
    return xp.take(x, xp.asarray(indices), axis=one.axis)


def _mixed(x: Any, one: _Axis, at: Any) -> Any:
    """Return the mean of the two neighbours of each place, weighted by their nearness; the edge goes on outside."""
    low = np.floor(at)
    share = at - low
    below, above = (np.clip(low + step, 0, one.extent - 1).astype(np.int64) for step in (0, 1))
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    after = (1,) * (x.ndim - 1 - one.axis)
    weights = [namespace(x).asarray(part.astype(dtype)).reshape(-1, *after) for part in (1 - share, share)]
    return _taken(x, one, below) * weights[0] + _taken(x, one, above) * weights[1]


def _extrapolated(y: Any, outside: list[tuple[int, Any]], value: Any) -> Any:
    for axis, places in outside:
        if places.any():
            mask = namespace(y).asarray(places).reshape(-1, *(1,) * (y.ndim - 1 - axis))
            y = namespace(y).where(mask, value, wide(y)).astype(y.dtype, copy=False)
    return y


def _is_nearest_or_linear(form: Form) -> bool:
    return form.get("mode") in _MODES and not form.get("antialias")


def _upsample(form: Form, x: Any, scales: Any = None) -> Any:
    scales = form.get("scales") if form.opset < 9 else scales
    return _resize(Form(10, {"mode": form.get("mode")}), x, scales)


def _upsample_cost(form: Form, x: Any, scales: Any = None) -> int:
    return _cost(Form(10, {}), x, form.get("scales") if form.opset < 9 else scales)


def _has_scales(form: Form) -> bool:
    return form.opset >= 7 and _is_nearest_or_linear(form)


OPERATORS = {
    "Resize": Operator(_resize, frozenset({1, 2, 3}), _is_nearest_or_linear, _cost),
    "Upsample": Operator(_upsample, frozenset({1}), _has_scales, _upsample_cost),
}
