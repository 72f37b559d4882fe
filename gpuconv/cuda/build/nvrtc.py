"""NVRTC, NVIDIA's runtime compiler, through the Python package cuda-bindings; needs no device and no driver.

The binding is imported on the first compilation.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gpuconv._errors import CompileError

_INSTALL = "pip install 'gpuconv[cuda13]' brings it"
_HEADERS = ("cuda_fp16.h", "cuda_fp16.hpp", "cuda_bf16.h", "cuda_bf16.hpp", "cuda_runtime_api.h")


@cache
def _binding() -> Any:
    """Import and return NVIDIA's binding; CompileError if it or NVRTC is missing."""
    try:
        binding: Any = importlib.import_module("cuda.bindings.nvrtc")
        binding.nvrtcVersion()  # the first call loads the library
    except Exception as error:  # a binding without its library fails in its own ways
        reason = " ".join(str(error).split())
        raise CompileError(
            f"CUDA kernels cannot be compiled, since NVRTC is not there ({reason}); {_INSTALL}"
        ) from error
    return binding


@cache
def version() -> str:
    """Return NVRTC's version, such as ``13.0``."""
    major, minor = _checked(_binding().nvrtcVersion())
    return f"{major}.{minor}"


@cache
def capabilities() -> tuple[tuple[int, int], ...]:
    """Return the compute capabilities that NVRTC supports, in ascending order."""
    (numbers,) = _checked(_binding().nvrtcGetSupportedArchs())
    return tuple(sorted(divmod(number, 10) for number in numbers))


@cache
def headers() -> Path:
    """Return the folder that holds ``cuda_fp16.h``."""
    try:
        pathfinder: Any = importlib.import_module("cuda.pathfinder")
        folder = pathfinder.find_nvidia_header_directory("cudart")
    except Exception as error:
        raise CompileError(f"the search for the CUDA headers failed ({error}); {_INSTALL}") from error
    if folder is None or not Path(folder, _HEADERS[0]).is_file():
        raise CompileError(f"CUDA kernels cannot be compiled, since {_HEADERS[0]} is not there; {_INSTALL}")
    return Path(folder)


@cache
def identity() -> str:
    """Return a text that identifies the compiler and CUDA headers by content, independent of their location.

    NVRTC's version lacks the patch level; the library's size stands in for it.
    """
    _binding()
    library = importlib.import_module("cuda.pathfinder").load_nvidia_dynamic_lib("nvrtc").abs_path
    size = Path(library).stat().st_size if library else 0
    digest = hashlib.sha256()
    for name in _HEADERS:
        path = headers() / name
        digest.update(path.read_bytes() if path.is_file() else b"")
    return f"NVRTC {version()}, {size} bytes, headers {digest.hexdigest()}"


def build(name: str, source: str, architecture: str, options: Sequence[str]) -> tuple[bytes, str]:
    """Compile to a cubin for ``sm_…``, or to PTX for ``compute_…``; return it with the compiler's log.

    The binding releases the GIL. A CompileError shows the first error, then the whole log.
    """
    nvrtc = _binding()
    (program,) = _checked(nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], []))
    try:
        words = [f"--gpu-architecture={architecture}".encode(), f"-I{headers()}".encode(), *map(str.encode, options)]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
        log = _bytes(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        text = log.rstrip(b"\0").decode(errors="replace")
        if int(result) != 0:
            raise CompileError(f"{name} for {architecture} does not compile: {_first_error(text, result)}\n{text}")
        if architecture.startswith("compute_"):
            return _bytes(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).rstrip(b"\0"), text
        return _bytes(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN), text
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _first_error(log: str, result: Any) -> str:
    """Return the first error line of a log, or else NVRTC's status."""
    match = re.search(r"^.*\berror\b.*$", log, re.MULTILINE)
    if match is not None:
        return match[0].strip()
    return log.strip().partition("\n")[0] or f"NVRTC reports {getattr(result, 'name', result)}"


def _bytes(program: Any, size: Callable[[Any], Any], get: Callable[[Any, bytearray], Any]) -> bytes:
    """Return an output of NVRTC by its pair of size and copy functions."""
    (count,) = _checked(size(program))
    buffer = bytearray(count)  # not bytes: Python shares those of length 1, and NVRTC would overwrite them
    _checked(get(program, buffer))
    return bytes(buffer)


def _checked(answer: Any) -> Any:
    """Return the values of a binding's answer; CompileError if its status is an error."""
    result, *values = answer
    if int(result) != 0:
        raise CompileError(f"NVRTC reports {getattr(result, 'name', result)}")
    return values
