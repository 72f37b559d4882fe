"""Rows that continue after one that hangs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.progress import Rows, read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def test_what_has_ended_is_not_done_again(path: Path) -> None:
    rows = Rows(path, "sweep")
    for name in rows.left(["a", "b", "c"]):
        rows.end(name, seconds=1.5)
        if name == "b":
            break
    assert list(Rows(path, "sweep").left(["a", "b", "c"])) == ["c"]
    assert Rows(path, "sweep").ended["b"] == {"step": "sweep", "row": "b", "status": "passed", "seconds": 1.5}
    assert list(Rows(path, "another step").left(["a"])) == ["a"]


def test_a_row_that_a_process_was_lost_in_is_open_until_somebody_ends_it(path: Path) -> None:
    worker = Rows(path, "smoke")
    taken = worker.left(["a", "b"])
    worker.end(next(taken))
    assert next(taken) == "b"
    watcher = Rows(path, "smoke")
    assert watcher.open() == ["b"]
    watcher.end("b", "hung", detail="no line for 25 s")
    assert watcher.open() == []
    assert list(Rows(path, "smoke").left(["a", "b"])) == []


def test_a_row_that_was_cut_off_is_tried_twice(path: Path) -> None:
    for _ in range(2):
        assert next(Rows(path, "smoke").left(["a", "b"])) == "a"
    last = Rows(path, "smoke")
    assert list(last.left(["a", "b"])) == ["b"]
    assert last.ended["a"]["status"] == "hung"


def test_a_line_that_was_cut_off_counts_for_nothing(path: Path) -> None:
    rows = Rows(path, "smoke")
    for name in rows.left(["a"]):
        rows.end(name)
    with path.open("a") as file:
        file.write('{"step":"smoke","row":"b","sta')
    assert [line["status"] for line in read(path)] == ["begun", "passed"]
    again = Rows(path, "smoke")
    assert list(again.left(["a", "b"])) == ["b"]
    assert json.loads(path.read_text().splitlines()[-1]) == {"step": "smoke", "row": "b", "status": "begun"}


def test_a_file_that_is_absent_has_no_rows(path: Path) -> None:
    assert read(path) == []
    assert Rows(path, "smoke").open() == []
