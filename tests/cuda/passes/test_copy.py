"""Launches of strided copies, by hand; adjacent threads write adjacent elements."""

from __future__ import annotations

import pytest

from gpuconv.cuda.build.params import INDEX_LIMIT
from gpuconv.cuda.passes import copy as copy_pass
from tests.harness.plans import fields, wide

Ints = tuple[int, ...]


@pytest.mark.parametrize(
    ("shape", "source", "target", "extents", "steps"),
    [
        ((2, 3, 4), (12, 4, 1), (12, 4, 1), [1, 1, 1, 24], ([0, 0, 0, 1], [0, 0, 0, 1])),
        ((2, 3, 4), (12, 4, 1), (12, 1, 3), [1, 2, 4, 3], ([0, 12, 1, 4], [0, 12, 3, 1])),
        ((2, 3, 4), (12, 1, 3), (12, 4, 1), [1, 2, 3, 4], ([0, 12, 1, 3], [0, 12, 4, 1])),
        ((2, 3, 4), (12, 4, 1), (1, -2, 6), [1, 4, 3, 2], ([0, 1, 4, 12], [0, 6, -2, 1])),
        ((2, 1, 4), (99, 7, 1), (8, 5, 2), [1, 1, 2, 4], ([0, 0, 99, 1], [0, 0, 8, 2])),
        ((2, 3, 4, 5), (60, 20, 5, 1), (999, 100, 15, 2), [2, 3, 4, 5], ([60, 20, 5, 1], [999, 100, 15, 2])),
    ],
)
def test_threads_side_by_side_write_the_targets_neighbours(
    shape: Ints, source: Ints, target: Ints, extents: list[int], steps: tuple[list[int], list[int]]
) -> None:
    launch = copy_pass.copy("conv", "float32", shape, {"x": source, "y": target})
    struct = fields(launch)
    assert launch.variant.name == "copy_32bit_4d"
    assert struct["extent"][1:] == extents[1:]  # the first is never a divisor
    assert (struct["source_stride"], struct["target_stride"]) == steps
    assert launch.grid == (1, 1, 1)
    assert [role for role, _ in launch.pointers] == ["x", "y"]


@pytest.mark.parametrize(
    ("shape", "source", "target", "expected"),
    [
        ((2, 2), (1, INDEX_LIMIT - 2), (1, 2), False),  # from the first element to the last: limit - 1
        ((2, 2), (1, INDEX_LIMIT - 1), (1, 2), True),
        ((2, 2), (1, 2), (1, 2 - INDEX_LIMIT), False),
        ((2, 2), (1, 2), (1, 1 - INDEX_LIMIT), True),
        ((INDEX_LIMIT - 1,), (0,), (0,), False),
        ((INDEX_LIMIT,), (0,), (0,), True),  # elements that all have one address
    ],
)
def test_offsets_and_counts_settle_the_width(shape: Ints, source: Ints, target: Ints, expected: bool) -> None:
    launch = copy_pass.copy("conv", "float64", shape, {"x": source, "y": target})
    assert wide(launch) is expected
    assert launch.variant.name == f"copy_64bit_{'6d' if expected else '4d'}" + "_wide" * expected
