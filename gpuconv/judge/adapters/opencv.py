"""OpenCV's dnn module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from gpuconv.judge.adapters.node import Inexpressible


def version(option: str) -> str:
    """Name OpenCV's version."""
    return f"OpenCV {cv2.__version__} dnn"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Read the model, set its inputs, and ask for all outputs."""
    net = cv2.dnn.readNetFromONNX(np.frombuffer(model.SerializeToString(), np.uint8))
    for value, array in zip(model.graph.input, inputs, strict=True):
        net.setInput(array, value.name)
    found = list(net.forward([value.name for value in model.graph.output]))
    if any(output is None for output in found):  # so the Python binding returns every empty Mat, whatever its shape is
        raise Inexpressible("the binding does not tell the shape of an empty output")
    return found
