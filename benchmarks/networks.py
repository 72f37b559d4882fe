"""The networks for whole-model measurements: those of the onnx package with seeded weights, and built ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx.backend.test
from onnx import ModelProto, numpy_helper

from benchmarks.architectures import mobile, quantized, sequences, vision
from benchmarks.architectures.building import normal

DATA = Path(onnx.backend.test.__file__).parent / "data"
_SHIPPED = sorted((DATA / "light").glob("light_*.onnx"))
_BUILT: tuple[Callable[..., ModelProto], ...] = (
    sequences.conv_tasnet,
    vision.convnext_tiny,
    sequences.crnn,
    vision.deit_tiny,
    mobile.efficientnet_b0,
    mobile.mobilenet_v3,
    mobile.regnet_y_400mf,
    mobile.shufflenet_v2,
    vision.style_transfer,
    vision.unet,
    sequences.wav2vec2_features,
    vision.yolov5n,
)
_STEPS = 4 / 128  # tolerance of 4 quantization steps: one value rounded differently can shift later ones


class Network(NamedTuple):
    """One network.

    Attributes
    ----------
    name, kind : str
        The kind is "shipped" (in the onnx package), "built" (by benchmarks/architectures) or "quantized" (built, int8).
    build : callable
        Returns the ModelProto. Built networks take ``size``, the extent of their input, and ``part`` of their channels.
    close : float
        Allowed difference from ONNX Runtime, relative to the largest output.
    """

    name: str
    kind: str
    build: Callable[..., ModelProto]
    close: float = 1e-4


def _list() -> tuple[Network, ...]:
    shipped = [
        Network(path.stem.removeprefix("light_"), "shipped", partial(with_random_weights, path, seed=0))
        for path in _SHIPPED
    ]
    built = [Network(build.__name__, "built", build) for build in _BUILT]
    return (*shipped, *built, Network("resnet50_int8", "quantized", quantized.resnet50_int8, _STEPS))


def feeds(model: ModelProto) -> dict[str, Any]:
    """Return seeded normal numbers for every graph input without an initializer."""
    generator = np.random.default_rng(1)
    weights = {tensor.name for tensor in model.graph.initializer}
    return {
        value.name: generator.standard_normal([axis.dim_value for axis in value.type.tensor_type.shape.dim], np.float32)
        for value in model.graph.input
        if value.name not in weights
    }


def with_random_weights(path: Path, seed: int) -> ModelProto:
    """Load a model of the onnx package, whose weights are ConstantOfShape nodes, and give it seeded random weights.

    Matrices and filters are normal with variance 2 / fan-in, which keeps the size of activations through layers of
    Relu; vectors (biases, scales, means, variances) are uniform in [0.5, 1.5). Large weights repeat a block.
    """
    model = onnx.load(path)
    generator = np.random.default_rng(seed)
    shapes = {tensor.name: tensor for tensor in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:  # not a weight: its shape is computed
            kept.append(node)
            continue
        shape = numpy_helper.to_array(shapes[node.input[0]]).tolist()
        model.graph.initializer.append(numpy_helper.from_array(_random(shape, generator), node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    model.ir_version = 4  # the first IR version whose initializers need not be graph inputs
    return model


def _random(shape: Sequence[int], generator: np.random.Generator) -> Any:
    if len(shape) < 2:
        return generator.uniform(0.5, 1.5, shape).astype(np.float32)
    return normal(generator, shape, variance=2 / np.prod(shape[1:]))


NETWORKS = _list()
