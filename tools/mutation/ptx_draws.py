"""Random variants of the kernel families' problems, always the same ones; see `ptx_problems`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from math import prod
from random import Random
from typing import Any

from gpuconv import GpuconvError
from gpuconv.rules import geometry
from tests.kernels import fused, gradients, passes, registry
from tests.kernels.gradients import AveragePoolGrad, BiasGrad, MaxPoolGrad, Plane, WeightGrad
from tests.kernels.specimen import Forward
from tests.oracle.strategies import Problem

Trial = Callable[..., Any]  # called with an architecture and the emulator's options
DRAWN = 120  # problems drawn; many of them may not execute a given instruction
KINDS = (
    ("seldom infinite", "integers", "integers"),
    ("integers", "seldom infinite", "integers"),
    ("integers", "integers", "integers"),
)
_LAYOUTS = (
    *("contiguous", "contiguous", "contiguous", "channels last", "channels last", "strided", "reversed"),
    *("off the vectors", "pixels off the vectors", "strided rows", "strided pixels"),
)
_MULTIPROCESSORS = (None, None, 1, 3, 7)
_MOST_PRODUCTS = 2_000_000


def alike(family: str, number: int) -> tuple[Any, list[Any]]:
    """Return a problem of a family, and the family's other problems of the same type."""
    mine = registry.by_source()[family][number]
    rest = () if family in registry.OF_OTHERS and isinstance(mine, Forward) else registry.by_source()[family]
    return mine, [one for one in rest if one is not mine and type(one) is type(mine)]


@cache
def drawn(family: str, number: int) -> tuple[Trial, ...]:
    """Return random variants of a family's problem for the same kernel; always the same ones."""
    (mine, theirs), random = alike(family, number), Random(f"{family} {number}")
    if isinstance(mine, Forward) and not mine.is_wgmma:
        theirs = [one for one in theirs if one.problem.operator == mine.problem.operator]
    drawn_ = (
        _drawn(mine, mine if random.random() < 0.5 else random.choice([mine, *theirs]), random) for _ in range(DRAWN)
    )
    return tuple(one for one in drawn_ if one is not None)


def _drawn(mine: Any, like: Any, random: Random) -> Trial | None:
    if isinstance(mine, Forward):
        draw_forward = _drawn_wgmma if mine.is_wgmma else _drawn_blocks
        return draw_forward(replace(like, kernel=mine.kernel, factors=mine.factors, kinds=mine.kinds), random)
    if isinstance(mine, passes.Moved):
        same = {name: getattr(mine, name) for name in ("kernel", "element", "factors", "operator")}
        return _drawn_move(replace(like, **same), random)
    if mine in gradients.GENERAL_POOLS:
        return None
    draw = _GRADIENTS.get(type(mine))
    return None if draw is None else draw(mine, like, random)


# ---------------------------------------------------------------- numbers


def deeper(problem: Problem) -> Problem:
    """Return the problem with another spatial axis before the others.

    Windows of pools extend beyond both of its ends but always cover x; those of convolutions may not. Where all taps
    equal their strides, or are 1, so do those of the new axis.
    """

    def more(shape: Any, extent: int) -> Any:
        return None if shape is None else (*shape[:2], extent, *shape[2:])

    attributes, rank = dict(problem.attributes), problem.rank
    strides, taps = attributes.get("strides", [1] * rank), (problem.w_shape or ())[2:]
    is_disjoint = problem.operator == "conv_transpose" and tuple(strides) == taps
    extent = 1 if set(taps) == {1} else 2
    step = extent if is_disjoint else 1 if set(strides) == {1} else 2
    first, last = (1, 1) if problem.w_shape is None or is_disjoint or extent == 1 else (2, 1)
    pads = attributes.get("pads", [0] * 2 * rank)
    attributes["pads"] = [first, *pads[:rank], last, *pads[rank:]]
    for name, value in (("strides", step), ("dilations", 1), ("output_padding", 0), ("kernel_shape", 2)):
        if name in attributes:
            attributes[name] = [value, *attributes[name]]
    shapes = more(problem.x_shape, 3), more(problem.w_shape, extent), problem.b_shape
    return Problem(problem.operator, *shapes, attributes)


