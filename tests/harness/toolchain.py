"""Helpers for tests of compiling: markers for tests that need NVRTC, and small kernels in a folder of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import sass
from gpuconv import CompileError
from gpuconv.cuda.build import cache, kernel_files, nvrtc
from gpuconv.cuda.build.variant import Variant


def _missing() -> str | None:
    try:
        nvrtc.identity()
    except CompileError as error:
        return str(error)
    return None


FOLDER = Path(__file__).parents[2] / "kernels_cu"
_REASON = _missing()
needs_nvrtc = pytest.mark.skipif(  # with GPUCONV_REQUIRE_EMULATOR=1 tests run and fail instead
    _REASON is not None and os.environ.get("GPUCONV_REQUIRE_EMULATOR") != "1", reason=str(_REASON)
)
needs_disassembler = pytest.mark.skipif(
    sass.disassembler() is None and os.environ.get("GPUCONV_REQUIRE_EMULATOR") != "1", reason=sass.MISSING
)

FILES = {
    "scale.cu": """// Multiplies numbers.
#include "base/scale.cuh"

struct Scale {
    float* y;
    int factor;
};

template <int COUNT> __device__ __forceinline__ void scale(const Scale& p)
{
    for (int i = 0; i < COUNT; ++i) p.y[i] = scaled(p.y[i], p.factor);
}
""",
    "base/scale.cuh": """#pragma once
#include <cuda_fp16.h>

__device__ __forceinline__ float scaled(float number, int factor) { return number * factor; }
""",
}


def variant(name: str = "scale_4", **changes: Any) -> Variant:
    """Return a variant of the kernel in ``FILES``, with changed fields."""
    fields: dict[str, Any] = {"source": "scale.cu", "function": "scale", "arguments": ("4",), "parameter": "Scale"}
    fields |= {"threads": 128, "blocks_per_sm": 2}
    return Variant(name, **(fields | changes))


def write(folder: Path, files: Mapping[str, str] = FILES) -> Path:
    """Write sources into a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    return folder


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], Path]:
    """Make ``FILES`` the only kernel sources, with an empty cache; return a function that writes more files."""
    folder = write(tmp_path / "kernels_cu")
    monkeypatch.setattr(kernel_files, "folder", lambda: folder)
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "private", cache._Private())
    return lambda files: write(folder, files)
