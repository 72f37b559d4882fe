"""Specimens of gradients, MaxUnpool, pools over whole planes, checks of Indices, copies and complex kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

import gpuconv
from gpuconv import ArgumentError
from gpuconv.cuda.call import device
from gpuconv.rules import geometry
from tests.harness.emulated import boxes, long_walks
from tests.kernels.specimen import Ints, Specimen, new
from tests.oracle import gradients, oracle
from tests.oracle.operands import LAYOUTS, values
from tests.oracle.oracle import assert_close, assert_same
from tests.oracle.strategies import Problem


@dataclass(frozen=True, eq=False)
class WeightGrad(Specimen):
    """The gradient of weights, with an infinite element of dy next to the padding.

    Attributes
    ----------
    problem : Problem
        The forward problem.
    layout : str
        Memory layout of x and dy.
    both : bool
        Whether an element of x is infinite too.
    first : bool
        Whether the first pixel of a channel of the last image is infinite in x and dy: in memory it follows the last
        pixel of the preceding channel.
    """

    problem: Problem
    layout: str
    both: bool = False
    first: bool = False

    @property
    def arithmetic(self) -> str:
        """The error bound to use: that of tensor cores for 16-bit dtypes, whose sums they may compute."""
        return "tensor cores" if self.dtype.itemsize == 2 else self.precision

    @cached_property
    def inputs(self) -> tuple[Any, Any]:
        shapes = self.problem.x_shape, gradients.shape_of_result(self.problem)
        x, dy = (values("integers", seed, shape, self.dtype) for seed, shape in enumerate(shapes))
        dy.reshape(-1)[-1] = np.inf
        if self.both:
            x.reshape(-1)[x.size // 2] = np.inf
        if self.first:
            for array in (x, dy):
                array.reshape(*array.shape[:2], -1)[-1, array.shape[1] // 2, 0] = np.inf
        return LAYOUTS[self.layout](x), LAYOUTS[self.layout](dy)

    def compute(self) -> Any:
        w_shape = self.problem.w_shape
        assert w_shape is not None
        call = getattr(gpuconv, f"{self.problem.operator}_weight_grad")
        return call(*self.inputs, w_shape, **self.problem.attributes, out=new("reversed", w_shape, self.dtype))

    def check(self, found: Any) -> None:
        assert_close(found, gradients.weight_grad(self.problem, *self.inputs), self.dtype, self.arithmetic)


@dataclass(frozen=True, eq=False)
class BiasGrad(Specimen):
    """The gradient of a bias, from dy with this shape and layout."""

    shape: Ints
    layout: str

    @cached_property
    def inputs(self) -> Any:
        return LAYOUTS[self.layout](values("integers", 3, self.shape, self.dtype))

    def compute(self) -> Any:
        return gpuconv.conv_bias_grad(self.inputs)

    def check(self, found: Any) -> None:
        assert_close(found, gradients.bias_grad(self.inputs), self.dtype)


@dataclass(frozen=True, eq=False)
class PoolGrad(Specimen):
    """Common to gradients of both pools: the shape of x, the layout of all arrays, the pool's attributes."""

    shape: Ints
    layout: str
    attributes: dict[str, Any]

    def lie(self, array: Any) -> Any:
        return LAYOUTS[self.layout](array)


@dataclass(frozen=True, eq=False)
class MaxPoolGrad(PoolGrad):
    """The gradient of MaxPool, by Indices of the forward call, by partly wrong ones, and by Indices that name nothing.

    Attributes
    ----------
    box : tuple of int, optional
        Columns and slices per thread, and rows of windows that it walks over; None: the longest walks.
    """

    box: Ints | None = None

    @cached_property
    def inputs(self) -> tuple[Any, Any, Any]:
        """Return dy, the right Indices, and partly random Indices."""
        x = values("ties", 1, self.shape, self.dtype)
        y, places = gpuconv.max_pool(x, return_indices=True, **self.attributes)
        random = np.random.default_rng(3)
        wild = np.where(random.random(y.shape) < 0.3, random.integers(-1, x.size, y.shape), places)
        dy = values("integers", 2, y.shape, self.dtype)
        return self.lie(dy), self.lie(places), self.lie(wild)

    @contextmanager
    def settings(self) -> Iterator[None]:
        far = long_walks(True) if self.box is None else boxes(*self.box)
        with super().settings(), far:
            yield

    def call(self, places: Any, out: Any) -> Any:
        dy, *_ = self.inputs
        return gpuconv.max_pool_grad(dy, places, self.shape, out=out, check_indices=False, **self.attributes)

    def compute(self) -> list[Any]:
        _, places, wild = self.inputs
        nothing = wild + 2**32  # out of range, though their low 32 bits are in range
        return [self.call(indices, new(self.layout, self.shape, self.dtype)) for indices in (places, wild, nothing)]

    def check(self, found: list[Any]) -> None:
        dy, places, wild = self.inputs
        order = self.attributes.get("storage_order", 0)
        assert_close(found[0], gradients.max_pool_grad(dy, places, self.shape, order), self.dtype)
        assert_same(found[1], self.call(wild, None))
        assert_same(found[2], np.zeros_like(found[2]))


