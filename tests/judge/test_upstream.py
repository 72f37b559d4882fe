"""The reports for other implementations quote the specification verbatim, and their programs do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "upstream.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^## (.*?)\n.*?```py\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
NAMES = {name.lower(): name for name in ("MaxPool", "AveragePool", "ConvTranspose", "Conv")}
NEEDS = {"import onnxruntime": "onnxruntime", "import cv2": "cv2"}


def words(text: str) -> str:
    return " ".join(text.split()).lower()


def test_quotations_are_in_the_specification() -> None:
    told = words(re.sub(r"^> ?", "", PAGE, flags=re.MULTILINE))
    found = re.findall(r'((?:\w+-22(?:, | and )?)+) says? ?[^"]*((?:"[^"]+"(?:, and )?)+)', told)
    assert len(found) == 4
    for operators, quotations in found:
        for operator in re.findall(r"(\w+)-22", operators):
            schema = onnx.defs.get_schema(NAMES[operator], 22)
            parts = (*schema.attributes.values(), *schema.inputs, *schema.outputs)
            text = words(" ".join([schema.doc, *(each.description for each in parts)]))
            for quotation in re.findall(r'"([^"]+)"', quotations):
                assert quotation in text, f"{operator}: {quotation}"


@pytest.mark.slow
@pytest.mark.parametrize(("title", "program"), PROGRAMS, ids=[title for title, _ in PROGRAMS])
def test_programs_print_what_they_say(title: str, program: str) -> None:
    for line, package in NEEDS.items():
        if line in program:
            pytest.importorskip(package)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    said = " ".join(re.findall(r"# (.*)", program))
    for line in done.stdout.splitlines():
        assert line.removeprefix("['Y'] ").removeprefix("['Y', 'Indices'] ") in said
    assert len(program.splitlines()) <= 30


def test_there_are_five() -> None:
    assert len(PROGRAMS) == 5
