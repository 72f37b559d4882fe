"""Compile CUDA C++ to PTX by NVRTC, through NVIDIA's binding for Python: it needs neither a device nor CuPy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .emulator import build
from .install import Unsuitable, headers


class CompileError(RuntimeError):
    """NVRTC refuses a program; the message is its log."""


def compile_ptx(
    source: str,
    architecture: str = "sm_90a",
    *,
    name: str = "kernel",
    defines: Sequence[str] = (),
    folders: Sequence[Path] = (),
) -> str:
    """Return the PTX of CUDA C++, with the lines of its source, for `emulator.engine.module`.

    Parameters
    ----------
    source : str
        The program, in C++17.
    architecture : str
        The compute capability, as ``sm_90a``.
    name : str
        What the file is called in messages, without ``.cu``.
    defines : sequence of str
        Macros, as ``COUNT=3``.
    folders : sequence of Path
        Where included files are looked for, before the headers of CUDA's runtime.

    Raises
    ------
    CompileError
        The program does not compile, or NVRTC is not installed.
    """
    nvrtc = _binding()
    options = [f"--gpu-architecture={architecture.replace('sm_', 'compute_')}", "--std=c++17", "--generate-line-info"]
    options += [*(f"-I{folder}" for folder in (*folders, headers())), *(f"-D{define}" for define in defines)]
    (program,) = _checked(nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], []))
    try:
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if int(result) != 0:
            log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
            raise CompileError(f"{name} for {architecture} does not compile: {log}")
        return _text(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@cache
def unavailable_reason() -> str | None:
    """Return why kernels cannot be compiled and emulated here, or None where they can."""
    if build.compiler() is None:
        return "the emulator needs a C++ compiler, and there is no g++"
    try:
        _binding()
        headers()
    except (CompileError, Unsuitable, ImportError) as error:
        return str(error)
    return None


@cache
def _binding() -> Any:
    try:
        binding: Any = importlib.import_module("cuda.bindings.nvrtc")
        binding.nvrtcVersion()  # the first call loads the library
    except Exception as error:  # a binding without its library fails in ways of its own
        reason = " ".join(str(error).split())
        raise CompileError(f"NVRTC is not there ({reason}); pip install 'emulated_cuda[cuda13]' brings it") from error
    return binding


def _text(program: Any, size: Callable[[Any], Any], get: Callable[[Any, bytearray], Any]) -> str:
    (count,) = _checked(size(program))
    buffer = bytearray(count)
    _checked(get(program, buffer))
    return buffer.rstrip(b"\0").decode(errors="replace")


def _checked(answer: Any) -> Any:
    result, *values = answer
    if int(result) != 0:
        raise CompileError(f"NVRTC reports {getattr(result, 'name', result)}")
    return values
