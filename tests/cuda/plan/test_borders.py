"""Limits of the kernel families: shared memory, blocks and index widths, each just below and above its limit.

The problems are those of the specimens, with arrays in the same layouts, and some for wgmma.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gpuconv import ArgumentError
from gpuconv.cuda.build import params
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.direct import channels as channels_plan
from gpuconv.cuda.conv.direct import few, rows, transpose
from gpuconv.cuda.conv.gemm import ffma, grouped, interleaved, mma, stem
from gpuconv.cuda.plan import launch as launches
from gpuconv.cuda.plan.launch import Launch
from gpuconv.cuda.plan.limits import Limits, representative
from gpuconv.cuda.plan.offers import Candidate
from gpuconv.cuda.pool import axis as pool_axis
from gpuconv.cuda.pool import channels as pool_channels
from gpuconv.cuda.pool import families as pool_families
from gpuconv.cuda.pool import general, patches, planes, tiles, vectors
from gpuconv.cuda.pool import problem as pool_problem
from gpuconv.rules import geometry as geometries
from tests.harness.offered import candidates
from tests.kernels.convolutions import CONVOLUTIONS
from tests.kernels.pools import FORWARD_POOLS
from tests.kernels.specimen import Forward
from tests.oracle.operands import LAYOUTS
from tests.oracle.strategies import Problem

pytestmark = pytest.mark.slow

HOPPER = representative("sm_90a").limits
COUNTING = (rows, channels_plan, pool_channels, patches, tiles, vectors)
Ints = tuple[int, ...]
_FLAT: dict[str, Any] = {"strides": [2, 1], "pads": [1, 2, 0, 1], "dilations": [1, 2]}
WGMMA = (
    Forward("conv_float16_3d_wgmma_128x256", Problem("conv", (3, 72, 21, 26), (300, 72, 3, 2), None, _FLAT)),
    Forward("conv_float32_3d_tf32_wgmma_64x256", Problem("conv", (2, 68, 25, 24), (140, 68, 3, 2), None, _FLAT)),
    Forward("conv_bfloat16_3d_wgmma_64x256", Problem("conv", (4, 20, 5, 14, 15), (140, 20, 2, 3, 2))),
    Forward(
        "conv_transpose_float16_3d_wgmma_128x256",
        Problem("conv_transpose", (4, 72, 13, 17), (72, 300, 3, 4), None, {**_FLAT, "output_padding": [1, 0]}),
    ),
)


def lying(shape: Ints, layout: str) -> Ints:
    """Return the strides of a layout in elements."""
    found: Ints = LAYOUTS[layout](np.zeros(shape, np.int8)).strides
    return found


def problem_of(one: Forward, far: str = "", step: int = 0) -> Any:
    """Return the planner's problem; ``step`` sets the distance between images of array ``far``."""
    p, dtype = one.problem, one.dtype.name
    shapes = [p.x_shape, *([] if p.w_shape is None else [p.w_shape])]
    geometry: Any = getattr(geometries, p.operator)(*shapes, **p.attributes)
    x, y = lying(p.x_shape, one.layout), lying(geometry.y_shape, one.out or "contiguous")
    x, y = ((step, *strides[1:]) if name == far else strides for name, strides in (("x", x), ("y", y)))
    if p.w_shape is None:
        return pool_problem.PoolProblem(geometry, dtype, x, y, y if one.kernel.endswith("indices") else None)
    return correlation.of(geometry, dtype, x, lying(p.w_shape, "contiguous"), None, y, one.precision)


def of_families() -> dict[ModuleType, list[Forward]]:
    """Return the specimens with 32-bit indices, by the family of their kernel."""
    found: dict[ModuleType, list[Forward]] = {}
    for family in (*conv_families.FAMILIES, *pool_families.FAMILIES):
        if family is planes:  # which counts offsets of images in 64 bits, and has no shared memory
            continue
        names = {variant.name for variant in family.variants()}
        if family in (ffma, mma):  # which also divide their tiles
            names |= {f"{name}_split" for name in names}
        found[family] = [one for one in (*CONVOLUTIONS, *FORWARD_POOLS, *WGMMA) if one.kernel in names and not one.wide]
    return found


FAMILIES = of_families()
families = pytest.mark.parametrize("family", FAMILIES, ids=lambda module: module.__name__.rpartition(".")[2])


def planned(family: Any, one: Forward, limits: Limits = HOPPER, problem: Any = None) -> Launch | None:
    """Return the last launch of the family's candidate of this name, or None."""
    found: list[Candidate] = list(candidates(family, problem or problem_of(one), limits))
    named = [candidate for candidate in found if candidate.name == one.kernel]
    return named[0].make().launches[-1] if named else None


# ---------------------------------------------------------------- shared memory

# Kernels without a check of shared memory: at most 24 KiB, which every device has.
WITHOUT = (few, transpose, general, vectors, pool_channels, pool_axis)
UNASKED = "conv_few_"


@families
def test_a_block_may_have_all_shared_memory_that_there_is_and_no_more(family: ModuleType) -> None:
    limits = HOPPER if family is not rows else replace(HOPPER, shared_bytes_per_multiprocessor=0)
    tried = 0
    for one in FAMILIES[family]:
        launch = planned(family, one, limits)
        if launch is None or launch.shared_bytes == 0 or one.kernel.startswith(UNASKED):
            continue
        tried += 1
        exactly = planned(family, one, replace(limits, shared_bytes_per_block=launch.shared_bytes))
        assert exactly == launch or family is grouped, one  # which considers fewer tiles with less shared memory
        less = planned(family, one, replace(limits, shared_bytes_per_block=launch.shared_bytes - 1))
        assert less is None or less.shared_bytes < launch.shared_bytes, one
    assert (tried == 0) == (family in WITHOUT), family


