"""Bits of an image that do not depend on the other images of the batch, in the emulator.

Operands have many magnitudes, so that any other order of summation gives other bits. Each instruction and shape of the
emulated tensor cores sums in an order of its own, so that results are equal only by construction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import pytest

import gpuconv
from benchmarks import small_shapes
from benchmarks.small_shapes import DEPTHWISE, PROBLEMS, TENSOR, Problem
from emulated_cuda.emulator.accumulation import SCRAMBLED
from gpuconv.cuda.build import params
from gpuconv.cuda.call import device
from gpuconv.cuda.conv import invariant
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.offers import Candidate
from tests.emulator import emulated_cuda
from tests.harness.sources_of_kernels import CONV, CONV_TRANSPOSE, DIRECT, OTHER_GEMMS, PLAIN_GEMMS, WGMMA
from tests.oracle.operands import LAYOUTS

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.kernels(*DIRECT, *CONV, *CONV_TRANSPOSE, *PLAIN_GEMMS, *OTHER_GEMMS, *WGMMA),
]
CLASSES = ("sm_80", "sm_86", "sm_90a", "sm_100a", "sm_120a")  # sm_89 has the bits of sm_86
MANY = 9  # largest number of images that are all compared


@dataclass(frozen=True)
class Layer:
    """One layer; its x has as many images as a call."""

    operator: str
    image: tuple[int, ...]
    w: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    dtype: str = "float32"

    def operands(self, images: int, seed: int = 0) -> tuple[Any, Any, Any]:
        """Return x, w and b, of many magnitudes."""
        random = np.random.default_rng(seed)
        group = self.attributes.get("group", 1)
        filters = self.w[0] if self.operator == "conv" else self.w[1] * group
        x, w, b = (_values(random, shape, self.dtype) for shape in ((images, *self.image), self.w, (filters,)))
        return x, w, b

    def __str__(self) -> str:
        more = "".join(f" {name}={value}" for name, value in self.attributes.items())
        return f"{self.operator} {self.dtype} {self.image} {self.w}{more}".replace(", ", "x")


def _values(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    def numbers() -> Any:
        return random.standard_normal(shape) * np.exp2(random.integers(-5, 6, shape))

    values = numbers() + 1j * numbers() if dtype.startswith("complex") else numbers()
    return values.astype(small_shapes.numpy_dtype(dtype))


def call(layer: Layer, x: Any, w: Any, b: Any, **more: Any) -> Any:
    """Return the layer's result for images x; a gradient's x is dy, without bias and further arguments."""
    if layer.operator == "conv_input_grad":
        extents = [s * (n - 1) + 1 for n, s in zip(layer.image[1:], layer.attributes["strides"], strict=True)]
        shape = (len(x), layer.w[1], *extents)
        return gpuconv.conv_input_grad(x, w, shape, **layer.attributes, invariant="batch")
    return getattr(gpuconv, layer.operator)(x, w, b, **layer.attributes, **more, invariant="batch")


PADS = {"pads": [1, 1, 1, 1]}
# Images of odd sizes, so that tiles cross images and each image has another offset from a multiple of 16 bytes
# than its neighbours.
LAYERS = (
    Layer("conv", (96, 3, 5), (40, 96, 3, 3), PADS, "bfloat16"),
    Layer("conv", (64, 5, 7), (72, 64, 3, 3), PADS),
    Layer("conv", (64, 5, 7), (72, 64, 3, 3), {**PADS, "precision": "tf32"}),
    Layer("conv", (33, 5, 7), (36, 33, 1, 1), {"precision": "3xtf32"}),
    Layer("conv", (3, 11, 9), (20, 3, 3, 3), {"strides": [2, 2]}, "float16"),
    Layer("conv", (5, 9, 11), (2, 5, 3, 3), PADS),
    Layer("conv", (12, 5, 7), (12, 1, 3, 3), {**PADS, "group": 12}, "bfloat16"),
    Layer("conv", (7, 9, 12), (24, 3, 3, 3), {**PADS, "group": 4, "layout": "NHWC"}, "float16"),
    Layer("conv", (7, 5, 32), (40, 32, 3, 2), {"dilations": [2, 1], "layout": "NHWC"}, "bfloat16"),
    Layer("conv", (24, 35), (33, 24, 5), {"pads": [4, 4], "dilations": [2]}, "float64"),
    Layer("conv_transpose", (32, 3, 5), (32, 36, 4, 4), {**PADS, "strides": [2, 2]}, "bfloat16"),
    Layer("conv_transpose", (32, 3, 5), (32, 9, 2, 2), {"strides": [2, 2]}),
    Layer("conv_transpose", (6, 5, 7), (6, 1, 3, 3), {"group": 6, "strides": [2, 2]}),
    Layer("conv_input_grad", (20, 7, 5), (20, 24, 3, 3), {**PADS, "strides": [2, 1]}),
    Layer("conv", (3, 5, 7), (4, 3, 3, 3), PADS, "complex64"),
    Layer("conv", (37, 9, 9), (48, 37, 3, 3), PADS, "bfloat16"),
    Layer("conv", (9, 9, 37), (48, 37, 3, 3), {**PADS, "layout": "NHWC"}),
)


def differences(
    layer: Layer, images: int, seed: int = 0, architecture: str = "sm_90a", spoilt: bool = False
) -> list[int]:
    """Return the images whose results differ from those of a batch of one: of all images, or of three for large
    batches.

    With ``spoilt``, a random one of these images has non-finite values.
    """
    random = Random(f"{layer} {images} {seed}")
    x, w, b = layer.operands(images, seed)
    places = range(images) if images <= MANY else {0, images // 2, images - 1}
    if spoilt:
        x[random.randrange(images)].flat[::7] = np.inf
    lying = LAYOUTS[random.choice(("contiguous", "contiguous", "strided", "channels last"))](x)
    more: dict[str, Any] = {}
    with emulated_cuda(limits_of=architecture, seed=seed, sums=SCRAMBLED):
        if layer.operator != "conv_input_grad" and layer.dtype[0] != "c" and random.random() < 0.5:
            more["activation"] = "relu"
        among = call(layer, lying, w, b, **more)
        alone = {place: call(layer, lying[place : place + 1], w, b, **more) for place in places}
    return [place for place, found in alone.items() if found[0].tobytes() != among[place].tobytes()]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("images", [2, 3, 5, 8, 17, 64])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_an_image_has_the_same_bits_alone(layer: Layer, images: int) -> None:
    architecture = CLASSES[(LAYERS.index(layer) + images) % len(CLASSES)]
    assert not differences(layer, images, seed=images, architecture=architecture, spoilt=images % 2 == 1)


# ---------------------------------------------------------------- parts of a batch, and copies


@pytest.mark.parametrize("limit", [6000, 2**31 - 1])
def test_images_in_parts_have_the_same_bits(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Images have 2304 outputs each, so the smaller limit allows two at a time; with packed weights and a residual."""
    layer = Layer("conv", (8, 12, 12), (16, 8, 3, 3), {"pads": [1, 1, 1, 1]})
    x, w, b = layer.operands(5)
    residual = layer.operands(10, seed=1)[0].reshape(5, 16, 12, 12)
    expected = np.concatenate([result(layer, x[k : k + 1], w, b, residual=residual[k : k + 1]) for k in range(5)])
    monkeypatch.setattr(params, "INDEX_LIMIT", limit)
    views = gpuconv.explain("conv", x.shape, w.shape, **layer.attributes, invariant="batch").views
    assert bool(views) == (limit == 6000)
    for added in (residual, LAYOUTS["channels last"](residual)):
        assert result(layer, x, w, b, residual=added).tobytes() == expected.tobytes()
    with emulated_cuda(limits_of="sm_90a", sums=SCRAMBLED):
        packed = gpuconv.pack(w)
        for _ in range(2):
            assert call(layer, x, packed, b, residual=residual).tobytes() == expected.tobytes()


