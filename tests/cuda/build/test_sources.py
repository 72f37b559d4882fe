"""CUDA sources: where they are found, how headers are inlined, and the generated entry point."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gpuconv import CompileError
from gpuconv.cuda.build import sources
from tests.harness.toolchain import FILES, FOLDER, kernels, variant, write

pytestmark = pytest.mark.slow

Write = Callable[[Mapping[str, str]], Path]
ROOT = Path(__file__).resolve().parents[3]

__all__ = ["kernels"]  # a fixture


@pytest.mark.usefixtures("kernels")
def test_the_source_of_a_variant() -> None:
    assert sources.source(variant()) == (
        """#line 1 "kernels_cu/scale.cu"
// Multiplies numbers.
#line 1 "kernels_cu/base/scale.cuh"

#include <cuda_fp16.h>

__device__ __forceinline__ float scaled(float number, int factor) { return number * factor; }

#line 3 "kernels_cu/scale.cu"

struct Scale {
    float* y;
    int factor;
};

template <int COUNT> __device__ __forceinline__ void scale(const Scale& p)
{
    for (int i = 0; i < COUNT; ++i) p.y[i] = scaled(p.y[i], p.factor);
}

#line 1 "scale_4"
using EntryParameter = Scale;
static_assert(__INTADDR__(&((EntryParameter*)0)->y) == 0 && sizeof(EntryParameter::y) == 8, """
        """"Scale: y is not at byte 0 with 8 bytes, as in its NumPy layout");
static_assert(__INTADDR__(&((EntryParameter*)0)->factor) == 8 && sizeof(EntryParameter::factor) == 4, """
        """"Scale: factor is not at byte 8 with 4 bytes, as in its NumPy layout");
static_assert(sizeof(EntryParameter) == 16, "Scale does not have the 16 bytes of its NumPy layout");
extern "C" __global__ void __launch_bounds__(128, 2)
scale_4(const __grid_constant__ EntryParameter p)
{ scale<4>(p); }
"""
    )


@pytest.mark.usefixtures("kernels")
def test_a_function_that_is_no_template() -> None:
    assert sources.source(variant(arguments=())).endswith("\n{ scale(p); }\n")


def test_headers_are_inlined_once_where_they_are_first_named(kernels: Write) -> None:
    kernels(
        {
            "a.cu": '#include "base/b.cuh"\n  #  include   "base/c.cuh" //\n#include <cuda_bf16.h>\n'
            '// #include "no.cuh"\nlast',
            "base/b.cuh": '#pragma once\n#include "base/c.cuh"\nb',
            "base/c.cuh": "// first\n  #pragma  once\nc",
        }
    )
    lines = sources.source(variant(source="a.cu", parameter="int")).splitlines()
    assert lines[: lines.index("last") + 1] == [
        '#line 1 "kernels_cu/a.cu"',
        '#line 1 "kernels_cu/base/b.cuh"',
        "",
        '#line 1 "kernels_cu/base/c.cuh"',
        "// first",
        "",
        "c",
        '#line 3 "kernels_cu/base/b.cuh"',
        "b",
        '#line 2 "kernels_cu/a.cu"',
        '#line 3 "kernels_cu/a.cu"',
        "#include <cuda_bf16.h>",
        '// #include "no.cuh"',
        "last",
    ]


def test_headers_that_include_each_other(kernels: Write) -> None:
    kernels(
        {
            "a.cu": '#include "base/b.cuh"\n',
            "base/b.cuh": '#include "base/c.cuh"\nb',
            "base/c.cuh": '#include "base/b.cuh"\nc',
        }
    )
    lines = [
        line for line in sources.source(variant(source="a.cu", parameter="int")).splitlines() if line in ("b", "c")
    ]
    assert lines == ["c", "b"]


def test_line_numbers_count_only_real_ends_of_lines(kernels: Write) -> None:
    kernels({"a.cu": 'one\x0c \x85 \u2028\n#include "base/scale.cuh"\r\nthree'})
    assert '#line 3 "kernels_cu/a.cu"\nthree' in sources.source(variant(source="a.cu", parameter="int"))


def test_a_header_that_is_not_there(kernels: Write) -> None:
    kernels({"a.cu": '\n#include "scale.cuh"\n'})
    message = r'^kernels_cu/a\.cu\(2\) includes "scale\.cuh", but there is no kernels_cu/scale\.cuh$'
    with pytest.raises(CompileError, match=message):
        sources.source(variant(source="a.cu", parameter="int"))


@pytest.mark.usefixtures("kernels")
def test_a_file_that_is_not_there() -> None:
    with pytest.raises(CompileError, match=r"^kernels_cu/none\.cu cannot be read: "):
        sources.source(variant(source="none.cu", parameter="int"))


MEMBERS = """#include "base/geometry.cuh"
struct Members {
    int n;
    Divider<int> extent[3];
    Divider<long long> by;
    long long table[2][3];
};
"""


def test_members_of_members_are_asserted(kernels: Write) -> None:
    headers = {path: (FOLDER / path).read_text(encoding="utf-8") for path in ("base/device.cuh", "base/geometry.cuh")}
    kernels({"members.cu": MEMBERS, **headers})
    text = sources.source(variant(source="members.cu", parameter="Members"))
    for member, offset, size in [
        ("n", 0, 4),
        ("extent", 4, 36),
        ("extent[0].divisor", 4, 4),
        ("extent[0].multiplier", 8, 4),
        ("extent[0].shift", 12, 4),
        ("by", 40, 8),
        ("by.divisor", 40, 8),
        ("table", 48, 48),
    ]:
        assert f"->{member}) == {offset} && sizeof(EntryParameter::{member}) == {size}, " in text
    assert "sizeof(EntryParameter) == 96" in text


@pytest.mark.parametrize("name", sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.cu")))
def test_every_file_inlines(name: str) -> None:
    text = sources.source(variant(source=name, parameter="int"))
    assert '#include "' not in text
    assert (FOLDER / name).read_text(encoding="utf-8").splitlines()[-1] in text


SHOW = """
from gpuconv.cuda.build import kernel_files, sources
from gpuconv.cuda.build.variant import Variant
print(kernel_files.folder())
print(sources.source(Variant("k", "scale.cu", "scale", (), "Scale", 32, 1)))
"""


def _package(folder: Path) -> Path:
    for path in (ROOT / "gpuconv").rglob("*.py"):
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize("place", ["package", "beside", "zip"])
def test_sources_are_found(tmp_path: Path, place: str) -> None:
    root = _package(tmp_path / "installed")
    write(root / "kernels_cu" if place == "beside" else root / "gpuconv" / "kernels_cu", FILES)
    if place == "zip":
        archive = tmp_path / "gpuconv.whl"
        with zipfile.ZipFile(archive, "w") as file:
            for path in sorted(root.rglob("*")):
                file.write(path, path.relative_to(root))
        root = archive
    shown = _show(root, tmp_path)
    assert shown.stdout.startswith(str(root))
    assert FILES["scale.cu"].splitlines()[-2] in shown.stdout
    assert FILES["base/scale.cuh"].splitlines()[-1] in shown.stdout


def test_sources_that_are_not_found(tmp_path: Path) -> None:
    shown = _show(_package(tmp_path / "installed"), tmp_path)
    assert "CompileError: the CUDA sources are neither in " in shown.stderr
    assert shown.stderr.endswith("; install gpuconv again\n")


def _show(path: Path, elsewhere: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**os.environ, "PYTHONPATH": str(path)},
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=False,
    )
