"""Combinations: random problems that cover all pairs of attributes, ranks, types, opsets and values (pairwise)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from random import Random
from typing import Any

from gpuconv.judge import rulings
from gpuconv.judge.problems import Problem, answer, opsets
from gpuconv.rules.cases import ALL, FLOATS, Case

Choice = dict[str, Any]

_POOL = 400  # random problems, from which each next one is chosen
_MOST = 2_000  # elements of a result at most: sweeps test rules, not speed
_TIMES = (1, 1, 2, 3)  # strides and dilations
_SHARED: dict[str, tuple[Any, ...]] = {
    "rank": (1, 2, 3, 4),
    "auto_pad": (None, None, "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"),
    "pads": ("none", "alike", "unequal", "huge"),
    "strides": ("none", "alike", "unequal"),
    "dilations": ("none", "alike", "unequal"),
    "size": ("empty batch", "small", "odd", "below the kernel", "large"),
    "opset": ("newest", "older"),
}
_OF_SUMS = {
    "group": ("one", "two", "depthwise"),
    "bias": (False, True),
    "dtype": FLOATS,
    "values": ("integers", "ones", "subnormals", "overflow", "nan", "infinities", "infinite bias"),
}
_FLOATING = ("zeros of both signs", "subnormals", "nan", "infinities")
_OF_MAXIMA = ("integers", "ties", "all equal", "negative", "lowest", "extremes", *_FLOATING)
CHOICES: dict[str, dict[str, tuple[Any, ...]]] = {
    "conv": {**_SHARED, **_OF_SUMS},
    "conv_transpose": {
        **_SHARED,
        **_OF_SUMS,
        "output_padding": (False, True),
        "output_shape": ("none", "none", "below", "beyond"),
    },
    "max_pool": {
        **_SHARED,
        "dtype": ALL,
        "values": _OF_MAXIMA,
        "ceil_mode": (0, 1),
        "storage_order": (0, 1),
        "indices": (False, True),
    },
    "average_pool": {
        **_SHARED,
        "dtype": FLOATS,
        "values": ("integers", "nan", "infinities", "subnormals"),
        "ceil_mode": (0, 1),
        "count_include_pad": (0, 1),
    },
    "max_unpool": {
        **{name: _SHARED[name] for name in ("rank", "strides", "opset")},
        "pads": ("none", "alike", "unequal"),
        "size": ("empty batch", "one window", "small", "large"),
        "dtype": FLOATS,
        "values": ("integers", "ties", *_FLOATING),
        "output_shape": ("none", "none", "natural", "beyond"),
    },
}


def problems(seed: int, count: int | None = None) -> Iterator[Problem]:
    """Yield problems of each operator in turn; each is the one of a random pool that covers the most new pairs.

    Parameters
    ----------
    seed : int
        The same problems follow from the same seed on every platform.
    count : int, optional
        Number of problems of all operators together; by default until no random problem covers a new pair.
    """
    each = None if count is None else -(-count // len(CHOICES))
    for op in CHOICES:
        yield from _covering(op, Random(f"{seed} {op}"), each)


def _covering(op: str, random: Random, count: int | None) -> Iterator[Problem]:
    made, covered = 0, set[Any]()
    pool: list[tuple[set[Any], Problem]] = []
    while count is None or made < count:
        if not pool:
            if made and count is None:
                return
            pool = [_drawn(op, random) for _ in range(_POOL)]
        gains = [len(pairs - covered) for pairs, _ in pool]
        if max(gains) == 0 and count is None:
            return
        pairs, problem = pool.pop(gains.index(max(gains)))
        if _exists(problem):
            covered |= pairs
            made += 1
            yield _named(problem, made)


def _exists(problem: Problem) -> bool:
    """Return whether a problem has a result, and one of at most `_MOST` elements."""
    try:
        return answer(problem).outputs[0].size <= _MOST
    except ValueError:  # a size below 0
        return False


def _pairs(choice: Choice) -> set[Any]:
    return set(combinations(sorted(choice.items()), 2))


def _named(problem: Problem, number: int) -> Problem:
    case = problem.case
    name = f"{case.op}/{len(case.x_shape) - 2}d/sweep {number}"
    renamed = Case(
        name, case.op, case.x_shape, case.w_shape, case.bias, case.attributes, case.values, case.dtypes, case.rule
    )
    return Problem(renamed, problem.dtype, problem.opset, problem.indices)


def _drawn(op: str, random: Random) -> tuple[set[Any], Problem]:
    """Draw a choice, corrected where it is impossible; return its pairs and a problem that has it."""
    choice = {name: random.choice(values) for name, values in CHOICES[op].items()}
    if choice.get("auto_pad") not in (None, "NOTSET"):
        choice["pads"] = "none"
    if choice["dtype"] in ("int8", "uint8") and choice["values"] in _FLOATING:
        choice["values"] = random.choice([values for values in CHOICES[op]["values"] if values not in _FLOATING])
    case = (_unpooling if op == "max_unpool" else _windowed)(op, choice, random)
    found = opsets(case, choice["dtype"], choice.get("indices", False))
    if len(found) < 2:
        choice["opset"] = "newest"
    opset = found[-1] if choice["opset"] == "newest" else random.choice(found[:-1])
    return _pairs(choice), Problem(case, choice["dtype"], opset, choice.get("indices", False))


def _windowed(op: str, choice: Choice, random: Random) -> Case:
    rank = choice["rank"]
    kernel = [random.randint(1, 3 if rank < 4 else 2) for _ in range(rank)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "auto_pad": choice["auto_pad"]}
    for name in ("strides", "dilations"):
        attributes[name] = _steps(choice[name], rank, random)
    attributes["pads"] = _pads(choice["pads"], kernel, random)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, attributes["dilations"] or [1] * rank, strict=True)]
    spatial = [_size(choice["size"], r, rank, random) for r in reach]
    batch = 0 if choice["size"] == "empty batch" else random.randint(1, 2)
    for name in ("ceil_mode", "storage_order", "count_include_pad"):
        if choice.get(name):
            attributes[name] = choice[name]
    if op == "conv_transpose":
        attributes |= _sizes_of_transposed(choice, attributes, spatial, reach, random)
    channels, w_shape = (2, None) if op.endswith("pool") else _channels(op, choice["group"], kernel, attributes, random)
    given = {name: value for name, value in attributes.items() if value is not None}
    # One plane: without Indices planes do not meet, and with them the cases of the rule "Indices" have several.
    x_shape = (min(batch, 1), 1, *spatial) if op == "max_pool" else (batch, channels, *spatial)
    dtypes = (choice["dtype"],)
    return Case("", op, x_shape, w_shape, choice.get("bias", False), given, choice["values"], dtypes, rulings.SWEPT)


def _unpooling(op: str, choice: Choice, random: Random) -> Case:
    """Return a MaxUnpool case: x is that of a MaxPool without empty windows, whose shape the attributes restore."""
    rank = choice["rank"]
    kernel = [random.randint(1, 3 if rank < 4 else 2) for _ in range(rank)]
    strides, pads = _steps(choice["strides"], rank, random), _pads(choice["pads"], kernel, random)
    around = [0] * rank if pads is None else [pads[a] + pads[rank + a] for a in range(rank)]
    windows = [{"one window": 1, "large": 2 + 6 // rank}.get(choice["size"], random.randint(1, 2)) for _ in kernel]
    spatial = [_unpooled(*axis) for axis in zip(windows, kernel, strides or [1] * rank, around, strict=True)]
    x_shape = (0 if choice["size"] == "empty batch" else random.randint(1, 2), random.randint(1, 2), *spatial)
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    if choice["output_shape"] != "none":
        more = random.randint(1, 2) if choice["output_shape"] == "beyond" else 0
        attributes["output_shape"] = [*x_shape[:2], *(n + more for n in spatial)]
    given = {name: value for name, value in attributes.items() if value is not None}
    return Case("", op, x_shape, None, False, given, choice["values"], (choice["dtype"],), rulings.SWEPT)


def _unpooled(windows: int, kernel: int, stride: int, around: int) -> int:
    """Return the input size of `windows` windows, or of the smallest larger number of them that makes it positive."""
    while (size := stride * (windows - 1) + kernel - around) < 1:
        windows += 1
    return size


def _steps(kind: str, rank: int, random: Random) -> list[int] | None:
    if kind == "none":
        return None
    return [random.choice((1, 2, 3))] * rank if kind == "alike" else [random.choice(_TIMES) for _ in range(rank)]


def _pads(kind: str, kernel: Sequence[int], random: Random) -> list[int] | None:
    if kind == "none":
        return None
    if kind == "huge":
        return [random.randint(0, 2 * k) for k in [*kernel, *kernel]]
    begins = [random.randint(0, k // 2) for k in kernel]
    return begins * 2 if kind == "alike" else [*begins, *(random.randint(0, k - 1) for k in kernel)]


def _size(kind: str, reach: int, rank: int, random: Random) -> int:
    if kind == "below the kernel":
        return random.randint(1, max(1, reach - 1))
    if kind == "odd":
        return reach // 2 * 2 + 1 + random.choice((0, 2))
    return reach + (random.randint(4, 9) // rank if kind == "large" else random.randint(0, 2))


def _sizes_of_transposed(
    choice: Choice, attributes: Choice, spatial: Sequence[int], reach: Sequence[int], random: Random
) -> Choice:
    """Return output_padding and output_shape, if they are chosen."""
    rank = len(spatial)
    strides, dilations = (attributes[name] or [1] * rank for name in ("strides", "dilations"))
    made: Choice = {}
    more = [0] * rank
    if choice["output_padding"]:
        more = [random.randrange(max(s, d)) for s, d in zip(strides, dilations, strict=True)]
        made["output_padding"] = more
    if choice["output_shape"] != "none":
        full = [s * (n - 1) + r + o for s, n, r, o in zip(strides, spatial, reach, more, strict=True)]
        change = [random.randint(1, 3) * (1 if choice["output_shape"] == "beyond" else -1) for _ in full]
        made["output_shape"] = [max(1, n + c) for n, c in zip(full, change, strict=True)]
    return made


def _channels(
    op: str, kind: str, kernel: Sequence[int], attributes: Choice, random: Random
) -> tuple[int, tuple[int, ...]]:
    """Return the channels of x and the shape of W."""
    group = {"one": 1, "two": 2, "depthwise": 3}[kind]
    each = 1 if kind == "depthwise" else random.randint(1, 3)
    filters = random.randint(1, 2)
    if group > 1:
        attributes["group"] = group
    first, second = (group * filters, each) if op == "conv" else (group * each, filters)
    return group * each, (first, second, *kernel)
