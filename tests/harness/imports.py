"""Which modules of gpuconv import which, as their source says."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import gpuconv

PACKAGE = Path(gpuconv.__file__).parent


@cache
def imports() -> dict[str, set[str]]:
    """Every module of the package with those that it imports, wherever it does."""
    files = {name_of(path): path for path in PACKAGE.rglob("*.py")}
    return {name: _imported(path, set(files)) - {name} for name, path in files.items()}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def _imported(path: Path, modules: set[str]) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    found = [(node.module or "", alias.name) for node in nodes for alias in node.names]
    ours = [
        (module.removeprefix("gpuconv").lstrip("."), name) for module, name in found if module.startswith("gpuconv")
    ]
    full = [(module, f"{module}.{name}".lstrip(".")) for module, name in ours]
    return {name if name in modules else module for module, name in full}
