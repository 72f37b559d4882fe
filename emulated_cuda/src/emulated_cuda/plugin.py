"""For pytest: ``-p emulated_cuda.plugin`` lets all tests find a device, that of the variables EMULATED_CUDA_…"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from . import modules
from .install import install

library = install()  # before any test module imports CuPy


def pytest_report_header() -> str:
    """Say that results are those of an emulator."""
    return "CUDA: emulated, from PTX"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Let a test fail for its own work, also where it waits for none of it."""
    yield
    error = modules.pending_error(library)
    if error is not None:
        pytest.fail(f"work that the test did not wait for failed: {error}", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how much was emulated."""
    terminalreporter.write_line(f"{library.emulated_launches()} kernels were launched on the emulated device")
