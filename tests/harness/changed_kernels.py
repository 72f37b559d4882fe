"""Compile CUDA kernels from an edited copy of kernels_cu, for tests that plant faults."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpuconv.cuda.build import kernel_files


@contextmanager
def changed_kernels(texts: Mapping[str, str]) -> Iterator[None]:
    """Compile kernels from a copy of kernels_cu in which the files named in ``texts`` have these contents."""
    usual = kernel_files.folder
    with tempfile.TemporaryDirectory() as scratch:
        copy = shutil.copytree(usual(), Path(scratch, "kernels_cu"))
        for path, text in texts.items():
            Path(copy, path).write_text(text, encoding="utf-8")
        kernel_files.folder = lambda: copy
        try:
            yield
        finally:
            kernel_files.folder = usual


def exchanged(path: str, old: str, new: str) -> str:
    """Return the text of a file of kernels_cu with ``old``, which must occur exactly once, replaced by ``new``."""
    text = str(kernel_files.folder().joinpath(*path.split("/")).read_text(encoding="utf-8"))
    assert text.count(old) == 1, f"{path} has {text.count(old)} times, not once: {old}"
    return text.replace(old, new)
