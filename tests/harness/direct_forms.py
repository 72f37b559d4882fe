"""Problems for each form of the direct convolution kernels, usual and random ones, and layouts with contiguous rows."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from gpuconv.cuda.conv.direct import rows as rows_plan
from gpuconv.cuda.conv.direct.rows import GROUPED, RowForm
from tests.oracle.strategies import Problem

Ints = tuple[int, ...]


def name(form: RowForm, dtype: Any) -> str:
    """Return the name of a form's kernel."""
    return rows_plan.variant(str(dtype), form).name


def family(form: RowForm) -> str:
    return "grouped" if form.filters == GROUPED else "depthwise"


def title(form: RowForm) -> str:
    return f"{family(form)} {form}"


def usual(form: RowForm, width: int = 40, height: int = 20, dilation: int = 1) -> tuple[Ints, Ints, dict[str, Any]]:
    """Return x, w and attributes of a small problem: 3 channels, or 2 groups of 4 to 8, with SAME padding.

    Only forms of stride 1 support ``dilation``.
    """
    channels, group = (8, 2) if form.filters == GROUPED else (3, 3)
    filters = 16 if form.filters == GROUPED else 3
    attributes: dict[str, Any] = {"group": group}
    if form.line:
        attributes |= {"dilations": [dilation], "pads": [3 * dilation, 0]}
        return (2, channels, 16 * width), (filters, channels // group, 4), attributes
    kernel = (form.kernel,) * 2 if form.kernel else (9, 6) if form.stride else (3, 3)
    if form.stride == 0:
        attributes |= {"dilations": [2, 2], "pads": [2, 2, 2, 2]}
    else:
        pads = [k // 2 * dilation for k in kernel] + [(k - 1) // 2 * dilation for k in kernel]
        attributes |= {"strides": [form.stride] * 2, "dilations": [dilation] * 2, "pads": pads}
    rows, columns = (extent * (form.stride or 1) for extent in (height, width))
    return (2, channels, rows, columns), (filters, channels // group, *kernel), attributes


def _depthwise(random: Random) -> tuple[int, int, int]:
    group = random.choice((1, 2, 3, 5, 9))
    return group, 1, random.choice((1, 1, 1, 2, 3))


def _grouped(random: Random) -> tuple[int, int, int]:
    group, channels = random.choice(((3, 3), (2, 2), (2, 4), (3, 5), (2, 20), (5, 1)))
    return group, channels, random.choice((4, 6, 9, 20)) if channels == 1 else random.choice((1, 3, 4, 7, 18))


def some(form: RowForm, random: Random) -> Problem:
    """Return a random problem that the form accepts: odd and even extents, any pads, with and without a bias."""
    rank = 1 if form.line else random.choice((2, 2, 3) if form.stride else (1, 2, 3))
    plane = min(rank, 2)
    group, channels, multiplier = (_grouped if form.filters == GROUPED else _depthwise)(random)
    free = rank - plane  # the depth axis, which no form restricts
    strides = [random.choice((1, 2)) for _ in range(free)]
    dilations = [random.choice((1, 2)) for _ in range(free)]
    kernel = [random.choice((1, 2, 3)) for _ in range(free)]
    for _ in range(plane):
        kernel.append(form.kernel or random.choice((1, 2, 3, 4, 5, 8, 11)[form.stride > 0 and not form.line :]))
        stride, dilation = _steps(form, random)
        strides.append(stride)
        dilations.append(dilation if kernel[-1] > 1 else 1)
    pads = [random.randrange(k * d + 1) for k, d in zip(kernel, dilations, strict=True)] * 2
    if random.random() < 0.5:
        pads[rank:] = [random.randrange(k * d + 1) for k, d in zip(kernel, dilations, strict=True)]
    extents = [random.choice((3, 4)) for _ in range(free)] + [_extent(random, 400 if form.line else 24)]
    extents += [_extent(random, 70 // form.stride if form.stride else 40)] if plane == 2 else []
    reaches = [(k - 1) * d + 1 - a - b for k, d, a, b in zip(kernel, dilations, pads, pads[rank:], strict=False)]
    for axis, (reach, stride) in enumerate(
        zip(reaches, strides, strict=True)
    ):  # at least two outputs, so that strides matter
        extents[axis] = max(extents[axis] * (stride if axis >= free else 1), reach + stride, 1)
    filters = group * multiplier
    attributes = {"group": group, "strides": strides, "dilations": dilations, "pads": pads}
    b_shape = random.choice((None, (filters,)))
    x_shape, w_shape = (random.choice((1, 2)), group * channels, *extents), (filters, channels, *kernel)
    return Problem("conv", x_shape, w_shape, b_shape, attributes)


def _steps(form: RowForm, random: Random) -> tuple[int, int]:
    """Return a stride and a dilation that the form accepts; for forms of stride 1, half of them are ones."""
    if form.stride == 1:
        stride = random.choice((1, 1, 1, 2, 3))
        return random.choice(((1, 1), (stride, stride * random.choice((1, 2, 3, 4, 5, 6)))))
    return form.stride or random.choice((1, 2, 3)), 1 if form.stride else random.choice((1, 2, 3))


def _extent(random: Random, most: int) -> int:
    """Return an extent; multiples of 4, which keep vectors whole, are as frequent as all others."""
    return random.choice((random.randint(1, most), 4 * random.randint(1, -(-most // 4))))


def some_channels(form: tuple[int, int, int], random: Random) -> Problem:
    """Return a random problem for a form of `conv/direct/channels.cu`: NCHW shapes with non-empty outputs."""
    rank = random.choice((1, 2, 2, 3))
    group, filters = random.choice((2, 3, 8, 12, 40)), random.choice((1, 1, 1, 2, 4))
    taps = [random.choice((1, 2, 3, 5, 9)) for _ in range(rank)]
    steps = [random.choice((1, 2, 3)) for _ in range(rank)]
    dilations = [random.choice((1, 1, 2, 3)) for _ in range(rank)]
    if form[0]:
        taps[-1] = max(2, taps[-1])  # dilation needs two taps
        steps[-1] = form[0] * dilations[-1]
    ends = [[random.randrange((k - 1) * d + 2) for k, d in zip(taps, dilations, strict=True)] for _ in range(2)]
    least = [max(1, (k - 1) * d + 1 - a - b + s) for k, d, s, a, b in zip(taps, dilations, steps, *ends, strict=True)]
    extents = [n + random.randrange({1: 60, 2: 20, 3: 7}[rank]) for n in least]
    attributes = {"group": group, "strides": steps, "dilations": dilations, "pads": [*ends[0], *ends[1]]}
    b_shape = random.choice((None, (group * filters,)))
    return Problem("conv", (random.choice((1, 2)), group, *extents), (group * filters, 1, *taps), b_shape, attributes)


def some_transposed(random: Random) -> Problem:
    """Return a random problem for `conv/direct/transpose.cu`: each output has at most two taps along each axis."""
    rank, group, filters = random.choice((1, 2, 2)), random.choice((1, 2, 5, 8)), random.choice((1, 1, 2, 3))
    steps = [random.choice((1, 2, 3, 4, 8)) for _ in range(rank)]
    taps = [random.randint(1, 2 * step) for step in steps]
    extents = [random.randint(2, {1: 40, 2: 8}[rank]) for _ in range(rank)]
    more = [random.randrange(step) for step in steps]
    rooms = [s * (n - 1) + k + o - 1 for s, n, k, o in zip(steps, extents, taps, more, strict=True)]
    begin = [random.randint(0, min(room, k)) for room, k in zip(rooms, taps, strict=True)]
    end = [random.randint(0, min(room - a, k)) for room, a, k in zip(rooms, begin, taps, strict=True)]
    attributes = {"group": group, "strides": steps, "pads": [*begin, *end], "output_padding": more}
    x_shape, w_shape = (random.choice((1, 2)), group, *extents), (group, filters, *taps)
    return Problem("conv_transpose", x_shape, w_shape, random.choice((None, (group * filters,))), attributes)


# ---------------------------------------------------------------- layouts with contiguous rows


def _shifted(array: Any) -> Any:
    """The array starts one element into its memory, so that no vector is aligned."""
    memory = np.zeros(array.size + 1, array.dtype)[1:]
    view = memory.reshape(array.shape)
    view[...] = array
    return view


def _cut(array: Any) -> Any:
    """Rows have unused elements before and after them, and planes have unused rows."""
    spread = np.zeros((*(n + 1 for n in array.shape[:-1]), array.shape[-1] + 5), array.dtype)
    view = spread[(*(slice(1, None),) * (array.ndim - 1), slice(3, 3 + array.shape[-1]))]
    view[...] = array
    return view


def _backwards(array: Any) -> Any:
    """Every axis except the last has a negative stride."""
    turned = (*(slice(None, None, -1),) * (array.ndim - 1), slice(None))
    return np.ascontiguousarray(array[turned])[turned]


def _channels_outside(array: Any) -> Any:
    return np.ascontiguousarray(array.swapaxes(0, 1)).swapaxes(0, 1) if array.ndim > 1 else array


ROWWISE: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda array: array,
    "shifted": _shifted,
    "cut": _cut,
    "backwards": _backwards,
    "channels outside": _channels_outside,
}
FORMS = rows_plan.FORMS
