"""``gpuconv compile``: what it builds and prints, and that the package finds what it wrote."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpuconv
from gpuconv.cli import compile as _compile
from gpuconv.cli.main import main
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build import nvrtc
from gpuconv.cuda.build.variant import Variant
from tests.harness.toolchain import FILES, kernels, needs_nvrtc, variant

Run = Callable[..., str]
Write = Callable[[Mapping[str, str]], Path]

__all__ = ["kernels"]  # a fixture
pytestmark = [pytest.mark.slow, needs_nvrtc, pytest.mark.usefixtures("kernels", "variants")]


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> list[Variant]:
    """Replace the kernels by four, in a list that tests may change."""
    listed = [variant(f"scale_{count}", arguments=(str(count),)) for count in (1, 2, 3, 12)]
    monkeypatch.setitem(sys.modules, "gpuconv.cuda.variants", SimpleNamespace(all_variants=lambda: listed))
    monkeypatch.setattr("gpuconv.cuda.call.device.unavailable_reason", lambda: "no driver")
    return listed


def _rows(out: str) -> list[list[str]]:
    """Return the table's cells without the seconds."""
    about, *lines = out.splitlines()
    assert re.fullmatch(r"\d+ kernels for [\w, ]+, \d+ at a time: at most about \d+ (s|min) if all are new", about)
    assert re.split("  +", lines[0]) == [
        "architecture", "kernels", "built", "there already", "failed", "seconds", "spilling",
    ]  # fmt: skip
    rows = [re.split("  +", line) for line in lines[1:] if line.startswith(("sm_", "compute_"))]
    for row in rows:
        assert float(row.pop(5)) >= 0
    return rows


def test_everything_is_built_once_and_found(ok: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "ahead" / "of time"
    out = ok("compile", "--arch", "sm_80, sm_90a,sm_80", "--output-dir", folder, "-j", 2)
    assert _rows(out) == [["sm_80", "4", "4", "0", "0", "0"], ["sm_90a", "4", "4", "0", "0", "0"]]
    last = f"gpuconv {gpuconv.__version__}: all 8 kernels are there, found by GPUCONV_CACHE_DIR={folder}"
    assert out.splitlines()[-1] == last
    assert len(list(folder.glob("*.sm_80.*.cubin"))) == len(list(folder.glob("*.sm_90a.*.cubin"))) == 4
    assert not (tmp_path / "cache").exists()

    again = ok("compile", "--arch", "sm_90a,sm_86", "--output-dir", folder)
    assert _rows(again) == [["sm_90a", "4", "0", "4", "0", "0"], ["sm_86", "4", "4", "0", "0", "0"]]

    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(folder))
    built = compiler.build(variant("scale_12", arguments=("12",)), "sm_90a")
    assert (built.path.parent, built.seconds) == (folder, None)


def test_how_much_there_is_to_do_is_said_before_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to a pipe, where output is buffered until it is flushed."""
    happened: list[str] = []

    class Pipe(io.StringIO):
        def flush(self) -> None:
            happened.append(self.getvalue())

    build = _compile._build_all

    def noted(*given: Any) -> Any:
        happened.append("built")
        return build(*given)

    monkeypatch.setattr(_compile, "_build_all", noted)
    monkeypatch.setattr(sys, "stdout", Pipe())
    assert main(["compile", "--arch", "sm_80", "--filter", "scale_3"]) == 0
    assert happened.index("built") > 0
    assert happened[0].startswith("1 kernels for sm_80, ")


def test_without_a_device_for_every_usual_architecture_into_the_cache(ok: Run, tmp_path: Path) -> None:
    out = ok("compile", "--filter", "scale_3")
    assert [row[:3] for row in _rows(out)] == [
        [name, "1", "1"] for name in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
    ]
    assert len(list((tmp_path / "cache").glob("scale_3.*.cubin"))) == 6


def test_kernels_of_one_architecture_are_built_for_that(ok: Run, variants: list[Variant]) -> None:
    variants[1:3] = [variant(f"scale_{n}", arguments=(f"{n}",), architectures=("sm_90a",)) for n in (2, 3)]
    rows = _rows(ok("compile", "--arch", "sm_80,sm_90,sm_90a"))
    assert rows == [["sm_80", "2", "2", "0", "0", "0"], ["sm_90", "2", "2", *"000"], ["sm_90a", "4", "4", *"000"]]


def test_with_a_device_for_that(ok: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuconv.cuda.call.device.unavailable_reason", lambda: None)
    monkeypatch.setattr("gpuconv.cuda.call.device.current_device", lambda: 1, raising=False)
    limits = {1: SimpleNamespace(architecture="compute_90")}
    monkeypatch.setattr("gpuconv.cuda.call.device.limits", limits.__getitem__, raising=False)
    assert _rows(ok("compile")) == [["compute_90", "4", "4", "0", "0", "0"]]


def test_kernels_that_fail_are_named_and_the_others_built(
    kernels: Write, variants: list[Variant], capsys: pytest.CaptureFixture[str]
) -> None:
    kernels({"wrong.cu": "struct Scale { int n; };\nnonsense;\n"})
    variants[:0] = [variant("wrong_1", source="none.cu")]
    variants += [variant("wrong_2", source="wrong.cu")]
    assert main(["compile", "--arch", "sm_80"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert _rows(out) == [["sm_80", "6", "4", "0", "2", "0"]]
    failed = [line for line in out.splitlines() if line.startswith("FAILED ")]
    assert len(failed) == 2  # in the variants' order, not in that of failures
    assert failed[0].startswith("FAILED kernels_cu/none.cu cannot be read: ")
    assert failed[1].startswith("FAILED wrong_2 for sm_80 does not compile: kernels_cu/wrong.cu(2): error: ")
    assert 'errors detected in the compilation of "wrong_2.cu"' in out
    assert out.splitlines()[-1] == f"gpuconv {gpuconv.__version__}: 2 of 6 kernels do NOT compile"


def test_many_failures_are_counted(kernels: Write, variants: list[Variant], capsys: pytest.CaptureFixture[str]) -> None:
    kernels({"scale.cu": FILES["scale.cu"] + "nonsense"})
    variants += [variant(f"more_{number}") for number in range(20)]
    assert main(["compile", "--arch", "sm_80"]) == 1
    out = capsys.readouterr().out
    assert out.count("\nFAILED ") == 20
    assert "\n… and 4 more failures; --filter shows them by name\n" in out


def test_spills_are_counted(kernels: Write, variants: list[Variant], ok: Run) -> None:
    body = """struct Scale { float* y; int factor; };
