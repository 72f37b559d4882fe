"""Summarise stored results of ``gpuconv judge TARGET --json --report DIR``: counts by rule and status.

The files are in benchmarks/results/judged, one per judged implementation.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from gpuconv.judge.findings.report import COMBINATIONS

RESULTS = Path(__file__).with_name("results") / "judged"
# Columns of the tables by file name. JUDGED run ONNX models. COMPARED promise nothing about ONNX: their functions are
# called directly, and differences are reported without a verdict.
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


def records() -> dict[str, Any]:
    """Return the stored results by target, for the targets that have any."""
    paths = {name: RESULTS / f"{name}.json" for name in NAMES}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()}


def rules() -> list[tuple[str, str]]:
    """Return the (rule, status) pairs that have float32 results, those stated by the specification first."""
    rows = (one for record in records().values() for one in record["rules"] if "float32" in one)
    found = dict.fromkeys((one["rule"], one["status"]) for one in rows)
    return sorted(found, key=lambda pair: (STATUSES.index(pair[1]), pair[0] == COMBINATIONS))


def summed(record: Any, rule: str | None = None, status: str | None = None, kind: str | None = None) -> Counter[str]:
    """Sum the verdict counts of a record, optionally of one rule, one status or one dtype (``kind``) only."""
    sums: Counter[str] = Counter()
    for one in record["rules"]:
        if rule in (None, one["rule"]) and status in (None, one["status"]):
            for name in TYPES:
                if kind in (None, name):
                    sums.update(one.get(name, {}))
    return sums


def verdict(counts: Counter[str]) -> tuple[str, str]:
    """Return the worst verdict of a rule, and "n of m": how many of the m answered tests have it."""
    answered = counts.total() - counts["refuses"]
    for kind in WORST_FIRST:
        if counts[kind]:
            return kind, f"{counts[kind]} of {answered}"
    if not answered:
        return ("refuses" if counts["refuses"] else "", "")
    return ("differs" if counts["differs"] else "agrees", "")
