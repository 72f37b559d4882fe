"""What a residual and an activation make of the sums of Conv and ConvTranspose, by definition."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from tests.oracle import oracle
from tests.oracle.oracle import assert_same

# As calls give them, and what stands in the formula: slope, low, high.
ACTIVATIONS: dict[Any, tuple[float, float, float]] = {
    None: (1.0, -inf, inf),
    "relu": (1.0, 0.0, inf),
    "leaky_relu": (0.01, -inf, inf),
    "clip": (1.0, -inf, inf),
    ("relu",): (1.0, 0.0, inf),
    ("leaky_relu", 0.3): (0.3, -inf, inf),
    ("leaky_relu", -2): (-2.0, -inf, inf),
    ("clip", -1.5, 6): (1.0, -1.5, 6.0),
    ("clip", None, 2.5): (1.0, -inf, 2.5),
    ("clip", -0.7, None): (1.0, -0.7, inf),
    ("clip", 3, -3): (1.0, 3.0, -3.0),
}


def finished(sums: Any, residual: Any, activation: Any) -> Any:
    """What becomes of sums with their bias, in their own type, element by element."""
    kind = sums.dtype.type
    slope, low, high = (kind(number) for number in ACTIVATIONS[activation])
    with np.errstate(all="ignore"):
        v = sums if residual is None else sums + residual.astype(kind)
        v = np.where(v < 0, v * slope, v)
        v = np.where(v < low, low, v)
        return np.where(v > high, high, v)


def accumulator(dtype: Any) -> Any:
    """The type of the sums."""
    return np.dtype(np.float64 if np.dtype(dtype) == np.float64 else np.float32)


def with_finish(exact: oracle.Exact, residual: Any, activation: Any, dtype: Any) -> oracle.Exact:
    """What sums become, with what they may be off by: no activation here makes an error larger than its slope does."""
    slope, low, high = (float(accumulator(dtype).type(number)) for number in ACTIVATIONS[activation])
    added = 0.0 if residual is None else residual.astype(np.float64)
    with np.errstate(all="ignore"):
        v = exact.value + added
        v = np.where(v < 0, v * slope, v)
        v = np.where(v < low, low, v)
        v = np.where(v > high, high, v)
        magnitude = (exact.magnitude + np.abs(added)) * max(1.0, abs(slope))
    return oracle.Exact(v, magnitude, exact.terms + 2)  # the residual, and the product with the slope


def assert_equal(actual: Any, expected: Any) -> None:
    """Assert equality of every bit, but for those of NaN."""
    assert_same(actual, expected, bits=False)
    numbers = ~np.isnan(expected.astype(np.float64))
    assert (np.signbit(actual) == np.signbit(expected))[numbers].all(), "a zero has the wrong sign"
