"""Small problems of every family of kernels, and what plans of them launch: planned, so that no compiler is needed.

They are those of `benchmarks.small_shapes`, which have candidates of all kernels of up to three axes, and some of four.
A new kernel needs one here or there. The emulator runs it, and it tells how much shared memory a launch takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import product
from operator import attrgetter
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from benchmarks import small_shapes
from benchmarks.small_shapes import Problem
from gpuconv.cuda.build import kernel_files, sources
from gpuconv.cuda.call import device, prepared
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.launch import Launch, Plan
from gpuconv.cuda.plan.limits import Limits, representative
from gpuconv.cuda.plan.offers import Candidate
from gpuconv.cuda.pool import families as pool_families
from gpuconv.cuda.pool.grad import families as pool_grad_families
from gpuconv.cuda.variants import all_variants
from gpuconv.cuda.weight_grad import families as weight_grad_families
from tests.harness import fused, many_blocks, many_gradients, many_wgmma, passes
from tests.harness.emulated import indices
from tests.harness.many_blocks import ManyBlocks

FAMILIES = tuple(
    family
    for operator in (conv_families, pool_families, weight_grad_families, pool_grad_families)
    for family in operator.FAMILIES
)
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


class Planned(NamedTuple):
    """What the calls of a problem launch.

    Attributes
    ----------
    first : list of Launch
        By the first candidate of each choice.
    choices : list of list of list of Launch
        Of every choice, by each candidate.
    families : set of modules
        That have a candidate.
    """

    first: list[Launch]
    choices: list[list[list[Launch]]]
    families: set[Any]


def dtypes_of(problem: Problem) -> tuple[str, ...]:
    """Return those of a problem; complex numbers would have kernels of one axis more, which are not built ahead."""
    return tuple(one for one in small_shapes._dtypes_of(problem) if problem not in FOUR_AXES or "complex" not in one)


def planned(problem: Problem, dtype: str, limits_of: str = "sm_90a") -> Planned:
    """Plan the calls of a problem, for nothing to be launched: results are zeros."""
    found = Planned([], [], set())

    class Noted:
        def __init__(self, number: int, plan: Plan, inputs: Any, roles: Any, results: Any, outs: Any) -> None:
            found.first.extend(plan.launches)
            self._results = results

        def run(self, inputs: Any, outs: Any) -> list[Any]:
            return [np.zeros(result.shape, result.dtype) for result in self._results]

    def of_each(families: Iterable[Any], problem: Any, limits: Limits) -> tuple[list[Candidate], list[str]]:
        candidates = {family: offers_of((family,), problem, limits)[0] for family in families}
        found.families.update(family for family, its in candidates.items() if its)
        return [one for its in candidates.values() for one in its], []

    def first(candidates: Sequence[Candidate]) -> Candidate:
        found.choices.append([list(one.make().launches) for one in candidates])
        return candidates[0]

    offers_of, noted = offers.of, mock.patch.object(prepared, "Prepared", Noted)
    on_host = _of_host(representative(limits_of).limits)
    with noted, on_host, mock.patch.object(offers, "of", of_each), offers.picking(first):
        small_shapes.compute(problem, small_shapes.operands(problem, dtype))
    return found


def _of_host(limits: Limits) -> Any:
    """Let calls be planned for a device of these limits whose arrays are NumPy's."""
    return mock.patch.multiple(
        device,
        prepared={},
        array_type=lambda: np.ndarray,
        current_device=lambda: 0,
        device_of=lambda _: 0,
        layout=attrgetter("shape", "strides", "dtype"),
        limits=lambda _: limits,
        is_capturing=lambda: False,
        to_host=lambda array: array,
    )


class Reached(NamedTuple):
    """What plans of all problems have: of every kernel the launch with the most shared memory, and the families."""

    launches: dict[str, Launch]
    families: set[Any]


@cache
def reached(limits_of: str = "sm_90a") -> Reached:
    """Plan all problems; it takes seconds, so call it inside of tests, not where they are collected."""
    found = Reached({}, set())
    for wide, problem in product((False, True), PROBLEMS):
        for dtype in dtypes_of(problem):
            with indices(wide):
                first, choices, families = planned(problem, dtype, limits_of)
            found.families.update(families)
            for launch in (*first, *(one for each in choices for many in each for one in many)):
                known = found.launches.get(launch.variant.name, launch)
                found.launches[launch.variant.name] = max(known, launch, key=lambda one: one.shared_bytes)
    return found


# ---------------------------------------------------------------- problems of several blocks

Trial = ManyBlocks | Callable[..., Any]

# By the sources of kernels that make no result of a convolution or a pool, or none alone.
PASSES: dict[str, tuple[Trial, ...]] = {
    "conv/gemm/pack_weights.cu": many_blocks.GEMMS,
    "conv/gemm/pack_fragments.cu": many_blocks.TENSOR,
    "passes/channels_last.cu": passes.MANY,
    "weight_grad/plain.cu": many_gradients.WEIGHTS,
    "weight_grad/few.cu": many_gradients.FEW_WEIGHTS,
    "weight_grad/rows.cu": many_gradients.ROW_WEIGHTS,
    "weight_grad/tiles.cu": many_gradients.LARGE_WEIGHTS,
    "passes/add_up.cu": (*many_gradients.WEIGHTS, *many_gradients.SUMS, *many_gradients.COMPLEX),
    "passes/channel_sums.cu": many_gradients.SUMS,
    "passes/copy.cu": many_gradients.COPIES,
    "pool/grad/general.cu": many_gradients.POOLS,
    "pool/grad/averages.cu": many_gradients.AVERAGE_WALKS,
    "pool/grad/walks.cu": many_gradients.WALKS,
    "pool/grad/scatter.cu": many_gradients.SCATTERS,
    "pool/planes.cu": many_gradients.PLANES,
    "pool/unpool.cu": many_gradients.UNPOOLS,
    "pool/indices.cu": (*many_gradients.UNPOOLS, *many_gradients.CHECKS),
    "complex.cu": many_gradients.COMPLEX,
}
_FUSED = tuple(partial(fused.check, number) for number in range(0, len(fused.KERNELS), 8))


@cache
def sources_of_kernels() -> dict[str, tuple[Trial, ...]]:
    """Return the problems of several blocks by the sources of their kernels."""
    known = {variant.name: variant.source for variant in all_variants()}
    found: dict[str, tuple[Trial, ...]] = dict(PASSES)
    for one in (*many_wgmma.ALL, *many_blocks.ALL):
        kernel = one.kernel.removesuffix("_split")
        source = known.get(kernel) or next(known[name] for name in known if name.endswith(kernel))
        found[source] = (*found.get(source, ()), one)
    return found


def files() -> list[str]:
    """Return the files of kernels_cu that kernels are made of, by their paths from there on."""
    root = kernel_files.folder()
    found = {path.relative_to(root).as_posix() for path in root.rglob("*.cu*")}
    return sorted(found - {"base/chained.cuh"})  # no source includes it; tests/cuda/call/test_chained.py has its faults


def problems_of(path: str) -> tuple[Trial, ...]:
    """Return the problems that a file takes part in: its own, or those of all sources that include it."""
    if path == "conv/finish.cuh":  # which does nothing in others
        return _FUSED
    by_source = sources_of_kernels().items()
    found = (problem for source, problems in by_source if path in _included(source) for problem in problems)
    return tuple(dict.fromkeys(found))


@cache
def _included(source: str) -> frozenset[str]:
    """Return a source with all headers that it includes, by way of others too."""
    seen: set[str] = set()
    list(sources._inlined(kernel_files.folder(), source, seen))
    return frozenset(seen)
