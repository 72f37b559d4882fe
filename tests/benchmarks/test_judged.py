"""The committed results of the judge: their counts agree, and they are of the present suite."""

from __future__ import annotations

import re

import pytest

from benchmarks import judged

pytest.importorskip("onnx")

from gpuconv.judge import suite
from gpuconv.judge.verdicts import FAILURES

RECORDS = judged.records()


def test_every_implementation_has_been_judged_by_one_suite() -> None:
    assert RECORDS.keys() == judged.NAMES.keys()
    assert len({record["suite"]["sha256"] for record in RECORDS.values()}) == 1


@pytest.mark.parametrize("name", list(RECORDS))
def test_every_failure_belongs_to_a_finding(name: str) -> None:
    """The number of failed tests is the same by verdicts, by rows and by findings."""
    record = RECORDS[name]
    for kind in FAILURES:
        failed = sum(verdict == kind for verdict, _ in record["tests"].values())
        assert judged.summed(record)[kind] == failed
        found = [each for each in record["findings"] if each["verdict"] == kind]
        also = sum(int(re.findall(r"\((\d+)\)$", other)[0]) for each in found for other in each["also"])
        assert sum(each["tests"] for each in found) + also == failed


@pytest.mark.parametrize("name", list(judged.COMPARED))
def test_libraries_that_promise_nothing_about_onnx_are_not_accused(name: str) -> None:
    assert not RECORDS[name]["findings"]


@pytest.mark.parametrize("name", list(judged.JUDGED))
def test_programs_are_short_and_name_the_version(name: str) -> None:
    for finding in RECORDS[name]["findings"]:
        if finding["reason"] != judged.WITHHELD:
            lines = finding["program"].splitlines()
            assert len(lines) <= 30
            assert RECORDS[name]["version"].split()[0] in lines[0]
            assert "gpuconv" not in finding["program"]


@pytest.mark.parametrize("name", list(judged.NAMES))
def test_crashes_and_memory_that_was_never_written_are_not_published(name: str) -> None:
    for finding in RECORDS[name]["findings"]:
        if finding["verdict"] == "crashes" or (name, finding["rule"]) == ("openvino", "empty inputs"):
            assert (finding["reason"], finding["program"]) == (judged.WITHHELD, "")
    for verdict, reason in RECORDS[name]["tests"].values():
        assert verdict != "crashes" or reason == judged.WITHHELD


def test_reasons_and_programs_of_crashes_and_leaks_are_taken_out() -> None:
    tests = {"a": ["wrong", "memory"], "b": ["crashes", "SIGSEGV"], "c": ["wrong", "5"], "d": ["differs", "memory"]}
    rules = {"a": ("empty inputs",), "b": ("sizes",), "c": ("bias",), "d": ("sizes", "empty inputs")}
    findings = [
        {"smallest": test, "verdict": tests[test][0], "reason": tests[test][1], "program": "print()", "tests": 1}
        for test in "abc"
    ]
    facts = {"target": "a target", "findings": findings, "tests": tests}
    shown = {"openvino": "c", "onnxruntime": "acd"}
    for name, public in shown.items():
        record = judged.published(name, facts, rules)
        assert record["tests"] == {
            test: [verdict, reason if test in public else judged.WITHHELD] for test, (verdict, reason) in tests.items()
        }
        hidden = [each for each in record["findings"] if each["smallest"] not in public]
        assert {(each["reason"], each["program"], each["tests"]) for each in hidden} == {(judged.WITHHELD, "", 1)}
        assert [each for each in record["findings"] if each["smallest"] in public] == [
            each for each in findings if each["smallest"] in public
        ]


@pytest.mark.slow
def test_the_tests_are_those_of_the_suite() -> None:
    names = {one.name for one in suite.problems(0, None)}
    for record in RECORDS.values():
        assert record["suite"]["tests"] == len(names) == judged.summed(record).total()
        assert record["tests"].keys() <= names
