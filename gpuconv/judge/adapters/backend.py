"""Any module that follows onnx.backend.base.Backend."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any


def version(option: str) -> str:
    """Name the module and the version of its package."""
    module = importlib.import_module(option)
    package = importlib.import_module(option.partition(".")[0])
    return f"{module.__name__} {getattr(package, '__version__', '')}".strip()


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Prepare the model and run it."""
    prepared = importlib.import_module(option).prepare(model, device="CPU")
    return list(prepared.run(list(inputs)))
