"""The documentation's statements about ONNX: the operators that run, and the opsets."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path
from typing import Any

import onnx
import pytest

import gpuconv
from gpuconv.onnx import operators

DOCS = Path(__file__).parents[2] / "docs"
NAMED = {
    "Conv": gpuconv.conv,
    "ConvTranspose": gpuconv.conv_transpose,
    "MaxPool": gpuconv.max_pool,
    "AveragePool": gpuconv.average_pool,
    "GlobalAveragePool": gpuconv.global_average_pool,
}
SPECIFIED = {**NAMED, "MaxUnpool": gpuconv.max_unpool}


def test_the_table_of_operators_is_as_made() -> None:
    tool: dict[str, Any] = runpy.run_path(str(DOCS / "onnx_operators.py"))
    written = (DOCS / "onnx-operators.md").read_text(encoding="utf-8")
    if f"opset {tool['OPSET']}," not in written:
        pytest.skip(f"the table is of another opset than onnx {onnx.__version__}'s {tool['OPSET']}")
    assert written == tool["page"](), "make it anew: python docs/onnx_operators.py"
    made = {row[0].strip("`"): row[2] for row in tool["rows"]()}
    classical = {f"ai.onnx.ml.{name}" for name in operators.OTHERS["ai.onnx.ml"]}
    ours = {*operators.TABLE, *operators.CONTROL, *NAMED, *classical}
    assert {name for name, who in made.items() if who == "gpuconv"} == ours
    assert made["Sinh"] == "evaluator"  # as in the tests of devices
    assert made["MaxRoiPool"] == "—"


def _opsets(text: str) -> tuple[int, int]:
    """Return the first and the last opset in a text."""
    (found,) = re.findall(r"opsets\s(\d+) to (\d+)", text)
    return int(found[0]), int(found[1])


@pytest.mark.parametrize("name", SPECIFIED)
def test_functions_name_all_opsets_that_are_as_they_compute(name: str) -> None:
    """From the opset that introduced the operator to the newest known one that does not change it."""
    first, last = _opsets(inspect.getdoc(SPECIFIED[name]) or "")
    since = {
        one.since_version for one in onnx.defs.get_all_schemas_with_history() if (one.domain, one.name) == ("", name)
    }
    assert first == min(since)
    assert last >= 28  # of onnx 1.23
    assert max(since) == 22  # a later opset must be read and implemented


def test_the_first_page_names_the_opsets_of_the_functions() -> None:
    assert {_opsets(inspect.getdoc(function) or "") for function in NAMED.values()} == {
        _opsets((DOCS / "index.md").read_text(encoding="utf-8"))
    }
