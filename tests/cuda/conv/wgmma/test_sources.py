"""How wgmma kernels load x and w: directly, as rows or patches, or from a copy."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from gpuconv.cuda.conv.wgmma import sources
from tests.harness.plans import problem

Ints = tuple[int, ...]


@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
def test_the_reach_of_taps_is_what_they_meet(operator: str) -> None:
    """Checked for the first column of every phase, by trying all taps."""
    tried = 0
    for kernel, stride, dilation, pad in product((1, 2, 3, 5), (1, 2, 3, 4, 6), (1, 2, 3, 4), (0, 1, 2)):
        attributes = {"strides": [stride], "dilations": [dilation], "pads": [pad, 0]}
        one = problem(operator, (1, 32, 40), (32, 32, kernel), **attributes)
        if one.phases:
            reached = [place + pad - tap * dilation for place in range(one.phases[0]) for tap in range(kernel)]
            met = [place // stride for place in reached if place % stride == 0]
        else:
            met = [tap * dilation - pad for tap in range(kernel)]
        assert sources._taps(one, 0) == (min(met, default=0), max(met, default=0)), attributes
        tried += bool(one.phases)
    assert (tried > 100) == (operator == "conv_transpose")


@pytest.mark.parametrize(
    ("x", "w", "elements"),
    [
        ((2, 64, 30, 20), (32, 64, 1, 1), 2 * 64 * 30 * 20),  # of x
        ((1, 64, 4, 4), (256, 64, 3, 3), 256 * 64 * 9),  # of w
    ],
)
def test_copies_have_no_more_elements_than_32_bits_count(
    x: Ints, w: Ints, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = problem("conv", x, w)
    monkeypatch.setattr(sources, "_MOST_ELEMENTS", elements)
    assert sources.refusal(one) is None
    monkeypatch.setattr(sources, "_MOST_ELEMENTS", elements - 1)
    assert "a copy of x or w would have" in str(sources.refusal(one))


@pytest.mark.parametrize(
    ("sizes", "strides", "found"),
    [
        ((64, 6, 5, 2), (64, 384, 1920), (128, 768, 3840)),
        ((64, 6, 5, 2), (72, 432, 2160), (144, 864, 4320)),  # with a gap of 16 bytes
        ((64, 6, 5, 2), (68, 408, 2040), None),  # and of 8
        ((64, 6, 5, 2), (56, 384, 1920), None),  # pixels that overlap
        ((64, 6, 5, 2), (64, 384, 2000), None),  # not a multiple of the previous stride
        ((64, 6, 5, 2), (384, 64, 1920), None),
        ((64, 6, 5, 2), (64, 384, 0), None),
        ((64, 6, 5, 2), (64, -384, 1920), None),
        ((64, 6, 5, 1), (64, 384, 7), (128, 768, 768 * 5)),  # a single image: the stride after all its rows
        ((64, 6, 1, 2), (64, 7, 384), (128, 768, 768)),
        ((64, 1, 5, 2), (7, 64, 320), (128, 128, 640)),
        ((64, 1, 1, 1), (0, 0, 0), (128, 128, 128)),
        ((60, 1, 1, 1), (0, 0, 0), (128, 128, 128)),  # 120 bytes, in whole 16
    ],
)
def test_each_stride_of_a_map_is_a_multiple_of_the_one_before(sizes: Ints, strides: Ints, found: Ints | None) -> None:
    assert sources._strides(sizes, strides, 2) == found


@pytest.mark.parametrize(
    ("channels", "kernel", "group", "w_strides", "whole"),
    [
        (64, (1, 1), 1, None, True),
        (72, (1, 1), 1, None, True),
        (68, (1, 1), 1, None, False),  # rows of 136 bytes
        (64, (3, 3), 1, (576, 1, 192, 64), True),  # adjacent taps with whole slices of channels
        (64, (3, 3), 1, None, False),
        (96, (3, 3), 1, (864, 1, 288, 96), True),  # one and a half slices
        (68, (3, 3), 1, (612, 1, 204, 68), False),  # of 136 bytes
        (64, (3, 3), 1, (640, 1, 192, 64), True),  # with a gap between filters
        (64, (3, 3), 1, (768, 1, 256, 64), False),  # and between rows
        (64, (1, 1), 2, None, True),
        (64, (1, 1), 2, (72, 1, 1, 1), True),
        (64, (1, 1), 1, (64, 2, 1, 1), False),
    ],
)
def test_w_is_read_as_it_is_where_rows_are_whole(
    channels: int, kernel: Ints, group: int, w_strides: Ints | None, whole: bool
) -> None:
    one = problem("conv", (1, group * channels, 9, 9), (64, channels, *kernel), group=group, w_strides=w_strides)
    assert sources._w_as_it_is(one) is whole
    assert not sources._w_as_it_is(replace(one, dtype="float32", precision="tf32"))


@pytest.mark.parametrize(
    ("x", "w", "more", "why"),
    [
        ((2, 80, 9, 16), (128, 40, 3, 3), {"group": 2}, "the 40 channels of a group are not whole steps of 16"),
        ((2, 64, 9, 16), (64, 64, 3, 3), {"strides": [1, 2]}, "the stride along its rows is 2"),
        ((2, 64, 9, 16), (64, 64, 3, 3), {"layout": "NHWC"}, "the pixels of its rows are not contiguous"),
        ((2, 64, 9, 15), (64, 64, 3, 3), {}, "its rows are not 16 bytes, or a multiple of that, apart"),
        ((2, 64, 8, 15), (64, 64, 1, 1), {}, None),  # all 120 pixels are a row
        ((2, 64, 9, 16), (64, 64, 3, 3), {"strides": [2, 1]}, None),
    ],
)
def test_why_rows_are_not_fetched(x: Ints, w: Ints, more: dict[str, Any], why: str | None) -> None:
    assert sources.no_rows(problem("conv", x, w, **more)) == why


@pytest.mark.parametrize(
    ("channels", "half"), [(32, True), (33, False), (64, False), (65, True), (96, True), (97, False)]
)
def test_when_half_of_the_last_slice_is_empty(channels: int, half: bool) -> None:
    for dtype in ("float16", "float32"):  # a slice of 64 channels of 16 bits; none of 32 has half left
        one = problem("conv", (1, channels, 9, 9), (64, channels, 3, 3), dtype=dtype)
        assert sources._half_is_empty(one) == (half and dtype == "float16")


@pytest.mark.parametrize(
    ("channels", "more", "slices", "last", "x_fetched", "w_fetched"),
    [
        (128, {}, 2, 4, 1, 1),
        (65, {}, 2, 1, 65 / 128, 80 / 128),  # rows of 65 channels; of 72 filled ones in w, sectors of 16
        (65, {"layout": "NHWC"}, 2, 1, 80 / 128, 80 / 128),
        (96, {"layout": "NHWC"}, 2, 2, 96 / 128, 96 / 128),
        (48, {"group": 2, "layout": "NHWC"}, 1, 3, 1, 48 / 64),  # the next group's channels follow
    ],
)
def test_the_last_slice_of_a_tap_has_no_more_steps_than_channels(
    channels: int, more: dict[str, Any], slices: int, last: int, x_fetched: float, w_fetched: float
) -> None:
    x, w = (2, more.get("group", 1) * channels, 9, 16), (128, channels, 3, 3)
    one = problem("conv", x, w, pads=[1] * 4, **more)
    found = [each for each in sources.sources(one) if each.slice_bytes == 128][-1]
    assert (found.channel_slices, found.last_steps) == (slices, last)
    assert found.filled == ((slices - 1) * 4 + last) / (slices * 4)
    assert (found.x_fetched, found.w_fetched) == (x_fetched, w_fetched)


@pytest.mark.parametrize(
    ("channels", "group", "last", "filled"),
    [
        (32, 1, 4, 1),
        (40, 1, 1, 6 / 8),  # a step that waits for the previous one counts twice
        (48, 1, 4, 1),  # zeros fill the slice
        (48, 2, 2, 1),  # the next group's channels follow
        (56, 2, 3, 10 / 8),
    ],
)
def test_in_registers_a_slice_that_is_nearly_whole_is_multiplied_whole(
    channels: int, group: int, last: int, filled: float
) -> None:
    x, w = (2, group * channels, 9, 16), (group * 64, channels, 3, 3)
    one = problem("conv", x, w, "float32", precision="tf32", group=group)
    (rows,) = (each for each in sources.sources(one) if each.form == "rows")
    assert (rows.last_steps, rows.filled) == (last, filled)
    assert rows.last_steps * 8 >= channels % 32


@pytest.mark.parametrize(
    ("group", "channels", "more", "fetched"),
    [
        (1, 72, {}, True),
        (1, 8, {}, True),
        (1, 4, {}, False),  # pixels are 8 bytes apart
        (1, 12, {}, False),
        (2, 64, {}, True),
        (2, 72, {}, False),  # the second slice would include channels of the other group
        (1, 72, {"x_strides": (72 * 315, 2, 72 * 63, 72 * 9, 72)}, False),
        (1, 72, {"x_strides": (72 * 315 + 4, 1, 72 * 63, 72 * 9, 72)}, False),
        (1, 72, {"x_strides": (72 * 315, 1, 72 * 63, 72 * 9 + 4, 72)}, False),
        (1, 72, {"x_strides": (72 * 315, 1, 72 * 63, 72 * 9, 64)}, False),  # they overlap
    ],
)
def test_when_channels_are_fetched_as_they_lie(group: int, channels: int, more: dict[str, Any], fetched: bool) -> None:
    shapes = (2, channels * group, 5, 7, 9), (32 * group, channels, 1, 1, 1)
    one = replace(problem("conv", *shapes, layout="NHWC", group=group), **more)
    assert sources._channels_last(one) is fetched
