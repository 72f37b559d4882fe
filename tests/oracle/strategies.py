"""Random problems: shapes and attributes.

Each generator takes a `random.Random`. Hypothesis passes one that it can shrink (`problems`); mutation testing and
seeded tests pass seeded ones, so that all of them draw the same kinds of problems.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# Default runs draw the same problems every time; GPUCONV_EXAMPLES=20000 or GPUCONV_PROFILE=thousands draws new ones.
_QUIET: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("modest", max_examples=10, derandomize=True, **_QUIET)
settings.register_profile("thorough", max_examples=60, derandomize=True, **_QUIET)  # by --thorough
settings.register_profile("thousands", max_examples=int(os.environ.get("GPUCONV_EXAMPLES", "5000")), **_QUIET)
_PROFILE = os.environ.get("GPUCONV_PROFILE", "thousands" if "GPUCONV_EXAMPLES" in os.environ else "modest")


def checked(share: float = 1.0) -> settings:
    """Return hypothesis settings with ``share`` of the profile's number of examples."""
    profile = settings.get_profile(_PROFILE)
    return settings(profile, max_examples=max(1, int(profile.max_examples * share)))


@dataclass(frozen=True)
class Problem:
    """One call without its values; ``w_shape`` is None for pools, ``b_shape`` None without a bias."""

    operator: str
    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...] | None = None
    b_shape: tuple[int, ...] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return len(self.x_shape) - 2

    @property
    def shapes(self) -> tuple[tuple[int, ...] | None, ...]:
        """The positional arguments of the geometry functions."""
        return (self.x_shape,) if self.w_shape is None else (self.x_shape, self.w_shape, self.b_shape)


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a window: extent, kernel, stride, dilation, pads."""

    n: int
    k: int
    s: int
    d: int
    begin: int
    end: int

    @property
    def reach(self) -> int:
        return (self.k - 1) * self.d + 1


# Bounds by rank that keep problems small: the largest kernel, and the largest input beyond what the kernel needs.
_KERNEL = {1: 5, 2: 4, 3: 3, 4: 2, 5: 2}
_SURPLUS = {1: 9, 2: 5, 3: 3, 4: 2, 5: 2}


def _seldom(random: Random) -> bool:
    return random.randint(0, 15) == 15


def _pads(random: Random, reach: int) -> int:
    return random.choice((0, 0, 0, 1, 1, 2, reach - 1, reach, reach + 2))


def window_axis(random: Random, rank: int) -> Axis:
    """Return an axis of Conv or a pool; seldom with less room than the kernel needs, never with a negative output."""
    k, s, d = random.randint(1, _KERNEL[rank]), random.randint(1, 3), random.choice((1, 1, 2, 3))
    reach = (k - 1) * d + 1
    begin, end = _pads(random, reach), _pads(random, reach)
    least = reach - begin - end - (s if _seldom(random) else 0)
    n = max(0, least) + random.randint(0, _SURPLUS[rank])
    return Axis(n if _seldom(random) else max(1, n), k, s, d, begin, end)


def transposed_axis(random: Random, rank: int) -> tuple[Axis, int]:
    """Return an axis of ConvTranspose and its output_padding; pads never crop more than there is."""
    k, s, d = random.randint(1, _KERNEL[rank]), random.randint(1, 3), random.choice((1, 1, 2, 3))
    more = random.choice((0, 0, random.randint(0, max(s, d) - 1)))
    n = 0 if _seldom(random) else random.randint(1, _SURPLUS[rank])
    canvas = s * (n - 1) + (k - 1) * d + 1 + more
    if canvas < 0:
        n, canvas = 1, canvas + s
    left = canvas if _seldom(random) else max(0, canvas - 1)
    begin = random.randint(0, min(left, 4))
    return Axis(n, k, s, d, begin, random.randint(0, min(left - begin, 4))), more


def _listed(axes: Sequence[Axis]) -> dict[str, Any]:
    return {
        "kernel_shape": [a.k for a in axes],
        "strides": [a.s for a in axes],
        "dilations": [a.d for a in axes],
        "pads": [a.begin for a in axes] + [a.end for a in axes],
    }


def _with_auto_pad(random: Random, attributes: dict[str, Any], axes: Sequence[Axis]) -> dict[str, Any]:
    """Sometimes set another auto_pad, with pads of None or zeros; VALID only if the input covers the kernel."""
    valid = ["VALID", b"VALID"] if all(a.n >= a.reach for a in axes) else []
    mode = random.choice(["NOTSET", "NOTSET", "", b"NOTSET", "SAME_UPPER", "SAME_LOWER", b"SAME_LOWER", *valid])
    if mode in ("NOTSET", "", b"NOTSET"):
        return attributes if random.randint(0, 1) else {**attributes, "auto_pad": mode}
    return {**attributes, "auto_pad": mode, "pads": random.choice([None, [0] * 2 * len(axes)])}


def _without_some(random: Random, attributes: dict[str, Any], neutral: dict[str, Any]) -> dict[str, Any]:
    """Leave out attributes that have their default value, each with probability one half."""
    return {k: v for k, v in attributes.items() if k not in neutral or v != neutral[k] or random.randint(0, 1)}


def _defaults(rank: int) -> dict[str, Any]:
    return {"strides": [1] * rank, "dilations": [1] * rank, "pads": [0] * 2 * rank, "output_padding": [0] * rank}


def _rank(random: Random) -> int:
    return random.choice((2, 1, 1, 2, 2, 3, 3, 4, 5))


def _channels(random: Random) -> tuple[int, int, int]:
    """Return the group and the channels per group on either side; sometimes depthwise, seldom 0."""
    group = random.choice((1, 1, 1, 2, 3))
    c, m = (0 if _seldom(random) else random.choice((1, 1, 2, 3, 4)) for _ in range(2))
    return group, c, m


def _batch(random: Random) -> int:
    return 0 if _seldom(random) else random.choice((1, 1, 2, 3))


def conv_problem(random: Random, rank: int | None = None) -> Problem:
    rank = rank or _rank(random)
    axes = [window_axis(random, rank) for _ in range(rank)]
    group, c, m = _channels(random)
    attributes = _with_auto_pad(random, _listed(axes), axes)
    neutral = {**_defaults(rank), "kernel_shape": attributes["kernel_shape"]}
    return Problem(
        "conv",
        (_batch(random), c * group, *(a.n for a in axes)),
        (m * group, c, *(a.k for a in axes)),
        random.choice((None, (m * group,))),
        {**_without_some(random, attributes, neutral), "group": group},
    )


def _with_output_shape(random: Random, attributes: dict[str, Any], axes: Sequence[Axis]) -> dict[str, Any]:
    """Sometimes add an output_shape near the natural one, with or without N and C in front."""
    if random.randint(0, 3) < 3:
        return attributes
    natural = [a.s * (a.n - 1) + a.reach for a in axes]
    shape = [max(0, size + random.randint(-4, 3)) for size in natural]
    return {**attributes, "output_shape": random.choice(([], [7, -9])) + shape}


def conv_transpose_problem(random: Random, rank: int | None = None) -> Problem:
    rank = rank or _rank(random)
    axes, more = zip(*(transposed_axis(random, rank) for _ in range(rank)), strict=True)
    group, c, m = _channels(random)
    attributes = {**_listed(axes), "output_padding": list(more)}
    # If cropping by pads is legal, VALID is legal too: it crops nothing.
    attributes = _with_output_shape(random, _with_auto_pad(random, attributes, axes), axes)
    neutral = {**_defaults(rank), "kernel_shape": attributes["kernel_shape"]}
    return Problem(
        "conv_transpose",
        (_batch(random), c * group, *(a.n for a in axes)),
        (c * group, m, *(a.k for a in axes)),
        random.choice((None, (m * group,))),
        {**_without_some(random, attributes, neutral), "group": group},
    )


def max_pool_problem(random: Random, rank: int | None = None) -> Problem:
    rank = rank or _rank(random)
    axes = [window_axis(random, rank) for _ in range(rank)]
    attributes = _with_auto_pad(random, _listed(axes), axes)
    attributes |= {"ceil_mode": random.randint(0, 1), "storage_order": random.randint(0, 1)}
    neutral = {**_defaults(rank), "ceil_mode": 0, "storage_order": 0}
    x_shape = (_batch(random), 0 if _seldom(random) else random.choice((1, 2, 3)), *(a.n for a in axes))
    return Problem("max_pool", x_shape, attributes=_without_some(random, attributes, neutral))


def rows_pool_problem(random: Random, rank: int | None = None) -> Problem:
    """Return a MaxPool for the row kernels: up to three axes, seldom dilated, no empty window."""
    rank = rank or random.randint(1, 3)
    most = random.choice((3, 3, 3, 7))
    size, stride = random.choice(((2, 2), (3, 2), (3, 1), (random.randint(1, most), random.randint(1, 3))))
    alike = random.random() < 0.7  # whether height and width have the same window; the depth may differ
    kernel = [size if alike and rank - axis <= 2 else random.randint(1, most) for axis in range(rank)]
    strides = [stride if alike and rank - axis <= 2 else random.randint(1, 3) for axis in range(rank)]
    dilations = [random.choice((1, 2, 3)) if _seldom(random) else 1 for _ in kernel]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    extents = [random.randint(k, max(k, (70, 19, 5)[rank - 1])) for k in reach[:-1]]
    unit = random.choice((1, 1, 2, 4, 8, 16))
    extents.append(-(-random.randint(reach[-1], 90 if rank < 3 else 40) // unit) * unit)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    attributes["ceil_mode"] = random.randint(0, 1)
    attributes["pads"] = [random.randint(0, k - 1) for k in (*reach, *reach)]
    return Problem("max_pool", (random.randint(1, 2), random.randint(1, 4), *extents), attributes=attributes)


def channels_pool_problem(random: Random) -> Problem:
    """Return a MaxPool for the kernel over vectors of channels, in every dtype or in those with longer elements."""
    rank = random.randint(1, 3)
    kernel = [random.choice((1, 2, 3, 3, random.randint(1, 6))) for _ in range(rank)]
    extents = [random.randint(k, max(k, (40, 9, 5)[rank - 1])) for k in kernel]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "ceil_mode": random.randint(0, 1)}
    attributes["strides"] = [random.randint(1, 3) for _ in kernel]
    attributes["pads"] = [random.randint(0, k - 1) for k in (*kernel, *kernel)]
    channels = random.choice((16, 16, 32, 8, 2))
    return Problem("max_pool", (random.randint(1, 2), channels, *extents), attributes=attributes)


def average_pool_problem(random: Random, rank: int | None = None) -> Problem:
    problem = max_pool_problem(random, rank)
    attributes = {name: value for name, value in problem.attributes.items() if name != "storage_order"}
    attributes["count_include_pad"] = random.randint(0, 1)
    return Problem(
        "average_pool", problem.x_shape, attributes=_without_some(random, attributes, {"count_include_pad": 0})
    )


GENERATORS: dict[str, Callable[..., Problem]] = {
    "conv": conv_problem,
    "conv_transpose": conv_transpose_problem,
    "max_pool": max_pool_problem,
    "average_pool": average_pool_problem,
}


def problems(operator: str, rank: int | None = None) -> st.SearchStrategy[Problem]:
    return st.randoms(use_true_random=False).map(lambda random: GENERATORS[operator](random, rank))
