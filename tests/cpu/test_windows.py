"""Small windows along an axis, reduced as if the axis had no ends."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest

import gpuconv
from gpuconv.cpu._workspace import SCRATCH, Scratch
from gpuconv.cpu.pool import _blocks, _sums, _windows
from gpuconv.cpu.pool._windows import Axis, fill_empty, over_all
from tests.oracle import oracle

OFFSETS = [range(-1, 2), range(2), range(-1, 1), range(-2, 3, 2), range(3)]


def _assert_windows(axis: Axis, shape: tuple[int, ...], function: np.ufunc) -> None:
    source = np.random.default_rng(axis.extent).integers(-99, 99, shape).astype(np.float64)
    lines = np.moveaxis(source, axis.position, -1)
    lines[1, 2, ..., 0], lines[1, 2, ..., -1] = np.nan, -np.inf
    result = np.full((*shape[: axis.position], axis.count, *shape[axis.position + 1 :]), 12345.0)
    assert over_all(function, source, result, axis, SCRATCH)
    found = np.moveaxis(result, axis.position, -1)
    for q in range(axis.count):
        at = [q * axis.stride + offset for offset in axis.offsets]
        inside = [place for place in at if 0 <= place < axis.extent]
        assert np.array_equal(found[..., q], function.reduce(lines[..., inside], axis=-1), equal_nan=True)


@pytest.mark.parametrize("function", [np.maximum, np.add])
@pytest.mark.parametrize("extent", [12, 17, 40])
@pytest.mark.parametrize("offsets", OFFSETS)
def test_no_row_sees_its_neighbours(offsets: range, extent: int, function: np.ufunc) -> None:
    _assert_windows(Axis(2, extent, extent, 1, offsets), (3, 5, extent), function)


@pytest.mark.parametrize("function", [np.maximum, np.add])
@pytest.mark.parametrize("extent", [12, 17])
@pytest.mark.parametrize("offsets", OFFSETS)
def test_no_plane_sees_its_neighbours(offsets: range, extent: int, function: np.ufunc) -> None:
    _assert_windows(Axis(2, extent, extent, 1, offsets), (3, 5, extent, 2, 3), function)


@pytest.mark.parametrize("count", [7, 11, 12])
@pytest.mark.parametrize(
    ("offsets", "stride"), [*((taps, 1) for taps in OFFSETS), *((taps, 2) for taps in OFFSETS if len(taps) > 2)]
)
def test_windows_may_be_fewer_than_inputs(offsets: range, stride: int, count: int) -> None:
    extent = 12 * stride
    _assert_windows(Axis(2, count, extent, stride, offsets), (3, 5, extent), np.maximum)
    _assert_windows(Axis(2, 100, 200, 2, range(-1, 2)), (3, 5, 200), np.maximum)


@pytest.mark.parametrize(
    "axis",
    [
        Axis(1, 6, 20, 3, range(3)),
        Axis(1, 10, 20, 2, range(2)),
        Axis(1, 12, 20, 2, range(3)),
        Axis(1, 20, 20, 1, range(1)),
        Axis(1, 20, 20, 1, range(-2, 0)),
        Axis(1, 20, 20, 1, range(1, 3)),
        Axis(1, 20, 20, 1, range(-4, 5)),
        Axis(1, 200, 200, 1, range(-1, 2)),
        Axis(0, 20, 20, 2, range(-1, 2)),
        Axis(0, 600, 600, 1, range(-1, 2)),
    ],
)
def test_other_windows_are_left_to_others(axis: Axis) -> None:
    shape, results = [4, 4], [4, 4]
    shape[axis.position], results[axis.position] = axis.extent, axis.count
    source, result = np.zeros(shape), np.full(results, 7.0)
    assert not over_all(np.maximum, source, result, axis, SCRATCH)
    assert (result == 7).all()


def test_arrays_with_gaps_are_left_to_others() -> None:
    source, result = np.zeros((4, 40))[:, ::2], np.full((4, 20), 7.0)
    assert not over_all(np.maximum, source, result, Axis(1, 20, 20, 1, range(-1, 2)), SCRATCH)


def test_windows_that_hold_nothing_are_set_wherever_they_lie() -> None:
    random = Random(9)
    for _ in range(400):
        count, extent, stride, step = (random.randint(1, most) for most in (9, 5, 4, 6))
        first = random.randint(-15, 5)
        offsets = range(first, first + random.randint(1, 4) * step, step)
        target = np.zeros((2, count, 3))
        fill_empty(target, [Axis(1, count, extent, stride, offsets)], 7)
        holds = [any(0 <= q * stride + offset < extent for offset in offsets) for q in range(count)]
        assert target.tolist() == [[[0.0 if some else 7.0] * 3 for some in holds]] * 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
@pytest.mark.parametrize("order", [(0, 2, 3, 1), (2, 3, 0, 1), (3, 2, 1, 0), (1, 0, 3, 2)])
def test_maxima_do_not_depend_on_how_x_lies_in_memory(order: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(8).integers(-9, 9, (3, 5, 7, 6)).astype(dtype)
    attributes = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2]}
    expected, numbers = oracle.max_pool(x, **attributes)
    lies = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
    y, indices = gpuconv.max_pool(lies, return_indices=True, **attributes)
    assert np.array_equal(y, expected)
    assert np.array_equal(indices, numbers)
    assert np.array_equal(gpuconv.max_pool(lies, **attributes), expected)


def test_channels_that_are_neighbours_in_memory_are_gone_through_last() -> None:
    x = np.zeros((2, 3, 4, 5), np.float32)
    last = np.zeros((2, 4, 5, 3), np.float32).transpose(0, 3, 1, 2)
    assert _blocks.order_of_axes(x) == (0, 1, 2, 3)
    assert _blocks.order_of_axes(last) == (0, 2, 3, 1)
    assert _blocks.order_of_axes(last[:, ::-1]) == (0, 2, 3, 1)
    assert _blocks.order_of_axes(last[:, :1]) == (0, 1, 2, 3), "one channel has no neighbour"
    assert _blocks.order_of_axes(x.transpose(0, 1, 3, 2)) == (0, 1, 2, 3)
    assert _blocks.order_of_axes(x.transpose(1, 0, 2, 3)) == (0, 1, 2, 3)


def test_taps_outside_of_a_block_for_every_output_are_left_out() -> None:
    random = Random(6)
    for _ in range(300):
        count, extent, stride, step = (random.randint(1, most) for most in (6, 9, 4, 3))
        start, first, taps = random.randint(-9, 9), random.randint(-6, 6), random.randint(1, 6)
        offsets = range(first, first + taps * step, step)
        # Not after the input for the first output, nor before it for the last one.
        inside = [o + start for o in offsets if -(count - 1) * stride <= o + start < extent]
        if inside:
            axis = _blocks.axis_of(2, count, extent, stride, start, offsets)
            assert (axis.position, axis.count, axis.extent, axis.stride) == (2, count, extent, stride)
            assert list(axis.offsets) == inside


def test_inputs_are_added_to_the_outputs_whose_windows_have_them() -> None:
    for stride, step in product((1, 2, 3, 4, 6), (1, 2, 3, 5, 7)):
        for first, count in ((-4, 5), (0, 3), (-11, 9)):
            axis = Axis(1, count, 4, stride, range(first, first + 6 * step, step))
            x, total = np.float64([[1, 10, 100, 1000]]), np.zeros((1, count))
            _sums._add_by_inputs(x, total, axis)
            expected = [sum(10.0**n for n in range(4) if n - q * stride in axis.offsets) for q in range(count)]
            assert total.tolist() == [expected], axis


def _any_axis(random: Random) -> Axis:
    """Return an axis of random windows, many of which are partly or entirely outside the input."""
    count, extent, stride, step = (random.randint(1, most) for most in (7, 9, 4, 4))
    first = random.randint(-12, 6)
    return Axis(1, count, extent, stride, range(first, first + random.randint(1, 9) * step, step))


def _inside(axis: Axis, q: int) -> list[int]:
    return [q * axis.stride + offset for offset in axis.offsets if 0 <= q * axis.stride + offset < axis.extent]


def test_every_way_to_reduce_an_axis_gives_the_maxima_of_its_windows() -> None:
    random, draw = Random(10), np.random.default_rng(10)
    for _ in range(300):
        axis = _any_axis(random)
        source = draw.integers(-99, 99, (2, axis.extent, 3)).astype(np.float64)
        expected = np.full((2, axis.count, 3), -1000.0)
        for q in range(axis.count):
            if inside := _inside(axis, q):
                expected[:, q] = source[:, inside].max(axis=1)
        for reduce_axis in (_windows._reduce_by_doubling, _windows._reduce_axis):
            result = np.full_like(expected, np.nan)
            reduce_axis(source, result, axis, -1000.0, Scratch())
            assert np.array_equal(result, expected), (reduce_axis, axis)
        result = np.full_like(expected, np.nan)
        _windows._reduce_by_taps(source, result, axis, -1000.0)
        assert np.array_equal(result, expected), axis


def test_taps_meet_every_input_of_every_window_once() -> None:
    random = Random(11)
    huge = [Axis(0, 2, 3, 1, range(-2, 40)), Axis(0, 3, 2, 5, range(-11, 60, 3))]  # output by output
    for axis in [*huge, *(_any_axis(random) for _ in range(300))]:
        met = [
            (q, place)
            for reads, writes in axis.taps()
            for q, place in zip(range(axis.count)[writes], range(axis.extent)[reads], strict=True)
        ]
        assert sorted(met) == sorted((q, place) for q in range(axis.count) for place in _inside(axis, q))
        for q in range(axis.count):
            low, high = axis.inside(q)
            assert [q * axis.stride + offset for offset in axis.offsets[low:high]] == _inside(axis, q)


def test_an_axis_whose_outputs_are_its_inputs_is_left_out() -> None:
    assert Axis(2, 5, 5, 1, range(1)).trivial
    for axis in (Axis(2, 3, 5, 2, range(1)), Axis(2, 4, 5, 1, range(1)), Axis(2, 5, 5, 1, range(2)),
                 Axis(2, 5, 5, 1, range(1, 2))):  # fmt: skip
        assert not axis.trivial


def test_several_axes_are_reduced_one_after_the_other() -> None:
    source = np.random.default_rng(12).permutation(2 * 6 * 7 * 3).reshape(2, 6, 7, 3).astype(np.float32)
    rows, columns, same = Axis(1, 3, 6, 2, range(2)), Axis(2, 5, 7, 1, range(3)), Axis(3, 3, 3, 1, range(1))
    expected = [[source[:, 2 * q : 2 * q + 2, p : p + 3].max(axis=(1, 2)) for p in range(5)] for q in range(3)]
    for axes in ((rows, columns), (rows, columns, same), (same, columns, rows)):
        for target in (None, np.zeros((2, 3, 5, 3), np.float32)):
            found = _windows.reduce(source, axes, -1, Scratch(), target)
            assert target is None or found is target
            assert np.array_equal(found, np.moveaxis(np.array(expected), 2, 0))
    assert _windows.reduce(source, [same], -1, Scratch()) is source
    target = np.zeros_like(source)
    assert _windows.reduce(source, [same], -1, Scratch(), target) is target
    assert np.array_equal(target, source)
