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


# ---------------------------------------------------------------- rules of windows, and of all three

UPPER, LOWER = {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}
Rule = tuple[str, int, int, dict[str, Any], int, tuple[int, int]]
# What each says; extent, kernel, attributes; the size of the output, and the pads.
WINDOWS: list[Rule] = [
    ("sizes are floored, not truncated", 2, 3, {"strides": [2]}, 0, (0, 0)),
    ("a size of zero is legal", 2, 3, {}, 0, (0, 0)),
    ("SAME_UPPER puts the odd element at the end", 5, 4, UPPER, 5, (1, 2)),
    ("SAME_UPPER with strides", 6, 4, {"strides": [3], **UPPER}, 2, (0, 1)),
    ("SAME_LOWER puts the odd element at the beginning", 5, 4, LOWER, 5, (2, 1)),
    ("SAME_LOWER with strides", 6, 4, {"strides": [3], **LOWER}, 2, (1, 0)),
    ("SAME counts the dilated kernel", 9, 3, {"dilations": [3], **UPPER}, 9, (3, 3)),
    ("SAME never pads a negative amount", 7, 1, {"strides": [4], **LOWER}, 2, (0, 0)),
    ("VALID pads nothing", 7, 3, {"auto_pad": "VALID"}, 5, (0, 0)),
    ("pads may exceed the kernel", 2, 2, {"pads": [5, 3]}, 9, (5, 3)),
]


def by_name(rules: list[Rule]) -> Any:
    names = "n", "k", "attributes", "out", "pad"
    return pytest.mark.parametrize(names, [rule[1:] for rule in rules], ids=[rule[0] for rule in rules])


@pytest.mark.parametrize("make", [conv, pool], ids=["conv", "max_pool"])
@by_name(WINDOWS)
def test_windows(make: Any, n: int, k: int, attributes: dict[str, Any], out: int, pad: tuple[int, int]) -> None:
    geometry = make(n, k, **attributes)
    assert (size(geometry), pads(geometry)) == (out, pad)


@pytest.mark.parametrize("n", [2**24 + 1, 2**53 + 1])
def test_sizes_are_exact_where_floats_are_not(n: int) -> None:
    assert size(pool(n, 1, ceil_mode=1)) == n
    assert size(conv(n, 1, auto_pad="SAME_UPPER")) == n
    assert size(pool(n, 2, strides=[2], ceil_mode=1)) == n // 2 + 1
    assert size(transpose(n, 1)) == n


@pytest.mark.parametrize("make", [conv, pool, transpose], ids=["conv", "max_pool", "conv_transpose"])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_pads_of_zeros_go_with_every_auto_pad(make: Any, mode: str) -> None:
    assert make(5, 2, auto_pad=mode, pads=[0, 0]) == make(5, 2, auto_pad=mode)


@pytest.mark.parametrize("make", [conv, pool, transpose], ids=["conv", "max_pool", "conv_transpose"])
@pytest.mark.parametrize("mode", ["", b"", b"NOTSET", "NOTSET"])
def test_an_empty_auto_pad_and_bytes_have_their_plain_meaning(make: Any, mode: Any) -> None:
    assert make(5, 2, auto_pad=mode, pads=[1, 0]) == make(5, 2, pads=[1, 0])
    assert make(5, 2, auto_pad=b"SAME_LOWER") == make(5, 2, auto_pad="SAME_LOWER") != make(5, 2)


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

