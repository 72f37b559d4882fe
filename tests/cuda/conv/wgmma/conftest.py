"""Fixtures for tests of the wgmma kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpuconv.cuda.conv.wgmma import tiles


@pytest.fixture
def resized(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make one tile the only one of its kind, with another number of stages or less shared memory."""

    def resize(kind: str, tile: Any, **changes: Any) -> None:
        monkeypatch.setattr(tiles, kind, (replace(tile, **changes),))

    return resize
