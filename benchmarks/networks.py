"""The networks that the onnx package ships without their weights, with seeded ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx.backend.test
from onnx import ModelProto, numpy_helper

DATA = Path(onnx.backend.test.__file__).parent / "data"
_BLOCK = 1_000_003  # a prime, so that no two rows of a large matrix are alike


def with_random_weights(path: Path, seed: int) -> ModelProto:
    """Put seeded random values in the place of every ConstantOfShape.

    Matrices and filters are normal with variance 2 / fan-in, which keeps the size of activations through layers of
    Relu; vectors (biases, scales, means, variances) are uniform in [0.5, 1.5). Large weights repeat a block.
    """
    model = onnx.load(path)
    generator = np.random.default_rng(seed)
    shapes = {tensor.name: tensor for tensor in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:  # a network may have its own
            kept.append(node)
            continue
        shape = numpy_helper.to_array(shapes[node.input[0]]).tolist()
        model.graph.initializer.append(numpy_helper.from_array(_random(shape, generator), node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    model.ir_version = 4  # the first one whose initializers need not be inputs
    return model


def _random(shape: Sequence[int], generator: np.random.Generator) -> Any:
    if len(shape) < 2:
        return generator.uniform(0.5, 1.5, shape).astype(np.float32)
    block = generator.standard_normal(min(int(np.prod(shape)), _BLOCK), np.float32)
    return np.resize(block * np.float32(np.sqrt(2 / np.prod(shape[1:]))), shape)
