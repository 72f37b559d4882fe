"""Notebooks, pictures and the list of functions match their sources."""

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


def test_every_notebook_has_its_text_and_its_thumbnail() -> None:
    names = [path.stem for path in TEXTS]
    assert len(names) >= 9
    assert names == sorted(path.stem for path in (ROOT / "examples").glob("*.ipynb"))
    assert names == sorted(path.stem for path in (PICTURES / "notebooks").glob("*.png"))
    assert max(path.stat().st_size for path in (PICTURES / "notebooks").glob("*.png")) <= 30_000


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_notebooks_are_their_texts_executed(path: Path) -> None:
    cells = cells_of_notebook(path.with_suffix(".ipynb"))
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    anew = f"make it anew: python docs/notebooks.py {path.stem}"
    assert found == list(cells_of_text(path.read_text(encoding="utf-8"))), anew
    assert unlike_executed(cells) == "", anew


def test_the_site_begins_with_every_notebook() -> None:
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for path in TEXTS:
        assert f"\n:img-top: pictures/notebooks/{path.stem}.png\n" in page
        assert f"\n:link: examples/{path.stem}\n" in page  # its card
        assert f"\nexamples/{path.stem}\n" in page  # its entry in the list of pages


def unlike_executed(cells: list[Any]) -> str:
    """Return in what cells differ from those of a notebook that was executed once, from first to last, and passed."""
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    if [cell["execution_count"] for cell in code] != list(range(1, len(code) + 1)):
        return "cells that were not executed in order"
    outputs = [output for cell in code for output in cell["outputs"]]
    if not {output["output_type"] for output in outputs} <= {"stream", "display_data"}:
        return "an output that is neither text nor a picture, as an error"
    if any(output.get("name", "stdout") != "stdout" for output in outputs):
        return "a warning"
    if not any("image/png" in output.get("data", {}) for output in code[-1]["outputs"]):
        return "no picture at the end"
    if not any(output["output_type"] == "stream" for output in outputs):
        return "no text"
    return ""


def executed_cells() -> list[Any]:
    text = {"output_type": "stream", "name": "stdout", "text": ["1"]}
    picture = {"output_type": "display_data", "data": {"image/png": ""}}
    cell = {"cell_type": "code", "source": ["pass"]}
    return [
        {"cell_type": "markdown", "source": ["# Title"]},
        cell | {"execution_count": 1, "outputs": [text]},
        cell | {"execution_count": 2, "outputs": [picture]},
    ]


@pytest.mark.parametrize(
    ("number", "changed", "fault"),
    [
        (1, {"execution_count": 2}, "in order"),
        (2, {"execution_count": None, "outputs": []}, "in order"),
        (2, {"outputs": []}, "no picture"),
        (1, {"outputs": []}, "no text"),
        (1, {"outputs": [{"output_type": "error", "ename": "ValueError"}]}, "an error"),
        (1, {"outputs": [{"output_type": "stream", "name": "stderr", "text": [""]}]}, "a warning"),
    ],
)
def test_notebooks_without_outputs_or_with_errors_are_noticed(number: int, changed: Any, fault: str) -> None:
    cells = executed_cells()
    assert unlike_executed(cells) == ""
    cells[number] |= changed
    assert fault in unlike_executed(cells)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_notebooks_are_small_and_say_nothing_of_who_made_them(path: Path) -> None:
    made = path.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert len(made.encode()) <= 300_000
    notebook = json.loads(made)
    assert sorted(notebook["metadata"]) == ["kernelspec", "language_info"]
    assert "version" not in notebook["metadata"]["language_info"]
    assert not any(cell["metadata"] for cell in notebook["cells"])
    texts = ["".join(output.get("text", ())) for cell in notebook["cells"] for output in cell.get("outputs", ())]
    assert not re.search(r"(?<![\w.])/\w+/|[A-Z]:\\\\| at 0x", "".join(texts))  # a path, or an address


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_notebooks_explain_check_and_end_in_a_picture(path: Path) -> None:
    cells = list(cells_of_text(path.read_text(encoding="utf-8")))
    kind, first = cells[0]
    assert kind == "markdown"
    assert first.startswith("# ")
    assert "`pip install -e " in first
    code = [source for kind, source in cells if kind == "code"]
    assert sum(source.count("assert ") for source in code) >= 3
    assert code[-1].endswith("plt.show()")