TRANSPOSES: list[Rule] = [
    ("a size of zero is legal", 2, 1, {"pads": [1, 1]}, 0, (1, 1)),
    ("output_padding may reach the dilation", 3, 2, {"dilations": [3], "output_padding": [2]}, 3 + 3 + 2, (0, 0)),
    ("SAME_UPPER puts the smaller half first", 5, 4, UPPER, 5, (1, 2)),
    ("SAME_LOWER puts the larger half first", 5, 4, LOWER, 5, (2, 1)),
    ("SAME_UPPER splits what output_shape crops", 5, 4, {"output_shape": [5], **UPPER}, 5, (1, 2)),
    ("SAME_LOWER splits what output_shape crops", 5, 4, {"output_shape": [5], **LOWER}, 5, (2, 1)),
    ("NOTSET splits as SAME_LOWER", 5, 4, {"output_shape": [5]}, 5, (2, 1)),
    ("VALID splits as SAME_LOWER", 5, 4, {"output_shape": [5], "auto_pad": "VALID"}, 5, (2, 1)),
    ("an excess of output_shape stands at the end", 3, 2, {"output_shape": [9]}, 9, (0, 0)),
    ("output_shape may be smaller than the input", 9, 1, {"output_shape": [4]}, 4, (3, 2)),
    ("it crops output_padding too", 3, 3, {"strides": [2], "output_padding": [1], "output_shape": [5]}, 5, (2, 1)),
    ("SAME_UPPER gives the stride times the input", 4, 1, {"strides": [3], **UPPER}, 12, (0, 0)),
    ("SAME_LOWER gives the stride times the input", 4, 1, {"strides": [3], **LOWER}, 12, (0, 0)),
]


@by_name(TRANSPOSES)
def test_transposes(n: int, k: int, attributes: dict[str, Any], out: int, pad: tuple[int, int]) -> None:
    geometry = transpose(n, k, **attributes)
    assert (size(geometry), pads(geometry)) == (out, pad)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_same_gives_the_stride_times_the_input_whatever_output_padding_says(mode: str) -> None:
    assert size(transpose(4, 7, strides=[3], output_padding=[2], auto_pad=mode)) == 12


def test_output_shape_overrules_pads_and_ignores_n_and_c_in_front() -> None:
    plain = transpose((3, 4), (2, 2), output_shape=[3, 5])
    assert plain == transpose((3, 4), (2, 2), output_shape=[-7, 99, 3, 5])
    assert plain == transpose((3, 4), (2, 2), output_shape=[3, 5], pads=[9, 9, 9, 9])


# ---------------------------------------------------------------- rules of MaxPool

CEIL = {"ceil_mode": 1}
POOLS: list[Rule] = [
    ("a window that starts past the input is dropped", 4, 2, {"strides": [3], **CEIL}, 2, (0, 0)),
    ("a window that starts in the end pad is dropped", 3, 1, {"strides": [3], "pads": [0, 1], **CEIL}, 1, (0, 1)),
    ("a window that starts in the input stays", 3, 1, {"strides": [3], "pads": [1, 1], **CEIL}, 2, (1, 1)),
    ("a window longer than the input stays", 2, 3, {"strides": [2], **CEIL}, 1, (0, 0)),
    ("nothing is dropped without ceil_mode", 1, 1, {"pads": [0, 5]}, 6, (0, 5)),
    ("ceil_mode drops the last window only", 1, 1, {"pads": [0, 5], **CEIL}, 5, (0, 5)),
    ("ceil_mode applies with VALID", 6, 3, {"strides": [2], "auto_pad": "VALID", **CEIL}, 3, (0, 0)),
]


@by_name(POOLS)
def test_pools(n: int, k: int, attributes: dict[str, Any], out: int, pad: tuple[int, int]) -> None:
    geometry = pool(n, k, **attributes)
    assert (size(geometry), pads(geometry)) == (out, pad)


def test_ceil_mode_changes_nothing_with_same() -> None:
    assert pool(6, 3, strides=[4], auto_pad="SAME_UPPER", ceil_mode=1) == pool(6, 3, strides=[4], auto_pad="SAME_UPPER")


def test_storage_order_is_part_of_the_geometry() -> None:
    assert [pool(5, 2, storage_order=order).storage_order for order in (0, 1)] == [0, 1]


def test_the_most_axes_are_what_numpy_s_arrays_leave() -> None:
    assert geometries.check_rank("conv", "x", 62) == 62
    with pytest.raises(ArgumentError, match=r"x has 63 spatial axes, but beside .* an array has at most 62"):
        geometries.check_rank("conv", "x", 63)
