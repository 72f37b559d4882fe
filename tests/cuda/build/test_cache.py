"""The cache of compiled kernels: damaged or outdated entries are compiled again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuconv.cuda.build import cache, nvrtc
from gpuconv.cuda.build import compile as compiler
from tests.harness.toolchain import kernels, needs_nvrtc, variant

Write = Callable[[Mapping[str, str]], Path]
ROOT = Path(__file__).resolve().parents[3]

__all__ = ["kernels"]  # a fixture
pytestmark = [pytest.mark.slow, needs_nvrtc, pytest.mark.usefixtures("kernels")]


def _manifest(folder: Path) -> Path:
    return next(folder.glob("*.json"))


def _built(**changes: Any) -> compiler.Built:
    return compiler.build(variant(**changes), "sm_80")


def test_what_was_compiled_is_found_again(tmp_path: Path) -> None:
    first, second = _built(), _built()
    assert first.path.parent == tmp_path / "cache"
    assert first.seconds is not None
    assert 0 < first.seconds < 600
    assert second == replace(first, seconds=None)
    assert first.content == first.path.read_bytes()
    assert "Used " in second.log
    assert sorted(path.suffix for path in first.path.parent.iterdir()) == [".cubin", ".json"]
    assert all(path.name.startswith("scale_4.sm_80.") for path in first.path.parent.iterdir())


# ---------------------------------------------------------------- files that are not as they were written


def _rebuilt() -> compiler.Built:
    """Return the replacement of a damaged entry, which must be valid and must be found by the next call."""
    built = _built()
    assert built.seconds is not None
    assert built.path.read_bytes().startswith(b"\x7fELF")
    assert _built().seconds is None
    return built


@pytest.mark.parametrize("suffix", [".cubin", ".json"])
@pytest.mark.parametrize("fault", ["missing", "empty", "truncated", "longer", "other"])
def test_a_file_that_is_broken_is_written_again(suffix: str, fault: str) -> None:
    built = _built()
    content = built.path.read_bytes()
    broken = built.path if suffix == ".cubin" else _manifest(built.path.parent)
    text = broken.read_bytes()
    changed = {"empty": b"", "truncated": text[:-1], "longer": text + b"x", "other": b"\x7fELF of another kernel"}
    if fault == "missing":
        broken.unlink()
    else:
        broken.write_bytes(changed[fault])
    assert _rebuilt().path.read_bytes() == content


def test_no_flipped_bit_of_a_cubin_goes_unseen() -> None:
    path = _built().path
    content = path.read_bytes()
    for place in np.random.default_rng(5).integers(8 * len(content), size=20).tolist():
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        assert _rebuilt().path.read_bytes() == content, place


def test_no_flipped_bit_of_a_manifest_matters() -> None:
    built = _built()
    manifest, report = _manifest(built.path.parent), compiler.report(variant(), "sm_80")
    content = manifest.read_bytes()
    for place in np.random.default_rng(6).integers(8 * len(content), size=40).tolist():
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        manifest.write_bytes(changed)
        assert _built().path.read_bytes() == built.path.read_bytes()
        assert compiler.report(variant(), "sm_80") == report


@pytest.mark.parametrize("text", ["null", "[]", "{}", '{"file": 1}', '{"file": "\\u0000", "log": ""}', "[" * 100_000])
def test_a_manifest_of_something_else(text: str) -> None:
    _manifest(_built().path.parent).write_text(text)
    _rebuilt()


def test_a_manifest_of_another_kernel() -> None:
    folder = _built().path.parent
    mine = _manifest(folder)
    other = _built(name="scale_9", arguments=("9",)).path
    theirs = next(path for path in folder.glob("scale_9*.json"))
    mine.write_bytes(theirs.read_bytes())
    assert _rebuilt().path != other


def test_a_manifest_that_leads_elsewhere(tmp_path: Path) -> None:
    built = _built()
    manifest = _manifest(built.path.parent)
    (tmp_path / "elsewhere.cubin").write_bytes(built.path.read_bytes())
    lines = json.loads(manifest.read_text())
    for name in ("../elsewhere.cubin", str(tmp_path / "elsewhere.cubin")):
        description = cache._description(lines["key"], name, built.path.read_bytes(), lines["log"])
        manifest.write_text(json.dumps(description))
        assert _rebuilt().path == built.path


def test_folders_where_files_should_be(tmp_path: Path) -> None:
    path = _built().path
    path.unlink()
    (path / "in the way").mkdir(parents=True)
    with pytest.warns(RuntimeWarning, match="Is a directory"):
        built = _rebuilt()
    assert built.path.name == path.name
    assert tmp_path not in built.path.parents
    assert not list(path.parent.glob(".*"))


def test_a_file_that_cannot_be_read() -> None:
    path = _built().path
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root reads everything")
    assert _rebuilt().path == path


def test_what_was_checked_is_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    built = _built()
    content, whole = built.path.read_bytes(), cache._digest

    def exchanged(checked: bytes) -> str:
        built.path.write_bytes(b"\x7fELF of somebody else")
        return whole(checked)

    monkeypatch.setattr(cache, "_digest", exchanged)
    assert compiler.cubin(variant(), "sm_80") == content
    assert built.path.read_bytes() != content


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize(
    "changes",
    [
        {"threads": 64},
        {"blocks_per_sm": 1},
        {"arguments": ("5",)},
        {"name": "scale_four"},
    ],
)
def test_another_variant_is_another_entry(changes: dict[str, Any]) -> None:
    _built()
    assert _built(**changes).seconds is not None
    assert _built().seconds is None


def test_another_architecture_is_another_entry() -> None:
    names = ("sm_80", "sm_86", "sm_90", "sm_90a", "compute_90")
    paths = [compiler.build(variant(), name).path for name in names]
    assert len(set(paths)) == 5
    assert compiler.ptx(variant(), "sm_90") != compiler.ptx(variant(), "sm_90", line_info=False)
    assert paths == [compiler.build(variant(), name).path for name in names]


@pytest.mark.parametrize("file", ["scale.cu", "base/scale.cuh"])
def test_a_changed_source_is_another_entry(kernels: Write, file: str) -> None:
    folder = _built().path.parent
    before = set(folder.glob("*.json"))
    kernels({file: (kernels({}) / file).read_text() + "// changed\n"})
    assert _built().seconds is not None
    assert len(set(folder.glob("*.json")) - before) == 1


@pytest.mark.parametrize("what", ["version", "headers", "option"])
def test_another_compiler_is_another_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str) -> None:
    _built()
    found = nvrtc.headers()
    monkeypatch.setattr(nvrtc, "identity", nvrtc.identity.__wrapped__)
    assert _built().seconds is None
    if what == "version":
        monkeypatch.setattr(nvrtc, "version", lambda: "99.9")
    elif what == "option":
        monkeypatch.setattr(compiler, "_OPTIONS", (*compiler._OPTIONS, "--extra-device-vectorization"))
    else:
        copy = tmp_path / "headers"
        copy.mkdir()
        for path in found.iterdir():
            (copy / path.name).symlink_to(path)
        monkeypatch.setattr(nvrtc, "headers", lambda: copy)
        assert _built().seconds is None  # the folder's name does not matter
        (copy / "cuda_fp16.h").unlink()
        (copy / "cuda_fp16.h").write_bytes((found / "cuda_fp16.h").read_bytes() + b"\n")
    assert _built().seconds is not None
