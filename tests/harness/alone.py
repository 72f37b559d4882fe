"""Layers whose results have bits of their own for every order of sums, and hashes of these bits by architecture.

`python -m tests.harness.alone --write` writes the hashes anew, where a release is to change them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import gpuconv
from benchmarks import small_shapes
from tests.emulator import emulated_cuda

CLASSES = ("sm_80", "sm_86", "sm_90a", "sm_100a", "sm_120a")  # sm_89 has the bits of sm_86
PATH = Path(__file__).with_name("alone.json")
_ORDER = "assumed: tensor cores add their products in the order of K, one by one, to the sum so far"


@dataclass(frozen=True)
class Layer:
    """One layer; its x has as many images as a call has."""

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
    """Return the layer's result for images x; the gradient, whose x is that of y, has neither a bias nor more."""
    if layer.operator == "conv_input_grad":
        extents = [s * (n - 1) + 1 for n, s in zip(layer.image[1:], layer.attributes["strides"], strict=True)]
        shape = (len(x), layer.w[1], *extents)
        return gpuconv.conv_input_grad(x, w, shape, **layer.attributes, invariant="batch")
    return getattr(gpuconv, layer.operator)(x, w, b, **layer.attributes, **more, invariant="batch")


PADS = {"pads": [1, 1, 1, 1]}
# Images of odd sizes, so that tiles cross images and each of these lies on another multiple of 16 bytes than its
# neighbours do.
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


# ---------------------------------------------------------------- hashes


def cases() -> Iterator[tuple[Layer, str]]:
    """Yield what has a hash."""
    yield from product(LAYERS, CLASSES)


def digest(layer: Layer, architecture: str) -> str:
    """Return the hash of two images' result."""
    with emulated_cuda(limits_of=architecture):
        y = call(layer, *layer.operands(2))
    return hashlib.sha256(np.ascontiguousarray(y).tobytes()).hexdigest()[:16]


def recorded() -> Mapping[str, Any]:
    """Return what was written: the release, the order that is assumed, and the hashes by layer and architecture."""
    found: Mapping[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


def _write() -> None:
    hashes = {f"{layer} on {architecture}": digest(layer, architecture) for layer, architecture in cases()}
    content = {"release": gpuconv.__version__, "order": _ORDER, **hashes}
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in content.items())
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.harness.alone", description=__doc__)
    parser.add_argument("--write", action="store_true", required=True, help="write the hashes of this release")
    parser.parse_args()
    _write()
