"""Gradients by definition: the sum of all products that meet through a tap.

Which elements meet comes from the oracle's forward operators (answers.py); sums are computed in extended precision.
Nothing of the library is imported.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.oracle.answers import links_by_oracle
from tests.oracle.oracle import Exact, average_pool, counted_taps
from tests.oracle.strategies import Problem

Array = np.ndarray[Any, Any]


def shape_of_result(problem: Problem) -> tuple[int, ...]:
    group = problem.attributes.get("group", 1)
    assert problem.w_shape is not None
    channels = problem.w_shape[0] if problem.operator == "conv" else problem.w_shape[1] * group
    return (problem.x_shape[0], channels, *links_by_oracle(problem).shape[1:])


def input_grad(problem: Problem, dy: Array, w: Array) -> Exact:
    """Return the exact dx: each output's gradient times the weight of the tap through which it reads an input."""
    group, spatial = problem.attributes.get("group", 1), problem.x_shape[2:]
    value, magnitude = (np.zeros((*problem.x_shape[:2], math.prod(spatial)), np.longdouble) for _ in range(2))
    flat = dy.reshape(*dy.shape[:2], math.prod(dy.shape[2:])).astype(np.longdouble)
    for tap, (inputs, outputs) in _met(problem):
        of_tap = _of_groups(problem, w, tap).astype(np.longdouble)
        met = flat[:, :, outputs].reshape(dy.shape[0], group, dy.shape[1] // group, 1, len(outputs))
        with np.errstate(all="ignore"):
            products = met * of_tap[None, :, :, :, None]
            shape = (dy.shape[0], problem.x_shape[1], len(outputs))
            value[:, :, inputs] += products.sum(axis=2).reshape(shape)
            magnitude[:, :, inputs] += np.abs(products).sum(axis=2).reshape(shape)
    assert problem.w_shape is not None
    terms = math.prod(problem.w_shape[2:]) * (dy.shape[1] // group) + 1
    return _exact(value.reshape(problem.x_shape), magnitude.reshape(problem.x_shape), terms)


def weight_grad(problem: Problem, x: Array, dy: Array) -> Exact:
    """Return the exact dw: per tap, the sum of products of inputs and output gradients that meet through it."""
    group = problem.attributes.get("group", 1)
    assert problem.w_shape is not None
    value, magnitude = (np.zeros(problem.w_shape, np.longdouble) for _ in range(2))
    flat_x, flat_dy = (a.reshape(*a.shape[:2], math.prod(a.shape[2:])).astype(np.longdouble) for a in (x, dy))
    for tap, (inputs, outputs) in _met(problem):
        left = flat_dy[:, :, outputs].reshape(len(dy), group, dy.shape[1] // group, 1, len(outputs))
        right = flat_x[:, :, inputs].reshape(len(x), group, 1, x.shape[1] // group, len(inputs))
        with np.errstate(all="ignore"):
            products = left * right  # (N, G, M/G, C/G, pairs)
            _of_groups(problem, value, tap)[...] += products.sum(axis=(0, 4))
            _of_groups(problem, magnitude, tap)[...] += np.abs(products).sum(axis=(0, 4))
    return _exact(value, magnitude, len(dy) * math.prod(dy.shape[2:]) + 1)


def bias_grad(dy: Array) -> Exact:
    axes = (0, *range(2, dy.ndim))
    with np.errstate(all="ignore"):
        value, magnitude = dy.astype(np.longdouble).sum(axis=axes), np.abs(dy.astype(np.longdouble)).sum(axis=axes)
    return _exact(value, magnitude, dy.size // max(1, dy.shape[1]) + 1)


def max_pool_grad(dy: Array, indices: Array, x_shape: tuple[int, ...], storage_order: int) -> Exact:
    """Return the exact dx: each window's gradient goes to the element that its index names."""
    numbers = _numbers(x_shape, storage_order)
    place = np.empty(numbers.size, np.int64)
    place[numbers.reshape(-1)] = np.arange(numbers.size)
    value, magnitude = (np.zeros(numbers.size, np.longdouble) for _ in range(2))
    named = indices.reshape(-1) >= 0
    places, gradients = place[indices.reshape(-1)[named]], dy.reshape(-1)[named].astype(np.longdouble)
    with np.errstate(all="ignore"):
        np.add.at(value, places, gradients)
        np.add.at(magnitude, places, np.abs(gradients))
    return _exact(value.reshape(x_shape), magnitude.reshape(x_shape), max(1, dy.size) + 1)


def average_pool_grad(dy: Array, x_shape: tuple[int, ...], **attributes: Any) -> Exact:
    """Return the exact dx: each window adds its gradient divided by its count to every element that it covers."""
    spatial, kernel = x_shape[2:], attributes["kernel_shape"]
    counts = counted_taps(spatial, **attributes)
    value, magnitude = (np.zeros((*x_shape[:2], math.prod(spatial)), np.longdouble) for _ in range(2))
    forward = {name: given for name, given in attributes.items() if name != "count_include_pad"}
    numbers = np.arange(1.0, math.prod(spatial) + 1).reshape(1, 1, *spatial)
    for place in range(numbers.size):  # find the windows that cover an element by averaging a one-hot x
        alone = np.where(numbers == place + 1, 1.0, 0.0)
        times = average_pool(alone, **forward, count_include_pad=1).value[0, 0] * counted_taps(
            spatial, **forward, count_include_pad=1
        )
        meets = np.rint(times).astype(bool)
        with np.errstate(all="ignore"):
            shares = dy[:, :, meets].astype(np.longdouble) / counts[meets]
            value[:, :, place], magnitude[:, :, place] = shares.sum(axis=-1), np.abs(shares).sum(axis=-1)
    return _exact(value.reshape(x_shape), magnitude.reshape(x_shape), math.prod(kernel) + 1)


def max_unpool(y: Array, indices: Array, numbered: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Return x with every element stored at the place its index names."""
    result = np.zeros(shape, y.dtype)
    for value, index in zip(y.reshape(-1), indices.reshape(-1), strict=True):
        if index >= 0:
            result[np.unravel_index(int(index), numbered)] = value
    return result


def possible_indices(
    x_shape: tuple[int, ...], y_shape: tuple[int, ...], indices_in: str = "tensor", **attributes: Any
) -> Array:
    """Return for every window the set of its valid index values: those of its in-bounds taps, and -1."""
    numbers, rank = _numbers(x_shape, attributes.get("storage_order", 0)), len(x_shape) - 2
    strides, dilations = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
    pads, found = attributes.get("pads") or [0] * 2 * rank, np.empty(y_shape, object)
    for n, c, *q in np.ndindex(*y_shape):
        first = [at * s - pad for at, s, pad in zip(q, strides, pads[:rank], strict=True)]
        less = int(numbers[n, c].flat[0]) if indices_in == "plane" and numbers.size else 0
        found[(n, c, *q)] = {-1} | {
            int(numbers[(n, c, *place)]) - less
            for tap in np.ndindex(*attributes["kernel_shape"])
            for place in [tuple(b + t * d for b, t, d in zip(first, tap, dilations, strict=True))]
            if all(0 <= at < extent for at, extent in zip(place, x_shape[2:], strict=True))
        }
    return found


def _numbers(x_shape: tuple[int, ...], storage_order: int) -> Array:
    plane = math.prod(x_shape[2:])
    planes = np.arange(math.prod(x_shape[:2])).reshape(*x_shape[:2], *(1,) * (len(x_shape) - 2)) * plane
    return planes + np.arange(plane).reshape(x_shape[2:], order="F" if storage_order else "C")


def _met(problem: Problem) -> Any:
    """Yield each tap with the pairs of inputs and outputs that meet through it, numbered within a plane."""
    table = links_by_oracle(problem)
    assert problem.w_shape is not None
    for tap, links in zip(np.ndindex(*problem.w_shape[2:]), table, strict=True):
        flat = links.reshape(-1)
        yield tap, (flat[flat > 0] - 1, np.flatnonzero(flat > 0))


def _of_groups(problem: Problem, w: Array, tap: tuple[int, ...]) -> Array:
    """Return the weights of one tap as a view of shape (G, M/G, C/G)."""
    group = problem.attributes.get("group", 1)
    split = w[(slice(None), slice(None), *tap)].reshape(group, w.shape[0] // group, w.shape[1])
    return split if problem.operator == "conv" else split.swapaxes(1, 2)


def _exact(value: Array, magnitude: Array, terms: int) -> Exact:
    with np.errstate(all="ignore"):
        rounded = value.astype(np.float64)
        return Exact(rounded, np.where(np.isfinite(value), magnitude, np.inf).astype(np.float64), terms)
