"""One problem for each kernel of gradients, unpooling and complex numbers, of several blocks, with no two axes alike.

Each is a function of an architecture, or None for the kernel's own, and of the emulator's options, which raises
AssertionError for a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cuda.call import device
from gpuconv.rules import geometry
from tests.emulator import emulated_cuda
from tests.harness.emulated import boxes, indices, long_walks, preferred
from tests.oracle import gradients, oracle
from tests.oracle.operands import LAYOUTS, values
from tests.oracle.oracle import assert_close, assert_same
from tests.oracle.strategies import Problem

Ints = tuple[int, ...]
Trial = Callable[..., Any]


def _weights(
    kernel: str,
    problem: Problem,
    dtype: str,
    layout: str,
    architecture: str | None,
    wide: bool = False,
    precision: str = "ieee",
    both: bool = False,
    first: bool = False,
    **options: Any,
) -> Any:
    """The gradient of weights by one kernel, with an infinite gradient beside the padding; if both, also an input.

    If first, the first pixel of the last image is infinite in a channel of either: it lies behind the last pixel of the
    channel before.
    """
    shapes = problem.x_shape, gradients.shape_of_result(problem)
    x, dy = (values("integers", seed, shape, dtype) for seed, shape in enumerate(shapes))
    dy.reshape(-1)[-1] = np.inf
    if both:
        x.reshape(-1)[x.size // 2] = np.inf
    if first:
        for array in (x, dy):
            array.reshape(*array.shape[:2], -1)[-1, array.shape[1] // 2, 0] = np.inf
    x, dy = LAYOUTS[layout](x), LAYOUTS[layout](dy)
    with indices(wide), preferred(kernel), emulated_cuda(architecture, **options) as emulated:
        out = LAYOUTS["reversed"](np.zeros(problem.w_shape, dtype))  # type: ignore[arg-type]
        call = getattr(gpuconv, f"{problem.operator}_weight_grad")
        dw = call(x, dy, problem.w_shape, **problem.attributes, precision=precision, out=out)
    assert_close(dw, gradients.weight_grad(problem, x, dy), dtype, _bound(dtype, precision))
    assert emulated.launches[0].variant.name == kernel
    assert emulated.launches[0].grid[0] >= 3
    return emulated


def _bound(dtype: str, precision: str) -> str:
    """Of 16-bit numbers that of tensor cores, which may be what sums them."""
    return "tensor cores" if dtype in ("float16", "bfloat16") else precision


def _tile(
    shape: str, problem: Problem, dtype: str, layout: str, precision: str, architecture: str | None, **options: Any
) -> Any:
    """The same by a large tile: parts of several slices each, in several blocks."""
    label = {"ieee": "ffma" if dtype == "float32" else "mma"}.get(precision, precision)
    kernel = f"conv_weight_grad_{dtype}_3d_{label}_{shape}"
    return _weights(
        kernel, problem, dtype, layout, architecture, precision=precision, **(options | {"multiprocessors": 4})
    )


def _sums(shape: Ints, dtype: str, layout: str, architecture: str | None, wide: bool = False, **options: Any) -> Any:
    dy = LAYOUTS[layout](values("integers", 3, shape, dtype))
    with indices(wide), emulated_cuda(architecture, **options) as emulated:
        db = gpuconv.conv_bias_grad(dy)
    assert_close(db, gradients.bias_grad(dy), dtype)
    assert emulated.launches[0].grid[0] >= 3
    return emulated


_POOLED: dict[str, Any] = {
    "kernel_shape": [3, 2, 4], "strides": [1, 2, 3], "dilations": [2, 1, 2], "pads": [1, 0, 3, 2, 1, 1],
}  # fmt: skip
_POOLED_DEEP: dict[str, Any] = {
    "kernel_shape": [2, 3, 2, 4], "strides": [2, 1, 2, 3], "dilations": [1, 2, 1, 2], "pads": [1, 1, 0, 3, 0, 2, 1, 1],
}  # fmt: skip


def _pool(
    layout: str,
    dtype: str,
    order: int,
    architecture: str | None,
    wide: bool = False,
    deep: bool = False,
    **options: Any,
) -> Any:
    attributes = {**(_POOLED_DEEP if deep else _POOLED), "storage_order": order}
    x = values("ties", 1, (2, 2, 3, 4, 5, 7) if deep else (2, 3, 6, 7, 19), dtype)
    y, places = gpuconv.max_pool(x, return_indices=True, **attributes)
    dy, places = LAYOUTS[layout](values("integers", 2, y.shape, dtype)), LAYOUTS[layout](places)
    with indices(wide), emulated_cuda(architecture, **options) as emulated:
        dx = gpuconv.max_pool_grad(dy, places, x.shape, out=LAYOUTS[layout](np.zeros_like(x)), **attributes)
    assert_close(dx, gradients.max_pool_grad(dy, places, x.shape, order), dtype)
    assert emulated.launches[-1].grid[0] >= 3
    return emulated


def _average(
    layout: str,
    dtype: str,
    counted: int,
    architecture: str | None,
    wide: bool = False,
    deep: bool = False,
    **options: Any,
) -> Any:
    attributes = {**(_POOLED_DEEP if deep else _POOLED), "count_include_pad": counted}
    shape = (2, 2, 3, 4, 5, 7) if deep else (2, 3, 6, 7, 19)
    plain, expected = _of_average(shape, dtype, counted, deep)
    dy = LAYOUTS[layout](plain)
    with indices(wide), emulated_cuda(architecture, **options) as emulated:
        out = LAYOUTS[layout](np.zeros(shape, dtype))
        dx = gpuconv.average_pool_grad(dy, shape, out=out, **attributes)
    assert_close(dx, expected, dtype)
    assert emulated.launches[-1].grid[0] >= 3
    return emulated


@cache
def _of_walks(shape: Ints, dtype: str, attributes: tuple[tuple[str, Any], ...]) -> tuple[Any, Any]:
    given: dict[str, Any] = {name: list(value) if isinstance(value, tuple) else value for name, value in attributes}
    dy = values("integers", 2, geometry.average_pool(shape, **given).y_shape, dtype)
    return dy, gradients.average_pool_grad(dy, shape, **given)


def _average_walk(
    kernel: str,
    shape: Ints,
    layout: str,
    dtype: str,
    attributes: dict[str, Any],
    architecture: str | None,
    blocks: int = 2,
    **options: Any,
) -> Any:
    """The same down columns: one walk for each, and one for each row of windows."""
    dy, expected = _of_walks(shape, dtype, tuple(attributes.items()))
    dy, out = LAYOUTS[layout](dy), LAYOUTS[layout](np.full(shape, 7, dy.dtype))
    with preferred(kernel), emulated_cuda(architecture, **options) as emulated:
        for far in (False, True):
            with long_walks(far):
                dx = gpuconv.average_pool_grad(dy, shape, out=out, **attributes)
            assert_close(dx, expected, dtype)
            device.prepared.clear()
    assert {launch.variant.name for launch in emulated.launches} == {kernel}
    assert emulated.launches[-1].grid[0] >= blocks
    return emulated


@cache
def _of_average(shape: Ints, dtype: str, counted: int, deep: bool) -> tuple[Any, Any]:
    """A gradient, and what becomes of it by definition, which takes long."""
    attributes = {**(_POOLED_DEEP if deep else _POOLED), "count_include_pad": counted}
    dy = values("integers", 2, geometry.average_pool(shape, **attributes).y_shape, dtype)
    return dy, gradients.average_pool_grad(dy, shape, **attributes)


def _plane(kernel: str, shape: Ints, layout: str, dtype: str, architecture: str | None, **options: Any) -> Any:
    """One window for each channel, with parts or without; the last image has the bits of the first one."""
    attributes: dict[str, Any] = {"kernel_shape": [n + 2 for n in shape[2:]], "pads": [1] * 2 * len(shape[2:])}
    maxima = kernel.startswith("max")
    x = values("ties" if maxima else "normal", 3, shape, dtype)
    x[-1] = x[0]
    x, out = LAYOUTS[layout](x), LAYOUTS[layout](np.zeros((*shape[:2], *[1] * (len(shape) - 2)), dtype))
    with emulated_cuda(architecture, **options) as emulated, preferred(kernel):
        if maxima:
            numbered = "indices" in kernel
            both = out, LAYOUTS[layout](np.zeros(out.shape, np.int64))
            y = gpuconv.max_pool(x, out=both if numbered else out, return_indices=numbered, **attributes)
        else:
            y = gpuconv.average_pool(x, out=out, count_include_pad=1, **attributes)
    if maxima and numbered:
        y, places = y
        for found, expected in zip((y, places), oracle.max_pool(x, **attributes), strict=True):
            assert_same(found, expected)
    elif maxima:
        assert_same(y, oracle.max_pool(x, **attributes)[0], bits=False)  # either of two zeros
    else:
        assert_close(y, oracle.average_pool(x, count_include_pad=1, **attributes), dtype)
    assert_same(y[-1], y[0])
    assert emulated.launches[0].variant.name == kernel.removesuffix("_split")
    assert emulated.launches[0].grid[0] >= 3
    return emulated


def _walk(
    kernel: str,
    shape: Ints,
    layout: str,
    dtype: str,
    attributes: dict[str, Any],
    architecture: str | None,
    blocks: int = 3,
    box: Ints | None = None,
    **options: Any,
) -> Any:
    """The gradient of MaxPool down long columns, or boxes; some indices name what is not in their windows."""
    x = values("ties", 1, shape, dtype)
    y, places = gpuconv.max_pool(x, return_indices=True, **attributes)
    random = np.random.default_rng(3)
    places = np.where(random.random(y.shape) < 0.3, random.integers(-1, x.size, y.shape), places)
    dy, places = LAYOUTS[layout](values("integers", 2, y.shape, dtype)), LAYOUTS[layout](places)
    attributes = {**attributes, "check_indices": False}
    expected = gpuconv.max_pool_grad(dy, places, x.shape, **attributes)
    out = LAYOUTS[layout](np.full_like(x, 7))
    far = long_walks(True) if box is None else boxes(*box)
    with preferred(kernel), far, emulated_cuda(architecture, **options) as emulated:
        dx = gpuconv.max_pool_grad(dy, places, x.shape, out=out, **attributes)
        assert_same(dx, expected)
        wild = places + 2**32  # which number nothing, though their low words do
        nothing = gpuconv.max_pool_grad(dy, wild, x.shape, out=out, **attributes)
        assert_same(nothing, np.zeros_like(x))
    assert emulated.launches[-1].variant.name == kernel
    assert emulated.launches[-1].grid[0] >= blocks
    return emulated


def _unpool(
    layout: str, dtype: str, extents: Ints, architecture: str | None, wide: bool = False, **options: Any
) -> Any:
    y, numbered, shape = values("any integer", 1, (2, 5, 4, 6, 9), dtype), (2, 5, 5, 12, 25), (2, 5, *extents)
    places = np.random.default_rng(4).integers(-1, np.prod(numbered), y.shape)
    places[1, 2, 3, 4, 5], places[0, 1, 2, 3, 4] = 0, np.prod(numbered) - 1
    y, places = LAYOUTS[layout](y), LAYOUTS[layout](places)
    out = LAYOUTS[layout](np.zeros(shape, dtype))
    attributes: dict[str, Any] = {"kernel_shape": [2, 2, 1], "strides": [1, 2, 3], "check_indices": False}
    with indices(wide), emulated_cuda(architecture, **options) as emulated:
        x = gpuconv.max_unpool(y, places, shape, out=out, **attributes)
        beyond = np.where(places < 0, np.prod(numbered), places)  # the first number of nothing
        same = gpuconv.max_unpool(y, beyond, shape, **attributes)
    assert_same(x, gradients.max_unpool(y, places, numbered, shape))
    assert_same(same, x)
    assert min(launch.grid[0] for launch in emulated.launches) >= 2
    return emulated


def _complex(
    operator: str,
    dtype: str,
    layout: str,
    architecture: str | None,
    wide: bool = False,
    extents: Ints = (11, 9),
    **options: Any,
) -> Any:
    """Conv or ConvTranspose with a bias and a residual, and its gradients, beside those of the CPU."""
    w_shape, group = ((6, 5, 2, 3), 2) if operator == "conv" else ((10, 3, 2, 3), 2)
    generator = np.random.default_rng(2)

    def drawn(*shape: int) -> Any:
        return LAYOUTS[layout]((generator.integers(-4, 5, shape) + 1j * generator.integers(-4, 5, shape)).astype(dtype))

    x, w, b = drawn(2, 10, *extents), drawn(*w_shape), drawn(6)
    attributes = {"strides": [2, 1], "pads": [1, 0, 0, 2], "group": group}

    def all_of_them() -> list[Any]:
        forward, of_input, of_weight, of_bias = (
            getattr(gpuconv, f"{operator}{what}") for what in ("", "_input_grad", "_weight_grad", "_bias_grad")
        )
        y = forward(x, w, b, **attributes)
        y = forward(x, w, b, residual=np.flip(y), **attributes)
        more = of_input(y, w, x.shape, **attributes), of_weight(x, y, w.shape, **attributes)
        return [y, *more, of_bias(y)]

    expected = all_of_them()
    with indices(wide), emulated_cuda(architecture, **options) as emulated:
        found = all_of_them()
    for actual, value in zip(found, expected, strict=True):
        assert (actual == value).all()
    return emulated


def _copy(dtype: str, lies: str, out: str, architecture: str | None, wide: bool = False, **options: Any) -> Any:
    """A residual that lies otherwise than the result, whose sums are whole numbers."""
    x, w = values("integers", 1, (3, 4, 5, 7, 9), dtype), values("integers", 2, (6, 4, 1, 1, 1), dtype)
    plain = np.einsum("ncdhw,mc->nmdhw", x.astype("float64"), w.reshape(6, 4).astype("float64"))
    residual = LAYOUTS[lies](values("integers", 3, plain.shape, dtype))
    target = LAYOUTS[out](np.zeros(plain.shape, dtype))
    with indices(wide), emulated_cuda(architecture, **options) as emulated:
        y = gpuconv.conv(x, w, residual=residual, out=target)
    assert_same(y, (plain + residual).astype(dtype), bits=False)
    assert min(launch.grid[0] for launch in emulated.launches if launch.variant.source == "passes/copy.cu") >= 3
    return emulated


def _check(kernel: str, places: Any, architecture: str | None, wide: bool = False, **options: Any) -> Any:
    """Only the first index that is not its window's is reported, wherever it stands: alone in the end, too."""
    last = tuple(extent - 1 for extent in places.shape)
    later = (*last[:-1], last[-1] - 4)
    with indices(wide), emulated_cuda(architecture, **options) as emulated:
        gpuconv.max_unpool(np.zeros(places.shape, np.float32), places, kernel_shape=[1])
        for wrong, *all_at in ((-2, (0, 1, 3), later), (places.size, later, last), (places.size - 2, last)):
            broken = places.copy(order="K")
            for at in all_at:
                broken[at] = wrong
            _assert_found(broken, wrong, all_at[0])
    assert emulated.launches[1].variant.name == kernel
    return emulated


