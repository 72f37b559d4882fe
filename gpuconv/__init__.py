"""Conv, ConvTranspose, MaxPool and AveragePool exactly as ONNX specifies them, on NumPy and CuPy arrays."""

import sys

if getattr(sys, "argv", ())[:1] == ["-m"] and "-m gpuconv" in " ".join(sys.orig_argv):  # run by `python -m`
    from gpuconv_command import exit_on_interrupt as _exit_on_interrupt

    _exit_on_interrupt()

from gpuconv._conv import conv, conv_transpose
from gpuconv._errors import (
    ArgumentError,
    ArgumentTypeError,
    CompileError,
    DeviceError,
    GpuconvError,
    OutOfDeviceMemory,
)
from gpuconv._explain import explain
from gpuconv._gradients import (
    conv_bias_grad,
    conv_input_grad,
    conv_transpose_bias_grad,
    conv_transpose_input_grad,
    conv_transpose_weight_grad,
    conv_weight_grad,
)
from gpuconv._graph import Graph, graph
from gpuconv._packed import PackedWeights
from gpuconv._pooling import (
    average_pool,
    average_pool_grad,
    global_average_pool,
    global_average_pool_grad,
    max_pool,
    max_pool_grad,
    max_unpool,
)
from gpuconv._transfer import pack, to_device, to_host
from gpuconv._tune import tune
from gpuconv.rules.invariance import invariant
from gpuconv.rules.precision import precision
from gpuconv.rules.strictness import strict

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CompileError",
    "DeviceError",
    "GpuconvError",
    "Graph",
    "OutOfDeviceMemory",
    "PackedWeights",
    "__version__",
    "average_pool",
    "average_pool_grad",
    "conv",
    "conv_bias_grad",
    "conv_input_grad",
    "conv_transpose",
    "conv_transpose_bias_grad",
    "conv_transpose_input_grad",
    "conv_transpose_weight_grad",
    "conv_weight_grad",
    "explain",
    "global_average_pool",
    "global_average_pool_grad",
    "graph",
    "invariant",
    "max_pool",
    "max_pool_grad",
    "max_unpool",
    "pack",
    "precision",
    "strict",
    "to_device",
    "to_host",
    "tune",
]
