"""Launches of sums over all axes but the channels, and of partial sums: counts by hand, index widths."""

from __future__ import annotations

from typing import Any

import pytest

from gpuconv.cuda.build.params import INDEX_LIMIT
from gpuconv.cuda.call.prepared import contiguous_strides
from gpuconv.cuda.passes import sums as sums_pass
from gpuconv.cuda.plan import strided
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import representative
from gpuconv.rules.gradients import SumsGeometry
from tests.harness.plans import fields, wide

HOPPER = representative("sm_90a").limits  # 132 multiprocessors
Ints = tuple[int, ...]


def planned(x: Ints, x_strides: Ints | None = None, y_stride: int = 1, dtype: str = "float32") -> Plan:
    geometry = SumsGeometry(x, (x[1],))
    return sums_pass.for_channels(geometry, dtype, x_strides or contiguous_strides(x), (y_stride,), HOPPER)


@pytest.mark.parametrize(
    ("x", "x_strides", "tiles", "parts", "each"),
    [
        ((2, 8, 100, 100), None, 8, 10, 2000),  # of 256 threads, each of eight elements
        ((2, 8, 64, 64), None, 8, 4, 2048),
        ((2, 8, 64, 65), None, 8, 5, 1664),
        ((64, 100, 112, 112), None, 100, 6, 133803),  # of 528 blocks, four on each multiprocessor
        ((64, 528, 112, 112), None, 528, 1, 802816),
        ((64, 529, 112, 112), None, 529, 1, 802816),
        ((64, 100, 112, 112), (1254400, 1, 11200, 100), 4, 132, 6082),  # 32 channels, each of eight threads
        ((2, 8, 8, 8), (512, 1, 64, 8), 1, 2, 64),
        ((2, 8, 8, 9), (576, 1, 72, 8), 1, 3, 48),
        ((2, 33, 4, 8), (1056, 1, 264, 33), 2, 1, 64),
        ((1, 7, 1, 1), None, 7, 1, 1),  # one element: contiguous channels are not rows
        ((3, 1, 5), (5, 1, 1), 1, 1, 15),
        ((0, 3, 5), None, 3, 1, 0),
        ((4, 3, 0, 2**40), (2**60, 2**60, 2**60, 2**60), 3, 1, 0),  # no elements, with any strides
    ],
)
def test_blocks_for_every_multiprocessor_with_enough_for_each_thread(
    x: Ints, x_strides: Ints | None, tiles: int, parts: int, each: int
) -> None:
    made = planned(x, x_strides)
    sums, add_up = made.launches
    struct = fields(sums)
    assert sums.grid == (tiles * parts, 1, 1)
    assert (struct["tiles"], struct["each"], struct["channels"]) == (tiles, each, x[1])
    assert made.bytes_of("workspace") == parts * x[1] * 4
    assert fields(add_up)["parts"] == parts
    assert f"in {parts} parts" in made.reasons[0]


@pytest.mark.parametrize(
    ("x", "x_strides", "y_stride", "expected"),
    [
        ((2, 3, 5), (INDEX_LIMIT - 15, 5, 1), 1, (False, False)),  # from the first element to the last: limit - 1
        ((2, 3, 5), (INDEX_LIMIT - 14, 5, 1), 1, (True, False)),
        ((2, 3, 5), (5 - INDEX_LIMIT, 0, 1), 1, (False, False)),
        ((2, 3, 5), (4 - INDEX_LIMIT, 0, 1), 1, (True, False)),
        ((1, 2, 5), (0, INDEX_LIMIT - 5, 1), 1, (False, False)),
        ((1, 2, 5), (0, INDEX_LIMIT - 4, 1), 1, (True, False)),
        ((1, INDEX_LIMIT - 1, 1), (0, 0, 0), 0, (False, False)),
        ((1, INDEX_LIMIT, 1), (0, 0, 0), 0, (True, True)),  # one result per channel
        ((1, 1, INDEX_LIMIT - 1), (0, 0, 0), 1, (False, False)),
        ((1, 1, INDEX_LIMIT), (0, 0, 0), 1, (True, False)),  # elements that all have one address
        ((1, 2, 5), (0, 5, 1), INDEX_LIMIT - 1, (False, False)),
        ((1, 2, 5), (0, 5, 1), INDEX_LIMIT, (False, True)),
    ],
)
def test_offsets_and_counts_settle_the_width(
    x: Ints, x_strides: Ints, y_stride: int, expected: tuple[bool, bool]
) -> None:
    sums, add_up = planned(x, x_strides, y_stride).launches
    assert (wide(sums), wide(add_up)) == expected


