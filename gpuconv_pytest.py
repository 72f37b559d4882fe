"""The assertions of gpuconv.testing as fixtures: pytest finds this module where gpuconv is installed.

It stands beside the package, so that tests which do not ask for them import neither gpuconv nor NumPy.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def assert_conv_close() -> Callable[..., None]:
    """gpuconv.testing.assert_conv_close: that a result is ONNX's Conv, each element within its bound."""
    from gpuconv.testing import assert_conv_close

    return assert_conv_close


@pytest.fixture(scope="session")
def assert_conv_transpose_close() -> Callable[..., None]:
    """gpuconv.testing.assert_conv_transpose_close: that a result is ONNX's ConvTranspose, within its bounds."""
    from gpuconv.testing import assert_conv_transpose_close

    return assert_conv_transpose_close
