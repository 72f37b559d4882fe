"""Calls with a residual and an activation: what they must give by definition, and small ones for every kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Any

import numpy as np

import gpuconv
from tests.emulator import emulated_cuda
from tests.harness import many_blocks
from tests.harness.emulated import indices, preferred
from tests.harness.many_blocks import ManyBlocks
from tests.oracle import oracle
from tests.oracle.operands import LAYOUTS, values
from tests.oracle.oracle import assert_same
from tests.oracle.strategies import Problem

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


# ---------------------------------------------------------------- small calls for every kernel


@dataclass(frozen=True)
class Fused:
    """What a call has beside x and w; the residual lies as the result does, or as a layout says."""

    bias: bool
    activation: Any
    residual: str | None


KERNELS = tuple(one for one in many_blocks.ALL if one.problem.w_shape is not None)
_AS_RESULT = "as the result"
_RESIDUALS = (_AS_RESULT, _AS_RESULT, "reversed", _AS_RESULT, "channels last", None)
_ACTIVATIONS = tuple(activation for activation in ACTIVATIONS if activation not in ("clip", ("relu",)))


def _two_calls(number: int) -> Iterator[Fused]:
    """Two calls that share nothing, other ones for each number."""
    for turn in (2 * number, 2 * number + 1):
        residual = _RESIDUALS[turn % len(_RESIDUALS)]
        activation = _ACTIVATIONS[turn * 5 % len(_ACTIVATIONS)]
        yield Fused(bool(turn % 2), activation or (None if residual else "relu"), residual)


def _small(problem: Problem, most: int) -> Problem:
    """The same with one image, and with a few output channels of each group that are no whole vectors."""
    assert problem.w_shape is not None
    group, (first, second, *taps) = problem.attributes.get("group", 1), problem.w_shape
    if problem.operator == "conv":
        channels = first = group * min(first // group, most)
    else:
        second = min(second, most)
        channels = group * second
    x_shape = (1, *problem.x_shape[1:])
    return Problem(problem.operator, x_shape, (first, second, *taps), (channels,), problem.attributes)


def check(number: int, architecture: str | None = None, **options: Any) -> Any:
    """Run two calls of a kernel; see `check_problem`."""
    return check_problem(KERNELS[number], number, architecture, **options)


def check_problem(one: ManyBlocks, number: int, architecture: str | None = None, **options: Any) -> Any:
    """Run two calls, other ones for each number, of a kernel on whole numbers and return the device.

    Raise AssertionError where it makes something else than the formula does of their sums, which are exact: no bit
    depends on their order.
    """
    one = replace(one, problem=_small(one.problem, 67 if "_wgmma_" in one.kernel else 19))
    return _check_calls(one, number, _two_calls(number), architecture, **options)


_BOUNDED = (Fused(True, ("leaky_relu", -2), _AS_RESULT), Fused(False, ("clip", -1.5, 6), _AS_RESULT))


def check_whole(one: ManyBlocks, number: int, architecture: str | None = None, **options: Any) -> Any:
    """The same of one image and all output channels, with a slope and with bounds that many sums are beyond."""
    one = replace(one, problem=_small(one.problem, max(one.problem.w_shape or ())))
    return _check_calls(one, number, _BOUNDED, architecture, **options)


def check_zeros(one: ManyBlocks, architecture: str | None = None, **options: Any) -> Any:
    """Raise AssertionError where sums of 0 do not stay what they are, not even by their signs, at bounds of -0."""
    one = replace(
        one, problem=_small(one.problem, max(one.problem.w_shape or ())), kinds=("zeros", "integers", "zeros")
    )
    x, w, _ = many_blocks.arrays(one)
    for activation, residual in product((("leaky_relu", -2), ("clip", -0.0, -0.0)), (False, True)):
        with _settings(one, architecture, **options) as emulated:
            shape = getattr(oracle, one.problem.operator)(x, w, None, **one.problem.attributes).value.shape
            y = LAYOUTS[one.out or "contiguous"](np.full(shape, 7, one.dtype))
            finish = {"activation": activation, "residual": np.zeros_like(y) if residual else None}
            getattr(gpuconv, one.problem.operator)(x, w, **one.problem.attributes, **finish, out=y)
        assert_equal(y, np.zeros_like(y))
        assert emulated.launches[-1].variant.name == one.kernel.removesuffix("_split")
    return emulated


@contextmanager
def _settings(one: ManyBlocks, architecture: str | None, **options: Any) -> Iterator[Any]:
    device = emulated_cuda(architecture, limits_of=one.architecture, **options)
    with indices(one.wide), preferred(one.kernel), gpuconv.precision(one.precision), device as emulated:
        yield emulated


def _check_calls(one: ManyBlocks, number: int, calls: Iterable[Fused], architecture: str | None, **options: Any) -> Any:
    problem, dtype = one.problem, one.dtype
    x, w, b = many_blocks.arrays(one)
    sums = getattr(oracle, problem.operator)(x, w, None, **problem.attributes).value.astype(accumulator(dtype))
    bias = b.reshape(-1, *(1,) * problem.rank).astype(sums.dtype)
    lies = one.out or "contiguous"
    for call in calls:
        kind = "nonfinite" if call.bias else "integers"
        residual = None if call.residual is None else values(kind, number, sums.shape, dtype)
        expected = finished(sums + bias if call.bias else sums, residual, call.activation).astype(dtype)
        if residual is not None:
            residual = LAYOUTS[lies if call.residual == _AS_RESULT else str(call.residual)](residual)
        with _settings(one, architecture, **options) as emulated:
            y = getattr(gpuconv, problem.operator)(
                *(x, w, b if call.bias else None),
                **problem.attributes,
                activation=call.activation,
                residual=residual,
                out=LAYOUTS[lies](np.zeros(sums.shape, dtype)),
            )
        assert emulated.launches[-1].variant.name == one.kernel.removesuffix("_split")
        assert many_blocks.is_split(emulated.launches[-1]) == one.kernel.endswith("_split")
        assert_same(y, expected, bits=False)
    return emulated


# ---------------------------------------------------------------- inputs that are infinite as TF32


@dataclass(frozen=True)
class BeyondTf32:
    """A convolution by kernels with this in their names, of factors that round to an infinity in TF32.

    Of every other channel, from the first on, the inputs are so, all alike and negative, and the weights small; of the
    rest it is the other way round. Products of such inputs are -inf where they are not exact, never NaN. A bias makes
    every true sum positive and exact, in any order. A sum of -inf has to be made again; what relu makes of it looks
    finite. Such a weight stays finite: it loses its last bits, but not in 3xtf32, nor in sums of which w is read again.
    """

    kernel: str
    operator: str
    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    attributes: dict[str, Any]

    def check(self, precision: str = "tf32", architecture: str | None = None, **options: Any) -> Any:
        """Raise AssertionError where a call makes something else than the formula does of the true sums."""
        beyond, least = 2.0**116 - 2.0**128, 2.0**117 - 2.0**128  # halfway from TF32's least number to -2**128
        x, w = np.full(self.x_shape, beyond, np.float32), np.full(self.w_shape, 2.0**-120, np.float32)
        x[:, 1::2] = 2.0**-120
        transposed, groups = self.operator == "conv_transpose", self.attributes.get("group", 1)
        (w if transposed else w.swapaxes(0, 1))[1::2] = beyond
        b = np.full(self.w_shape[1] * groups if transposed else self.w_shape[0], 2.0**18, np.float32)
        weights = (w, np.where(w == beyond, np.float32(least), w) if precision == "tf32" else w)
        of_all = [
            getattr(oracle, self.operator)(x, one, b, **self.attributes).value.astype(np.float32) for one in weights
        ]
        assert all((sums > 0).all() for sums in of_all)
        with preferred(self.kernel), emulated_cuda(architecture, **options) as emulated:
            # Some kernels store otherwise where there is a residual, or nothing to finish.
            for activation, residual in (("relu", None), ("relu", np.ones_like(of_all[0])), (None, None)):
                finish: dict[str, Any] = {"activation": activation, "residual": residual, "precision": precision}
                y = getattr(gpuconv, self.operator)(x, w, b, **self.attributes, **finish)
                exact, rounded = (finished(sums, residual, activation) for sums in of_all)
                assert_equal(y, np.where(y == exact, exact, rounded))
        assert self.kernel.removesuffix("_split") in emulated.launches[-1].variant.name
        assert many_blocks.is_split(emulated.launches[-1]) == self.kernel.endswith("_split")
        return emulated


def beyond_tf32(one: ManyBlocks) -> BeyondTf32:
    """The same of a kernel's own problem, of one image."""
    problem = one.problem
    assert problem.w_shape is not None
    return BeyondTf32(one.kernel, problem.operator, (1, *problem.x_shape[1:]), problem.w_shape, problem.attributes)


