"""Sizes, pads and the links between inputs and outputs: compared with counting, with the oracle, and rule by rule."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuconv import ArgumentError
from gpuconv.rules import geometry as geometries
from gpuconv.rules.geometry import tap_range
from tests.oracle.answers import answer, links, links_by_oracle
from tests.oracle.strategies import GENERATORS, Problem, checked, problems

pytestmark = pytest.mark.slow

OPERATORS = sorted(GENERATORS)
HUGE = 2**56


def geometry_of(problem: Problem) -> Any:
    return getattr(geometries, problem.operator)(*problem.shapes, **problem.attributes)


# ---------------------------------------------------------------- any problem


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@checked(2)
@given(data=st.data())
def test_every_field_is_what_counting_gives(operator: str, rank: int, data: st.DataObject) -> None:
    problem = data.draw(problems(operator, rank))
    assert asdict(geometry_of(problem)) == answer(problem)


@pytest.mark.parametrize("operator", OPERATORS)
@checked(4)
@given(data=st.data())
def test_the_taps_link_the_inputs_and_outputs_that_the_oracle_links(operator: str, data: st.DataObject) -> None:
    problem = data.draw(problems(operator))
    found = links(operator, asdict(geometry_of(problem)))
    np.testing.assert_array_equal(found, links_by_oracle(problem), strict=True)


def _shrunk(random: Random) -> Problem:
    """Return a problem whose input may be too small for its kernel or its pads."""
    problem = GENERATORS[random.choice(OPERATORS)](random)
    spatial = tuple(random.randint(0, n) for n in problem.x_shape[2:])
    return Problem(problem.operator, problem.x_shape[:2] + spatial, *problem.shapes[1:], attributes=problem.attributes)


@checked(10)
@given(st.randoms(use_true_random=False).map(_shrunk))
def test_a_negative_size_is_refused_and_every_other_one_legal(problem: Problem) -> None:
    try:
        expected = answer(problem)
    except ValueError:
        with pytest.raises(ArgumentError, match="negative size"):
            geometry_of(problem)
    else:
        assert asdict(geometry_of(problem)) == expected


# ---------------------------------------------------------------- tap_range

near = st.integers(0, 12)
far = st.integers(1, 40) | st.integers(1, HUGE)


@checked(16)
@given(count=near, limit=near, stride=st.integers(1, 6), offset=st.integers(-40, 40))
def test_tap_range_holds_what_lies_inside(count: int, limit: int, stride: int, offset: int) -> None:
    low, high = tap_range(count, limit, stride, offset)
    inside = [q for q in range(count) if 0 <= q * stride + offset < limit]
    assert list(range(low, high)) == inside
    assert 0 <= low <= high <= count


@checked(6)
@given(count=far, limit=far, stride=far, offset=st.integers(-HUGE, HUGE))
def test_tap_range_is_exact_for_any_size(count: int, limit: int, stride: int, offset: int) -> None:
    low, high = tap_range(count, limit, stride, offset)
    assert 0 <= low <= high <= count

    def inside(q: int) -> bool:
        return 0 <= q < count and 0 <= q * stride + offset < limit

    if low < high:
        assert [inside(q) for q in (low - 1, low, high - 1, high)] == [False, True, True, False]
    else:
        nearest = -(offset // stride)
        assert not any(inside(q) for q in (nearest - 1, nearest, nearest + 1, 0, count - 1))


# ---------------------------------------------------------------- the objects


@pytest.mark.parametrize("operator", OPERATORS)
def test_geometries_are_frozen_hashable_values(operator: str) -> None:
    geometry = geometry_of(GENERATORS[operator](Random(4), 2))
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        geometry.strides = (7, 7)
    again = geometry_of(GENERATORS[operator](Random(4), 2))
    assert (again, hash(again)) == (geometry, hash(geometry))
    assert copy.copy(geometry) == pickle.loads(pickle.dumps(geometry)) == geometry


@pytest.mark.parametrize("container", [list, tuple, np.array, iter, lambda ints: [np.int32(i) for i in ints]])
def test_lists_tuples_and_numpy_integers_mean_the_same(container: Any) -> None:
    plain = geometries.conv((1, 2, 7, 8), (2, 1, 3, 2), (2,), strides=(2, 1), pads=(1, 0, 0, 1), group=2)
    other = geometries.conv(
        container([1, 2, 7, 8]),
        container([2, 1, 3, 2]),
        container([2]),
        strides=container([2, 1]),
        pads=container([1, 0, 0, 1]),
        kernel_shape=container([3, 2]),
        group=np.int64(2),
    )
    assert (other, hash(other)) == (plain, hash(plain))


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_number_of_a_geometry_is_a_plain_python_integer(operator: str) -> None:
    problem = GENERATORS[operator](Random(9), 2)
    shapes = [None if shape is None else np.array(shape) for shape in problem.shapes]
    fields = asdict(getattr(geometries, operator)(*shapes, **problem.attributes))
    numbers = np.concatenate(
        [np.atleast_1d(np.array(value, object)) for value in fields.values() if not isinstance(value, str)]
    )
    assert {type(number) for number in numbers} == {int}


def test_sizes_in_numpy_integers_do_not_overflow() -> None:
    n, stride = np.int64(2**61), np.int64(2**40)
    assert geometries.conv((1, 1, n), (1, 1, 3), pads=[n, 2 * n.item()], strides=[stride]).y_shape == (1, 1, 2**23)