@dataclass(frozen=True, eq=False)
class AveragePoolGrad(PoolGrad):
    """The gradient of AveragePool, by short walks over windows and by the longest ones."""

    least_blocks: ClassVar[int] = 2

    @cached_property
    def inputs(self) -> Any:
        shape = geometry.average_pool(self.shape, **self.attributes).y_shape
        return self.lie(values("integers", 2, shape, self.dtype))

    @cached_property
    def expected(self) -> Any:
        return gradients.average_pool_grad(self.inputs, self.shape, **self.attributes)

    def compute(self) -> list[Any]:
        found = []
        for far in (False, True):
            with long_walks(far):
                out = new(self.layout, self.shape, self.dtype)
                found.append(gpuconv.average_pool_grad(self.inputs, self.shape, out=out, **self.attributes))
            device.prepared.clear()
        return found

    def check(self, found: list[Any]) -> None:
        for dx in found:
            assert_close(dx, self.expected, self.dtype)


@dataclass(frozen=True, eq=False)
class Plane(Specimen):
    """Global pooling; the last image equals the first one bit for bit, so their results must be equal, too."""

    shape: Ints
    layout: str

    @property
    def attributes(self) -> dict[str, Any]:
        given = {"kernel_shape": [n + 2 for n in self.shape[2:]], "pads": [1] * 2 * len(self.shape[2:])}
        return given if self.kernel.startswith("max") else {**given, "count_include_pad": 1}

    @property
    def has_indices(self) -> bool:
        return "indices" in self.kernel

    @cached_property
    def inputs(self) -> Any:
        x = values("ties" if self.kernel.startswith("max") else "normal", 3, self.shape, self.dtype)
        x[-1] = x[0]
        return LAYOUTS[self.layout](x)

    def compute(self) -> Any:
        shape = (*self.shape[:2], *[1] * len(self.shape[2:]))
        out = new(self.layout, shape, self.dtype)
        if not self.kernel.startswith("max"):
            return gpuconv.average_pool(self.inputs, out=out, **self.attributes)
        both = out, new(self.layout, shape, np.int64)
        out = both if self.has_indices else out
        return gpuconv.max_pool(self.inputs, out=out, return_indices=self.has_indices, **self.attributes)

    def check(self, found: Any) -> None:
        y = found[0] if self.has_indices else found
        if not self.kernel.startswith("max"):
            assert_close(y, oracle.average_pool(self.inputs, **self.attributes), self.dtype)
        elif self.has_indices:
            for array, right in zip(found, oracle.max_pool(self.inputs, **self.attributes), strict=True):
                assert_same(array, right)
        else:
            assert_same(y, oracle.max_pool(self.inputs, **self.attributes)[0], bits=False)  # +0 or -0
        assert_same(y[-1], y[0])


@dataclass(frozen=True, eq=False)
class Unpool(Specimen):
    """MaxUnpool into planes of these extents, which may differ from those that Indices refer to; some Indices drop
    elements."""

    extents: Ints
    layout: str

    least_blocks: ClassVar[int] = 2
    numbered: ClassVar[Ints] = (2, 5, 5, 12, 25)

    @property
    def dtype(self) -> Any:
        return np.dtype("int8")

    @cached_property
    def inputs(self) -> tuple[Any, Any]:
        y = values("any integer", 1, (2, 5, 4, 6, 9), self.dtype)
        places = np.random.default_rng(4).integers(-1, np.prod(self.numbered), y.shape)
        places[1, 2, 3, 4, 5], places[0, 1, 2, 3, 4] = 0, np.prod(self.numbered) - 1
        return LAYOUTS[self.layout](y), LAYOUTS[self.layout](places)

    def compute(self) -> tuple[Any, Any]:
        y, places = self.inputs
        shape = (2, 5, *self.extents)
        call = partial(gpuconv.max_unpool, kernel_shape=[2, 2, 1], strides=[1, 2, 3], check_indices=False)
        beyond = np.where(places < 0, np.prod(self.numbered), places)  # the first index out of range
        return call(y, places, shape, out=new(self.layout, shape, self.dtype)), call(y, beyond, shape)

    def check(self, found: tuple[Any, Any]) -> None:
        for x in found:
            assert_same(x, gradients.max_unpool(*self.inputs, self.numbered, (2, 5, *self.extents)))


@dataclass(frozen=True, eq=False)
class Complex(Specimen):
    """Conv or ConvTranspose with bias and residual, and their gradients, compared with the CPU backend."""

    operator: str
    layout: str
    extents: Ints = (11, 9)

    least_blocks: ClassVar[int] = 1

    @cached_property
    def inputs(self) -> list[Any]:
        generator = np.random.default_rng(2)

        def drawn(*shape: int) -> Any:
            parts = generator.integers(-4, 5, shape), generator.integers(-4, 5, shape)
            return LAYOUTS[self.layout]((parts[0] + 1j * parts[1]).astype(self.dtype))

        w_shape = (6, 5, 2, 3) if self.operator == "conv" else (10, 3, 2, 3)
        return [drawn(2, 10, *self.extents), drawn(*w_shape), drawn(6)]

    def compute(self) -> list[Any]:
        x, w, b = self.inputs
        attributes: dict[str, Any] = {"strides": [2, 1], "pads": [1, 0, 0, 2], "group": 2}
        forward, of_input, of_weight, of_bias = (
            getattr(gpuconv, f"{self.operator}{what}") for what in ("", "_input_grad", "_weight_grad", "_bias_grad")
        )
        y = forward(x, w, b, **attributes)
        y = forward(x, w, b, residual=np.flip(y), **attributes)
        more = of_input(y, w, x.shape, **attributes), of_weight(x, y, w.shape, **attributes)
        return [y, *more, of_bias(y)]

    def check(self, found: list[Any]) -> None:
        for actual, value in zip(found, self.compute(), strict=True):
            assert (actual == value).all()


