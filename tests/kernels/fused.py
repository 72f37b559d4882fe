"""Fused calls (residual and activation) for every convolution kernel, derived from its specimen.

All sums are exact whole numbers, so that results do not depend on the order of summation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

import gpuconv
from tests.emulator import emulated_cuda
from tests.harness.emulated import preferred
from tests.kernels.convolutions import CONVOLUTIONS
from tests.kernels.specimen import Forward, Specimen, is_split, new
from tests.oracle import oracle
from tests.oracle.finish import ACTIVATIONS, accumulator, assert_equal, finished
from tests.oracle.operands import LAYOUTS, values
from tests.oracle.oracle import assert_same
from tests.oracle.strategies import Problem


@dataclass(frozen=True)
class Finish:
    """The epilogue of a call; the residual has the memory layout of the result, or the named one."""

    bias: bool
    activation: Any
    residual: str | None


_AS_RESULT = "as the result"
_RESIDUALS = (_AS_RESULT, _AS_RESULT, "reversed", _AS_RESULT, "channels last", None)
_ACTIVATIONS = tuple(activation for activation in ACTIVATIONS if activation not in ("clip", ("relu",)))
_BOUNDED = (Finish(True, ("leaky_relu", -2), _AS_RESULT), Finish(False, ("clip", -1.5, 6), _AS_RESULT))


def _two_calls(number: int) -> Iterator[Finish]:
    """Yield two calls with different epilogues; other ones for each number."""
    for turn in (2 * number, 2 * number + 1):
        residual = _RESIDUALS[turn % len(_RESIDUALS)]
        activation = _ACTIVATIONS[turn * 5 % len(_ACTIVATIONS)]
        yield Finish(bool(turn % 2), activation or (None if residual else "relu"), residual)


@dataclass(frozen=True, eq=False)
class _Derived(Specimen):
    """Calls of a kernel on the inputs of a specimen; the last launch must be that kernel's."""

    of: Forward

    @property
    def limits_of(self) -> str:
        return self.of.limits_of

    @property
    def tiles_per_block(self) -> int:
        return self.of.tiles_per_block

    @contextmanager
    def settings(self) -> Iterator[None]:
        with self.of.settings():
            yield

    @cached_property
    def inputs(self) -> Any:
        return self.of.inputs

    def __call__(self, architecture: str | None = None, **options: Any) -> Any:
        emulated = super().__call__(architecture, **options)
        assert emulated.launches[-1].variant.name == self.variant
        assert is_split(emulated.launches[-1]) == self.kernel.endswith("_split")
        return emulated


@dataclass(frozen=True, eq=False)
class Fused(_Derived):
    """Calls that each have an epilogue."""

    calls: tuple[Finish, ...]
    seed: int = 0

    def residual(self, call: Finish) -> Any:
        if call.residual is None:
            return None
        residual = values("nonfinite" if call.bias else "integers", self.seed, self.of.y_shape, self.dtype)
        lies = self.of.out or "contiguous" if call.residual == _AS_RESULT else call.residual
        return LAYOUTS[lies](residual)

    def compute(self) -> list[Any]:
        x, w, b = self.inputs
        out = replace(self.of, out=self.of.out or "contiguous")
        return [
            out.call(x, w, b if call.bias else None, activation=call.activation, residual=self.residual(call))
            for call in self.calls
        ]

    def check(self, found: list[Any]) -> None:
        x, w, b = self.inputs
        problem = self.of.problem
        exact = getattr(oracle, problem.operator)(x, w, None, **problem.attributes).value
        sums = exact.astype(accumulator(self.dtype))
        bias = b.reshape(-1, *(1,) * problem.rank).astype(sums.dtype)
        for y, call in zip(found, self.calls, strict=True):
            expected = finished(sums + bias if call.bias else sums, self.residual(call), call.activation)
            assert_same(y, expected.astype(self.dtype), bits=False)