def _check_each(kernel: str, places: Any, architecture: str | None, wide: bool = False, **options: Any) -> Any:
    """The same where a thread looks at several elements: one of each is wrong, the first of a block's."""
    with indices(wide), emulated_cuda(architecture, multiprocessors=1, **options) as emulated:
        gpuconv.max_unpool(np.zeros(places.shape, np.float32), places, kernel_shape=[1])
        launch = emulated.launches[1]
        step = launch.grid[0] * launch.threads
        assert places.size > 7 * step
        for first in range(0, places.size, step):
            for wrong in (-2, places.size, first + 1):
                broken = places.copy(order="K")
                at = np.unravel_index(first, places.shape)
                broken[at] = wrong
                _assert_found(broken, wrong, at)
    assert launch.variant.name == kernel
    return emulated


def _check_windows(
    kernel: str, shape: Ints, attributes: dict[str, Any], architecture: str | None, wide: bool = False, **options: Any
) -> Any:
    """Of each number, whether a window may name it, is what its taps say."""
    x = values("ties", 1, shape, np.float32)
    y, places = gpuconv.max_pool(x, return_indices=True, **attributes)
    random = np.random.default_rng(5)
    taps = gradients.possible_indices(shape, y.shape, **attributes)
    with indices(wide), emulated_cuda(architecture, **options) as emulated:
        gpuconv.max_pool_grad(y, places, shape, **attributes)
        for _ in range(24):
            at = tuple(map(int, random.integers(0, y.shape)))
            wrong = int(random.choice([*random.integers(-2, x.size + 2, 2), places[at] + random.integers(-4, 5)]))
            broken = places.copy()
            broken[at] = wrong
            refused = nullcontext() if wrong in taps[at] else pytest.raises(gpuconv.ArgumentError, match=str(wrong))
            with refused:
                gpuconv.max_pool_grad(y, broken, shape, **attributes)
    assert emulated.launches[1].variant.name == kernel
    return emulated


