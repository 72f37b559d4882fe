"""How tests compare what they find with the numbers that are kept in the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.records import Rows, compiler, differences, read

__all__ = ["Rows", "assert_same", "compiler", "differences", "read", "require_compiler"]


def assert_same(recorded: Rows, found: Rows, path: Path, tool: str) -> None:
    """Fail with all differences and the command that records what was found."""
    lines = differences(recorded, found)
    advice = f"where that is meant: `python {tool} --write`, and the reason in the commit"
    if lines:
        head = f"{len(lines)} of the numbers in {path.parent.name}/{path.name} are others now; {advice}"
        pytest.fail("\n".join([head, *lines]), pytrace=False)


def require_compiler(path: Path, tool: str) -> None:
    """Skip a comparison of rows that another compiler made; GPUCONV_REQUIRE_EMULATOR=1 makes that a failure."""
    recorded = read(path)["compiler"]
    if recorded == compiler():
        return
    place = f"{path.parent.name}/{path.name}"
    reason = f"{place} was made with {recorded}, and here is {compiler()}: nothing compared but the limits"
    if os.environ.get("GPUCONV_REQUIRE_EMULATOR") == "1":
        pytest.fail(f"{reason}; `python {tool} --write` makes it anew", pytrace=False)
    pytest.skip(reason)
