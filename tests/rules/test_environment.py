"""Environment variables: their valid values, one error for others, and that all of them are documented."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import numpy as np
import pytest

import gpuconv
from gpuconv import _environment
from gpuconv.cpu import _workspace
from gpuconv.cuda.build import cache

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = {"GPUCONV_CACHE_DIR", "GPUCONV_NUM_THREADS", "GPUCONV_PACK", "GPUCONV_WORKSPACE_BYTES"}
VARIABLES |= {"GPUCONV_CHAINED_LAUNCHES", "LOCALAPPDATA", "XDG_CACHE_HOME"}


def _conv() -> None:
    gpuconv.conv(np.ones((1, 1, 4), np.float32), np.ones((1, 1, 2), np.float32))


# ---------------------------------------------------------------- which there are


def _named_in(path: Path) -> set[str]:
    """Return the strings in a file that could be names of variables, if it reads any."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    if not used & {"environ", "environb", "getenv", "_environment"}:
        return set()
    strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {text for text in strings if isinstance(text, str) and re.fullmatch("[A-Z][A-Z0-9]+(_[A-Z0-9]+)*", text)}


def test_all_that_are_read_are_documented() -> None:
    found = set().union(*map(_named_in, (ROOT / "gpuconv").rglob("*.py")))
    set_for_children = {"OPENBLAS_NUM_THREADS", "GPUCONV_JUDGE_WORKER"}  # and not read
    assert found - set_for_children == VARIABLES
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z_0-9]+)`(?:, `([A-Z_0-9]+)`)? \| ", guide, re.MULTILINE)
    assert {name for row in rows for name in row if name} == VARIABLES


def test_info_shows_those_of_gpuconv(capsys: pytest.CaptureFixture[str]) -> None:
    from gpuconv.cli.main import main

    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert all(f"({name})" in out for name in VARIABLES if name.startswith("GPUCONV_"))


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("²", "'²'"),
        ("٦٥٥٣٦", "'٦٥٥٣٦'"),
        ("6553６", "'6553６'"),
        ("1_000_000", "'1_000_000'"),
        (" 65536", "' 65536'"),
        ("+65536", "'+65536'"),
        ("-0", "'-0'"),
        ("0x10000", "'0x10000'"),
        ("\udcff", r"'\udcff'"),
        ("9223372036854775808", "'9223372036854775808'"),
        ("9" * 5000, f"'{'9' * 118}…"),
    ],
)
def test_what_is_no_number_of_bytes(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", text)
    with pytest.raises(gpuconv.ArgumentError) as caught:
        _conv()
    bounds = "an integer from 16384 to 9223372036854775807"
    assert str(caught.value) == f"GPUCONV_WORKSPACE_BYTES must be {bounds}, not {shown}"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("16384", 2**14),
        ("0000000000000000000000000065536", 2**16),
        ("0" * 5000 + "65536", 2**16),
        ("9223372036854775807", 2**63 - 1),
        ("", 2**28),
    ],
)
def test_numbers_of_bytes(text: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", text)
    assert _workspace.limit() == number
    _conv()


def test_a_number_that_is_too_small_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_COUNT", "0")
    with pytest.raises(gpuconv.ArgumentError, match=r"^SOME_COUNT must be an integer from 1 to [0-9]+, not '0'$"):
        _environment.integer("SOME_COUNT", 1)


# ---------------------------------------------------------------- folders

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has other variables")


@posix
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"GPUCONV_CACHE_DIR": "~/kernels"}, "/houses/mine/kernels"),
        ({"GPUCONV_CACHE_DIR": "~"}, "/houses/mine"),
        ({"GPUCONV_CACHE_DIR": "/a/~/b"}, "/a/~/b"),
        ({"XDG_CACHE_HOME": "~/caches"}, "/houses/mine/caches/gpuconv"),
        ({"XDG_CACHE_HOME": "~no such user/caches"}, "/houses/mine/.cache/gpuconv"),
    ],
)
def test_the_home_is_expanded(variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPUCONV_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/houses/mine", **variables}.items():
        monkeypatch.setenv(name, value)
    assert cache.folder() == Path(expected)


@posix
@pytest.mark.parametrize(("text", "home"), [("~no such user/x", "/houses/mine"), ("~/x", "~"), ("~/x", "relative")])
def test_a_home_that_is_not_known(text: str, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("GPUCONV_CACHE_DIR", text)
    with pytest.raises(gpuconv.ArgumentError) as caught:
        cache.folder()
    assert str(caught.value) == (
        f"GPUCONV_CACHE_DIR must name a folder, but the home that {text!r} begins with is not known"
    )


@posix
def test_a_current_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv("GPUCONV_CACHE_DIR", "kernels")
    with pytest.raises(gpuconv.ArgumentError, match=r"^GPUCONV_CACHE_DIR must name a folder, but 'kernels' begins at "):
        cache.folder()
