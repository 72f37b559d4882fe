"""The tiers partition the tests: none is lost, and every sampled function has a test in the normal tier."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.tiers import checked, part

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest
from hypothesis import given, strategies

@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(40))
def test_sampled(number):
    pass

@pytest.mark.sampled(1000)
@pytest.mark.parametrize("number", range(2))
def test_seldom(number):
    pass

@pytest.mark.thorough
def test_thorough():
    pass

@given(strategies.integers())
def test_random(number):
    pass

def test_plain():
    pass
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., set[str]]:
    """Return the names of the tests that a command line selects."""
    (tmp_path / "test_some.py").write_text(TESTS)

    def names(*words: str) -> set[str]:
        command = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", str(ROOT / "pyproject.toml"), "--rootdir"]
        done = subprocess.run(
            [*command, tmp_path, "--collect-only", "-q", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
            capture_output=True,
            text=True,
            check=False,
        )
        return set(re.findall(r"::(\S+)$", done.stdout, re.MULTILINE))

    return names


def test_every_test_is_in_the_normal_tier_or_in_one_part_of_the_thorough_one(run: Callable[..., set[str]]) -> None:
    normal, everything = run("test_some.py"), run("test_some.py", "--thorough")
    parts = [run("test_some.py", "--thorough-part", f"{number}/2") for number in (1, 2)]
    assert {"test_random", "test_plain"} <= normal < everything
    assert len(everything) == 45
    assert 6 <= sum(name.startswith("test_sampled") for name in normal) <= 20
    assert sum(name.startswith("test_seldom") for name in normal) == 1
    assert parts[0] | parts[1] == everything - normal | {"test_random"}
    assert not parts[0] & parts[1]
    assert all(parts)


def test_who_names_a_test_gets_it(run: Callable[..., set[str]]) -> None:
    assert run("test_some.py::test_thorough") == {"test_thorough"}


def test_parts_are_counted_from_one() -> None:
    assert part(checked("2/3")) == (2, 3)
    assert part(None) is None
    for text in ("0/3", "4/3", "2", "2/3/4", "a/b", "-1/3"):
        with pytest.raises(ArgumentTypeError, match=f"^{text} is not K/N with K from 1 to N, as 2/6$"):
            checked(text)
