"""For pytest: ``-p emulated_cuda.plugin`` lets all tests find a device, that of the variables EMULATED_CUDA_…"""

from __future__ import annotations

from . import compilers
from .install import install

library = install()  # before any test module imports CuPy
compilers.use_ptx()


def pytest_report_header() -> str:
    """Say that results are those of an emulator."""
    return "CUDA: emulated, from PTX"


def pytest_terminal_summary(terminalreporter: object) -> None:
    """Say how much was emulated."""
    terminalreporter.write_line(f"{library.emulated_launches()} kernels were launched on the emulated device")