@pytest.mark.parametrize("family", [stem, interleaved], ids=["stem", "interleaved"])
def test_some_families_want_two_blocks_on_a_multiprocessor(family: ModuleType) -> None:
    """The system reserves 1 KiB of shared memory per block."""
    for one in FAMILIES[family]:
        launch = planned(family, one)
        assert launch is not None
        room = 2 * (launch.shared_bytes + 1024)
        assert planned(family, one, replace(HOPPER, shared_bytes_per_multiprocessor=room)) == launch
        less = planned(family, one, replace(HOPPER, shared_bytes_per_multiprocessor=room - 1))
        assert less is None or less.shared_bytes < launch.shared_bytes, one


# ---------------------------------------------------------------- blocks


@contextmanager
def most_blocks(count: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (launches, rows, *COUNTING[1:]):
            patch.setattr(module, "MOST_BLOCKS", count)
        channels_plan.best.cache_clear()
        yield
    channels_plan.best.cache_clear()


def blocks(family: ModuleType, one: Forward, launch: Launch) -> int:
    """Return the number of blocks as the family counts them, before blocks are merged."""
    x = one.problem.x_shape
    if family is pool_channels:  # each thread computes one output of a vector of channels
        y = getattr(geometries, one.problem.operator)(x, **one.problem.attributes).y_shape
        vector = 2 if one.kernel.endswith("indices") else 16 // one.dtype.itemsize
        return -(-(prod(y) // y[1] * -(-y[1] // vector)) // 256)
    return launch.grid[0]


@pytest.mark.parametrize("family", COUNTING, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_launch_has_no_more_blocks_than_a_grid(family: ModuleType) -> None:
    for one in FAMILIES[family]:
        launch = planned(family, one)
        assert launch is not None
        assert launch.grid[1:] == (1, 1)
        count = blocks(family, one, launch)
        with most_blocks(count):
            assert planned(family, one) == launch, one
        with most_blocks(count - 1):
            less = planned(family, one)
            assert less is None or less.grid[0] < count, one


def test_blocks_fill_a_grid_or_are_refused() -> None:
    launch = planned(rows, FAMILIES[rows][0])
    assert launch is not None
    assert Launch.of_blocks("conv", launch.variant, 2**31 - 1, {}, {}).grid == (2**31 - 1, 1, 1)
    with pytest.raises(
        ArgumentError, match=r"^conv: 2147483648 blocks are more than the 2147483647 of one CUDA launch$"
    ):
        Launch.of_blocks("conv", launch.variant, 2**31, {}, {})


# ---------------------------------------------------------------- indices

TO_SPACE = ("conv_transpose_depth_to_space", "conv_transpose_matrix", "conv_transpose_phase_rows")


@families
@pytest.mark.parametrize("array", ["x", "y"])
def test_32_bits_are_enough_up_to_their_border(family: ModuleType, array: str) -> None:
    """The distance between images puts the last offset less than a thousandth below the limit, or beyond it."""
    tried = [one for one in FAMILIES[family] if one.problem.x_shape[0] > 1 and planned(family, one) is not None]
    assert tried
    for one in tried:
        images = one.problem.x_shape[0] - (
            array == "x" or not one.kernel.startswith(TO_SPACE)
        )  # which count to the end of y
        apart = params.INDEX_LIMIT // images // 64 * 64
        near = problem_of(one, array, apart - 2**20)
        assert planned(family, one, problem=near) is not None, one
        assert planned(family, one, problem=problem_of(one, array, apart + 64)) is None, one


@pytest.mark.parametrize(
    ("operator", "shapes", "strides", "attributes"),
    [
        ("conv", ((1, 8, 10), (2, 8, 3)), {"w": (2**30, 3, 1)}, {}),
        ("conv_transpose", ((1, 8, 10), (8, 2, 3)), {"w": (2**28, 3, 1)}, {}),
        ("conv", ((1, 8, 9, 224), (8, 8, 3, 7)), {"x": (0, 2**28 + 2**22, 224, 1)}, {"strides": [1, 4]}),
        ("conv_transpose", ((1, 3, 2), (3, 4, 1)), {"y": (0, 1, 2**30)}, {"strides": [2], "pads": [0, 1]}),
    ],
    ids=["filters", "channels", "channels of x", "outputs"],
)
def test_what_lies_behind_the_last_of_an_array_needs_no_index(
    operator: str, shapes: tuple[Ints, Ints], strides: dict[str, Ints], attributes: dict[str, Any]
) -> None:
    """The next group after the last one, or the next column, may be beyond the range of 32 bits."""
    geometry = getattr(geometries, operator)(*shapes, **attributes)
    arrays = zip("xwy", (*shapes, geometry.y_shape), strict=True)
    x, w, y = (strides.get(name, lying(shape, "contiguous")) for name, shape in arrays)
    problem = correlation.of(geometry, "float32", x, w, None, y)
    assert not problem.wide()
    offered = conv_families.in_order(problem, HOPPER)
    assert offered
    for candidate in offered:
        for launch in candidate.make().launches:
            assert len(launch.parameters) == launch.variant.layout.itemsize, candidate.name
