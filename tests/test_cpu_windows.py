"""Windows along short rows, reduced as if all rows were one."""

from __future__ import annotations

import numpy as np
import pytest

from gpuconv.cpu._windows import Axis, over_rows


@pytest.mark.parametrize("function", [np.maximum, np.add])
@pytest.mark.parametrize("extent", [16, 17, 40])
@pytest.mark.parametrize("offsets", [range(-1, 2), range(2), range(-1, 1), range(-2, 3, 2), range(3)])
def test_no_row_sees_its_neighbours(offsets: range, extent: int, function: np.ufunc) -> None:
    source = np.random.default_rng(extent).integers(-99, 99, (3, 5, extent)).astype(np.float64)
    source[1, 2, [0, -1]] = np.nan, -np.inf
    result = np.full_like(source, 12345)
    assert over_rows(function, source, result, Axis(2, extent, extent, 1, offsets))
    for q in range(extent):
        inside = [q + offset for offset in offsets if 0 <= q + offset < extent]
        assert np.array_equal(result[..., q], function.reduce(source[..., inside], axis=-1), equal_nan=True)


@pytest.mark.parametrize(
    "axis",
    [
        Axis(1, 20, 20, 2, range(-1, 2)),
        Axis(1, 18, 20, 1, range(3)),
        Axis(1, 20, 20, 1, range(1)),
        Axis(1, 20, 20, 1, range(-2, 0)),
        Axis(1, 20, 20, 1, range(1, 3)),
        Axis(1, 20, 20, 1, range(-3, 4)),
        Axis(1, 200, 200, 1, range(-1, 2)),
    ],
)
def test_other_windows_are_left_to_others(axis: Axis) -> None:
    source, result = np.zeros((4, axis.extent)), np.full((4, axis.count), 7.0)
    assert not over_rows(np.maximum, source, result, axis)
    assert (result == 7).all()


def test_arrays_with_gaps_are_left_to_others() -> None:
    source, result = np.zeros((4, 40))[:, ::2], np.full((4, 20), 7.0)
    assert not over_rows(np.maximum, source, result, Axis(1, 20, 20, 1, range(-1, 2)))
