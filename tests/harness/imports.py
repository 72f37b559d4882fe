"""The import graph of gpuconv's modules, from their source."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import gpuconv

PACKAGE = Path(gpuconv.__file__).parent


@cache
def modules() -> dict[str, Path]:
    """Return the file of every module, by its name without ``gpuconv.``."""
    return {name_of(path): path for path in PACKAGE.rglob("*.py")}


def name_of(path: Path) -> str:
    """Return the name of a file's module without ``gpuconv.``, as ``cuda.plan``."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def imports() -> dict[str, set[str]]:
    """Return for every module the modules of the package that it imports, also inside functions."""
    return {name: imported(name) for name in modules()}


@cache
def imported(name: str) -> set[str]:
    """Return the modules of the package that one module imports."""
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    found = [(node.module or "", alias.name) for node in nodes for alias in node.names]
    ours = [
        (module.removeprefix("gpuconv").lstrip("."), name) for module, name in found if module.startswith("gpuconv")
    ]
    full = [(module, f"{module}.{name}".lstrip(".")) for module, name in ours]
    return {name if name in modules() else module for module, name in full} - {name}
