"""The problem that all MaxPool families share: dropped and merged axes, rows, contiguous planes."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gpuconv.cuda.pool import problem as pool_problem
from gpuconv.cuda.pool import runs, tiles
from gpuconv.cuda.pool.problem import PoolAxis, PoolProblem, PoolView
from gpuconv.cuda.pool.runs import WindowRuns
from tests.cuda.pool.problems import Ints, made
from tests.harness.pool_views import changed


def rows_of(x: Ints, **more: Any) -> PoolView:
    rows = pool_problem.rows_of(made(x, **more), dilated=True)
    assert isinstance(rows, PoolView)
    return rows


# ---------------------------------------------------------------- axes


def test_axes_have_the_elements_of_every_window_and_no_more_than_they_need() -> None:
    random = Random(0)
    for _ in range(3000):
        extent, windows, kernel = random.randint(0, 6), random.randint(1, 4), random.randint(1, 4)
        stride, dilation, begin = random.randint(1, 5), random.randint(1, 4), random.randint(0, 6)
        axis = pool_problem.axis_of(extent, windows, kernel, stride, dilation, begin)
        offsets = [tap * dilation - begin for tap in range(kernel)]
        met = [[q * stride + o for o in offsets if 0 <= q * stride + o < extent] for q in range(windows)]
        found = [
            list(range(q * axis.stride - axis.pad, q * axis.stride - axis.pad + axis.reach, axis.dilation))
            for q in range(windows)
        ]
        assert [[at for at in window if 0 <= at < extent] for window in found] == met
        # Useful taps would be inside for a window at some position between the first one and the last one.
        useful = [o for o in offsets if extent and -(windows - 1) * stride <= o < extent]
        assert axis.reach == (useful[-1] - useful[0] + 1 if useful else 0)
        assert (axis.extent, axis.windows) == (extent, windows)
        assert axis.stride == (stride if useful and windows > 1 else 0)
        assert axis.dilation == (dilation if len(useful) > 1 else 1)
        assert axis.pad == (-useful[0] if useful else 0)


def test_the_numbers_of_an_axis() -> None:
    axis = PoolAxis(extent=9, windows=4, stride=3, pad=2, reach=7, dilation=3)
    assert axis.coordinates == (9, 2, 9 - 2 + 7, 7, 3)
    assert axis.step == 3
    assert replace(axis, extent=2).step == 2
    assert replace(axis, pad=-2).coordinates == (9, 2, 9 + 2 + 7, 7, 3)


# ---------------------------------------------------------------- problems


def test_strides_that_are_never_stepped_along_do_not_count() -> None:
    assert pool_problem.used((1, 0, 2, 3), (9, 8, 7, 6)) == (0, 0, 7, 6)
    problem = made((1, 3, 4, 1), kernel_shape=[2, 1])
    assert strides_of(problem) == ((0, 4, 1, 0), (0, 3, 1, 0), (0, 0, 0, 0))
    problem = made((1, 3, 4, 1), indices=True, kernel_shape=[2, 1])
    assert strides_of(problem)[2] == (0, 3, 1, 0)


def strides_of(problem: PoolProblem) -> tuple[Ints, Ints, Ints]:
    x, y, indices = zip(*((axis.x, axis.y, axis.indices) for axis in problem.all_axes), strict=True)
    return x, y, indices


@pytest.mark.parametrize(("run", "vector", "expected"), [(1, 4, 4), (2, 4, 8), (5, 4, 8), (6, 4, 12), (7, 1, 7)])
def test_vectors_that_a_run_touches_wherever_it_begins(run: int, vector: int, expected: int) -> None:
    assert tiles.whole_vectors(run, vector) == expected
    assert max((begin + run - 1) // vector + 1 for begin in range(vector)) * vector == expected


# ---------------------------------------------------------------- rows


def test_planes_follow_each_other() -> None:
    whole = rows_of((2, 3, 4, 8), kernel_shape=[2, 2])
    assert whole.contiguous("x", 1)
    assert whole.contiguous("x", 6)
    changes: dict[str, tuple[dict[str, Any], bool, bool]] = {
        "rows apart": ({"x_strides": (96, 32, 0, 9)}, False, False),
        "one row apart": ({"x_strides": (24, 8, 0, 9), "x_extent": (1, 1, 8)}, True, True),
        "planes apart": ({"x_strides": (99, 33, 0, 8)}, True, False),
        "images apart": ({"x_strides": (97, 32, 0, 8)}, True, False),
        "one image": ({"x_strides": (97, 32, 0, 8), "images": (1,)}, True, True),
        "one channel": ({"x_strides": (32, 99, 0, 8), "channels": (1,)}, True, True),
        "slices": ({"x_extent": (2, 4, 8)}, True, False),
    }
    for name, (change, rows, planes) in changes.items():
        found = changed(whole, **change)
        assert (found.contiguous("x", 1), found.contiguous("x", found.planes)) == (rows, planes), name


@pytest.mark.parametrize(
    ("change", "planes", "merged"),
    [
        ({}, 6, True),
        ({"y_strides": (72, 24, 0, 9)}, 6, False),  # rows apart
        ({"y_strides": (72, 24, 0, 9), "y_extent": (1, 1, 24)}, 6, True),  # with one row each
        ({"y_strides": (90, 30, 0, 8)}, 6, False),  # planes apart
        ({"y_strides": (90, 30, 0, 8)}, 1, True),
        ({"y_strides": (80, 24, 0, 8)}, 6, False),  # images apart
        ({"y_strides": (80, 24, 0, 8), "images": (1,)}, 6, True),
        ({"y_strides": (24, 99, 0, 8), "indices_strides": (24, 77, 0, 8), "channels": (1,)}, 2, True),
        ({"y_extent": (2, 3, 8)}, 6, False),  # slices
        ({"y_extent": (2, 3, 8)}, 1, True),
        ({"y_extent": (2, 3, 8), "channels": (1,), "y_strides": (24, 99, 0, 8)}, 2, False),
    ],
)
def test_results_lie_one_after_another(change: dict[str, Any], planes: int, merged: bool) -> None:
    rows = changed(rows_of((2, 3, 4, 8), indices=True, kernel_shape=[2, 1]), **change)
    assert rows.contiguous("y", planes) is merged
    apart = changed(rows, indices_strides=(72, 24, 0, 9), y_extent=(rows.depth.windows, 3, 8))
    assert not apart.contiguous("indices", planes)


def test_planes_of_one_row_become_rows_of_one_plane() -> None:
    line = rows_of((2, 3, 8), indices=True, kernel_shape=[2], strides=[2])
    folded = line.folded()
    assert [(axis.extent, axis.windows) for axis in folded.axes] == [(1, 1), (6, 6), (8, 4)]
    assert (folded.image.extent, folded.channel.extent) == (1, 1)
    assert (folded.height.x, folded.height.y, folded.height.indices) == (8, 4, 4)
    apart = changed(line, x_strides=(99, 8, 0, 0)).folded()  # images are not contiguous: one plane each
    assert (apart.height.extent, apart.image.extent, apart.image.x, apart.height.x) == (3, 2, 99, 8)
    single = rows_of((2, 1, 8), kernel_shape=[2], strides=[2])  # whose channels have no stride
    assert (single.folded().height.extent, single.folded().image.extent) == (1, 2)
    for same in (
        rows_of((2, 3, 2, 8), kernel_shape=[2, 2]),
        rows_of((1, 1, 8), kernel_shape=[2]),
        changed(line, y_extent=(1, 2, 4)),
        changed(line, images=(2**31 // 8,)),
    ):
        assert same.folded() is same


def test_rows_whose_elements_lie_apart_are_none() -> None:
    last = made((1, 3, 4, 5), True, kernel_shape=[2, 2])
    assert pool_problem.rows_of(last) == "channels last: neighbours of a row lie 3 elements apart"
    apart = replace(made((1, 3, 4, 5), kernel_shape=[2, 2]), y_strides=(99, 33, 11, 2))
    assert pool_problem.rows_of(apart) == "neighbours of a row lie 2 elements apart"
    places = replace(made((1, 3, 4, 5), kernel_shape=[2, 2]), indices_strides=(99, 33, 11, 2))
    assert pool_problem.rows_of(places) == "neighbours of a row lie 2 elements apart"


# ---------------------------------------------------------------- runs of windows


def test_runs_step_where_dilation_is_whole_strides() -> None:
    assert runs.runs_of(20, 4, 2, 6, 5) == WindowRuns(6, 3, 30)
    assert runs.runs_of(20, 3, 2, 6, 5) == WindowRuns(4, 0, 20)  # too few taps are shared
    assert runs.runs_of(20, 4, 2, 5, 5) == WindowRuns(4, 0, 20)
    assert runs.runs_of(21, 4, 2, 2, 5) == WindowRuns(5, 1, 25)
    assert runs.taken(7, WindowRuns(5, 1, 25), 5) == (11, 22)
    assert runs.taken(7, WindowRuns(5, 0, 25), 5) == (35, 35)
