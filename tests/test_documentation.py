"""Notebooks, pictures and the list of functions, in step with what they are made of; building the site runs them."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuconv

ROOT = Path(__file__).resolve().parent.parent
TEXTS = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.read_text("utf-8").startswith("# ---\n")]
PICTURES = ROOT / "docs" / "pictures"


def cells_of_text(text: str) -> Iterator[tuple[str, str]]:
    """Yield kind and source of each cell of a notebook in jupytext's percent format."""
    for part in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        if head.strip() == "[markdown]":
            yield "markdown", re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip("\n")
        else:
            assert not head
            yield "code", body.strip("\n")


def cells_of_notebook(path: Path) -> list[Any]:
    cells: list[Any] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def test_every_notebook_has_its_text() -> None:
    assert len(TEXTS) >= 9
    assert [path.stem for path in TEXTS] == sorted(path.stem for path in (ROOT / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_notebooks_are_their_texts_without_outputs(path: Path) -> None:
    cells = cells_of_notebook(path.with_suffix(".ipynb"))
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    assert found == list(cells_of_text(path.read_text(encoding="utf-8"))), (
        "make it anew: jupytext --update --to ipynb examples/*.py"
    )
    for cell in cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_notebooks_explain_check_and_end_in_a_picture(path: Path) -> None:
    cells = list(cells_of_text(path.read_text(encoding="utf-8")))
    kind, first = cells[0]
    assert kind == "markdown"
    assert first.startswith("# ")
    code = [source for kind, source in cells if kind == "code"]
    assert sum(source.count("assert ") for source in code) >= 3
    assert code[-1].endswith("plt.show()")


def test_pictures_are_as_drawn() -> None:
    drawing = runpy.run_path(str(PICTURES / "draw.py"))
    drawn = {f"{picture.__name__}.svg": drawing["svg"](picture) for picture in drawing["PICTURES"]}
    kept = {path.name: path.read_text(encoding="utf-8") for path in PICTURES.glob("*.svg")}
    assert kept == drawn, "draw them anew: python docs/pictures/draw.py"
    shown = re.findall(r"\(pictures/(\w+\.svg)\)", (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(drawn)


def test_links_lead_to_files_and_headings_that_are_there() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    links = [
        (page, *target)
        for page in pages
        for target in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8"))
    ]
    assert len(links) > 30
    for page, path, heading in links:
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), f"{page.name}: {path}"
        assert (ROOT / "docs" / "examples") not in target.parents  # copies, made with the site
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {found.lower().replace(" ", "-") for found in headings}, f"{page.name}: {path}#{heading}"


def test_every_public_name_is_on_the_page_of_functions() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\. auto(?:function|class|exception):: (\w+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted(set(gpuconv.__all__) - {"__version__"})


def test_the_readme_has_the_measurements_of_the_cpu() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    classes = json.loads((ROOT / "benchmarks" / "results" / "cpu.json").read_text(encoding="utf-8"))["classes"]
    for name, one in classes.items():
        assert f"\n| {name} | {one['layers']} | {one['mean']:.2f} | {one['min']:.2f}" in readme, name