def _varied(
    problem: Problem, random: Random, least: int = 1, otherwise: float = 0.3, most: int = _MOST_PRODUCTS
) -> Problem:
    """Return a problem of the same operator with other numbers and at most ``most`` products.

    It has at least ``least`` filters; strides, dilations and taps change with probability ``otherwise``.
    """
    drawn_ = (_with_other_numbers(_of_other_rank(problem, random), random, least, otherwise) for _ in range(20))
    tries = [one for one in drawn_ if _products(one)]
    few = [one for one in tries if _products(one) <= most]
    return (few or sorted(tries, key=_products) or [problem])[0]


def _of_other_rank(problem: Problem, random: Random) -> Problem:
    """Sometimes return a problem with one axis more or less, up to three."""
    way = random.random()
    if way < 0.15 and problem.rank < 3:
        return deeper(problem)
    return _shallow(problem) if way > 0.9 and problem.rank in (2, 3) else problem


def _shallow(problem: Problem) -> Problem:
    """Return the problem without its first spatial axis."""
    attributes, rank = dict(problem.attributes), problem.rank
    for name in ("strides", "dilations", "output_padding", "kernel_shape"):
        if name in attributes:
            attributes[name] = attributes[name][1:]
    if "pads" in attributes:
        attributes["pads"] = attributes["pads"][1:rank] + attributes["pads"][rank + 1 :]
    x_shape, w_shape = ((*shape[:2], *shape[3:]) if shape else None for shape in (problem.x_shape, problem.w_shape))
    return Problem(problem.operator, x_shape or (), w_shape, problem.b_shape, attributes)


