"""The committed results of the judge, the programs of their findings, and that all are of the suite that is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import judged
from gpuconv.judge import suite
from gpuconv.judge.verdicts import FAILURES

FINDINGS = Path(__file__).resolve().parents[2] / "findings"
RECORDS = judged.records()


@pytest.mark.parametrize("name", list(RECORDS))
def test_every_finding_has_a_program_and_every_program_a_finding(name: str) -> None:
    found = RECORDS[name]["findings"]
    assert {each["file"] for each in found} == {path.name for path in (FINDINGS / name).glob("*")}
    for each in found:
        text = (FINDINGS / name / each["file"]).read_text(encoding="utf-8")
        about = text.split('"""')[1]
        assert about.startswith(f"{RECORDS[name]['version']}: ")
        assert f": {each['verdict']} ({each['rule']})" in about.splitlines()[0]
        assert f"Test {each['smallest']}." in about
        assert "gpuconv" not in text.replace(about, "")
        assert RECORDS[name]["tests"][each["smallest"]][0] == each["verdict"]


@pytest.mark.parametrize("name", list(RECORDS))
def test_every_failure_belongs_to_a_finding(name: str) -> None:
    """As many tests as failed, by the verdicts of each, of the rows and of the findings."""
    record = RECORDS[name]
    for kind in FAILURES:
        failed = [test for test, (verdict, _) in record["tests"].items() if verdict == kind]
        assert sum(row.get(kind, 0) for row in record["rules"]) == len(failed)
        assert sum(each["tests"] for each in record["findings"] if each["verdict"] == kind) == len(failed)


def test_no_program_is_of_an_implementation_without_results() -> None:
    folders = {path.name for path in FINDINGS.iterdir() if path.is_dir()}
    assert folders == {name for name, record in RECORDS.items() if record["findings"]}


def test_all_results_are_of_one_suite_and_of_the_tests_that_it_has_today() -> None:
    (about,) = {tuple(record["suite"].items()) for record in RECORDS.values()}
    names = [one.name for one in suite.problems(0, None)]
    assert dict(about)["tests"] == len(names)
    for record in RECORDS.values():
        assert record["tests"].keys() <= set(names)
        assert sum(_count(row) for row in record["rules"]) == len(names)


def _count(row: dict[str, Any]) -> int:
    return sum(value for value in row.values() if isinstance(value, int))
