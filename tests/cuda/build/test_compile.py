"""Compiling: its results, and the messages when it fails."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpuconv
from gpuconv import CompileError
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build import nvrtc, structs
from gpuconv.cuda.build.variant import Variant, index_name
from tests.harness import declared
from tests.harness.toolchain import FILES, FOLDER, kernels, needs_nvrtc, variant

Write = Callable[[Mapping[str, str]], Path]

__all__ = ["kernels"]  # a fixture
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kernels")]

# ---------------------------------------------------------------- what is compiled

SPLIT = """#include "base/geometry.cuh"

template <class Index> struct Split {
    const Index* x;
    Index* y;
    Index start;
    Divider<Index> extents[3];
    Divider<int> last;
};

template <class Index> __device__ __forceinline__ void split(const Split<Index>& p)
{
    __shared__ Index numbers[128];
    numbers[threadIdx.x] = p.x[threadIdx.x];
    __syncthreads();
    Index coordinates[3];
    const Index rest = unravel(p.start + numbers[127 - threadIdx.x], p.extents, coordinates);
    p.y[threadIdx.x] = rest + coordinates[0] * coordinates[1] - coordinates[2] + p.last.quotient(int(threadIdx.x));
}
"""


def _split(wide: bool, **changes: Any) -> Variant:
    index = index_name(wide)
    name = "split_64" if wide else "split_32"
    fields = {"source": "split.cu", "function": "split", "arguments": (index,), "parameter": f"Split<{index}>"}
    return variant(name, **(fields | changes))


@pytest.fixture
def split(kernels: Write) -> None:
    """Add a kernel with the real ``base/geometry.cuh`` and a struct of structs."""
    headers = {path: (FOLDER / path).read_text(encoding="utf-8") for path in ("base/device.cuh", "base/geometry.cuh")}
    kernels({"split.cu": SPLIT, **headers})


@needs_nvrtc
@pytest.mark.usefixtures("split")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("wide", [False, True])
def test_a_cubin_and_its_report(wide: bool, architecture: str) -> None:
    built = compiler.build(_split(wide), architecture)
    assert built.path.suffix == ".cubin"
    content = compiler.cubin(_split(wide), architecture)
    assert content == built.path.read_bytes()
    assert content.startswith(b"\x7fELF")
    assert _split(wide).name.encode() in content
    report = compiler.report(_split(wide), architecture)
    assert report.shared_bytes >= 128 * (8 if wide else 4)  # newer architectures keep some for themselves
    assert report.barriers == 1
    assert 0 < report.registers <= 255
    assert (report.spill_stores, report.spill_loads, report.remarks) == (0, 0, ())


@needs_nvrtc
def test_no_byte_of_a_cubin_is_lost() -> None:
    content = compiler.cubin(variant(), "sm_90a")
    programs, sections = struct.unpack_from("<QQ", content, 32)
    program_bytes, program_count, section_bytes, section_count = struct.unpack_from("<HHHH", content, 54)
    ends = [programs + program_bytes * program_count, sections + section_bytes * section_count]
    for number in range(section_count):
        kind, _, _, offset, size = struct.unpack_from("<IQQQQ", content, sections + section_bytes * number + 4)
        ends.append(offset + (0 if kind == 8 else size))  # SHT_NOBITS has no bytes in the file
    assert len(content) == max(ends)


@needs_nvrtc
def test_the_report_counts_stack_and_spills(kernels: Write) -> None:
    body = """struct Scale { float* y; int factor; };
