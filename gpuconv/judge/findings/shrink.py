"""Minimise failing tests by delta debugging of models with one operator, so that a finding can be checked by hand.

Candidates are derived from a failing test: fewer images, channels, filters, taps, elements, spatial axes and
attributes, attributes at their defaults, small integers as values, float32. The smallest candidate that still fails in
the same way replaces the test, until none does. Expected results are computed by the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from gpuconv.judge import definition
from gpuconv.judge.definition import Array
from gpuconv.judge.problems import Problem, attributes, operands, opsets

Key = TypeVar("Key", bound=Hashable)
Arrays = dict[str, Array]
Attributes = dict[str, Any]

_ROUNDS = 60  # at most; each tries some smaller problems of every finding
_TRIED = 16  # candidates of each finding in one round
_PER_AXIS = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_padding": 0, "output_shape": 1}
_ONLY_IF_FEW = 3  # images, channels and filters that are each tried


def smallest(
    problems: Mapping[Key, Problem],
    fails: Callable[[Sequence[tuple[Key, Problem]]], Sequence[bool]],
) -> dict[Key, Problem]:
    """Return for each problem the smallest one found that still fails.

    Parameters
    ----------
    problems : mapping
        Problems that fail, by any key.
    fails : callable
        Takes pairs of a key and a smaller problem, returns whether each fails as that key's problem does. It is called
        for all findings together, so that a target starts once per round.
    """
    found = dict(problems)
    steps = {key: _steps(problem) for key, problem in found.items()}  # not tried yet, the smallest first
    for _ in range(_ROUNDS):
        asked = [(key, one) for key, waiting in steps.items() for one in waiting[:_TRIED]]
        if not asked:
            break
        steps = {key: waiting[_TRIED:] for key, waiting in steps.items()}
        failing = [pair for pair, still in zip(asked, fails(asked), strict=True) if still]
        for key, one in dict(reversed(failing)).items():  # the first of a key, which is the smallest
            found[key], steps[key] = one, _steps(one)
    return found


def weight(problem: Problem) -> float:
    """Return a cost of reading the problem: elements, unusual values, attributes and the size of their numbers."""
    arrays = operands(problem)
    elements = float(sum(array.size for array in arrays.values()))
    unusual = sum(int((~np.isin(array.astype(np.float64), range(10))).sum()) for array in arrays.values())
    numbers = [each for each in problem.case.attributes.values() if isinstance(each, list | tuple)]
    given = sum(value is not None for value in problem.case.attributes.values())
    written = 3.0 * given + sum(0.1 * abs(int(each)) for values in numbers for each in values)
    elements += 0.01 * sum(sum(array.shape) for array in arrays.values())  # where one axis is 0
    return elements + 0.5 * unusual + written + 10 * (problem.dtype != "float32") + 2 * len(problem.case.x_shape)


def _steps(problem: Problem) -> list[Problem]:
    """Return smaller problems, the smallest first."""
    if problem.case.op == "max_unpool":  # its operands are results of a MaxPool
        return []
    now = weight(problem)
    empty = _has_empty_windows(problem)
    made = [(weight(one), number, one) for number, one in enumerate(_candidates(problem))]
    made = [each for each in made if empty or not _has_empty_windows(each[2])]
    return [one for size, _, one in sorted(made, key=lambda each: each[:2]) if size < now]


def signature(expected: Sequence[Array], got: Sequence[Array]) -> tuple[Any, ...]:
    """Return the way in which outputs are wrong; a smaller test with another signature would show another fault.

    It is the number of the first wrong output and either whether its number of axes is right, or the kinds (NaN,
    infinite or finite) of the expected and the actual value of the first wrong element.
    """
    if len(expected) != len(got):
        return ("outputs",)
    for number, (ours, theirs) in enumerate(zip(expected, got, strict=True)):
        if ours.shape != theirs.shape:
            return number, "shape", ours.ndim == theirs.ndim
        a, b = ours.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
        wrong = np.flatnonzero(~((a == b) | (np.isnan(a) & np.isnan(b))))
        if wrong.size:
            return number, _kind(a[wrong[0]]), _kind(b[wrong[0]])
    return ("bits",)


def _kind(value: float) -> str:
    if np.isnan(value):
        return "nan"
    return "infinite" if np.isinf(value) else "finite"


def _has_empty_windows(problem: Problem) -> bool:
    """Return whether some window of a pool has no tap inside x, which only helps rules about such windows."""
    if problem.case.op not in ("max_pool", "average_pool"):
        return False
    names = ("kernel_shape", "auto_pad", "ceil_mode", "dilations", "pads", "strides")
    given = {name: value for name, value in attributes(problem).items() if name in names}
    try:
        return not definition.counted_taps(problem.case.x_shape[2:], **given).all()
    except ValueError:  # a size below 0: there is no result
        return True


def _candidates(problem: Problem) -> Iterator[Problem]:
    arrays, given = operands(problem), {k: v for k, v in problem.case.attributes.items() if v is not None}
    for other_arrays, other_attributes in (
        *_fewer_images(arrays, given),
        *_fewer_channels(problem.case.op, arrays, given),
        *_smaller_axes(arrays, given),
        *_fewer_attributes(arrays, given),
        *_simpler_values(arrays, given),
    ):
        yield _with(problem, other_arrays, other_attributes)
    if problem.dtype != "float32":
        cast = {name: array.astype(np.float32) for name, array in arrays.items()}
        other = replace(problem, dtype="float32")
        newest = opsets(problem.case, "float32", problem.indices)
        if newest:
            yield replace(_with(other, cast, given), opset=newest[-1])


def _with(problem: Problem, arrays: Arrays, attributes: Attributes) -> Problem:
    w = arrays.get("w")
    case = replace(
        problem.case,
        x_shape=arrays["x"].shape,
        w_shape=None if w is None else w.shape,
        bias="b" in arrays,
        attributes=attributes,
        dtypes=(problem.dtype,),
    )
    return replace(problem, case=case, arrays=arrays)


# ---------------------------------------------------------------- images, channels and filters


def _fewer_images(arrays: Arrays, given: Attributes) -> Iterator[tuple[Arrays, Attributes]]:
    x = arrays["x"]
    for n in range(min(len(x), _ONLY_IF_FEW) if len(x) > 1 else 0):
        yield {**arrays, "x": x[n : n + 1]}, given
    if len(x) > 2:
        yield {**arrays, "x": x[:2]}, given


def _fewer_channels(op: str, arrays: Arrays, given: Attributes) -> Iterator[tuple[Arrays, Attributes]]:
    if "w" not in arrays:
        x = arrays["x"]
        for c in range(min(x.shape[1], _ONLY_IF_FEW) if x.shape[1] > 1 else 0):
            yield {**arrays, "x": x[:, c : c + 1]}, given
        if x.shape[1] > 2:
            yield {**arrays, "x": x[:, :2]}, given
        return
    group = int(given.get("group", 1))
    for groups in ([slice(g, g + 1) for g in range(min(group, _ONLY_IF_FEW))] + [slice(0, 2)]) if group > 1 else ():
        if groups.stop <= group and groups.stop - groups.start < group:
            yield _picked(op, arrays, given, groups=groups)
    x, w = arrays["x"], arrays["w"]
    inputs = x.shape[1] // group
    filters = (w.shape[0] if op == "conv" else w.shape[1] * group) // group
    for c in range(min(inputs, _ONLY_IF_FEW) if inputs > 1 else 0):
        yield _picked(op, arrays, given, inputs=slice(c, c + 1))
    for m in range(min(filters, _ONLY_IF_FEW) if filters > 1 else 0):
        yield _picked(op, arrays, given, filters=slice(m, m + 1))


def _picked(
    op: str,
    arrays: Arrays,
    given: Attributes,
    groups: slice = slice(None),
    inputs: slice = slice(None),
    filters: slice = slice(None),
) -> tuple[Arrays, Attributes]:
    """Select some groups, and some input channels and filters of each."""
    x, w, group = arrays["x"], arrays["w"], int(given.get("group", 1))
    of_x = x.reshape(len(x), group, x.shape[1] // group, *x.shape[2:])[:, groups, inputs]
    # (groups, filters, inputs, …); of ConvTranspose (groups, inputs, filters, …)
    of_w = w.reshape(group, w.shape[0] // group, *w.shape[1:])[groups]
    of_w = of_w[:, filters, inputs] if op == "conv" else of_w[:, inputs, filters]
    made = {
        **arrays,
        "x": of_x.reshape(len(x), of_x.shape[1] * of_x.shape[2], *x.shape[2:]),
        "w": of_w.reshape(of_w.shape[0] * of_w.shape[1], *of_w.shape[2:]),
    }
    if "b" in arrays:
        made["b"] = arrays["b"].reshape(group, -1)[groups, filters].reshape(-1)
    left = {name: value for name, value in given.items() if name != "group"}
    return made, left | ({"group": of_x.shape[1]} if of_x.shape[1] > 1 else {})


# ---------------------------------------------------------------- spatial axes


def _smaller_axes(arrays: Arrays, given: Attributes) -> Iterator[tuple[Arrays, Attributes]]:
    x, w = arrays["x"], arrays.get("w")
    rank = x.ndim - 2
    for a in range(rank):
        axis, n = a + 2, x.shape[a + 2]
        if rank > 1:
            yield _without_axis(arrays, given, a)
        for size in {n // 2, n - 1} - {0, n}:
            yield {**arrays, "x": np.take(x, range(size), axis)}, given
            yield {**arrays, "x": np.take(x, range(n - size, n), axis)}, given
        kernel = (w.shape[axis] if w is not None else list(given["kernel_shape"])[a]) - 1
        if kernel:
            smaller = {**arrays} if w is None else {**arrays, "w": np.take(w, range(kernel), axis)}
            yield smaller, _set(given, "kernel_shape", a, kernel) if "kernel_shape" in given else given


def _without_axis(arrays: Arrays, given: Attributes, a: int) -> tuple[Arrays, Attributes]:
    rank = arrays["x"].ndim - 2
    made = {
        name: np.take(array, 0, a + 2) if name in "xw" and array.shape[a + 2] else array
        for name, array in arrays.items()
    }
    left = dict(given)
    for name in _PER_AXIS:
        if name in given:
            values = list(given[name])
            del values[len(values) - rank + a]
            left[name] = values
    if "pads" in given:
        left["pads"] = [p for number, p in enumerate(given["pads"]) if number % rank != a]
    return made, left


def _set(given: Attributes, name: str, place: int, value: int) -> Attributes:
    values = list(given[name])
    values[place] = value
    return {**given, name: values}


# ---------------------------------------------------------------- attributes and values


def _fewer_attributes(arrays: Arrays, given: Attributes) -> Iterator[tuple[Arrays, Attributes]]:
    for name, value in given.items():
        if name in ("kernel_shape", "group"):
            continue
        yield arrays, {other: content for other, content in given.items() if other != name}
        if isinstance(value, list | tuple):
            default = {**_PER_AXIS, "pads": 0}[name]
            for place, number in enumerate(value):
                if number > default:
                    yield arrays, _set(given, name, place, default)
                if number - 1 > default:
                    yield arrays, _set(given, name, place, number - 1)
    if "b" in arrays:
        yield {name: array for name, array in arrays.items() if name != "b"}, given


def _simpler_values(arrays: Arrays, given: Attributes) -> Iterator[tuple[Arrays, Attributes]]:
    """Yield operands of integers from 1 on, of ones, or with all but small integers replaced by one."""
    for name, array in arrays.items():
        if array.size == 0:
            continue
        counted = (np.arange(array.size) % 9 + 1).reshape(array.shape).astype(array.dtype)
        odd = ~np.isin(array.astype(np.float64), range(10))
        for other in (counted, np.ones_like(array), np.where(odd, np.ones_like(array), array)):
            yield {**arrays, name: other.astype(array.dtype)}, given
        for place in np.argwhere(odd)[:4]:
            simpler = array.copy()
            simpler[tuple(place)] = 1
            yield {**arrays, name: simpler}, given
