"""CuPy, and libraries over it, on a machine without a GPU: a CUDA driver whose kernels run in a PTX emulator.

``install()`` must come before CuPy is imported for the first time.
"""

from .install import Settings, Unsuitable, install

__all__ = ["Settings", "Unsuitable", "install"]
