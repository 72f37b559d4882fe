"""The example of docs/emulated-cuda.md, run as the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "emulated-cuda.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.gpu


def block(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(found) == 1
    return str(found[0])


def pytest_says(folder: Path, source: str) -> str:
    (folder / "test_smooth.py").write_text(source, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.emulated_cuda.plugin",
        "-p",
        "no:cacheprovider",
        str(folder),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True).stdout


def test_the_missing_barrier_is_found_where_the_page_says(tmp_path: Path) -> None:
    said = pytest_says(tmp_path, block("py"))
    assert "1 failed" in said
    for line in block("text").splitlines():
        assert line in said


def test_with_the_barrier_it_passes(tmp_path: Path) -> None:
    mended = block("py").replace("  const int left", "  __syncthreads();\n  const int left")
    said = pytest_says(tmp_path, mended)
    assert "1 passed" in said
    assert "CUDA: emulated, from PTX" in said
