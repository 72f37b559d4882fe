"""Run CuPy, and libraries that use it, on a machine without a GPU.

An emulated CUDA driver replaces NVIDIA's: kernels are compiled to PTX, and an emulator runs the PTX on the CPU with
checks of every memory access. Call ``install()`` before CuPy is imported for the first time.
"""

from .install import Settings, Unsuitable, install

__all__ = ["Settings", "Unsuitable", "install"]
