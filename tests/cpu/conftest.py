"""Both backends, for tests of what is the same on either."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from tests.harness.emulated import varied_cuda

Backend = Callable[[Any, int, int], AbstractContextManager[Any]]


@pytest.fixture(params=["numpy", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> Backend:
    """What a call of a dtype and a rank runs under: nothing, or the emulated device, whose kernels follow a seed."""
    return varied_cuda if request.param == "cuda" else lambda dtype, rank, seed: nullcontext()