_PADDED = {"pads": [1, 1, 1, 1]}
BEYOND_TF32 = (
    BeyondTf32("tf32_64x64x16_rowwise", "conv", (1, 3, 9, 8), (20, 3, 3, 3), _PADDED),
    BeyondTf32("tf32_64x64x16_scalar_split", "conv", (1, 64, 9, 8), (20, 64, 3, 3), _PADDED),
    BeyondTf32("conv_matrix_float32_3d", "conv", (1, 36, 9, 8), (20, 36, 1, 1), {}),
    BeyondTf32("conv_stem_float32_3d", "conv", (1, 3, 9, 40), (40, 3, 3, 3), _PADDED),
    BeyondTf32("conv_grouped_float32_3d", "conv", (1, 16, 9, 32), (32, 8, 3, 3), {**_PADDED, "group": 2}),
    BeyondTf32("tf32_64x64x16_scalar", "conv_transpose", (1, 20, 5, 6), (20, 20, 4, 4), {"strides": [2, 2]}),
    BeyondTf32("tf32_wgmma_128x128_pixel_rows", "conv", (1, 32, 3, 40), (64, 32, 1, 1), {}),
    BeyondTf32("conv_transpose_matrix", "conv_transpose", (1, 20, 5, 6), (20, 20, 2, 2), {"strides": [2, 2]}),
)


# ---------------------------------------------------------------- random calls


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
