"""Numbers that are kept in the repository, one line of JSON each row, and how what is found today differs from them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuconv.cuda import nvrtc

Rows = Mapping[str, Any]


def compiler() -> str:
    """Return the compiler that rows depend on: another version may use other registers and other instructions."""
    return f"NVRTC {nvrtc.version()}"


def read(path: Path) -> Any:
    """Return what `write` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))


def write(path: Path, columns: str, rows: Rows) -> None:
    """Write rows, of today's compiler."""
    head = {"compiler": compiler(), "columns": columns}
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in [*head.items(), *rows.items()]]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8", newline="\n")


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


def assert_same(recorded: Rows, found: Rows, path: Path, tool: str) -> None:
    """Fail with all differences and the command that records what was found."""
    lines = differences(recorded, found)
    advice = f"where that is meant: `python tests/{tool} --write`, and the reason in the commit"
    if lines:
        head = f"{len(lines)} of the numbers in tests/{path.name} are others now; {advice}"
        pytest.fail("\n".join([head, *lines]), pytrace=False)


def require_compiler(path: Path, tool: str) -> None:
    """Skip a comparison of rows that another compiler made; GPUCONV_REQUIRE_EMULATOR=1 makes that a failure."""
    recorded = read(path)["compiler"]
    if recorded == compiler():
        return
    reason = f"tests/{path.name} was made with {recorded}, and here is {compiler()}: nothing compared but the limits"
    if os.environ.get("GPUCONV_REQUIRE_EMULATOR") == "1":
        pytest.fail(f"{reason}; `python tests/{tool} --write` makes it anew", pytrace=False)
    pytest.skip(reason)