@pytest.mark.parametrize(
    ("parts", "elements", "products", "expected"),
    [
        (3, (INDEX_LIMIT - 1) // 3, 1, False),
        (3, (INDEX_LIMIT + 2) // 3, 1, True),
        (1, (INDEX_LIMIT - 1) // 4, 4, False),
        (1, (INDEX_LIMIT + 3) // 4, 4, True),
    ],
)
def test_the_sums_of_all_parts_settle_the_width(parts: int, elements: int, products: int, expected: bool) -> None:
    (first, _) = planned((2, 3, 5)).launches
    dtype = "float32" if products == 1 else "complex64"
    made = sums_pass.plan("bias_grad", first, parts, (elements,), (0,), dtype, "", products)
    assert wide(made.launches[-1]) is expected
    assert made.bytes_of("workspace") == parts * elements * products * 4


@pytest.mark.parametrize(
    ("shape", "arrays", "extents", "steps"),
    [
        ((2, 3, 4), [(12, 4, 1)], [24], [[1]]),
        ((2, 3, 4), [(24, 4, 1)], [2, 12], [[24, 1]]),
        ((2, 1, 4), [(99, 7, 1)], [2, 4], [[99, 1]]),
        ((1, 1), [(5, 5)], [], [[]]),
        ((0, 3), [(3, 1)], [0], [[1]]),
        ((2, 3, 4), [(12, 4, 1), (12, 4, 2)], [6, 4], [[4, 1], [4, 2]]),
        ((2, 3, 4), [(12, 4, 1), (0, 0, 0)], [24], [[1], [0]]),
    ],
)
def test_neighbouring_axes_that_lie_as_one_are_one(
    shape: Ints, arrays: list[Ints], extents: list[int], steps: list[list[int]]
) -> None:
    assert strided.collapsed_together(shape, *arrays) == (extents, steps)
    if len(arrays) == 1:
        assert strided.collapsed(shape, arrays[0]) == (extents, steps[0])


@pytest.mark.parametrize(
    ("needed", "wide", "axes"), [(0, False, 1), (1, False, 1), (2, False, 3), (4, False, 6), (1, True, 6), (7, True, 7)]
)
def test_the_least_kernel_that_is_built_ahead_is_taken(needed: int, wide: bool, axes: int) -> None:
    assert strided.axes(needed, wide, (1, 3, 6)) == axes


def test_results_of_several_axes_have_the_kernel_for_them() -> None:
    (first, _) = planned((2, 3, 5)).launches

    def added(shape: Ints, strides: Ints) -> Any:
        return sums_pass.plan("conv_weight_grad", first, 2, shape, strides, "float32", "").launches[-1]

    assert added((4, 3, 5), (15, 5, 1)).variant.name == "add_up_float32_1d"
    far = added((4, 3, 5), (100, 7, 1))
    assert far.variant.name == "add_up_float32_3d"
    assert fields(far)["extent"] == [4, 3, 5]
    assert fields(far)["y_stride"] == [100, 7, 1]
    two = fields(added((4, 3, 5), (100, 5, 1)))
    assert (two["extent"], two["y_stride"]) == ([1, 4, 15], [0, 100, 1])
    assert added((2, 2, 2, 2), (99, 30, 9, 2)).variant.name == "add_up_float32_6d"


def test_sums_that_take_all_memory_are_not_cut() -> None:
    assert sums_pass.most_parts(2**40, "float32") == 1
