"""A type checker's diagnostics for calls: mypy, in its strict mode, on files of mistakes and of correct calls."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # mypy reads all of gpuconv: six seconds

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def found() -> dict[str, dict[int, set[str]]]:
    """Return the codes of mypy's errors, by file and line."""
    pytest.importorskip("mypy", reason="mypy is not installed; the extra [dev] brings it")
    files = [f"tests/rules/typing_{name}.py" for name in ("mistakes", "calls")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--no-color-output", *files],
        cwd=TESTS.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr  # 2: mypy itself has failed
    errors: dict[str, dict[int, set[str]]] = {Path(name).name: {} for name in files}
    for file, line, code in re.findall(r"^(\S+?):(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE):
        errors.setdefault(Path(file).name, {}).setdefault(int(line), set()).add(code)
    return errors


def test_every_mistake_is_refused_and_nothing_else(found: dict[str, dict[int, set[str]]]) -> None:
    lines = (TESTS / "typing_mistakes.py").read_text(encoding="utf-8").splitlines()
    marked = {number: line.partition("  # E: ")[2] for number, line in enumerate(lines, 1) if "  # E: " in line}
    assert len(marked) > 30
    assert found["typing_mistakes.py"] == {number: {code} for number, code in marked.items()}


def test_good_calls_are_accepted_with_the_types_of_what_comes_back(found: dict[str, dict[int, set[str]]]) -> None:
    assert found["typing_calls.py"] == {}


def test_nothing_else_is_said(found: dict[str, dict[int, set[str]]]) -> None:
    assert set(found) == {"typing_mistakes.py", "typing_calls.py"}
