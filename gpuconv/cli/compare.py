"""Comparison of a result with the expected array; a mismatch names the worst element."""

from __future__ import annotations

from typing import Any

import numpy as np


class Mismatch(Exception):
    """A result differs from the expected array; the message names the worst element."""


def exactly(what: str, got: Any, expected: Any, bits: bool = False) -> None:
    """Raise Mismatch unless two arrays are equal: bit for bit with ``bits``, else by value, with NaN equal to NaN."""
    same_kind(what, got, expected)
    if bits:
        unsigned = f"u{got.dtype.itemsize}"
        wrong = got.view(unsigned) != expected.view(unsigned)
    else:
        wrong = ~((got == expected) | ((got != got) & (expected != expected)))
    if wrong.any():
        with np.errstate(all="ignore"):
            error = np.abs(got.astype(np.float64) - expected.astype(np.float64))
        raise Mismatch(worst_element(what, got, expected, wrong, np.where(wrong, error, -1)))


def same_kind(what: str, got: Any, expected: Any) -> None:
    """Raise Mismatch unless two arrays have the same shape and dtype."""
    if (got.shape, got.dtype) != (expected.shape, expected.dtype):
        raise Mismatch(f"{what} is {got.dtype} {got.shape}, expected {expected.dtype} {expected.shape}")


def worst_element(what: str, got: Any, expected: Any, wrong: Any, error: Any) -> str:
    """Describe the wrong element with the largest error (a NaN counts as the largest)."""
    at = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
    place = f"{what}[{', '.join(map(str, at))}]"
    values = f"{got[at].item()}, expected {expected[at].item()}"
    return f"{place} is {values} ({wrong.sum()} of {wrong.size} elements differ)"
