"""The quick tests: which they are, and that they need no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuconv import CompileError
from gpuconv.cuda.build import nvrtc
from tests import emulator
from tests.conftest import QUICK

ROOT = Path(__file__).resolve().parents[2]

OF_ONE_NAME = next(name for name in QUICK if "/" not in name)  # outside of the tests' folder names alone count


def test_modules_of_quick_tests_are_there_and_in_order() -> None:
    assert [name for name in QUICK if not (ROOT / "tests" / f"{name}.py").is_file()] == []
    assert sorted(set(QUICK)) == QUICK


def test_there_is_no_compiler_for_this_test() -> None:
    for ask in (nvrtc.identity, nvrtc.version, lambda: nvrtc.build("kernel", "", "sm_80", ())):
        with pytest.raises(CompileError, match="a quick test must not compile"):
            ask()
    reason = emulator.unavailable_reason.__wrapped__()  # what is kept of it holds for other tests
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

@pytest.mark.emulator
def test_marked():
    raise AssertionError

@pytest.mark.gpu
def test_marked_too():
    raise AssertionError
"""


def test_quick_tests_that_compile_or_emulate_fail(tmp_path: Path) -> None:
    (tmp_path / f"{OF_ONE_NAME}.py").write_text(TESTS)
    (tmp_path / "test_of_another_tier.py").write_text("raise AssertionError")
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
    assert "1 failed, 2 passed, 2 deselected, 1 error" in done.stdout, done.stdout
