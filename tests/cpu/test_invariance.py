"""`invariant="batch"` on the CPU: an image's result has the same bits in any batch and any memory layout.

BLAS may use another kernel for every shape. Results of this machine's BLAS are compared, and the shapes and strides of
all products: those of a batch must be those of its images, each as often as there are images.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuconv
from gpuconv.cpu import _product, _workspace

cpu_conv, max_pool = (import_module(f"gpuconv.cpu.{name}") for name in ("conv", "pool.max_pool"))
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.complex64]
COUNTS = (1, 2, 3, 5, 8, 17, 64)
MOST_IMAGES = 17  # all of which are compared


class Layer(NamedTuple):
    """A call of one of the operators, for any number of images."""

    operator: str
    x: tuple[int, ...]  # of an image, channels first
    w: tuple[int, ...]
    dtype: Any = np.float32
    layout: str = "NCHW"
    bias: bool = True
    activation: str | None = None
    attributes: tuple[tuple[str, Any], ...] = ()

    def images(self, count: int, seed: int = 0) -> Any:
        """Return random images in the layout."""
        x = _random((count, *self.x), self.dtype, seed)
        return x if self.layout == "NCHW" else np.ascontiguousarray(np.moveaxis(x, 1, -1))

    def made(self) -> tuple[int, ...]:
        """Return the shape of an image's gradient, in the layout."""
        attributes = dict(self.attributes)
        ones = [1] * (len(self.w) - 2)
        axes = zip(
            self.x[1:], self.w[2:], attributes.get("strides", ones), attributes.get("dilations", ones), strict=True
        )
        if self.operator == "conv_input_grad":
            channels, extents = (
                self.w[1] * attributes.get("group", 1),
                [(q - 1) * s + (k - 1) * d + 1 for q, k, s, d in axes],
            )
        else:
            channels, extents = self.w[0], [(n - (k - 1) * d - 1) // s + 1 for n, k, s, d in axes]
        return (channels, *extents) if self.layout == "NCHW" else (*extents, channels)

    def call(self, x: Any, invariant: str | None = "batch", **more: Any) -> Any:
        """Compute the layer's result."""
        keywords = {**dict(self.attributes), **more, "layout": self.layout, "invariant": invariant}
        w, function = _random(self.w, self.dtype, 1), getattr(gpuconv, self.operator)
        if self.operator.endswith("_grad"):
            return function(x, w, (len(x), *self.made()), **keywords)
        made = self.w[0] if self.operator == "conv" else self.w[1] * dict(self.attributes).get("group", 1)
        b = _random((made,), self.dtype, 2) if self.bias else None
        return function(x, w, b, activation=self.activation, **keywords)


def _random(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(shape)
    return (x + 1j * generator.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def gaps(x: Any) -> Any:
    """Return the same numbers in memory with gaps along all axes."""
    wide = np.empty(tuple(2 * n for n in x.shape), x.dtype)
    view = wide[(slice(None, None, 2),) * x.ndim]
    view[...] = x
    return view


# Layouts in memory for a single image.
LYING: list[Callable[[Any], Any]] = [lambda x: x, np.copy, np.asfortranarray, gaps]


# ---------------------------------------------------------------- what products there are


@contextmanager
def products() -> Iterator[Counter[Any]]:
    """Count all products of two matrices, also those in stacks, by the shapes, strides and types of their factors."""
    found: Counter[Any] = Counter()
    multiply, add, sum_ = np.matmul, _product.add, np.einsum

    def seen(*arrays: Any) -> None:
        factors = tuple((a.shape[-2:], a.strides[-2:], a.dtype.str) for a in arrays)
        found[factors] += math.prod(np.broadcast_shapes(*(a.shape[:-2] for a in arrays)))

    def matmul(a: Any, b: Any, out: Any = None) -> Any:
        seen(a, b)
        return multiply(a, b, out=out)

    def added(a: Any, b: Any, c: Any, onto: bool = True) -> None:
        seen(a, b, c)
        add(a, b, c, onto)

    def einsum(text: str, a: Any, b: Any, out: Any) -> Any:
        found[tuple((one.shape, one.strides, one.dtype.str) for one in (a, b))] += 1
        return sum_(text, a, b, out=out)

    with mock.patch.multiple(np, matmul=matmul, einsum=einsum), mock.patch.object(_product, "add", added):
        yield found


def assert_alone(layer: Layer, count: int, threads: tuple[int, int] = (2, 3)) -> None:
    """Compare a batch with its images, each by itself, bits and products; of many images the first, middle and last
    one."""
    x = layer.images(count)
    with mock.patch.dict("os.environ", GPUCONV_NUM_THREADS=str(threads[0])), products() as of_all:
        y = layer.call(x)
    with mock.patch.dict("os.environ", GPUCONV_NUM_THREADS=str(threads[1])):
        for at, image in enumerate(range(count) if count <= MOST_IMAGES else (0, count // 2, count - 1)):
            with products() as of_one:
                alone = layer.call(LYING[at % len(LYING)](x[image : image + 1]))
            assert alone[0].tobytes() == y[image].tobytes(), (layer, count, image)
            assert of_all == Counter({key: count * number for key, number in of_one.items()}), (layer, count)


# ---------------------------------------------------------------- layers

GROUPED = (("group", 4),)
LAYERS = [
    Layer("conv", (64, 14, 14), (32, 64, 3, 3), attributes=(("pads", [1] * 4),)),
    Layer("conv", (16, 28, 28), (128, 16, 3, 3), attributes=(("pads", [1] * 4), ("strides", [2, 2]))),
    Layer("conv", (96, 7, 7), (128, 96, 1, 1), activation="relu"),
    Layer("conv", (96, 7, 7), (128, 96, 1, 1), layout="NHWC"),
    Layer("conv", (3, 32, 32), (16, 3, 7, 7), layout="NHWC", attributes=(("strides", [2, 2]),)),
    Layer("conv", (32, 40, 40), (2, 32, 5, 5)),
    Layer("conv", (32, 1), (24, 32, 1)),
    Layer("conv", (8, 60, 60), (8, 1, 3, 3), attributes=(("group", 8),)),
    Layer("conv", (64, 12, 12), (64, 1, 5, 5), attributes=(("group", 64),)),
    Layer("conv", (16, 40, 40), (16, 4, 3, 3), attributes=GROUPED),
    Layer("conv", (16, 9, 8, 7), (8, 16, 2, 3, 2), attributes=(("dilations", [2, 1, 1]),)),
    Layer("conv_transpose", (48, 8, 8), (48, 24, 4, 4), attributes=(("strides", [2, 2]),)),
    Layer("conv_transpose", (16, 20), (16, 6, 3), layout="NHWC", attributes=GROUPED),
    Layer("conv_input_grad", (24, 10, 10), (24, 12, 3, 3), attributes=(("strides", [2, 2]),)),
    Layer("conv_transpose_input_grad", (24, 10, 10), (12, 24, 3, 3)),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer.operator}{layer.w}{layer.layout}")
def test_an_image_has_the_same_bits_and_products_in_every_batch(layer: Layer) -> None:
    for count in (2, 5, 17):
        assert_alone(layer, count)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[3], LAYERS[9], LAYERS[11]], ids=["conv", "last", "group", "up"])
def test_so_it_has_in_every_type(layer: Layer, dtype: Any) -> None:
    assert_alone(layer._replace(dtype=dtype), 3)


def test_so_it_has_where_rows_of_weights_are_shared_out_among_threads() -> None:
    assert_alone(Layer("conv", (256, 14, 14), (256, 256, 3, 3)), 3)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize(
    "call", ["conv(x, w, strides=[2, 2], ", "conv_transpose(x, w.swapaxes(0, 1), strides=[2, 2], "]
)
def test_small_complex_products_are_kept_from_the_threads_of_blas(call: str, dtype: str) -> None:
    """BLAS uses several threads for these where it uses one for real products of that size."""
    code = f"""
import numpy as np, gpuconv
x, w = ((lambda r: r(shape) + 1j * r(shape))(np.random.default_rng(0).standard_normal).astype("{dtype}")
        for shape in ((2, 16, 14, 14), (1, 16, 3, 3)))
y = gpuconv.{call}invariant="batch")
print(y[:1].tobytes() == gpuconv.{call.replace("x", "x[:1]", 1)}invariant="batch").tobytes())
"""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_results_are_those_of_the_free_call_but_for_rounding() -> None:
    for layer in LAYERS:
        x = layer.images(3)
        free, bound = layer.call(x, None), layer.call(x)
        np.testing.assert_allclose(bound, free, rtol=1e-4, atol=1e-4)


def test_outputs_and_residuals_may_lie_anywhere() -> None:
    layer = LAYERS[0]
    x = layer.images(5)
    y = layer.call(x)
    residual = _random(y.shape, np.float32, 3)
    wanted = layer.call(x, residual=residual)
    for order in LYING:
        assert layer.call(x, out=order(np.empty_like(y))).tobytes() == y.tobytes()
        assert layer.call(x, residual=order(residual)).tobytes() == wanted.tobytes()
        one = layer.call(x[3:4], residual=order(residual[3:4]), out=order(np.empty_like(y[:1])))
        assert one[0].tobytes() == wanted[3].tobytes()


def test_weights_that_are_not_finite_change_nothing_for_other_images() -> None:
    """Next to an image of zeros, and alone."""
    w = _random((8, 16, 3, 3), np.float32, 1)
    w[3, 2, 1, 1] = np.inf
    x = _random((4, 16, 6, 6), np.float32, 0)
    x[2] = 0
    y = gpuconv.conv(x, w, pads=[1] * 4, invariant="batch")
    for image in range(4):
        alone = gpuconv.conv(x[image : image + 1], w, pads=[1] * 4, invariant="batch")
        assert alone[0].tobytes() == y[image].tobytes()


def test_packed_weights_and_a_context_give_the_same() -> None:
    layer = LAYERS[0]
    x, w = layer.images(3), _random(layer.w, np.float32, 1)
    y = gpuconv.conv(x, w, invariant="batch")
    with gpuconv.invariant("batch"):
        assert gpuconv.conv(x[1:2], gpuconv.pack(w))[0].tobytes() == y[1].tobytes()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_maxima_have_zeros_of_one_sign(layout: str) -> None:
    x = np.random.default_rng(0).choice(np.array([-0.0, 0.0, -1.0], np.float32), (9, 5, 30, 31))
    for dtype in (np.float32, np.float64, np.float16):
        values = x.astype(dtype)
        with gpuconv.invariant("batch"):
            y = gpuconv.max_pool(values, [3, 2], pads=[1, 0, 0, 1], layout=layout)
            for image, order in enumerate([*LYING, *LYING]):
                alone = gpuconv.max_pool(order(values[image : image + 1]), [3, 2], pads=[1, 0, 0, 1], layout=layout)
                assert alone[0].tobytes() == y[image].tobytes()
        np.testing.assert_array_equal(y, gpuconv.max_pool(values, [3, 2], pads=[1, 0, 0, 1], layout=layout))


AVERAGES = {
    "global": lambda x, layout: gpuconv.global_average_pool(x, layout=layout),
    "one_window": lambda x, layout: gpuconv.average_pool(x, kernel_shape=[9, 21], layout=layout),
    "windows": lambda x, layout: gpuconv.average_pool(x, kernel_shape=[9, 4], strides=[1, 3], layout=layout),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", AVERAGES)
def test_averages_do_not_depend_on_the_batch_or_the_order_of_axes_in_memory(name: str, layout: str, dtype: Any) -> None:
    x = _random((5, 3, 9, 21) if layout == "NCHW" else (5, 9, 21, 3), dtype, 0)
    orders = [np.arange(4), np.arange(4)[::-1], np.array([0, 2, 3, 1]), np.array([2, 0, 3, 1]), np.array([3, 1, 0, 2])]
    with gpuconv.invariant("batch"):
        y = AVERAGES[name](x, layout)
        for order in orders:
            lying = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
            assert AVERAGES[name](lying, layout).tobytes() == y.tobytes()
            assert AVERAGES[name](lying[3:4], layout)[0].tobytes() == y[3].tobytes()


def test_averages_of_arrays_that_lie_otherwise_differ_without_the_word() -> None:
    x = _random((5, 3, 9, 21), np.float32, 0)
    assert (gpuconv.global_average_pool(x) != gpuconv.global_average_pool(np.asfortranarray(x))).any()


def test_arrays_with_gaps_are_copied_some_images_at_a_time() -> None:
    layer = LAYERS[3]
    x = layer.images(64)
    y = layer.call(x)
    with mock.patch.dict("os.environ", GPUCONV_WORKSPACE_BYTES=str(2**20)):
        small = layer.call(x)
        with mock.patch.object(_workspace, "_like", wraps=_workspace._like) as made:
            assert layer.call(gaps(x)).tobytes() == small.tobytes()
        assert len(made.call_args_list) > 1
    np.testing.assert_allclose(y, small, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- any layer


@st.composite
def layers(draw: Callable[..., Any]) -> Layer:
    """Draw a layer that is fast to compute."""
    rank = draw(st.sampled_from([1, 2, 2, 3]))
    operator = draw(st.sampled_from(["conv", "conv", "conv_transpose", "conv_input_grad", "conv_transpose_input_grad"]))
    group, inner, made = (draw(st.sampled_from(some)) for some in ((1, 1, 2, 8), (1, 3, 8, 33), (1, 4, 20)))
    kernel, stride, dilation = (tuple(draw(st.integers(1, 3)) for _ in range(rank)) for _ in range(3))
    spare = {1: 200, 2: 20, 3: 5}[rank]
    axes = zip(kernel, stride, dilation, strict=True)
    extents = tuple((k - 1) * d + 1 + s * draw(st.integers(0, spare // s)) for k, s, d in axes)
    attributes: dict[str, Any] = {"strides": list(stride), "dilations": list(dilation), "group": group}
    if operator == "conv":
        attributes["pads"] = [draw(st.integers(0, 2)) for _ in range(2 * rank)]
    taken = operator in ("conv", "conv_transpose_input_grad")
    w = (group * made, inner, *kernel) if taken else (group * inner, made, *kernel)
    return Layer(
        operator,
        (group * inner, *extents),
        w,
        draw(st.sampled_from(DTYPES)),
        draw(st.sampled_from(["NCHW", "NHWC"])),
        draw(st.booleans()),
        attributes=tuple(attributes.items()),
    )


@settings(max_examples=40, deadline=None)
@given(layers(), st.sampled_from(COUNTS[1:4]), st.sampled_from([(1, 2), (2, 1), (3, 5)]))
def test_any_layer(layer: Layer, count: int, threads: tuple[int, int]) -> None:
    assert_alone(layer, count, threads)


@pytest.mark.thorough
@settings(max_examples=600, deadline=None)
@given(layers(), st.sampled_from(COUNTS), st.sampled_from([(1, 2), (2, 1), (3, 5), (8, 1)]))
def test_any_layer_in_any_batch(layer: Layer, count: int, threads: tuple[int, int]) -> None:
    assert_alone(layer, count, threads)


# ---------------------------------------------------------------- maxima


def test_maxima_of_several_images_are_what_the_word_keeps_apart() -> None:
    seen: list[int] = []
    run = max_pool._pool

    def pool(x: Any, target: Any, *others: Any) -> None:
        seen.append(target.shape[0])
        run(x, target, *others)

    x = _random((6, 3, 8, 8), np.float32, 0)
    with mock.patch.object(max_pool, "_pool", pool):
        gpuconv.max_pool(x, [2, 2])
        assert seen == [6]
        with gpuconv.invariant("batch"):
            gpuconv.max_pool(x, [2, 2])
    assert seen[1:] == [1] * 6
