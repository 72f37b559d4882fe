"""emulated_cuda.nvrtc: compile CUDA C++ without CuPy; included files, error messages, and a missing NVRTC."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from emulated_cuda import nvrtc
from emulated_cuda.emulator import build
from emulated_cuda.emulator.engine import EmulatorError, module
from emulated_cuda.emulator.memory import empty

FILLS = '#include "value.cuh"\nextern "C" __global__ void fills(int* y)\n{\n    y[threadIdx.x * STEP] = VALUE;\n}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "value.cuh").write_text("#define VALUE 7\n", encoding="utf-8")
    return tmp_path


@pytest.mark.emulator
def test_a_program_has_its_macros_and_its_folders(folder: Path) -> None:
    y = empty(4, np.int32, "y")
    module(nvrtc.compile_ptx(FILLS, "sm_80", defines=["STEP=1"], folders=[folder]))["fills"](1, 4, [y])
    assert y.data.tolist() == [7] * 4


@pytest.mark.emulator
def test_findings_have_the_name_and_the_line(folder: Path) -> None:
    program = module(nvrtc.compile_ptx(FILLS, name="fills", defines=["STEP=2"], folders=[folder]))["fills"]
    with pytest.raises(EmulatorError, match=r"out of bounds(.|\n)*fills\.cu:4"):
        program(1, 4, [empty(4, np.int32, "y")])


@pytest.mark.emulator
def test_a_program_that_does_not_compile_is_refused_with_the_log() -> None:
    with pytest.raises(nvrtc.CompileError, match=r"fills for sm_90a does not compile: fills\.cu\(1\): .*value\.cuh"):
        nvrtc.compile_ptx(FILLS, name="fills")


def test_what_is_lacking_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> NoReturn:
        raise ImportError(f"no {name}")

    uncached: Any = nvrtc.unavailable_reason.__wrapped__
    with monkeypatch.context() as patch:
        patch.setattr(build, "compiler", lambda: None)
        assert uncached() == "the emulator needs a C++ compiler, and there is no g++"
    monkeypatch.setattr(build, "compiler", lambda: "g++")
    monkeypatch.setattr(nvrtc, "_binding", nvrtc._binding.__wrapped__)
    monkeypatch.setattr(importlib, "import_module", fails)
    assert uncached() == "NVRTC is not there (no cuda.bindings.nvrtc); pip install 'emulated_cuda[cuda13]' brings it"
