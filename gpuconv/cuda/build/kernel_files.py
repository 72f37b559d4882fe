"""Locates and reads the CUDA sources, in a checkout, an installed package, or a zipped package."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from gpuconv._errors import CompileError

_INCLUDE = re.compile(r'^[^\S\n]*#[^\S\n]*include[^\S\n]*"([^"]+)"', re.MULTILINE)


@cache
def folder() -> Any:  # a Traversable, whose module differs in Python 3.10
    """Return the folder ``kernels_cu``: in the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[2]
    packaged, beside = (parent / "kernels_cu" for parent in (package, package.parent))
    for place in (packaged, beside):
        if place.is_dir():
            return place
    zipped = resources.files("gpuconv") / "kernels_cu"
    if zipped.is_dir():
        return zipped
    raise CompileError(f"the CUDA sources are neither in {packaged} nor in {beside}; install gpuconv again")


def text(root: Any, path: str) -> str:
    """Return the text of a source file; CompileError if it cannot be read."""
    try:
        content: str = root.joinpath(*path.split("/")).read_text(encoding="utf-8")
    except OSError as error:
        raise CompileError(f"kernels_cu/{path} cannot be read: {error}") from error
    return content


def headers(text: str) -> list[str]:
    """Return the paths of the headers that a text includes by ``#include "…"``."""
    return _INCLUDE.findall(text)
