"""Any module that follows onnx.backend.base.Backend."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any


def version(option: str) -> str:
    """Name the module and the version of its package; raise TypeError where it is no backend."""
    module = importlib.import_module(option)
    if not callable(getattr(module, "prepare", None)):
        raise TypeError(f"the module {option} has no function prepare, as onnx.backend.base.Backend has")
    package = importlib.import_module(option.partition(".")[0])
    return f"{module.__name__} {getattr(package, '__version__', '')}".strip()


def run(model: Any, inputs: Sequence[Any], option: str) -> Any:
    """Prepare the model and run it."""
    return importlib.import_module(option).prepare(model, device="CPU").run(list(inputs))
