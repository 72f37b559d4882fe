"""Files of another user, as far as this process is told: only root could really give them away."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STRANGER = 54321

Give = Callable[[Path], None]


def giving(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Return what lets a file or folder, or a link itself, belong to a stranger from then on."""
    given: set[tuple[int, int]] = set()

    def told(function: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def stat(*arguments: Any, **options: Any) -> os.stat_result:
            found = function(*arguments, **options)
            if (found.st_dev, found.st_ino) not in given:
                return found
            return os.stat_result([*found[:4], STRANGER, *found[5:10]])

        return stat

    lstat = os.lstat
    for name in ("stat", "lstat", "fstat"):
        monkeypatch.setattr(os, name, told(getattr(os, name)))
    return lambda path: given.add((lstat(path).st_dev, lstat(path).st_ino))
