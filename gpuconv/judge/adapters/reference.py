"""onnx.reference.ReferenceEvaluator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx.reference import ReferenceEvaluator


def version(option: str) -> str:
    """Name onnx's version."""
    return f"onnx.reference {onnx.__version__}"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Evaluate the model."""
    names = [value.name for value in model.graph.input]
    return list(ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True))))
