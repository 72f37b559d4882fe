"""Small problems that reach every variant of every kernel: those of `benchmarks.small_shapes`, and some of four axes.

Blocks and tiles are hardly ever whole here, and there is mostly one of them: what `specimens` has are larger problems.
A new kernel needs a problem in `benchmarks.small_shapes`, of which it is a candidate.
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
# Fewer channels than a slice of K has rows, and as many as divide it.
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
    """Return those of a problem; complex numbers would have kernels of one axis more, which are not built ahead."""
    return tuple(one for one in small_shapes._dtypes_of(problem) if problem not in FOUR_AXES or "complex" not in one)


class Call(NamedTuple):
    """The calls of a problem in a dtype, with 64-bit indices or not, and their plans by all candidates."""

    problem: Problem
    dtype: str
    wide: bool
    recorded: Recorded


def plans(limits_of: str = "sm_90a") -> Iterator[Call]:
    """Plan every problem in each of its dtypes, with 32-bit and 64-bit indices, for a well-known device.

    All have some 40,000 launches, and take some seconds. What one yields is lost when the next one is asked for.
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
    """One of the candidates of every choice of a call: the first, the second ..., and the kernels that it launches."""

    problem: Problem
    dtype: str
    wide: bool
    number: int
    kernels: frozenset[str]


def _tries(call: Call) -> Iterator[Try]:
    """Yield those that differ; what calls launch besides their candidates' kernels counts for the first alone."""
    choices = call.recorded.choices
    for number in range(max((len(choice.plans) for choice in choices), default=1)):
        chosen = call.recorded.calls if number == 0 else [one.plans[number % len(one.plans)] for one in choices]
        kernels = frozenset(launch.variant.name for plan in chosen for launch in plan.launches)
        yield Try(call.problem, call.dtype, call.wide, number, kernels)


class Survey(NamedTuple):
    """What plans of all problems have.

    Attributes
    ----------
    shared_bytes : dict
        The most dynamic shared memory of a launch, in bytes, by the kernel's name.
    families : set of modules
        That have a candidate.
    tries : list of Try
    """

    shared_bytes: dict[str, int]
    families: set[Any]
    tries: list[Try]


@cache
def survey(limits_of: str = "sm_90a") -> Survey:
    """Plan all problems; it takes seconds, so call it inside of tests, not where they are collected."""
    found = Survey({}, set(), [])
    for call in plans(limits_of):
        found.tries.extend(_tries(call))
        for choice in call.recorded.choices:
            found.families.update(choice.families)
        for _, launch, _ in call.recorded.launches():
            known = found.shared_bytes.get(launch.variant.name, 0)
            found.shared_bytes[launch.variant.name] = max(known, launch.shared_bytes)
    return found
