"""Expected geometries of problems by counting, and tables of which input meets which output.

`answer` computes every field of a geometry: given attributes, the output shape by the oracle, and pads counted one by
one. `links` turns these fields into a table of which input each tap of each output reads. `links_by_oracle` derives the
same table from values alone, so that no field has to be trusted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.oracle import oracle
from tests.oracle.strategies import Problem

Fields = dict[str, Any]
_OF_WINDOWS = {"auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides"}


def answer(problem: Problem) -> Fields:
    """Return every field of the problem's geometry; raises ValueError for a negative size."""
    out = links_by_oracle(problem).shape[1:]
    fields: Fields = {"x_shape": problem.x_shape, "kernel_shape": _kernel(problem)}
    fields |= {name: _of_axes(problem, name, 1) for name in ("strides", "dilations")}
    fields["pads_begin"], fields["pads_end"] = _pads(problem, fields, out)
    if problem.w_shape is None:
        own = "storage_order" if problem.operator == "max_pool" else "count_include_pad"
        fields |= {"indices_in": "tensor"} if problem.operator == "max_pool" else {}
        return {**fields, "y_shape": (*problem.x_shape[:2], *out), own: problem.attributes.get(own, 0)}
    group = problem.attributes.get("group", 1)
    channels = problem.w_shape[0] if problem.operator == "conv" else problem.w_shape[1] * group
    return {**fields, "w_shape": problem.w_shape, "group": group, "y_shape": (problem.x_shape[0], channels, *out)}


def _kernel(problem: Problem) -> tuple[int, ...]:
    return tuple(problem.attributes["kernel_shape"]) if problem.w_shape is None else problem.w_shape[2:]


def _of_axes(problem: Problem, name: str, default: int) -> tuple[int, ...]:
    given = problem.attributes.get(name)
    return (default,) * problem.rank if given is None else tuple(map(int, given))


def _mode(problem: Problem) -> str:
    mode = problem.attributes.get("auto_pad", "")
    return (mode.decode() if isinstance(mode, bytes) else mode) or "NOTSET"


def _pads(problem: Problem, fields: Fields, out: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rank, mode = problem.rank, _mode(problem)
    wanted = problem.attributes.get("output_shape") is not None
    if not wanted and not mode.startswith("SAME"):
        given = problem.attributes.get("pads") or [0] * 2 * rank
        return tuple(map(int, given[:rank])), tuple(map(int, given[rank:]))
    dealt = [_dealt(_missing(problem, fields, out, axis), mode) for axis in range(rank)]
    return tuple(begin for begin, _ in dealt), tuple(end for _, end in dealt)


def _missing(problem: Problem, fields: Fields, out: tuple[int, ...], axis: int) -> int:
    """Return the smallest total padding that the windows need beyond the input, or the total crop of the canvas."""
    n, s = problem.x_shape[2 + axis], fields["strides"][axis]
    reach = 1 + sum(fields["dilations"][axis] for _ in range(fields["kernel_shape"][axis] - 1))
    total = 0
    if problem.operator == "conv_transpose":
        canvas = s * (n - 1) + reach + _of_axes(problem, "output_padding", 0)[axis]
        while canvas - total > out[axis]:
            total += 1
    else:
        while (out[axis] - 1) * s + reach > n + total:
            total += 1
    return total


def _dealt(total: int, mode: str) -> tuple[int, int]:
    """Split a total into begin and end, alternating; SAME_UPPER starts with the end, all others with the beginning."""
    sides = [0, 0]
    first = 1 if mode == "SAME_UPPER" else 0
    for turn in range(total):
        sides[(first + turn) % 2] += 1
    return sides[0], sides[1]


# ---------------------------------------------------------------- links


def links(operator: str, fields: Fields) -> np.ndarray[Any, Any]:
    """Return (taps, *out): 1 + the number of the input that a tap reads, 0 for padding; for pools (2, *out): first and
    last."""
    spatial, out = fields["x_shape"][2:], fields["y_shape"][2:]
    axes = zip(
        spatial, out, fields["kernel_shape"], fields["strides"], fields["dilations"], fields["pads_begin"], strict=True
    )
    table = _combined(spatial, [_axis_links(operator, *axis) for axis in axes])
    if operator not in ("max_pool", "average_pool"):
        return table
    first = np.where(table > 0, table, math.prod(spatial) + 1).min(axis=0)
    last = table.max(axis=0)
    return np.stack([np.where(last > 0, first, 0), last])


def _axis_links(operator: str, n: int, out: int, k: int, s: int, d: int, begin: int) -> np.ndarray[Any, Any]:
    """Return (k, out): the input position read along one axis, -1 for none."""
    table = np.full((k, out), -1)
    moving, other = (n, out) if operator == "conv_transpose" else (out, n)
    for tap in range(k):
        for start in range(moving):
            place = start * s + tap * d - begin
            if 0 <= place < other:
                i, q = (start, place) if operator == "conv_transpose" else (place, start)
                table[tap, q] = i
    return table


def _combined(spatial: tuple[int, ...], tables: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    rank = len(tables)
    number, inside = np.zeros((1,) * 2 * rank, np.int64), np.ones((1,) * 2 * rank, bool)
    for axis, (n, table) in enumerate(zip(spatial, tables, strict=True)):
        shape = [1] * 2 * rank
        shape[axis], shape[rank + axis] = table.shape
        number, inside = number * n + table.reshape(shape), inside & (table.reshape(shape) >= 0)
    found = np.where(inside, number + 1, 0)
    return found.reshape((math.prod(found.shape[:rank]), *found.shape[rank:]))


def links_by_oracle(problem: Problem) -> np.ndarray[Any, Any]:
    """Return the table of `links` from the oracle's results: x holds element numbers, and each tap is a filter."""
    spatial = problem.x_shape[2:]
    numbers = np.arange(1.0, math.prod(spatial) + 1).reshape(1, 1, *spatial)
    if problem.operator in ("max_pool", "average_pool"):
        attributes = {name: value for name, value in problem.attributes.items() if name in _OF_WINDOWS}
        both = [oracle.max_pool(x, **attributes)[1] for x in (-numbers, numbers)]
        return np.concatenate(both)[:, 0] + 1
    kernel = _kernel(problem)
    taps = np.eye(math.prod(kernel)).reshape(-1, *kernel)
    attributes = {**problem.attributes, "group": 1}
    if problem.operator == "conv":
        return oracle.conv(numbers, taps[:, None], **attributes).value[0].astype(np.int64)
    return oracle.conv_transpose(numbers, taps[None], **attributes).value[0].astype(np.int64)
