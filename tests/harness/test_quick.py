"""Quick tests cannot compile or emulate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuconv import CompileError
from gpuconv.cuda.build import nvrtc
from tests import emulator

ROOT = Path(__file__).resolve().parents[2]


def test_there_is_no_compiler_for_this_test() -> None:
    for ask in (nvrtc.identity, nvrtc.version, lambda: nvrtc.build("kernel", "", "sm_80", ())):
        with pytest.raises(CompileError, match="a quick test must not compile"):
            ask()
    reason = emulator.unavailable_reason.__wrapped__()  # uncached: the cached reason holds for other tests
    assert "g++" in str(reason)


TESTS = """
import pytest
from tests.emulator import tally

def test_plain():
    pass

def test_emulates():
    tally.add("kernel", "sm_80")

def test_compiles():
    from gpuconv.cuda.build import nvrtc
    nvrtc.identity()

@pytest.mark.slow
def test_slow():
    raise AssertionError

@pytest.mark.emulator
def test_marked():
    raise AssertionError

@pytest.mark.gpu
def test_marked_too():
    raise AssertionError
"""


MODULE = """
import pytest

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.{mark},
]
raise AssertionError
"""


def test_quick_tests_that_compile_or_emulate_fail(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    for mark in ("slow", "emulator", "gpu"):
        (tmp_path / f"test_{mark}.py").write_text(MODULE.format(mark=mark))
    (tmp_path / "emulator").mkdir()
    (tmp_path / "emulator" / "test_there.py").write_text("raise AssertionError")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.conftest",
            "-c",
            str(ROOT / "pyproject.toml"),
            "-m",
            "quick",
            tmp_path,
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "FAILED" in done.stdout
    assert "a quick test must not compile CUDA kernels" in done.stdout
    assert "a quick test must not use the emulator" in done.stdout
    assert "1 failed, 2 passed, 3 deselected, 1 error" in done.stdout, done.stdout
