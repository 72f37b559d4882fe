"""How Sphinx makes the site: ``sphinx-build -W docs docs/_build/html``.

Pages are the .md files beside this one; the notebooks of examples/ are copied here and shown as they are kept, with
their outputs; tables of measurements come from benchmarks/results (tables.py).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
CHECKOUT = DOCS.parent
sys.path[:0] = [str(CHECKOUT), str(DOCS)]

from sphinx.application import Sphinx  # noqa: E402

import gpuconv  # noqa: E402

project = "gpuconv"
project_copyright = "The gpuconv authors"
author = "The gpuconv authors"
release = version = gpuconv.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "tables",
]
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [
    ("py:class", ".*"),  # types in docstrings are words for people: "sequence of int"
    ("py:mod", r"gpuconv\.onnx\..*"),  # not every part of it has a page
]

autosummary_generate = False  # tables of what has its place on the page
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = True
napoleon_google_docstring = False
napoleon_use_ivar = True
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

nb_execution_mode = "off"  # the outputs are in the notebooks; notebooks.py makes them

copybutton_exclude = ".linenos, .gp, .go"  # prompts and outputs of examples in docstrings

html_theme = "furo"
html_title = f"gpuconv {version}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(DOCS / "search_scorer.js")

# Sphinx reads what is below its own folder; in the checkout the pages' links lead to the notebooks themselves.
shutil.rmtree(DOCS / "examples", ignore_errors=True)
(DOCS / "examples").mkdir()
for notebook in (CHECKOUT / "examples").glob("*.ipynb"):
    shutil.copy(notebook, DOCS / "examples")


def lead_to_copies(app: Sphinx, page: str, source: list[str]) -> None:
    """Let a page's links to notebooks lead to those that are copied here."""
    source[0] = source[0].replace("](../examples/", "](examples/")


def setup(app: Sphinx) -> None:
    """Have pages changed before they are parsed."""
    app.connect("source-read", lead_to_copies)
