"""Run gpuconv's CUDA kernels on the CPU: their PTX is interpreted, with checks of every access and synchronisation.

Example::

    with emulated_cuda(architecture="sm_90a") as emulated:
        y = gpuconv.conv(x, w)  # x and w are NumPy arrays; the CUDA backend computes y
"""

from __future__ import annotations

from emulated_cuda.emulator.engine import EmulatorError, Module, Options, module
from emulated_cuda.emulator.memory import Array, TensorMap, empty
from emulated_cuda.emulator.operands import UnsupportedPtx
from emulated_cuda.nvrtc import unavailable_reason
from tests.emulator.compile import compile_ptx
from tests.emulator.device import emulated_cuda

__all__ = [
    "Array",
    "EmulatorError",
    "Module",
    "Options",
    "TensorMap",
    "UnsupportedPtx",
    "compile_ptx",
    "empty",
    "emulated_cuda",
    "module",
    "unavailable_reason",
]
