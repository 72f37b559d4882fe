"""Small problems that reach every variant of every kernel: those of `benchmarks.small_shapes`, and some of four axes.

Blocks and tiles are hardly ever whole here, and there is mostly one of them: what `specimens` has are larger problems.
A new kernel needs a problem in `benchmarks.small_shapes`, of which it is a candidate.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from benchmarks import small_shapes
from benchmarks.small_shapes import Problem
from gpuconv.cuda.call import device
from gpuconv.cuda.plan.launch import Launch
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


def planned(problem: Problem, dtype: str, limits_of: str = "sm_90a") -> Recorded:
    """Plan the calls of a problem by all candidates, for an architecture's well-known device."""
    with recording(representative(limits_of).limits, all_candidates=True) as recorded:
        small_shapes.compute(problem, small_shapes.operands(problem, dtype))
    return recorded


def plan_all(limits_of: str = "sm_90a") -> Recorded:
    """Plan every problem in each of its dtypes by all candidates, with 32-bit and 64-bit indices, in some seconds."""
    with without_garbage_collection(), recording(representative(limits_of).limits, all_candidates=True) as recorded:
        for problem in PROBLEMS:
            for dtype in dtypes_of(problem):
                arrays = small_shapes.operands(problem, dtype)
                for wide in (False, True):
                    with indices(wide):
                        small_shapes.compute(problem, arrays)
                    device.prepared.clear()  # which is not told of the width
    return recorded


class Reached(NamedTuple):
    """What plans of all problems have: of every kernel the launch with the most shared memory, and the families."""

    launches: dict[str, Launch]
    families: set[Any]


@cache
def reached(limits_of: str = "sm_90a") -> Reached:
    """Plan all problems; it takes seconds, so call it inside of tests, not where they are collected."""
    found = Reached({}, set())
    recorded = plan_all(limits_of)
    for choice in recorded.choices:
        found.families.update(choice.families)
    for _, launch, _ in recorded.launches():
        known = found.launches.get(launch.variant.name, launch)
        found.launches[launch.variant.name] = max(known, launch, key=lambda one: one.shared_bytes)
    return found