def test_pictures_are_as_drawn() -> None:
    drawing = runpy.run_path(str(PICTURES / "draw.py"))
    drawn = {f"{picture.__name__}.svg": drawing["svg"](picture) for picture in drawing["PICTURES"]}
    kept = {path.name: path.read_text(encoding="utf-8") for path in PICTURES.glob("*.svg")}
    assert kept == drawn, "draw them anew: python docs/pictures/draw.py"
    names = ("architecture.md", "kernels.md", "judge.md")
    pages = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in names)
    shown = re.findall(r"\(pictures/(\w+\.svg)\)", pages)
    assert sorted(shown) == sorted(drawn)


def code_of_the_site() -> Iterator[tuple[str, str]]:
    """Yield every piece of Python that the site shows, with the name of its page."""
    for path in sorted((ROOT / "docs").glob("*.md")):
        page = path.read_text(encoding="utf-8")
        for block in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
            yield path.name, block
    for path in TEXTS:
        cells = cells_of_text(path.read_text(encoding="utf-8"))
        yield from ((path.name, source) for kind, source in cells if kind == "code")


def test_code_fits_into_the_site() -> None:
    pieces = list(code_of_the_site())
    assert len(pieces) > 100
    for name, piece in pieces:
        for line in piece.splitlines():
            assert len(line) <= 88 or line.startswith("# "), f"{name}: {line}"  # printed output is not wrapped


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
    listed = re.findall(r"^\.\. auto(?:function|class|exception):: (\w+)(?:\(\))?$", page, re.MULTILINE)
    assert sorted(listed) == sorted(set(gpuconv.__all__) - {"__version__"})


def test_plans_and_spaces_have_the_attributes_that_the_page_lists() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").partition("py:class:: Plan")[2].partition("\n## ")[0]
    attributes = re.findall(r"^   \.\. py:attribute:: (\w+)$", page, re.MULTILINE)
    assert len(attributes) >= 4
    plan: Any = gpuconv.explain("conv", (1, 64, 10, 10), (64, 64, 3, 3))  # packs its weights
    assert [name for name in attributes if not hasattr(plan, name)] == []
    spaces = page.partition("attribute:: spaces")[2].partition("py:attribute")[0]
    assert plan.spaces
    assert [name for name in re.findall(r"``(\w+)``", spaces) if not hasattr(plan.spaces[0], name)] == []


def test_the_readme_has_the_measurements_of_the_cpu() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    classes = json.loads((ROOT / "benchmarks" / "results" / "cpu.json").read_text(encoding="utf-8"))["classes"]
    for name, one in classes.items():
        assert f"\n| {name} | {one['layers']} | {one['mean']:.2f} | {one['min']:.2f}" in readme, name


