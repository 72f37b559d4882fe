"""Tests of the judge compare what it writes to stderr, so progress lines, which follow the clock, are kept out."""

from __future__ import annotations

import pytest

from gpuconv.cli import terminal


@pytest.fixture(autouse=True)
def no_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_SECONDS_BETWEEN_SIGNS_OF_LIFE", 3600.0)
