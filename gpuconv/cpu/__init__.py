"""The NumPy backend: the operators on host arrays, written into an output that the caller provides."""

from gpuconv.cpu._finish import Finish
from gpuconv.cpu._gather import known_weights
from gpuconv.cpu.conv import conv, conv_transpose
from gpuconv.cpu.pool.average_pool import average_pool, average_pool_grad
from gpuconv.cpu.pool.max_pool import max_pool
from gpuconv.cpu.pool.unpool import first_impossible, max_pool_grad, max_unpool
from gpuconv.cpu.weight_grad import bias_grad, weight_grad

__all__ = [
    "Finish",
    "average_pool",
    "average_pool_grad",
    "bias_grad",
    "conv",
    "conv_transpose",
    "first_impossible",
    "known_weights",
    "max_pool",
    "max_pool_grad",
    "max_unpool",
    "weight_grad",
]