__device__ __forceinline__ void scale(const Scale& p)
{
    float kept[COUNT];
    for (int i = 0; i < COUNT; ++i) kept[i] = p.y[i * 32 + threadIdx.x];
    WHERE
    for (int i = 0; i < COUNT; ++i) p.y[i * 32 + threadIdx.x] = kept[COUNT - 1 - i];
}
"""
    unrolled = "#pragma unroll\n    for"
    local = (
        body.replace("WHERE", "kept[p.factor] = 0;")
        .replace("COUNT", "64")
        .replace("    for", "#pragma unroll 1\n    for")
    )
    spilled = body.replace("WHERE", "__syncthreads();").replace("COUNT", "200").replace("    for", unrolled)
    kernels({"local.cu": local, "spilled.cu": spilled})
    report = compiler.report(variant("local", source="local.cu", arguments=()), "sm_80")
    assert (report.stack_bytes, report.spill_stores, report.spill_loads) == (64 * 4, 0, 0)
    report = compiler.report(
        variant("spilled", source="spilled.cu", arguments=(), threads=1024, blocks_per_sm=1), "sm_80"
    )
    assert report.registers == 64
    assert report.spill_stores >= (200 - 64) * 4
    assert report.spill_loads >= (200 - 64) * 4
    assert report.stack_bytes >= (200 - 64) * 4


@needs_nvrtc
def test_warnings_are_remarks(kernels: Write) -> None:
    kernels(
        {"scale.cu": "struct Scale { float* y; int factor; };\n__device__ void scale(const Scale& p) { int unused; }"}
    )
    remarks = compiler.report(variant(arguments=()), "sm_80").remarks
    assert any(remark.startswith("kernels_cu/scale.cu(2): warning") and '"unused"' in remark for remark in remarks)


@needs_nvrtc
def test_ptx_has_lines_and_flushes_nothing_to_zero() -> None:
    ptx = compiler.ptx(variant(), "sm_90a")
    assert ".target sm_90a" in ptx
    assert ".visible .entry scale_4(" in ptx
    assert ".maxntid 128" in ptx
    assert ".minnctapersm 2" in ptx
    assert "mul" in ptx
    assert ".ftz" not in ptx
    files = dict(re.findall(r'\.file\s+(\d+) "([^"]+)"', ptx))
    header = next(number for number, path in files.items() if path.endswith("kernels_cu/base/scale.cuh"))
    assert re.search(rf"\.loc\s+{header} 4 ", ptx)
    assert "\0" not in ptx


@needs_nvrtc
def test_ptx_without_lines() -> None:
    ptx = compiler.ptx(variant(), "sm_80", line_info=False)
    assert ".visible .entry scale_4(" in ptx
    assert ".loc" not in ptx


# ---------------------------------------------------------------- what is not


def _failure(variant: Variant, architecture: str = "sm_80") -> tuple[str, str]:
    """Return the message's first line and the log."""
    with pytest.raises(CompileError) as caught:
        compiler.cubin(variant, architecture)
    first, _, log = str(caught.value).partition("\n")
    assert first.startswith(f"{variant.name} for {architecture} does not compile: ")
    return first.partition("compile: ")[2], log


@needs_nvrtc
@pytest.mark.usefixtures("split")
@pytest.mark.parametrize(
    ("declared", "other", "message"),
    [
        ("Index start;", "long long start;", "start is not at byte 16 with 8 bytes"),
        ("const Index* x;\n    Index* y;", "int x;\n    int y;", "x is not at byte 0 with 4 bytes"),
        ("Divider<Index> extents[3];", "Divider<Index> extents[4];", "extents is not at byte 20 with 48 bytes"),
        ("Divider<Index> extents[3];", "Divider<long long> extents[3];", "extents is not at byte 24 with 24 bytes"),
        ("Divider<int> last;", "int last;", "last is not at byte 56 with 4 bytes"),
        ("Divider<int> last;", "", "Split<int> does not have the 56 bytes of its NumPy layout"),
        ("Divider<int> last;", "Divider<int> list;", 'class "Split<int>" has no member "list"'),
    ],
)
def test_a_struct_that_was_read_wrongly(
    declared: str, other: str, message: str, kernels: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, text = kernels({}), SPLIT.replace(declared, other)
    assert text != SPLIT
    kernels({"other.cu": text})
    layout = structs.layout("Split<int>", "other.cu")
    (folder / "other.cu").unlink()
    monkeypatch.setattr(structs, "layout", lambda name, source: layout)
    first, log = _failure(_split(False))
    assert re.fullmatch(r"split_32\(\d+\): error: .*", first)
    assert message in first
    assert first in log


@needs_nvrtc
@pytest.mark.parametrize("name", declared.NAMES)
def test_structs_are_laid_out_as_they_are_read(name: str, kernels: Write) -> None:
    kernels(declared.SOURCES)
    taken = variant(source="structs.cu", function="take", arguments=(name,), parameter=name)
    assert ".visible .entry scale_4(" in compiler.ptx(taken, "sm_80", line_info=False)


@needs_nvrtc
@pytest.mark.parametrize(("file", "line"), [("scale.cu", 11), ("base/scale.cuh", 4)])
def test_errors_are_at_their_lines(kernels: Write, file: str, line: int) -> None:
    text = (kernels({}) / file).read_text(encoding="utf-8")
    wrong = text.replace("p.y[i] = scaled", "p.z[i] = scaled").replace("number * factor", "number * factors")
    kernels({file: wrong})
    first, log = _failure(variant())
    assert first.startswith(f"kernels_cu/{file}({line}): error: ")
    assert f'1 error detected in the compilation of "{variant().name}.cu"' in log


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            "a.cu(1): warning: odd\n  a.cu(3): error: no such thing\na.cu(4): error: nor this\n",
            "a.cu(3): error: no such thing",
        ),
        ("terrors of all kinds\nbut none\n", "terrors of all kinds"),
        ("\n", "NVRTC reports NVRTC_ERROR_INVALID_OPTION"),
        ("", "NVRTC reports NVRTC_ERROR_INVALID_OPTION"),
    ],
)
def test_what_the_compiler_says_first(log: str, said: str) -> None:
    assert nvrtc._first_error(log, SimpleNamespace(name="NVRTC_ERROR_INVALID_OPTION")) == said
    if not log:
        assert nvrtc._first_error(log, 5) == "NVRTC reports 5"


