"""Operators of object detectors: TopK, NonMaxSuppression and RoiAlign."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import starmap
from math import prod
from operator import add
from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError
from gpuconv.onnx.operators.form import Form, Operator, namespace, only_int, wide
from gpuconv.onnx.operators.shaping import axis_of

_LONG = 512  # elements per row from which TopK preselects candidates before it sorts
_BOXES = 128  # boxes per block of NonMaxSuppression
_GATHERED = 2**20  # elements gathered at a time by RoiAlign
_MOST_SAMPLES = 2**20  # samples per bin; regions that need more come from corrupt coordinates and would exhaust memory

# --- TopK -------------------------------------------------------------------------------------------------------------


def _top_k(form: Form, x: Any, k: Any = None) -> Any:
    """TopK with a stable sort: among equal elements the lowest index comes first; NaN counts as largest.

    Long rows of NumPy arrays are first reduced to k candidates by a linear-time partition.
    """
    axis = axis_of(form.get("axis"), x.ndim)
    count, extent = only_int("k", form.get("k") if form.opset < 10 else k), x.shape[axis]
    if not 0 <= count <= extent:
        raise ArgumentError(f"k is {count}, but axis {axis} of x.shape={x.shape} has {extent} elements")
    largest = form.get("largest") != 0
    xp, rows = namespace(x), wide(x).swapaxes(axis, -1)
    if (
        isinstance(x, np.ndarray)
        and extent >= max(_LONG, 4 * count)
        and count
        and not np.isnan(np.max(rows, initial=0))
    ):
        candidates = _candidates(rows, count, largest)
        first = _first(xp, np.take_along_axis(rows, candidates, -1), count, largest)
        indices = np.take_along_axis(candidates, first, -1)
    else:
        indices = _first(xp, rows, count, largest)
    indices = indices.swapaxes(axis, -1).astype(np.int64)
    return xp.take_along_axis(x, indices, axis), indices


def _first(xp: Any, rows: Any, count: int, largest: bool) -> Any:
    """Return the indices of the ``count`` largest or smallest elements of each row, sorted."""
    if not largest:
        return xp.argsort(rows, axis=-1, kind="stable")[..., :count]
    ascending = xp.argsort(rows[..., ::-1], axis=-1, kind="stable")
    return rows.shape[-1] - 1 - ascending[..., ::-1][..., :count]


def _candidates(rows: Any, count: int, largest: bool) -> Any:
    """Return, in ascending order, the indices of the ``count`` first elements of each row; rows contain no NaN."""
    place = rows.shape[-1] - count if largest else count - 1
    edge = np.partition(rows, place, axis=-1)[..., place : place + 1]
    chosen, equal = (rows > edge if largest else rows < edge), rows == edge
    missing = count - np.count_nonzero(chosen, axis=-1, keepdims=True)
    if np.any(np.count_nonzero(equal, axis=-1, keepdims=True) > missing):
        equal &= np.cumsum(equal, axis=-1) <= missing
    return np.nonzero(chosen | equal)[-1].reshape(*rows.shape[:-1], count)


# --- NonMaxSuppression ------------------------------------------------------------------------------------------------


def _non_max_suppression(
    form: Form, boxes: Any, scores: Any, max_boxes: Any = None, iou_threshold: Any = None, score_threshold: Any = None
) -> Any:
    """NonMaxSuppression: select the best boxes of each class, on the host, since the output's size depends on data."""
    limit = 0 if max_boxes is None else int(max_boxes.reshape(-1)[0])
    iou_threshold = np.float32(0 if iou_threshold is None else iou_threshold.reshape(-1)[0])
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape != (scores.shape[0], scores.shape[2], 4):
        raise ArgumentError(
            f"boxes must have the shape (batches, boxes, 4) and scores (batches, classes, boxes), "
            f"not {boxes.shape} and {scores.shape}"
        )
    indices = [np.empty((0, 3), np.int64)]
    for batch, (corners, of_classes) in enumerate(zip(_corners(form, boxes), scores, strict=True)):
        for class_, values in enumerate(of_classes if limit > 0 else ()):
            chosen = (
                np.arange(values.size)
                if score_threshold is None
                else np.nonzero(values > score_threshold.reshape(-1)[0])[0]
            )
            order = chosen[np.argsort(-values[chosen], kind="stable")]
            selected = order[_suppress(corners[:, order], iou_threshold, limit)]
            indices.append(np.stack([np.full_like(selected, batch), np.full_like(selected, class_), selected], axis=1))
    return np.concatenate(indices)


