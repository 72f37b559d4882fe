"""What ``gpuconv judge TARGET --json`` found: the files of benchmarks/results/judged, put together by rule."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results") / "judged"
# The columns of the table, by the names of files.
NAMES = {
    "reference": "onnx.reference",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "opencv": "OpenCV",
    "tvm": "TVM",
    "tinygrad": "tinygrad",
    "torch": "PyTorch",
    "jax": "JAX",
    "scipy": "SciPy",
}
TYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8")


def records() -> dict[str, Any]:
    """Return what was found, by target, of those that have been judged."""
    paths = {name: RESULTS / f"{name}.json" for name in NAMES}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()}


def rules() -> dict[str, str]:
    """Return the rules in the order of the suite, with their status."""
    return {row["rule"]: row["status"] for record in records().values() for row in record["rules"]}


def summed(record: Any, key: str, value: str, kind: str | None = None) -> Counter[str]:
    """Add up the verdicts of a record's rows that have a rule ("rule") or a type ("type")."""
    sums: Counter[str] = Counter()
    for row in record["rules"]:
        if row[key] == value and kind in (None, row["type"]):
            sums.update({name: count for name, count in row.items() if isinstance(count, int)})
    return sums


def verdict(counts: Counter[str]) -> tuple[str, str]:
    """Say in one word what an implementation makes of a rule, and how many of the tests that it answers say so."""
    answered = counts.total() - counts["refuses"]
    for kind in ("crashes", "hangs", "wrong"):
        if counts[kind]:
            return kind, f"{counts[kind]} of {answered}"
    if not answered:
        return ("refuses" if counts["refuses"] else "", "")
    return ("differs" if counts["differs"] else "agrees", "")
