"""Entries and axes of activations in the order of either layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuconv import ArgumentError, ArgumentTypeError
from gpuconv.rules import layout as layouts


@pytest.mark.parametrize(
    ("given", "ordered"),
    [("NHWC", "NCHW"), ("NDHWC", "NCDHW"), ("NWC", "NCW"), ("NC", "NC"), ("N", "N"), ("", "")],
)
def test_entries_are_put_in_the_order_of_channels_second(given: str, ordered: str) -> None:
    assert "".join(layouts.channels_second("NHWC", tuple(given))) == ordered
    assert layouts.channels_second("NCHW", tuple(given)) == tuple(given)
    if len(given) > 2:
        assert "".join(layouts.as_given("NHWC", tuple(ordered))) == given
        assert layouts.as_given("NCHW", tuple(given)) == tuple(given)


def test_the_axes_of_an_array() -> None:
    array = np.zeros((2, 3, 4, 5))
    assert layouts.view("NHWC", array).shape == (2, 5, 3, 4)
    assert layouts.view("NCHW", array) is array
    assert np.shares_memory(layouts.view("NHWC", array), array)


@pytest.mark.parametrize(
    ("layout", "shape", "channels", "expected"),
    [
        ("NCHW", (1, 32, 30, 3), 3, '; pass layout="NHWC" if the channels of x are last'),
        ("NCHW", (1, 32, 30, 3), 30, ""),
        ("NCHW", (3, 8, 4), 3, ""),
        ("NHWC", (2, 3, 32, 30), 3, '; pass layout="NCHW" if the channels of x are second'),
        ("NHWC", (2, 3, 32, 30), 2, ""),
    ],
)
def test_the_other_layout_is_advised_where_it_has_the_channels(
    layout: str, shape: tuple[int, ...], channels: int, expected: str
) -> None:
    assert layouts.advice(layout, shape, channels) == expected


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_two_layouts_are_returned(layout: str) -> None:
    assert layouts.check("f", layout) == layout


@pytest.mark.parametrize(("layout", "error"), [("nchw", ArgumentError), ("", ArgumentError), (1, ArgumentTypeError)])
def test_anything_else_is_refused(layout: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^f: layout must be "):
        layouts.check("f", layout)
