"""Sums over windows, one axis after the other: every element is added, and nothing taken off again."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np

from gpuconv.cpu._workspace import SCRATCH, Array
from gpuconv.cpu.pool._windows import Axis, over_all


def sums(x: Array, axes: Sequence[Axis]) -> Array:
    """Return the sums of all windows over ``axes``, in the dtype of x; x itself where each window is one element."""
    if axes and all(axis.count == 1 and axis.offsets == range(axis.extent) for axis in axes):
        return np.add.reduce(x, axis=tuple(axis.position for axis in axes), keepdims=True)
    for axis in axes:
        if not axis.trivial:
            x = _along(x, axis)
    return x


def _along(x: Array, axis: Axis) -> Array:
    """Add up windows along an axis: each from its first tap inside to its last, whichever way takes fewer steps."""
    total = np.empty((*x.shape[: axis.position], axis.count, *x.shape[axis.position + 1 :]), x.dtype)
    if over_all(np.add, x, total, axis, SCRATCH):
        return total
    total.fill(0)
    taps = len(axis.offsets)
    if axis.count < min(taps, axis.extent):
        _add_by_outputs(x, total, axis)
    elif axis.extent < taps:
        _add_by_inputs(x, total, axis)
    else:
        _add_by_taps(x, total, axis)
    return total


def _add_by_taps(x: Array, total: Array, along: Axis) -> None:
    for reads, writes in along.taps():
        total[along.at(writes)] += x[along.at(reads)]


def _add_by_inputs(x: Array, total: Array, along: Axis) -> None:
    """Add every input to the outputs that have it in their window: every so many, where taps are apart."""
    stride, offsets = along.stride, along.offsets
    common = gcd(stride, offsets.step)
    every = offsets.step // common
    inverse = pow(stride // common, -1, every)
    for index in range(along.extent):
        away = index - offsets[0]  # a window has the input if so far from its start there is a tap
        if away % common == 0:
            low = max(0, -((offsets[-1] - index) // stride))
            low += (away // common * inverse - low) % every
            high = min(along.count, away // stride + 1)
            if low < high:
                total[along.at(slice(low, high, every))] += x[along.at(slice(index, index + 1))]


def _add_by_outputs(x: Array, total: Array, along: Axis) -> None:
    for q in range(along.count):
        low, high = along.inside(q)
        if low < high:
            start = q * along.stride + along.offsets[low]
            inside = x[along.at(slice(start, start + (high - low - 1) * along.offsets.step + 1, along.offsets.step))]
            # Sums one after the other, as the other ways make them; NumPy's sum has another order.
            total[along.at(slice(q, q + 1))] += np.add.accumulate(inside, along.position)[along.at(slice(-1, None))]
