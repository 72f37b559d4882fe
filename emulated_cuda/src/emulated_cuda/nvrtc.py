"""Compile CUDA C++ to PTX with NVRTC, by NVIDIA's Python binding, for use without CuPy and without a device."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .emulator import build
from .install import Unsuitable, headers


class CompileError(RuntimeError):
    """NVRTC reports an error, or is not installed; the message has its log or the reason."""


def compile_ptx(
    source: str,
    architecture: str = "sm_90a",
    *,
    name: str = "kernel",
    defines: Sequence[str] = (),
    folders: Sequence[Path] = (),
) -> str:
    """Compile CUDA C++ and return PTX with line information, for `emulator.engine.module`.

    Parameters
    ----------
    source : str
        The program, in C++17.
    architecture : str
        The compute capability, such as ``sm_90a``.
    name : str
        File name in messages, without ``.cu``.
    defines : sequence of str
        Macro definitions, such as ``COUNT=3``.
    folders : sequence of Path
        Folders to search for included files, before those of the CUDA runtime's headers.

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
    """Return why kernels cannot be compiled and emulated on this machine, or None if they can."""
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
    """Return ``cuda.bindings.nvrtc`` with its library loaded; raise CompileError if it is not installed."""
    try:
        binding: Any = importlib.import_module("cuda.bindings.nvrtc")
        binding.nvrtcVersion()  # the first call loads the library
    except Exception as error:  # without the library, the binding raises various exceptions
        reason = " ".join(str(error).split())
        raise CompileError(f"NVRTC is not there ({reason}); pip install 'emulated_cuda[cuda13]' brings it") from error
    return binding


def _text(program: Any, size: Callable[[Any], Any], get: Callable[[Any, bytearray], Any]) -> str:
    """Return a text of an NVRTC program, such as its log, by the functions for its size and its content."""
    (count,) = _checked(size(program))
    buffer = bytearray(count)
    _checked(get(program, buffer))
    return buffer.rstrip(b"\0").decode(errors="replace")


def _checked(answer: Any) -> Any:
    """Return the results of an NVRTC call; raise CompileError if its status is not 0."""
    result, *values = answer
    if int(result) != 0:
        raise CompileError(f"NVRTC reports {getattr(result, 'name', result)}")
    return values
