"""Structs for kernels: how they are laid out and filled, division by multiplication, which indices need 64 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuconv import ArgumentError
from gpuconv.cuda import params


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
    assert params.divisions((3, 5), False) == [params.division(3, False), params.division(5, False)]
    assert params.divisions((3, 5), True) == [(3,), (5,)]


def test_indices_are_those_of_the_width() -> None:
    assert (params.index(False), params.index(True)) == ("<i4", "<i8")
    assert (params.index_name(False), params.index_name(True)) == ("int", "long long")
    assert (params.divider(False).names, params.divider(True).names) == (
        ("divisor", "multiplier", "shift"),
        ("divisor",),
    )
    assert (params.divider(False).itemsize, params.divider(True).itemsize) == (12, 8)


def test_structs_are_aligned_as_in_c() -> None:
    found = params.layout([("a", "<i4"), ("p", params.POINTER), ("b", "<i4", (3,))])
    assert [params.offset(found, name) for name in "apb"] == [0, 8, 16]
    assert found.itemsize == 32
    wider = params.layout([("a", "<i4"), ("p", params.POINTER), ("b", "<i4", (3,))], 64)
    assert [params.offset(wider, name) for name in "apb"] == [0, 8, 16]
    assert wider.itemsize == 64
    assert params.layout([("a", "<i4", (16,))], 64).itemsize == 64


def test_the_fields_of_arrays() -> None:
    assert params.array_layout(("x", "y"), "<i4", (2,)) == [
        *(("x_batch", "<i4"), ("x_channel", "<i4"), ("x_stride", "<i4", (2,))),
        *(("y_batch", "<i4"), ("y_channel", "<i4"), ("y_stride", "<i4", (2,))),
    ]
    assert params.array_layout(("x",), "<i8", (3,), extents=True) == [
        *(("x_batch", "<i8"), ("x_channel", "<i8"), ("x_extent", "<i8", (3,)), ("x_stride", "<i8", (3,))),
    ]
    assert params.array_fields("x", (9, 8, 7, 6)) == {"x_batch": 9, "x_channel": 8, "x_stride": [7, 6]}
    one = params.array_fields("x", (9, 8, 7), (5,))
    assert one == {"x_batch": 9, "x_channel": 8, "x_stride": [7], "x_extent": (5,)}


_INNER = params.layout([("n", "<i4"), ("m", "<i4")])
_STRUCT = params.layout(
    [("p", params.POINTER), ("one", _INNER), ("two", _INNER, (2,)), ("plain", "<i4", (2,)), (params.FINISH, "<i4")]
)


def test_structs_are_filled_field_by_field() -> None:
    values: dict[str, Any] = {"one": {"n": 1, "m": 2}, "two": [{"n": 3, "m": 4}, {"n": 5, "m": 6}], "plain": [7, 8]}
    struct = np.frombuffer(params.pack(_STRUCT, values), _STRUCT)[0]
    assert _numbers(struct) == [0, [1, 2], [[3, 4], [5, 6]], [7, 8], 0]
    given = params.pack(_STRUCT, {**values, "p": 2**40, "one": (1, 2), params.FINISH: 9})
    assert _numbers(np.frombuffer(given, _STRUCT)[0]) == [2**40, [1, 2], [[3, 4], [5, 6]], [7, 8], 9]


def _numbers(struct: Any) -> Any:
    """A struct as lists."""
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


def test_pointers_stand_where_their_fields_are() -> None:
    found = params.layout([("n", "<i4"), ("x", params.POINTER), ("y", params.POINTER)])
    assert params.pointers(found, {"y": "out", "x": "in"}) == (("out", 16), ("in", 8))
    assert params.pointers(found, {"x": "in"}, 100) == (("in", 108),)


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
