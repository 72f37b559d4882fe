"""Read recorded numbers, and name where today's numbers differ from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuconv.cuda.build import nvrtc

Rows = Mapping[str, Any]


def compiler() -> str:
    """Return the compiler that rows depend on: another version may use other registers and other instructions."""
    return f"NVRTC {nvrtc.version()}"


def read(path: Path) -> Any:
    """Return what `machine.write` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))


def differences(recorded: Rows, found: Rows, title: str = "") -> list[str]:
    """Name what is recorded and what is found, wherever they differ; inside of rows, which are dicts, by their keys."""
    lines = []
    for name in dict.fromkeys([*recorded, *found]):
        old, new = recorded.get(name), found.get(name)
        place = f"{title} {name}".lstrip()
        if isinstance(old, dict) and isinstance(new, dict):
            lines += differences(old, new, place)
        elif old != new:
            lines.append(f"{place}: recorded {_shown(old)}, found {_shown(new)}")
    return lines


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)
