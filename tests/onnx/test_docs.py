"""What the documentation says of ONNX: the operators that run, and the opsets."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import onnx
import pytest

import gpuconv
from gpuconv.onnx import operators

DOCS = Path(__file__).parents[2] / "docs"
NAMED = {"Conv": gpuconv.conv, "ConvTranspose": gpuconv.conv_transpose, "MaxPool": gpuconv.max_pool}
SPECIFIED = {**NAMED, "MaxUnpool": gpuconv.max_unpool}


def test_the_page_lists_all_operators() -> None:
    text = (DOCS / "onnx-models.md").read_text()
    listed = text.split("<!-- operators: begin -->")[1].split("<!-- operators: end -->")[0]
    assert listed.replace(",", " ").rstrip(".\n").split() == sorted(operators.TABLE)


def _opsets(text: str) -> tuple[int, int]:
    """Return the first and the last opset that a text names."""
    (found,) = re.findall(r"opsets\s(\d+) to (\d+)", text)
    return int(found[0]), int(found[1])


@pytest.mark.parametrize("name", SPECIFIED)
def test_functions_name_all_opsets_that_are_as_they_compute(name: str) -> None:
    """From the one that brought the operator to the newest that is known to have left its last change alone."""
    first, last = _opsets(inspect.getdoc(SPECIFIED[name]) or "")
    since = {
        one.since_version for one in onnx.defs.get_all_schemas_with_history() if (one.domain, one.name) == ("", name)
    }
    assert first == min(since)
    assert last >= 28  # of onnx 1.23
    assert max(since) == 22  # a later one is to be read, and computed


def test_the_first_page_names_the_opsets_of_the_functions() -> None:
    assert {_opsets(inspect.getdoc(function) or "") for function in NAMED.values()} == {
        _opsets((DOCS / "index.md").read_text(encoding="utf-8"))
    }
