"""The NumPy backend: the three operators on host arrays, written into an output that the caller provides."""

from gpuconv.cpu.conv import conv
from gpuconv.cpu.conv_transpose import conv_transpose
from gpuconv.cpu.max_pool import max_pool

__all__ = ["conv", "conv_transpose", "max_pool"]
