"""The list of operators in the documentation is that of the table."""

from __future__ import annotations

from pathlib import Path

from gpuconv.onnx import operators

PAGE = Path(__file__).parent.parent / "docs" / "onnx-models.md"


def test_the_page_lists_all_operators() -> None:
    listed = PAGE.read_text().split("<!-- operators: begin -->")[1].split("<!-- operators: end -->")[0]
    assert listed.replace(",", " ").rstrip(".\n").split() == sorted(operators.TABLE)
