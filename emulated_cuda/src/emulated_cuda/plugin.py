"""A pytest plugin that runs tests on an emulated CUDA device: ``pytest -p emulated_cuda.plugin``.

The environment variables ``EMULATED_CUDA_…`` configure the device (see `emulated_cuda.Settings`).
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from . import modules
from .install import install

library = install()  # before any test module imports CuPy


def pytest_report_header() -> str:
    """Add a line to pytest's header which says that CUDA is emulated."""
    return "CUDA: emulated, from PTX"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Run the work that a test enqueued but did not wait for, and fail the test if that work fails."""
    yield
    error = modules.pending_error(library)
    if error is not None:
        pytest.fail(f"work that the test did not wait for failed: {error}", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Add the number of emulated kernel launches to pytest's summary."""
    terminalreporter.write_line(f"{library.emulated_launches()} kernels were launched on the emulated device")
