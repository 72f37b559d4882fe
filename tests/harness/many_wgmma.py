"""Small problems of convolution by wgmma, in which blocks make several tiles each: what mutants of it must get right.

Axes have unequal extents, strides, pads and dilations, tiles several images, slices several taps and channels; some
inputs or weights are infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

import gpuconv
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.offers import Candidate
from tests.emulator import emulated_cuda
from tests.harness.fused import assert_equal, with_finish
from tests.harness.many_blocks import _INFINITE_INPUTS, _INFINITE_WEIGHTS, _filled
from tests.oracle import oracle
from tests.oracle.operands import BFLOAT16, LAYOUTS, values
from tests.oracle.oracle import assert_close

HALF, SINGLE = np.dtype("float16"), np.dtype("float32")
_INTEGERS = ("integers", "integers", "integers")


@dataclass(frozen=True, eq=False)
class Trial:
    """One call, with the name of the candidate that makes it.

    Attributes
    ----------
    candidate : str
        What its name ends with.
    shapes : of x and w.
    multiprocessors : that there are; blocks make all tiles, so that few make many each.
    kinds, layout : of the inputs' values, and how they lie in memory.
    out : how the result lies.
    finished : the activation that follows, and a residual before it, which lies as the result does; None: neither.
    packed : whether the weights are packed before.
    """

    operator: str
    candidate: str
    dtype: Any
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    attributes: dict[str, Any] = field(default_factory=dict)
    multiprocessors: int = 2
    kinds: tuple[str, ...] = _INTEGERS
    layout: str = "contiguous"
    precision: str = "ieee"
    out: str = "contiguous"
    finished: Any = None
    packed: bool = False

    @property
    def kernel(self) -> str:
        """What the name of the kernel ends with."""
        return f"wgmma_{self.candidate.removesuffix('_split').removesuffix('_direct')}"

    @property
    def arithmetic(self) -> str:
        return "tensor cores" if self.dtype.itemsize == 2 else self.precision

    def __call__(self, _: str = "sm_90a", **options: Any) -> Any:
        """Raise AssertionError where the result is wrong, EmulatorError where a check finds something."""
        inputs, expected = _inputs(self), _expected(self)
        if "max_steps" in options:
            options["max_steps"] *= 10  # a block makes many tiles
        finish, expected = self._finish(expected) if self.finished else ({}, expected)
        y, emulated = self.run(inputs, expected.value.shape, finish, **options)
        assert_close(y, expected, self.dtype, self.arithmetic)
        return emulated

    def run(self, inputs: Any, shape: tuple[int, ...], finish: dict[str, Any], **options: Any) -> tuple[Any, Any]:
        """Return the result of a call, with a residual and an activation or without, and the device."""
        device = emulated_cuda(multiprocessors=self.multiprocessors, **options)
        out = LAYOUTS[self.out](np.full(shape, 7, self.dtype))
        with offers.picking(self._pick), gpuconv.precision(self.precision), device as emulated:
            if self.packed:
                inputs = [inputs[0], gpuconv.pack(inputs[1], self.operator), *inputs[2:]]
            y = getattr(gpuconv, self.operator)(*inputs, **self.attributes, **finish, out=out)
        return y, emulated

    def _finish(self, exact: oracle.Exact) -> tuple[dict[str, Any], oracle.Exact]:
        residual = LAYOUTS[self.out](values("integers", 7, exact.value.shape, self.dtype))
        finish = {"residual": residual, "activation": self.finished}
        return finish, with_finish(exact, residual, self.finished, self.dtype)

    def _pick(self, candidates: Sequence[Candidate]) -> Candidate:
        return next(one for one in candidates if one.name.endswith(self.candidate))


@cache
def _inputs(trial: Trial) -> list[Any]:
    x, w = trial.shapes
    filters = w[0] if trial.operator == "conv" else w[1] * trial.attributes.get("group", 1)
    filled = zip((x, w, (filters,)), trial.kinds, strict=True)
    return [LAYOUTS[trial.layout](_filled(kind, seed, shape, trial.dtype)) for seed, (shape, kind) in enumerate(filled)]


@cache
def _expected(trial: Trial) -> Any:
    return getattr(oracle, trial.operator)(*_inputs(trial), **trial.attributes)


def check_zeros(trial: Trial, _: str | None = None, **options: Any) -> Any:
    """Raise AssertionError where sums of 0 do not stay what they are, not even by their signs, at bounds of -0."""
    x, w, _bias = _inputs(replace(trial, kinds=_INTEGERS))
    if "max_steps" in options:
        options["max_steps"] *= 10  # a block makes many tiles
    for activation, residual in product((("leaky_relu", -2), ("clip", -0.0, -0.0)), (False, True)):
        expected = LAYOUTS[trial.out](np.zeros(_expected(trial).value.shape, trial.dtype))
        finish = {"activation": activation, "residual": expected if residual else None}
        y, emulated = trial.run((np.zeros_like(x), w), expected.shape, finish, **options)
        assert_equal(y, expected)
    return emulated


_FLAT = {"strides": [2, 1], "pads": [1, 2, 0, 1], "dilations": [1, 2]}
_DEEP = {"strides": [1, 2, 1], "pads": [1, 0, 2, 0, 1, 1], "dilations": [2, 1, 1]}
_PHASES = {"strides": [2, 3], "pads": [1, 0, 2, 1], "dilations": [1, 2], "output_padding": [1, 0]}
_EMPTY_PHASES = {**_PHASES, "dilations": [2, 2]}  # each second row meets no tap

SMALL = Trial("conv", "64x256", HALF, ((5, 100, 12, 21), (130, 100, 3, 2)), _FLAT, kinds=_INFINITE_WEIGHTS)
TURNS = Trial(
    *("conv", "64x256_direct", BFLOAT16, ((3, 128, 12, 21), (140, 64, 2, 3))),
    {**_FLAT, "group": 2},
    kinds=_INFINITE_INPUTS,
    layout="channels last",
)
TOGETHER = Trial("conv", "128x256", HALF, ((2, 144, 4, 9, 11), (270, 144, 2, 1, 3)), _DEEP)
WIDE = Trial("conv", "64x256", BFLOAT16, ((1, 150, 900), (70, 150, 5)), {"pads": [7, 2], "dilations": [3]})
LARGE_SINGLE = Trial(
    *("conv", "128x256", SINGLE, ((4, 40, 9, 21), (300, 40, 3, 2)), _FLAT), precision="tf32", kinds=_INFINITE_WEIGHTS
)
PARTS = Trial(
    *("conv", "64x256", SINGLE, ((2, 68, 9, 21), (140, 34, 3, 2)), {**_FLAT, "group": 2}),
    precision="3xtf32",
    kinds=("normal", "normal", "normal"),  # integers have no small part
)
LAST = Trial(
    *("conv", "64x256_direct", HALF, ((3, 64, 12, 21), (144, 64, 3, 2)), _FLAT),
    layout="channels last",
    out="channels last",
)
LAST_SINGLE = Trial(
    *("conv", "64x256", SINGLE, ((2, 40, 12, 21), (76, 40, 3, 2)), _FLAT), precision="tf32", out="channels last"
)
SPLIT = Trial("conv", "64x256_split", HALF, ((1, 140, 9, 21), (130, 140, 3, 2)), _FLAT, 4)
SPLIT_TOGETHER = Trial("conv", "128x256_split", HALF, ((1, 140, 18, 21), (130, 140, 3, 2)), _FLAT, 3)
PARTS_SPLIT = Trial(
    *("conv", "64x256_split", SINGLE, ((1, 70, 9, 21), (130, 70, 3, 2)), _FLAT, 4),
    precision="3xtf32",
    kinds=("normal", "normal", "normal"),
)
ADDED_UP = Trial(
    "conv", "128x256_direct_split", HALF, ((2, 200, 9, 21), (130, 200, 1, 1)), {}, 5, layout="channels last"
)
TRANSPOSED = Trial(
    "conv_transpose", "128x256", HALF, ((2, 72, 7, 9), (72, 130, 3, 4)), _EMPTY_PHASES, kinds=_INFINITE_WEIGHTS
)
TRANSPOSED_SPLIT = Trial("conv_transpose", "64x256_split", BFLOAT16, ((1, 144, 7, 9), (144, 70, 3, 4)), _PHASES, 5)

# Strips of x, of more slices of K than there is room for.
ROWS = Trial(
    *("conv", "64x256_rows", HALF, ((2, 90, 5, 72), (70, 90, 3, 2)), {"pads": [1, 2, 0, 1], "dilations": [2, 2]}),
    kinds=_INFINITE_WEIGHTS,
)
ROWS_TOGETHER = Trial("conv", "128x256_rows", BFLOAT16, ((2, 72, 5, 72), (140, 72, 3, 2)), {"pads": [1, 2, 0, 1]})
ROWS_OF_ONE = Trial("conv", "128x256_rows", HALF, ((3, 130, 9, 24), (130, 130, 1, 1)))
ROWS_SPLIT = Trial("conv", "64x256_rows_split", HALF, ((1, 72, 3, 5, 72), (70, 72, 2, 3, 2)), {"strides": [1, 2, 1]}, 5)
PATCHES = Trial(
    *("conv", "64x256_patches_direct", BFLOAT16, ((3, 128, 20, 21), (140, 64, 3, 2))),
    {"group": 2, "pads": [1, 0, 2, 1], "dilations": [2, 1]},
    kinds=_INFINITE_INPUTS,
    layout="channels last",
)
PATCHES_OF_PARTS = Trial(
    *("conv", "64x256_patches", SINGLE, ((2, 34, 9, 21), (140, 17, 3, 2)), {"group": 2, "pads": [1, 1, 1, 1]}),
    precision="3xtf32",
    kinds=("normal", "normal", "normal"),
)
STAYING = Trial(  # weights, in slices of 32 channels
    *("conv", "64x256x32_rows", BFLOAT16, ((2, 96, 7, 72), (64, 96, 3, 2)), {"pads": [1, 0, 2, 1]}),
    kinds=_INFINITE_WEIGHTS,
)
BACKWARDS = Trial(  # taps of ConvTranspose
    *("conv_transpose", "64x256_patches_direct", HALF, ((2, 72, 19, 20), (72, 70, 3, 2)), {"pads": [1, 0, 0, 1]}),
    layout="channels last",
)

# Pixels that come through registers, of strips that there is no room for at once.
PIXEL_ROWS = Trial(
    *("conv", "64x256_pixel_rows", SINGLE, ((2, 72, 6, 36), (70, 72, 3, 2))),
    {"strides": [2, 1], "pads": [1, 2, 0, 1], "dilations": [2, 1]},
    precision="tf32",
    kinds=_INFINITE_WEIGHTS,
)
PIXELS_OF_PARTS = Trial(
    *("conv", "128x128_pixel_rows", SINGLE, ((2, 112, 9, 20), (280, 56, 3, 2)), {"group": 2, "pads": [1, 1, 1, 1]}),
    precision="3xtf32",
    kinds=("normal", "normal", "normal"),
)
PIXEL_PATCHES = Trial(
    *("conv", "128x128_pixel_patches_direct", SINGLE, ((3, 40, 9, 20), (70, 40, 3, 2))),
    {"strides": [2, 1], "pads": [1, 0, 2, 1]},
    layout="channels last",
    out="channels last",
    precision="tf32",
    kinds=_INFINITE_INPUTS,
)
PIXELS_SPLIT = Trial(
    *("conv", "128x128_pixel_rows_split", SINGLE, ((1, 76, 3, 5, 36), (70, 76, 2, 3, 2)), {"strides": [1, 1, 2]}, 5),
    precision="3xtf32",
    kinds=("normal", "normal", "normal"),
)
PIXELS = (PIXEL_ROWS, PIXEL_PATCHES, PIXELS_OF_PARTS, PIXELS_SPLIT)
STRIPS = (ROWS, PATCHES, ROWS_TOGETHER, ROWS_OF_ONE, ROWS_SPLIT, PATCHES_OF_PARTS, STAYING, BACKWARDS)

ALL = (
    *(SMALL, TURNS, TRANSPOSED, TOGETHER, SPLIT, PARTS, ADDED_UP, WIDE, LARGE_SINGLE),
    *(LAST, LAST_SINGLE, SPLIT_TOGETHER, TRANSPOSED_SPLIT, PARTS_SPLIT),
    *STRIPS,
    *PIXELS,
)
DIVIDED = (SPLIT, ADDED_UP, SPLIT_TOGETHER, TRANSPOSED_SPLIT, PARTS_SPLIT, ROWS_SPLIT, PIXELS_SPLIT)
