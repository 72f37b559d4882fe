"""Results of ``gpuconv judge TARGET --json --report DIR``, in benchmarks/results/judged: counts by rule and status.

``python -m benchmarks.judged NAME.json…`` stores files of the JSON that the command printed. Reasons and programs of
faults that crash a process or leak memory are withheld, as SECURITY.md says.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from gpuconv.judge.findings.report import COMBINATIONS
from gpuconv.judge.verdicts import CRASHES

RESULTS = Path(__file__).with_name("results") / "judged"
# The columns of the tables, by the names of files: those that run ONNX models, and those that promise nothing about
# ONNX, whose functions are called directly and compared only.
JUDGED = {
    "reference": "onnx.reference",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "opencv": "OpenCV",
    "tvm": "TVM",
    "tinygrad": "tinygrad",
}
COMPARED = {"torch": "PyTorch", "jax": "JAX", "scipy": "SciPy"}
NAMES = JUDGED | COMPARED
TYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8")
STATUSES = ("specified", "by the reference", "disputed", "ruled here")
WORST_FIRST = ("crashes", "hangs", "wrong", "inconsistent")
WITHHELD = "not published yet, see SECURITY.md"
LEAKS = {"openvino": "empty inputs"}  # the rule in whose tests a target returns memory that was never written


def published(name: str, facts: Any, rules: Mapping[str, Sequence[str]]) -> Any:
    """Return the record of a target without the reasons and programs that are not published.

    Parameters
    ----------
    name : str
        The target, one of NAMES.
    facts : dict
        What ``gpuconv judge --json`` printed.
    rules : mapping of str to sequence of str
        The rules that take part in each test, by its name.
    """

    def is_withheld(test: str, verdict: str) -> bool:
        return verdict == CRASHES or LEAKS.get(name) in rules[test]

    withheld = {"reason": WITHHELD, "program": ""}
    return {
        **facts,
        "findings": [
            {**each, **(withheld if is_withheld(each["smallest"], each["verdict"]) else {})}
            for each in facts["findings"]
        ],
        "tests": {
            test: [verdict, WITHHELD if is_withheld(test, verdict) else reason]
            for test, (verdict, reason) in facts["tests"].items()
        },
    }


def store(printed: Sequence[Path]) -> None:
    """Store what ``gpuconv judge NAME --json`` printed into files NAME.json, all of one suite."""
    from gpuconv.judge import combinations, suite

    facts = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in printed}
    ((seed, sweep),) = {(each["suite"]["seed"], each["suite"]["sweep"]) for each in facts.values()}
    rulings = {one.name: combinations.of(one) for one in suite.problems(seed, sweep)}
    rules = {test: ruling.parts or (ruling.name,) for test, ruling in rulings.items()}
    for name, each in facts.items():
        machine.write(RESULTS / f"{name}.json", published(name, each, rules))


def records() -> dict[str, Any]:
    """Return what was found, by target, of those that have been judged."""
    paths = {name: RESULTS / f"{name}.json" for name in NAMES}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()}


def rules() -> list[tuple[str, str]]:
    """Return the rows of float32, each a rule and a status: those that the specification states first."""
    rows = (one for record in records().values() for one in record["rules"] if "float32" in one)
    found = dict.fromkeys((one["rule"], one["status"]) for one in rows)
    return sorted(found, key=lambda pair: (STATUSES.index(pair[1]), pair[0] == COMBINATIONS))


def summed(record: Any, rule: str | None = None, status: str | None = None, kind: str | None = None) -> Counter[str]:
    """Add up the verdicts of a record: of one rule, of rules of one status, or of tests of one type if given."""
    sums: Counter[str] = Counter()
    for one in record["rules"]:
        if rule in (None, one["rule"]) and status in (None, one["status"]):
            for name in TYPES:
                if kind in (None, name):
                    sums.update(one.get(name, {}))
    return sums


def verdict(counts: Counter[str]) -> tuple[str, str]:
    """Say in one word what an implementation makes of a rule, and how many of the tests that it answers say so."""
    answered = counts.total() - counts["refuses"]
    for kind in WORST_FIRST:
        if counts[kind]:
            return kind, f"{counts[kind]} of {answered}"
    if not answered:
        return ("refuses" if counts["refuses"] else "", "")
    return ("differs" if counts["differs"] else "agrees", "")


if __name__ == "__main__":
    store([Path(name) for name in sys.argv[1:]])