def test_parts_whose_sums_of_segments_are_few_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, b = DIVIDED.operands(17)
    expected = result(DIVIDED, x, w, b)
    monkeypatch.setattr(invariant, "_MOST_WORKSPACE", 200_000)  # a tile in twelve segments
    assert result(DIVIDED, x, w, b).tobytes() == expected.tobytes()


def test_copies_have_the_same_bits() -> None:
    """Depthwise rows with gaps in x and in y, with images at other offsets from multiples of 16 bytes."""
    layer = Layer("conv", (12, 5, 7), (12, 1, 3, 3), {"pads": [1, 1, 1, 1], "group": 12}, "bfloat16")
    x, w, b = layer.operands(3)
    expected = result(layer, x, w, b)
    for lying in ("strided", "strided rows", "off the vectors", "reversed"):
        out = LAYOUTS[lying](np.zeros_like(expected))
        found = result(layer, LAYOUTS[lying](x), w, b, out=out)
        assert np.ascontiguousarray(found).tobytes() == expected.tobytes()


def result(layer: Layer, x: Any, w: Any, b: Any, **more: Any) -> Any:
    with emulated_cuda(limits_of="sm_90a", sums=SCRAMBLED):
        return call(layer, x, w, b, **more)


# ---------------------------------------------------------------- kernels that are exchanged


def _calls() -> Iterator[tuple[Problem, str, str]]:
    """Yield the small problems of all kernels, each dtype on the architectures in rotation; wgmma only on sm_90a."""
    for number, problem in enumerate((*PROBLEMS, *DEPTHWISE, *TENSOR)):
        for dtype in small_shapes._dtypes_of(problem) if problem.w else ():
            yield problem, dtype, "sm_90a" if "precision" in problem.attributes else CLASSES[number % len(CLASSES)]