@needs_nvrtc
def test_architectures_nvrtc_refuses() -> None:
    first, log = _failure(variant(), "sm_81")
    assert "invalid value for --gpu-architecture" in first
    assert first in log


SHARING = """struct Scale { float* y; int factor; };
__device__ __forceinline__ void scale(const Scale& p)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    p.y[threadIdx.x] = p.factor;
}
"""


@needs_nvrtc
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"least_registers": 176}, "its threads begin with 168 registers, and need 176 to share"),
        ({"blocks_per_sm": 0}, "'setmaxnreg' ignored; unable to determine register count at entry"),
    ],
)
def test_a_kernel_whose_warps_would_wait_for_registers_is_not_loaded(
    kernels: Write, changes: dict[str, Any], message: str
) -> None:
    kernels({"scale.cu": SHARING})
    good: dict[str, Any] = {"arguments": (), "threads": 384, "blocks_per_sm": 1, "least_registers": 168}
    assert compiler.cubin(variant(**good), "sm_90a").startswith(b"\x7fELF")
    for _ in range(2):  # compiled, and from the cache
        with pytest.raises(CompileError, match=rf"scale_4 for sm_90a, by NVRTC .*, would not run: .*{message}"):
            compiler.cubin(variant(**(good | changes)), "sm_90a")


@needs_nvrtc
def test_a_failure_is_no_entry(kernels: Write, tmp_path: Path) -> None:
    kernels({"scale.cu": FILES["scale.cu"] + "nonsense"})
    for _ in range(2):
        _failure(variant())
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the cached results of looking for the compiler."""
    for function in (nvrtc._binding, nvrtc.version, nvrtc.capabilities, nvrtc.headers, nvrtc.identity):
        monkeypatch.setattr(nvrtc, function.__name__, function.__wrapped__)


def _installation_error() -> str:
    with pytest.raises(CompileError) as caught:
        compiler.cubin(variant(), "sm_80")
    assert isinstance(caught.value, gpuconv.DeviceError)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("; pip install 'gpuconv[cuda13]' brings it")
    return str(caught.value)


@pytest.mark.usefixtures("forgotten")
def test_without_the_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    assert _installation_error().startswith("CUDA kernels cannot be compiled, since NVRTC is not there (")


@needs_nvrtc
@pytest.mark.usefixtures("forgotten")
def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("Failure finding\nlibnvrtc.so")

    monkeypatch.setattr("cuda.bindings.nvrtc.nvrtcVersion", fail)
    assert "NVRTC is not there (Failure finding libnvrtc.so);" in _installation_error()


@needs_nvrtc
@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("found", [None, "empty"])
def test_without_the_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: str | None) -> None:
    folder = None if found is None else str(tmp_path / found)
    monkeypatch.setattr("cuda.pathfinder.find_nvidia_header_directory", lambda name: folder)
    assert _installation_error().startswith("CUDA kernels cannot be compiled, since cuda_fp16.h is not there;")
