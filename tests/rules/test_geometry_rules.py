"""Every rule about sizes and pads, one test each; and properties of any size, far beyond what can be counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuconv import ArgumentError
from gpuconv.rules import geometry as geometries
from tests.oracle.strategies import checked

HUGE = 2**56


def conv(n: Any, k: Any, **attributes: Any) -> Any:
    """Return the geometry of Conv with one image and one channel in x and y."""
    return geometries.conv((1, 1, *_axes(n)), (1, 1, *_axes(k)), **attributes)


def transpose(n: Any, k: Any, **attributes: Any) -> Any:
    return geometries.conv_transpose((1, 1, *_axes(n)), (1, 1, *_axes(k)), **attributes)


def pool(n: Any, k: Any, **attributes: Any) -> Any:
    return geometries.max_pool((1, 1, *_axes(n)), kernel_shape=_axes(k), **attributes)


def _axes(extents: int | tuple[int, ...]) -> tuple[int, ...]:
    return (extents,) if isinstance(extents, int) else extents


def size(geometry: Any) -> Any:
    spatial = geometry.y_shape[2:]
    return spatial[0] if len(spatial) == 1 else spatial


def pads(geometry: Any) -> tuple[int, int]:
    return geometry.pads_begin[0], geometry.pads_end[0]


# ---------------------------------------------------------------- any size, far beyond what can be counted

beside_limits = st.sampled_from([2**24 + 1, 2**31, 2**31 - 1, 2**32 + 1, 2**53 + 1])
extents = st.integers(1, 40) | st.integers(1, HUGE) | beside_limits
small = st.integers(1, 9)
strides = small | st.integers(1, HUGE)
any_pads = st.tuples(st.integers(0, 9), st.integers(0, 9)) | st.tuples(st.integers(0, HUGE), st.integers(0, HUGE))


@checked(6)
@given(n=extents, k=small | extents, s=strides, d=small, p=any_pads, ceil=st.booleans())
def test_the_last_window_fits_and_one_more_would_not(n: int, k: int, s: int, d: int, p: Any, ceil: bool) -> None:
    room = n + sum(p) - ((k - 1) * d + 1)
    assume(room >= 0)
    out = size(conv(n, k, strides=[s], dilations=[d], pads=p))
    assert (out - 1) * s <= room < out * s
    up = size(pool(n, k, strides=[s], dilations=[d], pads=p, ceil_mode=1))
    # Rounding up keeps a window that starts before the padded end, if it starts inside the input or before it.
    kept = out + 1 if (out - 1) * s < room else out
    assert up == (kept - 1 if (kept - 1) * s >= n + p[0] else kept)
    assert size(pool(n, k, strides=[s], dilations=[d], pads=p)) == out


@checked(6)
@given(n=extents, k=small | extents, s=strides, d=small, upper=st.booleans())
def test_same_covers_the_input_with_the_least_padding(n: int, k: int, s: int, d: int, upper: bool) -> None:
    mode, reach = ("SAME_UPPER" if upper else "SAME_LOWER"), (k - 1) * d + 1
    for geometry in (
        conv(n, k, strides=[s], dilations=[d], auto_pad=mode),
        pool(n, k, strides=[s], dilations=[d], auto_pad=mode),
    ):
        out, (begin, end) = size(geometry), pads(geometry)
        assert (out - 1) * s < n <= out * s
        assert (out - 1) * s + reach <= n + begin + end
        assert begin + end == 0 or (out - 1) * s + reach == n + begin + end
        assert 0 <= (end - begin if upper else begin - end) <= 1


@checked(6)
@given(n=extents, k=small, s=small, d=small, p=st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_the_transpose_reaches_from_the_first_to_the_last_place(n: int, k: int, s: int, d: int, p: Any) -> None:
    last = (n - 1) * s + (k - 1) * d
    assume(sum(p) <= last + 1)
    assert size(transpose(n, k, strides=[s], dilations=[d], pads=p)) == len(range(p[0], last + 1 - p[1]))


@checked(6)
@given(n=extents, k=small, s=small, d=small, target=extents, upper=st.booleans())
def test_an_output_shape_crops_the_least(n: int, k: int, s: int, d: int, target: int, upper: bool) -> None:
    mode = "SAME_UPPER" if upper else "NOTSET"
    geometry = transpose(n, k, strides=[s], dilations=[d], output_shape=[target], auto_pad=mode)
    canvas, (begin, end) = (n - 1) * s + (k - 1) * d + 1, pads(geometry)
    assert size(geometry) == target
    assert begin + end == max(0, canvas - target)
    assert 0 <= (end - begin if upper else begin - end) <= 1


# ---------------------------------------------------------------- rules of all three


def test_sizes_are_floored_not_truncated() -> None:
    assert size(conv(2, 3, strides=[2])) == 0
    assert size(pool(2, 3, strides=[2])) == 0


@pytest.mark.parametrize("n", [2**24 + 1, 2**53 + 1])
def test_sizes_are_exact_where_floats_are_not(n: int) -> None:
    assert size(pool(n, 1, ceil_mode=1)) == n
    assert size(conv(n, 1, auto_pad="SAME_UPPER")) == n
    assert size(pool(n, 2, strides=[2], ceil_mode=1)) == n // 2 + 1
    assert size(transpose(n, 1)) == n


@pytest.mark.parametrize("make", [conv, pool], ids=["conv", "max_pool"])
@pytest.mark.parametrize(("mode", "odd"), [("SAME_UPPER", (1, 2)), ("SAME_LOWER", (2, 1))])
def test_same_puts_the_odd_element_at_its_side(make: Any, mode: str, odd: tuple[int, int]) -> None:
    assert pads(make(5, 4, auto_pad=mode)) == odd
    assert pads(make(6, 4, strides=[3], auto_pad=mode)) == (odd[0] - 1, odd[1] - 1)


@pytest.mark.parametrize("make", [conv, pool], ids=["conv", "max_pool"])
def test_same_counts_the_dilated_kernel(make: Any) -> None:
    geometry = make(9, 3, dilations=[3], auto_pad="SAME_UPPER")
    assert (size(geometry), *pads(geometry)) == (9, 3, 3)


@pytest.mark.parametrize("make", [conv, pool], ids=["conv", "max_pool"])
def test_same_never_pads_a_negative_amount(make: Any) -> None:
    geometry = make(7, 1, strides=[4], auto_pad="SAME_LOWER")
    assert (size(geometry), *pads(geometry)) == (2, 0, 0)


@pytest.mark.parametrize("make", [conv, pool, transpose], ids=["conv", "max_pool", "conv_transpose"])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_pads_of_zeros_go_with_every_auto_pad(make: Any, mode: str) -> None:
    assert make(5, 2, auto_pad=mode, pads=[0, 0]) == make(5, 2, auto_pad=mode)


@pytest.mark.parametrize("make", [conv, pool, transpose], ids=["conv", "max_pool", "conv_transpose"])
@pytest.mark.parametrize("mode", ["", b"", b"NOTSET", "NOTSET"])
def test_an_empty_auto_pad_and_bytes_have_their_plain_meaning(make: Any, mode: Any) -> None:
    assert make(5, 2, auto_pad=mode, pads=[1, 0]) == make(5, 2, pads=[1, 0])
    assert make(5, 2, auto_pad=b"SAME_LOWER") == make(5, 2, auto_pad="SAME_LOWER") != make(5, 2)


@pytest.mark.parametrize("make", [conv, pool], ids=["conv", "max_pool"])
def test_valid_pads_nothing(make: Any) -> None:
    assert (size(make(7, 3, auto_pad="VALID")), *pads(make(7, 3, auto_pad="VALID"))) == (5, 0, 0)


def test_a_size_of_zero_is_legal() -> None:
    assert size(conv(2, 3)) == size(pool(2, 3)) == size(transpose(2, 1, pads=[1, 1])) == 0


@pytest.mark.parametrize("make", [conv, pool], ids=["conv", "max_pool"])
def test_pads_may_exceed_the_kernel(make: Any) -> None:
    assert size(make(2, 2, pads=[5, 3])) == 9


def test_empty_axes_follow_the_formulas() -> None:
    assert geometries.conv((0, 0, 3), (0, 0, 2)).y_shape == (0, 0, 2)
    assert geometries.conv((2, 3, 0), (4, 3, 2), pads=[2, 2]).y_shape == (2, 4, 3)
    assert geometries.conv_transpose((2, 0, 0), (0, 5, 3)).y_shape == (2, 5, 2)
    assert geometries.max_pool((0, 3, 0), kernel_shape=[2], pads=[1, 1]).y_shape == (0, 3, 1)
    assert size(conv(0, 3, auto_pad="SAME_UPPER")) == size(pool(0, 3, auto_pad="SAME_LOWER")) == 0


def test_more_than_2_to_the_31_elements_are_legal() -> None:
    assert geometries.conv((1, 2**16, 2**17), (2**15, 2**16, 1)).y_shape == (1, 2**15, 2**17)
    assert geometries.max_pool((2**20, 2**20, 4), kernel_shape=[2]).y_shape == (2**20, 2**20, 3)


# ---------------------------------------------------------------- rules of ConvTranspose


def test_output_padding_may_reach_the_dilation_where_the_stride_is_smaller() -> None:
    assert size(transpose(3, 2, dilations=[3], output_padding=[2])) == 3 + 3 + 2


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "NOTSET", "VALID"])
def test_only_same_upper_puts_the_smaller_half_first(mode: str) -> None:
    split = (1, 2) if mode == "SAME_UPPER" else (2, 1)
    assert pads(transpose(5, 4, output_shape=[5], auto_pad=mode)) == split
    if mode.startswith("SAME"):
        assert pads(transpose(5, 4, auto_pad=mode)) == split


def test_output_shape_overrules_pads_and_ignores_n_and_c_in_front() -> None:
    plain = transpose((3, 4), (2, 2), output_shape=[3, 5])
    assert plain == transpose((3, 4), (2, 2), output_shape=[-7, 99, 3, 5])
    assert plain == transpose((3, 4), (2, 2), output_shape=[3, 5], pads=[9, 9, 9, 9])


def test_an_excess_of_output_shape_stands_at_the_end() -> None:
    geometry = transpose(3, 2, output_shape=[9])
    assert (size(geometry), *pads(geometry)) == (9, 0, 0)


def test_output_shape_may_be_smaller_than_the_input() -> None:
    assert (size(transpose(9, 1, output_shape=[4])), *pads(transpose(9, 1, output_shape=[4]))) == (4, 3, 2)


def test_output_padding_counts_in_the_total_that_output_shape_crops() -> None:
    assert pads(transpose(3, 3, strides=[2], output_padding=[1], output_shape=[5])) == (2, 1)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_same_gives_the_stride_times_the_input_always(mode: str) -> None:
    short = transpose(4, 1, strides=[3], auto_pad=mode)
    assert (size(short), *pads(short)) == (12, 0, 0)
    assert size(transpose(4, 7, strides=[3], output_padding=[2], auto_pad=mode)) == 12


# ---------------------------------------------------------------- rules of MaxPool


def test_ceil_mode_drops_a_window_that_starts_past_the_input() -> None:
    assert size(pool(4, 2, strides=[3], ceil_mode=1)) == 2
    assert size(pool(3, 1, strides=[3], pads=[0, 1], ceil_mode=1)) == 1
    assert size(pool(3, 1, strides=[3], pads=[1, 1], ceil_mode=1)) == 2
    assert size(pool(2, 3, strides=[2], ceil_mode=1)) == 1


def test_ceil_mode_drops_the_last_window_only() -> None:
    assert size(pool(1, 1, pads=[0, 5])) == 6
    assert size(pool(1, 1, pads=[0, 5], ceil_mode=1)) == 5


def test_ceil_mode_applies_with_valid() -> None:
    assert size(pool(6, 3, strides=[2], auto_pad="VALID", ceil_mode=1)) == 3


def test_ceil_mode_changes_nothing_with_same() -> None:
    assert pool(6, 3, strides=[4], auto_pad="SAME_UPPER", ceil_mode=1) == pool(6, 3, strides=[4], auto_pad="SAME_UPPER")


def test_storage_order_is_part_of_the_geometry() -> None:
    assert [pool(5, 2, storage_order=order).storage_order for order in (0, 1)] == [0, 1]


def test_the_most_axes_are_what_numpy_s_arrays_leave() -> None:
    assert geometries.check_rank("conv", "x", 62) == 62
    with pytest.raises(ArgumentError, match=r"x has 63 spatial axes, but beside .* an array has at most 62"):
        geometries.check_rank("conv", "x", 63)