@pytest.mark.sampled(1000)
@pytest.mark.parametrize(("problem", "dtype", "architecture"), list(_calls()))
def test_candidates_that_name_the_same_order_make_the_same_bits(
    problem: Problem, dtype: str, architecture: str
) -> None:
    """All candidates of every small problem that an invariant call may pick, with three images.

    A candidate whose partial sums need too much memory computes the images in parts, in the same order.
    """
    layer = Layer(problem.operator, problem.x[1:], problem.w, problem.attributes, dtype)
    x, w, b = layer.operands(3)
    left: list[Candidate] = []
    seen: list[Candidate] = []
    turn = 0

    def pick(candidates: Sequence[Candidate]) -> Candidate:
        if len(seen) > turn:  # of a part
            return offers.quickest([one for one in candidates if one.order == seen[-1].order])
        if not seen:
            left.extend(candidates)
        seen.append(candidates[turn])
        return seen[-1]

    bits: dict[str, dict[bytes, str]] = {}
    with emulated_cuda(limits_of=architecture, sums=SCRAMBLED), offers.picking(pick):
        while (turn := len(seen)) < max(len(left), 1):
            found = call(layer, x, w, b).tobytes()
            bits.setdefault(seen[-1].order, {})[found] = seen[-1].name
            device.prepared.clear()
    assert not {order: found for order, found in bits.items() if len(found) > 1}


# ---------------------------------------------------------------- segments of K, and repairs

# 3 x 3 pixels of 128 channels, whose K is cut into segments; tiles of 64 columns, seven images.
DIVIDED = Layer("conv", (128, 3, 3), (64, 128, 3, 3), {"pads": [1, 1, 1, 1]})
LAST = Layer("conv", (3, 3, 128), (64, 128, 3, 3), {"pads": [1, 1, 1, 1], "layout": "NHWC"})


def order(layer: Layer) -> str:
    plan = gpuconv.explain(layer.operator, (1, *layer.image), layer.w, **layer.attributes, invariant="batch")
    return plan.kernel


def test_segments_of_k_and_repairs_keep_the_bits_of_every_image() -> None:
    assert "segments" in order(DIVIDED)
    assert "segments" in order(LAST)
    assert not differences(DIVIDED, MANY)
    for kernel in ((3, 3), (3, 1)):  # taps along W are rows, or the only one
        pads = [size // 2 for size in kernel] * 2
        layer = replace(LAST, w=(64, 128, *kernel), attributes={**LAST.attributes, "pads": pads})
        assert not differences(layer, MANY, spoilt=True)


def test_what_overflows_as_it_is_rounded_is_not_repaired_because_of_a_neighbour() -> None:
    """Sums are 65520 before rounding errors: below it they round to 65504, else to infinity. Blocks cross images."""
    layer = Layer("conv", (24, 9, 12), (24, 6, 3, 3), {**PADS, "group": 4}, "float16")
    random = np.random.default_rng(1)
    x, w = (random.standard_normal(shape) * 2.0**11 for shape in ((4, *layer.image), layer.w))
    for one, other in ((0, 1), (2, 3)):  # channels that cancel
        x[:, other::6], w[:, other] = x[:, one::6], -w[:, one]
    x[:, 4::6], x[:, 5::6], w[:, 4:] = 1008, 0, 0
    w[:, 4, 1, 1] = 65
    x, w = x.astype(np.float16), w.astype(np.float16)
    spoilt = x.copy()
    spoilt[1::2].flat[::7] = np.inf
    with emulated_cuda(limits_of="sm_80", sums=SCRAMBLED):
        found, beside = call(layer, x, w, None), call(layer, spoilt, w, None)
    assert 0 < np.isinf(found).mean() < 1
    assert found[::2].tobytes() == beside[::2].tobytes()


# ---------------------------------------------------------------- averages


@pytest.mark.kernels("pool/planes.cu", "pool/general.cu", "pool/grad/general.cu")
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("images", [2, 9])
def test_averages_of_an_image_have_the_same_bits_in_every_batch(images: int, dtype: str) -> None:
    random = np.random.default_rng(images)
    x = (random.standard_normal((images, 3, 7, 26)) * np.exp2(random.integers(-5, 6, (images, 3, 7, 26)))).astype(dtype)
    calls: list[Any] = [
        gpuconv.global_average_pool,
        lambda x: gpuconv.average_pool(x, kernel_shape=[3, 5], strides=[1, 2], pads=[1, 2, 1, 2]),
        lambda x: gpuconv.average_pool_grad(x, (len(x), 3, 8, 27), kernel_shape=[2, 2]),
    ]
    with emulated_cuda(limits_of="sm_90a"), gpuconv.invariant("batch"):
        for call in calls:
            among = gpuconv.to_host(call(gpuconv.to_device(x)))
            for place in range(images):
                alone = gpuconv.to_host(call(gpuconv.to_device(x[place : place + 1])))
                assert alone[0].tobytes() == among[place].tobytes()
