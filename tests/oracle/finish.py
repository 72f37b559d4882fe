"""The epilogue of Conv and ConvTranspose by definition: residual, then activation."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from tests.oracle import oracle
from tests.oracle.oracle import assert_same

# Activations as calls give them, with the numbers of the formula: slope of negative values, lower and upper bound.
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
    """Apply residual and activation to sums that include the bias, in the sums' own dtype."""
    kind = sums.dtype.type
    slope, low, high = (kind(number) for number in ACTIVATIONS[activation])
    with np.errstate(all="ignore"):
        v = sums if residual is None else sums + residual.astype(kind)
        v = np.where(v < 0, v * slope, v)
        v = np.where(v < low, low, v)
        return np.where(v > high, high, v)


def accumulator(dtype: Any) -> Any:
    """Return the dtype that sums are accumulated in."""
    return np.dtype(np.float64 if np.dtype(dtype) == np.float64 else np.float32)


def with_finish(exact: oracle.Exact, residual: Any, activation: Any, dtype: Any) -> oracle.Exact:
    """Apply the epilogue to exact sums and their error bounds; an error grows at most by the slope."""
    slope, low, high = (float(accumulator(dtype).type(number)) for number in ACTIVATIONS[activation])
    added = 0.0 if residual is None else residual.astype(np.float64)
    with np.errstate(all="ignore"):
        v = exact.value + added
        v = np.where(v < 0, v * slope, v)
        v = np.where(v < low, low, v)
        v = np.where(v > high, high, v)
        magnitude = (exact.magnitude + np.abs(added)) * max(1.0, abs(slope))
    return oracle.Exact(v, magnitude, exact.terms + 2)  # two more roundings: the residual, the slope


def assert_equal(actual: Any, expected: Any) -> None:
    """Assert bitwise equality, except for the bits of NaN."""
    assert_same(actual, expected, bits=False)
    numbers = ~np.isnan(expected.astype(np.float64))
    assert (np.signbit(actual) == np.signbit(expected))[numbers].all(), "a zero has the wrong sign"
