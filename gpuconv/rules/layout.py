"""Where the channels of activations stand: second (NCHW), or last (NHWC), whatever the number of spatial axes.

Everything below the public functions counts axes as N, C, D1, …: what arrays of the other layout have is put in this
order where a call begins, without moving an element.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar, get_args

import numpy as np

from gpuconv._errors import ArgumentError, ArgumentTypeError, shown

Entry = TypeVar("Entry")
Layout = Literal["NCHW", "NHWC"]
LAYOUTS: tuple[str, ...] = get_args(Layout)
ADVICE = "; pass layout="  # of errors, for callers that can


def check(operator: str, layout: Any) -> str:
    """Return a layout that is one; raise ArgumentError, ArgumentTypeError, shown for anything else."""
    if not isinstance(layout, str):
        raise ArgumentTypeError(f"{operator}: layout must be a string, not {type(layout).__name__}")
    if layout not in LAYOUTS:
        raise ArgumentError(f"{operator}: layout must be one of {', '.join(LAYOUTS)}, not {shown(layout)}")
    return layout


def advice(layout: str, shape: tuple[int, ...], channels: int) -> str:
    """Return what ends a message about an array with another number of channels: the layout that mends it, if one does.

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
    """Return the shape or the strides of an activation in the order N, C, D1, …; too few entries as they are."""
    if layout == "NCHW" or len(entries) < 3:
        return entries
    return (entries[0], entries[-1], *entries[1:-1])


def as_given(layout: str, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Return entries in the order N, C, D1, … as an array of the layout has them."""
    return entries if layout == "NCHW" else (entries[0], *entries[2:], entries[1])


def view(layout: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a NumPy array of the layout seen with its axes in the order N, C, D1, …."""
    return array if layout == "NCHW" else np.moveaxis(array, -1, 1)