template <int COUNT> __device__ __forceinline__ void scale(const Scale& p)
{
    float kept[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) kept[i] = p.y[i * 32 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) p.y[i * 32 + threadIdx.x] = kept[COUNT - 1 - i];
}
"""
    kernels({"scale.cu": body})
    variants[-1] = spilled = variant("scale_200", arguments=("200",), threads=1024, blocks_per_sm=1)
    report = compiler.report(spilled, "sm_80")
    total = report.spill_stores + report.spill_loads
    assert total >= 2 * 4 * (200 - 64)
    assert _rows(ok("compile", "--arch", "sm_80")) == [["sm_80", "4", "3", "1", "0", f"1 ({total} bytes)"]]


def test_info_names_the_compiler_and_the_cache(ok: Run, tmp_path: Path) -> None:
    out = ok("info")
    assert re.search(rf"^NVRTC: +{nvrtc.version()}, headers in {re.escape(str(nvrtc.headers()))}$", out, re.MULTILINE)
    assert re.search(rf"^kernel cache: +{re.escape(str(tmp_path))}/cache \(GPUCONV_CACHE_DIR\)$", out, re.MULTILINE)


def test_a_cache_that_cannot_be_written_is_told(
    ok: Run, error: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    folder = tmp_path / "file" / "cache"
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(folder))
    told = f"kernel cache: +{re.escape(str(folder))}, not writable; a temporary folder for new kernels"
    assert re.search(rf"^{told} \(GPUCONV_CACHE_DIR\)$", ok("info"), re.MULTILINE)
    message = error("compile", "--arch", "sm_90a")
    assert message.startswith(f"compile: kernels cannot be written to {folder} (")
    assert message.endswith("); --output-dir names another folder")


def test_info_without_a_compiler(ok: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_binding", nvrtc._binding.__wrapped__)
    monkeypatch.setattr(nvrtc, "version", nvrtc.version.__wrapped__)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    out = ok("info")
    assert re.search(r"^NVRTC: +none: CUDA kernels cannot be compiled, since NVRTC is not there \(", out, re.MULTILINE)


def test_what_cannot_be_asked_for(error: Run, tmp_path: Path) -> None:
    assert error("compile", "--filter", "scale_4") == "compile: no kernel's name contains 'scale_4'"
    assert error("compile", "--arch", "sm_80,sm_81").startswith("unknown architecture 'sm_81'; NVRTC ")
    assert "argument -j/--jobs: '0' is not an integer of at least 1" in error("compile", "-j", 0)
    (tmp_path / "file").touch()
    assert "Not a directory" in error("compile", "--arch", "sm_80", "--output-dir", tmp_path / "file" / "folder")


def test_without_any_folder(error: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPUCONV_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert error("compile", "--arch", "sm_80") == (
        "compile: there is no cache folder; name one with --output-dir or GPUCONV_CACHE_DIR"
    )


def test_without_a_compiler_nothing_is_planned(error: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise gpuconv.CompileError("CUDA kernels cannot be compiled, since NVRTC is not there (no such file)")

    monkeypatch.setattr(nvrtc, "version", missing)
    monkeypatch.setitem(sys.modules, "gpuconv.cuda.variants", None)
    assert error("compile") == "CUDA kernels cannot be compiled, since NVRTC is not there (no such file)"


@pytest.mark.parametrize(
    ("count", "jobs", "text"), [(910, 2, "11 min"), (910, 16, "85 s"), (4, 1, "6 s"), (5460, 2, "68 min")]
)
def test_how_much_there_is_to_do_is_said_beforehand(count: int, jobs: int, text: str) -> None:
    found = _compile._work(count, ["sm_80", "sm_90a"], jobs)
    assert found == f"{count} kernels for sm_80, sm_90a, {jobs} at a time: at most about {text} if all are new"