def _corners(form: Form, boxes: Any) -> Any:
    """Return the boxes of each batch entry as an array (4, boxes): y min, x min, y max, x max."""
    parts = np.moveaxis(boxes.astype(np.float32, copy=False), -1, 0)
    if form.get("center_point_box"):
        x, y, width, height = parts
        low, high = (y - height / 2, x - width / 2), (y + height / 2, x + width / 2)
    else:
        low, high = np.minimum(parts[:2], parts[2:]), np.maximum(parts[:2], parts[2:])
    return np.stack([*low, *high], axis=1)


def _suppress(corners: Any, overlap: Any, limit: int) -> list[int]:
    """Return the indices of boxes, sorted by score, that overlap no box selected before, at most ``limit``.

    Boxes are processed in blocks: first against all selected ones, then among themselves.
    """
    selected: list[int] = []
    for start in range(0, corners.shape[1], _BOXES):
        block = np.arange(start, min(start + _BOXES, corners.shape[1]))
        if selected:
            block = block[~_overlaps(corners[:, selected], corners[:, block], overlap).any(axis=0)]
        overlaps = _overlaps(corners[:, block], corners[:, block], overlap)
        free = np.ones(block.size, np.bool_)
        for at, box in enumerate(block.tolist()):
            if free[at]:
                selected.append(box)
                if len(selected) == limit:
                    return selected
                free &= ~overlaps[at]
    return selected


def _overlaps(a: Any, b: Any, threshold: Any) -> Any:
    """Return a matrix of pairs whose intersection over union exceeds ``threshold``; boxes without area never do."""
    a = a[:, :, None]
    height = np.minimum(a[2], b[2]) - np.maximum(a[0], b[0])
    width = np.minimum(a[3], b[3]) - np.maximum(a[1], b[1])
    shared = height * width
    of_a, of_b = ((corners[2] - corners[0]) * (corners[3] - corners[1]) for corners in (a, b))
    with np.errstate(all="ignore"):
        valid = (height > 0) & (width > 0) & (shared > 0) & (of_a > 0) & (of_b > 0)
        return valid & (shared / (of_a + of_b - shared) > threshold)


def _suppression_cost(_: Form, boxes: Any, scores: Any, *__: Any) -> int:
    return int(scores.size) * min(int(boxes.shape[1]), _BOXES)


# --- RoiAlign ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Samples:
    """Bilinear sampling positions along one axis, for regions that share a sampling grid.

    Arrays have the shape (regions, outputs * grid).

    Attributes
    ----------
    below, above : array of int64
        Indices of the two neighbouring pixels.
    share : array of float32
        Weight of the pixel ``above``; that of ``below`` is 1 - share.
    inside : array of bool
        Whether the sample lies in the image; others contribute 0.
    """

    below: Any
    above: Any
    share: Any
    inside: Any


def _roi_align(form: Form, x: Any, rois: Any, batches: Any) -> Any:
    """RoiAlign: pool each region of interest from bilinear samples, for regions with equal sampling grids together."""
    xp, (images, channels, *extents) = namespace(x), x.shape
    batches = batches.reshape(-1)
    if rois.shape != (batches.size, 4):
        raise ArgumentError(f"rois of shape {rois.shape} must have the shape ({batches.size}, 4), as batch_indices has")
    if batches.size and not 0 <= int(batches.min()) <= int(batches.max()) < images:
        raise ArgumentError(f"batch_indices has {batches.min()} to {batches.max()}, but x.shape={x.shape}")
    outputs = form.get("output_height"), form.get("output_width")
    starts, sizes, grids = _regions(form, wide(rois), outputs)
    pixels = wide(x).transpose(0, 2, 3, 1).reshape(-1, channels)
    y = xp.zeros((batches.size, *outputs, channels), pixels.dtype)
    for chosen, grid in _regions_by_grid(grids, channels * outputs[0] * outputs[1]):
        axes = [_sampled(starts[chosen, at], sizes[chosen, at], outputs[at], grid[at], extents[at]) for at in (0, 1)]
        first = batches[chosen].astype(np.int64)[:, None] * extents[0]
        y[xp.asarray(chosen)] = _pooled(pixels, axes, first, extents[1], outputs, grid, form.get("mode"))
    return y.transpose(0, 3, 1, 2).astype(x.dtype, order="C")


