"""Generates the CUDA translation unit of a variant: its source with headers inlined, and a generated entry point."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuconv._errors import CompileError
from gpuconv.cuda.build import kernel_files
from gpuconv.cuda.build.variant import Variant

_CHAINED = "base/chained.cuh"
_ONCE = re.compile(r"\s*#\s*pragma\s+once\b")


def source(variant: Variant) -> str:
    """Return a variant's translation unit; CompileError if its file or a header does not exist.

    Headers, named relative to ``kernels_cu`` as in ``#include "base/ptx.cuh"``, are inlined once. ``#line`` directives
    keep messages and line information at ``kernels_cu/...``.
    """
    root, seen = kernel_files.folder(), set[str]()
    lines = [*_inlined(root, variant.source, seen), *(_inlined(root, _CHAINED, seen) if variant.chained else ())]
    lines += _entry(variant)
    return "\n".join(lines) + "\n"


def _inlined(root: Any, path: str, seen: set[str]) -> Iterator[str]:
    """Yield the lines of a file with its headers inlined, each at its first include."""
    seen.add(path)
    yield f'#line 1 "kernels_cu/{path}"'
    for number, line in enumerate(kernel_files.text(root, path).split("\n"), 1):
        included = kernel_files.headers(line)
        if included:
            header = included[0]
            if not root.joinpath(*header.split("/")).is_file():
                raise CompileError(
                    f'kernels_cu/{path}({number}) includes "{header}", but there is no kernels_cu/{header}'
                )
            if header not in seen:
                yield from _inlined(root, header, seen)
            yield f'#line {number + 1} "kernels_cu/{path}"'
        else:
            yield "" if _ONCE.match(line) else line


def _entry(variant: Variant) -> Iterator[str]:
    """Yield the ``extern "C"`` kernel, after static assertions on the layout of its parameter struct."""
    arguments = f"<{', '.join(variant.arguments)}>" if variant.arguments else ""
    yield f'#line 1 "{variant.name}"'
    yield f"using EntryParameter = {variant.parameter};"
    yield from _assertions(variant)
    yield f'extern "C" __global__ void __launch_bounds__({variant.threads}, {variant.blocks_per_sm})'
    yield f"{variant.name}(const __grid_constant__ EntryParameter p)"
    yield f"{{ {'follow(); ' * variant.chained}{variant.function}{arguments}(p); }}"


def _assertions(variant: Variant) -> Iterator[str]:
    """Yield static assertions on the offset and size of every member, and on the struct's size."""
    for member, offset, size in _members(variant.layout):
        # NVRTC has neither offsetof nor __builtin_offsetof; this is what its front end expands them to elsewhere.
        there = f"__INTADDR__(&((EntryParameter*)0)->{member}) == {offset}"
        message = f"{variant.parameter}: {member} is not at byte {offset} with {size} bytes, as in its NumPy layout"
        yield f'static_assert({there} && sizeof(EntryParameter::{member}) == {size}, "{message}");'
    size = variant.layout.itemsize
    message = f"{variant.parameter} does not have the {size} bytes of its NumPy layout"
    yield f'static_assert(sizeof(EntryParameter) == {size}, "{message}");'


def _members(layout: np.dtype[Any], path: str = "", start: int = 0) -> Iterator[tuple[str, int, int]]:
    """Yield (name, offset, bytes) of every member, nested ones too; of arrays, their first element's."""
    for name, field in (layout.fields or {}).items():
        kind, offset = field[:2]
        yield path + name, start + offset, kind.itemsize
        first = path + name + "[0]" * len(kind.shape)
        yield from _members(kind.base, first + ".", start + offset)
