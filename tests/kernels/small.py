"""Small problems that reach every variant of every kernel: those of `benchmarks.small_shapes`, and some of four axes.

Blocks and tiles are rarely full here, and mostly there is one of them; the specimens are larger. A new kernel needs a
problem in `benchmarks.small_shapes` for which it is a candidate.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from benchmarks import small_shapes
from benchmarks.small_shapes import Problem
from gpuconv.cuda.plan.limits import representative
from tests.harness.emulated import indices
from tests.kernels.planning import Recorded, recording, without_garbage_collection

_STRIDED: dict[str, Any] = {"strides": [1, 2, 1, 2], "dilations": [1, 1, 2, 1]}
_POOLED: dict[str, Any] = {"strides": [1, 2, 1, 2], "kernel_shape": [2, 3, 2, 2]}
# Fewer channels than a slice of K, and as many as divide it.
FOUR_AXES = (
    Problem("conv", (1, 3, 3, 4, 3, 4), (5, 3, 2, 1, 2, 2), _STRIDED, gradients=True),
    Problem("conv", (1, 16, 3, 4, 3, 4), (66, 16, 2, 1, 2, 2), _STRIDED),
    Problem("conv_transpose", (1, 3, 3, 4, 3, 4), (3, 5, 2, 1, 2, 2), _STRIDED),
    Problem("conv_transpose", (1, 16, 3, 4, 3, 4), (16, 66, 2, 1, 2, 2), _STRIDED),
    Problem("max_pool", (1, 2, 3, 4, 3, 4), (), _POOLED, gradients=True),
    Problem("average_pool", (1, 2, 3, 4, 3, 4), (), {**_POOLED, "kernel_shape": [2, 4, 2, 2]}, gradients=True),
)
PROBLEMS = (
    *FOUR_AXES,
    *small_shapes.PROBLEMS,
    *small_shapes.DEPTHWISE,
    *small_shapes.CHANNELS,
    *small_shapes.AVERAGES,
    *small_shapes.TENSOR,
    *small_shapes.GRADIENTS,
)


def dtypes_of(problem: Problem) -> tuple[str, ...]:
    """Return a problem's dtypes; complex ones would need kernels of one more axis, which are not prebuilt."""
    return tuple(one for one in small_shapes._dtypes_of(problem) if problem not in FOUR_AXES or "complex" not in one)


class Call(NamedTuple):
    """The calls of a problem in a dtype, with 64-bit indices or not, and their plans by all candidates."""

    problem: Problem
    dtype: str
    wide: bool
    recorded: Recorded


def plans(limits_of: str = "sm_90a") -> Iterator[Call]:
    """Plan every problem in each dtype, with 32-bit and 64-bit indices, for a representative device.

    All of them have about 40,000 launches and take some seconds. Each yielded record is cleared before the next one.
    """
    with without_garbage_collection(), recording(representative(limits_of).limits, all_candidates=True) as recorded:
        for problem in PROBLEMS:
            for dtype in dtypes_of(problem):
                arrays = small_shapes.operands(problem, dtype)
                for wide in (False, True):
                    with indices(wide):
                        small_shapes.compute(problem, arrays)
                    yield Call(problem, dtype, wide, recorded)
                    recorded.clear()


class Try(NamedTuple):
    """Candidate number ``number`` at every choice of a call, with the kernels that it launches."""

    problem: Problem
    dtype: str
    wide: bool
    number: int
    kernels: frozenset[str]


def _tries(call: Call) -> Iterator[Try]:
    """Yield the tries of a call; launches besides the candidates' own count only for the first."""
    choices = call.recorded.choices
    for number in range(max((len(choice.plans) for choice in choices), default=1)):
        chosen = call.recorded.calls if number == 0 else [one.plans[number % len(one.plans)] for one in choices]
        kernels = frozenset(launch.variant.name for plan in chosen for launch in plan.launches)
        yield Try(call.problem, call.dtype, call.wide, number, kernels)


class Survey(NamedTuple):
    """Facts about the plans of all problems.

    Attributes
    ----------
    shared_bytes : dict
        Most dynamic shared memory of a launch in bytes, by kernel name.
    families : set of modules
        Families with a candidate.
    tries : list of Try
    """

    shared_bytes: dict[str, int]
    families: set[Any]
    tries: list[Try]


@cache
def survey(limits_of: str = "sm_90a") -> Survey:
    """Plan all problems; this takes seconds, so call it inside tests, not at collection."""
    found = Survey({}, set(), [])
    for call in plans(limits_of):
        found.tries.extend(_tries(call))
        for choice in call.recorded.choices:
            found.families.update(choice.families)
        for _, launch, _ in call.recorded.launches():
            known = found.shared_bytes.get(launch.variant.name, 0)
            found.shared_bytes[launch.variant.name] = max(known, launch.shared_bytes)
    return found