def _regions(form: Form, rois: Any, outputs: tuple[int, int]) -> tuple[Any, Any, Any]:
    """Return start, bin size and samples per bin of each region, along y and x: three arrays (regions, 2)."""
    centred = (form.get("coordinate_transformation_mode") or "output_half_pixel") == "half_pixel"
    scaled = rois * rois.dtype.type(form.get("spatial_scale")) - rois.dtype.type(0.5 if centred else 0)
    starts, sizes = scaled[:, 1::-1], scaled[:, 3:1:-1] - scaled[:, 1::-1]
    bins = (sizes if centred else np.maximum(sizes, 1)) / rois.dtype.type(1) / np.asarray(outputs, rois.dtype)
    ratio = form.get("sampling_ratio")
    if ratio > 0:
        return starts, bins, np.full(bins.shape, ratio)
    grids = np.fmin(np.fmax(np.ceil(bins), 0), _MOST_SAMPLES + 1).astype(np.int64)  # NaN becomes 0 samples
    if (samples := int(grids.prod(axis=1).max(initial=0))) > _MOST_SAMPLES:
        raise ArgumentError(
            f"a region has bins of {samples} samples or more, but {_MOST_SAMPLES} are the most; set sampling_ratio, or "
            "check rois and spatial_scale"
        )
    return starts, bins, grids


def _regions_by_grid(grids: Any, per_sample: int) -> Iterator[tuple[Any, tuple[int, int]]]:
    """Yield blocks of regions with the same sampling grid, limited by memory; regions without samples are skipped."""
    for grid in np.unique(grids, axis=0):
        samples = int(grid.prod())
        if samples:
            regions = np.nonzero((grids == grid).all(axis=1))[0]
            step = max(1, _GATHERED // max(1, samples * per_sample))
            for low in range(0, regions.size, step):
                yield regions[low : low + step], (int(grid[0]), int(grid[1]))


def _sampled(starts: Any, bins: Any, outputs: int, grid: int, extent: int) -> _Samples:
    """Return the sampling positions along one axis; positions up to one pixel outside are clamped to the edge."""
    half = starts.dtype.type(0.5)
    at = np.arange(outputs * grid).reshape(1, -1)
    bin_, step = (at // grid).astype(starts.dtype), (at % grid).astype(starts.dtype)
    place = starts[:, None] + bin_ * bins[:, None] + (step + half) * bins[:, None] / starts.dtype.type(grid)
    inside = (place >= -1) & (place <= extent)
    place = np.clip(np.where(inside, place, 0), 0, extent - 1)
    below = place.astype(np.int64)
    return _Samples(below, np.minimum(below + 1, extent - 1), place - below.astype(place.dtype), inside)


def _pooled(
    pixels: Any,
    axes: list[_Samples],
    first: Any,
    width: int,
    outputs: tuple[int, int],
    grid: tuple[int, int],
    mode: str,
) -> Any:
    """Return pooled regions (regions, output height, output width, C) from the weighted four neighbours of each
    sample.
    """
    xp, (down, across) = namespace(pixels), axes
    inside = (down.inside[:, :, None] & across.inside[:, None, :]).astype(down.share.dtype)
    corners = [
        (rows, columns, share_down[:, :, None] * share_across[:, None, :] * inside)
        for rows, share_down in ((down.below, 1 - down.share), (down.above, down.share))
        for columns, share_across in ((across.below, 1 - across.share), (across.above, across.share))
    ]

    def weighted(rows: Any, columns: Any, weights: Any) -> Any:
        places = ((first + rows) * width)[:, :, None] + columns[:, None, :]
        return xp.take(pixels, xp.asarray(places.reshape(-1)), axis=0) * xp.asarray(weights.reshape(-1, 1))

    y = reduce(add if mode == "avg" else xp.maximum, starmap(weighted, corners))
    bins = y.reshape(first.shape[0], outputs[0], grid[0], outputs[1], grid[1], pixels.shape[1])
    return xp.sum(bins, axis=(2, 4)) / prod(grid) if mode == "avg" else xp.max(bins, axis=(2, 4))


def _roi_align_cost(form: Form, x: Any, rois: Any, _: Any) -> int:
    """Return the number of samples if every region covered the whole image."""
    bins: int = form.get("output_height") * form.get("output_width")
    grid: int = form.get("sampling_ratio") ** 2 or max(x.shape[2:]) ** 2
    return int(rois.shape[0]) * int(x.shape[1]) * bins * grid + int(x.size)


OPERATORS = {
    "NonMaxSuppression": Operator(_non_max_suppression, frozenset(range(5)), cost=_suppression_cost),
    "RoiAlign": Operator(_roi_align, frozenset({1, 2}), cost=_roi_align_cost),
    "TopK": Operator(_top_k, frozenset({1})),
}
