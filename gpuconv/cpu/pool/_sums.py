"""Separable window sums for AveragePool: one 1-D pass per spatial axis. Elements are added only, never subtracted.

A running sum would be faster but loses accuracy, and lets an infinity spoil later windows. Along an axis, one of three
loops (over taps, inputs or outputs) is chosen by the number of NumPy calls. All add a window's elements in the order
of its taps, so the bits do not depend on the loop, on other windows, or on strides in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np

from gpuconv.cpu._workspace import SCRATCH, Array
from gpuconv.cpu.pool._windows import Axis, is_worth_moving, over_all

_ACCUMULATED = 2**14  # elements per call


def sums(
    x: Array, axes: Sequence[Axis], dtype: np.dtype[Any], *, is_single: bool = False, may_move: bool = True
) -> Array:
    """Return the sums of all windows over ``axes`` in a dtype, in scratch memory; x itself if no axis has a window.

    ``is_single``: there is one window; if it is all of x, it is summed in NumPy's order. ``may_move``: x may be
    transposed, so that the axis to be summed comes first and inner loops are long.
    """
    if is_single and axes and all(axis.count == 1 and axis.offsets == range(axis.extent) for axis in axes):
        return np.add.reduce(x, axis=tuple(axis.position for axis in axes), keepdims=True)
    order = list(range(x.ndim))  # the argument's axis that each current axis is
    for number, axis in enumerate(axis for axis in axes if not axis.trivial):
        place = order.index(axis.position)
        here = axis if place == axis.position else replace(axis, position=place)
        total = _total(x, here, dtype, number)
        if x.dtype != dtype or not over_all(np.add, x, total, here, SCRATCH):
            if (may_move or number) and is_worth_moving(x.shape, here, in_turn=True):
                turned = x.transpose(*range(place, x.ndim), *range(place))
                x = SCRATCH.take("moved", turned.shape, dtype)
                np.copyto(x, turned)
                order = order[place:] + order[:place]
                here = replace(axis, position=0)
                total = _total(x, here, dtype, number)
            _add(x, total, here)
        x = total
    return x if order == sorted(order) else x.transpose([order.index(axis) for axis in range(x.ndim)])


def _total(x: Array, axis: Axis, dtype: np.dtype[Any], number: int) -> Array:
    shape = (*x.shape[: axis.position], axis.count, *x.shape[axis.position + 1 :])
    return SCRATCH.take(f"sums {number % 2}", shape, dtype)


def _add(x: Array, total: Array, axis: Axis) -> None:
    """Sum the windows along an axis, each from its first in-bounds tap to its last."""
    total.fill(0)
    taps = len(axis.offsets)
    if axis.count < min(taps, axis.extent):
        _add_by_outputs(x, total, axis)
    elif axis.extent < taps:
        _add_by_inputs(x, total, axis)
    else:
        _add_by_taps(x, total, axis)


def _add_by_taps(x: Array, total: Array, along: Axis) -> None:
    for reads, writes in along.taps():
        total[along.at(writes)] += x[along.at(reads)]


def _add_by_inputs(x: Array, total: Array, along: Axis) -> None:
    """Add every input to the outputs whose windows contain it; with dilation, these are a constant step apart."""
    stride, offsets = along.stride, along.offsets
    common = gcd(stride, offsets.step)
    every = offsets.step // common
    inverse = pow(stride // common, -1, every)
    for index in range(along.extent):
        away = index - offsets[0]  # a window contains the input if it has a tap at this distance from its start
        if away % common == 0:
            low = max(0, -((offsets[-1] - index) // stride))
            low += (away // common * inverse - low) % every
            high = min(along.count, away // stride + 1)
            if low < high:
                total[along.at(slice(low, high, every))] += x[along.at(slice(index, index + 1))]


def _add_by_outputs(x: Array, total: Array, along: Axis) -> None:
    # NumPy's add.reduce is sequential along an axis, unless that axis is innermost in memory.
    step = x.strides[along.position]
    inner = zip(x.shape[along.position + 1 :], x.strides[along.position + 1 :], strict=True)
    nearer = [stride for size, stride in inner if size > 1]
    in_turn = bool(nearer) and all(0 < stride < step for stride in nearer)
    for reads, writes in along.windows():
        inside, place = x[along.at(reads)], total[along.at(writes)]
        if in_turn:
            np.add.reduce(inside, axis=along.position, dtype=total.dtype, out=place, keepdims=True, initial=0)
        else:
            _accumulate(inside, place, along)


def _accumulate(inside: Array, place: Array, along: Axis) -> None:
    """Add the elements along an axis to ``place`` sequentially; NumPy's own sum is pairwise."""
    taps = inside.shape[along.position]
    step = max(1, _ACCUMULATED * taps // inside.size)
    for first in range(0, taps, step):
        part = np.concatenate([place, inside[along.at(slice(first, first + step))]], along.position, dtype=place.dtype)
        place[...] = np.add.accumulate(part, along.position, out=part)[along.at(slice(-1, None))]