def test_paths_that_contributors_are_sent_to_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:\.?[a-z_]+/)+[\w./]*)`|python ((?:\w+/)+\w+\.py)|-m pytest ((?:\w+/)+\w+\.py)", text))
    paths = {path for found in named for path in found if path}
    assert len(paths) > 20
    assert not [path for path in sorted(paths) if not (ROOT / path).exists()]
    families = {"conv", "pool"}
    assert families <= set(re.findall(r"gpuconv/cuda/(\w+)/families\.py", text))
    for name in families:
        source = (ROOT / "gpuconv" / "cuda" / name / "families.py").read_text(encoding="utf-8")
        assert "\nFAMILIES: tuple[Family, ...] = (" in source


def test_the_page_on_architecture_names_what_is_there() -> None:
    """Every path exists, and every other name is defined in a file that its paragraph or item names."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    spans = [re.findall(r"`([^`]+)`", block) for block in re.split(r"\n(?=\n|\d\. |- |\|)", page)]
    picture = re.findall(r"(?<=>)[^<>]+(?=</text>)", (PICTURES / "architecture.svg").read_text(encoding="utf-8"))
    paths = {word for words in picture for word in words.split(" · ") if re.match(r"(gpuconv|kernels_cu)\b", word)}
    paths |= {span for block in spans for span in block if "/" in span or span.endswith(".md")}
    assert len(paths) > 35
    assert not [path for path in sorted(paths) if not (ROOT / path).exists()]
    names = 0
    for block in spans:
        files = [ROOT / span for span in block if span.endswith(".py")]
        code = "\n".join(path.read_text(encoding="utf-8") for path in files)
        for name in block:
            if name.isidentifier():
                assert re.search(rf"^(?:(?:def|class) {name}\b|{name}\b.* = )", code, re.MULTILINE), name
                names += 1
    assert names >= 8


def test_the_page_on_architecture_has_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("\n## Rooms\n")[2].partition("\n## ")[0]
    package = ROOT / "gpuconv"
    rooms = [path.parent for folder in (package, package / "cuda") for path in folder.glob("*/__init__.py")]
    named = [f"`{room.relative_to(ROOT)}/`" for room in rooms if room.name != "cuda"]
    assert len(named) >= 14
    assert not [room for room in named if room not in table]


def test_the_citation_has_the_package_s_name_version_and_license() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"\nversion: {gpuconv.__version__}\n" in citation
    for pattern in (r'^license = "(.+)"$', r'^description = "(.+)"$', r'^authors = \[\{ name = "(.+)" \}\]$'):
        found = re.search(pattern, project, re.MULTILINE)
        assert found is not None
        assert found[1] in citation


def test_a_report_of_a_bug_asks_for_what_is_needed() -> None:
    form = (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8")
    blocks = re.split(r"^  - type: ", form, flags=re.MULTILINE)[1:]
    asked = {re.search(r"^    id: (\w+)$", block, re.MULTILINE)[1]: "required: true" in block for block in blocks}
    assert {"code", "info"} <= {name for name, required in asked.items() if required}
    assert "`gpuconv info`" in form


# ---------------------------------------------------------------- versions and sizes, as they were recorded


def records() -> dict[str, Any]:
    paths = (ROOT / "benchmarks" / "results").glob("*.json")
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


# A size in the README may differ by this fraction from the record's: gpuconv's own wheel grows with every change.
OFF = {"wheels_mb": 0.05, "gpuconv_mb": 0.2, "installed_mb": 0.05}


def test_the_readme_has_the_sizes_that_were_measured() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("| extra | what it brings |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
    recorded = records()["sizes"]["rows"]
    assert [row[0] for row in rows] == [row["title"] for row in recorded]
    for (title, _, wheels, installed), row in zip(rows, recorded, strict=True):
        numbers = [float(number) for number in re.findall(r"[\d.]+(?= MB)", f"{wheels} {installed}")]
        keys = [key for key in OFF if key in row]
        assert len(numbers) == len(keys), title
        for key, number in zip(keys, numbers, strict=True):
            assert number == pytest.approx(row[key], rel=OFF[key]), f"{title}: {key}"


NAMED = re.compile(r"\b(ONNX Runtime|PyTorch|onnx|NumPy) (\d+\.\d+(?:\.\d+)?)\b")
PACKAGES = {"ONNX Runtime": "onnxruntime", "PyTorch": "torch", "onnx": "onnx", "NumPy": "numpy"}


def test_versions_of_others_are_those_of_the_records() -> None:
    """On all pages; in docs/semantics.md, except for the comparison, which has a date of its own."""
    known = set(_versions(records()))
    found = []
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if page.name == "semantics.md":
            dated = re.search(r"^The comparison is of (?:\w+) 20\d\d.*?\n\n", text, re.DOTALL | re.MULTILINE)
            assert dated is not None
            assert len(NAMED.findall(dated[0].replace("'s", ""))) == 3
            text = text.replace(dated[0], "")
        found += [(PACKAGES[name], version) for name, version in NAMED.findall(text)]
    assert found
    assert not set(found) - known


def _versions(record: Any) -> Iterator[tuple[str, str]]:
    """Yield every package and version anywhere in a record."""
    for key, value in record.items() if isinstance(record, dict) else ():
        if key in PACKAGES.values() and isinstance(value, str):
            yield key, value
        yield from _versions(value)
    for value in record if isinstance(record, list) else ():
        yield from _versions(value)


def test_terms_of_the_glossary_are_used_by_the_code() -> None:
    page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| (.+?) \| .+ \|$", page.partition("## Glossary")[2].partition("\n## ")[0], re.MULTILINE)[1:]
    assert len(terms) >= 50
    assert terms == sorted(terms, key=str.lower)
    files = [*(ROOT / "kernels_cu").rglob("*.cu*"), *(ROOT / "gpuconv" / "cuda").rglob("*.py")]
    code = " ".join(" ".join(path.read_text(encoding="utf-8") for path in files).replace("//", " ").split()).lower()
    assert [term for term in terms if not re.search(rf"\b{re.escape(term.lower())}", code)] == []