def _small(one: Forward, most: int) -> Forward:
    """Return the specimen with one image and at most ``most`` filters per group."""
    problem = one.problem
    assert problem.w_shape is not None
    group, (first, second, *taps) = problem.attributes.get("group", 1), problem.w_shape
    if problem.operator == "conv":
        channels = first = group * min(first // group, most)
    else:
        second = min(second, most)
        channels = group * second
    x_shape = (1, *problem.x_shape[1:])
    smaller = Problem(problem.operator, x_shape, (first, second, *taps), (channels,), problem.attributes)
    return replace(one, problem=smaller)


def two_calls(one: Forward, number: int) -> Fused:
    """Return two fused calls, other ones for each number, with few filters per group, not a whole number of vectors."""
    return Fused(one.kernel, _small(one, 67 if one.is_wgmma else 19), tuple(_two_calls(number)), number)


def whole(one: Forward) -> Fused:
    """Return calls with all filters, with a slope, and with bounds that many sums exceed."""
    return Fused(one.kernel, _small(one, max(one.problem.w_shape or ())), _BOUNDED)


@dataclass(frozen=True, eq=False)
class Zeros(_Derived):
    """Sums of 0 at bounds of -0, whose signs must not change; with and without a residual of 0."""

    def compute(self) -> list[Any]:
        x, w, *_ = self.inputs
        one = replace(self.of, out=self.of.out or "contiguous")
        found = []
        for activation, residual in product((("leaky_relu", -2), ("clip", -0.0, -0.0)), (False, True)):
            zeros = np.zeros_like(new(one.out, one.y_shape, one.dtype)) if residual else None
            found.append(one.call(x, w, activation=activation, residual=zeros))
        return found

    def check(self, found: list[Any]) -> None:
        for y in found:
            assert_equal(y, np.zeros_like(y))


def zeros(one: Forward) -> Zeros:
    """Return calls on zeros of both signs, with one image unless blocks need several to share or split tiles."""
    whole = one.is_wgmma or one.kernel.endswith("_split")
    of = one if whole else _small(one, max(one.problem.w_shape or ()))
    return Zeros(one.kernel, replace(of, kinds=("zeros", "integers", "zeros")), multiprocessors=one.multiprocessors)


FUSED = tuple(two_calls(one, number) for number, one in enumerate(CONVOLUTIONS))


# ---------------------------------------------------------------- inputs that become infinite in TF32


@dataclass(frozen=True)
class BeyondTf32:
    """A convolution whose factors round to infinity in TF32, by kernels with this part of their names.

    In every second channel, starting with the first, inputs are large, equal and negative, and weights are small; in
    the remaining channels it is the reverse. Products of such inputs are -inf unless exact, never NaN. The bias makes
    every true sum positive and exact in any order. The kernel must recompute sums of -inf; ReLU would otherwise make
    them look finite. Large weights stay finite but lose their last bits, except in 3xtf32 and in recomputed sums, which
    read w again.
    """

    kernel: str
    operator: str
    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    attributes: dict[str, Any]

    def check(self, precision: str = "tf32", architecture: str | None = None, **options: Any) -> Any:
        """Raise AssertionError if a call differs from the epilogue of the true sums."""
        beyond, least = 2.0**116 - 2.0**128, 2.0**117 - 2.0**128  # midpoint of TF32's lowest number and -2**128
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
            # Some kernels use another store path with a residual, or without an epilogue.
            for activation, residual in (("relu", None), ("relu", np.ones_like(of_all[0])), (None, None)):
                finish: dict[str, Any] = {"activation": activation, "residual": residual, "precision": precision}
                y = getattr(gpuconv, self.operator)(x, w, b, **self.attributes, **finish)
                exact, rounded = (finished(sums, residual, activation) for sums in of_all)
                assert_equal(y, np.where(y == exact, exact, rounded))
        assert self.kernel.removesuffix("_split") in emulated.launches[-1].variant.name
        assert is_split(emulated.launches[-1]) == self.kernel.endswith("_split")
        return emulated


def beyond_tf32(one: Forward) -> BeyondTf32:
    """Return the same for a specimen's own problem, with one image."""
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