def _assert_found(places: Any, wrong: int, at: Any) -> None:
    with pytest.raises(gpuconv.ArgumentError) as caught:
        gpuconv.max_unpool(np.zeros(places.shape, np.float32), places, kernel_shape=[1])
    assert f"indices hold {wrong} at {tuple(map(int, at))}" in str(caught.value)


_CONV = Problem(
    "conv", (3, 70, 4, 6, 5), (140, 35, 1, 3, 2), None,
    {"strides": [1, 2, 1], "dilations": [1, 1, 2], "pads": [0, 1, 2, 0, 2, 1], "group": 2},
)  # fmt: skip
_TRANSPOSED = Problem(
    "conv_transpose", (2, 70, 5, 4), (70, 9, 2, 4), None, {"strides": [2, 3], "pads": [1, 0, 0, 2], "group": 1}
)
_DEPTHWISE = Problem(
    "conv", (2, 3, 23, 31), (3, 1, 3, 5), None,
    {"strides": [1, 2], "dilations": [2, 1], "pads": [1, 4, 3, 0], "group": 3},
)  # fmt: skip
_FEW = Problem("conv", (1, 6, 17, 29), (10, 3, 2, 3), None, {"strides": [2, 1], "pads": [1, 2, 0, 1], "group": 2})
_FEW_DEEP = Problem(
    "conv", (2, 6, 3, 7, 9), (10, 3, 3, 2, 3), None,
    {"strides": [1, 2, 1], "dilations": [1, 1, 2], "pads": [1, 0, 2, 2, 1, 3], "group": 2},
)  # fmt: skip
# Down rows: walks that begin above x and end below it, taps of two phases, filters of two blocks, images in the place
# of rows, and a depth of taps. Around x: walks of one row, of which each row and column of a tile's window is outside.
# Far down: walks of more rows than a tile has taps, some without a column.
_ROWS = Problem(
    "conv", (2, 3, 13, 21), (6, 1, 3, 5), None,
    {"strides": [1, 2], "dilations": [2, 1], "pads": [9, 4, 7, 7], "group": 3},
)  # fmt: skip
_ROWS_LAST = Problem(
    "conv", (3, 20, 11, 12), (40, 1, 4, 6), None,
    {"strides": [2, 2], "dilations": [3, 4], "pads": [2, 11, 4, 9], "group": 20},
)  # fmt: skip
_ROWS_LINE = Problem("conv", (3, 2, 61), (4, 1, 19), None, {"strides": [2], "pads": [17, 9], "group": 2})
_ROWS_DEEP = Problem(
    "conv", (2, 3, 4, 6, 13), (3, 1, 3, 2, 5), None,
    {"strides": [1, 1, 2], "dilations": [2, 1, 3], "pads": [2, 1, 4, 3, 4, 6], "group": 3},
)  # fmt: skip
_ROWS_AROUND = Problem("conv", (1, 3, 6, 9), (3, 1, 7, 17), None, {"pads": [7, 23, 5, 9], "group": 3})
_ROWS_LONG = Problem(
    "conv", (3, 18, 18, 21), (36, 1, 14, 7), None,
    {"strides": [2, 1], "dilations": [1, 2], "pads": [4, 8, 10, 0], "group": 18},
)  # fmt: skip
_ROWS_WIDE = Problem(
    "conv", (3, 18, 9, 72), (36, 1, 3, 16), None,
    {"strides": [2, 1], "dilations": [1, 2], "pads": [2, 7, 3, 0], "group": 18},
)  # fmt: skip

