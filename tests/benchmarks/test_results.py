"""The layout of the files in benchmarks/results, which `machine.write` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import machine

RESULTS = Path(machine.__file__).with_name("results")
FILES = sorted(RESULTS.rglob("*.json"))


def test_results_have_a_line_for_each_row(tmp_path: Path) -> None:
    result = {
        "command": "one \u00d7 two",
        "machine": {"cores": 2, "python": "3.11"},
        "means": [1.5, float("inf")],
        "rows": [{"a": [1, 2]}, {"b": {}}],
        "by name": {"x": [1], "y": {"z": (2,)}},
        "mixed": [[1], 2],
        "nothing": [],
    }
    path = tmp_path / "result.json"
    machine.write(path, result)
    assert path.read_bytes().decode("ascii").splitlines() == [
        "{",
        '"command": "one \\u00d7 two",',
        '"machine": {"cores": 2, "python": "3.11"},',
        '"means": [1.5, null],',
        '"rows": [',
        '{"a": [1, 2]},',
        '{"b": {}}',
        "],",
        '"by name": {',
        '"x": [1],',
        '"y": {"z": [2]}',
        "},",
        '"mixed": [[1], 2],',
        '"nothing": []',
        "}",
    ]
    machine.write(path, {})
    assert path.read_text(encoding="utf-8") == "{}\n"


def test_nothing_is_written_where_no_file_is_asked_for() -> None:
    machine.write(None, {"rows": []})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(RESULTS).as_posix())
def test_a_file_is_what_the_writer_makes_of_its_contents(path: Path, tmp_path: Path) -> None:
    written = tmp_path / path.name
    machine.write(written, json.loads(path.read_text(encoding="utf-8")))
    assert written.read_bytes() == path.read_bytes()


def test_there_are_files_of_every_kind() -> None:
    assert len(FILES) > 15
    assert any(path.parent.name == "judged" for path in FILES)