@dataclass(frozen=True, eq=False)
class Copy(Specimen):
    """A residual in another memory layout than the result, added to whole-number sums."""

    element: str  # the dtype
    layout: str
    out: str

    @property
    def dtype(self) -> Any:
        return np.dtype(self.element)

    @cached_property
    def inputs(self) -> tuple[Any, Any, Any]:
        shapes = (3, 4, 5, 7, 9), (6, 4, 1, 1, 1), (3, 6, 5, 7, 9)
        x, w, residual = (values("integers", 1 + seed, shape, self.dtype) for seed, shape in enumerate(shapes))
        return x, w, LAYOUTS[self.layout](residual)

    def compute(self) -> Any:
        x, w, residual = self.inputs
        return gpuconv.conv(x, w, residual=residual, out=new(self.out, residual.shape, self.dtype))

    def check(self, found: Any) -> None:
        x, w, residual = (array.astype("float64") for array in self.inputs)
        exact = np.einsum("ncdhw,mc->nmdhw", x, w.reshape(6, 4)) + residual
        assert_same(found, exact.astype(self.dtype), bits=False)


# ---------------------------------------------------------------- checks of Indices


@dataclass(frozen=True, eq=False)
class Check(Specimen):
    """The check reports the first wrong index, wherever it is: between right ones and at the very end."""

    inputs: Any  # the right Indices

    least_blocks: ClassVar[int] = 1

    def call(self, places: Any) -> str:
        """Return the error message of the call, or "" if its indices are right."""
        try:
            gpuconv.max_unpool(np.zeros(places.shape, np.float32), places, kernel_shape=[1])
        except ArgumentError as error:
            return str(error)
        return ""

    def mistakes(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield wrong indices and their positions; the first position must be reported."""
        last = tuple(extent - 1 for extent in self.inputs.shape)
        later = (*last[:-1], last[-1] - 4)
        size = self.inputs.size
        yield from ((-2, [(0, 1, 3), later]), (size, [later, last]), (size - 2, [last]))

    def compute(self) -> list[str]:
        return [self.call(self.inputs), *(self.call(self.broken(wrong, at)) for wrong, at in self.mistakes())]

    def broken(self, wrong: int, all_at: list[Any]) -> Any:
        broken = self.inputs.copy(order="K")
        for at in all_at:
            broken[at] = wrong
        return broken

    def check(self, found: list[str]) -> None:
        assert found[0] == ""
        for message, (wrong, (at, *_)) in zip(found[1:], self.mistakes(), strict=True):
            assert f"indices hold {wrong} at {tuple(map(int, at))}" in message


@dataclass(frozen=True, eq=False)
class CheckEach(Check):
    """Like `Check`, where a thread checks several elements: each time the first one of the grid's next round is wrong.

    One multiprocessor limits the grid to so few threads that each checks at least eight elements.
    """

    threads: int = 0  # threads in the grid

    def mistakes(self) -> Iterator[tuple[int, list[Any]]]:
        assert self.inputs.size > 7 * self.threads
        for first in range(0, self.inputs.size, self.threads):
            at = np.unravel_index(first, self.inputs.shape)
            yield from ((wrong, [at]) for wrong in (-2, self.inputs.size, first + 1))


@dataclass(frozen=True, eq=False)
class CheckWindows(Specimen):
    """Whether a window may name an index follows from its taps; random indices are checked."""

    shape: Ints
    attributes: dict[str, Any]

    least_blocks: ClassVar[int] = 1

    @cached_property
    def inputs(self) -> tuple[Any, Any]:
        x = values("ties", 1, self.shape, np.float32)
        y, places = gpuconv.max_pool(x, return_indices=True, **self.attributes)
        return y, places

    def mistakes(self) -> Iterator[tuple[Any, int]]:
        """Yield positions and index values to store there, some of them right."""
        y, places = self.inputs
        random, size = np.random.default_rng(5), int(np.prod(self.shape))
        for _ in range(24):
            at = tuple(map(int, random.integers(0, y.shape)))
            yield at, int(random.choice([*random.integers(-2, size + 2, 2), places[at] + random.integers(-4, 5)]))

    def compute(self) -> list[str]:
        y, places = self.inputs
        found = []
        gpuconv.max_pool_grad(y, places, self.shape, **self.attributes)
        for at, number in self.mistakes():
            other = places.copy()
            other[at] = number
            try:
                gpuconv.max_pool_grad(y, other, self.shape, **self.attributes)
                found.append("")
            except ArgumentError as error:
                found.append(str(error))
        return found

    def check(self, found: list[str]) -> None:
        taps = gradients.possible_indices(self.shape, self.inputs[0].shape, **self.attributes)
        for message, (at, number) in zip(found, self.mistakes(), strict=True):
            assert (message == "") == (number in taps[at]), (at, number)
            assert message == "" or str(number) in message


def _problem(x: Ints, w: Ints, operator: str = "conv", **attributes: Any) -> Problem:
    return Problem(operator, x, w, None, attributes)


def max_pool_grad(
    kernel: str, x: Ints, layout: str = "contiguous", box: Ints | None = None, **attributes: Any
) -> MaxPoolGrad:
    """Return a specimen from the candidate's name, the shape of x, further options, and the pool's attributes."""
    return MaxPoolGrad(kernel, x, layout, attributes, box)


def average_pool_grad(kernel: str, x: Ints, layout: str = "contiguous", **attributes: Any) -> AveragePoolGrad:
    """Return a specimen of AveragePool's gradient."""
    return AveragePoolGrad(kernel, x, layout, attributes)


_CONV = _problem((3, 70, 4, 6, 5), (140, 35, 1, 3, 2), strides=[1, 2, 1], dilations=[1, 1, 2], pads=[0, 1, 2, 0, 2, 1],
                 group=2)  # fmt: skip
_TRANSPOSED = _problem((2, 70, 5, 4), (70, 9, 2, 4), operator="conv_transpose", strides=[2, 3], pads=[1, 0, 0, 2])
_DEPTHWISE = _problem((2, 3, 23, 31), (3, 1, 3, 5), strides=[1, 2], dilations=[2, 1], pads=[1, 4, 3, 0], group=3)
_FEW = _problem((1, 6, 17, 29), (10, 3, 2, 3), strides=[2, 1], pads=[1, 2, 0, 1], group=2)
_FEW_DEEP = _problem((2, 6, 3, 7, 9), (10, 3, 3, 2, 3), strides=[1, 2, 1], dilations=[1, 1, 2], pads=[1, 0, 2, 2, 1, 3],
                     group=2)  # fmt: skip
# _ROWS, _ROWS_LAST, _ROWS_LINE, _ROWS_DEEP: walks that start above x and end below it, taps of two phases, filters of
# two blocks, images in place of rows, and taps along depth. _ROWS_AROUND: walks of one row, with windows that are out
# of bounds on every side. _ROWS_LONG, _ROWS_WIDE: walks over more rows than a tile has taps, some with no valid column.
_ROWS = _problem((2, 3, 13, 21), (6, 1, 3, 5), strides=[1, 2], dilations=[2, 1], pads=[9, 4, 7, 7], group=3)
_ROWS_LAST = _problem((3, 20, 11, 12), (40, 1, 4, 6), strides=[2, 2], dilations=[3, 4], pads=[2, 11, 4, 9], group=20)
_ROWS_LINE = _problem((3, 2, 61), (4, 1, 19), strides=[2], pads=[17, 9], group=2)
_ROWS_DEEP = _problem((2, 3, 4, 6, 13), (3, 1, 3, 2, 5), strides=[1, 1, 2], dilations=[2, 1, 3],
                      pads=[2, 1, 4, 3, 4, 6], group=3)  # fmt: skip
_ROWS_AROUND = _problem((1, 3, 6, 9), (3, 1, 7, 17), pads=[7, 23, 5, 9], group=3)
_ROWS_LONG = _problem((3, 18, 18, 21), (36, 1, 14, 7), strides=[2, 1], dilations=[1, 2], pads=[4, 8, 10, 0], group=18)
_ROWS_WIDE = _problem((3, 18, 9, 72), (36, 1, 3, 16), strides=[2, 1], dilations=[1, 2], pads=[2, 7, 3, 0], group=18)

# For large tiles: channels that fill 16-byte vectors, do not, or are few; pixels copied singly or as vectors.
_CHUNKS = _problem((5, 48, 9, 14), (144, 24, 3, 2), strides=[2, 1], dilations=[1, 2], pads=[1, 0, 2, 1], group=2)
_ODD = _problem((2, 21, 3, 7, 9), (70, 21, 2, 3, 2), strides=[1, 1, 2], dilations=[1, 2, 1], pads=[1, 2, 0, 0, 1, 2])
_STEM = _problem((3, 3, 15, 17), (136, 3, 5, 7), strides=[2, 2], pads=[3, 2, 2, 3])
_POINTWISE = _problem((9, 75, 4, 12), (140, 75, 1, 1))

WEIGHTS = (
    WeightGrad("conv_weight_grad_float32_3d_64x64", _CONV, "contiguous", multiprocessors=1),
    WeightGrad("conv_weight_grad_float16_3d_64x64", _TRANSPOSED, "channels last", multiprocessors=1),
    WeightGrad("conv_weight_grad_float64_4d_64x64_wide", _TRANSPOSED, "strided", multiprocessors=1),
)
LARGE_WEIGHTS = (
    WeightGrad("conv_weight_grad_float16_3d_mma_128x128x64_channels", _CHUNKS, "channels last", multiprocessors=4),
    WeightGrad("conv_weight_grad_bfloat16_3d_mma_64x64x64_channels", _CHUNKS, "channels last", multiprocessors=4),
    WeightGrad("conv_weight_grad_float16_3d_mma_32x128x64_channels", _CHUNKS, "channels last", multiprocessors=4),
    WeightGrad("conv_weight_grad_bfloat16_3d_mma_128x128x32_pixels", _STEM, "contiguous", multiprocessors=4),
    WeightGrad("conv_weight_grad_float16_3d_mma_128x128x32_pixels", _POINTWISE, "contiguous", multiprocessors=4),
    WeightGrad("conv_weight_grad_float16_3d_mma_64x64x32_pixels", _ODD, "strided", multiprocessors=4),
    WeightGrad("conv_weight_grad_bfloat16_3d_mma_64x64x32_pixels", _STEM, "channels last", multiprocessors=4),
    WeightGrad("conv_weight_grad_float32_3d_tf32_128x128x32_channels", _CHUNKS, "channels last", multiprocessors=4),
    WeightGrad("conv_weight_grad_float32_3d_tf32_64x64x32_channels", _CHUNKS, "channels last", multiprocessors=4),
    WeightGrad("conv_weight_grad_float32_3d_tf32_32x128x32_channels", _CHUNKS, "channels last", multiprocessors=4),
    WeightGrad("conv_weight_grad_float32_3d_tf32_128x128x32_pixels", _POINTWISE, "contiguous", multiprocessors=4),
    WeightGrad("conv_weight_grad_float32_3d_tf32_64x64x32_pixels", _STEM, "channels last", multiprocessors=4),
    WeightGrad("conv_weight_grad_float32_3d_3xtf32_64x64x32_channels", _CHUNKS, "channels last", multiprocessors=4),
    WeightGrad("conv_weight_grad_float32_3d_3xtf32_64x64x32_pixels", _ODD, "reversed", multiprocessors=4),
    WeightGrad("conv_weight_grad_float64_3d_mma_64x64x16_channels", _CHUNKS, "channels last", multiprocessors=4),
    WeightGrad("conv_weight_grad_float64_3d_mma_64x64x16_pixels", _STEM, "channels last", multiprocessors=4),
    WeightGrad("conv_weight_grad_float32_3d_ffma_64x128x16_channels", _CHUNKS, "channels last", multiprocessors=4),
    WeightGrad("conv_weight_grad_float32_3d_ffma_128x128x32_pixels", _ODD, "contiguous", multiprocessors=4),
    WeightGrad("conv_weight_grad_float32_3d_ffma_64x128x32_pixels", _POINTWISE, "strided", multiprocessors=4),
)
FEW_WEIGHTS = (
    WeightGrad("conv_weight_grad_float32_3d_few1", _DEPTHWISE, "contiguous"),
    WeightGrad("conv_weight_grad_bfloat16_3d_few4", _FEW, "reversed"),
    WeightGrad("conv_weight_grad_bfloat16_3d_few4", _FEW_DEEP, "contiguous"),
)
ROW_WEIGHTS = (
    WeightGrad("conv_weight_grad_float32_3d_rows_3x3", _ROWS, "contiguous", multiprocessors=40),
    WeightGrad("conv_weight_grad_float32_3d_rows_3x3", _ROWS_LAST, "channels last", multiprocessors=1),
    WeightGrad("conv_weight_grad_float32_3d_rows_3x3", _ROWS_AROUND, "contiguous", multiprocessors=1),
    WeightGrad("conv_weight_grad_float32_3d_rows_3x3", _ROWS_LONG, "channels last", multiprocessors=1),
    WeightGrad("conv_weight_grad_float16_3d_rows_1x16", _ROWS_LINE, "strided", multiprocessors=1),
    WeightGrad("conv_weight_grad_float16_3d_rows_1x16", _ROWS_AROUND, "contiguous", multiprocessors=1),
    WeightGrad("conv_weight_grad_float16_3d_rows_1x16", _ROWS_WIDE, "channels last", multiprocessors=1),
    WeightGrad("conv_weight_grad_float64_3d_rows_1x4", _ROWS_DEEP, "reversed", multiprocessors=1),
    WeightGrad("conv_weight_grad_float64_3d_rows_1x4", _ROWS_AROUND, "contiguous", multiprocessors=1),
    WeightGrad("conv_weight_grad_float64_3d_rows_1x4", _ROWS_LONG, "channels last", multiprocessors=1),
    WeightGrad("conv_weight_grad_float32_3d_rows_5x5", _ROWS_DEEP, "channels last", multiprocessors=1),
    WeightGrad("conv_weight_grad_float32_3d_rows_5x5", _ROWS_AROUND, "contiguous", multiprocessors=1),
    WeightGrad("conv_weight_grad_float32_3d_rows_5x5", _ROWS_LONG, "channels last", multiprocessors=1),
    WeightGrad("conv_weight_grad_bfloat16_3d_rows_7x7", _ROWS_AROUND, "contiguous", multiprocessors=1),
    WeightGrad("conv_weight_grad_bfloat16_3d_rows_7x7", _ROWS_LONG, "channels last", multiprocessors=1),
)
SUMS = (
    BiasGrad("channel_sums_float32_3d", (3, 5, 40, 50), "contiguous"),
    BiasGrad("channel_sums_float16_3d_last", (3, 70, 9, 11), "channels last"),
    BiasGrad("channel_sums_float64_5d_wide", (2, 3, 5, 7, 11), "strided"),
    BiasGrad("channel_sums_float16_3d_last", (3, 70, 9, 13), "strided pixels"),
    BiasGrad("channel_sums_float32_5d", (3, 5, 7, 13, 11), "strided rows"),
)
_POOLED: dict[str, Any] = {
    "kernel_shape": [3, 2, 4], "strides": [1, 2, 3], "dilations": [2, 1, 2], "pads": [1, 0, 3, 2, 1, 1],
}  # fmt: skip
POOLED = (2, 3, 6, 7, 19)
GENERAL_POOLS = (
    MaxPoolGrad("max_pool_grad_float32_3d", POOLED, "contiguous", _POOLED),
    MaxPoolGrad("max_pool_grad_bfloat16_3d", POOLED, "channels last", {**_POOLED, "storage_order": 1}),
    MaxPoolGrad("max_pool_grad_float64_4d_wide", POOLED, "strided", {**_POOLED, "storage_order": 1}),
    AveragePoolGrad("average_pool_grad_float32_3d", POOLED, "contiguous", _POOLED),
    AveragePoolGrad("average_pool_grad_bfloat16_3d", POOLED, "channels last", {**_POOLED, "count_include_pad": 1}),
    AveragePoolGrad("average_pool_grad_float64_4d_wide", POOLED, "strided", _POOLED),
)
WALKS = (
    max_pool_grad("max_pool_grad_float32_3d_walks_2x2", (5, 7, 20, 46), kernel_shape=[2, 2], strides=[2, 2],
                  ceil_mode=1),
    max_pool_grad("max_pool_grad_float16_3d_walks_2x2", (2, 10, 5, 31, 13), layout="channels last",
                  kernel_shape=[2, 2, 1], strides=[3, 2, 2], pads=[1, 0, 0, 0, 1, 0], storage_order=1),
    max_pool_grad("max_pool_grad_bfloat16_3d_walks_3x2", (3, 9, 75, 26), kernel_shape=[3, 3], strides=[2, 2],
                  pads=[1, 1, 0, 2]),
    max_pool_grad("max_pool_grad_float64_3d_walks_3x2", (3, 13, 35, 45), layout="strided rows", kernel_shape=[3, 2],
                  strides=[2, 2], pads=[2, 0, 1, 1]),
    max_pool_grad("max_pool_grad_float32_3d_walks_3x1", (2, 13, 41, 39), layout="channels last", kernel_shape=[3, 3],
                  pads=[1, 2, 1, 0]),
    max_pool_grad("max_pool_grad_float16_3d_walks_3x1", (2, 3, 7, 15, 38), layout="off the vectors",
                  kernel_shape=[1, 2, 3], pads=[0, 1, 2, 0, 1, 2]),
    max_pool_grad("max_pool_grad_float64_3d_walks_1x1", (3, 7, 250), kernel_shape=[3], strides=[3], pads=[1, 2]),
    max_pool_grad("max_pool_grad_float32_3d_walks_5xany", (3, 5, 29, 43), layout="reversed", kernel_shape=[5, 4],
                  strides=[3, 1], pads=[1, 3, 4, 2]),
    max_pool_grad("max_pool_grad_float16_3d_walks_13xany", (3, 7, 38, 23), kernel_shape=[11, 9], pads=[5, 4, 6, 2]),
    max_pool_grad("max_pool_grad_float64_3d_walks_5xany", (2, 11, 41, 35), layout="strided rows", kernel_shape=[3, 19],
                  strides=[1, 2], pads=[1, 3, 4, 2]),
    max_pool_grad("max_pool_grad_float32_3d_walks_5xany", (2, 3, 38, 9, 15), kernel_shape=[3, 3, 2], strides=[1, 2, 1],
                  pads=[1, 2, 0, 1, 0, 1]),
    max_pool_grad("max_pool_grad_bfloat16_3d_walks_5xany", (9, 75, 40), layout="channels last", kernel_shape=[4],
                  strides=[3], pads=[1, 2]),
)  # fmt: skip
# Boxes (columns, slices, rows of windows) that end beyond x, of whole vectors and of single columns.
SCATTERS = (
    max_pool_grad("max_pool_grad_float32_3d_scatter", (3, 7, 20, 44), box=(8, 1, 4), kernel_shape=[5, 7],
                  strides=[2, 1], pads=[4, 3, 1, 5]),
    max_pool_grad("max_pool_grad_float16_3d_scatter", (2, 35, 21, 13), layout="channels last", box=(4, 1, 7),
                  kernel_shape=[6, 5], strides=[1, 3], pads=[5, 0, 2, 4]),
    max_pool_grad("max_pool_grad_float64_3d_scatter", (2, 7, 9, 10, 22), box=(4, 2, 6), kernel_shape=[3, 4, 5],
                  strides=[1, 2, 1], pads=[2, 1, 4, 0, 3, 2]),
    max_pool_grad("max_pool_grad_bfloat16_3d_scatter", (2, 9, 12, 9, 15), layout="reversed", box=(2, 4, 2),
                  kernel_shape=[2, 4, 3], strides=[3, 1, 2], pads=[1, 3, 0, 1, 2, 2]),
    max_pool_grad("max_pool_grad_float32_3d_scatter", (2, 70, 37), layout="channels last", box=(1, 1, 8),
                  kernel_shape=[5], strides=[2], pads=[3, 4]),
    max_pool_grad("max_pool_grad_float32_3d_scatter", (9, 40, 68), layout="off the vectors", box=(16, 1, 8),
                  kernel_shape=[13], pads=[6, 6]),
    max_pool_grad("max_pool_grad_bfloat16_3d_scatter", (3, 5, 30, 44), layout="strided rows", box=(4, 1, 2),
                  kernel_shape=[3, 2], strides=[5, 4], ceil_mode=1),
    max_pool_grad("max_pool_grad_float16_3d_scatter", (3, 7, 5, 6, 32), box=(16, 4, 4), kernel_shape=[4, 6, 7],
                  pads=[2, 3, 1, 1, 2, 5]),
)  # fmt: skip
# Each form: padding taps that do not count at both ends of all axes, windows with one valid tap, and equal counts.
AVERAGE_WALKS = (
    average_pool_grad("average_pool_grad_float32_3d_walks_1x1", (5, 13, 15, 14), kernel_shape=(2, 2), strides=(2, 2),
                      ceil_mode=1),
    average_pool_grad("average_pool_grad_float64_3d_walks_1x1", (2, 17, 5, 7, 8), layout="channels last",
                      kernel_shape=(2, 3, 2), strides=(2, 3, 3), pads=(1, 2, 1, 1, 2, 1)),
    average_pool_grad("average_pool_grad_bfloat16_3d_walks_1x1", (3, 70, 9, 7), layout="channels last",
                      kernel_shape=(9, 7)),
    average_pool_grad("average_pool_grad_float64_3d_walks_1x1", (3, 37, 70), layout="strided rows", kernel_shape=(3,),
                      strides=(4,), pads=(1, 2)),
    average_pool_grad("average_pool_grad_float32_3d_strips_2s1", (3, 29, 7, 11), layout="channels last",
                      kernel_shape=(2, 2), pads=(1, 0, 0, 1), count_include_pad=1),
    average_pool_grad("average_pool_grad_bfloat16_3d_strips_3s1", (3, 29, 20, 11), kernel_shape=(3, 3),
                      pads=(1, 1, 1, 1)),
    average_pool_grad("average_pool_grad_float64_3d_strips_3s1", (2, 43, 12, 16), kernel_shape=(2, 3),
                      pads=(1, 2, 0, 0), count_include_pad=1),
    average_pool_grad("average_pool_grad_float16_3d_strips_3s2", (2, 20, 5, 7, 12), kernel_shape=(2, 3, 3),
                      strides=(3, 2, 2), pads=(1, 0, 0, 0, 2, 1), count_include_pad=1),
    average_pool_grad("average_pool_grad_float32_3d_strips_3s2", (2, 20, 5, 7, 9), layout="strided rows",
                      kernel_shape=(3, 2, 3), strides=(2, 2, 2), pads=(2, 1, 1, 2, 0, 1)),
    average_pool_grad("average_pool_grad_bfloat16_3d_strips_3s2", (5, 70, 37), kernel_shape=(3,), strides=(2,),
                      pads=(0, 2)),
    average_pool_grad("average_pool_grad_float32_3d_strips_4s2", (3, 40, 13, 15), layout="reversed",
                      kernel_shape=(3, 4), strides=(2, 2), pads=(2, 1, 0, 3)),
    average_pool_grad("average_pool_grad_float16_3d_strips_5s1", (3, 29, 9, 13), kernel_shape=(4, 5),
                      pads=(2, 0, 3, 4)),
    average_pool_grad("average_pool_grad_float64_3d_strips_5s2", (3, 23, 11, 14), layout="channels last",
                      kernel_shape=(5, 5), strides=(2, 2), pads=(1, 2, 4, 3)),
    average_pool_grad("average_pool_grad_float32_3d_strips_7s1", (3, 31, 8, 11), kernel_shape=(7, 7),
                      pads=(3, 3, 3, 3)),
    average_pool_grad("average_pool_grad_float64_3d_strips_7s1", (2, 15, 3, 4, 9), kernel_shape=(2, 3, 7),
                      pads=(1, 2, 4, 0, 1, 5)),
    average_pool_grad("average_pool_grad_bfloat16_3d_strips_7s2", (3, 31, 15, 16), kernel_shape=(7, 7), strides=(2, 2),
                      pads=(3, 2, 3, 4), count_include_pad=1),
    average_pool_grad("average_pool_grad_float32_3d_walks_5xany", (2, 13, 5, 6, 9), layout="channels last",
                      kernel_shape=(2, 3, 4), strides=(2, 1, 1), pads=(1, 2, 3, 1, 2, 3)),
    average_pool_grad("average_pool_grad_float32_3d_walks_5xany", (3, 17, 12, 14), layout="reversed",
                      kernel_shape=(5, 9), strides=(1, 2), pads=(4, 3, 4, 8)),
    average_pool_grad("average_pool_grad_float16_3d_walks_5xany", (2, 19, 6, 5, 6), kernel_shape=(3, 3, 2),
                      strides=(1, 2, 1), pads=(1, 2, 0, 1, 0, 1), count_include_pad=1),
    average_pool_grad("average_pool_grad_float64_3d_walks_5xany", (1, 19, 5, 6, 6), kernel_shape=(3, 4, 3),
                      strides=(2, 1, 2), pads=(2, 3, 2, 2, 3, 2)),
    average_pool_grad("average_pool_grad_bfloat16_3d_walks_5xany", (9, 75, 40), layout="channels last",
                      kernel_shape=(9,), strides=(2,), pads=(3, 4)),
    average_pool_grad("average_pool_grad_float64_3d_walks_13xany", (3, 31, 16, 9), kernel_shape=(13, 3),
                      pads=(6, 1, 6, 1)),
)  # fmt: skip
PLANES = (
    Plane("average_pool_float32_3d_planes_8", (3, 33, 9, 7), "contiguous"),
    Plane("average_pool_bfloat16_3d_planes_32", (2, 13, 5, 7, 9), "reversed"),
    Plane("average_pool_float64_3d_planes_256", (2, 2, 71, 67), "strided rows", multiprocessors=1),
    Plane("average_pool_float16_3d_planes_256", (2, 1, 97, 83), "contiguous"),
    Plane("average_pool_float32_3d_pixels", (2, 70, 23, 19), "channels last"),
    Plane("average_pool_float16_3d_pixels", (3, 40, 5, 7, 3), "strided pixels"),
    Plane("max_pool_int8_3d_planes_8", (3, 33, 9, 7), "contiguous"),
    Plane("max_pool_bfloat16_3d_planes_32", (2, 13, 5, 7, 9), "reversed"),
    Plane("max_pool_float64_3d_planes_256", (2, 2, 71, 67), "strided rows", multiprocessors=1),
    Plane("max_pool_float16_3d_planes_256_split", (2, 1, 97, 83), "contiguous"),
    Plane("max_pool_float32_3d_pixels_split", (2, 70, 23, 19), "channels last"),
    Plane("max_pool_uint8_3d_pixels", (3, 40, 5, 7, 3), "strided pixels"),
    Plane("max_pool_uint8_3d_planes_8_indices", (3, 33, 9, 7), "contiguous"),
    Plane("max_pool_float16_3d_planes_32_indices", (2, 13, 5, 7, 9), "reversed"),
    Plane("max_pool_float32_3d_planes_256_indices", (2, 2, 71, 67), "strided rows"),
    Plane("max_pool_bfloat16_3d_planes_256_indices_split", (2, 1, 97, 83), "contiguous"),
    Plane("max_pool_float64_3d_pixels_indices_split", (2, 70, 23, 19), "channels last"),
    Plane("max_pool_int8_3d_pixels_indices", (3, 40, 5, 7, 3), "strided pixels"),
)
UNPOOLS = (
    Unpool("max_unpool_8bit_3d", (8, 16, 32), "contiguous"),  # outputs fill whole blocks
    Unpool("max_unpool_8bit_3d", (6, 12, 27), "channels last"),
    Unpool("max_unpool_8bit_4d_wide", (6, 12, 27), "strided"),
)
COMPLEX = (
    Complex("expand_complex_complex64_1d", "conv", "contiguous"),
    Complex("expand_complex_complex128_6d_wide", "conv_transpose", "strided"),
)
COPIES = (
    Copy("copy_32bit_4d", "float32", "channels last", "contiguous"),
    Copy("copy_16bit_6d", "float16", "reversed", "fortran"),
    Copy("copy_64bit_6d_wide", "float64", "contiguous", "strided"),
)
_PLACES, _MANY_PLACES = np.arange(3 * 4 * 75), np.arange(7 * 4 * 256 + 7).reshape(7, 25, 41)
_PLACES[5], _MANY_PLACES[0, 3, 4] = -1, -1
_TURNED = np.ascontiguousarray(_MANY_PLACES.transpose(0, 2, 1)).transpose(0, 2, 1)
CHECKS = (
    CheckEach("check_indices_3d", _MANY_PLACES, threads=1024, multiprocessors=1),
    CheckEach("check_indices_4d_wide", _TURNED, threads=1024, multiprocessors=1),
    Check("check_indices_3d", _PLACES.reshape(3, 4, 75)),
    CheckWindows("check_indices_3d", (2, 3, 7, 8),
                 {"kernel_shape": [2, 3], "strides": [2, 1], "dilations": [2, 3], "pads": [3, 1, 0, 4]}),
    CheckWindows("check_indices_4d", (2, 2, 3, 4, 3, 5),
                 {"kernel_shape": [2, 2, 1, 2], "strides": [1, 2, 2, 3], "ceil_mode": 1, "indices_in": "plane"}),
    CheckWindows("check_indices_4d_wide", (1, 3, 5, 6, 4),
                 {"kernel_shape": [2, 2, 2], "strides": [1, 3, 1], "pads": [1] * 6, "storage_order": 1}),
)  # fmt: skip

GRADIENTS: tuple[Specimen, ...] = (
    *(*WEIGHTS, *LARGE_WEIGHTS, *FEW_WEIGHTS, *ROW_WEIGHTS, *SUMS, *GENERAL_POOLS, *WALKS, *SCATTERS, *AVERAGE_WALKS),
    *(*PLANES, *UNPOOLS, *COMPLEX, *COPIES, *CHECKS),
)