# For large tiles: channels that are whole 16 bytes, or not, or few; images whose pixels are copied one by one or not.
_CHUNKS = Problem(
    "conv", (5, 48, 9, 14), (144, 24, 3, 2), None,
    {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 2, 1], "group": 2},
)  # fmt: skip
_ODD = Problem(
    "conv", (2, 21, 3, 7, 9), (70, 21, 2, 3, 2), None,
    {"strides": [1, 1, 2], "dilations": [1, 2, 1], "pads": [1, 2, 0, 0, 1, 2], "group": 1},
)  # fmt: skip
_STEM = Problem("conv", (3, 3, 15, 17), (136, 3, 5, 7), None, {"strides": [2, 2], "pads": [3, 2, 2, 3], "group": 1})
_POINTWISE = Problem("conv", (9, 75, 4, 12), (140, 75, 1, 1), None, {"group": 1})

_FEW_PARTS: dict[str, Any] = {"multiprocessors": 1}  # of several slices each

WEIGHTS: tuple[Trial, ...] = (
    partial(_weights, "conv_weight_grad_float32_3d_64x64", _CONV, "float32", "contiguous", **_FEW_PARTS),
    partial(_weights, "conv_weight_grad_float16_3d_64x64", _TRANSPOSED, "float16", "channels last", **_FEW_PARTS),
    partial(
        *(_weights, "conv_weight_grad_float64_4d_64x64_wide", _TRANSPOSED, "float64", "strided"),
        **_FEW_PARTS,
        wide=True,
    ),
)
LARGE_WEIGHTS: tuple[Trial, ...] = (
    partial(_tile, "128x128x64_channels", _CHUNKS, "float16", "channels last", "ieee"),
    partial(_tile, "64x64x64_channels", _CHUNKS, "bfloat16", "channels last", "ieee"),
    partial(_tile, "32x128x64_channels", _CHUNKS, "float16", "channels last", "ieee"),
    partial(_tile, "128x128x32_pixels", _STEM, "bfloat16", "contiguous", "ieee"),
    partial(_tile, "128x128x32_pixels", _POINTWISE, "float16", "contiguous", "ieee"),
    partial(_tile, "64x64x32_pixels", _ODD, "float16", "strided", "ieee"),
    partial(_tile, "64x64x32_pixels", _STEM, "bfloat16", "channels last", "ieee"),
    partial(_tile, "128x128x32_channels", _CHUNKS, "float32", "channels last", "tf32"),
    partial(_tile, "64x64x32_channels", _CHUNKS, "float32", "channels last", "tf32"),
    partial(_tile, "32x128x32_channels", _CHUNKS, "float32", "channels last", "tf32"),
    partial(_tile, "128x128x32_pixels", _POINTWISE, "float32", "contiguous", "tf32"),
    partial(_tile, "64x64x32_pixels", _STEM, "float32", "channels last", "tf32"),
    partial(_tile, "64x64x32_channels", _CHUNKS, "float32", "channels last", "3xtf32"),
    partial(_tile, "64x64x32_pixels", _ODD, "float32", "reversed", "3xtf32"),
    partial(_tile, "64x64x16_channels", _CHUNKS, "float64", "channels last", "ieee"),
    partial(_tile, "64x64x16_pixels", _STEM, "float64", "channels last", "ieee"),
    partial(_tile, "64x128x16_channels", _CHUNKS, "float32", "channels last", "ieee"),
    partial(_tile, "128x128x32_pixels", _ODD, "float32", "contiguous", "ieee"),
    partial(_tile, "64x128x32_pixels", _POINTWISE, "float32", "strided", "ieee"),
)
FEW_WEIGHTS: tuple[Trial, ...] = (
    partial(_weights, "conv_weight_grad_float32_3d_few1", _DEPTHWISE, "float32", "contiguous"),
    partial(_weights, "conv_weight_grad_bfloat16_3d_few4", _FEW, "bfloat16", "reversed"),
    partial(_weights, "conv_weight_grad_bfloat16_3d_few4", _FEW_DEEP, "bfloat16", "contiguous"),
)
ROW_WEIGHTS: tuple[Trial, ...] = (
    partial(_weights, "conv_weight_grad_float32_3d_rows_3x3", _ROWS, "float32", "contiguous", multiprocessors=40),
    partial(_weights, "conv_weight_grad_float32_3d_rows_3x3", _ROWS_LAST, "float32", "channels last", **_FEW_PARTS),
    partial(_weights, "conv_weight_grad_float32_3d_rows_3x3", _ROWS_AROUND, "float32", "contiguous", **_FEW_PARTS),
    partial(_weights, "conv_weight_grad_float32_3d_rows_3x3", _ROWS_LONG, "float32", "channels last", **_FEW_PARTS),
    partial(_weights, "conv_weight_grad_float16_3d_rows_1x16", _ROWS_LINE, "float16", "strided", **_FEW_PARTS),
    partial(_weights, "conv_weight_grad_float16_3d_rows_1x16", _ROWS_AROUND, "float16", "contiguous", **_FEW_PARTS),
    partial(_weights, "conv_weight_grad_float16_3d_rows_1x16", _ROWS_WIDE, "float16", "channels last", **_FEW_PARTS),
    partial(_weights, "conv_weight_grad_float64_3d_rows_1x4", _ROWS_DEEP, "float64", "reversed", **_FEW_PARTS),
    partial(_weights, "conv_weight_grad_float64_3d_rows_1x4", _ROWS_AROUND, "float64", "contiguous", **_FEW_PARTS),
    partial(_weights, "conv_weight_grad_float64_3d_rows_1x4", _ROWS_LONG, "float64", "channels last", **_FEW_PARTS),
    partial(_weights, "conv_weight_grad_float32_3d_rows_5x5", _ROWS_DEEP, "float32", "channels last", **_FEW_PARTS),
    partial(_weights, "conv_weight_grad_float32_3d_rows_5x5", _ROWS_AROUND, "float32", "contiguous", **_FEW_PARTS),
    partial(_weights, "conv_weight_grad_float32_3d_rows_5x5", _ROWS_LONG, "float32", "channels last", **_FEW_PARTS),
    partial(_weights, "conv_weight_grad_bfloat16_3d_rows_7x7", _ROWS_AROUND, "bfloat16", "contiguous", **_FEW_PARTS),
    partial(_weights, "conv_weight_grad_bfloat16_3d_rows_7x7", _ROWS_LONG, "bfloat16", "channels last", **_FEW_PARTS),
)
SUMS: tuple[Trial, ...] = (
    partial(_sums, (3, 5, 40, 50), "float32", "contiguous"),
    partial(_sums, (3, 70, 9, 11), "float16", "channels last"),
    partial(_sums, (2, 3, 5, 7, 11), "float64", "strided", wide=True),
    partial(_sums, (3, 70, 9, 13), "float16", "strided pixels"),
    partial(_sums, (3, 5, 7, 13, 11), "float32", "strided rows"),
)
POOLS: tuple[Trial, ...] = (
    partial(_pool, "contiguous", "float32", 0),
    partial(_pool, "channels last", "bfloat16", 1),
    partial(_pool, "strided", "float64", 1, wide=True),
    partial(_average, "contiguous", "float32", 0),
    partial(_average, "channels last", "bfloat16", 1),
    partial(_average, "strided", "float64", 0, wide=True),
)
WALKS: tuple[Trial, ...] = (
    partial(_walk, "max_pool_grad_float32_3d_walks_2x2", (5, 7, 20, 46), "contiguous", "float32",
            {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    partial(_walk, "max_pool_grad_float16_3d_walks_2x2", (2, 10, 5, 31, 13), "channels last", "float16",
            {"kernel_shape": [2, 2, 1], "strides": [3, 2, 2], "pads": [1, 0, 0, 0, 1, 0], "storage_order": 1}),
    partial(_walk, "max_pool_grad_bfloat16_3d_walks_3x2", (3, 9, 75, 26), "contiguous", "bfloat16",
            {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 2]}),
    partial(_walk, "max_pool_grad_float64_3d_walks_3x2", (3, 13, 35, 45), "strided rows", "float64",
            {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [2, 0, 1, 1]}),
    partial(_walk, "max_pool_grad_float32_3d_walks_3x1", (2, 13, 41, 39), "channels last", "float32",
            {"kernel_shape": [3, 3], "pads": [1, 2, 1, 0]}),
    partial(_walk, "max_pool_grad_float16_3d_walks_3x1", (2, 3, 7, 15, 38), "off the vectors", "float16",
            {"kernel_shape": [1, 2, 3], "pads": [0, 1, 2, 0, 1, 2]}),
    partial(_walk, "max_pool_grad_float64_3d_walks_1x1", (3, 7, 250), "contiguous", "float64",
            {"kernel_shape": [3], "strides": [3], "pads": [1, 2]}),
    partial(_walk, "max_pool_grad_float32_3d_walks_5xany", (3, 5, 29, 43), "reversed", "float32",
            {"kernel_shape": [5, 4], "strides": [3, 1], "pads": [1, 3, 4, 2]}),
    partial(_walk, "max_pool_grad_float16_3d_walks_13xany", (3, 7, 38, 23), "contiguous", "float16",
            {"kernel_shape": [11, 9], "pads": [5, 4, 6, 2]}),
    partial(_walk, "max_pool_grad_float64_3d_walks_5xany", (2, 11, 41, 35), "strided rows", "float64",
            {"kernel_shape": [3, 19], "strides": [1, 2], "pads": [1, 3, 4, 2]}),
    partial(_walk, "max_pool_grad_float32_3d_walks_5xany", (2, 3, 38, 9, 15), "contiguous", "float32",
            {"kernel_shape": [3, 3, 2], "strides": [1, 2, 1], "pads": [1, 2, 0, 1, 0, 1]}),
    partial(_walk, "max_pool_grad_bfloat16_3d_walks_5xany", (9, 75, 40), "channels last", "bfloat16",
            {"kernel_shape": [4], "strides": [3], "pads": [1, 2]}),
)  # fmt: skip
# Boxes of so many columns and slices, for so many rows of windows: some end beyond x; whole vectors and single columns.
SCATTERS: tuple[Trial, ...] = (
    partial(_walk, "max_pool_grad_float32_3d_scatter", (3, 7, 20, 44), "contiguous", "float32",
            {"kernel_shape": [5, 7], "strides": [2, 1], "pads": [4, 3, 1, 5]}, box=(8, 1, 4)),
    partial(_walk, "max_pool_grad_float16_3d_scatter", (2, 35, 21, 13), "channels last", "float16",
            {"kernel_shape": [6, 5], "strides": [1, 3], "pads": [5, 0, 2, 4]}, box=(4, 1, 7)),
    partial(_walk, "max_pool_grad_float64_3d_scatter", (2, 7, 9, 10, 22), "contiguous", "float64",
            {"kernel_shape": [3, 4, 5], "strides": [1, 2, 1], "pads": [2, 1, 4, 0, 3, 2]}, box=(4, 2, 6)),
    partial(_walk, "max_pool_grad_bfloat16_3d_scatter", (2, 9, 12, 9, 15), "reversed", "bfloat16",
            {"kernel_shape": [2, 4, 3], "strides": [3, 1, 2], "pads": [1, 3, 0, 1, 2, 2]}, box=(2, 4, 2)),
    partial(_walk, "max_pool_grad_float32_3d_scatter", (2, 70, 37), "channels last", "float32",
            {"kernel_shape": [5], "strides": [2], "pads": [3, 4]}, box=(1, 1, 8)),
    partial(_walk, "max_pool_grad_float32_3d_scatter", (9, 40, 68), "off the vectors", "float32",
            {"kernel_shape": [13], "pads": [6, 6]}, box=(16, 1, 8)),
    partial(_walk, "max_pool_grad_bfloat16_3d_scatter", (3, 5, 30, 44), "strided rows", "bfloat16",
            {"kernel_shape": [3, 2], "strides": [5, 4], "ceil_mode": 1}, box=(4, 1, 2)),
    partial(_walk, "max_pool_grad_float16_3d_scatter", (3, 7, 5, 6, 32), "contiguous", "float16",
            {"kernel_shape": [4, 6, 7], "pads": [2, 3, 1, 1, 2, 5]}, box=(16, 4, 4)),
)  # fmt: skip
# Of each form: taps that do not count at both ends of all axes, windows of one tap, and as many taps everywhere.
AVERAGE_WALKS: tuple[Trial, ...] = (
    partial(_average_walk, "average_pool_grad_float32_3d_walks_1x1", (5, 13, 15, 14), "contiguous", "float32",
            {"kernel_shape": (2, 2), "strides": (2, 2), "ceil_mode": 1}),
    partial(_average_walk, "average_pool_grad_float64_3d_walks_1x1", (2, 17, 5, 7, 8), "channels last", "float64",
            {"kernel_shape": (2, 3, 2), "strides": (2, 3, 3), "pads": (1, 2, 1, 1, 2, 1)}),
    partial(_average_walk, "average_pool_grad_bfloat16_3d_walks_1x1", (3, 70, 9, 7), "channels last", "bfloat16",
            {"kernel_shape": (9, 7)}),
    partial(_average_walk, "average_pool_grad_float64_3d_walks_1x1", (3, 37, 70), "strided rows", "float64",
            {"kernel_shape": (3,), "strides": (4,), "pads": (1, 2)}),
    partial(_average_walk, "average_pool_grad_float32_3d_strips_2s1", (3, 29, 7, 11), "channels last", "float32",
            {"kernel_shape": (2, 2), "pads": (1, 0, 0, 1), "count_include_pad": 1}),
    partial(_average_walk, "average_pool_grad_bfloat16_3d_strips_3s1", (3, 29, 20, 11), "contiguous", "bfloat16",
            {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
    partial(_average_walk, "average_pool_grad_float64_3d_strips_3s1", (2, 43, 12, 16), "contiguous", "float64",
            {"kernel_shape": (2, 3), "pads": (1, 2, 0, 0), "count_include_pad": 1}),
    partial(_average_walk, "average_pool_grad_float16_3d_strips_3s2", (2, 20, 5, 7, 12), "contiguous", "float16",
            {"kernel_shape": (2, 3, 3), "strides": (3, 2, 2), "pads": (1, 0, 0, 0, 2, 1), "count_include_pad": 1}),
    partial(_average_walk, "average_pool_grad_float32_3d_strips_3s2", (2, 20, 5, 7, 9), "strided rows", "float32",
            {"kernel_shape": (3, 2, 3), "strides": (2, 2, 2), "pads": (2, 1, 1, 2, 0, 1)}),
    partial(_average_walk, "average_pool_grad_bfloat16_3d_strips_3s2", (5, 70, 37), "contiguous", "bfloat16",
            {"kernel_shape": (3,), "strides": (2,), "pads": (0, 2)}),
    partial(_average_walk, "average_pool_grad_float32_3d_strips_4s2", (3, 40, 13, 15), "reversed", "float32",
            {"kernel_shape": (3, 4), "strides": (2, 2), "pads": (2, 1, 0, 3)}),
    partial(_average_walk, "average_pool_grad_float16_3d_strips_5s1", (3, 29, 9, 13), "contiguous", "float16",
            {"kernel_shape": (4, 5), "pads": (2, 0, 3, 4)}),
    partial(_average_walk, "average_pool_grad_float64_3d_strips_5s2", (3, 23, 11, 14), "channels last", "float64",
            {"kernel_shape": (5, 5), "strides": (2, 2), "pads": (1, 2, 4, 3)}),
    partial(_average_walk, "average_pool_grad_float32_3d_strips_7s1", (3, 31, 8, 11), "contiguous", "float32",
            {"kernel_shape": (7, 7), "pads": (3, 3, 3, 3)}),
    partial(_average_walk, "average_pool_grad_float64_3d_strips_7s1", (2, 15, 3, 4, 9), "contiguous", "float64",
            {"kernel_shape": (2, 3, 7), "pads": (1, 2, 4, 0, 1, 5)}),
    partial(_average_walk, "average_pool_grad_bfloat16_3d_strips_7s2", (3, 31, 15, 16), "contiguous", "bfloat16",
            {"kernel_shape": (7, 7), "strides": (2, 2), "pads": (3, 2, 3, 4), "count_include_pad": 1}),
    partial(_average_walk, "average_pool_grad_float32_3d_walks_5xany", (2, 13, 5, 6, 9), "channels last", "float32",
            {"kernel_shape": (2, 3, 4), "strides": (2, 1, 1), "pads": (1, 2, 3, 1, 2, 3)}),
    partial(_average_walk, "average_pool_grad_float32_3d_walks_5xany", (3, 17, 12, 14), "reversed", "float32",
            {"kernel_shape": (5, 9), "strides": (1, 2), "pads": (4, 3, 4, 8)}),
    partial(_average_walk, "average_pool_grad_float16_3d_walks_5xany", (2, 19, 6, 5, 6), "contiguous", "float16",
            {"kernel_shape": (3, 3, 2), "strides": (1, 2, 1), "pads": (1, 2, 0, 1, 0, 1), "count_include_pad": 1}),
    partial(_average_walk, "average_pool_grad_float64_3d_walks_5xany", (1, 19, 5, 6, 6), "contiguous", "float64",
            {"kernel_shape": (3, 4, 3), "strides": (2, 1, 2), "pads": (2, 3, 2, 2, 3, 2)}),
    partial(_average_walk, "average_pool_grad_bfloat16_3d_walks_5xany", (9, 75, 40), "channels last", "bfloat16",
            {"kernel_shape": (9,), "strides": (2,), "pads": (3, 4)}),
    partial(_average_walk, "average_pool_grad_float64_3d_walks_13xany", (3, 31, 16, 9), "contiguous", "float64",
            {"kernel_shape": (13, 3), "pads": (6, 1, 6, 1)}),
)  # fmt: skip
PLANES: tuple[Trial, ...] = (
    partial(_plane, "average_pool_float32_3d_planes_8", (3, 33, 9, 7), "contiguous", "float32"),
    partial(_plane, "average_pool_bfloat16_3d_planes_32", (2, 13, 5, 7, 9), "reversed", "bfloat16"),
    partial(_plane, "average_pool_float64_3d_planes_256", (2, 2, 71, 67), "strided rows", "float64", multiprocessors=1),
    partial(_plane, "average_pool_float16_3d_planes_256", (2, 1, 97, 83), "contiguous", "float16"),
    partial(_plane, "average_pool_float32_3d_pixels", (2, 70, 23, 19), "channels last", "float32"),
    partial(_plane, "average_pool_float16_3d_pixels", (3, 40, 5, 7, 3), "strided pixels", "float16"),
    partial(_plane, "max_pool_int8_3d_planes_8", (3, 33, 9, 7), "contiguous", "int8"),
    partial(_plane, "max_pool_bfloat16_3d_planes_32", (2, 13, 5, 7, 9), "reversed", "bfloat16"),
    partial(_plane, "max_pool_float64_3d_planes_256", (2, 2, 71, 67), "strided rows", "float64", multiprocessors=1),
    partial(_plane, "max_pool_float16_3d_planes_256_split", (2, 1, 97, 83), "contiguous", "float16"),
    partial(_plane, "max_pool_float32_3d_pixels_split", (2, 70, 23, 19), "channels last", "float32"),
    partial(_plane, "max_pool_uint8_3d_pixels", (3, 40, 5, 7, 3), "strided pixels", "uint8"),
    partial(_plane, "max_pool_uint8_3d_planes_8_indices", (3, 33, 9, 7), "contiguous", "uint8"),
    partial(_plane, "max_pool_float16_3d_planes_32_indices", (2, 13, 5, 7, 9), "reversed", "float16"),
    partial(_plane, "max_pool_float32_3d_planes_256_indices", (2, 2, 71, 67), "strided rows", "float32"),
    partial(_plane, "max_pool_bfloat16_3d_planes_256_indices_split", (2, 1, 97, 83), "contiguous", "bfloat16"),
    partial(_plane, "max_pool_float64_3d_pixels_indices_split", (2, 70, 23, 19), "channels last", "float64"),
    partial(_plane, "max_pool_int8_3d_pixels_indices", (3, 40, 5, 7, 3), "strided pixels", "int8"),
)
UNPOOLS: tuple[Trial, ...] = (
    partial(_unpool, "contiguous", "int8", (8, 16, 32)),  # claims are whole blocks
    partial(_unpool, "channels last", "int8", (6, 12, 27)),
    partial(_unpool, "strided", "int8", (6, 12, 27), wide=True),
)
COMPLEX: tuple[Trial, ...] = (
    partial(_complex, "conv", "complex64", "contiguous"),
    partial(_complex, "conv_transpose", "complex128", "strided", wide=True),
)
COPIES: tuple[Trial, ...] = (
    partial(_copy, "float32", "channels last", "contiguous"),
    partial(_copy, "float16", "reversed", "fortran"),
    partial(_copy, "float64", "contiguous", "strided", wide=True),
)
_PLACES, _MANY_PLACES = np.arange(3 * 4 * 75), np.arange(7 * 4 * 256 + 7).reshape(7, 25, 41)
_PLACES[5], _MANY_PLACES[0, 3, 4] = -1, -1
_TURNED = np.ascontiguousarray(_MANY_PLACES.transpose(0, 2, 1)).transpose(0, 2, 1)
CHECKS: tuple[Trial, ...] = (
    partial(_check_each, "check_indices_3d", _MANY_PLACES),
    partial(_check_each, "check_indices_4d_wide", _TURNED, wide=True),
    partial(_check, "check_indices_3d", _PLACES.reshape(3, 4, 75)),
    partial(
        _check_windows,
        "check_indices_3d",
        (2, 3, 7, 8),
        {"kernel_shape": [2, 3], "strides": [2, 1], "dilations": [2, 3], "pads": [3, 1, 0, 4]},
    ),
    partial(
        _check_windows,
        "check_indices_4d",
        (2, 2, 3, 4, 3, 5),
        {"kernel_shape": [2, 2, 1, 2], "strides": [1, 2, 2, 3], "ceil_mode": 1, "indices_in": "plane"},
    ),
    partial(
        _check_windows,
        "check_indices_4d_wide",
        (1, 3, 5, 6, 4),
        {"kernel_shape": [2, 2, 2], "strides": [1, 3, 1], "pads": [1] * 6, "storage_order": 1},
        wide=True,
    ),
)
ALL = (
    *WEIGHTS,
    *LARGE_WEIGHTS,
    *FEW_WEIGHTS,
    *ROW_WEIGHTS,
    *SUMS,
    *POOLS,
    *WALKS,
    *SCATTERS,
    *AVERAGE_WALKS,
    *PLANES,
    *UNPOOLS,
    *COMPLEX,
    *COPIES,
    *CHECKS,
)
