"""TVM's Relax frontend for ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx


def version(option: str) -> str:
    """Name TVM's version and the target."""
    return f"TVM {tvm.__version__} {option or 'llvm'}"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Import, compile and run the model."""
    imported = from_onnx(model, keep_params_in_input=False)
    target = option or "llvm"
    compiled = tvm.compile(relax.transform.DecomposeOpsForInference()(imported), target=target)
    device = tvm.device(target if option else "cpu")
    machine = relax.VirtualMachine(compiled, device)
    found = machine["main"](*(tvm.runtime.tensor(array, device) for array in inputs))
    several = not isinstance(found, tvm.runtime.Tensor)
    return [output.numpy() for output in (found if several else [found])]