def _with_other_numbers(problem: Problem, random: Random, least: int, otherwise: float) -> Problem:
    rank, attributes, taps = problem.rank, dict(problem.attributes), list((problem.w_shape or ())[2:])
    batch, channels, *extents = problem.x_shape
    turned = partial(_turned, random)
    if random.random() < 0.5:
        batch = random.randint(1, 3)
    extents = turned(
        extents, lambda n: max(1, random.choice((n // 3, n // 2, n - 1, n + 1, n + 2, n + 5, 2 * n, 3 * n + 1))), 0.6
    )
    pads, reaches = list(attributes.get("pads", [0] * 2 * rank)), taps or attributes.get("kernel_shape", [1] * rank)
    if random.random() < 0.7:
        pads = turned(pads, lambda pad: random.randint(0, max(1, pad)), 0.5)
        if problem.w_shape is not None:
            pads = [
                random.choice((pad, pad, random.randint(0, n + 1)))
                for pad, n in zip(pads, 2 * [*reaches], strict=False)
            ]
    attributes["pads"] = pads
    if problem.operator == "conv_transpose" and attributes.get("strides", [1] * rank) == taps:
        if random.random() < 0.7:  # disjoint windows
            attributes["strides"] = taps = turned(taps, lambda _: random.choice((1, 2, 2, 2, 3, 4, 5)), 0.7)
        if random.random() < 0.5:  # even extents allow stores of two outputs along W
            extents[-1] += extents[-1] % 2
            attributes["pads"] = [pad - pad % 2 for pad in pads]
    else:
        for name in ("dilations", "strides"):
            if random.random() < otherwise:
                given = attributes.get(name, [1] * rank)
                attributes[name] = turned(given, lambda _: random.choice((1, 2, 3, 3)), 0.5)
        if random.random() < otherwise:
            taps = turned(taps, lambda k: max(1, k + random.choice((-1, 1, 2))), 0.5)
    if problem.w_shape is None:
        channels = random.choice((channels, channels + random.randint(1, 16), random.randint(1, 40)))
        return replace(problem, x_shape=(batch, channels, *extents), attributes=attributes)
    group, deep, many = _other_channels(problem, random, least)
    w_shape = (many * group, deep, *taps) if problem.operator == "conv" else (deep * group, many, *taps)
    b_shape = None if problem.b_shape is None else (many * group,)
    attributes["group"] = group
    return replace(
        problem, x_shape=(batch, deep * group, *extents), w_shape=w_shape, b_shape=b_shape, attributes=attributes
    )


def _other_channels(problem: Problem, random: Random, least: int) -> tuple[int, int, int]:
    """Draw the group (for depthwise problems), and channels and filters per group."""
    assert problem.w_shape is not None
    group, channels = problem.attributes.get("group", 1), problem.x_shape[1]
    deep, many = channels // group, problem.w_shape[0] // group if problem.operator == "conv" else problem.w_shape[1]
    if channels == group > 1:
        group, many = random.choice((group, random.randint(1, 40), _near(random))), random.choice((many, many, 1, 2, 3))
        return group, deep, many
    if random.random() < 0.7:
        deep = max(
            1,
            random.choice(
                (deep + random.randint(-4, 16), random.randint(1, 48), _near(random), _near(random), _near(random))
            ),
        )
    if random.random() < 0.7:
        many = max(
            least, random.choice((many + random.randint(-5, 16), random.randint(1, 48), 8 * random.randint(1, 16)))
        )
    return group, deep, many


def _turned(random: Random, numbers: Iterable[int], other: Callable[[int], int], chance: float) -> list[int]:
    return [other(number) if random.random() < chance else number for number in numbers]


def _products(problem: Problem) -> int:
    """Return the number of products of a problem, or of window elements for pools; 0 without a result."""
    try:
        result = getattr(geometry, problem.operator)(*problem.shapes, **problem.attributes).y_shape
    except GpuconvError:
        return 0
    taps = prod(problem.attributes.get("kernel_shape", [1]) if problem.w_shape is None else problem.w_shape[2:])
    if problem.w_shape is None:
        return prod(result) * taps
    channels = problem.x_shape[1] // problem.attributes.get("group", 1)
    if problem.operator == "conv_transpose":
        return prod(problem.x_shape) * problem.w_shape[1] * taps if prod(result) else 0
    return prod(result) * channels * taps


def _seldom_infinite(problem: Problem, random: Random) -> tuple[str, ...]:
    """Return kinds of values with so few infinities in x and w that about a third of all sums stay finite, or fewer."""
    assert problem.w_shape is not None
    rows = prod(problem.w_shape[2:]) * problem.x_shape[1] // problem.attributes.get("group", 1)
    of_x, of_w = ((2 * rows, prod(shape) // 2) for shape in (problem.x_shape, problem.w_shape))
    return (f"one in {random.choice(of_x)} infinite", f"one in {random.choice(of_w)} infinite", "integers")


def _drawn_blocks(mine: Forward, random: Random) -> Trial:
    problem, out = (
        _varied(mine.problem, random),
        mine.out if random.random() < 0.4 else random.choice((None, *_LAYOUTS)),
    )
    layout = mine.layout if random.random() < 0.6 else random.choice(_LAYOUTS)
    one = replace(mine, problem=problem, layout=layout, out=out)
    given: dict[str, Any] = {"multiprocessors": random.choice(_MULTIPROCESSORS)}
    if mine.problem.w_shape is None:
        return partial(one, **given)
    one = replace(one, kinds=random.choice((mine.kinds, *KINDS, *[_seldom_infinite(problem, random)] * 4)))
    whole = one.kernel.removesuffix("_split")
    if whole != one.kernel and random.random() < 0.2:
        one = replace(one, kernel=whole)
    elif whole == one.kernel and random.random() < 0.25:
        one = replace(one, kernel=f"{whole}_split")
    way = random.random()
    if way < 0.25:
        return partial(fused.whole(replace(one, out=out or "contiguous", kinds=KINDS[2])), **given)
    if way < 0.3:
        return partial(fused.zeros(replace(one, out=out or "contiguous")), **given)
    return partial(replace(one, packed=random.random() < 0.3), **given)


def _drawn_move(mine: passes.Moved, random: Random) -> Trial:
    first, second, *extents = mine.shape
    group = random.choice((mine.group, 1, 2, 3))
    if mine.operator:
        first, second = (first // mine.group, second) if mine.operator == "conv" else (second, first // mine.group)
    else:
        second //= mine.group
    first, second = (random.choice((n, n + 1, n + 5, random.randint(1, 40), _near(random))) for n in (first, second))
    if not mine.operator:
        batch = random.randint(1, 9)
        return _moved(mine, (batch, second * group, *extents), group, random)
    shape = (first * group, second) if mine.operator == "conv" else (second * group, first)
    return _moved(mine, (*shape, *extents), group, random)


def _moved(mine: passes.Moved, shape: tuple[int, ...], group: int, random: Random) -> Trial:
    extents = _turned(
        random, shape[2:], lambda n: random.choice((n + 1, n + 2, n + 5, 2 * n, random.randint(1, 17))), 0.6
    )
    return replace(
        mine,
        shape=(*shape[:2], *extents),
        group=group,
        layout=random.choice((mine.layout, "every other channel", *_LAYOUTS)),
        whole=random.random() < 0.5,
        tickets=random.choice((0, 0, 3, 5000)),
    )


def _near(random: Random) -> int:
    """Draw a channel count that is a multiple of 8, or one more or less."""
    return 8 * random.randint(1, 16) + random.choice((-1, 0, 1))


def _drawn_wgmma(mine: Forward, random: Random) -> Trial:
    problem = _varied(mine.problem, random, 48, 0.1)
    whole = mine.kernel.removesuffix("_split")
    one = replace(
        mine,
        problem=problem,
        kernel=random.choice((mine.kernel, mine.kernel, whole, f"{whole}_split")),
        kinds=random.choice((mine.kinds, *KINDS, *[_seldom_infinite(problem, random)] * 4)),
        multiprocessors=random.choice((1, 2, 3, 5)),
        layout=mine.layout if random.random() < 0.8 else random.choice(_LAYOUTS),
        out=random.choice((mine.out, *_LAYOUTS)),
        activation=random.choice((None, None, "relu", ("leaky_relu", -2))),
        packed=random.random() < 0.3,
    )
    return fused.zeros(one) if random.random() < 0.1 else one


# ---------------------------------------------------------------- gradients


def _infinities(random: Random) -> dict[str, bool]:
    return {"both": random.random() < 0.5, "first": random.random() < 0.5}


def _drawn_weights(mine: WeightGrad, like: WeightGrad, random: Random) -> Trial:
    if mine in gradients.LARGE_WEIGHTS:
        problem, layout = _varied(like.problem, random), random.choice(_LAYOUTS)
        return replace(mine, problem=problem, layout=layout, **_infinities(random))
    given = {**_infinities(random), "multiprocessors": random.choice(_MULTIPROCESSORS)}
    return replace(mine, problem=_varied(like.problem, random), layout=random.choice(_LAYOUTS), **given)


def _drawn_plane(mine: Plane, like: Plane, random: Random) -> Trial:
    batch, channels, *extents = mine.shape
    extents = _turned(random, extents, lambda n: random.choice((n // 2 + 1, n + 1, n + 2, 2 * n, 2 * n + 3)), 0.7)
    shape = (batch + random.randint(0, 2), channels + random.randint(0, 9), *extents)
    layout = mine.layout if random.random() < 0.5 else random.choice(_LAYOUTS)
    return replace(mine, shape=shape, layout=layout, multiprocessors=random.choice(_MULTIPROCESSORS))


def _drawn_sums(mine: BiasGrad, like: BiasGrad, random: Random) -> Trial:
    batch, *shape = mine.shape
    batch, shape = batch * random.randint(1, 3), _turned(random, shape, lambda n: n + random.randint(1, 9), 0.6)
    return replace(mine, shape=(batch, *shape), layout=random.choice(_LAYOUTS))


def _drawn_walk(mine: Any, like: Any, random: Random) -> Trial:
    """Draw a problem of a pool gradient by walks; those of averages stay small, as their reference is slow."""
    averages = isinstance(mine, AveragePoolGrad)
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in like.attributes.items()}
    problem = Problem("average_pool" if averages else "max_pool", like.shape, attributes=given)
    problem = _varied(problem, random, otherwise=0.1, most=20_000 if averages else _MOST_PRODUCTS)
    attributes = {
        name: tuple(value) if isinstance(value, list) else value for name, value in problem.attributes.items()
    }
    attributes.pop("group", None)
    if averages:
        attributes["count_include_pad"] = random.randint(0, 1)
    layout = random.choice(_LAYOUTS)
    return replace(like, kernel=mine.kernel, shape=problem.x_shape, layout=layout, attributes=attributes)


_GRADIENTS: dict[type, Callable[[Any, Any, Random], Trial]] = {
    WeightGrad: _drawn_weights,
    MaxPoolGrad: _drawn_walk,
    AveragePoolGrad: _drawn_walk,
    Plane: _drawn_plane,
    BiasGrad: _drawn_sums,
}
