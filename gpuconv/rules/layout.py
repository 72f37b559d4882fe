"""The argument ``layout``: channels second (NCHW) or last (NHWC), for any number of spatial axes.

Internally, axes are always in the order N, C, D1, ... At the start of a call, shapes and strides of NHWC arrays are
reordered, without moving elements.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar, get_args

import numpy as np

from gpuconv._errors import ArgumentError, ArgumentTypeError, shown

Entry = TypeVar("Entry")
Layout = Literal["NCHW", "NHWC"]
LAYOUTS: tuple[str, ...] = get_args(Layout)
ADVICE = "; pass layout="  # begins advice in messages, for callers that have this argument


def check(operator: str, layout: Any) -> str:
    """Return the layout if it is valid; raise ArgumentError or ArgumentTypeError otherwise."""
    if not isinstance(layout, str):
        raise ArgumentTypeError(f"{operator}: layout must be a string, not {type(layout).__name__}")
    if layout not in LAYOUTS:
        raise ArgumentError(f"{operator}: layout must be one of {', '.join(LAYOUTS)}, not {shown(layout)}")
    return layout


def advice(layout: str, shape: tuple[int, ...], channels: int) -> str:
    """Return advice for a message about a wrong channel count: the other layout, if that has the right count; else "".

    Examples
    --------
    >>> advice("NCHW", (1, 32, 32, 3), 3)
    '; pass layout="NHWC" if the channels of x are last'
    >>> advice("NCHW", (1, 32, 32, 3), 4)
    ''
    """
    other, place = ("NHWC", "last") if layout == "NCHW" else ("NCHW", "second")
    mends = channels_second(other, shape)[1] == channels
    return f'{ADVICE}"{other}" if the channels of x are {place}' if mends else ""


def channels_second(layout: str, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Return shape or strides in the order N, C, D1, ...; fewer than three entries are returned unchanged."""
    if layout == "NCHW" or len(entries) < 3:
        return entries
    return (entries[0], entries[-1], *entries[1:-1])


def as_given(layout: str, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Return entries in the order N, C, D1, ... rearranged to the order of the layout."""
    return entries if layout == "NCHW" else (entries[0], *entries[2:], entries[1])


def view(layout: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a NumPy array of the layout as a view with its axes in the order N, C, D1, ..."""
    return array if layout == "NCHW" else np.moveaxis(array, -1, 1)
