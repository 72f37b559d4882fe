"""tinygrad's ONNX frontend."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np
from tinygrad import Tensor
from tinygrad.nn.onnx import OnnxRunner


def version(option: str) -> str:
    """Name tinygrad's version."""
    return f"tinygrad {metadata.version('tinygrad')}"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Run the model."""
    runner = OnnxRunner(Tensor(np.frombuffer(model.SerializeToString(), np.uint8)))
    names = [value.name for value in model.graph.input]
    found = runner({name: Tensor(array) for name, array in zip(names, inputs, strict=True)})
    return [found[value.name].numpy() for value in model.graph.output]
