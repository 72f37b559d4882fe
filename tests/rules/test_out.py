"""`out=`: written in place and returned, for any memory layout; the refusals are in the tests of errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuconv
from gpuconv.rules import memory as _memory
from tests.oracle.operands import BFLOAT16, CONV_DTYPES, LAYOUTS, POOL_DTYPES, operands, pool_kinds, values
from tests.oracle.oracle import assert_same
from tests.oracle.strategies import Problem, checked, problems

WRITEABLE = sorted(LAYOUTS.keys() - {"read-only", "broadcast"})
every_operator = pytest.mark.parametrize("operator", ["conv", "conv_transpose", "max_pool"])
every_layout = pytest.mark.parametrize("layout", WRITEABLE)


def like(array: Any, layout: str) -> Any:
    """Return an array of the same shape in another layout, filled with a number that no test expects."""
    return LAYOUTS[layout](np.full_like(array, 99))


def call(problem: Problem, arrays: list[Any], **more: Any) -> Any:
    return getattr(gpuconv, problem.operator)(*arrays, **problem.attributes, **more)


def drawn(data: Any, operator: str) -> tuple[Problem, list[Any]]:
    problem = data.draw(problems(operator))
    dtype = data.draw(st.sampled_from(POOL_DTYPES if operator == "max_pool" else CONV_DTYPES))
    kinds = pool_kinds(dtype)[:1] if operator == "max_pool" else ("integers",) * 3
    return problem, operands(problem, kinds, data.draw(st.integers(0, 999)), dtype)


@every_operator
@every_layout
@checked()
@given(data=st.data())
def test_out_is_filled_and_returned(operator: str, layout: str, data: Any) -> None:
    problem, arrays = drawn(data, operator)
    expected = call(problem, arrays)
    out = like(expected, layout)
    assert call(problem, arrays, out=out) is out
    assert_same(out, expected, bits=False)


@pytest.mark.parametrize(
    "layouts", [("fortran", "strided"), ("contiguous", "reversed"), ("unaligned", "channels last")]
)
@checked()
@given(data=st.data())
def test_a_pair_is_filled_and_returned(layouts: tuple[str, str], data: Any) -> None:
    problem, arrays = drawn(data, "max_pool")
    expected = call(problem, arrays, return_indices=True)
    out = tuple(like(array, layout) for array, layout in zip(expected, layouts, strict=True))
    y, indices = call(problem, arrays, return_indices=True, out=out)
    assert (y is out[0], indices is out[1]) == (True, True)
    assert_same(y, expected[0])
    assert_same(indices, expected[1])


@pytest.mark.parametrize("given_one", [0, 1])
@checked()
@given(data=st.data())
def test_either_of_a_pair_may_be_none(given_one: int, data: Any) -> None:
    problem, arrays = drawn(data, "max_pool")
    expected = call(problem, arrays, return_indices=True)
    out: list[Any] = [None, None]
    out[given_one] = like(expected[given_one], "strided")
    results = call(problem, arrays, return_indices=True, out=tuple(out))
    assert results[given_one] is out[given_one]
    assert results[1 - given_one].flags.c_contiguous
    for result, array in zip(results, expected, strict=True):
        assert_same(result, array)


def test_what_lies_between_the_elements_of_out_stays() -> None:
    x, w = values("integers", 1, (2, 3, 6, 7), np.float32), values("integers", 2, (4, 3, 2, 2), np.float32)
    expected = gpuconv.conv(x, w)
    room = np.full((2, 8, 10, 12), 99, np.float32)
    out = room[:, ::2, ::2, ::2]
    gpuconv.conv(x, w, out=out)
    assert_same(np.ascontiguousarray(out), expected)
    room[:, ::2, ::2, ::2] = 99
    assert (room == 99).all()


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16, "float32"], ids=str)
def test_an_out_of_no_elements_is_fine(dtype: Any) -> None:
    x, w = values("integers", 1, (0, 3, 6), dtype), values("integers", 2, (4, 3, 2), dtype)
    out = np.empty((0, 4, 5), dtype)
    assert gpuconv.conv(x, w, out=out) is out


def test_the_stride_of_an_axis_of_one_element_does_not_matter() -> None:
    x, w = values("integers", 1, (1, 3, 6), np.float32), values("integers", 2, (4, 3, 2), np.float32)
    out = np.empty((4, 5), np.float32)[np.newaxis]
    assert out.strides[0] == 0
    assert gpuconv.conv(x, w, out=out) is out
    assert_same(out, gpuconv.conv(x, w))


def test_no_elements_repeat_no_memory() -> None:
    x, w = values("integers", 1, (0, 3, 6), np.float32), values("integers", 2, (4, 3, 2), np.float32)
    out = np.lib.stride_tricks.as_strided(np.empty(1, np.float32), (0, 4, 5), (4, 0, 0))
    assert gpuconv.conv(x, w, out=out) is out


def test_what_would_take_too_long_to_tell_apart_counts_as_sharing() -> None:
    memory = np.zeros(10**5, np.int8)
    out = np.lib.stride_tricks.as_strided(memory, (8, 11, 3, 6, 6), (226, 569, 2566, 2836, 1241))
    x = np.lib.stride_tricks.as_strided(memory, (5, 12, 2, 3, 10), (1557, 1581, 605, 2647, 652))
    with pytest.raises(gpuconv.ArgumentError, match=r"^f: out shares memory with x; pass an array of its own$"):
        _memory.refuse_overlap("f", "out", out[...], "x", x[...])


_MEMORY = np.zeros((4, 6), np.float32)
_VIEWS = {
    "whole": _MEMORY,
    "reversed": _MEMORY[::-1, ::-2],
    "partly reversed": _MEMORY[1:, ::-1],
    "strided": _MEMORY[1:4:2, ::3],
    "transposed": _MEMORY.T,
    "one column": _MEMORY[::2, 3:4],
    "one element": _MEMORY[3:, 5:],
    "a new axis": _MEMORY[np.newaxis, 2],
    "half of each element": _MEMORY.view(np.float16)[:, ::2],
}


@pytest.mark.parametrize("name", _VIEWS)
def test_the_place_of_a_device_array_is_that_of_its_elements(name: str) -> None:
    view = _VIEWS[name]
    address, place = view.__array_interface__["data"][0], _memory.Place(view)
    assert (address + place.low, address + place.high) == np.lib.array_utils.byte_bounds(view)
    there = place.at(address)
    assert (there.shape, there.strides, there.itemsize) == (view.shape, view.strides, view.itemsize)
    assert np.shares_memory(there, view)
    assert not there.flags.writeable


def test_no_elements_have_no_place() -> None:
    place = _memory.Place(_MEMORY[:0, ::-1])
    assert (place.low, place.high) == (0, 0)


def test_x_and_w_and_b_may_share_memory() -> None:
    x = values("integers", 4, (3, 3, 3), np.float32)
    expected = gpuconv.conv(x.copy(), x.copy(), x[0, 0].copy())
    assert_same(gpuconv.conv(x, x, x[0, 0]), expected)


def test_out_may_lie_beside_x_in_one_memory() -> None:
    memory = values("integers", 5, (2, 1, 1, 8), np.float32)
    x, out = memory[0:1, 0], memory[1:2, 0]
    assert gpuconv.max_pool(x, kernel_shape=[3], pads=[1, 1], out=out) is out
    assert_same(out, gpuconv.max_pool(x.copy(), kernel_shape=[3], pads=[1, 1]))


def test_out_between_the_elements_of_x_is_not_taken_for_sharing() -> None:
    memory = values("integers", 6, (1, 1, 16), np.float32)
    x, out = memory[..., ::2], memory[..., 1::2]
    expected = gpuconv.max_pool(x.copy(), kernel_shape=[3], pads=[1, 1])
    gpuconv.max_pool(x, kernel_shape=[3], pads=[1, 1], out=out)
    assert_same(np.ascontiguousarray(out), expected)
