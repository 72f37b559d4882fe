"""Structs of kernels: their layout and contents, division by multiplication, and which indices need 64 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuconv import ArgumentError
from gpuconv.cuda.build import params


@pytest.mark.parametrize("divisor", [*range(1, 40), 100, 2**16 - 1, 2**16, 2**30 - 1, 2**30, 2**31 - 2**16])
def test_quotients_are_high_words(divisor: int) -> None:
    given, multiplier, shift = params.division(divisor, False)
    assert given == divisor
    assert 0 < multiplier < 2**32
    edges = {number + near for number in (0, divisor, 7 * divisor, 2**31 // divisor * divisor) for near in (-1, 0, 1)}
    for number in (number for number in edges | {2**31 - 1, 2**30} if 0 <= number < 2**31):
        high = number * multiplier // 2**32
        assert (high + number) >> shift == number // divisor, number
        assert high + number < 2**32


def test_an_empty_axis_is_divided_by_one() -> None:
    assert params.division(0, False) == params.division(1, False)
    assert params.division(0, True) == (1,)
    assert params.division(7, True) == (7,)


def test_the_fields_of_arrays() -> None:
    assert params.array_fields("x", (9, 8, 7, 6)) == {"x_batch": 9, "x_channel": 8, "x_stride": [7, 6]}
    one = params.array_fields("x", (9, 8, 7), (5,))
    assert one == {"x_batch": 9, "x_channel": 8, "x_stride": [7], "x_extent": (5,)}


_INNER = np.dtype([("n", "<i4"), ("m", "<i4")])
_NARROW = np.dtype([("divisor", "<u4"), ("multiplier", "<u4"), ("shift", "<u4")])
_WIDE = np.dtype([("divisor", "<i8")])
_STRUCT = np.dtype(
    [("p", "<u8"), ("one", _INNER), ("two", _INNER, (2,)), ("plain", "<i4", (2,)), (params.FINISH, _INNER)]
)
_VALUES: dict[str, Any] = {
    "one": {"n": 1, "m": 2},
    "two": [{"n": 3, "m": 4}, {"n": 5, "m": 6}],
    "plain": [7, 8],
}


def _packed(layout: Any, values: Any) -> Any:
    return _numbers(np.frombuffer(params.pack(layout, values), layout)[0])


def test_structs_are_filled_field_by_field() -> None:
    assert _packed(_STRUCT, _VALUES) == [0, [1, 2], [[3, 4], [5, 6]], [7, 8], [0, 0]]
    given = _packed(_STRUCT, {**_VALUES, "p": 2**40, params.FINISH: {"n": 9, "m": 10}})
    assert given == [2**40, [1, 2], [[3, 4], [5, 6]], [7, 8], [9, 10]]


def test_a_path_replaces_what_a_struct_inside_was_given() -> None:
    outer = np.dtype([("inner", _STRUCT), ("last", "<i4")])
    fields = {"inner.one": {"n": 8, "m": 9}, "inner.finish.m": 4, "inner": _VALUES, "last": 3}
    assert _packed(outer, fields) == [[0, [8, 9], [[3, 4], [5, 6]], [7, 8], [0, 4]], 3]


def test_dividers_are_given_their_divisors() -> None:
    layout = np.dtype([("by", _NARROW), ("extent", _NARROW, (2,)), ("wide", _WIDE), ("wides", _WIDE, (2,))])
    # 5: 2**3 >= 5, (2**32 * (8 - 5)) // 5 + 1 and 3; 4: only a shift; 0 is treated as 1
    found = _packed(layout, {"by": 5, "extent": (4, 0), "wide": 2**40, "wides": [0, 7]})
    assert found == [[5, 2576980378, 3], [[4, 1, 2], [1, 1, 0]], [2**40], [[1], [7]]]


def _numbers(struct: Any) -> Any:
    """Return a struct as lists."""
    if struct.dtype.names is None:
        return struct.tolist()
    if struct.ndim:
        return [_numbers(entry) for entry in struct]
    return [_numbers(struct[name]) for name in struct.dtype.names]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"n": 1}, r"fields missing: \['m'\], fields unknown: \[\]"),
        ({"n": 1, "m": 2, "o": 3}, r"fields missing: \[\], fields unknown: \['o'\]"),
    ],
)
def test_every_field_is_given_and_no_other(values: dict[str, int], text: str) -> None:
    with pytest.raises(KeyError, match=text):
        params.pack(_INNER, values)


@pytest.mark.parametrize(
    ("shape", "strides", "span"),
    [((3, 4), (4, 1), 11), ((3, 4), (-4, 1), 11), ((1, 4), (99, 2), 6), ((3, 0), (5, 1), 10), ((), (), 0)],
)
def test_the_span_of_an_array(shape: tuple[int, ...], strides: tuple[int, ...], span: int) -> None:
    assert params.span(shape, strides) == span


def test_which_numbers_need_64_bits() -> None:
    limit = 2**31 - 2**16
    assert not params.needs_wide("conv", [])
    assert not params.needs_wide("conv", [0, limit - 1])
    assert params.needs_wide("conv", [limit, 0])
    assert params.needs_wide("conv", [2**63 - 2**32 - 1])
    with pytest.raises(ArgumentError, match=r"^conv: coordinates up to 9223372032559808512 do not fit"):
        params.needs_wide("conv", [2**63 - 2**32])
