"""gpuconv's own backend, on the CPU or on a CUDA device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpuconv
from gpuconv.onnx import backend


def version(option: str) -> str:
    """Name gpuconv's version."""
    return f"gpuconv {gpuconv.__version__}"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Prepare the model and run it."""
    outputs = backend.prepare(model, device=(option or "cpu").upper()).run(list(inputs))
    return [gpuconv.to_host(output) for output in outputs]
