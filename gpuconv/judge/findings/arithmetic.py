"""One line of arithmetic that derives an expected result: the size of an axis, or the terms of one element."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuconv.judge import definition
from gpuconv.judge.definition import Array
from gpuconv.judge.problems import Problem, attributes, operands

_MOST = 8  # terms that are printed


def line(
    problem: Problem, expected: tuple[Array, ...], got: tuple[Array, ...], element: tuple[int, ...] | None = None
) -> str:
    """Return the arithmetic of the first axis whose size is wrong, or of one wrong element; may be empty.

    Parameters
    ----------
    problem : Problem
    expected, got : tuple of array
        The outputs: y, of MaxPool also its Indices.
    element : tuple of int, optional
        The number of the output and the index of the element that the verdict cites; by default, the element that is
        off the most.
    """
    if not got or problem.case.op == "max_unpool":
        return ""
    for number, (ours, theirs) in enumerate(zip(expected, got, strict=False)):
        if ours.shape != theirs.shape:
            wrong = [a for a, (n, m) in enumerate(zip(ours.shape[2:], theirs.shape[2:], strict=False)) if n != m]
            return _size(problem, wrong[0], ours.shape[wrong[0] + 2]) if wrong else ""
        if element is not None:
            continue
        with np.errstate(all="ignore"):
            a, b = ours.astype(np.float64), theirs.astype(np.float64)
            # Of several wrong elements the one that is off the most says more than one that is rounded otherwise.
            off = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
        if off.any():
            at = tuple(int(i) for i in np.unravel_index(int(off.argmax()), off.shape))
            return _element(problem, number, at, ours[at])
    return "" if element is None else _element(problem, element[0], element[1:], expected[element[0]][element[1:]])


def _size(problem: Problem, axis: int, size: int) -> str:
    """Return the formula of an output size with its numbers."""
    given, rank = attributes(problem), len(problem.case.x_shape) - 2
    n, kernel = problem.case.x_shape[axis + 2], list(given["kernel_shape"])[axis]
    stride, dilation = (list(given.get(name) or [1] * rank)[axis] for name in ("strides", "dilations"))
    mode = definition._plain(given.get("auto_pad", "NOTSET"))
    pads = [0] * 2 * rank if mode == "VALID" else list(given.get("pads") or [0] * 2 * rank)
    begin, end, reach = pads[axis], pads[axis + rank], (kernel - 1) * dilation + 1
    if problem.case.op == "conv_transpose":
        if given.get("output_shape") is not None:
            return f"output_shape asks for {size}"
        if mode.startswith("SAME"):
            return f"{n} * {stride} = {size}"
        more = list(given.get("output_padding") or [0] * rank)[axis]
        return f"{stride} * ({n} - 1) + {more} + (({kernel} - 1) * {dilation} + 1) - {begin} - {end} = {size}"
    if mode.startswith("SAME"):
        return f"ceil({n} / {stride}) = {size}"
    rounds = "ceil" if given.get("ceil_mode") else "floor"
    text = f"{rounds}(({n} + {begin} + {end} - (({kernel} - 1) * {dilation} + 1)) / {stride}) + 1"
    formula = (
        -(-(n + begin + end - reach) // stride) if given.get("ceil_mode") else (n + begin + end - reach) // stride
    ) + 1
    if formula != size:
        return f"{text} = {formula}, less the last window, which would start in the padding at the end: {size}"
    return f"{text} = {size}"


def _element(problem: Problem, output: int, at: tuple[int, ...], value: Any) -> str:
    """Return the terms of an element and their result."""
    terms = list(_terms(problem, at))
    if len(terms) > _MOST:
        terms = [*terms[: _MOST - 1], f"… ({len(terms)} in all)"]
    place = f"[{', '.join(map(str, at))}]"
    if problem.case.op == "max_pool":
        inside = f"the maximum of {{{', '.join(terms)}}}" if terms else "a window with nothing inside of x"
        return f"Indices{place}: {inside}, so {value}" if output else f"Y{place}: {inside}, so {value}"
    text = " + ".join(terms) or "nothing"
    if problem.case.op == "average_pool":
        return f"Y{place} = ({text}) / (taps that count) = {value}"
    return f"Y{place} = {text} = {value}"


def _terms(problem: Problem, at: tuple[int, ...]) -> Iterator[str]:
    """Yield the products that an element of Conv or ConvTranspose sums, or the elements in a window of a pool."""
    arrays, given = operands(problem), attributes(problem)
    x, w, b, op = arrays["x"], arrays.get("w"), arrays.get("b"), problem.case.op
    group = int(given.get("group", 1))
    n, m, *position = at
    for tap, source in _met(problem, tuple(position)):
        if w is None:
            yield _number(x[(n, m, *source)])
            continue
        per_group = w.shape[0] // group if op == "conv" else w.shape[1]
        own = x.shape[1] // group
        first = m // per_group * own
        for c in range(own):
            weight = w[(m, c, *tap)] if op == "conv" else w[(first + c, m % per_group, *tap)]
            yield f"{_number(x[(n, first + c, *source)])} * {_number(weight)}"
    if b is not None:
        yield _number(b[m])


def _met(problem: Problem, position: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the taps that are valid at an output's position, each with the position of its input."""
    given, spatial = attributes(problem), problem.case.x_shape[2:]
    rank, kernel = len(spatial), list(given["kernel_shape"])
    dilations, pads, strides = definition._defaults(rank, *(given.get(k) for k in ("dilations", "pads", "strides")))
    if problem.case.op == "conv_transpose":
        begins = _cut_off(problem)
        for tap in np.ndindex(*kernel):
            steps = [o + b - t * d for o, b, t, d in zip(position, begins, tap, dilations, strict=True)]
            inputs = [step // s for step, s in zip(steps, strides, strict=True)]
            exact = all(step % s == 0 for step, s in zip(steps, strides, strict=True))
            if exact and all(0 <= i < n for i, n in zip(inputs, spatial, strict=True)):
                yield tap, tuple(inputs)
        return
    mode, ceil = given.get("auto_pad", "NOTSET"), bool(given.get("ceil_mode"))
    _, offsets = definition._windows(spatial, kernel, mode, dilations, pads, strides, ceil)
    for tap in np.ndindex(*kernel):
        places = [o * s + t * d - b for o, s, t, d, b in zip(position, strides, tap, dilations, offsets, strict=True)]
        if all(0 <= i < n for i, n in zip(places, spatial, strict=True)):
            yield tap, tuple(places)


def _cut_off(problem: Problem) -> list[int]:
    """Return how many elements of ConvTranspose's full result are cropped before each axis."""
    given, spatial = attributes(problem), problem.case.x_shape[2:]
    rank = len(spatial)
    dilations, pads, strides = definition._defaults(rank, *(given.get(k) for k in ("dilations", "pads", "strides")))
    more = list(given.get("output_padding") or [0] * rank)
    wanted = given.get("output_shape")
    sizes = [None] * rank if wanted is None else list(wanted)[-rank:]
    begins = []
    for a, (n, k) in enumerate(zip(spatial, given["kernel_shape"], strict=True)):
        canvas = (k - 1) * dilations[a] + 1 + (n - 1) * strides[a] + more[a]
        mode = definition._plain(given.get("auto_pad", "NOTSET"))
        begins.append(definition._transposed_axis(canvas, n, strides[a], (pads[a], pads[a + rank]), mode, sizes[a])[1])
    return begins


def _number(value: Any) -> str:
    number = float(value)
    text = str(int(number)) if number.is_integer() and abs(number) < 1e6 else f"{number:g}"
    return f"({number:g})" if np.signbit(number) else text
