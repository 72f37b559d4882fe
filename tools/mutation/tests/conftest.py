"""Skip tests marked `emulator` where g++ or NVRTC is missing, as the tests of gpuconv do."""

from tests.conftest import pytest_runtest_setup

__all__ = ["pytest_runtest_setup"]
