"""Random problems with as many spatial axes as arrays can have, and their operands in either layout."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from tests.oracle.strategies import Axis, Problem, transposed_axis, window_axis

Array = np.ndarray[Any, Any]


def _one(random: Random) -> tuple[Axis, int]:
    """Return an axis of one element, with its output padding."""
    return Axis(1, 1, random.randint(1, 3), random.randint(1, 3), 0, 0), 0


def _over_padding(random: Random, operator: str) -> tuple[Axis, int]:
    """Return an axis of one element under a kernel of 2 or 3, most of whose taps read padding."""
    k, d, s = random.choice((2, 3)), random.randint(1, 2), random.randint(1, 2)
    begin = random.randrange(k) * d
    if operator == "conv_transpose":  # pads crop the output
        return Axis(1, k, s, d, begin, (k - 1) * d - begin), 0
    return Axis(1, k, s, d, begin, (k - 1) * d - begin + random.randint(0, 1)), 0


def _axes(random: Random, operator: str, rank: int) -> tuple[list[Axis], list[int]]:
    """Return two ordinary axes, four of one element with a wider kernel, and the rest of one element; shuffled."""
    if operator == "conv_transpose":
        usual = [transposed_axis(random, 3) for _ in range(2)]
    else:
        usual = [(window_axis(random, 3), 0) for _ in range(2)]
    axes = [*usual, *(_over_padding(random, operator) for _ in range(4))]
    axes += [_one(random) for _ in range(rank - len(axes))]
    random.shuffle(axes)
    return [axis for axis, _ in axes], [more for _, more in axes]


def high_problem(random: Random, operator: str, rank: int) -> Problem:
    axes, more = _axes(random, operator, rank)
    group = random.choice((1, 2))
    attributes: dict[str, Any] = {
        "dilations": [axis.d for axis in axes],
        "pads": [*(axis.begin for axis in axes), *(axis.end for axis in axes)],
        "strides": [axis.s for axis in axes],
    }
    x_shape, kernel = (2, 2 * group, *(axis.n for axis in axes)), tuple(axis.k for axis in axes)
    if operator == "max_pool":
        attributes |= {"ceil_mode": random.randint(0, 1), "kernel_shape": kernel}
        return Problem(operator, x_shape, attributes=attributes)
    attributes["group"] = group
    if operator == "conv_transpose":
        attributes["output_padding"] = more
        return Problem(operator, x_shape, (2 * group, 3, *kernel), (3 * group,), attributes)
    return Problem(operator, x_shape, (3 * group, 2, *kernel), (3 * group,), attributes)


def integers(random: Random, shape: Sequence[int], dtype: str = "float32") -> Array:
    return np.random.default_rng(random.getrandbits(32)).integers(-4, 5, shape).astype(dtype)


def as_given(layout: str, array: Array) -> Array:
    """Return an activation with its channels where the layout has them, also in memory."""
    return array if layout == "NCHW" else np.ascontiguousarray(np.moveaxis(array, 1, -1))


def in_order(layout: str, array: Array) -> Array:
    return array if layout == "NCHW" else np.moveaxis(array, -1, 1)


def shape_as_given(layout: str, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(shape) if layout == "NCHW" else (shape[0], *shape[2:], shape[1])
