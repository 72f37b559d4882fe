"""Paths that the documents, docstrings and comments name are there, and so are modules."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.selection import PYTHON

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "README.md",
    ROOT / "emulated_cuda" / "README.md",
    ROOT / "tools" / "mutation" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
FOLDERS = ("gpuconv", "emulated_cuda", "tests", "tools", "benchmarks", "docs", "examples")
PATH = re.compile(
    r"(?<![\w/.:*-])(?:gpuconv|kernels_cu|emulated_cuda|tests|tools|benchmarks|docs|examples|\.ci)/[\w./*…-]*\w\b/?[*…]?"
)
KERNEL = re.compile(r"(?<![\w/.*{}-])(?:[a-z]\w*/)*[a-z]\w*\.cuh?\b")
TEST = re.compile(r"(?<![\w/.*-])(?:[a-z_]+/)*test_\w+\.py\b")
MODULE = re.compile(r"(?<![\w./-])gpuconv(?:\.(?:_\w+|rules|cuda|cli|cpu))(?:\.\w+)*")


def _prose(path: Path) -> str:
    """Return a file's prose: a whole page, the docstrings and comments of Python, the comments of CUDA."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return "\n".join(_of_python(text))
    return text if path.suffix == ".md" else "\n".join(re.findall(r"//.*", text))


def _of_python(text: str) -> Iterator[str]:
    """Yield the comments and the docstrings: strings in three quotes after a colon, or before everything else."""
    for found in PYTHON.finditer(text):
        before = text[: found.start()].rstrip()[-1:]
        if found[1] is None or (before in ("", ":") and found[1].startswith('"""')):
            yield found[0]


def _files(*folders: str, suffix: str = ".py") -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob(f"*{suffix}"))]


@cache
def said() -> dict[Path, str]:
    """Return the prose of each file, by its path from the checkout's root."""
    paths = (*PAGES, *_files(*FOLDERS), *_files("kernels_cu", suffix=".cu*"))
    return {path.relative_to(ROOT): _prose(path) for path in paths}


def test_paths_are_there() -> None:
    found = {(file, path) for file, text in said().items() for path in PATH.findall(text)}
    named = {(file, path) for file, path in found if not re.search(r"[*…]|docs/_build", path)}
    assert len(named) > 50
    there = {
        path for _, path in named if any((ROOT / f"{path}{end}").exists() for end in ("", ".ipynb"))
    }  # links of pages
    assert not sorted(f"{file}: {path}" for file, path in named if path not in there)


def test_kernels_are_there() -> None:
    """A kernel's file is named relative to `kernels_cu`, its folder that corresponds to the text's, or the checkout."""
    folder = ROOT / "kernels_cu"
    missing = []
    for file, text in said().items():
        if file.parts[0] not in ("gpuconv", "kernels_cu", "docs"):
            continue
        room = Path(*(file.parent.parts[2:] if file.parts[0] == "gpuconv" else file.parent.parts[1:]))
        places = (folder, folder / room, ROOT)
        names = [name for name in KERNEL.findall(text) if not any((place / name).is_file() for place in places)]
        missing += [f"{file}: {name}" for name in names]
    assert not missing


def test_tests_are_there() -> None:
    named = {(file, path) for file, text in said().items() for path in TEST.findall(text)}
    assert not sorted(
        f"{file}: {path}" for file, path in named if not (ROOT / "tests" / path.removeprefix("tests/")).is_file()
    )


def test_modules_are_there() -> None:
    named = {name for text in said().values() for name in MODULE.findall(text)}
    assert not sorted(name for name in named if not _is_there(name))


def _is_there(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part, None)  # type: ignore[assignment]
        return found is not None
    return False


@pytest.mark.parametrize("pattern", [PATH, KERNEL, TEST, MODULE], ids=["path", "kernel", "test", "module"])
def test_a_name_that_moved_would_be_seen(pattern: re.Pattern[str]) -> None:
    text = "`tests/nowhere.py`, (``gemm/none.cuh``), test_none.py and gpuconv._none.parse"
    assert pattern.findall(text)
